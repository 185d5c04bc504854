#include "cpu.hpp"

#include <array>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gristmill {

namespace {

#if defined(__x86_64__)

struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf) {
    Registers r;
    __get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);
    return r;
}

bool has_all(unsigned value, unsigned mask) { return (value & mask) == mask; }

unsigned bits(std::initializer_list<int> positions) {
    unsigned mask = 0;
    for (const int position : positions) mask |= 1u << position;
    return mask;
}

// Which register files the system saves at a context switch (XCR0).
unsigned saved_state() {
    if (!has_all(cpuid(1).c, bits({27}))) return 0;
    unsigned low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

// SSE3, SSSE3, CX16, SSE4.1, SSE4.2, POPCNT; LAHF.
bool has_v2() { return has_all(cpuid(1).c, bits({0, 9, 13, 19, 20, 23})) && has_all(cpuid(0x80000001).c, bits({0})); }

// FMA, MOVBE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT; registers xmm, ymm.
bool has_v3() {
    return has_v2() && has_all(saved_state(), bits({1, 2})) && has_all(cpuid(1).c, bits({12, 22, 28, 29})) &&
           has_all(cpuid(7).b, bits({3, 5, 8})) && has_all(cpuid(0x80000001).c, bits({5}));
}

// AVX-512 F, DQ, CD, BW, VL; registers k, zmm.
bool has_v4() {
    return has_v3() && has_all(saved_state(), bits({5, 6, 7})) && has_all(cpuid(7).b, bits({16, 17, 28, 30, 31}));
}

bool is_supported(HostLevel level) {
    switch (level) {
        case HostLevel::x86_64_v2: return has_v2();
        case HostLevel::x86_64_v3: return has_v3();
        case HostLevel::x86_64_v4: return has_v4();
        default: return false;
    }
}

// Of leaves 0x80000002 to 0x80000004, 16 bytes each; without the blanks around and in it.
std::string read_name() {
    if (cpuid(0x80000000).a < 0x80000004) return "x86-64";
    std::array<char, 49> text{};
    for (unsigned leaf = 0; leaf < 3; ++leaf) {
        const Registers part = cpuid(0x80000002 + leaf);
        std::memcpy(text.data() + 16 * leaf, &part, sizeof part);
    }
    std::string name;
    for (const char letter : std::string_view(text.data()))
        if (letter != ' ' || (!name.empty() && name.back() != ' ')) name.push_back(letter);
    while (name.ends_with(' ')) name.pop_back();
    return name.empty() ? "x86-64" : name;
}

#elif defined(__aarch64__)

std::string read_name() { return "aarch64"; }

bool is_supported(HostLevel level) { return level == HostLevel::aarch64; }

#else

std::string read_name() { return "unknown"; }

bool is_supported(HostLevel) { return false; }

#endif

constexpr std::array<std::string_view, 4> names{"x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"};

}  // namespace

std::string_view level_name(HostLevel level) { return names[static_cast<std::size_t>(level)]; }

bool is_level_supported(HostLevel level) { return is_supported(level); }

std::optional<std::size_t> best_host_level() {
    for (std::size_t i = tables.host_levels.size(); i > 0; --i)
        if (is_level_supported(tables.host_levels[i - 1])) return i - 1;
    return std::nullopt;
}

std::string_view cpu_name() {
    static const std::string name = read_name();
    return name;
}

std::string_view cpu_level_text() {
    for (const auto level : {HostLevel::aarch64, HostLevel::x86_64_v4, HostLevel::x86_64_v3, HostLevel::x86_64_v2})
        if (is_level_supported(level)) return level_name(level);
    return "a CPU below x86-64-v2";
}

}  // namespace gristmill
