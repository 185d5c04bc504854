#include "trial.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>

#include "dispatcher.hpp"
#include "dtype.hpp"
#include "host.hpp"
#include "report.hpp"
#include "scalars.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

constexpr unsigned event_with_timing = 0;
constexpr std::size_t least_cache_bytes = std::size_t{4} << 20, most_cpu_cache_bytes = std::size_t{64} << 20;

// Writing twice as much leaves nothing else in it.
std::size_t cache_bytes(const Workplace& place) {
    if (place.device)
        return std::max(least_cache_bytes, static_cast<std::size_t>(std::max(place.device->facts().l2_bytes, 0)));
    const long last_level = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
    return std::clamp(static_cast<std::size_t>(std::max(last_level, 0L)), least_cache_bytes, most_cpu_cache_bytes);
}

void require_key(const Kernel& kernel) {
    if (!kernel.key.empty()) return;
    throw Failure(
        ErrorKind::value,
        {.what = concat(kernel.name, ": cannot be tuned: it is not declared what its calls are told apart by"),
         .fix = "write `@gm.kernel(configs=[...], key=[\"n\"], ...)`, then rebuild"});
}

[[noreturn]] void fail_empty(const Kernel& kernel) {
    throw Failure(ErrorKind::value, {.what = concat(kernel.name, ": there is nothing to tune: the arrays are empty"),
                                     .fix = "pass arrays of the sizes that you will call it with"});
}

void require_own_grid(Bound& bound) {
    if (!bound.grid() || bound.grid() == Py_None) return;
    throw Failure(ErrorKind::value, {.what = concat(bound.index().kernel.name, ": cannot be tuned with a given grid"),
                                     .fix = "leave `grid=` out: each configuration has its own"});
}

Workplace workplace_of(Bound& bound) {
    if (bound.arguments().device.kind == DeviceKind::cpu) return {nullptr, nullptr};
    cuda::GpuDevice& device = ready_device(bound.arguments().device.ordinal);
    const Workplace place{&device, bound.stream()};
    const cuda::ContextScope scope(device);
    if (cuda::is_captured(device, place.stream))
        throw Failure(ErrorKind::runtime, {.what = concat(bound.index().kernel.name, ": cannot be tuned in a capture"),
                                           .fix = "tune before the stream is captured"});
    await_producers(bound, device, place.stream);
    return place;
}

class Event {
public:
    explicit Event(const cuda::Api& api) : api_(api) {
        cuda::check(api, api.cuEventCreate(&event_, event_with_timing), "making an event");
    }
    ~Event() { api_.cuEventDestroy(event_); }
    Event(const Event&) = delete;

    void record(cuda::Stream stream) const {
        cuda::check(api_, api_.cuEventRecord(event_, stream), "recording an event");
    }
    // Waits for both.
    double microseconds_to(const Event& end) const {
        float milliseconds = 0;
        cuda::check(api_, api_.cuEventSynchronize(end.event_), "waiting for what is tuned");
        cuda::check(api_, api_.cuEventElapsedTime(&milliseconds, event_, end.event_), "timing a call");
        return 1000.0 * static_cast<double>(milliseconds);
    }

private:
    const cuda::Api& api_;
    cuda::Event event_ = nullptr;
};

}  // namespace

// What a candidate needs to be run; `plan` points into itself.
struct Trial::Ready {
    EntryPlace place;
    Plan plan;
    cuda::LoadedKernel code;
    std::optional<DeviceCall> call;
};

Trial::Trial(const Dispatcher& dispatcher, nb::args arguments, nb::kwargs named)
    : positional_(arguments),
      named_(named),
      packed_(arguments.ptr(), named.ptr()),
      kernel_(dispatcher.kernel()),
      bound_(dispatcher.callable(), packed_.arguments()),
      circumstances_(circumstances_of(dispatcher.index(), bound_.arguments())),
      place_(workplace_of(bound_)) {
    require_key(kernel_);
    require_own_grid(bound_);
    circumstances_.tuned_device = no_tuned_device;
    if (has_empty_outputs(bound_.index(), bound_.arguments())) fail_empty(kernel_);
    choose_candidates();
    ready_.resize(candidates_.size());
    const Unlocked unlocked;
    copy_arrays();
}

void Trial::choose_candidates() {
    const KernelIndex& index = bound_.index();
    const Setting setting{nullptr, nullptr, circumstances_};
    Plan plan;
    make_plan(index, bound_.arguments(), setting, plan);
    padded_ = PaddedCall::find(index, bound_.arguments(), setting, plan);
    const Plan& chosen = padded_ ? padded_->plan() : plan;
    candidates_ = alternatives(index, arguments(), circumstances_, {chosen.specialisation, chosen.variant});
}

void Trial::copy_arrays() {
    if (padded_) {
        PaddedArguments& padded = padded_->arguments();
        padded_memory_ = std::make_unique<Buffer>(place_, padded.bytes());
        padded.place(padded_memory_->data());
        padded.copy_in(*place_.device, place_.stream);
    }
    copies_ = std::make_unique<ArrayCopies>(bound_.index(), arguments(), place_);
    other_data_ = std::make_unique<Buffer>(place_, 2 * cache_bytes(place_));
    place_.wait();
}

Trial::~Trial() = default;

nb::dict Trial::place() const {
    const DeviceIdentity identity = identity_of(bound_.arguments().device);
    nb::dict result;
    result["device"] = identity.name;
    result["architecture"] = identity.architecture;
    result["units"] = identity.units;
    return result;
}

nb::list Trial::key_names() const {
    nb::list names;
    for (const char* name : kernel_.key_names) names.append(nb::str(name));
    return names;
}

nb::list Trial::key() const {
    const KeyValues values = key_values(kernel_, arguments());
    nb::list numbers;
    for (std::size_t i = 0; i < kernel_.key.size(); ++i) numbers.append(nb::int_(values[i]));
    return numbers;
}

nb::dict Trial::constants() const {
    nb::dict result;
    const Specialisation& row = *candidates_.front().specialisation;
    for (std::size_t i = 0; i < kernel_.constants.size(); ++i)
        if (bound_.arguments().constants.has(i)) result[kernel_.constants[i]] = constant_object(row.constants[i]);
    return result;
}

nb::list Trial::dtypes() const {
    nb::list names;
    for (const Dtype dtype : candidates_.front().specialisation->dtypes)
        names.append(nb::str(dtype_name(dtype).data()));
    return names;
}

nb::list Trial::candidates() const {
    nb::list found;
    for (const Choice& choice : candidates_)
        found.append(
            nb::make_tuple(choice.specialisation->id, variant_names[static_cast<std::size_t>(choice.variant)]));
    return found;
}

Trial::Ready& Trial::ready(std::size_t candidate) {
    std::unique_ptr<Ready>& kept = ready_.at(candidate);
    if (kept) return *kept;
    const Choice& choice = candidates_[candidate];
    const Arguments& arguments = copies_->arguments();
    auto made = std::make_unique<Ready>(Ready{{kernel_, *choice.specialisation, choice.variant}, {}, {}, {}});
    made->plan.specialisation = choice.specialisation;
    made->plan.variant = choice.variant;
    complete_plan(bound_.index(), arguments, circumstances_.sm_count, nullptr, made->plan);
    if (made->plan.programs() == 0) fail_empty(kernel_);
    if (place_.device) {
        made->code = ready_kernel(made->place, *place_.device);
        made->call.emplace(made->place, arguments, made->plan, *place_.device, made->code);
        made->call->launch.config.stream = place_.stream;
    }
    kept = std::move(made);
    return *kept;
}

void Trial::run(Ready& ready) const {
    if (!place_.device) {
        const HostWork work{host_function(ready.place), ready.plan.block.data(), ready.plan.grid};
        return run_large(work, run_small(work));
    }
    launch(ready.call->launch, *place_.device, ready.code);
}

double Trial::check(std::size_t candidate) {
    Ready& ready = this->ready(candidate);
    const Unlocked unlocked;
    copies_->reset();
    run(ready);
    const auto outputs = copies_->outputs();
    if (candidate != 0) return copies_->distance(expected_, outputs);
    expected_ = outputs;
    return 0;
}

double Trial::time(std::size_t candidate, bool is_warm) {
    Ready& ready = this->ready(candidate);
    const Unlocked unlocked;
    copies_->restore();
    other_data_->fill(0);
    if (is_warm) run(ready);
    return place_.device ? time_on_cuda(ready) : time_on_host(ready);
}

double Trial::time_on_host(Ready& ready) const {
    using Clock = std::chrono::steady_clock;
    const auto begun = Clock::now();
    run(ready);
    return std::chrono::duration<double, std::micro>(Clock::now() - begun).count();
}

// The device is busy with other data while the call is put into its queue, so that the time is the device's.
double Trial::time_on_cuda(Ready& ready) const {
    const cuda::ContextScope scope(*place_.device);
    const Event begin(place_.device->api()), end(place_.device->api());
    begin.record(place_.stream);
    run(ready);
    end.record(place_.stream);
    return begin.microseconds_to(end);
}

}  // namespace gristmill
