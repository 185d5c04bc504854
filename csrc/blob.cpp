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

nb::object new_decompressor() {
    try {
        return nb::module_::import_("lzma").attr("LZMADecompressor")();
    } catch (nb::python_error&) {
        throw Failure(ErrorKind::runtime, {.what = "this Python has no `lzma` module, by which GPU images are compressed",
                                           .fix = "use a Python that is built with liblzma"});
    }
}

constexpr std::int64_t all_of_it = -1;

// The stream's content up to `end`. A damaged stream raises what Python's lzma does.
std::shared_ptr<const std::string> decompress(const Image& image, std::int64_t end) {
    const auto packed = nb::bytes(tables.blob + image.offset, image.size);
    const auto raw = nb::borrow<nb::bytes>(new_decompressor().attr("decompress")(packed, end));
    if (raw.size() < image.start + image.raw_size)
        throw Failure(ErrorKind::runtime, {.what = concat("an embedded image is damaged: ", describe_image(image)),
                                           .fix = "reinstall the package"});
    return std::make_shared<const std::string>(raw.c_str(), raw.size());
}

// A stream holds a kernel's cubins, of which a device needs one: what is before it comes with it. Or its PTX, of which a
// device needs more and more: all of it comes, and stays. The GIL guards the map.
std::shared_ptr<const std::string> unpacked_stream(const Image& image) {
    if (image.kind == ImageKind::cubin) return decompress(image, image.start + image.raw_size);
    static std::map<std::uint32_t, std::shared_ptr<const std::string>> streams;
    if (const auto found = streams.find(image.offset); found != streams.end()) return found->second;
    auto fresh = decompress(image, all_of_it);  // lzma releases the GIL: another thread may have been quicker
    return streams.try_emplace(image.offset, std::move(fresh)).first->second;
}

}  // namespace

const std::string& image_bytes(std::uint16_t index) {
    static std::vector<std::unique_ptr<const std::string>> images(tables.images.size());
    if (images[index]) return *images[index];
    const Image& image = tables.images[index];
    const auto stream = unpacked_stream(image);
    auto fresh = std::make_unique<const std::string>(stream->substr(image.start, image.raw_size));
    if (!images[index]) images[index] = std::move(fresh);
    return *images[index];
}

}  // namespace gristmill
