// CUDA devices of this process: capability, primary context, and the kernels that are loaded for them.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "driver.hpp"

namespace gristmill {
struct Geometry;
}

namespace gristmill::cuda {

struct Capability {
    int major, minor;
    int sm() const { return 10 * major + minor; }
};

// Facts that need no context.
struct DeviceFacts {
    std::string name;
    Capability capability;
    int sm_count;
    int l2_bytes;
};

int device_count(const Api& api);
DeviceFacts device_facts(const Api& api, int ordinal);

// A kernel's handle, its function in the device's primary context (null: not known), and how the code is launched.
struct LoadedKernel {
    Kernel handle;
    Function function;
    const Geometry* geometry;
};

// Lets blocks have more than the 48 KB of shared memory that every kernel may use unasked.
void allow_shared_memory(const Api& api, LoadedKernel kernel, int ordinal);

class GpuDevice {
public:
    GpuDevice(const Api& api, int ordinal, std::size_t entry_count);

    const Api& api() const { return api_; }
    int ordinal() const { return ordinal_; }
    const DeviceFacts& facts() const { return facts_; }
    Context context() const { return context_.load(std::memory_order_relaxed); }
    void retain_again();  // after somebody reset the primary context
    // By entry; the handle is null until loaded.
    LoadedKernel kernel(std::size_t entry) const {
        const Row& row = kernels_[entry];
        const Kernel handle = row.handle.load(std::memory_order_acquire);
        return {handle, row.function.load(std::memory_order_relaxed), handle ? row.geometry : nullptr};
    }
    void keep_kernel(std::size_t entry, LoadedKernel kernel) {
        keep_function(entry, kernel.function);
        kernels_[entry].geometry = kernel.geometry;
        kernels_[entry].handle.store(kernel.handle, std::memory_order_release);
    }
    void keep_function(std::size_t entry, Function function) {
        kernels_[entry].function.store(function, std::memory_order_relaxed);
    }

private:
    struct Row {
        std::atomic<Kernel> handle{nullptr};
        std::atomic<Function> function{nullptr};
        const Geometry* geometry = nullptr;
    };

    const Api& api_;
    int ordinal_;
    std::atomic<Context> context_{nullptr};
    std::unique_ptr<Row[]> kernels_;
    DeviceFacts facts_;
};

// The kernel's function in the current context, which loads its code there; null if that fails. A context that is reset
// makes new ones.
Function find_function(const Api& api, Kernel kernel);

// The device, made at first use (cuInit and its primary context: 0.2 s). Release the GIL around it while
// `is_device_ready` is false.
GpuDevice& gpu_device(int ordinal);
bool is_device_ready(int ordinal);

// Makes the device's primary context current for a scope, if it is not.
class ContextScope {
public:
    explicit ContextScope(const GpuDevice& device);
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;

private:
    const Api& api_;
    bool is_pushed_;
};

// Whether a graph captures what is put on the stream.
bool is_captured(const GpuDevice& device, Stream stream);

// Lets this thread load code during a stream capture.
class RelaxedCapture {
public:
    explicit RelaxedCapture(const Api& api);
    ~RelaxedCapture();
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

private:
    const Api& api_;
    int mode_ = capture_relaxed;
};

}  // namespace gristmill::cuda
