// The functions of gristmill.h.
#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// All else is hidden.
#pragma GCC visibility push(default)
#include "gristmill.h"
#pragma GCC visibility pop

#include "../run.hpp"
#include "arguments.hpp"

using namespace gristmill;

struct gristmill_kernel {
    const KernelIndex* index;
    Asked asked;
};

namespace {

thread_local std::string last_error;

// Nothing is thrown through C.
template <class Body>
gristmill_status guarded(Body body) noexcept {
    try {
        body();
        return GRISTMILL_OK;
    } catch (const Failure& failure) {
        last_error = failure.what();
        return failure.kind() == ErrorKind::type    ? GRISTMILL_TYPE
               : failure.kind() == ErrorKind::value ? GRISTMILL_VALUE
                                                    : GRISTMILL_RUNTIME;
    } catch (const std::exception& error) {
        last_error = error.what();
        return GRISTMILL_RUNTIME;
    }
}

const KernelIndex& index_of(std::string_view name) {
    static const auto all = [] {
        std::vector<std::unique_ptr<const KernelIndex>> made;
        for (const auto& kernel : tables.kernels) made.push_back(std::make_unique<const KernelIndex>(kernel));
        return made;
    }();
    for (const auto& index : all)
        if (name == index->kernel.name) return *index;
    throw Failure(ErrorKind::value,
                  {.what = concat("there is no kernel `", name, "`"),
                   .built = listed(tables.kernels, [](const auto& kernel) { return std::string(kernel.name); }),
                   .fix = "find one of these"});
}

bool is_same(const gristmill_kernel& a, const gristmill_kernel& b) {
    if (a.index != b.index || a.asked.dtypes != b.asked.dtypes) return false;
    for (std::size_t i = 0; i < a.index->kernel.constants.size(); ++i) {
        if (a.asked.constants.has(i) != b.asked.constants.has(i)) return false;
        if (a.asked.constants.has(i) && !is_equal(a.asked.constants[i], b.asked.constants[i])) return false;
    }
    return true;
}

// Equal handles are one, so that looking one up again and again takes no memory.
const gristmill_kernel* keep(const gristmill_kernel& wanted) {
    static std::mutex mutex;
    static std::vector<std::unique_ptr<const gristmill_kernel>> kept;
    const std::lock_guard lock(mutex);
    const auto found = std::ranges::find_if(kept, [&](const auto& handle) { return is_same(*handle, wanted); });
    if (found != kept.end()) return found->get();
    return kept.emplace_back(std::make_unique<const gristmill_kernel>(wanted)).get();
}

void require(const void* pointer, std::string_view what) {
    if (!pointer)
        throw Failure(ErrorKind::value, {.what = concat(what, " is NULL"), .fix = "pass what the header says"});
}

void run(const KernelIndex& index, const Arguments& arguments, const gristmill_place& place) {
    Grid grid;
    if (place.grid) std::copy_n(place.grid, 3, grid.begin());
    Plan plan;
    const Setting setting{nullptr, place.grid ? &grid : nullptr, circumstances_of(index, arguments)};
    make_plan(index, arguments, setting, plan);
    if (plan.programs() == 0 || has_empty_outputs(index, arguments)) return;
    const EntryPlace entry{index.kernel, *plan.specialisation, plan.variant};
    if (arguments.device.kind == DeviceKind::cpu) return run_on_host(entry, arguments, plan);
    cuda::GpuDevice& device = ready_device(arguments.device.ordinal);
    const auto stream = static_cast<cuda::Stream>(place.stream);
    if (const auto padded = PaddedCall::find(index, arguments, setting, plan))
        if (padded->launch(device, ready_kernel(padded->place(), device), stream)) return;
    const cuda::LoadedKernel kernel = ready_kernel(entry, device);
    DeviceCall made(entry, arguments, plan, device, kernel);
    made.launch.config.stream = stream;
    launch(made.launch, device, kernel);
}

}  // namespace

extern "C" {

const char* gristmill_version() {
    static const std::string text = concat(tables.package, " ", tables.version);
    return text.c_str();
}

size_t gristmill_count() { return tables.kernels.size(); }

const char* gristmill_name(size_t kernel) {
    return kernel < tables.kernels.size() ? tables.kernels[kernel].name : nullptr;
}

const char* gristmill_error() { return last_error.c_str(); }

gristmill_status gristmill_find(const char* name, const gristmill_dtype* dtypes, size_t dtype_count,
                                const gristmill_constant* constants, size_t constant_count,
                                const gristmill_kernel** kernel) {
    return guarded([&] {
        require(name, "the kernel's name");
        require(kernel, "the place for the kernel");
        const KernelIndex& index = index_of(name);
        const gristmill_kernel wanted{&index, read_asked(index, {dtypes, dtype_count}, {constants, constant_count})};
        Arguments asked;
        asked.dtypes = wanted.asked.dtypes;
        asked.constants = wanted.asked.constants;
        find_specialisation(index.kernel, asked);
        *kernel = keep(wanted);
    });
}

gristmill_status gristmill_launch(const gristmill_kernel* kernel, const gristmill_argument* arguments,
                                  size_t argument_count, const gristmill_place* place) {
    return guarded([&] {
        static constexpr gristmill_place cpu{};
        require(kernel, "the kernel");
        const gristmill_place& where = place ? *place : cpu;
        const Device device{where.device == GRISTMILL_CUDA ? DeviceKind::cuda : DeviceKind::cpu, where.ordinal};
        const BoundArguments bound(*kernel->index, kernel->asked, {arguments, argument_count}, device);
        run(*kernel->index, bound.arguments(), where);
    });
}

gristmill_status gristmill_preload(const gristmill_kernel* kernel, int32_t ordinal) {
    return guarded([&] {
        require(kernel, "the kernel");
        preload_kernel(kernel->index->kernel, ordinal);
    });
}

}  // extern "C"
