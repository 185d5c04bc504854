// Our own slots and methods of Python types, around which nothing else turns C++ exceptions into Python's.
#pragma once

#include <nanobind/nanobind.h>

#include "error.hpp"

namespace gristmill {

inline PyObject* python_type(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::type: return PyExc_TypeError;
        case ErrorKind::value: return PyExc_ValueError;
        default: return PyExc_RuntimeError;
    }
}

// What `body` returns, a new reference; null with the Python error set.
template <class Body>
PyObject* guarded(Body body) {
    try {
        return body();
    } catch (const Failure& failure) {
        PyErr_SetString(python_type(failure.kind()), failure.what());
    } catch (nanobind::python_error& error) {
        error.restore();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

}  // namespace gristmill
