#include "plain.hpp"

#include <utility>

namespace nb = nanobind;

namespace gristmill {

constinit PlainTensors plain_tensors{};

namespace {

constexpr std::uint16_t patience_after_a_death = 8, patience_when_full = 8, strikes_of_a_candidate = 8;

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

// Of tensors that call in turns, the others must not keep one from being seen again.
bool PlainTensors::is_worth_a_place(Set& set, PyObject* object) {
    if (set.candidate == object) {
        set.strikes = 0;
        if (set.patience > 0) --set.patience;
        return set.patience == 0;
    }
    if (set.candidate && ++set.strikes < strikes_of_a_candidate) return false;
    set.strikes = 0;
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
    if (set.rows[1].object) set.patience = patience_when_full;
    Py_XDECREF(evicted);
}

}  // namespace gristmill
