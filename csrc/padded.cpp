#include "padded.hpp"

#include <mutex>
#include <unordered_map>

#include "grid.hpp"

namespace gristmill {

namespace {

constexpr std::size_t row_bytes = 128;  // copies' rows are multiples of it: a cache line

std::size_t round_up(std::size_t size) { return (size + row_bytes - 1) / row_bytes * row_bytes; }

bool has_aligned_rows(const View& view, std::size_t pitch) {
    return reinterpret_cast<std::uintptr_t>(view.data) % aligned_bytes == 0 && pitch % aligned_bytes == 0;
}

// The axis whose elements lie side by side; -1: none does, or rows overlap.
int inner_axis(const View& view) {
    for (const int axis : {1, 0}) {
        const bool is_dense = stride_in_bytes(view, axis) == view.item_bytes || view.shape[axis] == 1;
        if (is_dense && stride_in_bytes(view, 1 - axis) >= view.shape[axis] * view.item_bytes) return axis;
    }
    return -1;
}

// Pools outlive devices' primary contexts no more than other handles do: a failure makes a call do without.
cuda::Pool pool_of(const cuda::GpuDevice& device) {
    static std::mutex mutex;
    static std::unordered_map<int, cuda::Pool> pools;
    const cuda::Api& api = device.api();
    if (!api.cuMemPoolCreate || !api.cuMemPoolSetAttribute || !api.cuMemAllocFromPoolAsync || !api.cuMemFreeAsync)
        return nullptr;
    const std::lock_guard lock(mutex);
    if (const auto found = pools.find(device.ordinal()); found != pools.end()) return found->second;
    cuda::Pool pool = nullptr;
    cuda::PoolProperties properties{.device = device.ordinal()};
    std::uint64_t everything = UINT64_MAX;
    if (api.cuMemPoolCreate(&pool, &properties) != cuda::success) pool = nullptr;
    if (pool) api.cuMemPoolSetAttribute(pool, cuda::pool_release_threshold, &everything);
    return pools[device.ordinal()] = pool;
}

}  // namespace

PaddedArguments::PaddedArguments(const KernelIndex& index, const Arguments& given) : arguments_(given) {
    for (const auto i : index.arrays())
        if (!add(index, i)) {
            count_ = 0;
            return;
        }
    place(reinterpret_cast<std::byte*>(row_bytes));
}

// False: the array is not aligned and cannot be copied so.
bool PaddedArguments::add(const KernelIndex& index, std::size_t parameter) {
    const View& given = *arguments_.views[parameter];
    const bool is_matrix = given.rank == 2 && index.slot(parameter).is_strided && given.count > 0;
    const int inner = is_matrix ? inner_axis(given) : -1;
    const auto original_pitch = inner < 0 ? 0 : static_cast<std::size_t>(stride_in_bytes(given, 1 - inner));
    if (has_aligned_rows(given, original_pitch)) return inner >= 0 || !is_matrix;
    if (inner < 0 || count_ == matrices_.size()) return false;
    const Parameter& declared = index.kernel.parameters[parameter];
    Matrix& matrix = matrices_[count_++];
    matrix.parameter = parameter;
    matrix.width = static_cast<std::size_t>(given.shape[inner] * given.item_bytes);
    matrix.rows = static_cast<std::size_t>(given.shape[1 - inner]);
    matrix.pitch = round_up(matrix.width);
    matrix.original_pitch = original_pitch;
    matrix.original = given.data;
    matrix.is_read = declared.is_read;
    matrix.is_written = declared.is_written;
    matrix.offset = bytes_;
    bytes_ += matrix.rows * matrix.pitch;
    matrix.strides[static_cast<std::size_t>(inner)] = 1;
    matrix.strides[static_cast<std::size_t>(1 - inner)] = static_cast<std::int64_t>(matrix.pitch) / given.item_bytes;
    matrix.view = given;
    matrix.view.strides = matrix.strides.data();
    matrix.view.stride_bytes = given.item_bytes;
    complete(matrix.view);
    arguments_.views[parameter] = &matrix.view;
    for (const auto i : index.indices()) {
        const Slot& slot = index.slot(i);
        if (slot.kind != ParameterKind::stride || static_cast<std::size_t>(slot.tensor) != parameter) continue;
        if (arguments_.is_given[i]) return false;
        arguments_.integers[i] = matrix.strides[static_cast<std::size_t>(slot.axis < 0 ? slot.axis + 2 : slot.axis)];
    }
    return true;
}

std::vector<std::size_t> PaddedArguments::parameters() const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < count_; ++i) found.push_back(matrices_[i].parameter);
    return found;
}

void PaddedArguments::place(std::byte* memory) {
    for (std::size_t i = 0; i < count_; ++i) matrices_[i].view.data = memory + matrices_[i].offset;
}

void PaddedArguments::copy(const cuda::GpuDevice& device, cuda::Stream stream, const Matrix& matrix, bool is_back) const {
    const cuda::Copy2d::Side original{.device = reinterpret_cast<std::uintptr_t>(matrix.original),
                                      .pitch = matrix.original_pitch};
    const cuda::Copy2d::Side padded{.device = reinterpret_cast<std::uintptr_t>(matrix.view.data), .pitch = matrix.pitch};
    const cuda::Copy2d copy{is_back ? padded : original, is_back ? original : padded, matrix.width, matrix.rows};
    cuda::check(device.api(), device.api().cuMemcpy2DAsync(&copy, stream), "copying a matrix whose rows are not aligned");
}

void PaddedArguments::copy_in(const cuda::GpuDevice& device, cuda::Stream stream) const {
    const cuda::ContextScope scope(device);
    for (std::size_t i = 0; i < count_; ++i)
        if (matrices_[i].is_read) copy(device, stream, matrices_[i], false);
}

void PaddedArguments::copy_out(const cuda::GpuDevice& device, cuda::Stream stream) const {
    const cuda::ContextScope scope(device);
    for (std::size_t i = 0; i < count_; ++i)
        if (matrices_[i].is_written) copy(device, stream, matrices_[i], true);
}

bool may_be_padded(const KernelIndex& index, const Arguments& arguments, const Circumstances& circumstances,
                   Variant variant) {
    const Kernel& kernel = index.kernel;
    if (variant == Variant::aligned32 || kernel.padded.empty() || arguments.device.kind != DeviceKind::cuda) return false;
    const Specialisation& any = kernel.specialisations[0];
    return evaluate_for(kernel, any, arguments, circumstances.sm_count, kernel.padded) != 0;
}

StreamMemory::StreamMemory(cuda::GpuDevice& device, cuda::Stream stream, std::size_t bytes)
    : device_(device), stream_(stream) {
    const cuda::ContextScope scope(device);
    const cuda::Pool pool = pool_of(device);
    if (!pool || device.api().cuMemAllocFromPoolAsync(&address_, bytes, pool, stream) != cuda::success) address_ = 0;
}

StreamMemory::~StreamMemory() {
    if (!address_) return;
    const cuda::ContextScope scope(device_);
    device_.api().cuMemFreeAsync(address_, stream_);
}

}  // namespace gristmill
