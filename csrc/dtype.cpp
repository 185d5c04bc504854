#include "dtype.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "error.hpp"

namespace gristmill {

namespace {

struct Row {
    std::string_view name, long_name, other_name;
    std::uint8_t dlpack_code, dlpack_bits;
    std::uint8_t exponent_bits, mantissa_bits;  // floating only
};

constexpr std::array<Row, dtype_count> rows{{
    {"f16", "float16", "half", 2, 16, 5, 10},
    {"bf16", "bfloat16", "", 4, 16, 8, 7},
    {"f32", "float32", "float", 2, 32, 8, 23},
    {"f64", "float64", "double", 2, 64, 11, 52},
    {"i8", "int8", "", 0, 8, 0, 0},
    {"i16", "int16", "", 0, 16, 0, 0},
    {"i32", "int32", "", 0, 32, 0, 0},
    {"i64", "int64", "", 0, 64, 0, 0},
    {"u8", "uint8", "", 1, 8, 0, 0},
    {"u16", "uint16", "", 1, 16, 0, 0},
    {"u32", "uint32", "", 1, 32, 0, 0},
    {"u64", "uint64", "", 1, 64, 0, 0},
    {"bool", "bool_", "int1", 6, 8, 0, 0},
    {"f8e4m3", "float8_e4m3fn", "float8e4nv", 10, 8, 4, 3},
    {"f8e5m2", "float8_e5m2", "float8e5", 12, 8, 5, 2},
}};

constexpr std::size_t dlpack_codes = 16;
constexpr Dtype no_dtype = static_cast<Dtype>(255);

// By DLPack's code and bytes: each array of each call asks.
constexpr auto by_dlpack = [] {
    std::array<std::array<Dtype, 9>, dlpack_codes> table{};
    for (auto& sizes : table) sizes.fill(no_dtype);
    for (std::size_t i = 0; i < rows.size(); ++i)
        table[rows[i].dlpack_code][rows[i].dlpack_bits / 8] = static_cast<Dtype>(i);
    return table;
}();

const Row& row(Dtype dtype) { return rows[static_cast<std::size_t>(dtype)]; }

std::optional<Dtype> sized(char kind, std::size_t bytes) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto& name = rows[i].name;
        const bool is_plain = name.find('e') == std::string_view::npos && name[0] != 'b';
        if (is_plain && name[0] == kind && bytes_by_dtype[i] == bytes) return static_cast<Dtype>(i);
    }
    return std::nullopt;
}

// e4m3 has no infinity: its exponent of ones holds numbers, and only all ones is nan.
std::uint64_t small_float_bits(const Row& to, double value, bool is_finite_only) {
    const int mantissa_bits = to.mantissa_bits;
    const int bias = (1 << (to.exponent_bits - 1)) - 1;
    const std::uint64_t sign = std::signbit(value) ? 1ull << (to.exponent_bits + mantissa_bits) : 0;
    const std::uint64_t ones = ((1ull << to.exponent_bits) - 1) << mantissa_bits;
    const std::uint64_t infinity = is_finite_only ? ones | ((1ull << mantissa_bits) - 1) : ones;
    if (std::isnan(value))
        return sign | ones | (is_finite_only ? (1ull << mantissa_bits) - 1 : 1ull << (mantissa_bits - 1));
    const double size = std::fabs(value);
    if (size == 0) return sign;
    if (std::isinf(size)) return sign | infinity;
    const int exponent = std::max(std::ilogb(size), 1 - bias);
    const double scaled = std::nearbyint(std::ldexp(size, mantissa_bits - exponent));
    const auto bits =
        static_cast<std::uint64_t>(scaled) + (static_cast<std::uint64_t>(exponent + bias - 1) << mantissa_bits);
    return sign | std::min(bits, infinity);
}

double small_float_value(const Row& from, std::uint64_t bits, bool is_finite_only) {
    const int mantissa_bits = from.mantissa_bits;
    const std::uint64_t most_exponent = (1ull << from.exponent_bits) - 1, most_mantissa = (1ull << mantissa_bits) - 1;
    const std::uint64_t exponent = bits >> mantissa_bits & most_exponent, mantissa = bits & most_mantissa;
    const double sign = bits >> (from.exponent_bits + mantissa_bits) & 1 ? -1 : 1;
    const int bias = (1 << (from.exponent_bits - 1)) - 1;
    if (exponent == most_exponent && (!is_finite_only || mantissa == most_mantissa))
        return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(static_cast<double>(mantissa), 1 - bias - mantissa_bits);
    const auto whole = static_cast<double>(mantissa | 1ull << mantissa_bits);
    return sign * std::ldexp(whole, static_cast<int>(exponent) - bias - mantissa_bits);
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return row(dtype).name; }

std::optional<Dtype> parse_dtype(std::string_view name) {
    const auto dot = name.rfind('.');
    if (dot != std::string_view::npos) name.remove_prefix(dot + 1);
    for (std::size_t i = 0; i < rows.size(); ++i)
        if (!name.empty() && (name == rows[i].name || name == rows[i].long_name || name == rows[i].other_name))
            return static_cast<Dtype>(i);
    return std::nullopt;
}

std::optional<Dtype> dtype_from_dlpack(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes) {
    if (lanes != 1 || code >= dlpack_codes || bits % 8 != 0 || bits > 64) return std::nullopt;
    const Dtype dtype = by_dlpack[code][bits / 8];
    return dtype == no_dtype ? std::nullopt : std::optional(dtype);
}

std::string dlpack_name(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes) {
    if (const auto dtype = dtype_from_dlpack(code, bits, lanes)) return std::string(dtype_name(*dtype));
    if (code == 5) return concat("complex", unsigned{bits});
    return concat("DLPack type (", unsigned{code}, ", ", unsigned{bits}, ", ", lanes, ")");
}

std::optional<Dtype> dtype_from_format(std::string_view format, std::size_t item_bytes) {
    if (!format.empty() && (format[0] == '@' || format[0] == '=' || format[0] == '<')) format.remove_prefix(1);
    if (format.size() != 1) return std::nullopt;
    const char letter = format[0];
    if (letter == '?') return Dtype::boolean;
    if (letter == 'e' || letter == 'f' || letter == 'd') return sized('f', item_bytes);
    if (std::string_view("bhilqn").find(letter) != std::string_view::npos) return sized('i', item_bytes);
    if (std::string_view("BHILQN").find(letter) != std::string_view::npos) return sized('u', item_bytes);
    return std::nullopt;
}

std::optional<Dtype> dtype_from_typestr(std::string_view typestr) {
    if (typestr.size() != 3 || typestr[0] == '>') return std::nullopt;
    if (typestr.substr(1) == "b1") return Dtype::boolean;
    return sized(typestr[1], static_cast<std::size_t>(typestr[2] - '0'));
}

void store_real(Dtype dtype, double value, void* bytes) {
    if (dtype == Dtype::f64) {
        std::memcpy(bytes, &value, sizeof value);
        return;
    }
    if (dtype == Dtype::f32) {
        const auto single = static_cast<float>(value);
        std::memcpy(bytes, &single, sizeof single);
        return;
    }
    const auto bits = small_float_bits(row(dtype), value, dtype == Dtype::f8e4m3);
    std::memcpy(bytes, &bits, dtype_bytes(dtype));
}

double load_real(Dtype dtype, const void* bytes) {
    if (dtype == Dtype::f64) {
        double value;
        std::memcpy(&value, bytes, sizeof value);
        return value;
    }
    if (dtype == Dtype::f32) {
        float value;
        std::memcpy(&value, bytes, sizeof value);
        return value;
    }
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes, dtype_bytes(dtype));
    return small_float_value(row(dtype), bits, dtype == Dtype::f8e4m3);
}

bool integer_fits(Dtype dtype, std::int64_t value) {
    if (dtype == Dtype::boolean) return value == 0 || value == 1;
    const auto bits = 8 * dtype_bytes(dtype);
    const bool is_unsigned = row(dtype).name[0] == 'u';
    if (bits == 64) return !is_unsigned || value >= 0;
    const std::int64_t span = std::int64_t{1} << (is_unsigned ? bits : bits - 1);
    return value < span && value >= (is_unsigned ? 0 : -span);
}

void store_integer(Dtype dtype, std::int64_t value, void* bytes) {
    switch (dtype_bytes(dtype)) {  // by constant sizes, which need no call
        case 8: std::memcpy(bytes, &value, 8); break;
        case 4: std::memcpy(bytes, &value, 4); break;
        case 2: std::memcpy(bytes, &value, 2); break;
        default: std::memcpy(bytes, &value, 1);
    }
}

}  // namespace gristmill
