#include "bind.hpp"

#include <algorithm>

#include "dtype.hpp"
#include "scalars.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

std::string name_text(PyObject* name) { return nb::borrow<nb::str>(name).c_str(); }

bool is_missing(PyObject* object) { return !object || object == Py_None; }

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

Bound::Bound(const Callable& callable, PyObject* positional, PyObject* keywords) : callable_(callable) {
    std::fill_n(objects_.begin(), kernel().parameters.size(), nullptr);
    arguments_.dtypes.fill(unbound);
    bind_positional(positional);
    if (keywords) bind_keywords(keywords);
    require_all();
    read_arrays();
    read_scalars();
    fill_index_parameters(index(), arguments_);
}

void Bound::bind_positional(PyObject* positional) {
    const auto count = static_cast<std::size_t>(PyTuple_Size(positional));
    if (count > kernel().parameters.size())
        fail_call(kernel(),
                  concat("takes ", kernel().parameters.size(), " arguments",
                         kernel().constants.empty() ? "" : " (constants by keyword)"),
                  concat(count, " arguments"));
    for (std::size_t i = 0; i < count; ++i) objects_[i] = PyTuple_GetItem(positional, static_cast<Py_ssize_t>(i));
}

void Bound::bind_keywords(PyObject* keywords) {
    PyObject *name = nullptr, *value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(keywords, &position, &name, &value)) bind_keyword(name, value);
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

void Bound::require_all() const {
    std::string missing;
    for (std::size_t i = 0; i < kernel().parameters.size(); ++i) {
        const Parameter& parameter = kernel().parameters[i];
        if (!is_missing(objects_[i]) || is_derived(parameter) || parameter.has_default) continue;
        missing.append(missing.empty() ? "" : ", ").append(concat("`", parameter.name, "`"));
    }
    if (!missing.empty()) fail_call(kernel(), concat("needs ", missing));
}

void Bound::read_arrays() {
    for (const auto i : index().arrays()) types_[array_count_++] = &type_info(objects_[i]);
    const StreamChoice streams(stream_, std::span(types_).first(array_count_));
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
    bind_dtype(kernel(), parameter, view.dtype, arguments_);
    bind_device(kernel(), parameter, view, arguments_);
}

void Bound::read_scalars() {
    for (const auto i : index().values()) {
        const Parameter& parameter = kernel().parameters[i];
        if (is_missing(objects_[i])) {
            arguments_.set_scalar(i, default_scalar(parameter));
        } else if (is_derived(parameter)) {
            arguments_.set_scalar(i, read_index(kernel(), parameter, objects_[i]));
        } else {
            const Dtype bound = parameter.dtype_var < 0
                                    ? parameter.dtype
                                    : arguments_.dtypes[static_cast<std::size_t>(parameter.dtype_var)];
            arguments_.set_scalar(i,
                                  read_scalar(kernel(), parameter, bound == unbound ? Dtype::f64 : bound, objects_[i]));
        }
    }
}

cuda::Stream Bound::stream() {
    const StreamChoice streams(stream_, std::span(types_).first(array_count_));
    if (const auto stream = streams.find(arguments_.device.ordinal)) return *stream;
    for (const ArrayArgument& array : arrays_)
        if (array.producer_stream()) return *array.producer_stream();
    return nullptr;
}

}  // namespace gristmill
