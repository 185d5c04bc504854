#include "device.hpp"

#include <array>

#include "tables.hpp"

namespace gristmill::cuda {

namespace {

constexpr int most_devices = 64;
std::array<std::atomic<GpuDevice*>, most_devices> devices;

int attribute(const Api& api, int which, DeviceId id) {
    int value = 0;
    check(api, api.cuDeviceGetAttribute(&value, which, id), "reading a device attribute");
    return value;
}

std::size_t total_entries() {
    std::size_t count = 0;
    for (const auto& kernel : tables.kernels) count += 3 * kernel.specialisations.size();
    return count;
}

void require_ordinal(const Api& api, int ordinal) {
    const int count = device_count(api);
    if (ordinal >= 0 && ordinal < count && ordinal < most_devices) return;
    throw Failure(ErrorKind::value, {.what = concat("no CUDA device ", ordinal),
                                     .found = concat(count, " device(s)"),
                                     .fix = "pass a device from 0 on"});
}

}  // namespace

int device_count(const Api& api) {
    int count = 0;
    check(api, api.cuDeviceGetCount(&count), "counting CUDA devices");
    return count;
}

DeviceFacts device_facts(const Api& api, int ordinal) {
    require_ordinal(api, ordinal);
    DeviceId id = 0;
    check(api, api.cuDeviceGet(&id, ordinal), "opening a CUDA device");
    std::array<char, 256> name{};
    check(api, api.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, id), "reading a device's name");
    return {name.data(),
            {attribute(api, attribute_major, id), attribute(api, attribute_minor, id)},
            attribute(api, attribute_sm_count, id),
            attribute(api, attribute_l2_bytes, id)};
}

void allow_shared_memory(const Api& api, LoadedKernel kernel, int ordinal) {
    constexpr unsigned always_allowed = 48 * 1024;
    if (kernel.geometry->shared_bytes <= always_allowed) return;
    DeviceId device = 0;
    check(api, api.cuDeviceGet(&device, ordinal), concat("finding cuda:", ordinal));
    const int bytes = static_cast<int>(kernel.geometry->shared_bytes);
    check(api, api.cuKernelSetAttribute(kernel_attribute_dynamic_shared_bytes, bytes, kernel.handle, device),
          concat("allowing blocks ", bytes, " bytes of shared memory"));
}

GpuDevice::GpuDevice(const Api& api, int ordinal, std::size_t entry_count)
    : api_(api),
      ordinal_(ordinal),
      kernels_(std::make_unique<Row[]>(entry_count)),
      facts_(device_facts(api, ordinal)) {
    retain_again();
}

void GpuDevice::retain_again() {
    DeviceId id = 0;
    Context context = nullptr;
    check(api_, api_.cuDeviceGet(&id, ordinal_), "opening a CUDA device");
    check(api_, api_.cuDevicePrimaryCtxRetain(&context, id), concat("making the context of cuda:", ordinal_));
    context_.store(context, std::memory_order_relaxed);
}

Function find_function(const Api& api, Kernel kernel) {
    Function function = nullptr;
    return api.cuKernelGetFunction(&function, kernel) == success ? function : nullptr;
}

bool is_device_ready(int ordinal) {
    if (!ready_driver() || ordinal < 0 || ordinal >= most_devices) return false;
    return devices[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire) != nullptr;
}

GpuDevice& gpu_device(int ordinal) {
    const Api& api = driver();
    if (is_device_ready(ordinal)) return *devices[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
    static std::mutex mutex;
    static std::array<std::unique_ptr<GpuDevice>, most_devices> owners;
    const std::lock_guard lock(mutex);
    require_ordinal(api, ordinal);
    auto& owner = owners[static_cast<std::size_t>(ordinal)];
    if (!owner) owner = std::make_unique<GpuDevice>(api, ordinal, total_entries());
    devices[static_cast<std::size_t>(ordinal)].store(owner.get(), std::memory_order_release);
    return *owner;
}

ContextScope::ContextScope(const GpuDevice& device) : api_(device.api()), is_pushed_(false) {
    Context current = nullptr;
    api_.cuCtxGetCurrent(&current);
    if (current == device.context()) return;
    check(api_, api_.cuCtxPushCurrent(device.context()),
          concat("making the context of cuda:", device.ordinal(), " current"));
    is_pushed_ = true;
}

ContextScope::~ContextScope() {
    Context popped = nullptr;
    if (is_pushed_) api_.cuCtxPopCurrent(&popped);
}

bool is_captured(const GpuDevice& device, Stream stream) {
    const ContextScope scope(device);
    int status = 0;
    device.api().cuStreamIsCapturing(stream, &status);
    return status != 0;
}

RelaxedCapture::RelaxedCapture(const Api& api) : api_(api) { api_.cuThreadExchangeStreamCaptureMode(&mode_); }

RelaxedCapture::~RelaxedCapture() { api_.cuThreadExchangeStreamCaptureMode(&mode_); }

}  // namespace gristmill::cuda
