// Evaluates the postfix expressions of grids, picks and extents.
#pragma once

#include <cstdint>
#include <span>

#include "tables.hpp"

namespace gristmill {

enum class Op : std::int64_t {
    constant,
    parameter,
    constexpr_value,
    add,
    sub,
    mul,
    floor_div,
    mod,
    min,
    max,
    cdiv,
    lt,
    le,
    eq,
    ne,
    logical_and,
    logical_or,
    logical_not,
    select,
    next_pow2,
    sm_count,
};

struct Scope {
    std::span<const std::int64_t> parameters;
    std::span<const ConstantValue> constants;
    std::int64_t sm_count;
};

// Division by zero gives 0, overflow wraps. Raises Failure on code that is not well formed.
std::int64_t evaluate(Code code, const Scope& scope);

}  // namespace gristmill
