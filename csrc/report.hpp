// What the package holds and what this machine makes of it, for people.
#pragma once

#include <nanobind/nanobind.h>

#include <array>

#include "image.hpp"
#include "tables.hpp"

namespace gristmill {

inline constexpr std::array<const char*, 3> variant_names{"a32", "g32", "g64"};  // by Variant

nanobind::dict image_dict(const Image& image);

// Adds what an entry's code in an image takes of a block, a thread and a multiprocessor of this architecture (90).
void add_usage(const EntryPlace& place, std::uint16_t image, int sm, nanobind::dict& told);

// Package, versions, kernels, images, CPU level. Does not touch CUDA.
nanobind::dict package_info();

// The specialisations and images of one kernel. Does not touch CUDA.
nanobind::dict kernel_info(const Kernel& kernel);

// The image that each specialisation would use on a device.
nanobind::dict device_info(const Kernel& kernel, int device);

// (check, "ok" | "warning" | "error", text) for each thing that calls need. Never raises; may initialise CUDA.
nanobind::list doctor();

}  // namespace gristmill
