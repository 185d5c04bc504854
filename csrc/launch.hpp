// Launches a plan on a CUDA device: everything that the driver would answer with "invalid value" is checked before.
#pragma once

#include "device.hpp"
#include "dispatch.hpp"
#include "image.hpp"

namespace gristmill {

// Raises Failure naming the axis if the grid or block is beyond the device's limits.
void check_launch_limits(const Kernel& kernel, const Plan& plan, const Geometry& geometry);

// Do not hold the GIL: a full queue blocks. Asynchronous, unless GRISTMILL_SYNC=1.
void launch(const EntryPlace& place, const Plan& plan, cuda::GpuDevice& device, cuda::LoadedKernel kernel,
            cuda::Stream stream);

}  // namespace gristmill
