// A whole call: bind, choose, check, then run on the CPU or launch.
#pragma once

#include <nanobind/nanobind.h>

#include "bind.hpp"
#include "dispatch.hpp"
#include "image.hpp"

namespace gristmill {

// `grid` replaces the kernel's own; null or None: none. Hold the GIL.
void call(const Callable& callable, const CallArguments& given, PyObject* grid = nullptr);

// What `call` would run, without running it: specialisation, variant, device, grid, image and its geometry.
nanobind::dict explain_call(const Callable& callable, const CallArguments& given);

// What the choice of a specialisation for these arguments depends on besides them. May make the device.
Circumstances circumstances_of(const KernelIndex& index, const Arguments& arguments);

// The CPU code of an entry. Raises Failure if there is none that runs here.
HostFunction host_function(const EntryPlace& place);

// The device, made if need be with the GIL released.
cuda::GpuDevice& ready_device(int ordinal);

// The kernel's handle on a device, loaded if need be with the GIL released.
cuda::LoadedKernel ready_kernel(const EntryPlace& place, cuda::GpuDevice& device);

}  // namespace gristmill
