#include "call.hpp"

#include "cpu.hpp"
#include "repeat.hpp"
#include "report.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

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

// `given` is where a grid that the caller gives is kept.
Setting make_plan(Bound& bound, PyObject* grid, Grid& given, Plan& plan) {
    if (!grid || grid == Py_None) grid = bound.grid();
    const bool is_given = grid && grid != Py_None;
    if (is_given) given = read_grid(bound.index().kernel, grid);
    const Setting setting{bound.only(), is_given ? &given : nullptr,
                          circumstances_of(bound.index(), bound.arguments())};
    make_plan(bound.index(), bound.arguments(), setting, plan);
    return setting;
}

// A call that may come again is remembered, unless code had to be loaded: other threads may have changed its arrays.
void run_on_cuda(const EntryPlace& place, Bound& bound, Plan& plan, const CallArguments* repeatable) {
    cuda::GpuDevice& device = ready_device(bound.arguments().device.ordinal);
    const bool is_loaded = device.kernel(place.index()).handle != nullptr;
    const cuda::Stream stream = bound.stream();
    const cuda::LoadedKernel kernel = ready_kernel(place, device);
    DeviceCall made(place, bound.arguments(), plan, device, kernel);
    if (repeatable && is_loaded)
        bound.callable().known.keep(*repeatable, bound, plan, made.launch, device, made.maps.made());
    made.launch.config.stream = stream;
    const Unlocked unlocked;
    await_producers(bound, device, stream);
    launch(made.launch, device, kernel);
}

// False: there is no memory for the copies.
bool run_padded(PaddedCall& padded, Bound& bound) {
    cuda::GpuDevice& device = ready_device(bound.arguments().device.ordinal);
    const cuda::Stream stream = bound.stream();
    const cuda::LoadedKernel kernel = ready_kernel(padded.place(), device);
    const Unlocked unlocked;
    await_producers(bound, device, stream);
    return padded.launch(device, kernel, stream);
}

// Its large frame is kept out of calls that are known.
[[gnu::noinline]] void call_in_full(const Callable& callable, const CallArguments& given, PyObject* grid,
                                    bool is_repeatable) {
    Bound bound(callable, given);
    Plan plan;
    Grid given_grid;
    const Setting setting = make_plan(bound, grid, given_grid, plan);
    const Kernel& kernel = callable.index.kernel;
    if (plan.programs() == 0 || has_empty_outputs(callable.index, bound.arguments())) return;
    const EntryPlace place{kernel, *plan.specialisation, plan.variant};
    if (bound.arguments().device.kind == DeviceKind::cpu) return run_on_host(place, bound.arguments(), plan);
    const auto padded = PaddedCall::find(callable.index, bound.arguments(), setting, plan);
    if (!padded || !run_padded(*padded, bound))
        run_on_cuda(place, bound, plan, is_repeatable ? &given : nullptr);
}

}  // namespace

void await_producers(Bound& bound, const cuda::GpuDevice& device, cuda::Stream stream) {
    for (const ArrayArgument& array : bound.arrays())
        if (array.producer_stream()) order_after(device.api(), stream, *array.producer_stream());
}

void call(const Callable& callable, const CallArguments& given, PyObject* grid) {
    const bool is_repeatable = !grid && !given.names;
    if (!is_repeatable || !callable.known.launch(callable, given)) call_in_full(callable, given, grid, is_repeatable);
}

nb::dict explain_call(const Callable& callable, const CallArguments& given) {
    Bound bound(callable, given);
    Plan plan;
    Grid grid;
    const Setting setting = make_plan(bound, nullptr, grid, plan);
    const auto padded = PaddedCall::find(callable.index, bound.arguments(), setting, plan);
    if (padded) plan = padded->plan();
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
        for (const auto parameter : padded->parameters()) names.append(place.kernel.parameters[parameter].name);
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
