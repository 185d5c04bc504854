// A CUDA driver that only records: tests set devices, versions and failures, and read back loads and launches.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "errors.hpp"
#include "maps.hpp"
#include "memory.hpp"
#include "streams.hpp"

namespace {

struct Launch {
    unsigned grid[3];
    unsigned block[3];
    unsigned dynamic_shared_bytes;
    void* stream;
    void* attributes;
    unsigned attribute_count;
};

struct FakeKernel {
    std::string name;
};

// A kernel's function in a context, until that is reset.
struct FakeFunction {
    FakeKernel* kernel;
    int device, resets;
};

struct FakeLibrary {
    std::string head;
};

struct State {
    std::mutex mutex;
    int device_count = 1;
    int major = 9, minor = 0;
    int sm_count = 132;
    int driver_version = 12080;
    bool is_logging = true;
    std::string log;
    std::map<std::string, int> failures;                      // function -> code
    std::map<std::string, int> failures_left;                 // function -> times; absent: always
    std::map<std::string, std::vector<int>> parameter_sizes;  // entry -> bytes of each parameter
    std::set<std::string> hidden;                             // functions that this driver lacks
    int context_of_device[64] = {};
    std::vector<void*> contexts;  // stack of the (one) thread under test
    int resets[64] = {};          // of each device's context
    bool is_destroyed[64] = {};   // reset, and not retained since
    std::deque<FakeFunction> functions;
    std::map<std::string, FakeKernel> kernels;
    std::vector<FakeLibrary*> libraries;
    int capture_mode = 0;
    FakeStreams streams;
    int pointer_device = 0;
    FakeMemory memory;
    std::map<std::string, double> microseconds;  // entry -> what a launch takes
    double now_us = 0;                           // of all launches so far
    std::deque<double> events;                   // when each was recorded
};

State& state() {
    static State instance;
    return instance;
}

void record(const std::string& line) {
    if (state().is_logging) state().log += line + "\n";
}

int failure(const char* function) {
    State& s = state();
    const auto found = s.failures.find(function);
    if (found == s.failures.end()) return 0;
    const int code = found->second;
    const auto left = s.failures_left.find(function);
    if (left != s.failures_left.end() && --left->second <= 0) s.failures.erase(found);
    return code;
}

std::string hex(const void* data, std::size_t bytes) {
    static const char* digits = "0123456789abcdef";
    std::string text;
    for (std::size_t i = 0; i < bytes; ++i) {
        const auto byte = static_cast<const unsigned char*>(data)[i];
        text.append(1, digits[byte >> 4]).append(1, digits[byte & 15]);
    }
    return text;
}

std::string parameters_text(const std::string& entry, void** parameters) {
    std::string text;
    const auto sizes = state().parameter_sizes.find(entry);
    if (sizes == state().parameter_sizes.end()) return text;
    for (std::size_t i = 0; i < sizes->second.size(); ++i)
        text.append(i ? "," : "").append(hex(parameters[i], static_cast<std::size_t>(sizes->second[i])));
    return text;
}

int initialise(unsigned) {
    record("init");
    return failure("cuInit");
}

int device_get_count(int* count) {
    *count = state().device_count;
    return failure("cuDeviceGetCount");
}

int device_get(int* device, int ordinal) {
    *device = ordinal;
    return failure("cuDeviceGet");
}

int device_get_name(char* name, int bytes, int) {
    std::strncpy(name, "Stub GPU", static_cast<std::size_t>(bytes));
    return 0;
}

int device_get_attribute(int* value, int attribute, int) {
    *value = attribute == 75 ? state().major : attribute == 76 ? state().minor : attribute == 16 ? state().sm_count : 0;
    return 0;
}

int primary_context_retain(void** context, int device) {
    *context = &state().context_of_device[device];
    state().is_destroyed[device] = false;
    record("retain " + std::to_string(device));
    return failure("cuDevicePrimaryCtxRetain");
}

int context_get_current(void** context) {
    *context = state().contexts.empty() ? nullptr : state().contexts.back();
    return 0;
}

int context_get_device(int* device) {
    if (state().contexts.empty()) return 201;
    *device = static_cast<int>(static_cast<int*>(state().contexts.back()) - state().context_of_device);
    return 0;
}

int context_push(void* context) {
    state().contexts.push_back(context);
    if (state().is_logging) record("push " + std::to_string(static_cast<int*>(context) - state().context_of_device));
    return failure("cuCtxPushCurrent");
}

int context_pop(void** context) {
    *context = state().contexts.back();
    state().contexts.pop_back();
    record("pop");
    return 0;
}

int library_load(FakeLibrary** library, const char* data, int*, void**, unsigned, int* options, void**,
                 unsigned option_count) {
    const std::lock_guard lock(state().mutex);
    std::string head(data, 40);
    for (char& letter : head)
        if (letter < ' ') letter = ' ';
    record(std::string("load ").append(head) + " options=" + std::to_string(option_count ? options[0] : -1) +
           " capture=" + std::to_string(state().capture_mode));
    if (const int code = failure("cuLibraryLoadData")) return code;
    state().libraries.push_back(*library = new FakeLibrary{head});
    return 0;
}

int library_get_kernel(FakeKernel** kernel, FakeLibrary*, const char* name) {
    record(std::string("get ") + name);
    if (const int code = failure("cuLibraryGetKernel")) return code;
    FakeKernel& fake = state().kernels[name];
    fake.name = name;
    *kernel = &fake;
    return 0;
}

int kernel_set_attribute(int attribute, int value, FakeKernel* kernel, int device) {
    record("attribute " + std::to_string(attribute) + "=" + std::to_string(value) + " of " + kernel->name + " on " +
           std::to_string(device));
    return failure("cuKernelSetAttribute");
}

int current_device() {
    const State& s = state();
    return s.contexts.empty() ? -1 : static_cast<int>(static_cast<int*>(s.contexts.back()) - s.context_of_device);
}

int kernel_get_function(FakeFunction** function, FakeKernel* kernel) {
    State& s = state();
    record("function " + kernel->name);
    const int device = current_device();
    if (device < 0) return 201;
    if (const int code = failure("cuKernelGetFunction")) return code;
    for (FakeFunction& known : s.functions)
        if (known.kernel == kernel && known.device == device && known.resets == s.resets[device]) {
            *function = &known;
            return 0;
        }
    *function = &s.functions.emplace_back(FakeFunction{kernel, device, s.resets[device]});
    return 0;
}

FakeFunction* as_function(void* handle) {
    for (FakeFunction& known : state().functions)
        if (&known == handle) return &known;
    return nullptr;
}

int module_load(void**, const void*, unsigned count, int* options, void** values) {
    for (unsigned i = 0; i < count; ++i)
        if (options[i] == 5)
            std::strcpy(static_cast<char*>(values[i]), "ptxas: line 1; fatal: the stub does not like this");
    record("module");
    return 218;
}

int encode_map(FakeMap* map, int dtype, unsigned rank, std::uint64_t address, const std::uint64_t* extents,
               const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* element_steps,
               int interleave, int swizzle, int l2_promotion, int fill) {
    record("map");
    if (const int code = failure("cuTensorMapEncodeTiled")) return code;
    if (current_device() < 0) return 201;
    if (state().is_destroyed[current_device()]) return 709;
    if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || dtype < 0 || dtype > 9 || rank < 1 || rank > most_axes ||
        interleave != 0 || swizzle < 0 || swizzle > 3)
        return 1;
    if (!is_array(rank, address, extents, strides) || !is_box(dtype, rank, box, element_steps, swizzle)) return 1;
    *map = {{'a', ' ', 'm', 'a', 'p', ' ', 'o', 'f'}, address, {}, {}, static_cast<unsigned>(dtype), rank, {},
            static_cast<unsigned>(swizzle), static_cast<unsigned>(l2_promotion), static_cast<unsigned>(fill)};
    std::copy_n(extents, rank, map->extents);
    std::copy_n(strides, rank - 1, map->strides);
    std::copy_n(box, rank, map->box);
    return 0;
}

// By a function, or by a kernel that is taken for one.
int launch(const Launch* config, void* handle, void** parameters, void** extra) {
    if (const int code = failure("cuLaunchKernelEx")) return code;
    State& s = state();
    const int context = current_device();
    const FakeFunction* function = as_function(handle);
    const FakeKernel* kernel = function ? function->kernel : static_cast<FakeKernel*>(handle);
    if (context >= 0 && s.is_destroyed[context]) return 709;
    if (function && (function->device != context || function->resets != s.resets[context])) return 400;
    if (!s.is_logging) return 0;
    std::ostringstream line;
    line << "launch " << kernel->name << " grid=" << config->grid[0] << "," << config->grid[1] << "," << config->grid[2]
         << " block=" << config->block[0] << "," << config->block[1] << "," << config->block[2]
         << " shared=" << config->dynamic_shared_bytes << " stream=" << config->stream << " context=" << context
         << " by=" << (function ? "function" : "kernel") << " early=" << config->attribute_count << " extra=" << extra
         << " parameters=" << parameters_text(kernel->name, parameters);
    record(line.str());
    const auto taken = s.microseconds.find(kernel->name);
    s.now_us += taken == s.microseconds.end() ? 1 : taken->second;
    return 0;
}

int exchange_capture_mode(int* mode) {
    std::swap(*mode, state().capture_mode);
    return 0;
}

int stream_is_capturing(void* stream, int* is_capturing) {
    *is_capturing = state().streams.is_captured(stream);
    return 0;
}

int stream_synchronize(void* stream) {
    record("synchronise");
    return state().streams.is_captured(stream) ? 900 : failure("cuStreamSynchronize");
}

int stream_create(void** stream, unsigned) {
    const int code = current_device() < 0 ? 201 : failure("cuStreamCreate");
    if (!code) *stream = state().streams.create();
    return code;
}

int stream_destroy(void* stream) { return state().streams.destroy(stream); }

int event_create(double** event, unsigned) {
    *event = &state().events.emplace_back(0);
    return 0;
}

int event_record(double* event, void* stream) {
    *event = state().now_us;
    std::ostringstream line;
    line << "record " << stream;
    record(line.str());
    return 0;
}

int stream_wait_event(void* stream, void*, unsigned) {
    std::ostringstream line;
    line << "wait " << stream;
    record(line.str());
    return 0;
}

int event_destroy(void*) { return 0; }
int event_synchronize(void*) { return 0; }

int event_elapsed(float* milliseconds, const double* begin, const double* end) {
    *milliseconds = static_cast<float>((*end - *begin) / 1000);
    return 0;
}

int memory_allocate(std::uintptr_t* address, std::size_t bytes) {
    constexpr int relaxed = 2;
    if (current_device() >= 0 && state().is_destroyed[current_device()]) return 709;
    const int code = state().streams.is_capturing() && state().capture_mode != relaxed ? 900 : failure("cuMemAlloc");
    if (!code) *address = state().memory.allocate(bytes);
    return code;
}

int memory_free(std::uintptr_t address) { return state().memory.free(address); }

int memory_set(std::uintptr_t address, unsigned char value, std::size_t bytes, void* stream) {
    return state().streams.is_captured(stream) ? 0 : state().memory.set(address, value, bytes);
}

int memory_copy(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, void*) {
    return state().memory.copy(to, from, bytes);
}

int memory_read(void* to, std::uintptr_t from, std::size_t bytes) { return state().memory.read(to, from, bytes); }

int pool_create(void** pool, const int* properties) {
    record("pool device=" + std::to_string(properties[3]));
    *pool = &state();
    return failure("cuMemPoolCreate");
}

int pool_set_attribute(void*, int, void*) { return failure("cuMemPoolSetAttribute"); }

// Memory that nobody touches.
int allocate(std::uintptr_t* address, std::size_t bytes, void*, void* stream) {
    if (const int code = failure("cuMemAllocFromPoolAsync")) return code;
    *address = std::uintptr_t{7} << 40;
    std::ostringstream line;
    line << "allocate " << bytes << " stream=" << stream;
    record(line.str());
    return current_device() < 0 ? 201 : 0;
}

int release(std::uintptr_t address, void* stream) {
    std::ostringstream line;
    line << "free " << std::hex << address << " stream=" << stream;
    record(line.str());
    return 0;
}

int copy_2d(const Copy2d* copy, void* stream) {
    if (const int code = failure("cuMemcpy2DAsync")) return code;
    if (copy->from.kind != 2 || copy->to.kind != 2 || copy->width > copy->from.pitch || copy->width > copy->to.pitch)
        return 1;
    std::ostringstream line;
    line << "copy " << std::hex << copy->from.device << "/" << std::dec << copy->from.pitch << " to " << std::hex
         << copy->to.device << "/" << std::dec << copy->to.pitch << " " << copy->height << "x" << copy->width
         << " stream=" << stream;
    record(line.str());
    return 0;
}

int pointer_get_attribute(void* out, int, std::uintptr_t) {
    *static_cast<int*>(out) = state().pointer_device;
    return failure("cuPointerGetAttribute");
}

struct Symbol {
    const char* name;
    void* address;
    int version;
};

template <class Function>
void* address(Function* function) {
    return reinterpret_cast<void*>(function);
}

const Symbol symbols[] = {
    {"cuInit", address(initialise), 2000},
    {"cuGetErrorName", address(get_error_name), 6000},
    {"cuGetErrorString", address(get_error_string), 6000},
    {"cuDeviceGetCount", address(device_get_count), 2000},
    {"cuDeviceGet", address(device_get), 2000},
    {"cuDeviceGetName", address(device_get_name), 2000},
    {"cuDeviceGetAttribute", address(device_get_attribute), 2000},
    {"cuDevicePrimaryCtxRetain", address(primary_context_retain), 7000},
    {"cuCtxGetCurrent", address(context_get_current), 4000},
    {"cuCtxGetDevice", address(context_get_device), 2000},
    {"cuCtxPushCurrent", address(context_push), 4000},
    {"cuCtxPopCurrent", address(context_pop), 4000},
    {"cuLibraryLoadData", address(library_load), 12000},
    {"cuLibraryGetKernel", address(library_get_kernel), 12000},
    {"cuKernelSetAttribute", address(kernel_set_attribute), 12000},
    {"cuKernelGetFunction", address(kernel_get_function), 12000},
    {"cuModuleLoadDataEx", address(module_load), 2010},
    {"cuTensorMapEncodeTiled", address(encode_map), 12000},
    {"cuLaunchKernelEx", address(launch), 11060},
    {"cuThreadExchangeStreamCaptureMode", address(exchange_capture_mode), 10010},
    {"cuStreamIsCapturing", address(stream_is_capturing), 10000},
    {"cuStreamSynchronize", address(stream_synchronize), 2000},
    {"cuStreamCreate", address(stream_create), 2000},
    {"cuStreamDestroy", address(stream_destroy), 4000},
    {"cuMemPoolCreate", address(pool_create), 11020},
    {"cuMemPoolSetAttribute", address(pool_set_attribute), 11020},
    {"cuMemAllocFromPoolAsync", address(allocate), 11020},
    {"cuMemFreeAsync", address(release), 11020},
    {"cuMemcpy2DAsync", address(copy_2d), 3020},
    {"cuEventCreate", address(event_create), 2000},
    {"cuEventRecord", address(event_record), 2000},
    {"cuStreamWaitEvent", address(stream_wait_event), 3020},
    {"cuEventDestroy", address(event_destroy), 4000},
    {"cuEventSynchronize", address(event_synchronize), 2000},
    {"cuEventElapsedTime", address(event_elapsed), 2000},
    {"cuMemAlloc", address(memory_allocate), 3020},
    {"cuMemFree", address(memory_free), 3020},
    {"cuMemsetD8Async", address(memory_set), 3020},
    {"cuMemcpyDtoDAsync", address(memory_copy), 3020},
    {"cuMemcpyDtoH", address(memory_read), 3020},
    {"cuPointerGetAttribute", address(pointer_get_attribute), 4000},
};

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
    *version = state().driver_version;
    return 0;
}

int cuGetProcAddress_v2(const char* name, void** out, int version, std::uint64_t, int*) {
    *out = nullptr;
    if (version > state().driver_version) return 1;
    if (state().hidden.contains(name)) return 500;
    for (const Symbol& symbol : symbols)
        if (!std::strcmp(symbol.name, name) && symbol.version <= version) *out = symbol.address;
    return *out ? 0 : 500;
}

void stub_set_device(int count, int major, int minor) {
    state().device_count = count;
    state().major = major;
    state().minor = minor;
}

void stub_set_driver_version(int version) { state().driver_version = version; }
void stub_set_pointer_device(int device) { state().pointer_device = device; }
void stub_set_capturing(int is_capturing) { state().streams.set_capturing(is_capturing != 0); }
void stub_set_logging(int is_logging) { state().is_logging = is_logging != 0; }

// `times` 0: at every call until it is cleared with code 0.
void stub_fail(const char* function, int code, int times) {
    state().failures.erase(function);
    state().failures_left.erase(function);
    if (code) state().failures[function] = code;
    if (code && times) state().failures_left[function] = times;
}

// Before the driver is opened.
void stub_hide(const char* function) { state().hidden.insert(function); }

// `sizes`: the bytes of each parameter of an entry, by which its arguments are read at a launch.
void stub_set_parameters(const char* entry, const int* sizes, int count) {
    state().parameter_sizes[entry] = std::vector<int>(sizes, sizes + count);
}

// What launches of an entry take by the events' clock; others take 1.
void stub_set_microseconds(const char* entry, double microseconds) { state().microseconds[entry] = microseconds; }

// How many allocations there are, and streams that were made here.
int stub_allocations() { return state().memory.count(); }
int stub_streams() { return state().streams.count(); }

void stub_push_context(int device) { state().contexts.push_back(&state().context_of_device[device]); }
// Where somebody makes the context again, its handle is the same.
void stub_reset_context(int device, int is_made_again) {
    ++state().resets[device];
    state().is_destroyed[device] = !is_made_again;
}
void stub_clear_contexts() { state().contexts.clear(); }

const char* stub_log() { return state().log.c_str(); }
void stub_clear_log() { state().log.clear(); }
}
