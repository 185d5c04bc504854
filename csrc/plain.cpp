#include "plain.hpp"

#include <utility>

namespace nb = nanobind;

namespace gristmill {

constinit PlainTensors plain_tensors{};

namespace {

constexpr std::uint32_t patience_after_a_death = 8;

}  // namespace

// Called by Python when a remembered tensor dies.
PyObject* PlainTensors::forget(PyObject* index, PyObject* weak) {
    Set& set = plain_tensors.sets_[PyLong_AsSize_t(index)];
    for (Row& row : set.rows)
        if (row.weak == weak) {
            row = {};
            set.patience = patience_after_a_death;
            Py_DECREF(weak);
        }
    return Py_NewRef(Py_None);
}

// Of two tensors that call in turns, the second must not keep the first from being seen again.
bool PlainTensors::is_worth_a_place(Set& set, PyObject* object) {
    if (set.candidate == object) {
        if (set.patience > 0) --set.patience;
        return set.patience == 0;
    }
    if (set.candidate && std::exchange(set.is_contested, !set.is_contested) == false) return false;
    set.candidate = object;
    return false;
}

void PlainTensors::add(PyObject* object, const void* data) {
    static PyMethodDef forget_method{"forget", forget, METH_O, nullptr};
    const std::size_t index = index_of(object);
    Set& set = sets_[index];
    for (Row& row : set.rows)
        if (row.object == object) {
            row.data = data;
            return;
        }
    if (!is_worth_a_place(set, object)) return;
    set.candidate = nullptr;
    const auto number = nb::steal(PyLong_FromSize_t(index));
    const auto callback = nb::steal(number.is_valid() ? PyCFunction_New(&forget_method, number.ptr()) : nullptr);
    PyObject* weak = callback.is_valid() ? PyWeakref_NewRef(object, callback.ptr()) : nullptr;
    if (!weak) return PyErr_Clear();
    PyObject* evicted = std::exchange(set.rows[1], std::exchange(set.rows[0], Row{object, data, weak})).weak;
    Py_XDECREF(evicted);
}

}  // namespace gristmill
