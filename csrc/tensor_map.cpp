#include "tensor_map.hpp"

#include <algorithm>
#include <bit>

#include "dtype.hpp"

namespace gristmill {

namespace {

// What the driver takes (CUDA Driver API, cuTensorMapEncodeTiled).
// Code with maps counts in 32 bits: what those do not hold is not what it computes.
constexpr std::uint64_t most_extent = (std::uint64_t{1} << 31) - 1, stride_limit = std::uint64_t{1} << 40;

// CUtensorMapDataType, by Dtype: bytes are copied as they are.
constexpr std::array<int, dtype_count> data_types{6, 9, 7, 8, 0, 1, 3, 5, 0, 1, 2, 4, 0, 0, 0};

// CUtensorMapSwizzle: 0 to 3 for 0, 32, 64 and 128 bytes.
int swizzle_code(std::uint16_t bytes) { return std::bit_width(bytes / 32u); }

// What is out of range stays so.
std::uint64_t stride_bytes(std::int64_t stride, Dtype dtype) {
    const auto elements = static_cast<std::uint64_t>(stride);
    return elements < stride_limit ? elements * dtype_bytes(dtype) : stride_limit;
}

MapLayout layout_of(const EntryPlace& place, const TensorMap& map, const Arguments& arguments, int sm_count) {
    const auto value = [&](Code code) {
        return evaluate_for(place.kernel, place.specialisation, arguments, sm_count, code);
    };
    MapLayout layout{&map, {}, {}};
    for (std::size_t i = 0; i < map.extents.size(); ++i)
        layout.extents[i] = static_cast<std::uint64_t>(value(map.extents[i]));
    for (std::size_t i = 0; i < map.strides.size(); ++i)
        layout.strides[i] = stride_bytes(value(map.strides[i]), map.dtype);
    return layout;
}

bool is_encodable(const MapLayout& layout, const std::byte* address) {
    const auto is_extent = [](std::uint64_t extent) { return extent >= 1 && extent <= most_extent; };
    const auto is_stride = [](std::uint64_t stride) { return stride < stride_limit && stride % aligned_bytes == 0; };
    return reinterpret_cast<std::uintptr_t>(address) % aligned_bytes == 0 &&
           std::ranges::all_of(std::span(layout.extents).first(layout.map->extents.size()), is_extent) &&
           std::ranges::all_of(std::span(layout.strides).first(layout.map->strides.size()), is_stride);
}

// The driver wants a context, whichever.
cuda::Result encode_once(const MapLayout& layout, const std::byte* address, const cuda::GpuDevice& device,
                         cuda::EncodedMap& encoded) {
    static constexpr std::array<unsigned, most_map_axes> element_steps{1, 1, 1, 1, 1};
    const TensorMap& map = *layout.map;
    std::array<unsigned, most_map_axes> box{};
    std::ranges::copy(map.box, box.begin());
    const cuda::ContextScope scope(device);
    return device.api().cuTensorMapEncodeTiled(
        &encoded, data_types[static_cast<std::size_t>(map.dtype)], static_cast<unsigned>(map.extents.size()), address,
        layout.extents.data(), layout.strides.data(), box.data(), element_steps.data(), cuda::no_interleave,
        swizzle_code(map.swizzle), cuda::l2_promotion_128_bytes, cuda::fill_zeros);
}

}  // namespace

bool can_make_map(const EntryPlace& place, const TensorMap& map, const Arguments& arguments,
                  const cuda::GpuDevice& device) {
    if (!device.api().cuTensorMapEncodeTiled) return false;
    const MapLayout layout = layout_of(place, map, arguments, device.facts().sm_count);
    return is_encodable(layout, arguments.views[map.parameter]->data);
}

void encode(const Kernel& kernel, const MapLayout& layout, const std::byte* address, cuda::GpuDevice& device,
            cuda::EncodedMap& encoded) {
    cuda::Result code = encode_once(layout, address, device, encoded);
    if (code == cuda::context_is_destroyed) {
        device.retain_again();
        code = encode_once(layout, address, device, encoded);
    }
    if (code == cuda::success) return;
    const char* parameter = kernel.parameters[layout.map->parameter].name;
    cuda::fail(device.api(), code, concat(kernel.name, ": making the tensor map of `", parameter, "`"));
}

CallMaps::CallMaps(const EntryPlace& place, std::span<const TensorMap> maps, const Arguments& arguments,
                   cuda::GpuDevice& device) {
    for (const TensorMap& map : maps) {
        MadeMap& made = made_[count_++];
        made.layout = layout_of(place, map, arguments, device.facts().sm_count);
        made.address = arguments.views[map.parameter]->data;
        encode(place.kernel, made.layout, made.address, device, made.encoded);
    }
}

}  // namespace gristmill
