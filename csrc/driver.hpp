// The CUDA driver by dlopen at first use: our own declarations, no header or library of CUDA, nothing at import.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "error.hpp"

namespace gristmill::cuda {

using Result = int;
using DeviceId = int;
using Context = struct ContextOpaque*;
using Stream = struct StreamOpaque*;
using Event = struct EventOpaque*;
using Library = struct LibraryOpaque*;
using Kernel = struct KernelOpaque*;      // CUkernel: valid in every context
using Function = struct FunctionOpaque*;  // CUfunction: of one context; launches by it are 60 to 120 ns cheaper (H200)
using Module = struct ModuleOpaque*;
using Pool = struct PoolOpaque*;

struct LaunchAttribute {
    unsigned id, padding;
    int value;
    char rest[60];
};

// CUtensorMap: the driver writes it, kernels take it by value.
struct alignas(64) EncodedMap {
    std::byte bytes[128];
};

// CUmemPoolProps: memory of a device.
struct PoolProperties {
    int allocation = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED
    int handles = 0;
    int location = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
    int device;
    void* security = nullptr;
    std::size_t most_bytes = 0;
    unsigned char rest[56] = {};
};

// CUDA_MEMCPY2D: rows of bytes, from device memory to device memory.
struct Copy2d {
    struct Side {
        std::size_t column = 0, row = 0;
        int kind = 2;  // CU_MEMORYTYPE_DEVICE
        const void* host = nullptr;
        std::uintptr_t device;
        void* array = nullptr;
        std::size_t pitch;
    };
    Side from, to;
    std::size_t width, height;
};

struct LaunchConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned dynamic_shared_bytes;
    Stream stream;
    const LaunchAttribute* attributes;
    unsigned attribute_count;
};

inline constexpr Result success = 0, invalid_value = 1, not_initialised = 3, no_device = 100, invalid_image = 200,
                        no_binary_for_gpu = 209, invalid_ptx = 218, no_jit_compiler = 221, unsupported_ptx = 222,
                        jit_disabled = 223, invalid_handle = 400, not_found = 500, illegal_address = 700,
                        context_is_destroyed = 709, misaligned_address = 716, launch_failed = 719,
                        driver_mismatch = 803;

inline constexpr int attribute_sm_count = 16, attribute_l2_bytes = 38, attribute_major = 75, attribute_minor = 76;
inline constexpr int pool_release_threshold = 4;
inline constexpr int pointer_device_ordinal = 9;
inline constexpr int kernel_attribute_dynamic_shared_bytes = 8;
inline constexpr int library_binary_is_preserved = 1;
inline constexpr int capture_relaxed = 2;
inline constexpr int no_interleave = 0, l2_promotion_128_bytes = 2, fill_zeros = 0;

// libcuda.so.1, or the path in GRISTMILL_LIBCUDA, kept open for the life of the process.
class Resolver {
public:
    Resolver();
    void* find(const char* name, int cuda_version) const;  // null: this driver lacks it
    std::string_view path() const { return path_; }
    int driver_version() const { return driver_version_; }  // 12040 for 12.4

private:
    std::string path_;
    void* library_;
    int driver_version_ = 0;
    void* get_proc_address_ = nullptr;
    bool has_status_ = false;
};

// One driver function; false where the driver lacks it.
template <class... Parameters>
class Call {
public:
    Call(const Resolver& resolver, const char* name, int cuda_version)
        : function_(reinterpret_cast<Result (*)(Parameters...)>(resolver.find(name, cuda_version))), name_(name) {}
    Result operator()(Parameters... arguments) const { return function_(arguments...); }
    explicit operator bool() const { return function_ != nullptr; }
    const char* name() const { return name_; }

private:
    Result (*function_)(Parameters...);
    const char* name_;
};

// The number after the name is the first CUDA version that has this form of the function.
struct Api {
    Resolver resolver;
    Call<unsigned> cuInit{resolver, "cuInit", 2000};
    Call<Result, const char**> cuGetErrorName{resolver, "cuGetErrorName", 6000};
    Call<Result, const char**> cuGetErrorString{resolver, "cuGetErrorString", 6000};
    Call<int*> cuDeviceGetCount{resolver, "cuDeviceGetCount", 2000};
    Call<DeviceId*, int> cuDeviceGet{resolver, "cuDeviceGet", 2000};
    Call<char*, int, DeviceId> cuDeviceGetName{resolver, "cuDeviceGetName", 2000};
    Call<int*, int, DeviceId> cuDeviceGetAttribute{resolver, "cuDeviceGetAttribute", 2000};
    Call<Context*, DeviceId> cuDevicePrimaryCtxRetain{resolver, "cuDevicePrimaryCtxRetain", 7000};
    Call<Context*> cuCtxGetCurrent{resolver, "cuCtxGetCurrent", 4000};
    Call<DeviceId*> cuCtxGetDevice{resolver, "cuCtxGetDevice", 2000};
    Call<Context> cuCtxPushCurrent{resolver, "cuCtxPushCurrent", 4000};
    Call<Context*> cuCtxPopCurrent{resolver, "cuCtxPopCurrent", 4000};
    Call<Library*, const void*, int*, void**, unsigned, int*, void**, unsigned> cuLibraryLoadData{
        resolver, "cuLibraryLoadData", 12000};
    Call<Kernel*, Library, const char*> cuLibraryGetKernel{resolver, "cuLibraryGetKernel", 12000};
    Call<int, int, Kernel, DeviceId> cuKernelSetAttribute{resolver, "cuKernelSetAttribute", 12000};
    Call<Function*, Kernel> cuKernelGetFunction{resolver, "cuKernelGetFunction", 12000};
    Call<Module*, const void*, unsigned, int*, void**> cuModuleLoadDataEx{resolver, "cuModuleLoadDataEx", 2010};
    Call<const LaunchConfig*, Function, void**, void**> cuLaunchKernelEx{resolver, "cuLaunchKernelEx", 11060};
    Call<EncodedMap*, int, unsigned, const void*, const std::uint64_t*, const std::uint64_t*, const unsigned*,
         const unsigned*, int, int, int, int>
        cuTensorMapEncodeTiled{resolver, "cuTensorMapEncodeTiled", 12000};
    Call<int*> cuThreadExchangeStreamCaptureMode{resolver, "cuThreadExchangeStreamCaptureMode", 10010};
    Call<Stream, int*> cuStreamIsCapturing{resolver, "cuStreamIsCapturing", 10000};
    Call<Stream> cuStreamSynchronize{resolver, "cuStreamSynchronize", 2000};
    Call<Pool*, const PoolProperties*> cuMemPoolCreate{resolver, "cuMemPoolCreate", 11020};
    Call<Pool, int, void*> cuMemPoolSetAttribute{resolver, "cuMemPoolSetAttribute", 11020};
    Call<std::uintptr_t*, std::size_t, Pool, Stream> cuMemAllocFromPoolAsync{resolver, "cuMemAllocFromPoolAsync", 11020};
    Call<std::uintptr_t, Stream> cuMemFreeAsync{resolver, "cuMemFreeAsync", 11020};
    Call<const Copy2d*, Stream> cuMemcpy2DAsync{resolver, "cuMemcpy2DAsync", 3020};
    Call<void*, int, std::uintptr_t> cuPointerGetAttribute{resolver, "cuPointerGetAttribute", 4000};
    Call<Event*, unsigned> cuEventCreate{resolver, "cuEventCreate", 2000};
    Call<Event, Stream> cuEventRecord{resolver, "cuEventRecord", 2000};
    Call<Stream, Event, unsigned> cuStreamWaitEvent{resolver, "cuStreamWaitEvent", 3020};
    Call<Event> cuEventDestroy{resolver, "cuEventDestroy", 4000};
    Call<Event> cuEventSynchronize{resolver, "cuEventSynchronize", 2000};
    Call<float*, Event, Event> cuEventElapsedTime{resolver, "cuEventElapsedTime", 2000};
    Call<Stream*, unsigned> cuStreamCreate{resolver, "cuStreamCreate", 2000};
    Call<Stream> cuStreamDestroy{resolver, "cuStreamDestroy", 4000};
    Call<std::uintptr_t*, std::size_t> cuMemAlloc{resolver, "cuMemAlloc", 3020};
    Call<std::uintptr_t> cuMemFree{resolver, "cuMemFree", 3020};
    Call<std::uintptr_t, unsigned char, std::size_t, Stream> cuMemsetD8Async{resolver, "cuMemsetD8Async", 3020};
    Call<std::uintptr_t, std::uintptr_t, std::size_t, Stream> cuMemcpyDtoDAsync{resolver, "cuMemcpyDtoDAsync", 3020};
    Call<void*, std::uintptr_t, std::size_t> cuMemcpyDtoH{resolver, "cuMemcpyDtoH", 3020};
};

inline constexpr int oldest_driver = 12000;  // cuLibraryLoadData

// The driver, opened but not initialised (no cuInit): for versions. Raises Failure if there is none.
const Api& open_driver();

// The driver, initialised at the first call. Raises Failure: no driver, too old, no GPU, or forked after cuInit.
const Api& driver();

// The same once `driver()` has succeeded in this process; null before it, and in a forked child.
const Api* ready_driver();

// "CUDA_ERROR_INVALID_VALUE (1): invalid argument"
std::string error_text(const Api& api, Result code);

// Failure that says what we were doing, the driver's name for the code, and what to do.
[[noreturn]] void fail(const Api& api, Result code, std::string_view doing);
inline void check(const Api& api, Result code, std::string_view doing) {
    if (code != success) fail(api, code, doing);
}

std::string version_text(int version);  // "12.4"

}  // namespace gristmill::cuda
