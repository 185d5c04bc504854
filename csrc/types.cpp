#include "types.hpp"

#include <deque>
#include <string_view>

#include "error.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

std::string text_attribute(PyObject* object, const char* name) {
    const auto value = nb::getattr(nb::handle(object), name, nb::none());
    return nb::isinstance<nb::str>(value) ? std::string(nb::borrow<nb::str>(value).c_str()) : std::string();
}

Framework framework_of(std::string_view module) {
    if (module == "torch" || module.starts_with("torch.")) return Framework::torch;
    if (module == "cupy" || module.starts_with("cupy.")) return Framework::cupy;
    if (module.starts_with("jax")) return Framework::jax;
    return Framework::other;
}

const dlpack::ExchangeApi* exchange_api(nb::handle type) {
    const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
    if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
    auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    while (api && api->version.major != 1) api = api->previous;
    return api;
}

// Types come before instances: a module may give an interface to single objects only, so those are asked too.
Protocol protocol_of(PyObject* object, const TypeInfo& info) {
    const auto has = [type = nb::handle(reinterpret_cast<PyObject*>(info.type))](const char* name) {
        return nb::hasattr(type, name);
    };
    if (info.api) return Protocol::exchange;
    const bool has_buffer = PyObject_CheckBuffer(object);
    if (has_buffer && has("__array_interface__") && has("dtype")) return Protocol::numpy;
    if (has("__dlpack__") && has("__dlpack_device__")) return Protocol::capsule;
    if (nb::hasattr(nb::handle(object), "__cuda_array_interface__")) return Protocol::cuda_interface;
    if (has_buffer) return Protocol::buffer;
    if (has("__array_interface__")) return Protocol::host_interface;
    return Protocol::none;
}

TypeInfo inspect(PyObject* object) {
    TypeInfo info{Py_TYPE(object), Protocol::none, Framework::other, nullptr, nullptr};
    const nb::handle type(reinterpret_cast<PyObject*>(info.type));
    info.framework = framework_of(text_attribute(type.ptr(), "__module__"));
    info.api = exchange_api(type);
    info.protocol = protocol_of(object, info);
    if (nb::hasattr(type, "is_neg")) info.is_negated = nb::object(type.attr("is_neg")).release().ptr();
    return info;
}

}  // namespace

const TypeInfo* last_type = nullptr;

const TypeInfo& find_type_info(PyObject* object) {
    static std::deque<TypeInfo> known;
    PyTypeObject* type = Py_TYPE(object);
    for (const TypeInfo& info : known)
        if (info.type == type) return *(last_type = &info);
    TypeInfo info = inspect(object);
    if (info.protocol == Protocol::none) {  // an instance of the same type may still offer one
        static thread_local TypeInfo nothing;
        return nothing = info;
    }
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    return known.emplace_back(info);
}

std::string type_name(PyObject* object) {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    const std::string module = text_attribute(type, "__module__");
    const std::string name = text_attribute(type, "__qualname__");
    return module.empty() || module == "builtins" ? name : concat(module, ".", name);
}

std::string take_python_error() {
    nb::python_error error;
    const std::string text = nb::str(error.value()).c_str();
    return text.substr(0, text.find('\n'));
}

}  // namespace gristmill
