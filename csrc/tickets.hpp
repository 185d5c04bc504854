// Counters in device memory, by which the programs of a launch share out their tiles: each draws the next one.
#pragma once

#include <cstdint>

#include "device.hpp"

namespace gristmill {

// Finds a counter that is 0 when the launch begins, and again when it ends. Launches that follow each other on a stream
// take the same one; one that a graph captures has its own for good. Not success: there is no memory for it.
cuda::Result find_counter(const cuda::GpuDevice& device, cuda::Stream stream, std::uintptr_t& counter);

// Somebody has reset the device's context: its memory is gone.
void forget_tickets(int device);

}  // namespace gristmill
