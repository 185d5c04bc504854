#include "view.hpp"

#include <cstdlib>
#include <span>

#include "dtype.hpp"
#include "error.hpp"

namespace gristmill {

namespace {

std::span<const std::int64_t> shape_of(const View& view) { return {view.shape, static_cast<std::size_t>(view.rank)}; }

std::int64_t dense_stride(const View& view, std::int32_t axis) {
    std::int64_t stride = view.item_bytes;
    for (std::int32_t i = axis + 1; i < view.rank; ++i) stride *= view.shape[i];
    return stride;
}

bool has_same_strides(const View& a, const View& b) {
    if (a.rank != b.rank) return false;
    for (std::int32_t i = 0; i < a.rank; ++i)
        if (stride_in_bytes(a, i) != stride_in_bytes(b, i)) return false;
    return true;
}

std::int32_t longest_axis(const View& view) {
    std::int32_t longest = 0;
    for (std::int32_t i = 1; i < view.rank; ++i)
        if (std::abs(stride_in_bytes(view, i)) > std::abs(stride_in_bytes(view, longest))) longest = i;
    return longest;
}

Span strided_span(const View& view) {
    Span span{0, view.item_bytes};
    for (std::int32_t i = 0; i < view.rank; ++i) {
        const std::int64_t reach = (view.shape[i] - 1) * view.strides[i] * view.stride_bytes;
        (reach < 0 ? span.low : span.high) += reach;
    }
    return span;
}

// Bytes spanned by one step of `axis`.
std::int64_t inner_bytes(const View& view, std::int32_t axis) {
    std::int64_t bytes = view.item_bytes;
    for (std::int32_t i = 0; i < view.rank; ++i)
        if (i != axis) bytes += (view.shape[i] - 1) * std::abs(stride_in_bytes(view, i));
    return bytes;
}

// Columns of one matrix: they never meet if their remainders modulo the row's length do not.
bool is_interleaved(const View& a, const View& b, std::int64_t distance) {
    if (a.rank == 0 || !has_same_strides(a, b)) return false;
    const std::int32_t axis = longest_axis(a);
    const std::int64_t stride = std::abs(stride_in_bytes(a, axis));
    const std::int64_t width_a = inner_bytes(a, axis);
    const std::int64_t width_b = inner_bytes(b, axis);
    if (stride == 0 || width_a > stride || width_b > stride) return false;
    const std::int64_t shift = ((distance % stride) + stride) % stride;
    return shift >= width_a && shift + width_b <= stride;
}

}  // namespace

void complete(View& view) {
    std::int64_t dense = view.item_bytes, count = 1;
    bool is_contiguous = true;
    for (std::int32_t i = view.rank - 1; i >= 0; --i) {
        const std::int64_t length = view.shape[i];
        if (view.strides) is_contiguous &= length == 1 || view.strides[i] * view.stride_bytes == dense;
        dense *= length;
        count *= length;
    }
    view.count = count;
    view.is_contiguous = is_contiguous || count == 0;
    view.span = view.is_contiguous ? Span{0, dense} : strided_span(view);
}

std::int64_t stride_in_bytes(const View& view, std::int32_t axis) {
    return view.strides ? view.strides[axis] * view.stride_bytes : dense_stride(view, axis);
}

bool has_repeated_elements(const View& view) {
    if (view.is_contiguous) return false;
    for (std::int32_t i = 0; i < view.rank; ++i)
        if (view.shape[i] > 1 && view.strides[i] == 0) return true;
    return false;
}

bool is_same_buffer(const View& a, const View& b) {
    if (a.data != b.data || a.count != b.count || a.item_bytes != b.item_bytes) return false;
    return (a.is_contiguous && b.is_contiguous) || has_same_strides(a, b);
}

bool may_overlap(const View& a, const View& b) {
    if (a.count == 0 || b.count == 0) return false;
    const auto start_a = reinterpret_cast<std::intptr_t>(a.data) + a.span.low;
    const auto start_b = reinterpret_cast<std::intptr_t>(b.data) + b.span.low;
    const auto end_a = reinterpret_cast<std::intptr_t>(a.data) + a.span.high;
    const auto end_b = reinterpret_cast<std::intptr_t>(b.data) + b.span.high;
    if (end_a <= start_b || end_b <= start_a) return false;
    if (a.is_contiguous && b.is_contiguous) return true;
    return !is_interleaved(a, b, start_b - start_a);
}

std::string describe(const Device& device) {
    return device.kind == DeviceKind::cpu ? "the CPU" : concat("cuda:", device.ordinal);
}

std::string describe_array(const View& view) {
    return concat(dtype_name(view.dtype), "[",
                  listed(shape_of(view), [](std::int64_t length) { return std::to_string(length); }), "]");
}

std::string describe_strides(const View& view) {
    std::string text;
    for (std::int32_t i = 0; i < view.rank; ++i)
        text.append(i ? ", " : "").append(std::to_string(stride_in_bytes(view, i) / view.item_bytes));
    return concat("(", text, ")");
}

}  // namespace gristmill
