#include "dispatcher.hpp"

#include <algorithm>
#include <memory>
#include <ranges>

#include "call.hpp"
#include "dtype.hpp"
#include "report.hpp"
#include "scalars.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

nb::object dtypes_object(const Specialisation& row) {
    nb::list names;
    for (const Dtype dtype : row.dtypes) names.append(nb::str(dtype_name(dtype).data()));
    return row.dtypes.size() == 1 ? nb::object(names[0]) : nb::object(nb::tuple(names));
}

[[noreturn]] void fail_dtype_count(const Kernel& kernel, std::size_t found) {
    throw Failure(ErrorKind::type,
                  {.what = concat(kernel.name, ": wrong number of dtypes"),
                   .found = std::to_string(found),
                   .supported = concat(kernel.dtype_vars.size(), ": ",
                                       listed(kernel.dtype_vars, [](const char* name) { return std::string(name); })),
                   .fix = concat("pass a tuple, or a dict by dtype variable; built: ", built_dtypes(kernel))});
}

void read_dtypes(const Kernel& kernel, nb::handle given, Arguments& arguments) {
    if (given.is_none()) return;
    if (nb::isinstance<nb::dict>(given)) {
        const auto named = nb::borrow<nb::dict>(given);
        for (std::size_t i = 0; i < kernel.dtype_vars.size(); ++i)
            if (named.contains(kernel.dtype_vars[i]))
                arguments.dtypes[i] = read_dtype(nb::object(named[kernel.dtype_vars[i]]).ptr());
        return;
    }
    const nb::tuple items = nb::isinstance<nb::tuple>(given) || nb::isinstance<nb::list>(given)
                                ? nb::tuple(given)
                                : nb::make_tuple(nb::borrow(given));
    if (items.size() != kernel.dtype_vars.size()) fail_dtype_count(kernel, items.size());
    for (std::size_t i = 0; i < items.size(); ++i) arguments.dtypes[i] = read_dtype(items[i].ptr());
}

[[noreturn]] void fail_constant_name(const Kernel& kernel, const std::string& name) {
    throw Failure(ErrorKind::type,
                  {.what = concat(kernel.name, ": has no constant `", name, "`"),
                   .supported = listed(kernel.constants, [](const char* constant) { return std::string(constant); }),
                   .fix = "pass constants in declaration order, or by name"});
}

void read_constants(const KernelIndex& index, const nb::args& positional, const nb::kwargs& named,
                    Arguments& arguments) {
    const Kernel& kernel = index.kernel;
    if (positional.size() > kernel.constants.size()) fail_constant_name(kernel, concat("number ", positional.size()));
    for (std::size_t i = 0; i < positional.size(); ++i)
        arguments.constants.set(i, read_constant(kernel, kernel.constants[i], positional[i].ptr()));
    for (const auto& [name, value] : named) {
        const char* text = nb::borrow<nb::str>(name).c_str();
        const int constant = index.constant(text);
        if (constant < 0) fail_constant_name(kernel, text);
        arguments.constants.set(static_cast<std::size_t>(constant), read_constant(kernel, text, value.ptr()));
    }
}

nb::object default_object(const Parameter& parameter) {
    if (parameter.dtype_var >= 0 || is_floating(parameter.dtype)) return nb::float_(parameter.default_value);
    if (parameter.dtype == Dtype::boolean) return nb::bool_(parameter.default_value != 0);
    return nb::int_(static_cast<std::int64_t>(parameter.default_value));
}

bool is_index(const Parameter& parameter) {
    return parameter.kind != ParameterKind::pointer && parameter.kind != ParameterKind::scalar;
}

}  // namespace

nb::tuple Dispatcher::supported_dtypes() const {
    nb::list seen;
    for (const auto& row : kernel().specialisations) {
        const nb::object dtypes = dtypes_object(row);
        if (PySequence_Contains(seen.ptr(), dtypes.ptr()) == 0) seen.append(dtypes);
    }
    return nb::tuple(seen);
}

nb::tuple Dispatcher::instances() const {
    nb::list all;
    for (const auto& row : kernel().specialisations) all.append(nb::cast(Instance(callable_, row)));
    return nb::tuple(all);
}

Instance Dispatcher::dispatch(nb::handle dtype, nb::args constants, nb::kwargs named) const {
    Arguments asked;
    asked.dtypes.fill(unbound);
    read_dtypes(kernel(), dtype, asked);
    read_constants(index_, constants, named, asked);
    return Instance(callable_, find_specialisation(kernel(), asked));
}

void Dispatcher::preload(int device) const { preload_kernel(kernel(), device); }

nb::dict Dispatcher::info(nb::args arguments, nb::kwargs named) const {
    const bool has_call = arguments.size() > 0 || (named.size() > 0 && !named.contains("device"));
    if (has_call) return explain_call(callable_, PackedArguments(arguments.ptr(), named.ptr()).arguments());
    if (named.size() == 0) return kernel_info(kernel());
    return device_info(kernel(), nb::cast<int>(nb::object(named["device"])));
}

std::string Dispatcher::text_signature() const {
    std::string text = "(";
    for (const auto& parameter : kernel().parameters) {
        text.append(text.size() > 1 ? ", " : "").append(parameter.name);
        if (is_index(parameter)) text.append("=None");
        if (parameter.has_default) text.append("=").append(nb::repr(default_object(parameter)).c_str());
    }
    text.append(", *");
    for (const char* constant : kernel().constants) text.append(concat(", ", constant, "=None"));
    return concat(text, ", stream=None)");
}

nb::object Dispatcher::signature() const {
    const nb::object inspect = nb::module_::import_("inspect");
    const nb::object make = inspect.attr("Parameter");
    nb::list parameters;
    const auto add = [&](const char* name, const char* kind) {
        parameters.append(make(name, make.attr(kind), nb::arg("default") = nb::none()));
    };
    for (const auto& parameter : kernel().parameters) {
        if (parameter.has_default)
            parameters.append(make(parameter.name, make.attr("POSITIONAL_OR_KEYWORD"),
                                   nb::arg("default") = default_object(parameter)));
        else if (is_index(parameter))
            add(parameter.name, "POSITIONAL_OR_KEYWORD");
        else
            parameters.append(make(parameter.name, make.attr("POSITIONAL_OR_KEYWORD")));
    }
    for (const char* constant : kernel().constants) add(constant, "KEYWORD_ONLY");
    add("stream", "KEYWORD_ONLY");
    return inspect.attr("Signature")(parameters);
}

const Dispatcher& dispatcher(std::size_t kernel) {
    static const auto all = [] {
        std::vector<std::unique_ptr<const Dispatcher>> made;
        for (const auto& row : tables.kernels) made.push_back(std::make_unique<const Dispatcher>(row));
        return made;
    }();
    return *all.at(kernel);
}

int current_device() {
    const cuda::Api& api = cuda::driver();
    cuda::DeviceId device = 0;
    return api.cuCtxGetDevice(&device) == cuda::success ? device : 0;
}

}  // namespace gristmill
