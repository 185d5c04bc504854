#include "launch.hpp"

#include <cstdlib>
#include <string_view>

namespace gristmill {

namespace {

constexpr std::array<std::int64_t, 3> most_blocks{2147483647, 65535, 65535};
constexpr unsigned most_threads = 1024;

bool is_synchronous() {
    static const bool is_set = [] {
        const char* text = std::getenv("GRISTMILL_SYNC");
        return text && std::string_view(text) == "1";
    }();
    return is_set;
}

// The code itself says that it wants clusters: the launch needs no attribute.
cuda::LaunchConfig config_of(const Plan& plan, const Geometry& geometry, cuda::Stream stream) {
    const auto size = [&](std::size_t axis) { return static_cast<unsigned>(plan.grid[axis]); };
    return {{size(0) * geometry.ctas, size(1), size(2)}, {geometry.threads, 1, 1}, geometry.shared_bytes, stream,
            nullptr, 0};
}

cuda::Result launch_once(const Plan& plan, cuda::GpuDevice& device, cuda::Kernel kernel,
                         const cuda::LaunchConfig& config) {
    const cuda::ContextScope scope(device);
    return device.api().cuLaunchKernelEx(&config, kernel, const_cast<void**>(plan.pointers.data()), nullptr);
}

// A wait inside a capture would end the capture.
void synchronise(const EntryPlace& place, cuda::GpuDevice& device, cuda::Stream stream) {
    const cuda::Api& api = device.api();
    const cuda::ContextScope scope(device);
    int is_capturing = 0;
    api.cuStreamIsCapturing(stream, &is_capturing);
    if (!is_capturing) cuda::check(api, api.cuStreamSynchronize(stream), concat("running ", place.specialisation.id));
}

}  // namespace

void check_launch_limits(const Kernel& kernel, const Plan& plan, const Geometry& geometry) {
    const unsigned threads = geometry.threads;
    for (std::size_t axis = 0; axis < 3; ++axis) {
        const bool has_clusters = axis == 0 && geometry.ctas > 1;
        const std::int64_t most_programs = has_clusters ? most_blocks[axis] / geometry.ctas : most_blocks[axis];
        if (plan.grid[axis] > most_programs)
            throw Failure(ErrorKind::value, {.what = concat(kernel.name, ": the grid is too large along axis ", axis),
                                             .found = concat(plan.grid[axis], " programs"),
                                             .supported = concat("up to ", most_programs, " on CUDA"),
                                             .fix = "use a larger block, or put the longest axis first in `grid`"});
    }
    if (threads > most_threads || threads == 0)
        throw Failure(ErrorKind::value, {.what = concat(kernel.name, ": ", plan.specialisation->id, " wants ", threads,
                                                        " threads for a block"),
                                         .supported = concat("1 to ", most_threads),
                                         .fix = "declare fewer warps (`num_warps=`), then rebuild"});
}

void launch(const EntryPlace& place, const Plan& plan, cuda::GpuDevice& device, cuda::LoadedKernel kernel,
            cuda::Stream stream) {
    const cuda::LaunchConfig config = config_of(plan, *kernel.geometry, stream);
    cuda::Result code = launch_once(plan, device, kernel.handle, config);
    if (code == cuda::context_is_destroyed) {  // somebody reset the device: the kernel's handle outlives that
        device.retain_again();
        cuda::allow_shared_memory(device.api(), kernel, device.ordinal());
        code = launch_once(plan, device, kernel.handle, config);
    }
    if (code != cuda::success)
        cuda::fail(device.api(), code, concat("launching ", place.specialisation.id, " on cuda:", device.ordinal()));
    if (is_synchronous()) synchronise(place, device, stream);
}

}  // namespace gristmill
