// What the fake driver asks of tensor maps, as a real one does.
#pragma once

#include <cstdint>

// What the stub writes for a tensor map; strides in bytes.
struct FakeMap {
    char magic[8];
    std::uint64_t address;
    std::uint64_t extents[5], strides[4];
    std::uint32_t dtype, rank, box[5], swizzle, l2_promotion, fill;
};
static_assert(sizeof(FakeMap) == 128);

inline constexpr unsigned most_axes = 5, most_box = 256;
inline constexpr std::uint64_t most_extent = std::uint64_t{1} << 32, stride_limit = std::uint64_t{1} << 40;

inline unsigned bytes_of(int dtype) {
    static const unsigned bytes[]{1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    return bytes[dtype];
}

inline bool is_box(int dtype, unsigned rank, const std::uint32_t* box, const std::uint32_t* element_steps, int swizzle) {
    for (unsigned i = 0; i < rank; ++i)
        if (box[i] < 1 || box[i] > most_box || element_steps[i] != 1) return false;
    const unsigned inner_bytes = box[0] * bytes_of(dtype);
    return inner_bytes % 16 == 0 && (swizzle == 0 || inner_bytes <= 16u << swizzle);
}

inline bool is_array(unsigned rank, std::uint64_t address, const std::uint64_t* extents, const std::uint64_t* strides) {
    for (unsigned i = 0; i < rank; ++i)
        if (extents[i] < 1 || extents[i] > most_extent) return false;
    for (unsigned i = 0; i + 1 < rank; ++i)
        if (strides[i] % 16 != 0 || strides[i] >= stride_limit) return false;
    return address % 16 == 0;
}
