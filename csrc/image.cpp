#include "image.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "error.hpp"

namespace gristmill {

namespace {

struct PtxRow {
    int ptx, cuda;
};

constexpr std::array<PtxRow, 24> ptx_rows{{
    {70, 11000}, {71, 11010}, {72, 11020}, {73, 11030}, {74, 11040}, {75, 11050}, {76, 11060}, {77, 11070},
    {78, 11080}, {80, 12000}, {81, 12010}, {82, 12020}, {83, 12030}, {84, 12040}, {85, 12050}, {86, 12070},
    {87, 12080}, {88, 12090}, {90, 13000}, {91, 13010}, {92, 13020}, {93, 13030}, {94, 13040}, {95, 13050},
}};

bool is_same_family(const Image& image, cuda::Capability capability) {
    return image.sm / 10 == capability.major && image.sm <= capability.sm();
}

// Larger is better; 0: does not run there.
int cubin_rank(const Image& image, cuda::Capability capability) {
    if (image.suffix == 'a') return image.sm == capability.sm() ? 3000 : 0;
    if (!is_same_family(image, capability)) return 0;
    return (image.suffix == 'f' ? 2000 : 1000) + image.sm;
}

int ptx_rank(const Image& image, cuda::Capability capability) {
    if (image.suffix == 'a') return image.sm == capability.sm() ? 3000 : 0;
    if (image.suffix == 'f') return is_same_family(image, capability) ? 2000 + image.sm : 0;
    return image.sm <= capability.sm() ? 1000 + image.sm : 0;
}

template <class Rank>
std::optional<std::uint16_t> best(std::span<const std::uint16_t> candidates, Rank rank) {
    std::optional<std::uint16_t> found;
    int best_rank = 0;
    for (const auto candidate : candidates) {
        const int its_rank = rank(candidate);
        if (its_rank > best_rank) found = candidate;
        best_rank = std::max(best_rank, its_rank);
    }
    return found;
}

// By kernel: the number of entries before its first.
std::vector<std::size_t> entry_starts() {
    std::vector<std::size_t> starts{0};
    for (const auto& kernel : tables.kernels) starts.push_back(starts.back() + 3 * kernel.specialisations.size());
    return starts;
}

std::string embedded(const EntryPlace& place) {
    std::vector<std::uint16_t> all(place.kernel.cubins.begin(), place.kernel.cubins.end());
    all.insert(all.end(), place.entry().ptx.begin(), place.entry().ptx.end());
    if (all.empty()) return "no CUDA image";
    return listed(all, [](std::uint16_t image) { return describe_image(tables.images[image]); });
}

[[noreturn]] void fail_driver(const EntryPlace& place, const cuda::DeviceFacts& device, const Image& ptx,
                              int driver_version) {
    throw Failure(ErrorKind::runtime,
                  {.what = concat(place.kernel.name, ": the CUDA driver is too old for the PTX of this kernel"),
                   .found = concat("a driver for CUDA ", cuda::version_text(driver_version), "; ", describe_image(ptx),
                                   " needs CUDA ", cuda::version_text(driver_for_ptx(ptx.ptx_version))),
                   .built = embedded(place),
                   .fix = concat("update NVIDIA's driver, or build a cubin: add `sm_", device.capability.sm(),
                                 "` to TARGETS with GRISTMILL_CUBINS=ON")});
}

[[noreturn]] void fail_device(const EntryPlace& place, const cuda::DeviceFacts& device) {
    throw Failure(ErrorKind::runtime, {.what = concat(place.kernel.name, ": no image fits this device"),
                                       .asked = concat(device.name, ", sm_", device.capability.sm()),
                                       .built = embedded(place),
                                       .fix = concat("add `sm_", device.capability.sm(),
                                                     "` to TARGETS in gristmill_add_kernels(...), then rebuild")});
}

}  // namespace

bool is_ptx_forced() {
    const char* text = std::getenv("GRISTMILL_IMAGES");
    return text && std::string_view(text) == "ptx";
}

int driver_for_ptx(int ptx_version) {
    for (const auto& row : ptx_rows)
        if (row.ptx >= ptx_version) return row.cuda;
    return ptx_rows.back().cuda + 1000;
}

std::optional<std::uint16_t> choose_image(std::span<const Image> images, std::span<const std::uint16_t> cubins,
                                          std::span<const std::uint16_t> ptx, cuda::Capability capability,
                                          int driver_version) {
    const auto cubin = best(cubins, [&](std::uint16_t i) { return cubin_rank(images[i], capability); });
    if (cubin) return cubin;
    return best(ptx, [&](std::uint16_t i) {
        return driver_for_ptx(images[i].ptx_version) <= driver_version ? ptx_rank(images[i], capability) : 0;
    });
}

std::string target_name(const Image& image) {
    return concat("sm_", image.sm, image.suffix ? std::string(1, image.suffix) : "");
}

std::string describe_image(const Image& image) {
    if (image.kind == ImageKind::cubin) return concat("cubin ", target_name(image));
    return concat("PTX ", image.ptx_version / 10, ".", image.ptx_version % 10, " ", target_name(image));
}

std::size_t EntryPlace::index() const {
    static const std::vector<std::size_t> starts = entry_starts();
    const auto which = static_cast<std::size_t>(&kernel - tables.kernels.data());
    const auto row = static_cast<std::size_t>(&specialisation - kernel.specialisations.data());
    return starts[which] + 3 * row + static_cast<std::size_t>(variant);
}

Usage EntryPlace::usage(std::uint16_t image) const {
    const auto cubin = static_cast<std::size_t>(std::ranges::find(kernel.cubins, image) - kernel.cubins.begin());
    const auto row = static_cast<std::size_t>(&specialisation - kernel.specialisations.data());
    const std::size_t place =
        3 * (cubin * kernel.specialisations.size() + row) + static_cast<std::size_t>(variant);
    return place < kernel.usage.size() ? kernel.usage[place] : Usage{};
}

std::span<const TensorMap> EntryPlace::maps(int source) const {
    const auto& geometry = entry().geometry;
    const bool is_known = source >= 0 && static_cast<std::size_t>(source) < geometry.size();
    return is_known ? geometry[static_cast<std::size_t>(source)].maps : std::span<const TensorMap>();
}

std::uint16_t image_for(const EntryPlace& place, const cuda::DeviceFacts& device, int driver_version) {
    const auto cubins = is_ptx_forced() ? std::span<const std::uint16_t>() : place.kernel.cubins;
    const auto& ptx = place.entry().ptx;
    if (const auto image = choose_image(tables.images, cubins, ptx, device.capability, driver_version)) return *image;
    const auto unreadable = best(ptx, [&](std::uint16_t i) { return ptx_rank(tables.images[i], device.capability); });
    if (unreadable) fail_driver(place, device, tables.images[*unreadable], driver_version);
    fail_device(place, device);
}

int source_for(const Kernel& kernel, const cuda::DeviceFacts& device, int driver_version) {
    const auto cubins = is_ptx_forced() ? std::span<const std::uint16_t>() : kernel.cubins;
    for (const auto& row : kernel.specialisations)
        if (const auto image = choose_image(tables.images, cubins, row.entries[0].ptx, device.capability, driver_version))
            return tables.images[*image].source;
    return any_source;
}

bool is_built(const Specialisation& specialisation, int source) {
    const Entry& entry = specialisation.entries[0];
    if (source == host_source) return !entry.host.empty();
    const auto& geometry = entry.geometry;
    return source < 0 || static_cast<std::size_t>(source) >= geometry.size() ||
           geometry[static_cast<std::size_t>(source)].threads != 0;
}

}  // namespace gristmill
