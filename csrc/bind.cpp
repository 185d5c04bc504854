#include "bind.hpp"

#include <algorithm>

#include "dtype.hpp"
#include "scalars.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

std::string name_text(PyObject* name) { return nb::borrow<nb::str>(name).c_str(); }

bool is_derived(const Parameter& parameter) {
    return parameter.kind != ParameterKind::pointer && parameter.kind != ParameterKind::scalar;
}

std::string signature_text(const Kernel& kernel) {
    std::string text = listed(kernel.parameters, [](const Parameter& parameter) {
        return concat(parameter.name, is_derived(parameter) ? "=None" : parameter.has_default ? "=..." : "");
    });
    for (const char* constant : kernel.constants) text.append(concat(", ", constant, "=..."));
    return concat(kernel.name, "(", text, ", stream=None)");
}

[[noreturn]] void fail_call(const Kernel& kernel, std::string what, std::string found = {}) {
    throw Failure(ErrorKind::type, {.what = concat(kernel.name, ": ", what),
                                    .found = std::move(found),
                                    .fix = concat("call it as `", signature_text(kernel), "`")});
}

[[noreturn]] void fail_array(const Kernel& kernel, const Parameter& parameter, const ArrayProblem& problem) {
    std::string supported = problem.supported;
    if (parameter.kind == ParameterKind::pointer && parameter.dtype_var >= 0 &&
        problem.found.starts_with("elements of"))
        supported = built_dtypes(kernel);
    throw Failure(problem.kind, {.what = concat(kernel.name, ": `", parameter.name, "` cannot be an argument"),
                                 .found = problem.found,
                                 .supported = std::move(supported),
                                 .fix = problem.fix});
}

}  // namespace

PackedArguments::PackedArguments(PyObject* positional, PyObject* keywords) {
    const auto count = static_cast<std::size_t>(PyTuple_Size(positional));
    const std::size_t kept = std::min(count, most_parameters);
    for (std::size_t i = 0; i < kept; ++i) values_[i] = PyTuple_GetItem(positional, static_cast<Py_ssize_t>(i));
    if (keywords) {
        names_ = nb::steal(PySequence_Tuple(keywords));
        if (!names_.is_valid()) throw nb::python_error();
        PyObject *name = nullptr, *value = nullptr;
        Py_ssize_t position = 0;
        for (std::size_t i = kept; i < kept + most_keywords && PyDict_Next(keywords, &position, &name, &value); ++i)
            values_[i] = value;
    }
    arguments_ = {values_.data(), count, names_.ptr()};
}

Bound::Bound(const Callable& callable, const CallArguments& given) : callable_(callable) {
    arguments_.dtypes.fill(unbound);
    bind_positional(given);
    if (given.names) bind_keywords(given);
    read_arrays();
    read_scalars();
    fill_index_parameters(index(), arguments_);
}

void Bound::bind_positional(const CallArguments& given) {
    if (given.count > index().parameter_count())
        fail_call(kernel(),
                  concat("takes ", index().parameter_count(), " arguments",
                         kernel().constants.empty() ? "" : " (constants by keyword)"),
                  concat(given.count, " arguments"));
    std::copy_n(given.values, given.count, objects_.begin());
    std::fill_n(objects_.begin() + given.count, index().parameter_count() - given.count, nullptr);
}

void Bound::bind_keywords(const CallArguments& given) {
    const auto count = static_cast<std::size_t>(PyTuple_Size(given.names));
    for (std::size_t i = 0; i < count; ++i)
        bind_keyword(PyTuple_GetItem(given.names, static_cast<Py_ssize_t>(i)), given.values[given.count + i]);
}

void Bound::bind_keyword(PyObject* name, PyObject* value) {
    const std::string_view text = nb::borrow<nb::str>(name).c_str();
    if (const int parameter = index().parameter(text); parameter >= 0) {
        PyObject*& slot = objects_[static_cast<std::size_t>(parameter)];
        if (slot) fail_call(kernel(), concat("`", text, "` is given twice"));
        slot = value;
        return;
    }
    if (const int constant = index().constant(text); constant >= 0)
        return bind_constant(static_cast<std::size_t>(constant), value);
    if (text == "stream")
        stream_ = value;
    else if (text == "grid")
        grid_ = value;
    else
        fail_call(kernel(), concat("has no parameter `", name_text(name), "`"));
}

void Bound::bind_constant(std::size_t constant, PyObject* value) {
    if (value == Py_None) return;
    const char* name = kernel().constants[constant];
    const ConstantValue given = read_constant(kernel(), name, value);
    arguments_.constants.set(constant, given);
    if (!callable_.only || is_equal(given, callable_.only->constants[constant])) return;
    throw Failure(ErrorKind::value, {.what = concat(callable_.only->id, ": this instance has another `", name, "`"),
                                     .asked = concat(name, "=", describe_constant(given)),
                                     .built = concat(name, "=", describe_constant(callable_.only->constants[constant])),
                                     .fix = concat("leave `", name, "` out, or take another instance from `",
                                                   kernel().name, ".dispatch(...)`")});
}

void Bound::fail_missing() const {
    std::string missing;
    for (std::size_t i = 0; i < kernel().parameters.size(); ++i) {
        const Parameter& parameter = kernel().parameters[i];
        if (!is_missing(objects_[i]) || is_derived(parameter) || parameter.has_default) continue;
        missing.append(missing.empty() ? "" : ", ").append(concat("`", parameter.name, "`"));
    }
    fail_call(kernel(), concat("needs ", missing));
}

void Bound::read_arrays() {
    for (const auto i : index().arrays()) {
        if (is_missing(objects_[i])) fail_missing();
        types_[array_count_++] = &type_info(objects_[i]);
    }
    const StreamChoice streams(stream_, types());
    std::size_t array = 0;
    for (const auto i : index().arrays()) read_array(i, *types_[array++], streams);
}

void Bound::read_array(std::size_t parameter, const TypeInfo& type, const StreamChoice& streams) {
    try {
        arguments_.views[parameter] = &arrays_.add(objects_[parameter], type, streams).view();
    } catch (const ArrayProblem& problem) {
        fail_array(kernel(), kernel().parameters[parameter], problem);
    }
    const View& view = *arguments_.views[parameter];
    arguments_.integers[parameter] = 0;
    bind_array(index(), parameter, view, arguments_);
}

void Bound::read_scalars() {
    for (const auto i : index().values()) {
        const Slot& slot = index().slot(i);
        if (is_missing(objects_[i])) {
            if (slot.is_scalar() && !slot.has_default) fail_missing();
            arguments_.set_scalar(i, slot.is_scalar() ? default_scalar(kernel().parameters[i]) : Scalar{});
        } else if (!slot.is_scalar()) {
            arguments_.set_scalar(i, read_index(kernel(), kernel().parameters[i], objects_[i]));
        } else {
            const Dtype bound =
                slot.dtype_var < 0 ? slot.dtype : arguments_.dtypes[static_cast<std::size_t>(slot.dtype_var)];
            arguments_.set_scalar(
                i, read_scalar(kernel(), kernel().parameters[i], bound == unbound ? Dtype::f64 : bound, objects_[i]));
        }
    }
}

cuda::Stream Bound::stream() {
    const StreamChoice streams(stream_, types());
    if (const auto stream = streams.find(arguments_.device.ordinal)) return *stream;
    for (const ArrayArgument& array : arrays_)
        if (array.producer_stream()) return *array.producer_stream();
    return nullptr;
}

}  // namespace gristmill
