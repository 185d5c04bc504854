// Python values read as scalar parameters and constants.
#pragma once

#include <nanobind/nanobind.h>

#include "dispatch.hpp"

namespace gristmill {

// An integer for an index parameter. Raises Failure naming kernel and parameter.
Scalar read_index(const Kernel& kernel, const Parameter& parameter, PyObject* object);

// A number or bool of the scalar parameter's dtype. Raises Failure: wrong kind (TypeError), out of range (ValueError).
Scalar read_scalar(const Kernel& kernel, const Parameter& parameter, Dtype dtype, PyObject* object);

Scalar default_scalar(const Parameter& parameter);

// Borrows text from `object`. Raises Failure if it is no int, float, bool or str.
ConstantValue read_constant(const Kernel& kernel, const char* name, PyObject* object);

nanobind::object constant_object(const ConstantValue& value);

// gm.f32, "float32", "f32", numpy.float32, torch.float32. Raises Failure.
Dtype read_dtype(PyObject* object);

}  // namespace gristmill
