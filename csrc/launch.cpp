#include "launch.hpp"

#include <cstdlib>
#include <string_view>

#include "tickets.hpp"

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

cuda::Result launch_once(const Launch& launch, cuda::GpuDevice& device, const Geometry& geometry,
                         cuda::Function function) {
    std::uintptr_t counter = 0;
    if (geometry.draws) {
        const cuda::Result code = find_counter(device, launch.config.stream, counter);
        if (code != cuda::success) return code;
        launch.parameters[launch.place.kernel.parameters.size() + geometry.maps.size()] = &counter;
    }
    const cuda::ContextScope scope(device);
    return device.api().cuLaunchKernelEx(&launch.config, function, launch.parameters, nullptr);
}

// The driver takes a kernel's handle for a function: slower, but in whatever context the stream is of.
cuda::Function as_function(cuda::Kernel kernel) { return reinterpret_cast<cuda::Function>(kernel); }

// No function outlives a reset of its context: 709 while that is not made again, then 400 (H200, driver 580). A stream
// of another context gives 400 too: there the same function is found, and is of no use.
cuda::Result launch_again(const Launch& launch, cuda::GpuDevice& device, cuda::LoadedKernel kernel, cuda::Result code) {
    const cuda::Api& api = device.api();
    if (code == cuda::context_is_destroyed) device.retain_again();
    forget_tickets(device.ordinal());
    cuda::allow_shared_memory(api, kernel, device.ordinal());
    const cuda::Result again = launch_once(launch, device, *kernel.geometry, as_function(kernel.handle));
    if (again != cuda::success) return again;
    const cuda::ContextScope scope(device);
    const cuda::RelaxedCapture relaxed(api);
    const cuda::Function found = cuda::find_function(api, kernel.handle);
    const bool is_useless = code == cuda::invalid_handle && found == kernel.function;
    device.keep_function(launch.entry, is_useless ? nullptr : found);
    return again;
}

// A wait inside a capture would end the capture.
void synchronise(const EntryPlace& place, cuda::GpuDevice& device, cuda::Stream stream) {
    const cuda::Api& api = device.api();
    const cuda::ContextScope scope(device);
    if (!cuda::is_captured(device, stream))
        cuda::check(api, api.cuStreamSynchronize(stream), concat("running ", place.specialisation.id));
}

}  // namespace

// Programmatic stream serialisation: blocks may start while the kernel before ends. A launch costs the host less, too.
// Stream captures know it since CUDA 12.3.
cuda::LaunchConfig config_of(const Plan& plan, const Geometry& geometry, int driver_version) {
    static constexpr cuda::LaunchAttribute early{6, 0, 1, {}};
    const bool is_early = geometry.waits && driver_version >= 12030;
    const auto size = [&](std::size_t axis) { return static_cast<unsigned>(plan.grid[axis]); };
    return {{size(0) * geometry.ctas, size(1), size(2)}, {geometry.threads, 1, 1}, geometry.shared_bytes, nullptr,
            is_early ? &early : nullptr, is_early ? 1u : 0u};
}

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
    if (geometry.draws && plan.grid[1] * plan.grid[2] != 1)
        throw Failure(ErrorKind::value, {.what = concat(kernel.name, ": its programs draw tiles from one counter"),
                                         .found = concat("a grid of ", plan.grid[0], " x ", plan.grid[1], " x ", plan.grid[2]),
                                         .supported = "one axis",
                                         .fix = "give one number, `grid=(n,)`, or none"});
    if (threads > most_threads || threads == 0)
        throw Failure(ErrorKind::value, {.what = concat(kernel.name, ": ", plan.specialisation->id, " wants ", threads,
                                                        " threads for a block"),
                                         .supported = concat("1 to ", most_threads),
                                         .fix = "declare fewer warps (`num_warps=`), then rebuild"});
}

void launch(const Launch& launch, cuda::GpuDevice& device, cuda::LoadedKernel kernel) {
    const bool has_function = kernel.function != nullptr;
    cuda::Result code = launch_once(launch, device, *kernel.geometry, has_function ? kernel.function : as_function(kernel.handle));
    if (code == cuda::context_is_destroyed || (code == cuda::invalid_handle && has_function))
        code = launch_again(launch, device, kernel, code);
    const Specialisation& specialisation = launch.place.specialisation;
    if (code != cuda::success)
        cuda::fail(device.api(), code, concat("launching ", specialisation.id, " on cuda:", device.ordinal()));
    if (is_synchronous()) synchronise(launch.place, device, launch.config.stream);
}

}  // namespace gristmill
