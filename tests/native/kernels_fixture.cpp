#include "kernels_fixture.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

namespace fixture {

namespace {

class Reader {
public:
    explicit Reader(Parameters parameters) : at_(static_cast<const std::byte*>(parameters)) {}
    template <class T>
    T next() {
        offset_ = (offset_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
        T value;
        std::memcpy(&value, at_ + offset_, sizeof value);
        offset_ += sizeof(T);
        return value;
    }

private:
    const std::byte* at_;
    std::size_t offset_ = 0;
};

struct Bfloat16 {
    std::uint16_t bits;
    explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
    Bfloat16() = default;
    explicit Bfloat16(float value) : bits(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)) {}
};

constexpr std::int64_t block = 256;

template <class Element, class Wide, class Index>
void scale(Parameters parameters, std::int64_t begin, std::int64_t end) {
    Reader reader(parameters);
    const auto* x = reader.next<const Element*>();
    auto* y = reader.next<Element*>();
    const auto factor = reader.next<float>();
    const auto n = reader.next<Index>();
    const std::int64_t last = std::min<std::int64_t>(end * block, n);
    for (std::int64_t i = begin * block; i < last; ++i)
        y[i] = Element(static_cast<Wide>(x[i]) * static_cast<Wide>(factor));
}

template <class Element, class Position>
void gather(Parameters parameters) {
    Reader reader(parameters);
    const auto* x = reader.next<const Element*>();
    const auto* index = reader.next<const Position*>();
    auto* y = reader.next<Element*>();
    const auto n = reader.next<std::int32_t>();
    for (std::int32_t i = 0; i < n; ++i) y[i] = x[index[i]];
}

template <class Index>
void row_scale(Parameters parameters, std::int64_t begin, std::int64_t end) {
    Reader reader(parameters);
    const auto* x = reader.next<const float*>();
    auto* y = reader.next<float*>();
    reader.next<Index>();
    const auto n_cols = reader.next<Index>();
    const auto stride = reader.next<Index>();
    for (std::int64_t row = begin; row < end; ++row)
        for (std::int64_t i = 0; i < n_cols; ++i) y[row * n_cols + i] = 2 * x[row * stride + i];
}

// Copies its own parameters out.
void many(Parameters parameters, std::size_t bytes) {
    Reader reader(parameters);
    for (int i = 0; i < 3; ++i) reader.next<void*>();
    std::memcpy(reader.next<void*>(), parameters, bytes);
}

}  // namespace

void scale_f32_32(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    scale<float, float, std::int32_t>(p, begin, end);
}
void scale_f32_64(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    scale<float, float, std::int64_t>(p, begin, end);
}
void scale_f64_32(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    scale<double, double, std::int32_t>(p, begin, end);
}
void scale_f64_64(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    scale<double, double, std::int64_t>(p, begin, end);
}
void scale_bf16_32(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    scale<Bfloat16, float, std::int32_t>(p, begin, end);
}
void scale_bf16_64(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    scale<Bfloat16, float, std::int64_t>(p, begin, end);
}
void gather_f32_i32(Parameters p, const std::int64_t*, std::int64_t, std::int64_t) { gather<float, std::int32_t>(p); }
void gather_f32_i64(Parameters p, const std::int64_t*, std::int64_t, std::int64_t) { gather<float, std::int64_t>(p); }
void gather_f64_i32(Parameters p, const std::int64_t*, std::int64_t, std::int64_t) { gather<double, std::int32_t>(p); }
void row_scale_32(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    row_scale<std::int32_t>(p, begin, end);
}
void row_scale_64(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    row_scale<std::int64_t>(p, begin, end);
}
void many_32(Parameters p, const std::int64_t*, std::int64_t, std::int64_t) { many(p, 104); }
void many_64(Parameters p, const std::int64_t*, std::int64_t, std::int64_t) { many(p, 128); }

// y = factor x, a millisecond after it began where it is slow.
template <int factor, bool is_slow>
void twice(Parameters p, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t tile = 1024;
    Reader reader(p);
    const auto* x = reader.next<const float*>();
    auto* y = reader.next<float*>();
    const auto n = reader.next<std::int32_t>();
    if (is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (std::int64_t i = begin * tile; i < std::min<std::int64_t>(end * tile, n); ++i) y[i] = factor * x[i];
}

void twice_slow(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    twice<2, true>(p, begin, end);
}
void twice_fast(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    twice<2, false>(p, begin, end);
}
void twice_wrong(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    twice<3, false>(p, begin, end);
}
void twice_flipped(Parameters p, const std::int64_t*, std::int64_t begin, std::int64_t end) {
    twice<-2, false>(p, begin, end);
}

// out[program] = pid0 + 1000 pid1 + 1000000 pid2, `delay_us` after it began.
void program_ids(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end) {
    Reader reader(p);
    auto* out = reader.next<std::int64_t*>();
    reader.next<std::int32_t>();
    reader.next<std::int32_t>();
    const auto delay = std::chrono::microseconds(reader.next<std::int32_t>());
    for (std::int64_t i = begin; i < end; ++i) {
        if (delay.count()) std::this_thread::sleep_for(delay);
        out[i] += i % grid[0] + 1000 * (i / grid[0] % grid[1]) + 1000000 * (i / grid[0] / grid[1]);
    }
}

// out[i] += number i, behind eight arrays.
void full(Parameters p, const std::int64_t*, std::int64_t, std::int64_t) {
    constexpr int arrays = 8, numbers = 87;
    Reader reader(p);
    for (int i = 0; i < arrays; ++i) reader.next<const void*>();
    auto* out = reader.next<std::int64_t*>();
    for (int i = 0; i < numbers; ++i) out[i] += reader.next<std::int32_t>();
}

}  // namespace fixture
