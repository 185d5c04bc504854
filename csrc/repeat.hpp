// Calls like an earlier one of the same kernel: with arrays of the same types, layouts and device, what was chosen and
// checked then holds again. Only addresses and numbers are looked at, and few cache lines: a launch leaves them cold.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "bind.hpp"
#include "device.hpp"
#include "launch.hpp"
#include "tensor_map.hpp"

namespace gristmill {

struct KnownCall;
class RepeatParameters;

// Of one kernel. Hold the GIL.
class KnownCalls {
public:
    KnownCalls();
    ~KnownCalls();

    // Launches a call that is like a known one. False: it is not, and nothing has happened. Raises Failure as a full
    // call would: a number out of range, a launch that fails.
    bool launch(const Callable& callable, const CallArguments& given);

    // Remembers a checked call, all positional, that is about to be launched, if one like it is told without Python.
    void keep(const CallArguments& given, const Bound& bound, const Plan& plan, const Launch& launch,
              cuda::GpuDevice& device, std::span<const MadeMap> maps);

    // Other choices may hold from here on.
    void forget();

private:
    struct Row {
        std::uint64_t hash = 0;  // of the call's first array; 0: no call
        std::unique_ptr<const KnownCall> call;
    };

    static constexpr std::size_t sets = 32, ways = 4;
    static constexpr std::uint32_t patience = 8;  // misses for each call that takes another's place

    // The row of that hash; null: there is none.
    const Row* find(std::uint64_t hash) const;
    // Where to put a call of that hash; null: nowhere this time.
    Row* place_for(std::uint64_t hash);
    bool read_arrays(const KnownCall& call, const CallArguments& given, const dlpack::Tensor& first,
                     RepeatParameters& parameters) const;

    std::unique_ptr<std::array<std::array<Row, ways>, sets>> rows_;  // null until a call is remembered
    std::size_t first_ = most_parameters;  // the parameter of the first array; nothing is known: beyond all
    std::uint32_t misses_ = 0;
    std::uint64_t version_ = 0;  // grows with each call that is remembered
};

}  // namespace gristmill
