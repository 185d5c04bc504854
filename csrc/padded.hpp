// Copies of matrices whose rows are not aligned: padded rows are, and code for aligned calls is that much faster.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device.hpp"
#include "dispatch.hpp"

namespace gristmill {

// A call's arguments with padded copies in place of the matrices that are not aligned. They have no memory until the
// launch: what is chosen by them is alignment and strides.
class PaddedArguments {
public:
    // Copies the arguments. Afterwards `found()` says whether there are such matrices, and nothing else is unaligned.
    PaddedArguments(const KernelIndex& index, const Arguments& given);
    PaddedArguments(const PaddedArguments&) = delete;
    PaddedArguments& operator=(const PaddedArguments&) = delete;

    bool found() const { return count_ > 0; }
    const Arguments& arguments() const { return arguments_; }
    std::size_t bytes() const { return bytes_; }
    std::vector<std::size_t> parameters() const;  // of which there are copies

    // Give the copies their memory, of `bytes()` bytes.
    void place(std::byte* memory);
    // Queue the copies of what the kernel reads, or of what it has written. Do not hold the GIL.
    void copy_in(const cuda::GpuDevice& device, cuda::Stream stream) const;
    void copy_out(const cuda::GpuDevice& device, cuda::Stream stream) const;

private:
    struct Matrix {
        View view;  // the copy's
        const std::byte* original;
        std::array<std::int64_t, 2> strides;  // the copy's, in elements
        std::size_t parameter, offset, width, rows, pitch, original_pitch;  // in bytes; of rows or, where they are contiguous, columns
        bool is_read, is_written;
    };

    bool add(const KernelIndex& index, std::size_t parameter);
    void copy(const cuda::GpuDevice& device, cuda::Stream stream, const Matrix& matrix, bool is_back) const;

    Arguments arguments_;
    std::array<Matrix, most_maps> matrices_;
    std::size_t count_ = 0, bytes_ = 0;
};

// Whether a kernel says that a call's unaligned matrices are worth copies, for which `variant` serves as they are.
bool may_be_padded(const KernelIndex& index, const Arguments& arguments, const Circumstances& circumstances,
                   Variant variant);

// Memory for one launch, out of a pool of the device that keeps what it once had: taken and given back in the order of
// a stream. `data()` is null where there is none.
class StreamMemory {
public:
    StreamMemory(cuda::GpuDevice& device, cuda::Stream stream, std::size_t bytes);
    ~StreamMemory();
    StreamMemory(const StreamMemory&) = delete;
    StreamMemory& operator=(const StreamMemory&) = delete;
    std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

private:
    cuda::GpuDevice& device_;
    cuda::Stream stream_;
    std::uintptr_t address_ = 0;
};

}  // namespace gristmill
