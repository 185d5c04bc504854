// Copies of a call's arrays on the same device, for calls that must not touch the caller's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device.hpp"
#include "dispatch.hpp"

namespace gristmill {

// Where copies are made; no device: on the CPU. CUDA copies are made in order of the stream.
struct Workplace {
    cuda::GpuDevice* device;
    cuda::Stream stream;

    void wait() const;
};

// Memory that starts so far behind a multiple of 256 bytes as asked for. Do not hold the GIL.
class Buffer {
public:
    Buffer(const Workplace& place, std::size_t bytes, std::uintptr_t address = 0);
    ~Buffer();
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&&) = delete;

    std::byte* data() const { return data_; }
    void fill(unsigned char value) const;
    void copy_from(const std::byte* source) const;
    std::vector<std::byte> read() const;  // waits

private:
    static constexpr std::uintptr_t alignment = 256;

    Workplace place_;
    std::size_t bytes_;
    std::byte* whole_ = nullptr;
    std::byte* data_ = nullptr;
};

// Arrays that share memory share it in the copy, too. Do not hold the GIL.
class ArrayCopies {
public:
    // The views of `arguments` must outlive it.
    ArrayCopies(const KernelIndex& index, const Arguments& arguments, const Workplace& place);
    ArrayCopies(const ArrayCopies&) = delete;

    // The call's arguments, with the copies for arrays.
    const Arguments& arguments() const { return arguments_; }

    // Fill what is only written with NaN, or -1, and copy again what is read and written.
    void reset() const;
    // Only the latter, which would go on changing from call to call.
    void restore() const;
    // The bytes of each array that is written; waits.
    std::vector<std::vector<std::byte>> outputs() const;
    // The largest ||a - b|| / ||a|| of the outputs, as a share of what rounding and summing in another order may make
    // of it; infinite where only one is NaN or infinite, or integers differ.
    double distance(std::span<const std::vector<std::byte>> a, std::span<const std::vector<std::byte>> b) const;

private:
    // Bytes of the caller that some arrays lie in.
    struct Region {
        const std::byte *begin, *end;
        bool is_read, is_written;
    };

    void add(const View& view, const Parameter& parameter);
    std::size_t region_of(const View& view) const;

    const KernelIndex& index_;
    std::array<const View*, most_parameters> originals_;
    Arguments arguments_;
    std::array<View, most_parameters> views_;
    std::vector<Region> regions_;
    std::vector<Buffer> buffers_;  // by region
};

}  // namespace gristmill
