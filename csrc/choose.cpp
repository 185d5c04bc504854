// Choice of the specialisation: dtypes, then constants, then the kernel's own `pick`.
#include <algorithm>
#include <optional>

#include "dispatch.hpp"
#include "dtype.hpp"
#include "grid.hpp"
#include "image.hpp"

namespace gristmill {

namespace {

bool uses_sm_count(Code code) {
    for (std::size_t i = 0; i < code.size(); ++i) {
        const auto op = static_cast<Op>(code[i]);
        if (op == Op::sm_count) return true;
        if (op <= Op::constexpr_value) ++i;
    }
    return false;
}

bool uses_sm_count(const Kernel& kernel) {
    return uses_sm_count(kernel.pick) || uses_sm_count(kernel.prefer) ||
           std::ranges::any_of(kernel.grid, [](Code code) { return uses_sm_count(code); });
}

void mark_operands(Code code, ParameterSet& parameters) {
    for (std::size_t i = 0; i + 1 < code.size(); ++i) {
        const auto op = static_cast<Op>(code[i]);
        if (op > Op::constexpr_value) continue;
        const auto operand = static_cast<std::uint64_t>(code[++i]);
        if (op == Op::parameter && operand < most_parameters) parameters.set(operand);
    }
}

template <class Visit>
void for_each_map(const Kernel& kernel, Visit visit) {
    for (const Specialisation& row : kernel.specialisations)
        for (const Entry& entry : row.entries)
            for (const Geometry& shape : entry.geometry)
                for (const TensorMap& map : shape.maps) visit(map);
}

bool has_maps(const Kernel& kernel) {
    bool found = false;
    for_each_map(kernel, [&](const TensorMap&) { found = true; });
    return found;
}

// The parameters that a grid, pick, preference, key, extent or tensor map reads, or that a specialisation wants to be a
// multiple of something.
ParameterSet decisive_parameters(const Kernel& kernel) {
    ParameterSet parameters;
    mark_operands(kernel.pick, parameters);
    mark_operands(kernel.prefer, parameters);
    for (const Code code : kernel.key) mark_operands(code, parameters);
    mark_operands(kernel.padded, parameters);
    for (const Code code : kernel.grid) mark_operands(code, parameters);
    for (const Parameter& parameter : kernel.parameters) mark_operands(parameter.extent, parameters);
    for_each_map(kernel, [&](const TensorMap& map) {
        for (const Code code : map.extents) mark_operands(code, parameters);
        for (const Code code : map.strides) mark_operands(code, parameters);
    });
    for (const Specialisation& row : kernel.specialisations)
        for (const Divisors divisors : row.divisibility)
            for (std::size_t i = 0; i < divisors.size(); ++i)
                if (divisors[i] > 1) parameters.set(i);
    return parameters;
}

void require_small(const Kernel& kernel) {
    if (kernel.parameters.size() <= most_parameters && kernel.dtype_vars.size() <= most_dtype_vars &&
        kernel.constants.size() <= most_constants && kernel.key.size() <= most_keys)
        return;
    throw Failure(ErrorKind::runtime,
                  {.what = concat(kernel.name, ": too many parameters, dtype variables or constants"),
                   .supported = concat(most_parameters, ", ", most_dtype_vars, " and ", most_constants),
                   .fix = "split the kernel"});
}

std::uint8_t extent_of(Code code) {
    if (code.empty()) return Slot::no_extent;
    const bool is_parameter = code.size() == 2 && code[0] == static_cast<std::int64_t>(Op::parameter);
    const bool is_known = is_parameter && code[1] >= 0 && code[1] < static_cast<std::int64_t>(most_parameters);
    return is_known ? static_cast<std::uint8_t>(code[1]) : Slot::computed_extent;
}

Slot slot_of(const Parameter& parameter) {
    return {parameter.kind, parameter.dtype_var,  parameter.dtype,       parameter.tensor,
            parameter.axis, parameter.is_strided, parameter.has_default, extent_of(parameter.extent)};
}

bool has_dtypes(const Specialisation& specialisation, const Arguments& arguments) {
    for (std::size_t i = 0; i < specialisation.dtypes.size(); ++i)
        if (arguments.dtypes[i] != unbound && arguments.dtypes[i] != specialisation.dtypes[i]) return false;
    return true;
}

bool has_constants(const Specialisation& specialisation, const Arguments& arguments) {
    for (std::size_t i = 0; i < specialisation.constants.size(); ++i)
        if (arguments.constants.has(i) && !is_equal(arguments.constants[i], specialisation.constants[i])) return false;
    return true;
}

bool has_gaps(const Kernel& kernel) {
    return std::ranges::any_of(kernel.specialisations, [](const Specialisation& row) {
        return std::ranges::any_of(row.entries[0].geometry, [](const Geometry& shape) { return shape.threads == 0; });
    });
}

bool has_host_code(const Kernel& kernel) {
    return std::ranges::any_of(kernel.specialisations, [](const auto& row) { return is_built(row, host_source); });
}

bool differs_by_target(const Kernel& kernel) {
    return std::ranges::any_of(kernel.specialisations,
                               [](const Specialisation& row) { return row.divisibility.size() > 1; });
}

bool holds(Code condition, const Kernel& kernel, const Specialisation& specialisation, const Arguments& arguments,
           std::int64_t sm_count) {
    return condition.empty() || evaluate_for(kernel, specialisation, arguments, sm_count, condition) != 0;
}

// Whether a specialisation computes what the call asks for, on this device.
bool fits(const Kernel& kernel, const Specialisation& row, const Arguments& arguments,
          const Circumstances& circumstances) {
    return has_dtypes(row, arguments) && has_constants(row, arguments) && is_built(row, circumstances.source) &&
           holds(kernel.pick, kernel, row, arguments, circumstances.sm_count);
}

std::string given_constants(const Kernel& kernel, const Arguments& arguments) {
    std::string text;
    for (std::size_t i = 0; i < kernel.constants.size(); ++i)
        if (arguments.constants.has(i))
            text.append(text.empty() ? "" : ", ")
                .append(concat(kernel.constants[i], "=", describe_constant(arguments.constants[i])));
    return text;
}

std::string ids(const std::vector<const Specialisation*>& rows) {
    const auto shown = std::min<std::size_t>(rows.size(), 24);
    return listed(std::span(rows).first(shown), [](const Specialisation* row) { return std::string(row->id); }) +
           (shown < rows.size() ? ", ..." : "");
}

std::string index_values(const Kernel& kernel, const Arguments& arguments) {
    std::string text;
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
        const auto kind = kernel.parameters[i].kind;
        if (kind == ParameterKind::pointer || kind == ParameterKind::scalar) continue;
        text.append(text.empty() ? "" : ", ").append(concat(kernel.parameters[i].name, "=", arguments.integers[i]));
    }
    return text;
}

[[noreturn]] void fail_dtypes(const Kernel& kernel, const Arguments& arguments) {
    std::string missing;
    for (std::size_t i = 0; i < kernel.dtype_vars.size(); ++i)
        if (arguments.dtypes[i] != unbound)
            missing.append(missing.empty() ? "" : ", ").append(concat("`gm.", dtype_name(arguments.dtypes[i]), "`"));
    throw Failure(ErrorKind::type,
                  {.what = concat(kernel.name, ": no specialisation has these dtypes"),
                   .asked = describe_arguments(kernel, arguments),
                   .built = built_dtypes(kernel),
                   .fix = concat("add ", missing, " to the kernel's dtypes, then rebuild; or convert the arrays")});
}

[[noreturn]] void fail_constants(const Kernel& kernel, const Arguments& arguments,
                                 const std::vector<const Specialisation*>& rows) {
    const std::string asked = given_constants(kernel, arguments);
    throw Failure(
        ErrorKind::value,
        {.what = concat(kernel.name, ": no specialisation has these constants"),
         .asked = asked,
         .built = ids(rows),
         .fix = concat("add the value to @gm.kernel(...), as in `", asked.substr(0, asked.find('=')), "=[..., ",
                       asked.substr(asked.find('=') + 1, asked.find(',') - asked.find('=') - 1), "]`, then rebuild")});
}

[[noreturn]] void fail_pick(const Kernel& kernel, const Arguments& arguments,
                            const std::vector<const Specialisation*>& rows) {
    const std::string constants = given_constants(kernel, arguments);
    throw Failure(
        ErrorKind::value,
        {.what = concat(kernel.name, ": no specialisation suits these sizes (the kernel's `pick` is false for all)"),
         .asked = concat(index_values(kernel, arguments), constants.empty() ? "" : " with ", constants),
         .built = ids(rows),
         .fix = constants.empty()
                    ? "add a larger value of the constant to @gm.kernel(...), then rebuild"
                    : "leave the constant out, so that `pick` chooses; or add a larger value and rebuild"});
}

[[noreturn]] void fail_target(const Kernel& kernel, const Specialisation& only) {
    throw Failure(ErrorKind::runtime,
                  {.what = concat(only.id, ": not built for this device: its tiles do not fit, or it is declared for others"),
                   .fix = concat("call `", kernel.name, "(...)`, which takes another one there")});
}

[[noreturn]] void fail_choice(const Kernel& kernel, const Arguments& arguments) {
    std::vector<const Specialisation*> typed, fitting;
    for (const auto& row : kernel.specialisations) {
        if (!has_dtypes(row, arguments)) continue;
        typed.push_back(&row);
        if (has_constants(row, arguments)) fitting.push_back(&row);
    }
    if (typed.empty()) fail_dtypes(kernel, arguments);
    if (fitting.empty()) fail_constants(kernel, arguments, typed);
    fail_pick(kernel, arguments, fitting);
}

std::string asked_text(const Kernel& kernel, const Arguments& asked) {
    std::string text;
    const auto add = [&](const std::string& item) { text.append(text.empty() ? "" : ", ").append(item); };
    for (std::size_t i = 0; i < kernel.dtype_vars.size(); ++i)
        if (asked.dtypes[i] != unbound) add(std::string(dtype_name(asked.dtypes[i])));
    for (std::size_t i = 0; i < kernel.constants.size(); ++i)
        if (asked.constants.has(i)) add(concat(kernel.constants[i], "=", describe_constant(asked.constants[i])));
    return text;
}

// The dtype is what is missing if it is in no specialisation; else it is a constant's value.
[[noreturn]] void fail_dispatch(const Kernel& kernel, const Arguments& asked) {
    const bool is_typed =
        std::ranges::any_of(kernel.specialisations, [&](const auto& row) { return has_dtypes(row, asked); });
    const std::string missing = is_typed ? "the value to the constant's list in @gm.kernel(...)"
                                           : concat("`gm.", dtype_name(asked.dtypes[0]), "` to the kernel's dtypes");
    std::string built;
    for (const auto& row : kernel.specialisations)
        if (!is_typed || has_dtypes(row, asked)) built.append(built.empty() ? "" : ", ").append(row.id);
    throw Failure(is_typed ? ErrorKind::value : ErrorKind::type,
                  {.what = concat(kernel.name, ": no specialisation is built for this"),
                   .asked = asked_text(kernel, asked),
                   .built = built,
                   .fix = concat("add ", missing, ", then rebuild")});
}

[[noreturn]] void fail_instance(const Kernel& kernel, const Arguments& arguments, const Specialisation& only) {
    if (has_dtypes(only, arguments)) fail_pick(kernel, arguments, {&only});
    throw Failure(
        ErrorKind::type,
        {.what = concat(only.id, ": the arguments have other dtypes than this instance"),
         .asked = describe_arguments(kernel, arguments),
         .built = listed(only.dtypes, [](Dtype dtype) { return std::string(dtype_name(dtype)); }),
         .fix = concat("call `", kernel.name, "(...)`, which chooses by dtype, or take another instance from `",
                       kernel.name, ".dispatch(...)`")});
}

[[noreturn]] void fail_alignment(const KernelIndex& index, const Arguments& arguments, int source,
                                 const Specialisation& row, bool is_only) {
    const Kernel& kernel = index.kernel;
    const std::string constants = given_constants(kernel, arguments);
    throw Failure(
        ErrorKind::value,
        {.what = concat(row.id, ": compiled for aligned calls only (`aligned=True`), and this call is not"),
         .asked = concat(describe_arguments(kernel, arguments), constants.empty() ? "" : " with ", constants),
         .found = describe_obstacle(index, row, arguments, source),
         .fix = is_only ? concat("call `", kernel.name, "(...)`, which takes another one for such arrays")
                : constants.empty()
                    ? "add a configuration without `aligned=True` that suits these sizes, then rebuild"
                    : "leave the constants out, so that another configuration serves; or pass aligned arrays"});
}

// The variant of a specialisation that serves a call; empty: there is no code for it. Any serves where nothing is
// written.
std::optional<Variant> serving_variant(const KernelIndex& index, const Specialisation& row, const Arguments& arguments,
                                       int source) {
    const Variant variant = choose_variant(index, row, arguments, source);
    if (variant == Variant::aligned32 || !is_only_aligned(row)) return variant;
    return has_empty_outputs(index, arguments) ? std::optional(Variant::aligned32) : std::nullopt;
}

// Whether two specialisations are alike in all that no configuration sets.
bool is_alternative(const Kernel& kernel, const Specialisation& a, const Specialisation& b) {
    if (!std::ranges::equal(a.dtypes, b.dtypes)) return false;
    for (std::size_t i = 0; i < a.constants.size(); ++i)
        if (!(kernel.configured >> i & 1) && !is_equal(a.constants[i], b.constants[i])) return false;
    return true;
}

// Goes through the specialisations in declared order.
class Search {
public:
    Search(const KernelIndex& index, const Arguments& arguments, const Circumstances& circumstances)
        : index_(index), arguments_(arguments), circumstances_(circumstances) {}

    // The one that fits, has code for the call and is preferred most: the first of equals.
    std::optional<Choice> best() {
        const Kernel& kernel = index_.kernel;
        if (!kernel.dtype_vars.empty() && arguments_.dtypes[0] != unbound) {
            for (const auto row : index_.with_first_dtype(arguments_.dtypes[0]))
                if (is_found(kernel.specialisations[row])) break;
        } else {
            for (const auto& row : kernel.specialisations)
                if (is_found(row)) break;
        }
        return best_;
    }
    // The first that would have been taken, but for the alignment; null: none.
    const Specialisation* unaligned() const { return unaligned_; }

private:
    // Looks at a specialisation; returns whether no other one can be better.
    bool is_found(const Specialisation& row) {
        const Kernel& kernel = index_.kernel;
        if (best_ && !is_alternative(kernel, row, *best_->specialisation)) return false;
        if (!fits(kernel, row, arguments_, circumstances_)) return false;
        const std::int64_t rank = kernel.prefer.empty() ? 0 : evaluate_for(kernel, row, arguments_,
                                                                           circumstances_.sm_count, kernel.prefer);
        if (best_ && rank <= rank_) return false;
        if (const auto variant = serving_variant(index_, row, arguments_, circumstances_.source)) {
            best_ = Choice{&row, *variant};
            rank_ = rank;
            return kernel.prefer.empty();
        }
        if (!unaligned_) unaligned_ = &row;
        return false;
    }

    const KernelIndex& index_;
    const Arguments& arguments_;
    const Circumstances& circumstances_;
    const Specialisation* unaligned_ = nullptr;
    std::optional<Choice> best_;
    std::int64_t rank_ = 0;
};

Choice check_only(const KernelIndex& index, const Arguments& arguments, const Circumstances& circumstances,
                  const Specialisation& only) {
    const Kernel& kernel = index.kernel;
    if (!is_built(only, circumstances.source)) fail_target(kernel, only);
    if (!has_dtypes(only, arguments) || !holds(kernel.pick, kernel, only, arguments, circumstances.sm_count))
        fail_instance(kernel, arguments, only);
    if (const auto variant = serving_variant(index, only, arguments, circumstances.source)) return {&only, *variant};
    fail_alignment(index, arguments, circumstances.source, only, true);
}

std::optional<Choice> tuned_choice(const KernelIndex& index, const Arguments& arguments,
                                   const Circumstances& circumstances) {
    if (circumstances.tuned_device == no_tuned_device) return std::nullopt;
    const Kernel& kernel = index.kernel;
    const KeyValues key = key_values(kernel, arguments);
    std::optional<Choice> choice;
    index.tuned().find(circumstances.tuned_device, std::span(key).first(kernel.key.size()),
                       [&](std::uint16_t specialisation, Variant variant, std::uint16_t named) {
                           const Specialisation& row = kernel.specialisations[specialisation];
                           if (named != arguments.constants.mask() || !fits(kernel, row, arguments, circumstances))
                               return false;
                           if (serving_variant(index, row, arguments, circumstances.source) != variant) return false;
                           choice = {&row, variant, true};
                           return true;
                       });
    return choice;
}

}  // namespace

KeyValues key_values(const Kernel& kernel, const Arguments& arguments) {
    KeyValues values{};
    const Scope scope{std::span(arguments.integers).first(kernel.parameters.size()), {}, 0};
    for (std::size_t i = 0; i < kernel.key.size(); ++i) values[i] = evaluate(kernel.key[i], scope);
    return values;
}

KernelIndex::KernelIndex(const Kernel& kernel_)
    : kernel(kernel_),
      parameter_count_(kernel_.parameters.size()),
      needs_sm_count_(uses_sm_count(kernel_)),
      needs_source_(has_gaps(kernel_) || has_maps(kernel_) || differs_by_target(kernel_)),
      has_host_code_(gristmill::has_host_code(kernel_)),
      tuned_(std::make_unique<TunedRows>(kernel_)) {
    require_small(kernel);
    decisive_ = decisive_parameters(kernel);
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
        const Parameter& parameter = kernel.parameters[i];
        const Slot slot = slots_[i] = slot_of(parameter);
        (slot.is_array() ? arrays_ : values_).add(i);
        if (slot.is_array() && parameter.is_written) outputs_.add(i);
        if (slot.is_array() || slot.is_scalar()) continue;
        indices_.add(i);
        decisive_.set(i);
    }
    for (std::size_t i = 0; i < kernel.specialisations.size(); ++i) {
        const auto& dtypes = kernel.specialisations[i].dtypes;
        by_dtype_[dtypes.empty() ? by_dtype_.size() - 1 : static_cast<std::size_t>(dtypes[0])].push_back(
            static_cast<std::uint16_t>(i));
    }
}

int KernelIndex::parameter(std::string_view name) const {
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i)
        if (name == kernel.parameters[i].name) return static_cast<int>(i);
    return -1;
}

int KernelIndex::constant(std::string_view name) const {
    for (std::size_t i = 0; i < kernel.constants.size(); ++i)
        if (name == kernel.constants[i]) return static_cast<int>(i);
    return -1;
}

bool is_equal(const ConstantValue& a, const ConstantValue& b) {
    using Kind = ConstantValue::Kind;
    if (a.kind == Kind::text || b.kind == Kind::text) return a.kind == b.kind && std::string_view(a.text) == b.text;
    const auto number = [](const ConstantValue& value) {
        return value.kind == Kind::real ? value.real : static_cast<double>(value.integer);
    };
    return (a.kind == Kind::boolean) == (b.kind == Kind::boolean) && number(a) == number(b);
}

const Specialisation& find_specialisation(const Kernel& kernel, const Arguments& asked) {
    for (const auto& row : kernel.specialisations)
        if (has_dtypes(row, asked) && has_constants(row, asked)) return row;
    fail_dispatch(kernel, asked);
}

Choice choose(const KernelIndex& index, const Arguments& arguments, const Circumstances& circumstances,
              const Specialisation* only) {
    if (only) return check_only(index, arguments, circumstances, *only);
    if (const auto tuned = tuned_choice(index, arguments, circumstances)) return *tuned;
    Search search(index, arguments, circumstances);
    if (const auto choice = search.best()) return *choice;
    if (search.unaligned()) fail_alignment(index, arguments, circumstances.source, *search.unaligned(), false);
    fail_choice(index.kernel, arguments);
}

std::vector<Choice> alternatives(const KernelIndex& index, const Arguments& arguments,
                                 const Circumstances& circumstances, const Choice& choice) {
    std::vector<Choice> found{choice};
    for (const Specialisation& row : index.kernel.specialisations) {
        if (&row == choice.specialisation || !fits(index.kernel, row, arguments, circumstances)) continue;
        if (!is_alternative(index.kernel, row, *choice.specialisation)) continue;
        if (const auto variant = serving_variant(index, row, arguments, circumstances.source))
            found.push_back({&row, *variant});
    }
    return found;
}

}  // namespace gristmill
