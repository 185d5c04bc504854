// Memory of the fake driver's devices: the process's own. Of other addresses nothing is touched. What copies are asked
// for in two dimensions.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>

struct CopySide {
    std::size_t column, row;
    int kind;
    const void* host;
    std::uintptr_t device;
    void* array;
    std::size_t pitch;
};

struct Copy2d {
    CopySide from, to;
    std::size_t width, height;
};

class FakeMemory {
public:
    std::uintptr_t allocate(std::size_t bytes) {
        const auto address = reinterpret_cast<std::uintptr_t>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
        std::memset(reinterpret_cast<void*>(address), 0xA5, bytes);  // what others have left
        sizes_[address] = bytes;
        return address;
    }
    // These return the driver's codes: 0, or 1 for an address that is none of ours.
    int free(std::uintptr_t address) {
        if (!sizes_.erase(address)) return 1;
        std::free(reinterpret_cast<void*>(address));
        return 0;
    }
    int set(std::uintptr_t address, unsigned char value, std::size_t bytes) {
        if (!holds(address, bytes)) return 1;
        std::memset(reinterpret_cast<void*>(address), value, bytes);
        return 0;
    }
    // What lies at an address that a test made up is taken for zeros.
    int copy(std::uintptr_t to, std::uintptr_t from, std::size_t bytes) {
        if (!holds(from, bytes)) return set(to, 0, bytes);
        if (!holds(to, bytes)) return 1;
        std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
        return 0;
    }
    int read(void* to, std::uintptr_t from, std::size_t bytes) {
        if (!holds(from, bytes)) return 1;
        std::memcpy(to, reinterpret_cast<void*>(from), bytes);
        return 0;
    }
    int count() const { return static_cast<int>(sizes_.size()); }

private:
    bool holds(std::uintptr_t address, std::size_t bytes) const {
        const auto next = sizes_.upper_bound(address);
        if (next == sizes_.begin()) return false;
        const auto& [begin, size] = *std::prev(next);
        return address + bytes <= begin + size;
    }

    std::map<std::uintptr_t, std::size_t> sizes_;  // of allocations, by address
};
