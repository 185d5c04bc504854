// Which variant of a specialisation a call takes, and what keeps it from the aligned one.
#include "device.hpp"
#include "dispatch.hpp"
#include "image.hpp"
#include "tensor_map.hpp"

namespace gristmill {

namespace {

// Below it an offset and one block beyond it stay within 32 bits.
constexpr std::int64_t index32_limit = (std::int64_t{1} << 31) - (std::int64_t{1} << 20);

bool is_small(const View& view) { return view.span.high - view.span.low < index32_limit * view.item_bytes; }

bool is_small(std::int64_t index) { return index < index32_limit && index > -index32_limit; }

bool is_aligned(const View& view) { return reinterpret_cast<std::uintptr_t>(view.data) % aligned_bytes == 0; }

bool is_divisible(std::int64_t value, std::int64_t divisor) {
    const bool is_power_of_2 = (divisor & (divisor - 1)) == 0;  // nearly always, and a division is slow
    return divisor <= 1 || (is_power_of_2 ? (value & (divisor - 1)) == 0 : value % divisor == 0);
}

Divisors divisors_of(const Specialisation& row, int source) {
    if (row.divisibility.empty()) return {};
    const bool is_for_all = row.divisibility.size() == 1 || source == any_source;
    return row.divisibility[is_for_all ? 0 : static_cast<std::size_t>(source - host_source)];
}

bool is_dividing(Divisors divisors, const Arguments& arguments, std::size_t parameter) {
    return parameter >= divisors.size() || is_divisible(arguments.integers[parameter], divisors[parameter]);
}

bool is_dividing(const KernelIndex& index, const Specialisation& row, const Arguments& arguments, int source) {
    const Divisors divisors = divisors_of(row, source);
    for (const auto i : index.values())
        if (!is_dividing(divisors, arguments, i)) return false;
    return true;
}

// The first map that aligned code takes and that cannot be made of the call's arrays; null: there is none.
const TensorMap* find_obstacle(const KernelIndex& index, const Specialisation& row, const Arguments& arguments,
                               int source) {
    const EntryPlace place{index.kernel, row, Variant::aligned32};
    for (const TensorMap& map : place.maps(source))
        if (!can_make_map(place, map, arguments, cuda::gpu_device(arguments.device.ordinal))) return &map;
    return nullptr;
}

// "`x`, f16[4096, 1000] with strides (1024, 1), "
std::string name_array(const KernelIndex& index, const Arguments& arguments, std::size_t parameter) {
    const View& view = *arguments.views[parameter];
    return concat("`", index.kernel.parameters[parameter].name, "`, ", describe_array(view), " with strides ",
                  describe_strides(view), ", ");
}

std::string describe_size(const KernelIndex& index, const Arguments& arguments) {
    const Kernel& kernel = index.kernel;
    for (const auto i : index.arrays())
        if (!is_small(*arguments.views[i])) return name_array(index, arguments, i) + "is beyond offsets of 32 bits";
    for (const auto i : index.indices())
        if (!is_small(arguments.integers[i]))
            return concat("`", kernel.parameters[i].name, "` is ", arguments.integers[i], ", beyond 32 bits");
    return {};
}

std::string describe_address(const KernelIndex& index, const Arguments& arguments) {
    for (const auto i : index.arrays())
        if (const View& view = *arguments.views[i]; !is_aligned(view))
            return concat("`", index.kernel.parameters[i].name, "` starts ",
                          reinterpret_cast<std::uintptr_t>(view.data) % aligned_bytes, " bytes behind a multiple of ",
                          aligned_bytes);
    return {};
}

std::string describe_divisor(const KernelIndex& index, Divisors divisors, const Arguments& arguments) {
    for (const auto i : index.values())
        if (!is_dividing(divisors, arguments, i))
            return concat("`", index.kernel.parameters[i].name, "` is ", arguments.integers[i], ", no multiple of ",
                          divisors[i]);
    return {};
}

// Not every specialisation has code for calls that are not aligned, but could have offsets of 32 bits.
Variant narrow_variant(const Specialisation& row, int source) {
    const Entry& narrow = row.entries[static_cast<std::size_t>(Variant::general32)];
    const bool is_built = narrow.symbol && (source != host_source || !narrow.host.empty());
    return is_built || is_only_aligned(row) ? Variant::general32 : Variant::general64;
}

}  // namespace

Variant choose_variant(const KernelIndex& index, const Specialisation& row, const Arguments& arguments, int source) {
    bool are_small = true, are_aligned = true;
    for (const auto i : index.arrays()) {
        are_small &= is_small(*arguments.views[i]);
        are_aligned &= is_aligned(*arguments.views[i]);
    }
    for (const auto i : index.indices()) are_small &= is_small(arguments.integers[i]);
    if (!are_small) return Variant::general64;
    const bool is_served = are_aligned && is_dividing(index, row, arguments, source) &&
                           !find_obstacle(index, row, arguments, source);
    return is_served ? Variant::aligned32 : narrow_variant(row, source);
}

std::string describe_obstacle(const KernelIndex& index, const Specialisation& row, const Arguments& arguments,
                              int source) {
    if (auto text = describe_size(index, arguments); !text.empty()) return text;
    if (auto text = describe_address(index, arguments); !text.empty()) return text;
    if (auto text = describe_divisor(index, divisors_of(row, source), arguments); !text.empty()) return text;
    const TensorMap* map = find_obstacle(index, row, arguments, source);
    if (!map) return {};
    if (!cuda::gpu_device(arguments.device.ordinal).api().cuTensorMapEncodeTiled)
        return "the driver, which makes no tensor maps: it is older than CUDA 12.0";
    return concat(name_array(index, arguments, map->parameter), "cannot have a tensor map: no axis may be empty, and ",
                  "rows must be a multiple of ", aligned_bytes, " bytes apart");
}

}  // namespace gristmill
