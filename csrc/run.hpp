// From a call's arguments to running code, on the CPU or on a device. Free of Python.
#pragma once

#include <array>
#include <cstdint>

#include "device.hpp"
#include "dispatch.hpp"
#include "image.hpp"
#include "launch.hpp"
#include "tensor_map.hpp"

namespace gristmill {

using Grid = std::array<std::int64_t, 3>;

// Choose, check and complete; `only` and `grid` null: those that suit the call. Raises Failure.
void make_plan(const KernelIndex& index, const Arguments& arguments, const Specialisation* only, const Grid* grid,
               Plan& plan);

// Index of the code that runs on this CPU. Raises Failure if there is none.
std::size_t host_level(const EntryPlace& place);

// Run the programs of a plan on the CPU. Where the work is more than a moment's, other threads of Python may run.
void run_on_host(const EntryPlace& place, const Arguments& arguments, const Plan& plan);

// A plan's launch on a device, but for its stream. The plan points to the maps then.
class DeviceCall {
public:
    // Raises Failure for a grid or block beyond the device's limits, or if the driver makes no map.
    DeviceCall(const EntryPlace& place, const Arguments& arguments, Plan& plan, cuda::GpuDevice& device,
               cuda::LoadedKernel kernel);

    Launch launch;
    CallMaps maps;
};

// The device, made if need be, without the lock meanwhile.
cuda::GpuDevice& ready_device(int ordinal);

// The kernel's handle on a device, loaded if need be, without the lock meanwhile.
cuda::LoadedKernel ready_kernel(const EntryPlace& place, cuda::GpuDevice& device);

// Load every entry of a kernel for a device, so that no later call waits for the GPU. Returns the number of entries
// loaded.
int preload_kernel(const Kernel& kernel, int device);

}  // namespace gristmill
