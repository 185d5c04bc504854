// Prints the occupancy of lines of (registers, threads, shared bytes, architecture), for tests/test_usage.py.
#include <cstdio>

#include "occupancy.hpp"

int main() {
    unsigned registers, threads, shared_bytes;
    int sm;
    while (std::scanf("%u %u %u %d", &registers, &threads, &shared_bytes, &sm) == 4) {
        const gristmill::Usage usage{static_cast<std::uint16_t>(registers), 0, 0};
        const gristmill::Geometry geometry{threads, shared_bytes, 1};
        const auto found = gristmill::occupancy_of(usage, geometry, sm);
        std::printf("%d %g\n", found ? found->blocks : -1, found ? found->share : 0);
    }
}
