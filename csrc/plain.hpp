// Tensors that are known not to be negated.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace gristmill {

// Asking costs more than the rest of the reading, so tensors that come again are remembered. The data pointer tells
// `x.data = y`; a weak reference forgets a tensor that dies, before another can stand at its address. Hold the GIL.
class PlainTensors {
public:
    bool contains(PyObject* object, const void* data) const {
        for (const Row& row : set_of(object).rows)
            if (row.object == object && row.data == data) return true;
        return false;
    }

    void add(PyObject* object, const void* data);

private:
    struct Row {
        PyObject* object;  // null: free
        const void* data;
        PyObject* weak;
    };

    // Most temporaries never come back, or die soon: a set waits until it has seen a tensor again.
    struct alignas(64) Set {
        std::array<Row, 2> rows;
        PyObject* candidate;
        std::uint16_t patience;  // sightings of the candidate still to wait for
        std::uint16_t strikes;   // of others since the candidate was seen
    };

    static constexpr int index_bits = 10;

    static std::size_t index_of(PyObject* object) {
        const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(object));
        return address * 0x9E3779B97F4A7C15u >> (64 - index_bits);
    }
    const Set& set_of(PyObject* object) const { return sets_[index_of(object)]; }

    static bool is_worth_a_place(Set& set, PyObject* object);
    static PyObject* forget(PyObject* index, PyObject* weak);

    std::array<Set, std::size_t{1} << index_bits> sets_;
};

// One for the process: its address is known to the weak references.
extern PlainTensors plain_tensors;

}  // namespace gristmill
