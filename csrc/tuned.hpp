// Tuned tables: what was measured to be the fastest for calls of one key on one device, built in or loaded.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tables.hpp"
#include "view.hpp"

namespace gristmill {

inline constexpr int no_tuned_device = -1;

// A device as tables name it.
struct DeviceIdentity {
    std::string name, architecture;
    std::int64_t units;  // multiprocessors, or threads of a CPU

    bool operator==(const DeviceIdentity&) const = default;
};

// The values of a kernel's key for a call.
using KeyValues = std::array<std::int64_t, most_keys>;

// A row that owns its key.
struct LoadedRow {
    std::uint16_t device;
    std::uint16_t specialisation;
    Variant variant;
    std::uint16_t named;
    std::vector<std::int64_t> key;
};

// The rows of one kernel. Hold the GIL; a C library has none, and adds no rows.
class TunedRows {
public:
    explicit TunedRows(const Kernel& kernel) : kernel_(kernel) {}

    bool is_empty() const { return kernel_.tuned.empty() && loaded_.empty(); }

    // The first row of this device and key that `takes` accepts, loaded ones before those built in; whether there is
    // one.
    template <class Takes>
    bool find(int device, std::span<const std::int64_t> key, Takes takes) const {
        return find_in(std::span<const LoadedRow>(loaded_), device, key, takes) ||
               find_in(kernel_.tuned, device, key, takes);
    }

    // In place of a row for the same calls, if one was loaded before.
    void add(LoadedRow row);

private:
    template <class Row, class Takes>
    static bool find_in(std::span<const Row> rows, int device, std::span<const std::int64_t> key, Takes takes) {
        const auto place = first_of(rows, device, key);
        for (std::size_t i = place; i < rows.size() && compare(rows[i], device, key) == 0; ++i)
            if (takes(rows[i].specialisation, rows[i].variant, rows[i].named)) return true;
        return false;
    }

    // Where rows of this device and key begin, or would be.
    template <class Row>
    static std::size_t first_of(std::span<const Row> rows, int device, std::span<const std::int64_t> key) {
        std::size_t low = 0, high = rows.size();
        while (low < high) {
            const std::size_t middle = (low + high) / 2;
            if (compare(rows[middle], device, key) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    // Below 0: the row comes before them.
    template <class Row>
    static int compare(const Row& row, int device, std::span<const std::int64_t> key) {
        if (row.device != device) return row.device < device ? -1 : 1;
        for (std::size_t i = 0; i < key.size(); ++i)
            if (row.key[i] != key[i]) return row.key[i] < key[i] ? -1 : 1;
        return 0;
    }

    const Kernel& kernel_;
    std::vector<LoadedRow> loaded_;  // in order of device, then key
};

// The device as tables name it. Makes a CUDA device ready; release the GIL around the first call.
DeviceIdentity identity_of(const Device& device);

// The number of a device in tuned tables; `no_tuned_device`: there is no row for it. The device is ready.
int tuned_device(const Device& device);

// The number of a device that a loaded table names. Hold the GIL.
std::uint16_t number_of(const DeviceIdentity& identity);

}  // namespace gristmill
