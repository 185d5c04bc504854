#include "copies.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "dtype.hpp"

namespace gristmill {

namespace {

constexpr unsigned char poison = 0xFF;

std::uintptr_t address_of(const std::byte* data) { return reinterpret_cast<std::uintptr_t>(data); }

[[noreturn]] void fail_memory(std::size_t bytes) {
    throw Failure(ErrorKind::runtime,
                  {.what = concat("tuning works on copies, and there is no memory for ", bytes, " bytes more"),
                   .fix = "free memory (torch.cuda.empty_cache()), or tune smaller arrays"});
}

// Of ||a - b|| / ||a||: sums of other tiles are rounded elsewhere.
double allowed_distance(Dtype dtype) {
    switch (dtype) {
        case Dtype::f64: return 1e-8;
        case Dtype::f32: return 2e-4;
        case Dtype::f16: return 4e-3;
        case Dtype::bf16: return 2e-2;
        default: return 1e-1;  // 8-bit floats; integers are equal, or infinitely far apart
    }
}

// Sums of squares of a and of a - b; false where they cannot be compared.
bool add_squares(Dtype dtype, const std::byte* a, const std::byte* b, double& size, double& apart) {
    const double one = load_real(dtype, a), other = load_real(dtype, b);
    if (!std::isfinite(one) || !std::isfinite(other)) return (std::isnan(one) && std::isnan(other)) || one == other;
    size += one * one;
    apart += (one - other) * (one - other);
    return true;
}

double distance_of(Dtype dtype, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    if (a == b) return 0;
    if (!is_floating(dtype)) return std::numeric_limits<double>::infinity();
    const std::size_t step = dtype_bytes(dtype);
    double size = 0, apart = 0;
    for (std::size_t i = 0; i + step <= a.size(); i += step)
        if (!add_squares(dtype, a.data() + i, b.data() + i, size, apart))
            return std::numeric_limits<double>::infinity();
    return std::sqrt(apart / std::max(size, std::numeric_limits<double>::min()));
}

}  // namespace

void Workplace::wait() const {
    if (!device) return;
    const cuda::ContextScope scope(*device);
    cuda::check(device->api(), device->api().cuStreamSynchronize(stream), "waiting for what is tuned");
}

Buffer::Buffer(const Workplace& place, std::size_t bytes, std::uintptr_t address) : place_(place), bytes_(bytes) {
    const std::uintptr_t offset = address % alignment;
    if (place.device) {
        const cuda::ContextScope scope(*place.device);
        std::uintptr_t memory = 0;
        if (place.device->api().cuMemAlloc(&memory, bytes + offset) != cuda::success) fail_memory(bytes);
        whole_ = reinterpret_cast<std::byte*>(memory);
    } else {
        whole_ = static_cast<std::byte*>(::operator new(bytes + offset, std::align_val_t(alignment), std::nothrow));
        if (!whole_) fail_memory(bytes);
    }
    data_ = whole_ + offset;
}

Buffer::Buffer(Buffer&& other) noexcept
    : place_(other.place_), bytes_(other.bytes_), whole_(std::exchange(other.whole_, nullptr)), data_(other.data_) {}

Buffer::~Buffer() {
    if (!whole_) return;
    if (!place_.device) {
        ::operator delete(whole_, std::align_val_t(alignment));
        return;
    }
    try {
        const cuda::ContextScope scope(*place_.device);
        place_.device->api().cuMemFree(address_of(whole_));
    } catch (const Failure&) {
        return;  // a context that is lost has no memory to free
    }
}

void Buffer::fill(unsigned char value) const {
    if (!place_.device) {
        std::memset(data_, value, bytes_);
        return;
    }
    const cuda::ContextScope scope(*place_.device);
    const cuda::Api& api = place_.device->api();
    cuda::check(api, api.cuMemsetD8Async(address_of(data_), value, bytes_, place_.stream), "filling memory");
}

void Buffer::copy_from(const std::byte* source) const {
    if (!place_.device) {
        std::memcpy(data_, source, bytes_);
        return;
    }
    const cuda::ContextScope scope(*place_.device);
    const cuda::Api& api = place_.device->api();
    cuda::check(api, api.cuMemcpyDtoDAsync(address_of(data_), address_of(source), bytes_, place_.stream),
                "copying an array");
}

std::vector<std::byte> Buffer::read() const {
    std::vector<std::byte> bytes(bytes_);
    place_.wait();
    if (!place_.device) {
        std::memcpy(bytes.data(), data_, bytes_);
        return bytes;
    }
    const cuda::ContextScope scope(*place_.device);
    const cuda::Api& api = place_.device->api();
    cuda::check(api, api.cuMemcpyDtoH(bytes.data(), address_of(data_), bytes_), "reading a result");
    return bytes;
}

ArrayCopies::ArrayCopies(const KernelIndex& index, const Arguments& arguments, const Workplace& place)
    : index_(index), originals_(arguments.views), arguments_(arguments) {
    for (const auto i : index.arrays()) add(*arguments.views[i], index.kernel.parameters[i]);
    buffers_.reserve(regions_.size());
    for (const Region& region : regions_) {
        buffers_.emplace_back(place, static_cast<std::size_t>(region.end - region.begin), address_of(region.begin));
        buffers_.back().copy_from(region.begin);
    }
    for (const auto i : index.arrays()) {
        View& view = views_[i] = *arguments.views[i];
        arguments_.views[i] = &view;
        if (view.span.low == view.span.high) continue;
        const std::size_t region = region_of(view);
        view.data = buffers_[region].data() + (view.data - regions_[region].begin);
    }
}

// Takes in all regions that it overlaps.
void ArrayCopies::add(const View& view, const Parameter& parameter) {
    if (view.span.low == view.span.high) return;
    Region added{view.data + view.span.low, view.data + view.span.high, parameter.is_read, parameter.is_written};
    std::erase_if(regions_, [&](const Region& region) {
        if (region.end <= added.begin || added.end <= region.begin) return false;
        added.begin = std::min(added.begin, region.begin);
        added.end = std::max(added.end, region.end);
        added.is_read |= region.is_read;
        added.is_written |= region.is_written;
        return true;
    });
    regions_.push_back(added);
}

std::size_t ArrayCopies::region_of(const View& view) const {
    const std::byte* begin = view.data + view.span.low;
    const auto found = std::ranges::find_if(
        regions_, [&](const Region& region) { return region.begin <= begin && begin < region.end; });
    return static_cast<std::size_t>(found - regions_.begin());
}

void ArrayCopies::reset() const {
    restore();
    for (std::size_t i = 0; i < regions_.size(); ++i)
        if (regions_[i].is_written && !regions_[i].is_read) buffers_[i].fill(poison);
}

void ArrayCopies::restore() const {
    for (std::size_t i = 0; i < regions_.size(); ++i)
        if (regions_[i].is_written && regions_[i].is_read) buffers_[i].copy_from(regions_[i].begin);
}

std::vector<std::vector<std::byte>> ArrayCopies::outputs() const {
    std::vector<std::vector<std::byte>> found;
    for (const auto i : index_.outputs()) {
        const View& view = views_[i];
        if (view.span.low == view.span.high) {
            found.emplace_back();
            continue;
        }
        const std::size_t region = region_of(*originals_[i]);
        const std::vector<std::byte> whole = buffers_[region].read();
        const std::byte* begin = whole.data() + (originals_[i]->data + view.span.low - regions_[region].begin);
        found.emplace_back(begin, begin + (view.span.high - view.span.low));
    }
    return found;
}

double ArrayCopies::distance(std::span<const std::vector<std::byte>> a,
                             std::span<const std::vector<std::byte>> b) const {
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const Dtype dtype = views_[index_.outputs()[i]].dtype;
        largest = std::max(largest, distance_of(dtype, a[i], b[i]) / allowed_distance(dtype));
    }
    return largest;
}

}  // namespace gristmill
