#include "driver.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

namespace gristmill::cuda {

namespace {

using GetProcAddress = Result (*)(const char*, void**, int, std::uint64_t);
using GetProcAddressStatus = Result (*)(const char*, void**, int, std::uint64_t, int*);
using GetVersion = Result (*)(int*);

std::atomic<const Api*> ready{nullptr};
std::atomic<bool> is_initialised_before_fork{false};

void forget_in_child() {
    if (ready.exchange(nullptr) != nullptr) is_initialised_before_fork = true;
}

std::string library_path() {
    const char* path = std::getenv("GRISTMILL_LIBCUDA");
    return path && *path ? path : "libcuda.so.1";
}

[[noreturn]] void fail_missing(const std::string& path) {
    const char* reason = ::dlerror();
    throw Failure(ErrorKind::runtime, {.what = concat("no CUDA driver: ", path, " could not be opened"),
                                       .found = reason ? reason : "no reason given",
                                       .fix = "install NVIDIA's driver (525.60.13 or newer; in a container, start it "
                                              "with GPU access), or pass CPU arrays"});
}

[[noreturn]] void fail_old(const std::string& path, int version) {
    throw Failure(ErrorKind::runtime, {.what = "the CUDA driver is too old",
                                       .found = concat(path, ", which supports CUDA ", version_text(version)),
                                       .supported = concat("CUDA ", version_text(oldest_driver), " or newer"),
                                       .fix = "update NVIDIA's driver to 525.60.13 or newer"});
}

[[noreturn]] void fail_forked() {
    throw Failure(
        ErrorKind::runtime,
        {.what = "CUDA was initialised before this process was forked, and the driver does not work in the child",
         .fix = "start workers with the \"spawn\" method, or make the first CUDA call after the fork"});
}

std::string_view advice(Result code) {
    switch (code) {
        case no_device: return "check that `nvidia-smi` lists a GPU and that CUDA_VISIBLE_DEVICES does not hide it";
        case no_jit_compiler:
            return "install libnvidia-ptxjitcompiler.so.1 of the same driver, or build a cubin for this device";
        case jit_disabled: return "unset CUDA_DISABLE_PTX_JIT, or build a cubin for this device";
        case driver_mismatch: return "reboot, so that the kernel module and the driver library are of one version";
        case illegal_address:
        case misaligned_address:
        case launch_failed:
            return "an earlier kernel of this process, perhaps not this one, has failed; set GRISTMILL_SYNC=1 to wait "
                   "after each launch and see which";
        default: return "";
    }
}

[[noreturn]] void fail_initialise(const Api& api, Result code) {
    if (code == not_initialised) fail_forked();
    fail(api, code, "initialising CUDA (cuInit)");
}

void require_complete(const Api& api) {
    if (api.cuLibraryLoadData && api.cuLibraryGetKernel && api.cuLaunchKernelEx && api.cuKernelGetFunction) return;
    fail_old(std::string(api.resolver.path()), api.resolver.driver_version());
}

}  // namespace

Resolver::Resolver() : path_(library_path()), library_(::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) fail_missing(path_);
    const auto get_version = reinterpret_cast<GetVersion>(::dlsym(library_, "cuDriverGetVersion"));
    if (get_version) get_version(&driver_version_);
    if (driver_version_ < oldest_driver) fail_old(path_, driver_version_);
    get_proc_address_ = ::dlsym(library_, "cuGetProcAddress_v2");
    has_status_ = get_proc_address_ != nullptr;
    if (!has_status_) get_proc_address_ = ::dlsym(library_, "cuGetProcAddress");
    if (!get_proc_address_) fail_old(path_, driver_version_);
}

void* Resolver::find(const char* name, int cuda_version) const {
    void* address = nullptr;
    int status = 0;
    const Result code =
        has_status_
            ? reinterpret_cast<GetProcAddressStatus>(get_proc_address_)(name, &address, cuda_version, 0, &status)
            : reinterpret_cast<GetProcAddress>(get_proc_address_)(name, &address, cuda_version, 0);
    return code == success ? address : nullptr;
}

const Api& open_driver() {
    static std::mutex mutex;
    static std::unique_ptr<const Api> api;
    const std::lock_guard lock(mutex);
    if (!api) api = std::make_unique<const Api>();
    return *api;
}

const Api* ready_driver() { return ready.load(std::memory_order_acquire); }

const Api& driver() {
    if (const Api* api = ready_driver()) return *api;
    if (is_initialised_before_fork) fail_forked();
    const Api& api = open_driver();
    require_complete(api);
    if (const Result code = api.cuInit(0); code != success) fail_initialise(api, code);
    static std::once_flag once;
    std::call_once(once, [] { ::pthread_atfork(nullptr, nullptr, forget_in_child); });
    ready.store(&api, std::memory_order_release);
    return api;
}

std::string error_text(const Api& api, Result code) {
    const char* name = nullptr;
    const char* text = nullptr;
    if (api.cuGetErrorName) api.cuGetErrorName(code, &name);
    if (api.cuGetErrorString) api.cuGetErrorString(code, &text);
    return concat(name ? name : "unknown CUDA error", " (", code, ")", text ? ": " : "", text ? text : "");
}

void fail(const Api& api, Result code, std::string_view doing) {
    throw Failure(ErrorKind::runtime,
                  {.what = concat(doing, ": ", error_text(api, code)), .fix = std::string(advice(code))});
}

std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

}  // namespace gristmill::cuda
