#include "tickets.hpp"

#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace gristmill {

namespace {

constexpr std::size_t counter_bytes = 128, chunk_bytes = 64 * 1024;  // each in a cache line of its own
const cuda::Stream per_thread_stream = reinterpret_cast<cuda::Stream>(2);

struct Counters {
    std::map<std::pair<cuda::Stream, std::thread::id>, std::uintptr_t> of_stream;
    std::uintptr_t next = 0, end = 0;
};

std::mutex counters_mutex;
std::map<int, Counters> counters_of_device;

// Zeros, whatever is captured meanwhile: they are written on a stream of their own.
cuda::Result clear(const cuda::Api& api, std::uintptr_t memory) {
    cuda::Stream stream = nullptr;
    constexpr unsigned non_blocking = 1;
    if (const cuda::Result made = api.cuStreamCreate(&stream, non_blocking); made != cuda::success) return made;
    const cuda::Result written = api.cuMemsetD8Async(memory, 0, chunk_bytes, stream);
    const cuda::Result waited = api.cuStreamSynchronize(stream);
    api.cuStreamDestroy(stream);
    return written != cuda::success ? written : waited;
}

cuda::Result make_chunk(const cuda::GpuDevice& device, Counters& counters) {
    const cuda::Api& api = device.api();
    const cuda::ContextScope scope(device);
    const cuda::RelaxedCapture relaxed(api);
    std::uintptr_t memory = 0;
    if (const cuda::Result made = api.cuMemAlloc(&memory, chunk_bytes); made != cuda::success) return made;
    const cuda::Result cleared = clear(api, memory);
    if (cleared == cuda::success)
        counters.next = memory, counters.end = memory + chunk_bytes;
    else
        api.cuMemFree(memory);
    return cleared;
}

cuda::Result take_fresh(const cuda::GpuDevice& device, Counters& counters, std::uintptr_t& counter) {
    const cuda::Result code = counters.next == counters.end ? make_chunk(device, counters) : cuda::success;
    if (code == cuda::success) counter = std::exchange(counters.next, counters.next + counter_bytes);
    return code;
}

}  // namespace

cuda::Result find_counter(const cuda::GpuDevice& device, cuda::Stream stream, std::uintptr_t& counter) {
    const bool is_captured = cuda::is_captured(device, stream);
    const auto thread = stream == per_thread_stream ? std::this_thread::get_id() : std::thread::id();
    const std::lock_guard lock(counters_mutex);
    Counters& counters = counters_of_device[device.ordinal()];
    if (is_captured) return take_fresh(device, counters, counter);
    std::uintptr_t& known = counters.of_stream[{stream, thread}];
    const cuda::Result code = known == 0 ? take_fresh(device, counters, known) : cuda::success;
    counter = known;
    return code;
}

void forget_tickets(int device) {
    const std::lock_guard lock(counters_mutex);
    counters_of_device.erase(device);
}

}  // namespace gristmill
