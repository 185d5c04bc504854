// Where the streams of images are in a library that holds them as they are, without compression.
#pragma once

#include <cstdint>
#include <span>

namespace gristmill {

struct PlainStream {
    std::uint32_t offset;  // as in Image::offset
    std::uint64_t start;   // of its content, from Tables::blob on
};

// Sorted by offset.
extern const std::span<const PlainStream> plain_streams;

}  // namespace gristmill
