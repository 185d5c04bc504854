#include "tuned.hpp"

#include <algorithm>
#include <atomic>

#include "cpu.hpp"
#include "device.hpp"
#include "dispatch.hpp"
#include "error.hpp"
#include "host.hpp"

namespace gristmill {

namespace {

constexpr std::size_t most_remembered = 65;  // the CPU, then CUDA devices
constexpr int not_asked = -2;

// All devices that tables name: those built in, then those of loaded tables.
class KnownDevices {
public:
    KnownDevices() {
        for (const TunedDevice& device : tables.tuned_devices)
            identities_.push_back({device.name, device.architecture, device.units});
        forget();
    }
    int find(const DeviceIdentity& identity) const {
        const auto found = std::ranges::find(identities_, identity);
        return found == identities_.end() ? no_tuned_device : static_cast<int>(found - identities_.begin());
    }
    std::uint16_t add(const DeviceIdentity& identity) {
        if (const int known = find(identity); known != no_tuned_device) return static_cast<std::uint16_t>(known);
        if (identities_.size() > UINT16_MAX)
            throw Failure(ErrorKind::value, {.what = "tuned tables name too many devices",
                                             .fix = "load tables of the devices that are here"});
        identities_.push_back(identity);
        forget();
        return static_cast<std::uint16_t>(identities_.size() - 1);
    }
    std::atomic<int>& remembered(std::size_t slot) { return remembered_[slot]; }

private:
    void forget() {
        for (auto& known : remembered_) known = not_asked;
    }

    std::vector<DeviceIdentity> identities_;
    std::array<std::atomic<int>, most_remembered> remembered_;
};

KnownDevices& known_devices() {
    static KnownDevices all;
    return all;
}

// Rows for the same calls.
bool is_same(const LoadedRow& a, const LoadedRow& b, const Kernel& kernel) {
    if (a.device != b.device || a.key != b.key || a.named != b.named || a.variant != b.variant) return false;
    const Specialisation &one = kernel.specialisations[a.specialisation],
                         &other = kernel.specialisations[b.specialisation];
    if (!std::ranges::equal(one.dtypes, other.dtypes)) return false;
    for (std::size_t i = 0; i < one.constants.size(); ++i)
        if (a.named >> i & 1 && !is_equal(one.constants[i], other.constants[i])) return false;
    return true;
}

}  // namespace

void TunedRows::add(LoadedRow row) {
    std::erase_if(loaded_, [&](const LoadedRow& known) { return is_same(known, row, kernel_); });
    const std::size_t place = first_of(std::span<const LoadedRow>(loaded_), row.device, row.key);
    loaded_.insert(loaded_.begin() + static_cast<std::ptrdiff_t>(place), std::move(row));
}

DeviceIdentity identity_of(const Device& device) {
    if (device.kind == DeviceKind::cpu) {
        const auto level = best_host_level();
        const std::string_view code = level ? level_name(tables.host_levels[*level]) : cpu_level_text();
        return {std::string(cpu_name()), std::string(code), host_thread_count()};
    }
    const cuda::DeviceFacts& facts = cuda::gpu_device(device.ordinal).facts();
    return {facts.name, concat("sm_", facts.capability.sm()), facts.sm_count};
}

int tuned_device(const Device& device) {
    const std::size_t slot = device.kind == DeviceKind::cpu ? 0 : static_cast<std::size_t>(device.ordinal) + 1;
    if (slot >= most_remembered) return no_tuned_device;
    std::atomic<int>& remembered = known_devices().remembered(slot);
    int known = remembered.load(std::memory_order_relaxed);
    if (known != not_asked) return known;
    known = known_devices().find(identity_of(device));
    remembered.store(known, std::memory_order_relaxed);
    return known;
}

std::uint16_t number_of(const DeviceIdentity& identity) { return known_devices().add(identity); }

}  // namespace gristmill
