// Loads tuned tables at run time, from files as `python -m gristmill tune` writes them.
#pragma once

#include <nanobind/nanobind.h>

#include "tables.hpp"

namespace gristmill {

// `source` is the path of a TOML file, or a dict of the same content; `only` one kernel, null: all of the package.
// Returns how many rows were taken. Rows of kernels that the package lacks are passed over; one whose specialisation is
// not built, or whose key is another, becomes a RuntimeWarning. Raises Failure for what is no table.
std::size_t load_tuning(nanobind::handle source, const Kernel* only);

// The files in GRISTMILL_TUNING, separated as in PATH; what cannot be read becomes a RuntimeWarning.
void load_tuning_from_environment();

}  // namespace gristmill
