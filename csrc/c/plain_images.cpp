#include "plain_images.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "../image.hpp"

namespace gristmill {

const std::string& image_bytes(std::uint16_t index) {
    static std::mutex mutex;
    static std::vector<std::unique_ptr<const std::string>> images(tables.images.size());
    const std::lock_guard lock(mutex);
    auto& bytes = images[index];
    if (bytes) return *bytes;
    const Image& image = tables.images[index];
    const auto stream = std::ranges::lower_bound(plain_streams, image.offset, {}, &PlainStream::offset);
    const auto* first = reinterpret_cast<const char*>(tables.blob + stream->start + image.start);
    bytes = std::make_unique<const std::string>(first, image.raw_size);
    return *bytes;
}

}  // namespace gristmill
