// From bound arguments to a launch: which specialisation and variant, over which grid, with which bytes. Free of
// Python.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "error.hpp"
#include "tables.hpp"
#include "tuned.hpp"
#include "view.hpp"

namespace gristmill {

inline constexpr std::size_t most_dtype_vars = 8, most_constants = 16;
inline constexpr std::uintptr_t aligned_bytes = 16;  // of every array's address, for Variant::aligned32
inline constexpr Dtype unbound = static_cast<Dtype>(255);

using ParameterSet = std::bitset<most_parameters>;

struct Scalar {
    std::int64_t integer;  // also the value of index parameters
    double real;
    bool is_given;
};

// Constants that a call names.
class GivenConstants {
public:
    bool has(std::size_t constant) const { return mask_ >> constant & 1; }
    const ConstantValue& operator[](std::size_t constant) const { return values_[constant]; }
    void set(std::size_t constant, const ConstantValue& value) {
        values_[constant] = value;
        mask_ |= 1u << constant;
    }
    void clear() { mask_ = 0; }
    std::uint32_t mask() const { return mask_; }

private:
    std::uint32_t mask_ = 0;
    std::array<ConstantValue, most_constants> values_;
};

// What a call brings. By parameter: only the first so many are set.
struct Arguments {
    std::array<const View*, most_parameters> views;
    std::array<std::int64_t, most_parameters> integers;  // scalars and index parameters; arrays: 0
    std::array<double, most_parameters> reals;
    std::array<bool, most_parameters> is_given;  // index parameters
    std::array<Dtype, most_dtype_vars> dtypes;   // by dtype variable
    GivenConstants constants;
    Device device;
    bool has_array = false;

    void set_scalar(std::size_t parameter, const Scalar& scalar) {
        integers[parameter] = scalar.integer;
        reals[parameter] = scalar.real;
        is_given[parameter] = scalar.is_given;
    }
};

// Everything for a launch; parameters packed as the driver and the host functions read them.
struct Plan {
    const Specialisation* specialisation;
    Variant variant;
    bool is_tuned;
    std::array<std::int64_t, 3> grid;
    std::array<void*, most_parameters + most_maps + 1> pointers;  // and a counter
    alignas(8) std::array<std::byte, 8 * most_parameters> block;
    std::size_t block_bytes;

    std::int64_t programs() const { return grid[0] * grid[1] * grid[2]; }
};

// What calls read of a parameter, in so few bytes that those of a kernel share one or two cache lines.
struct Slot {
    static constexpr std::uint8_t no_extent = 255, computed_extent = 254;

    ParameterKind kind;
    std::int8_t dtype_var;
    Dtype dtype;
    std::int8_t tensor;
    std::int8_t axis;
    bool is_strided;
    bool has_default;
    std::uint8_t extent;  // the parameter that it is

    bool is_array() const { return kind == ParameterKind::pointer; }
    bool is_scalar() const { return kind == ParameterKind::scalar; }
};

// Which source's code a device uses, of the device that asked last.
class SourceMemo {
public:
    template <class Find>
    int get(int device, Find find) const {
        const std::uint64_t wanted = static_cast<std::uint64_t>(device) + 1;
        if (const auto known = known_.load(std::memory_order_relaxed); known >> 32 == wanted)
            return static_cast<int>(static_cast<std::uint32_t>(known));
        const int source = find();
        known_.store(wanted << 32 | static_cast<std::uint32_t>(source), std::memory_order_relaxed);
        return source;
    }

private:
    mutable std::atomic<std::uint64_t> known_{0};
};

// Facts of a kernel that calls need, worked out once.
class KernelIndex {
public:
    explicit KernelIndex(const Kernel& kernel);

    const Kernel& kernel;
    const Slot& slot(std::size_t parameter) const { return slots_[parameter]; }
    const std::vector<std::uint16_t>& with_first_dtype(Dtype dtype) const {
        return by_dtype_[static_cast<std::size_t>(dtype)];
    }
    // Parameters by kind, in order, so that a call does not look through all of them at each step.
    std::span<const std::uint8_t> arrays() const { return arrays_; }
    std::span<const std::uint8_t> outputs() const { return outputs_; }  // of the arrays
    std::span<const std::uint8_t> indices() const { return indices_; }  // sizes, shapes, strides
    std::span<const std::uint8_t> values() const { return values_; }    // all that are no arrays
    std::size_t parameter_count() const { return parameter_count_; }
    bool needs_sm_count() const { return needs_sm_count_; }
    // Whether the choice or a check looks at the integer of a parameter.
    bool is_decisive(std::size_t parameter) const { return decisive_[parameter]; }
    // Whether the choice depends on the CUDA target whose code runs: some specialisations are not built for every one,
    // or take tensor maps.
    bool needs_source() const { return needs_source_; }
    bool has_host_code() const { return has_host_code_; }
    const SourceMemo& source() const { return source_; }
    TunedRows& tuned() const { return *tuned_; }
    int parameter(std::string_view name) const;  // -1: none
    int constant(std::string_view name) const;

private:
    // A list of parameters in place.
    struct Few {
        std::array<std::uint8_t, most_parameters> items{};
        std::uint8_t count = 0;
        void add(std::size_t parameter) { items[count++] = static_cast<std::uint8_t>(parameter); }
        operator std::span<const std::uint8_t>() const { return {items.data(), count}; }
    };

    std::size_t parameter_count_;
    bool needs_sm_count_, needs_source_, has_host_code_;
    ParameterSet decisive_;
    SourceMemo source_;
    std::unique_ptr<TunedRows> tuned_;
    std::array<Slot, most_parameters> slots_{};
    Few arrays_, outputs_, indices_, values_;
    std::array<std::vector<std::uint16_t>, 16> by_dtype_;  // the last: kernels without dtype variables
};

// "x f16[4096, 1000], y f16[4096] on cuda:0"
std::string describe_arguments(const Kernel& kernel, const Arguments& arguments);
std::string built_dtypes(const Kernel& kernel);  // "f16, f32", "(f32, i32), (f32, i64)"
std::string describe_constant(const ConstantValue& value);
bool is_equal(const ConstantValue& a, const ConstantValue& b);

// The value of a grid, pick, extent or tensor map for a specialisation.
std::int64_t evaluate_for(const Kernel& kernel, const Specialisation& specialisation, const Arguments& arguments,
                          std::int64_t sm_count, Code code);

// Give a dtype variable the element type of an argument, or compare them; the same with the device. Raises Failure.
void bind_array(const KernelIndex& index, std::size_t parameter, const View& view, Arguments& arguments);

// Sizes, shapes and strides that were left out; those given must not reach beyond the array.
void fill_index_parameters(const KernelIndex& index, Arguments& arguments);

// Declared with `aligned=True`: there is code for aligned calls alone.
inline bool is_only_aligned(const Specialisation& row) {
    return !row.entries[static_cast<std::size_t>(Variant::general64)].symbol;
}

// The variant that a call takes of a specialisation, whether or not there is code for it. Where an array cannot have
// the map that aligned code of `source` takes, general code serves: its parameters are packed alike.
Variant choose_variant(const KernelIndex& index, const Specialisation& row, const Arguments& arguments, int source);

// What keeps a call from the aligned variant; "": nothing.
std::string describe_obstacle(const KernelIndex& index, const Specialisation& row, const Arguments& arguments,
                              int source);

KeyValues key_values(const Kernel& kernel, const Arguments& arguments);

// The first specialisation with the dtypes and constants of `asked`. Raises Failure with what is built.
const Specialisation& find_specialisation(const Kernel& kernel, const Arguments& asked);

struct Choice {
    const Specialisation* specialisation;
    Variant variant;
    bool is_tuned = false;  // by a row of a tuned table
};

// What a choice depends on besides the arguments.
struct Circumstances {
    std::int64_t sm_count;
    int source;        // whose code the device runs; the device is ready where that decides
    int tuned_device;  // in tuned tables; no_tuned_device: they are not asked
};

// What a tuned table says; else the first specialisation that fits and has code for the call, of those that the kernel
// prefers if there is one; or `only` if it does. Raises Failure with what is built.
Choice choose(const KernelIndex& index, const Arguments& arguments, const Circumstances& circumstances,
              const Specialisation* only);

// All that could serve a call in place of a choice: the choice first, then those that differ from it in what
// configurations set.
std::vector<Choice> alternatives(const KernelIndex& index, const Arguments& arguments,
                                 const Circumstances& circumstances, const Choice& choice);

// Contiguity, extents, read-only and overlapping outputs. Raises Failure.
void check_arrays(const KernelIndex& index, const Specialisation& specialisation, const Arguments& arguments,
                  std::int64_t sm_count);

// Fills grid (unless `grid` is given) and parameters of `plan`; specialisation and variant are set.
void complete_plan(const KernelIndex& index, const Arguments& arguments, std::int64_t sm_count,
                   const std::array<std::int64_t, 3>* grid, Plan& plan);

// Whether the kernel has outputs, and all are empty.
bool has_empty_outputs(const KernelIndex& index, const Arguments& arguments);

}  // namespace gristmill
