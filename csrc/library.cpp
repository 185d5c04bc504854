// Loading images into the driver: each image once, each kernel's handle once for a device.
#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "error.hpp"
#include "image.hpp"

namespace gristmill {

namespace {

constexpr int jit_error_log = 5, jit_error_log_bytes = 6;

// The PTX compiler's own words: the library calls do not give them.
std::string jit_log(const cuda::Api& api, const std::string& bytes) {
    std::array<char, 4096> log{};
    std::array<int, 2> options{jit_error_log, jit_error_log_bytes};
    std::array<void*, 2> values{log.data(), reinterpret_cast<void*>(log.size() - 1)};
    cuda::Module module = nullptr;
    api.cuModuleLoadDataEx(&module, bytes.data(), 2, options.data(), values.data());
    return log.data();
}

[[noreturn]] void fail_load(const cuda::Api& api, cuda::Result code, const EntryPlace& place, const Image& image,
                            const std::string& bytes) {
    const bool is_compiled_here = code == cuda::invalid_ptx || code == cuda::unsupported_ptx;
    throw Failure(
        ErrorKind::runtime,
        {.what =
             concat(place.kernel.name, ": loading ", describe_image(image), " failed: ", cuda::error_text(api, code)),
         .asked = concat("entry ", place.entry().symbol),
         .found = is_compiled_here ? jit_log(api, bytes) : "",
         .fix = "rebuild the package; if this persists, report it with what its `doctor()` returns"});
}

cuda::Library load_library(const cuda::Api& api, std::uint16_t image, const EntryPlace& place,
                           const std::string& bytes) {
    static std::vector<cuda::Library> libraries(tables.images.size());
    cuda::Library& library = libraries[image];
    if (library) return library;
    std::array<int, 1> options{cuda::library_binary_is_preserved};
    std::array<void*, 1> values{reinterpret_cast<void*>(std::uintptr_t{1})};
    const cuda::Result code =
        api.cuLibraryLoadData(&library, bytes.data(), nullptr, nullptr, 0, options.data(), values.data(), 1);
    if (code == cuda::success) return library;
    library = nullptr;
    fail_load(api, code, place, tables.images[image], bytes);
}

}  // namespace

cuda::LoadedKernel load_kernel(const EntryPlace& place, std::uint16_t image, const std::string& bytes,
                               cuda::GpuDevice& device) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (const auto loaded = device.kernel(place.index()); loaded.handle) return loaded;
    const cuda::Api& api = device.api();
    const cuda::ContextScope scope(device);
    const cuda::RelaxedCapture relaxed(api);
    cuda::Kernel kernel = nullptr;
    const cuda::Library library = load_library(api, image, place, bytes);
    const cuda::Result code = api.cuLibraryGetKernel(&kernel, library, place.entry().symbol);
    if (code != cuda::success) fail_load(api, code, place, tables.images[image], bytes);
    cuda::LoadedKernel loaded{kernel, nullptr, &place.geometry(image)};
    cuda::allow_shared_memory(api, loaded, device.ordinal());
    loaded.function = cuda::find_function(api, kernel);
    device.keep_kernel(place.index(), loaded);
    return loaded;
}

}  // namespace gristmill
