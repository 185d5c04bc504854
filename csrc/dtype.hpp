// Element types by name, by DLPack code and by buffer format, and how numbers become their bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tables.hpp"

namespace gristmill {

inline constexpr std::size_t dtype_count = 15;

std::string_view dtype_name(Dtype dtype);

inline constexpr std::array<std::uint8_t, dtype_count> bytes_by_dtype{2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1, 1, 1};
constexpr std::size_t dtype_bytes(Dtype dtype) { return bytes_by_dtype[static_cast<std::size_t>(dtype)]; }
constexpr bool is_floating(Dtype dtype) { return dtype <= Dtype::f64 || dtype >= Dtype::f8e4m3; }

// "f32", "float32", "torch.float32"; what stands before the last dot is ignored.
std::optional<Dtype> parse_dtype(std::string_view name);

std::optional<Dtype> dtype_from_dlpack(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes);
std::string dlpack_name(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes);

// A PEP 3118 format such as "<f"; byte orders other than the machine's are not supported.
std::optional<Dtype> dtype_from_format(std::string_view format, std::size_t item_bytes);

// A typestr of the array interfaces, such as "<f4" or "|b1".
std::optional<Dtype> dtype_from_typestr(std::string_view typestr);

// Write `value`, rounded to nearest even, as a floating `dtype`.
void store_real(Dtype dtype, double value, void* bytes);

// The number that the bytes of a floating `dtype` stand for.
double load_real(Dtype dtype, const void* bytes);

// Whether `value` is in the range of the integer (or bool) `dtype`.
bool integer_fits(Dtype dtype, std::int64_t value);

// Write the low bytes of `value`.
void store_integer(Dtype dtype, std::int64_t value, void* bytes);

}  // namespace gristmill
