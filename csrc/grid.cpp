#include "grid.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "error.hpp"

namespace gristmill {

namespace {

std::int64_t wrap(std::uint64_t value) { return static_cast<std::int64_t>(value); }

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return wrap(-static_cast<std::uint64_t>(a));
    const std::int64_t quotient = a / b;
    return quotient - ((a % b != 0) && ((a < 0) != (b < 0)));
}

std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
    if (b == 0 || b == -1) return 0;
    const std::int64_t rest = a % b;
    return rest + (rest != 0 && ((rest < 0) != (b < 0)) ? b : 0);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    if (b == 0) return 0;
    if (a > 0 && b > 0) return (a - 1) / b + 1;
    return floor_div(a, b) + (floor_mod(a, b) != 0);
}

std::int64_t next_pow2(std::int64_t a) {
    return a <= 1 ? 1 : wrap(std::bit_ceil(std::min(static_cast<std::uint64_t>(a), std::uint64_t{1} << 62)));
}

std::int64_t binary(Op op, std::int64_t a, std::int64_t b) {
    const auto ua = static_cast<std::uint64_t>(a);
    const auto ub = static_cast<std::uint64_t>(b);
    switch (op) {
        case Op::add: return wrap(ua + ub);
        case Op::sub: return wrap(ua - ub);
        case Op::mul: return wrap(ua * ub);
        case Op::floor_div: return floor_div(a, b);
        case Op::mod: return floor_mod(a, b);
        case Op::min: return std::min(a, b);
        case Op::max: return std::max(a, b);
        case Op::cdiv: return ceil_div(a, b);
        case Op::lt: return a < b;
        case Op::le: return a <= b;
        case Op::eq: return a == b;
        case Op::ne: return a != b;
        case Op::logical_and: return a && b;
        case Op::logical_or: return a || b;
        default: return 0;
    }
}

class Stack {
public:
    void push(std::int64_t value) {
        if (size_ == values_.size()) malformed();
        values_[size_++] = value;
    }
    std::int64_t pop() {
        if (size_ == 0) malformed();
        return values_[--size_];
    }
    bool is_empty() const { return size_ == 0; }

    [[noreturn]] static void malformed() {
        throw Failure(ErrorKind::runtime, {.what = "the built tables hold an expression that is not well formed",
                                           .fix = "rebuild the package"});
    }

private:
    std::array<std::int64_t, 32> values_;
    std::size_t size_ = 0;
};

template <class Value>
const Value& at(std::span<const Value> values, std::int64_t index) {
    if (static_cast<std::size_t>(index) >= values.size()) Stack::malformed();
    return values[static_cast<std::size_t>(index)];
}

bool is_operand(std::int64_t word) { return word >= 0 && word <= static_cast<std::int64_t>(Op::constexpr_value); }

bool is_binary(std::int64_t word) {
    return word >= static_cast<std::int64_t>(Op::add) && word <= static_cast<std::int64_t>(Op::logical_or);
}

std::int64_t operand(Op op, std::int64_t word, const Scope& scope) {
    switch (op) {
        case Op::parameter: return at(scope.parameters, word);
        case Op::constexpr_value: return at(scope.constants, word).integer;
        default: return word;
    }
}

void select(Stack& stack) {
    const std::int64_t otherwise = stack.pop();
    const std::int64_t then = stack.pop();
    stack.push(stack.pop() ? then : otherwise);
}

std::int64_t evaluate_on_stack(Code code, const Scope& scope) {
    Stack stack;
    for (std::size_t i = 0; i < code.size(); ++i) {
        const auto op = static_cast<Op>(code[i]);
        if (op <= Op::constexpr_value && i + 1 == code.size()) Stack::malformed();
        switch (op) {
            case Op::constant:
            case Op::parameter:
            case Op::constexpr_value: stack.push(operand(op, code[++i], scope)); break;
            case Op::logical_not: stack.push(!stack.pop()); break;
            case Op::select: select(stack); break;
            case Op::next_pow2: stack.push(next_pow2(stack.pop())); break;
            case Op::sm_count: stack.push(scope.sm_count); break;
            default: {
                if (op > Op::sm_count) Stack::malformed();
                const std::int64_t b = stack.pop();
                const std::int64_t a = stack.pop();
                stack.push(binary(op, a, b));
            }
        }
    }
    const std::int64_t result = stack.pop();
    if (!stack.is_empty()) Stack::malformed();
    return result;
}

}  // namespace

// Most extents are one operand, most grids and picks one operation: these need no stack.
std::int64_t evaluate(Code code, const Scope& scope) {
    const auto first = [&] { return operand(static_cast<Op>(code[0]), code[1], scope); };
    if (code.size() == 2 && is_operand(code[0])) return first();
    if (code.size() != 5 || !is_operand(code[0]) || !is_operand(code[2]) || !is_binary(code[4]))
        return evaluate_on_stack(code, scope);
    return binary(static_cast<Op>(code[4]), first(), operand(static_cast<Op>(code[2]), code[3], scope));
}

}  // namespace gristmill
