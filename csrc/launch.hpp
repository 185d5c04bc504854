// Launches a plan on a CUDA device: everything that the driver would answer with "invalid value" is checked before.
#pragma once

#include "device.hpp"
#include "dispatch.hpp"
#include "image.hpp"

namespace gristmill {

// Raises Failure naming the axis if the grid or block is beyond the device's limits.
void check_launch_limits(const Kernel& kernel, const Plan& plan, const Geometry& geometry);

// The code itself says that it wants clusters: the launch needs no attribute for them.
cuda::LaunchConfig config_of(const Plan& plan, const Geometry& geometry, int driver_version);

// One launch; `parameters` as the driver takes them.
struct Launch {
    EntryPlace place;
    std::size_t entry;
    cuda::LaunchConfig config;
    void** parameters;  // with room for what a launch adds
};

// Do not hold the GIL: a full queue blocks. Asynchronous, unless GRISTMILL_SYNC=1.
void launch(const Launch& launch, cuda::GpuDevice& device, cuda::LoadedKernel kernel);

}  // namespace gristmill
