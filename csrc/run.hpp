// From a call's arguments to running code, on the CPU or on a device. Free of Python.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "device.hpp"
#include "dispatch.hpp"
#include "image.hpp"
#include "launch.hpp"
#include "padded.hpp"
#include "tensor_map.hpp"

namespace gristmill {

using Grid = std::array<std::int64_t, 3>;

// What a plan follows from beside the arguments; `only` and `grid` null: those that suit the call.
struct Setting {
    const Specialisation* only;
    const Grid* grid;
    Circumstances circumstances;
};

// What the choice of a specialisation for these arguments depends on besides them. May make the device.
Circumstances circumstances_of(const KernelIndex& index, const Arguments& arguments);

// Choose, check and complete. Raises Failure.
void make_plan(const KernelIndex& index, const Arguments& arguments, const Setting& setting, Plan& plan);

// Index of the code that runs on this CPU. Raises Failure if there is none.
std::size_t host_level(const EntryPlace& place);
HostFunction host_function(const EntryPlace& place);

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

// The same call with padded copies of its matrices.
class PaddedCall {
public:
    PaddedCall(const KernelIndex& index, const Arguments& arguments, const Setting& setting)
        : arguments_(index, arguments), index_(index), setting_(setting) {}

    // Null, unless the kernel says that copies are worth it and they bring aligned code; `plan` is that of the call.
    static std::unique_ptr<PaddedCall> find(const KernelIndex& index, const Arguments& arguments,
                                            const Setting& setting, const Plan& plan);
    const Plan& plan() const { return plan_; }  // complete, but for where the copies lie
    PaddedArguments& arguments() { return arguments_; }
    EntryPlace place() const { return {index_.kernel, *plan_.specialisation, plan_.variant}; }
    std::vector<std::size_t> parameters() const { return arguments_.parameters(); }  // of which there are copies
    // Do not hold the lock. False: there is no memory for the copies, and nothing is queued.
    bool launch(cuda::GpuDevice& device, cuda::LoadedKernel kernel, cuda::Stream stream);

private:
    void complete();

    PaddedArguments arguments_;
    const KernelIndex& index_;
    Setting setting_;
    Plan plan_;
};

// The device, made if need be, without the lock meanwhile.
cuda::GpuDevice& ready_device(int ordinal);

// The kernel's handle on a device, loaded if need be, without the lock meanwhile.
cuda::LoadedKernel ready_kernel(const EntryPlace& place, cuda::GpuDevice& device);

// Load every entry of a kernel for a device, so that no later call waits for the GPU. Returns the number of entries
// loaded.
int preload_kernel(const Kernel& kernel, int device);

}  // namespace gristmill
