// How many blocks of an entry a multiprocessor holds.
#pragma once

#include <optional>

#include "tables.hpp"

namespace gristmill {

struct Occupancy {
    int blocks;    // of a multiprocessor
    double share;  // of its warps that these have
};

// On devices of an architecture (90). Empty: what the entry takes, or what the architecture has, is not known.
std::optional<Occupancy> occupancy_of(const Usage& usage, const Geometry& geometry, int sm);

}  // namespace gristmill
