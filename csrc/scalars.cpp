#include "scalars.hpp"

#include "dtype.hpp"
#include "types.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

[[noreturn]] void fail_kind(const Kernel& kernel, const Parameter& parameter, PyObject* object,
                            std::string_view supported) {
    const bool is_array = type_info(object).protocol != Protocol::none;
    throw Failure(ErrorKind::type, {.what = concat(kernel.name, ": `", parameter.name, "` is no number of its type"),
                                    .found = type_name(object),
                                    .supported = std::string(supported),
                                    .fix = is_array ? concat("pass `", parameter.name, ".item()`")
                                                    : concat("pass `", parameter.name, "` as ", supported)});
}

[[noreturn]] void fail_range(const Kernel& kernel, const Parameter& parameter, PyObject* object, Dtype dtype) {
    PyErr_Clear();
    throw Failure(ErrorKind::value, {.what = concat(kernel.name, ": `", parameter.name, "` is out of range"),
                                     .found = nb::str(nb::handle(object)).c_str(),
                                     .supported = concat("values of ", dtype_name(dtype)),
                                     .fix = concat("pass a value that ", dtype_name(dtype), " holds")});
}

// Arrays convert to numbers too, but for those of a GPU that is a hidden wait.
bool is_number(PyObject* object) {
    return PyFloat_Check(object) || PyLong_Check(object) || type_info(object).protocol == Protocol::none ||
           PyBool_Check(object);
}

// NumPy's scalars have the buffer protocol, as arrays have: they are told apart by their missing axes.
bool is_numpy_scalar(PyObject* object) {
    return type_name(object).starts_with("numpy.") && !nb::hasattr(nb::handle(object), "__setitem__");
}

std::int64_t integer_of(const Kernel& kernel, const Parameter& parameter, Dtype dtype, PyObject* object) {
    if (PyLong_Check(object) && dtype != Dtype::u64) {
        const auto value = PyLong_AsLongLong(object);
        if (integer_fits(dtype, value) && (value != -1 || !PyErr_Occurred())) return value;
        fail_range(kernel, parameter, object, dtype);
    }
    const auto number = nb::steal(PyNumber_Index(object));
    if (!number.is_valid()) {
        PyErr_Clear();
        fail_kind(kernel, parameter, object, "an int");
    }
    if (dtype == Dtype::u64) {
        const auto value = PyLong_AsUnsignedLongLong(number.ptr());
        if (PyErr_Occurred()) fail_range(kernel, parameter, object, dtype);
        return static_cast<std::int64_t>(value);
    }
    const auto value = PyLong_AsLongLong(number.ptr());
    if (PyErr_Occurred() || !integer_fits(dtype, value)) fail_range(kernel, parameter, object, dtype);
    return value;
}

bool truth_of(const Kernel& kernel, const Parameter& parameter, PyObject* object) {
    if (object == Py_True || object == Py_False) return object == Py_True;
    if (!type_name(object).starts_with("numpy.bool")) fail_kind(kernel, parameter, object, "a bool");
    return PyObject_IsTrue(object) == 1;
}

double real_of(const Kernel& kernel, const Parameter& parameter, PyObject* object) {
    const double value = PyFloat_AsDouble(object);
    if (value != -1.0 || !PyErr_Occurred()) return value;
    PyErr_Clear();
    fail_kind(kernel, parameter, object, "a float");
}

std::string dtype_spelling(nb::handle object) {
    if (nb::isinstance<nb::str>(object)) return nb::borrow<nb::str>(object).c_str();
    for (const char* attribute : {"name", "__name__"}) {
        const nb::object name = nb::getattr(object, attribute, nb::none());
        if (nb::isinstance<nb::str>(name)) return nb::borrow<nb::str>(name).c_str();
    }
    return nb::str(object).c_str();
}

}  // namespace

Scalar read_index(const Kernel& kernel, const Parameter& parameter, PyObject* object) {
    if (PyLong_Check(object)) {
        const auto value = PyLong_AsLongLong(object);
        if (value != -1 || !PyErr_Occurred()) return {value, 0, true};
        fail_range(kernel, parameter, object, Dtype::i64);
    }
    return {integer_of(kernel, parameter, Dtype::i64, object), 0, true};
}

Scalar read_scalar(const Kernel& kernel, const Parameter& parameter, Dtype dtype, PyObject* object) {
    if (PyFloat_Check(object) && is_floating(dtype)) return {0, PyFloat_AsDouble(object), true};
    if (!is_number(object) && !is_numpy_scalar(object))
        fail_kind(kernel, parameter, object, is_floating(dtype) ? "a float" : "an int");
    if (dtype == Dtype::boolean) return {truth_of(kernel, parameter, object), 0, true};
    if (is_floating(dtype)) return {0, real_of(kernel, parameter, object), true};
    return {integer_of(kernel, parameter, dtype, object), 0, true};
}

Scalar default_scalar(const Parameter& parameter) {
    return {static_cast<std::int64_t>(parameter.default_value), parameter.default_value, false};
}

ConstantValue read_constant(const Kernel& kernel, const char* name, PyObject* object) {
    using Kind = ConstantValue::Kind;
    if (PyBool_Check(object)) return {Kind::boolean, object == Py_True, 0, nullptr};
    if (PyUnicode_Check(object)) return {Kind::text, 0, 0, nb::borrow<nb::str>(object).c_str()};
    if (PyFloat_Check(object)) return {Kind::real, 0, PyFloat_AsDouble(object), nullptr};
    if (const auto number = nb::steal(PyNumber_Index(object)); number.is_valid())
        if (const auto value = PyLong_AsLongLong(number.ptr()); value != -1 || !PyErr_Occurred())
            return {Kind::integer, value, 0, nullptr};
    PyErr_Clear();
    throw Failure(ErrorKind::type, {.what = concat(kernel.name, ": constant `", name, "` has the wrong type"),
                                    .found = type_name(object),
                                    .supported = "int, float, bool, str",
                                    .fix = concat("pass one of the values that `", name, "` was built for")});
}

nb::object constant_object(const ConstantValue& value) {
    switch (value.kind) {
        case ConstantValue::Kind::integer: return nb::int_(value.integer);
        case ConstantValue::Kind::boolean: return nb::bool_(value.integer != 0);
        case ConstantValue::Kind::real: return nb::float_(value.real);
        default: return nb::str(value.text);
    }
}

Dtype read_dtype(PyObject* object) {
    const std::string spelling = dtype_spelling(object);
    if (const auto dtype = parse_dtype(spelling)) return *dtype;
    std::string all;
    for (std::size_t i = 0; i < dtype_count; ++i) all.append(i ? ", " : "").append(dtype_name(static_cast<Dtype>(i)));
    throw Failure(ErrorKind::type, {.what = concat("`", spelling, "` is not a known dtype"),
                                    .supported = all,
                                    .fix = "pass one of these, as in \"f32\""});
}

}  // namespace gristmill
