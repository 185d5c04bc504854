#include "run.hpp"

#include <ranges>
#include <string>

#include "cpu.hpp"
#include "error.hpp"
#include "host.hpp"
#include "unlocked.hpp"

namespace gristmill {

namespace {

// Work on less memory than this is over before another thread could use the lock.
constexpr std::int64_t bytes_to_unlock = 64 * 1024;

std::int64_t multiprocessors(const KernelIndex& index, const Arguments& arguments) {
    if (!index.needs_sm_count()) return 0;
    return arguments.device.kind == DeviceKind::cpu ? host_thread_count()
                                                    : ready_device(arguments.device.ordinal).facts().sm_count;
}

int code_source(const KernelIndex& index, const Arguments& arguments) {
    if (arguments.device.kind == DeviceKind::cpu) return index.has_host_code() ? host_source : any_source;
    if (!index.needs_source()) return any_source;
    return index.source().get(arguments.device.ordinal, [&] {
        const cuda::GpuDevice& device = ready_device(arguments.device.ordinal);
        return source_for(index.kernel, device.facts(), device.api().resolver.driver_version());
    });
}

int asked_device(const KernelIndex& index, const Arguments& arguments) {
    if (index.tuned().is_empty()) return no_tuned_device;
    if (arguments.device.kind == DeviceKind::cuda) ready_device(arguments.device.ordinal);
    return tuned_device(arguments.device);
}

std::string host_levels_text() {
    return listed(tables.host_levels, [](HostLevel level) { return std::string(level_name(level)); });
}

[[noreturn]] void fail_no_host_code(const Kernel& kernel) {
    throw Failure(ErrorKind::runtime,
                  {.what = concat(kernel.name, ": built for CUDA only, and the arrays are on the CPU"),
                   .fix = "add `x86-64-v3` (or `aarch64`) to TARGETS, then rebuild; or pass CUDA arrays"});
}

[[noreturn]] void fail_cpu(const Kernel& kernel) {
    throw Failure(ErrorKind::runtime, {.what = concat(kernel.name, ": no image fits this CPU"),
                                       .asked = std::string(cpu_level_text()),
                                       .built = host_levels_text(),
                                       .fix = "add a lower level, such as `x86-64-v2`, to TARGETS, then rebuild"});
}

std::int64_t touched_bytes(const Kernel& kernel, const Arguments& arguments) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i)
        if (kernel.parameters[i].kind == ParameterKind::pointer)
            bytes += arguments.views[i]->count * arguments.views[i]->item_bytes;
    return bytes;
}

void take(const Choice& choice, Plan& plan) {
    plan.specialisation = choice.specialisation;
    plan.variant = choice.variant;
    plan.is_tuned = choice.is_tuned;
}

Launch checked_launch(const EntryPlace& place, Plan& plan, const Geometry& geometry,
                      const cuda::GpuDevice& device) {
    check_launch_limits(place.kernel, plan, geometry);
    return {place, place.index(), config_of(plan, geometry, device.api().resolver.driver_version()),
            plan.pointers.data()};
}

}  // namespace

Circumstances circumstances_of(const KernelIndex& index, const Arguments& arguments) {
    return {multiprocessors(index, arguments), code_source(index, arguments), asked_device(index, arguments)};
}

void make_plan(const KernelIndex& index, const Arguments& arguments, const Setting& setting, Plan& plan) {
    const std::int64_t sm_count = setting.circumstances.sm_count;
    take(choose(index, arguments, setting.circumstances, setting.only), plan);
    check_arrays(index, *plan.specialisation, arguments, sm_count);
    complete_plan(index, arguments, sm_count, setting.grid, plan);
}

std::unique_ptr<PaddedCall> PaddedCall::find(const KernelIndex& index, const Arguments& arguments,
                                             const Setting& setting, const Plan& plan) {
    if (!may_be_padded(index, arguments, setting.circumstances, plan.variant)) return {};
    auto padded = std::make_unique<PaddedCall>(index, arguments, setting);
    if (!padded->arguments_.found()) return {};
    take(choose(index, padded->arguments_.arguments(), setting.circumstances, setting.only), padded->plan_);
    if (padded->plan_.variant != Variant::aligned32) return {};
    padded->complete();
    return padded;
}

void PaddedCall::complete() {
    complete_plan(index_, arguments_.arguments(), setting_.circumstances.sm_count, setting_.grid, plan_);
}

bool PaddedCall::launch(cuda::GpuDevice& device, cuda::LoadedKernel kernel, cuda::Stream stream) {
    const StreamMemory memory(device, stream, arguments_.bytes());
    if (!memory.data()) return false;
    arguments_.place(memory.data());
    complete();
    DeviceCall made(place(), arguments_.arguments(), plan_, device, kernel);
    made.launch.config.stream = stream;
    made.launch.config.attribute_count = 0;  // it waits for the copies
    arguments_.copy_in(device, stream);
    gristmill::launch(made.launch, device, kernel);
    arguments_.copy_out(device, stream);
    return true;
}

std::size_t host_level(const EntryPlace& place) {
    static const std::optional<std::size_t> level = best_host_level();
    if (place.entry().host.empty()) fail_no_host_code(place.kernel);
    if (!level || *level >= place.entry().host.size()) fail_cpu(place.kernel);
    return *level;
}

HostFunction host_function(const EntryPlace& place) { return place.entry().host[host_level(place)]; }

void run_on_host(const EntryPlace& place, const Arguments& arguments, const Plan& plan) {
    const HostWork work{host_function(place), plan.block.data(), plan.grid};
    std::int64_t done = 0;
    if (touched_bytes(place.kernel, arguments) < bytes_to_unlock) done = run_small(work);
    if (done == work.programs()) return;
    const Unlocked unlocked;
    if (done == 0) done = run_small(work);
    run_large(work, done);
}

DeviceCall::DeviceCall(const EntryPlace& place, const Arguments& arguments, Plan& plan, cuda::GpuDevice& device,
                       cuda::LoadedKernel kernel)
    : launch(checked_launch(place, plan, *kernel.geometry, device)),
      maps(place, kernel.geometry->maps, arguments, device) {
    void** pointer = plan.pointers.data() + place.kernel.parameters.size();
    for (MadeMap& map : maps.made()) *pointer++ = &map.encoded;
}

cuda::GpuDevice& ready_device(int ordinal) {
    if (cuda::is_device_ready(ordinal)) return cuda::gpu_device(ordinal);
    const Unlocked unlocked;
    return cuda::gpu_device(ordinal);
}

cuda::LoadedKernel ready_kernel(const EntryPlace& place, cuda::GpuDevice& device) {
    if (const auto kernel = device.kernel(place.index()); kernel.handle) return kernel;
    const std::uint16_t image = image_for(place, device.facts(), device.api().resolver.driver_version());
    const std::string& bytes = image_bytes(image);
    const Unlocked unlocked;
    return load_kernel(place, image, bytes, device);
}

int preload_kernel(const Kernel& kernel, int ordinal) {
    cuda::GpuDevice& device = ready_device(ordinal);
    int loaded = 0;
    const int source = source_for(kernel, device.facts(), device.api().resolver.driver_version());
    for (const auto& row : kernel.specialisations | std::views::filter([&](const auto& r) { return is_built(r, source); }))
        for (const auto variant : {Variant::aligned32, Variant::general32, Variant::general64}) {
            const EntryPlace place{kernel, row, variant};
            if (!place.entry().symbol) continue;
            const bool was_loaded = device.kernel(place.index()).handle != nullptr;
            const cuda::LoadedKernel ready = ready_kernel(place, device);
            ++loaded;
            if (!was_loaded && ready.function) continue;
            const Unlocked unlocked;
            const cuda::ContextScope scope(device);
            const cuda::RelaxedCapture relaxed(device.api());
            cuda::Function function = nullptr;
            cuda::check(device.api(), device.api().cuKernelGetFunction(&function, ready.handle),
                        concat("preloading ", row.id));
            device.keep_function(place.index(), function);
        }
    return loaded;
}

}  // namespace gristmill
