#include "arguments.hpp"

#include <charconv>
#include <cstring>

#include "../dtype.hpp"

namespace gristmill {

namespace {

[[noreturn]] void fail_parameter(const Kernel& kernel, std::size_t parameter, ErrorKind kind, std::string_view what,
                                 std::string found, std::string fix) {
    throw Failure(kind, {.what = concat(kernel.name, ": `", kernel.parameters[parameter].name, "` ", what),
                         .found = std::move(found),
                         .fix = std::move(fix)});
}

std::string kind_text(const gristmill_argument& given) {
    switch (given.kind) {
        case GRISTMILL_DEFAULT: return "nothing";
        case GRISTMILL_ARRAY: return "an array";
        case GRISTMILL_INTEGER: return concat("the integer ", given.integer);
        default: return "a real number";
    }
}

// As in the header: the order is that of Dtype.
Dtype dtype_of(const Kernel& kernel, gristmill_dtype given) {
    const auto number = static_cast<std::size_t>(given);
    if (number < dtype_count) return static_cast<Dtype>(number);
    throw Failure(ErrorKind::type, {.what = concat(kernel.name, ": there is no such dtype"),
                                    .found = std::to_string(number),
                                    .fix = "pass one of the enumeration, as in GRISTMILL_F32"});
}

bool is_text(const Kernel& kernel, std::size_t constant) {
    return kernel.specialisations[0].constants[constant].kind == ConstantValue::Kind::text;
}

template <class Number>
bool parses(std::string_view text, Number& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
}

// Text is one of the kernel's own, which lives as long as the process.
const char* known_text(const Kernel& kernel, std::size_t constant, const char* value) {
    for (const auto& row : kernel.specialisations)
        if (std::strcmp(row.constants[constant].text, value) == 0) return row.constants[constant].text;
    return nullptr;
}

ConstantValue read_constant(const Kernel& kernel, std::size_t constant, const char* value) {
    using Kind = ConstantValue::Kind;
    const std::string_view text = value;
    if (is_text(kernel, constant)) {
        if (const char* known = known_text(kernel, constant, value)) return {Kind::text, 0, 0, known};
    } else if (text == "True" || text == "False") {
        return {Kind::boolean, text == "True", 0, nullptr};
    } else {
        std::int64_t integer = 0;
        double real = 0;
        if (parses(text, integer)) return {Kind::integer, integer, 0, nullptr};
        if (parses(text, real)) return {Kind::real, 0, real, nullptr};
    }
    const auto& rows = kernel.specialisations;
    throw Failure(ErrorKind::value,
                  {.what = concat(kernel.name, ": no specialisation has this value of `", kernel.constants[constant], "`"),
                   .found = value,
                   .built = listed(rows, [&](const auto& row) { return describe_constant(row.constants[constant]); }),
                   .fix = "pass one of these, as Python writes it (text without quotes)"});
}

[[noreturn]] void fail_count(const Kernel& kernel, std::size_t given) {
    throw Failure(ErrorKind::type,
                  {.what = concat(kernel.name, ": too many arguments"),
                   .found = std::to_string(given),
                   .supported = listed(kernel.parameters, [](const auto& row) { return std::string(row.name); }),
                   .fix = "pass one for each parameter; constants are given to the function that finds the kernel"});
}

}  // namespace

Asked read_asked(const KernelIndex& index, std::span<const gristmill_dtype> dtypes,
                 std::span<const gristmill_constant> constants) {
    const Kernel& kernel = index.kernel;
    Asked asked;
    asked.dtypes.fill(unbound);
    if (!dtypes.empty() && dtypes.size() != kernel.dtype_vars.size())
        throw Failure(ErrorKind::type, {.what = concat(kernel.name, ": wrong number of dtypes"),
                                        .found = std::to_string(dtypes.size()),
                                        .built = built_dtypes(kernel),
                                        .fix = concat("pass ", kernel.dtype_vars.size(), ", or none")});
    for (std::size_t i = 0; i < dtypes.size(); ++i) asked.dtypes[i] = dtype_of(kernel, dtypes[i]);
    for (const gristmill_constant& given : constants) {
        const int constant = index.constant(given.name);
        if (constant < 0)
            throw Failure(ErrorKind::type,
                          {.what = concat(kernel.name, ": has no constant `", given.name, "`"),
                           .supported = listed(kernel.constants, [](const char* name) { return std::string(name); }),
                           .fix = "pass one of these"});
        const auto place = static_cast<std::size_t>(constant);
        asked.constants.set(place, read_constant(kernel, place, given.value));
    }
    return asked;
}

BoundArguments::BoundArguments(const KernelIndex& index, const Asked& asked, std::span<const gristmill_argument> given,
                               Device device) {
    if (given.size() > index.parameter_count()) fail_count(index.kernel, given.size());
    static constexpr gristmill_argument absent{};
    const auto argument = [&](std::size_t i) -> const gristmill_argument& { return i < given.size() ? given[i] : absent; };
    arguments_.dtypes = asked.dtypes;
    arguments_.constants = asked.constants;
    arguments_.device = device;
    for (const auto i : index.arrays()) read_array(index, i, argument(i), device);
    for (const auto i : index.values()) arguments_.set_scalar(i, read_value(index, i, argument(i)));
    fill_index_parameters(index, arguments_);
}

void BoundArguments::read_array(const KernelIndex& index, std::size_t parameter, const gristmill_argument& given,
                                Device device) {
    const Kernel& kernel = index.kernel;
    const gristmill_array& array = given.array;
    if (given.kind != GRISTMILL_ARRAY)
        fail_parameter(kernel, parameter, ErrorKind::type, "is an array", kind_text(given), "pass an array");
    bool is_shape = array.rank >= 0 && (array.rank == 0 || array.shape);
    for (std::int32_t i = 0; is_shape && i < array.rank; ++i) is_shape = array.shape[i] >= 0;
    if (!is_shape)
        fail_parameter(kernel, parameter, ErrorKind::value, "has no shape", concat("rank ", array.rank),
                       "pass as many lengths as the rank says, from 0 on");
    View& view = views_[parameter];
    const Dtype dtype = dtype_of(kernel, array.dtype);
    const auto item_bytes = static_cast<std::int64_t>(dtype_bytes(dtype));
    view = {static_cast<std::byte*>(array.data), array.shape, array.strides, item_bytes, array.rank, dtype, false,
            device, item_bytes};
    complete(view);
    if (!array.data && view.count > 0)
        fail_parameter(kernel, parameter, ErrorKind::value, "has no memory", describe_array(view), "pass its address");
    arguments_.views[parameter] = &view;
    arguments_.integers[parameter] = 0;
    bind_array(index, parameter, view, arguments_);
}

Scalar BoundArguments::read_value(const KernelIndex& index, std::size_t parameter,
                                  const gristmill_argument& given) const {
    const Slot& slot = index.slot(parameter);
    const Parameter& row = index.kernel.parameters[parameter];
    if (given.kind == GRISTMILL_DEFAULT) {
        if (!slot.is_scalar()) return {};
        if (!slot.has_default)
            fail_parameter(index.kernel, parameter, ErrorKind::type, "has no default", "nothing", "pass its value");
        return {static_cast<std::int64_t>(row.default_value), row.default_value, false};
    }
    const Dtype bound = slot.dtype_var < 0 ? slot.dtype : arguments_.dtypes[static_cast<std::size_t>(slot.dtype_var)];
    const Dtype dtype = slot.is_scalar() ? (bound == unbound ? Dtype::f64 : bound) : Dtype::i64;
    const bool is_real = given.kind == GRISTMILL_REAL;
    if (given.kind == GRISTMILL_ARRAY || (is_real && !is_floating(dtype)))
        fail_parameter(index.kernel, parameter, ErrorKind::type, "is no number of its type", kind_text(given),
                       concat("pass ", is_floating(dtype) ? "a real number" : "an integer"));
    if (is_floating(dtype)) return {0, is_real ? given.real : static_cast<double>(given.integer), true};
    if (!integer_fits(dtype, given.integer))
        fail_parameter(index.kernel, parameter, ErrorKind::value, "is out of range", std::to_string(given.integer),
                       concat("pass a value that ", dtype_name(dtype), " holds"));
    return {given.integer, 0, true};
}

}  // namespace gristmill
