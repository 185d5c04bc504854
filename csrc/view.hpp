// An array argument as the checks see it: memory, element type, shape, strides and device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tables.hpp"

namespace gristmill {

inline constexpr std::size_t most_parameters = 96;  // of a kernel

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
    DeviceKind kind = DeviceKind::cpu;
    std::int32_t ordinal = 0;
    bool operator==(const Device&) const = default;
};

// Byte offsets from an array's `data`: every element lies in [low, high).
struct Span {
    std::int64_t low, high;
};

// Shape and strides are borrowed from the array's owner.
struct View {
    std::byte* data;
    const std::int64_t* shape;
    const std::int64_t* strides;  // null: dense, last axis fastest
    std::int64_t stride_bytes;    // of one step of `strides`
    std::int32_t rank;
    Dtype dtype;
    bool is_read_only;
    Device device;
    std::int64_t item_bytes;
    // Set by `complete`.
    std::int64_t count = 0;  // of elements
    bool is_contiguous = false;  // C order; empty arrays too
    Span span = {};
};

// Work out what follows from the rest: calls ask for it again and again.
void complete(View& view);

std::int64_t stride_in_bytes(const View& view, std::int32_t axis);

// Whether two indices mean the same element, as in an expanded array.
bool has_repeated_elements(const View& view);

// Whether both are the same elements in the same order.
bool is_same_buffer(const View& a, const View& b);

// Whether some byte belongs to both; may say yes where strided arrays interleave in more than one axis.
bool may_overlap(const View& a, const View& b);

std::string describe(const Device& device);      // "the CPU", "cuda:0"
std::string describe_array(const View& view);    // "f16[4096, 1000]"
std::string describe_strides(const View& view);  // "(1, 4096)", in elements

}  // namespace gristmill
