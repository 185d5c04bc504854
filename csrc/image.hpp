// Which image runs on a device, and loading it once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "device.hpp"
#include "tables.hpp"

namespace gristmill {

// Whether GRISTMILL_IMAGES=ptx: cubins are passed over, as on a device for which none is built.
bool is_ptx_forced();

// The first CUDA version whose driver takes this PTX version (70 for 7.0): 11000 for 11.0.
int driver_for_ptx(int ptx_version);

// Of the candidates (indices into `images`) the best for a device and a driver: a cubin for exactly this device ("a"),
// for its family ("f"), for the same major and the nearest minor below; else the PTX nearest below that the driver can
// read.
std::optional<std::uint16_t> choose_image(std::span<const Image> images, std::span<const std::uint16_t> cubins,
                                          std::span<const std::uint16_t> ptx, cuda::Capability capability,
                                          int driver_version);

std::string target_name(const Image& image);     // "sm_90a"
std::string describe_image(const Image& image);  // "cubin sm_90a", "PTX 7.0 sm_80"

// Where an entry stands in the tables.
struct EntryPlace {
    const Kernel& kernel;
    const Specialisation& specialisation;
    Variant variant;

    const Entry& entry() const { return specialisation.entries[static_cast<std::size_t>(variant)]; }
    std::size_t index() const;  // over all kernels
    const Geometry& geometry(std::uint16_t image) const { return entry().geometry[tables.images[image].source]; }
    Usage usage(std::uint16_t image) const;  // of its registers there; of PTX nothing is known
    std::span<const TensorMap> maps(int source) const;  // of that target's code
};

// The image for an entry. Raises Failure that names the device and what is embedded.
std::uint16_t image_for(const EntryPlace& place, const cuda::DeviceFacts& device, int driver_version);

// Which target's code a device runs of a kernel (Image::source), and whether a specialisation has any for it.
inline constexpr int host_source = -1;  // the CPU's code
inline constexpr int any_source = -2;
int source_for(const Kernel& kernel, const cuda::DeviceFacts& device, int driver_version);
bool is_built(const Specialisation& specialisation, int source);

// The image's bytes, decompressed at first use; NUL-terminated. Hold the GIL.
const std::string& image_bytes(std::uint16_t image);

// The kernel for a device, loaded at first use. Do not hold the GIL. Raises Failure with the compiler's log.
cuda::LoadedKernel load_kernel(const EntryPlace& place, std::uint16_t image, const std::string& bytes,
                               cuda::GpuDevice& device);

}  // namespace gristmill
