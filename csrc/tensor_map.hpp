// Tensor maps of a call: whether its arrays can have them, and making them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device.hpp"
#include "dispatch.hpp"
#include "image.hpp"

namespace gristmill {

// A map but for where its array lies.
struct MapLayout {
    const TensorMap* map;
    std::array<std::uint64_t, most_map_axes> extents;  // in elements
    std::array<std::uint64_t, most_map_axes> strides;  // in bytes, of all axes but the first
};

struct MadeMap {
    cuda::EncodedMap encoded;
    MapLayout layout;
    const std::byte* address;  // of the array
};

// Whether one of an entry's maps can be made of the arrays of a call.
bool can_make_map(const EntryPlace& place, const TensorMap& map, const Arguments& arguments,
                  const cuda::GpuDevice& device);

// Raises Failure naming kernel and parameter if the driver refuses. Some 90 ns (H200, driver 580).
void encode(const Kernel& kernel, const MapLayout& layout, const std::byte* address, cuda::GpuDevice& device,
            cuda::EncodedMap& encoded);

// The maps of one launch, where the driver reads them.
class CallMaps {
public:
    CallMaps(const EntryPlace& place, std::span<const TensorMap> maps, const Arguments& arguments,
             cuda::GpuDevice& device);

    std::span<MadeMap> made() { return std::span(made_).first(count_); }

private:
    std::array<MadeMap, most_maps> made_;
    std::size_t count_ = 0;
};

}  // namespace gristmill
