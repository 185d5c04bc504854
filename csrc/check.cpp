// Checks of the array arguments: what a kernel cannot see for itself and must be able to trust.
#include <algorithm>

#include "dispatch.hpp"
#include "dtype.hpp"

namespace gristmill {

namespace {

std::string of(const Kernel& kernel, std::size_t parameter) {
    return concat(kernel.name, ": `", kernel.parameters[parameter].name, "` ");
}

bool is_pointer(const Kernel& kernel, std::size_t parameter) {
    return kernel.parameters[parameter].kind == ParameterKind::pointer;
}

[[noreturn]] void fail_contiguity(const Kernel& kernel, std::size_t parameter, const View& view,
                                  std::string_view supported) {
    const char* name = kernel.parameters[parameter].name;
    throw Failure(ErrorKind::value, {.what = of(kernel, parameter) + "is not contiguous",
                                     .found = concat(describe_array(view), " with strides ", describe_strides(view)),
                                     .supported = std::string(supported),
                                     .fix = concat("pass a contiguous copy, as in `numpy.ascontiguousarray(", name,
                                                   ")` or `", name, ".contiguous()`")});
}

bool takes_stride(const Kernel& kernel, std::size_t tensor, std::int32_t axis, std::int32_t rank) {
    return std::ranges::any_of(kernel.parameters, [&](const Parameter& parameter) {
        if (parameter.kind != ParameterKind::stride || parameter.tensor != static_cast<int>(tensor)) return false;
        return axis == (parameter.axis < 0 ? parameter.axis + rank : parameter.axis);
    });
}

// Axes whose stride the kernel does not take must lie as in a dense array.
void check_strides(const Kernel& kernel, std::size_t parameter, const View& view) {
    std::int64_t expected = view.item_bytes;
    for (std::int32_t axis = view.rank - 1; axis >= 0; --axis) {
        const std::int64_t stride = stride_in_bytes(view, axis);
        if (stride % view.item_bytes != 0) fail_contiguity(kernel, parameter, view, "strides that are whole elements");
        const bool is_free = view.shape[axis] == 1 || takes_stride(kernel, parameter, axis, view.rank);
        if (!is_free && stride != expected)
            fail_contiguity(kernel, parameter, view,
                            concat("any stride where the kernel takes it, but not along axis ", axis));
        expected = (view.shape[axis] == 1 ? expected : stride) * view.shape[axis];
    }
}

void check_layout(const Kernel& kernel, std::size_t parameter, const View& view) {
    if (!kernel.parameters[parameter].is_strided)
        fail_contiguity(kernel, parameter, view, "C-contiguous arrays: the kernel takes no stride of it");
    check_strides(kernel, parameter, view);
}

[[noreturn]] void fail_extent(const Kernel& kernel, std::size_t parameter, const Arguments& arguments,
                              std::int64_t needed) {
    const View& view = *arguments.views[parameter];
    throw Failure(ErrorKind::value,
                  {.what = of(kernel, parameter) + "is too small",
                   .asked = describe_arguments(kernel, arguments),
                   .found = concat(view.count, " elements, ", describe_array(view)),
                   .supported = concat("at least ", needed, " elements for these arguments"),
                   .fix = concat("pass a larger `", kernel.parameters[parameter].name, "`, or smaller sizes")});
}

void check_extent(const KernelIndex& index, const Specialisation& specialisation, const Arguments& arguments,
                  std::int64_t sm_count, std::size_t parameter) {
    const Kernel& kernel = index.kernel;
    const std::uint8_t extent = index.slot(parameter).extent;
    if (extent == Slot::no_extent) return;
    const std::int64_t needed =
        extent == Slot::computed_extent
            ? evaluate_for(kernel, specialisation, arguments, sm_count, kernel.parameters[parameter].extent)
            : arguments.integers[extent];
    if (arguments.views[parameter]->count < needed) fail_extent(kernel, parameter, arguments, needed);
}

void check_writable(const Kernel& kernel, std::size_t parameter, const View& view) {
    const char* name = kernel.parameters[parameter].name;
    if (view.is_read_only)
        throw Failure(ErrorKind::value, {.what = of(kernel, parameter) + "is read-only, and the kernel writes to it",
                                         .found = describe_array(view),
                                         .fix = concat("pass a writable copy, as in `", name,
                                                       ".copy()` (arrays of JAX are never writable)")});
    if (has_repeated_elements(view))
        throw Failure(ErrorKind::value,
                      {.what = of(kernel, parameter) + "has elements that share memory, and the kernel writes to it",
                       .found = concat(describe_array(view), " with strides ", describe_strides(view)),
                       .fix = concat("pass a copy, as in `", name, ".copy()` or `", name, ".contiguous()`")});
}

[[noreturn]] void fail_overlap(const Kernel& kernel, std::size_t output, std::size_t other,
                               const Arguments& arguments) {
    throw Failure(ErrorKind::value,
                  {.what = concat(of(kernel, output), "partly overlaps `", kernel.parameters[other].name,
                                  "`, and the kernel writes to it"),
                   .found = concat(describe_array(*arguments.views[output]), " and ",
                                   describe_array(*arguments.views[other]), " in one piece of memory"),
                   .supported = "separate arrays, or exactly the same one",
                   .fix = concat("pass a copy of `", kernel.parameters[other].name, "`")});
}

// Where an array lies in memory.
struct Place {
    std::intptr_t begin, end;
};
using Places = std::array<Place, most_parameters>;  // in the order of the arrays

Place place_of(const View& view) {
    const auto address = reinterpret_cast<std::intptr_t>(view.data);
    return {address + view.span.low, address + view.span.high};
}

void check_pair(const Kernel& kernel, std::size_t output, std::size_t other, const Arguments& arguments) {
    const View& a = *arguments.views[output];
    const View& b = *arguments.views[other];
    if (output != other && may_overlap(a, b) && !is_same_buffer(a, b)) fail_overlap(kernel, output, other, arguments);
}

void check_overlap(const KernelIndex& index, std::size_t output, const Arguments& arguments, const Places& places) {
    const Place place = place_of(*arguments.views[output]);
    const auto arrays = index.arrays();
    for (std::size_t i = 0; i < arrays.size(); ++i)
        if (places[i].begin < place.end && place.begin < places[i].end)
            check_pair(index.kernel, output, arrays[i], arguments);
}

[[noreturn]] void fail_dtype(const Kernel& kernel, std::size_t parameter, Dtype found, Dtype expected) {
    const int variable = kernel.parameters[parameter].dtype_var;
    const std::string reason = variable < 0
                                   ? ""
                                   : concat(": dtype variable ", kernel.dtype_vars[static_cast<std::size_t>(variable)],
                                            " has that type already");
    throw Failure(ErrorKind::type, {.what = of(kernel, parameter) + "has the wrong dtype",
                                    .found = std::string(dtype_name(found)),
                                    .supported = concat(dtype_name(expected), reason),
                                    .fix = concat("convert it to ", dtype_name(expected))});
}

[[noreturn]] void fail_device(const Kernel& kernel, std::size_t parameter, const View& view,
                              const Arguments& arguments) {
    throw Failure(ErrorKind::value,
                  {.what = of(kernel, parameter) + "is on another device than the arguments before it",
                   .found = concat(describe_array(view), " on ", describe(view.device), "; the others on ",
                                   describe(arguments.device)),
                   .fix = "move all arrays to one device"});
}

std::string dtype_list(std::span<const Dtype> dtypes) {
    const std::string text = listed(dtypes, [](Dtype dtype) { return std::string(dtype_name(dtype)); });
    return dtypes.size() == 1 ? text : concat("(", text, ")");
}

}  // namespace

std::string built_dtypes(const Kernel& kernel) {
    std::vector<std::string> seen;
    for (const auto& row : kernel.specialisations)
        if (auto text = dtype_list(row.dtypes); std::ranges::find(seen, text) == seen.end())
            seen.push_back(std::move(text));
    return listed(seen, [](const std::string& text) { return text; });
}

std::string describe_constant(const ConstantValue& value) {
    switch (value.kind) {
        case ConstantValue::Kind::integer: return std::to_string(value.integer);
        case ConstantValue::Kind::boolean: return value.integer ? "True" : "False";
        case ConstantValue::Kind::real: return std::to_string(value.real);
        default: return concat("'", value.text, "'");
    }
}

std::string describe_arguments(const Kernel& kernel, const Arguments& arguments) {
    std::string text;
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i)
        if (is_pointer(kernel, i))
            text.append(text.empty() ? "" : ", ")
                .append(concat(kernel.parameters[i].name, " ", describe_array(*arguments.views[i])));
    return concat(text, " on ", describe(arguments.device));
}

void bind_array(const KernelIndex& index, std::size_t parameter, const View& view, Arguments& arguments) {
    const Slot& slot = index.slot(parameter);
    Dtype expected = slot.dtype;
    if (slot.dtype_var >= 0) {
        Dtype& bound = arguments.dtypes[static_cast<std::size_t>(slot.dtype_var)];
        if (bound == unbound) bound = view.dtype;
        expected = bound;
    }
    if (view.dtype != expected) fail_dtype(index.kernel, parameter, view.dtype, expected);
    if (!arguments.has_array) arguments.device = view.device;
    arguments.has_array = true;
    if (view.device != arguments.device) fail_device(index.kernel, parameter, view, arguments);
}

void check_arrays(const KernelIndex& index, const Specialisation& specialisation, const Arguments& arguments,
                  std::int64_t sm_count) {
    Places places;
    std::size_t count = 0;
    for (const auto i : index.arrays()) {
        const View& view = *arguments.views[i];
        places[count++] = place_of(view);
        if (!view.is_contiguous) check_layout(index.kernel, i, view);
        check_extent(index, specialisation, arguments, sm_count, i);
    }
    for (const auto i : index.outputs()) {
        const View& view = *arguments.views[i];
        if (view.is_read_only || !view.is_contiguous) check_writable(index.kernel, i, view);
        check_overlap(index, i, arguments, places);
    }
}

}  // namespace gristmill
