// One call in every configuration that could serve it, measured on copies of its arrays: what `tune` is made of.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "bind.hpp"
#include "call.hpp"
#include "copies.hpp"
#include "run.hpp"
#include "tuned.hpp"

namespace gristmill {

class Dispatcher;

// Measurements are single calls after the caches were overwritten; how many, and what follows from them, is Python's.
class Trial {
public:
    // Copies the arrays. Raises Failure for a wrong call, a kernel without `key=`, and in a stream capture.
    Trial(const Dispatcher& dispatcher, nanobind::args arguments, nanobind::kwargs named);
    ~Trial();

    std::string kernel() const { return kernel_.name; }
    nanobind::dict place() const;  // device, architecture, units: as in a tuned table
    nanobind::list key_names() const;
    nanobind::list key() const;
    nanobind::dict constants() const;  // those that the call names
    nanobind::list dtypes() const;
    // (specialisation, variant) of each candidate; the first is what is taken without a tuned table.
    nanobind::list candidates() const;

    // Run once, on arrays as the caller's and outputs that hold no result. Returns how far the outputs are from those
    // of the first candidate, in units of what may be: at most 1 is right. Raises Failure if it cannot be launched.
    double check(std::size_t candidate);
    // Microseconds of one call; `is_warm`: it finds its arrays in the cache, as far as they fit.
    double time(std::size_t candidate, bool is_warm);

private:
    struct Ready;

    void choose_candidates();
    void copy_arrays();
    // Of the call or, where it is served by padded copies of matrices, of these.
    const Arguments& arguments() const { return padded_ ? padded_->arguments().arguments() : bound_.arguments(); }
    Ready& ready(std::size_t candidate);
    void run(Ready& ready) const;
    double time_on_host(Ready& ready) const;
    double time_on_cuda(Ready& ready) const;

    nanobind::object positional_, named_;  // keep the arrays
    PackedArguments packed_;
    const Kernel& kernel_;
    Bound bound_;
    Circumstances circumstances_;
    Workplace place_;
    std::unique_ptr<PaddedCall> padded_;
    std::unique_ptr<Buffer> padded_memory_;
    std::vector<Choice> candidates_;
    std::unique_ptr<ArrayCopies> copies_;
    std::unique_ptr<Buffer> other_data_;  // as large as the caches
    std::vector<std::unique_ptr<Ready>> ready_;
    std::vector<std::vector<std::byte>> expected_;
};

}  // namespace gristmill
