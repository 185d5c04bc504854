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

bool is_match(const Specialisation& row, const Arguments& asked) {
    for (std::size_t i = 0; i < row.dtypes.size(); ++i)
        if (asked.dtypes[i] != unbound && asked.dtypes[i] != row.dtypes[i]) return false;
    for (std::size_t i = 0; i < row.constants.size(); ++i)
        if (asked.constants.has(i) && !is_equal(asked.constants[i], row.constants[i])) return false;
    return true;
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
    Arguments dtypes_only = asked;
    dtypes_only.constants.clear();
    const bool has_dtypes =
        std::ranges::any_of(kernel.specialisations, [&](const auto& row) { return is_match(row, dtypes_only); });
    const std::string missing = has_dtypes ? "the value to the constant's list in @gm.kernel(...)"
                                           : concat("`gm.", dtype_name(asked.dtypes[0]), "` to the kernel's dtypes");
    std::string built;
    for (const auto& row : kernel.specialisations)
        if (!has_dtypes || is_match(row, dtypes_only)) built.append(built.empty() ? "" : ", ").append(row.id);
    throw Failure(has_dtypes ? ErrorKind::value : ErrorKind::type,
                  {.what = concat(kernel.name, ": no specialisation is built for this"),
                   .asked = asked_text(kernel, asked),
                   .built = built,
                   .fix = concat("add ", missing, ", then rebuild")});
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
    for (const auto& row : kernel().specialisations)
        if (is_match(row, asked)) return Instance(callable_, row);
    fail_dispatch(kernel(), asked);
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

int preload_kernel(const Kernel& kernel, int ordinal) {
    cuda::GpuDevice& device = ready_device(ordinal);
    int loaded = 0;
    const int source = source_for(kernel, device.facts(), device.api().resolver.driver_version());
    for (const auto& row : kernel.specialisations | std::views::filter([&](const auto& r) { return is_built(r, source); }))
        for (const auto variant : {Variant::aligned32, Variant::general32, Variant::general64}) {
            const EntryPlace place{kernel, row, variant};
            if (!place.entry().symbol) continue;
            const bool was_loaded = device.kernel(place.index()).handle != nullptr;
            const cuda::LoadedKernel ready = ready_kernel(place, device);
            ++loaded;
            if (!was_loaded && ready.function) continue;
            const nb::gil_scoped_release released;
            const cuda::ContextScope scope(device);
            const cuda::RelaxedCapture relaxed(device.api());
            cuda::Function function = nullptr;
            cuda::check(device.api(), device.api().cuKernelGetFunction(&function, ready.handle),
                        concat("preloading ", row.id));
            device.keep_function(place.index(), function);
        }
    return loaded;
}

}  // namespace gristmill
