#include "occupancy.hpp"

#include <algorithm>
#include <array>

namespace gristmill {

namespace {

// CUDA C++ Programming Guide, "Compute Capabilities", and `cuda_occupancy.h`.
struct Multiprocessor {
    int sm, threads, blocks, shared_kb, reserved_bytes;  // reserved: of shared memory, for each block
};

constexpr std::array<Multiprocessor, 11> multiprocessor_rows{{
    {75, 1024, 16, 64, 0},
    {80, 2048, 32, 164, 1024},
    {86, 1536, 16, 100, 1024},
    {87, 1536, 16, 164, 1024},
    {88, 1536, 16, 100, 1024},
    {89, 1536, 24, 100, 1024},
    {90, 2048, 32, 228, 1024},
    {100, 2048, 32, 228, 1024},
    {103, 2048, 32, 228, 1024},
    {110, 1536, 24, 228, 1024},
    {120, 1536, 24, 100, 1024},
}};

constexpr int warp_threads = 32, most_registers = 65536, partitions = 4;
constexpr int register_unit = 256, shared_unit = 128;  // of what a warp and a block are given

constexpr int rounded_up(int number, int unit) { return (number + unit - 1) / unit * unit; }

// The row, or that of the next lower minor version.
const Multiprocessor* find(int sm) {
    const Multiprocessor* found = nullptr;
    for (const Multiprocessor& row : multiprocessor_rows)
        if (row.sm / 10 == sm / 10 && row.sm <= sm) found = &row;
    return found;
}

// Each partition has its own registers and warps.
int blocks_by_registers(int registers, int warps) {
    const int of_a_warp = rounded_up(registers * warp_threads, register_unit);
    if (of_a_warp * rounded_up(warps, partitions) > most_registers) return 0;
    return most_registers / partitions / of_a_warp * partitions / warps;
}

int blocks_by_shared_memory(const Multiprocessor& has, int bytes) {
    const int of_a_block = rounded_up(bytes + has.reserved_bytes, shared_unit);
    return of_a_block ? has.shared_kb * 1024 / of_a_block : has.blocks;
}

}  // namespace

std::optional<Occupancy> occupancy_of(const Usage& usage, const Geometry& geometry, int sm) {
    const Multiprocessor* has = find(sm);
    if (!has || usage.registers == 0 || geometry.threads == 0) return std::nullopt;
    const int warps = rounded_up(static_cast<int>(geometry.threads), warp_threads) / warp_threads;
    const int most_warps = has->threads / warp_threads;
    const int blocks =
        std::min({has->blocks, most_warps / warps, blocks_by_registers(usage.registers, warps),
                  blocks_by_shared_memory(*has, static_cast<int>(geometry.shared_bytes))});
    return Occupancy{blocks, static_cast<double>(blocks * warps) / most_warps};
}

}  // namespace gristmill
