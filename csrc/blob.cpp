// Images out of the blob, decompressed by Python's zlib so that the module needs no library of its own.
#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "error.hpp"
#include "image.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

std::unique_ptr<const std::string> decompress(const Image& image) {
    const auto packed = nb::bytes(tables.blob + image.offset, image.size);
    const auto raw = nb::borrow<nb::bytes>(nb::module_::import_("zlib").attr("decompress")(packed, 15, image.raw_size));
    if (raw.size() != image.raw_size)
        throw Failure(ErrorKind::runtime, {.what = concat("an embedded image is damaged: ", describe_image(image)),
                                           .fix = "reinstall the package"});
    return std::make_unique<const std::string>(raw.c_str(), raw.size());
}

}  // namespace

const std::string& image_bytes(std::uint16_t image) {
    static std::vector<std::unique_ptr<const std::string>> images(tables.images.size());
    auto& bytes = images[image];
    if (bytes) return *bytes;
    auto fresh = decompress(tables.images[image]);  // zlib releases the GIL: another thread may have been quicker
    if (!bytes) bytes = std::move(fresh);
    return *bytes;
}

}  // namespace gristmill
