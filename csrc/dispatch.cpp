#include "dispatch.hpp"

#include <algorithm>

#include "dtype.hpp"
#include "grid.hpp"

namespace gristmill {

namespace {

[[noreturn]] void fail_rank(const Kernel& kernel, const Parameter& parameter, const View& view) {
    throw Failure(
        ErrorKind::value,
        {.what = concat(kernel.name, ": `", kernel.parameters[static_cast<std::size_t>(parameter.tensor)].name,
                        "` has too few dimensions"),
         .found = describe_array(view),
         .supported =
             concat("an array with axis ", int{parameter.axis}, ", whose length or stride is `", parameter.name, "`"),
         .fix = concat("pass an array with that axis, or give `", parameter.name, "=` yourself")});
}

// The value that the array itself has; empty if it lacks the axis.
std::optional<std::int64_t> derived(const Slot& slot, const View& view) {
    if (slot.kind == ParameterKind::size) return view.count;
    const std::int32_t axis = slot.axis < 0 ? slot.axis + view.rank : slot.axis;
    if (axis < 0 || axis >= view.rank) return std::nullopt;
    if (slot.kind == ParameterKind::shape) return view.shape[axis];
    return stride_in_bytes(view, axis) / view.item_bytes;
}

void check_given(const Kernel& kernel, const Parameter& parameter, std::int64_t given,
                 const std::optional<std::int64_t>& actual) {
    const bool is_stride = parameter.kind == ParameterKind::stride;
    if (!is_stride && given >= 0 && (!actual || given <= *actual)) return;
    if (is_stride && (!actual || given == *actual)) return;
    const char* tensor = kernel.parameters[static_cast<std::size_t>(parameter.tensor)].name;
    throw Failure(ErrorKind::value,
                  {.what = concat(kernel.name, ": `", parameter.name, "` does not fit `", tensor, "`"),
                   .found = concat(parameter.name, "=", given),
                   .supported = is_stride ? concat("its own stride, ", *actual) : concat("0 to ", actual.value_or(0)),
                   .fix = concat("leave `", parameter.name, "` out: it follows from `", tensor, "`")});
}

void check_grid(const Kernel& kernel, const std::array<std::int64_t, 3>& grid) {
    for (const auto size : grid)
        if (size < 0)
            throw Failure(ErrorKind::value,
                          {.what = concat(kernel.name, ": the grid is negative"),
                           .found = listed(grid, [](std::int64_t value) { return std::to_string(value); }),
                           .fix = "pass sizes from 0 on"});
}

class Packer {
public:
    explicit Packer(Plan& plan) : plan_(plan) {}
    // Aligned to `bytes`, a power of two.
    std::byte* place(std::size_t bytes) {
        offset_ = (offset_ + bytes - 1) & ~(bytes - 1);
        std::byte* place = plan_.block.data() + offset_;
        plan_.pointers[count_++] = place;
        offset_ += bytes;
        return place;
    }
    std::size_t bytes() const { return offset_; }

private:
    Plan& plan_;
    std::size_t offset_ = 0, count_ = 0;
};

Dtype packed_dtype(const Slot& slot, const Plan& plan) {
    if (!slot.is_scalar()) return plan.variant == Variant::general64 ? Dtype::i64 : Dtype::i32;
    return slot.dtype_var < 0 ? slot.dtype : plan.specialisation->dtypes[static_cast<std::size_t>(slot.dtype_var)];
}

void pack(const KernelIndex& index, const Arguments& arguments, Plan& plan) {
    Packer packer(plan);
    for (std::size_t i = 0; i < index.parameter_count(); ++i) {
        const Slot& slot = index.slot(i);
        if (slot.is_array()) {
            std::byte* data = arguments.views[i]->data;
            std::copy_n(reinterpret_cast<const std::byte*>(&data), sizeof data, packer.place(sizeof data));
            continue;
        }
        const Dtype dtype = packed_dtype(slot, plan);
        std::byte* place = packer.place(dtype_bytes(dtype));
        if (is_floating(dtype))
            store_real(dtype, arguments.reals[i], place);
        else
            store_integer(dtype, arguments.integers[i], place);
    }
    plan.block_bytes = packer.bytes();
}

}  // namespace

std::int64_t evaluate_for(const Kernel& kernel, const Specialisation& specialisation, const Arguments& arguments,
                          std::int64_t sm_count, Code code) {
    return evaluate(
        code, {std::span(arguments.integers).first(kernel.parameters.size()), specialisation.constants, sm_count});
}

void fill_index_parameters(const KernelIndex& index, Arguments& arguments) {
    const Kernel& kernel = index.kernel;
    for (const auto i : index.indices()) {
        const Slot& slot = index.slot(i);
        const View& view = *arguments.views[static_cast<std::size_t>(slot.tensor)];
        const auto actual = derived(slot, view);
        if (arguments.is_given[i]) {
            check_given(kernel, kernel.parameters[i], arguments.integers[i], actual);
            continue;
        }
        if (!actual) fail_rank(kernel, kernel.parameters[i], view);
        arguments.integers[i] = *actual;
    }
}

void complete_plan(const KernelIndex& index, const Arguments& arguments, std::int64_t sm_count,
                   const std::array<std::int64_t, 3>* grid, Plan& plan) {
    const Kernel& kernel = index.kernel;
    plan.grid = {1, 1, 1};
    if (grid) {
        plan.grid = *grid;
    } else {
        for (std::size_t i = 0; i < kernel.grid.size() && i < 3; ++i)
            plan.grid[i] = evaluate_for(kernel, *plan.specialisation, arguments, sm_count, kernel.grid[i]);
    }
    check_grid(kernel, plan.grid);
    pack(index, arguments, plan);
}

bool has_empty_outputs(const KernelIndex& index, const Arguments& arguments) {
    return !index.outputs().empty() &&
           std::ranges::all_of(index.outputs(), [&](std::uint8_t i) { return arguments.views[i]->count == 0; });
}

}  // namespace gristmill
