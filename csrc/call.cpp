#include "call.hpp"

#include <algorithm>
#include <memory>
#include <optional>

#include "cpu.hpp"
#include "host.hpp"
#include "launch.hpp"
#include "padded.hpp"
#include "repeat.hpp"
#include "report.hpp"
#include "scalars.hpp"
#include "tensor_map.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

// Work on less memory than this is over before another thread could use the GIL.
constexpr std::int64_t bytes_to_release_gil = 64 * 1024;

using Grid = std::array<std::int64_t, 3>;

std::int64_t grid_axis(const Kernel& kernel, nb::handle value) {
    const std::int64_t number = PyLong_Check(value.ptr()) ? PyLong_AsLongLong(value.ptr()) : -1;
    if (number >= 0) return number;
    PyErr_Clear();
    throw Failure(ErrorKind::type, {.what = concat(kernel.name, ": `grid` is no grid"),
                                    .found = nb::repr(value).c_str(),
                                    .supported = "an int, or a tuple of up to 3, from 0 on",
                                    .fix = "pass the number of programs, as in `grid=(12,)`"});
}

Grid read_grid(const Kernel& kernel, nb::handle value) {
    Grid grid{1, 1, 1};
    if (!PyTuple_Check(value.ptr()) && !PyList_Check(value.ptr())) {
        grid[0] = grid_axis(kernel, value);
        return grid;
    }
    const std::size_t count = nb::len(value);
    if (count == 0 || count > 3) grid_axis(kernel, value);
    for (std::size_t i = 0; i < count; ++i) grid[i] = grid_axis(kernel, nb::object(value[nb::int_(i)]));
    return grid;
}

std::int64_t multiprocessors(const KernelIndex& index, const Arguments& arguments) {
    if (!index.needs_sm_count()) return 0;
    return arguments.device.kind == DeviceKind::cpu ? host_thread_count()
                                                    : ready_device(arguments.device.ordinal).facts().sm_count;
}

int code_source(const KernelIndex& index, const Arguments& arguments) {
    if (!index.needs_source() || arguments.device.kind == DeviceKind::cpu) return any_source;
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

// What a launch depends on beside the arguments.
struct Setting {
    Circumstances circumstances;
    std::optional<Grid> grid;

    const Grid* given_grid() const { return grid ? &*grid : nullptr; }
};

void take(const Choice& choice, Plan& plan) {
    plan.specialisation = choice.specialisation;
    plan.variant = choice.variant;
    plan.is_tuned = choice.is_tuned;
}

Setting make_plan(Bound& bound, PyObject* grid, Plan& plan) {
    const KernelIndex& index = bound.index();
    const Arguments& arguments = bound.arguments();
    Setting setting{circumstances_of(index, arguments), {}};
    const std::int64_t sm_count = setting.circumstances.sm_count;
    if (!grid || grid == Py_None) grid = bound.grid();
    if (grid && grid != Py_None) setting.grid = read_grid(index.kernel, grid);
    const Choice choice = choose(index, arguments, setting.circumstances, bound.only());
    take(choice, plan);
    check_arrays(index, *plan.specialisation, arguments, sm_count);
    complete_plan(index, arguments, sm_count, setting.given_grid(), plan);
    return setting;
}

// The same call with padded copies, where the kernel says that they are worth it and they bring aligned code; `plan` is
// that of the call as it is. Its parameters are not complete.
struct PaddedPlan {
    explicit PaddedPlan(const Bound& bound) : arguments(bound.index(), bound.arguments()) {}
    PaddedArguments arguments;
    Plan plan;
};

std::unique_ptr<PaddedPlan> find_padded(const Bound& bound, const Setting& setting, const Plan& plan) {
    const Circumstances& circumstances = setting.circumstances;
    if (!may_be_padded(bound.index(), bound.arguments(), circumstances, plan.variant)) return {};
    auto padded = std::make_unique<PaddedPlan>(bound);
    if (!padded->arguments.found()) return {};
    const Choice choice = choose(bound.index(), padded->arguments.arguments(), circumstances, bound.only());
    if (choice.variant != Variant::aligned32) return {};
    take(choice, padded->plan);
    return padded;
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

std::size_t host_level(const EntryPlace& place) {
    static const std::optional<std::size_t> level = best_host_level();
    if (place.entry().host.empty()) fail_no_host_code(place.kernel);
    if (!level || *level >= place.entry().host.size()) fail_cpu(place.kernel);
    return *level;
}

std::int64_t touched_bytes(const Kernel& kernel, const Arguments& arguments) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i)
        if (kernel.parameters[i].kind == ParameterKind::pointer)
            bytes += arguments.views[i]->count * arguments.views[i]->item_bytes;
    return bytes;
}

void run_on_host(const EntryPlace& place, const Bound& bound, const Plan& plan) {
    const HostWork work{host_function(place), plan.block.data(), plan.grid};
    std::int64_t done = 0;
    if (touched_bytes(place.kernel, bound.arguments()) < bytes_to_release_gil) done = run_small(work);
    if (done == work.programs()) return;
    const nb::gil_scoped_release released;
    if (done == 0) done = run_small(work);
    run_large(work, done);
}

// A call that may come again is remembered, unless code had to be loaded: other threads may have changed its arrays.
void run_on_cuda(const EntryPlace& place, Bound& bound, Plan& plan, const CallArguments* repeatable) {
    cuda::GpuDevice& device = ready_device(bound.arguments().device.ordinal);
    const bool is_loaded = device.kernel(place.index()).handle != nullptr;
    const cuda::Stream stream = bound.stream();
    const cuda::LoadedKernel kernel = ready_kernel(place, device);
    check_launch_limits(place.kernel, plan, *kernel.geometry);
    CallMaps maps(place, kernel.geometry->maps, bound.arguments(), device);
    void** pointer = plan.pointers.data() + place.kernel.parameters.size();
    for (MadeMap& map : maps.made()) *pointer++ = &map.encoded;
    const int version = device.api().resolver.driver_version();
    Launch made{place, place.index(), config_of(plan, *kernel.geometry, version), plan.pointers.data()};
    if (repeatable && is_loaded) bound.callable().known.keep(*repeatable, bound, plan, made, device, maps.made());
    made.config.stream = stream;
    const nb::gil_scoped_release released;
    for (const ArrayArgument& array : bound.arrays())
        if (array.producer_stream()) order_after(device.api(), stream, *array.producer_stream());
    launch(made, device, kernel);
}

// False: there was no memory for the copies, and nothing is queued.
bool run_padded(Bound& bound, const Setting& setting, PaddedPlan& padded) {
    const KernelIndex& index = bound.index();
    cuda::GpuDevice& device = ready_device(bound.arguments().device.ordinal);
    const cuda::Stream stream = bound.stream();
    const EntryPlace place{index.kernel, *padded.plan.specialisation, padded.plan.variant};
    const cuda::LoadedKernel kernel = ready_kernel(place, device);
    const nb::gil_scoped_release released;
    const StreamMemory memory(device, stream, padded.arguments.bytes());
    if (!memory.data()) return false;
    padded.arguments.place(memory.data());
    Plan& plan = padded.plan;
    complete_plan(index, padded.arguments.arguments(), setting.circumstances.sm_count, setting.given_grid(), plan);
    check_launch_limits(index.kernel, plan, *kernel.geometry);
    CallMaps maps(place, kernel.geometry->maps, padded.arguments.arguments(), device);
    void** pointer = plan.pointers.data() + index.kernel.parameters.size();
    for (MadeMap& map : maps.made()) *pointer++ = &map.encoded;
    Launch made{place, place.index(), config_of(plan, *kernel.geometry, 0), plan.pointers.data()};
    made.config.stream = stream;
    for (const ArrayArgument& array : bound.arrays())
        if (array.producer_stream()) order_after(device.api(), stream, *array.producer_stream());
    padded.arguments.copy_in(device, stream);
    launch(made, device, kernel);
    padded.arguments.copy_out(device, stream);
    return true;
}

// Its large frame is kept out of calls that are known.
[[gnu::noinline]] void call_in_full(const Callable& callable, const CallArguments& given, PyObject* grid,
                                    bool is_repeatable) {
    Bound bound(callable, given);
    Plan plan;
    const Setting setting = make_plan(bound, grid, plan);
    const Kernel& kernel = callable.index.kernel;
    if (plan.programs() == 0 || has_empty_outputs(callable.index, bound.arguments())) return;
    const EntryPlace place{kernel, *plan.specialisation, plan.variant};
    if (bound.arguments().device.kind == DeviceKind::cpu) return run_on_host(place, bound, plan);
    const auto padded = find_padded(bound, setting, plan);
    if (!padded || !run_padded(bound, setting, *padded))
        run_on_cuda(place, bound, plan, is_repeatable ? &given : nullptr);
}

}  // namespace

Circumstances circumstances_of(const KernelIndex& index, const Arguments& arguments) {
    return {multiprocessors(index, arguments), code_source(index, arguments), asked_device(index, arguments)};
}

HostFunction host_function(const EntryPlace& place) { return place.entry().host[host_level(place)]; }

cuda::GpuDevice& ready_device(int ordinal) {
    if (cuda::is_device_ready(ordinal)) return cuda::gpu_device(ordinal);
    const nb::gil_scoped_release released;
    return cuda::gpu_device(ordinal);
}

cuda::LoadedKernel ready_kernel(const EntryPlace& place, cuda::GpuDevice& device) {
    if (const auto kernel = device.kernel(place.index()); kernel.handle) return kernel;
    const std::uint16_t image = image_for(place, device.facts(), device.api().resolver.driver_version());
    const std::string& bytes = image_bytes(image);
    const nb::gil_scoped_release released;
    return load_kernel(place, image, bytes, device);
}

void call(const Callable& callable, const CallArguments& given, PyObject* grid) {
    const bool is_repeatable = !grid && !given.names;
    if (!is_repeatable || !callable.known.launch(callable, given)) call_in_full(callable, given, grid, is_repeatable);
}

nb::dict explain_call(const Callable& callable, const CallArguments& given) {
    Bound bound(callable, given);
    Plan plan;
    const Setting setting = make_plan(bound, nullptr, plan);
    const auto padded = find_padded(bound, setting, plan);
    if (padded) {
        take({padded->plan.specialisation, padded->plan.variant, padded->plan.is_tuned}, plan);
        complete_plan(bound.index(), padded->arguments.arguments(), setting.circumstances.sm_count, nullptr, plan);
    }
    const EntryPlace place{callable.index.kernel, *plan.specialisation, plan.variant};
    nb::dict result;
    result["kernel"] = place.kernel.name;
    result["specialisation"] = place.specialisation.id;
    result["variant"] = variant_names[static_cast<std::size_t>(plan.variant)];
    result["entry_point"] = place.entry().symbol;
    result["device"] = describe(bound.arguments().device);
    result["chosen_by"] = plan.is_tuned ? "tuned table" : "formula";
    result["grid"] = nb::make_tuple(plan.grid[0], plan.grid[1], plan.grid[2]);
    if (padded) {
        nb::list names;
        for (const auto parameter : padded->arguments.parameters()) names.append(place.kernel.parameters[parameter].name);
        result["padded"] = nb::tuple(names);
    }
    if (bound.arguments().device.kind == DeviceKind::cpu) {
        result["image"] = concat("host ", level_name(tables.host_levels[host_level(place)]));
        return result;
    }
    const cuda::GpuDevice& device = ready_device(bound.arguments().device.ordinal);
    const std::uint16_t image = image_for(place, device.facts(), device.api().resolver.driver_version());
    result["image"] = describe_image(tables.images[image]);
    add_usage(place, image, device.facts().capability.sm(), result);
    return result;
}

}  // namespace gristmill
