// What Python sees of a kernel: the dispatcher, its instances, and an instance with a grid.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>

#include "bind.hpp"
#include "dispatch.hpp"
#include "repeat.hpp"

namespace gristmill {

// One picked specialisation.
class Instance {
public:
    Instance(const Callable& kernel, const Specialisation& row) : callable_{kernel.index, &row, kernel.known} {}

    const Callable& callable() const { return callable_; }
    const Kernel& kernel() const { return callable_.index.kernel; }
    const Specialisation& row() const { return *callable_.only; }

    nanobind::dict dtypes() const;
    nanobind::dict constants() const;
    std::string ptx(const std::string& target, const std::string& variant) const;
    nanobind::list images() const;
    nanobind::dict info() const;
    nanobind::object backward() const;
    std::string text() const;

private:
    Callable callable_;
};

// `instance[grid]`: called with the kernel's arguments.
struct GridLauncher {
    Instance instance;
    nanobind::object grid;
};

class Dispatcher {
public:
    explicit Dispatcher(const Kernel& kernel)
        : index_(kernel), known_(std::make_unique<KnownCalls>()), callable_{index_, nullptr, *known_} {}

    const KernelIndex& index() const { return index_; }
    const Kernel& kernel() const { return index_.kernel; }
    const Callable& callable() const { return callable_; }

    nanobind::tuple supported_dtypes() const;
    nanobind::tuple instances() const;
    Instance dispatch(nanobind::handle dtype, nanobind::args constants, nanobind::kwargs named) const;
    void preload(int device) const;
    nanobind::dict info(nanobind::args arguments, nanobind::kwargs named) const;
    std::string text_signature() const;
    nanobind::object signature() const;

private:
    KernelIndex index_;
    std::unique_ptr<KnownCalls> known_;
    Callable callable_;
};

// By kernel of the tables; made at the first call, and never destroyed.
const Dispatcher& dispatcher(std::size_t kernel);

// The device of the current context, else 0.
int current_device();

}  // namespace gristmill
