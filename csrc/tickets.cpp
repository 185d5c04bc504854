#include "tickets.hpp"

#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "error.hpp"

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
std::uintptr_t make_counters(const cuda::GpuDevice& device) {
    const cuda::Api& api = device.api();
    const cuda::ContextScope scope(device);
    const cuda::RelaxedCapture relaxed(api);
    std::uintptr_t memory = 0;
    cuda::Stream stream = nullptr;
    constexpr unsigned non_blocking = 1;
    cuda::check(api, api.cuMemAlloc(&memory, chunk_bytes), "allocating counters for programs that take turns");
    cuda::check(api, api.cuStreamCreate(&stream, non_blocking), "making a stream");
    const cuda::Result written = api.cuMemsetD8Async(memory, 0, chunk_bytes, stream);
    const cuda::Result waited = api.cuStreamSynchronize(stream);
    api.cuStreamDestroy(stream);
    cuda::check(api, written, "clearing counters");
    cuda::check(api, waited, "clearing counters");
    return memory;
}

std::uintptr_t fresh_counter(Counters& counters, const cuda::GpuDevice& device) {
    if (counters.next == counters.end) {
        counters.next = make_counters(device);
        counters.end = counters.next + chunk_bytes;
    }
    return std::exchange(counters.next, counters.next + counter_bytes);
}

bool is_captured_on(const cuda::GpuDevice& device, cuda::Stream stream) {
    const cuda::ContextScope scope(device);
    int status = 0;
    device.api().cuStreamIsCapturing(stream, &status);
    return status != 0;
}

}  // namespace

std::uintptr_t ticket_counter(cuda::GpuDevice& device, cuda::Stream stream) {
    const bool is_captured = is_captured_on(device, stream);
    const auto thread = stream == per_thread_stream ? std::this_thread::get_id() : std::thread::id();
    const std::lock_guard lock(counters_mutex);
    Counters& counters = counters_of_device[device.ordinal()];
    if (is_captured) return fresh_counter(counters, device);
    const auto [place, is_new] = counters.of_stream.try_emplace({stream, thread}, 0);
    if (place->second == 0) place->second = fresh_counter(counters, device);
    return place->second;
}

void forget_tickets(int device) {
    const std::lock_guard lock(counters_mutex);
    counters_of_device.erase(device);
}

}  // namespace gristmill
