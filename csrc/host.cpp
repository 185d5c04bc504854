#include "host.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace gristmill {

namespace {

using Clock = std::chrono::steady_clock;

// Waking a pool of threads and waiting for the last takes about this long.
constexpr std::chrono::nanoseconds wake_time{15'000};
constexpr std::int64_t chunks_of_a_thread = 8;

int read_thread_count() {
    if (const char* text = std::getenv("GRISTMILL_NUM_THREADS"))
        if (const int count = std::atoi(text); count > 0) return std::min(count, 1024);
    cpu_set_t cpus;
    if (::sched_getaffinity(0, sizeof cpus, &cpus) == 0) return std::max(1, CPU_COUNT(&cpus));
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// One large grid, shared out in chunks to whoever asks next.
struct Job {
    const HostWork* work;
    std::int64_t end, chunk;
    std::atomic<std::int64_t> next;

    void run() {
        for (;;) {
            const std::int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
            if (begin >= end) return;
            work->run(begin, std::min(begin + chunk, end));
        }
    }
};

// The threads never end: they hold the pool, and sleep until the process exits.
class Pool : public std::enable_shared_from_this<Pool> {
public:
    // Fewer threads than asked for are no error: the caller works too.
    void start(int workers) {
        try {
            for (int i = 0; i < workers; ++i) std::thread([self = shared_from_this()] { self->serve(); }).detach();
        } catch (const std::system_error&) {
        }
    }

    // False if another caller has the pool.
    bool run(Job& job) {
        const std::unique_lock owner(owner_, std::try_to_lock);
        if (!owner) return false;
        announce(&job);
        job.run();
        retire();
        return true;
    }

private:
    void announce(Job* job) {
        {
            const std::lock_guard lock(mutex_);
            job_ = job;
            ++round_;
        }
        wake_.notify_all();
    }

    // The job lives on the caller's stack: wait until no worker looks at it.
    void retire() {
        std::unique_lock lock(mutex_);
        job_ = nullptr;
        idle_.wait(lock, [this] { return busy_ == 0; });
    }

    void serve() {
        std::uint64_t seen = 0;
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return round_ != seen; });
            seen = round_;
            if (!job_) continue;
            Job* job = job_;
            ++busy_;
            lock.unlock();
            job->run();
            lock.lock();
            if (--busy_ == 0) idle_.notify_one();
        }
    }

    std::mutex owner_, mutex_;
    std::condition_variable wake_, idle_;
    Job* job_ = nullptr;
    std::uint64_t round_ = 0;
    int busy_ = 0;
};

// A forked child has the memory of the pool but none of its threads.
std::atomic<int> fork_count{0};

struct PoolSlot {
    std::mutex mutex;
    std::shared_ptr<Pool> pool;
    int forks = 0;
};

PoolSlot& slot() {
    static PoolSlot instance;
    return instance;
}

void forget_pool() {
    ++fork_count;
    slot().mutex.unlock();
}

std::shared_ptr<Pool> current_pool() {
    static std::once_flag once;
    std::call_once(once,
                   [] { ::pthread_atfork([] { slot().mutex.lock(); }, [] { slot().mutex.unlock(); }, forget_pool); });
    const std::lock_guard lock(slot().mutex);
    if (slot().pool && slot().forks == fork_count) return slot().pool;
    slot().pool = std::make_shared<Pool>();
    slot().forks = fork_count;
    slot().pool->start(host_thread_count() - 1);
    return slot().pool;
}

}  // namespace

int host_thread_count() {
    static const int count = read_thread_count();
    return count;
}

std::int64_t run_small(const HostWork& work) {
    const std::int64_t programs = work.programs();
    const auto start = Clock::now();
    work.run(0, 1);
    if (programs == 1) return 1;
    if ((Clock::now() - start) * (programs - 1) > wake_time) return 1;
    work.run(1, programs);
    return programs;
}

void run_large(const HostWork& work, std::int64_t begin) {
    const std::int64_t rest = work.programs() - begin;
    const std::int64_t threads = host_thread_count();
    if (rest <= 0) return;
    Job job{&work, work.programs(), std::max<std::int64_t>(1, rest / (threads * chunks_of_a_thread)), begin};
    if (threads == 1 || rest == 1 || !current_pool()->run(job)) work.run(begin, work.programs());
}

}  // namespace gristmill
