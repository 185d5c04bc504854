// A whole call: bind, choose, check, then run on the CPU or launch.
#pragma once

#include <nanobind/nanobind.h>

#include "bind.hpp"
#include "dispatch.hpp"
#include "run.hpp"

namespace gristmill {

// `grid` replaces the kernel's own; null or None: none. Hold the GIL.
void call(const Callable& callable, const CallArguments& given, PyObject* grid = nullptr);

// What `call` would run, without running it: specialisation, variant, device, grid, image and its geometry.
nanobind::dict explain_call(const Callable& callable, const CallArguments& given);

// Order a stream after those that the arrays' makers named.
void await_producers(Bound& bound, const cuda::GpuDevice& device, cuda::Stream stream);

}  // namespace gristmill
