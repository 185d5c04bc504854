// Runs programs of a grid on the CPU: on the calling thread while the work is small, else on a pool of threads.
#pragma once

#include <array>
#include <cstdint>

#include "tables.hpp"

namespace gristmill {

struct HostWork {
    HostFunction function;
    const void* parameters;
    std::array<std::int64_t, 3> grid;

    std::int64_t programs() const { return grid[0] * grid[1] * grid[2]; }
    void run(std::int64_t begin, std::int64_t end) const { function(parameters, grid.data(), begin, end); }
};

// Threads that share a large grid, the caller included: GRISTMILL_NUM_THREADS, or the CPUs this process may use.
int host_thread_count();

// Runs the first program, and the rest too if that took so little time that waking threads would cost more.
// Returns the number of programs done.
std::int64_t run_small(const HostWork& work);

// Runs the programs from `begin` on, on all threads. Do not hold the GIL. The pool starts at first use, and again in a
// forked child.
void run_large(const HostWork& work, std::int64_t begin);

}  // namespace gristmill
