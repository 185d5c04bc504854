// What a Python type offers for reading its arrays, looked up once for each type.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "dlpack.hpp"

namespace gristmill {

enum class Protocol : std::uint8_t { none, exchange, numpy, capsule, cuda_interface, buffer, host_interface };

enum class Framework : std::uint8_t { other, torch, cupy, jax };

struct TypeInfo {
    PyTypeObject* type;
    Protocol protocol;
    Framework framework;
    const dlpack::ExchangeApi* api;  // for Protocol::exchange
    PyObject* is_negated;            // torch: the unbound method Tensor.is_neg; else null
};

// The type asked for last: nearly always that of the next argument too.
extern const TypeInfo* last_type;
const TypeInfo& find_type_info(PyObject* object);

// Hold the GIL. The reference stays valid; the type is kept alive.
inline const TypeInfo& type_info(PyObject* object) {
    return last_type && last_type->type == Py_TYPE(object) ? *last_type : find_type_info(object);
}

std::string type_name(PyObject* object);  // "numpy.ndarray"

// The text of the pending Python error, first line only; clears it.
std::string take_python_error();

}  // namespace gristmill
