// Images out of the blob, decompressed by Python's lzma so that the module needs no library of its own.
#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <vector>

#include "error.hpp"
#include "image.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

nb::object decompressor() {
    try {
        return nb::module_::import_("lzma").attr("decompress");
    } catch (nb::python_error&) {
        throw Failure(ErrorKind::runtime, {.what = "this Python has no `lzma` module, by which GPU images are compressed",
                                           .fix = "use a Python that is built with liblzma"});
    }
}

std::shared_ptr<const std::string> decompress(const Image& image) {
    const auto packed = nb::bytes(tables.blob + image.offset, image.size);
    const auto raw = nb::borrow<nb::bytes>(decompressor()(packed));
    if (raw.size() < image.start + image.raw_size)
        throw Failure(ErrorKind::runtime, {.what = concat("an embedded image is damaged: ", describe_image(image)),
                                           .fix = "reinstall the package"});
    return std::make_shared<const std::string>(raw.c_str(), raw.size());
}

// Streams that hold several images stay, for the next one out of them; the GIL guards the map.
std::shared_ptr<const std::string> stream_of(const Image& image) {
    static std::map<std::uint32_t, std::shared_ptr<const std::string>> streams;
    if (const auto found = streams.find(image.offset); found != streams.end()) return found->second;
    auto fresh = decompress(image);  // lzma releases the GIL: another thread may have been quicker
    const bool is_shared = fresh->size() != image.raw_size;
    return is_shared ? streams.try_emplace(image.offset, std::move(fresh)).first->second : fresh;
}

}  // namespace

const std::string& image_bytes(std::uint16_t index) {
    static std::vector<std::unique_ptr<const std::string>> images(tables.images.size());
    if (images[index]) return *images[index];
    const Image& image = tables.images[index];
    const auto stream = stream_of(image);
    auto fresh = std::make_unique<const std::string>(stream->substr(image.start, image.raw_size));
    if (!images[index]) images[index] = std::move(fresh);
    return *images[index];
}

}  // namespace gristmill
