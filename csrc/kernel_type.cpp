#include "kernel_type.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <structmember.h>

#include <array>
#include <cstddef>

#include "call.hpp"
#include "guard.hpp"
#include "trial.hpp"
#include "tuning_file.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gristmill {

namespace {

struct KernelObject {
    PyObject head;
    vectorcallfunc entry;
    const Dispatcher* dispatcher;
};

PyObject* call_kernel(PyObject* self, PyObject* const* values, std::size_t count, PyObject* names) {
    return guarded([&] {
        const Callable& callable = reinterpret_cast<KernelObject*>(self)->dispatcher->callable();
        call(callable, {values, static_cast<std::size_t>(PyVectorcall_NARGS(count)), names});
        return Py_NewRef(Py_None);
    });
}

nb::object name_of(const Dispatcher& self) { return nb::str(self.kernel().name); }
nb::object doc_of(const Dispatcher& self) { return nb::str(self.kernel().doc); }
nb::object source_of(const Dispatcher& self) { return nb::str(self.kernel().source); }
nb::object text_signature_of(const Dispatcher& self) { return nb::cast(self.text_signature()); }
nb::object signature_of(const Dispatcher& self) { return self.signature(); }
nb::object dtypes_of(const Dispatcher& self) { return self.supported_dtypes(); }
nb::object instances_of(const Dispatcher& self) { return self.instances(); }
nb::object text_of(const Dispatcher& self) {
    return nb::cast(concat("<kernel ", self.kernel().name, self.text_signature(), ">"));
}

template <nb::object (*get)(const Dispatcher&)>
PyObject* getter(PyObject* self, void*) {
    return guarded([&] { return get(*reinterpret_cast<KernelObject*>(self)->dispatcher).release().ptr(); });
}

// The object that the module has under the kernel's name.
PyObject* backward_of(PyObject* self, void*) {
    return guarded([&] {
        const int backward = reinterpret_cast<KernelObject*>(self)->dispatcher->kernel().backward;
        if (backward < 0) return Py_NewRef(Py_None);
        const auto name = nb::cast<std::string>(nb::handle(self).type().attr("__module__"));
        const char* gradient = tables.kernels[static_cast<std::size_t>(backward)].name;
        return nb::object(nb::module_::import_(name.c_str()).attr(gradient)).release().ptr();
    });
}

PyObject* repr(PyObject* self) { return getter<text_of>(self, nullptr); }

PyGetSetDef attributes[] = {
    {"__name__", getter<name_of>, nullptr, nullptr, nullptr},
    {"__qualname__", getter<name_of>, nullptr, nullptr, nullptr},
    {"__doc__", getter<doc_of>, nullptr, nullptr, nullptr},
    {"__text_signature__", getter<text_signature_of>, nullptr, nullptr, nullptr},
    {"__signature__", getter<signature_of>, nullptr, nullptr, nullptr},
    {"source", getter<source_of>, nullptr, nullptr, nullptr},
    {"supported_dtypes", getter<dtypes_of>, nullptr,
     "Names of dtypes; tuples of them where there are several dtype variables.", nullptr},
    {"instances", getter<instances_of>, nullptr, nullptr, nullptr},
    {"backward", backward_of, nullptr, "The kernel of its gradient; None if there is none.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(KernelObject, entry), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_repr, reinterpret_cast<void*>(repr)},
    {Py_tp_getset, attributes},
    {Py_tp_members, members},
    {0, nullptr},
};

// Python does not check whose `self` it is: `Dispatcher.info(3)`.
const Dispatcher& dispatcher_of(nb::handle self, nb::handle type) {
    if (self.type().is(type)) return *reinterpret_cast<KernelObject*>(self.ptr())->dispatcher;
    throw Failure(ErrorKind::type, {.what = "`self` is no kernel", .found = nb::repr(self).c_str()});
}

// Of the package `gristmill`, which wheels of others need for tuning only.
nb::object tuning_module() {
    try {
        return nb::module_::import_("gristmill.runtime.tune");
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_ImportError)) throw;
        throw Failure(ErrorKind::runtime, {.what = "tuning needs the package gristmill, which is not installed here",
                                           .found = nb::str(error.value()).c_str(),
                                           .fix = "pip install gristmill"});
    }
}

void add_tuning(nb::handle type) {
    const nb::scope scope(type);
    nb::cpp_function_def(
        [](nb::handle self, const nb::args& arguments, const nb::kwargs& named) {
            return tuning_module().attr("tune")(self, *arguments, **named);
        },
        scope, nb::name("tune"), nb::is_method(),
        "Measure every configuration for a call like this one, on copies of the arrays; calls like it then take the "
        "fastest. Returns what was measured, which `save(path)` adds to a tuned table.");
    nb::cpp_function_def(
        [type](nb::handle self, nb::handle table) { return load_tuning(table, &dispatcher_of(self, type).kernel()); },
        scope, nb::name("load_tuning"), nb::is_method(), "table"_a,
        "Take this kernel's rows of a tuned table, a file or its content; returns how many there are.");
    nb::cpp_function_def(
        [type](nb::handle self, const nb::args& arguments, const nb::kwargs& named) {
            return std::make_unique<Trial>(dispatcher_of(self, type), arguments, named);
        },
        scope, nb::name("trial"), nb::is_method(),
        "The configurations that could serve this call, on copies of its arrays: what `tune` is made of.");
}

void add_methods(nb::handle type) {
    const nb::scope scope(type);
    nb::cpp_function_def(
        [type](nb::handle self, nb::handle dtype, const nb::args& constants, const nb::kwargs& named) {
            return dispatcher_of(self, type).dispatch(dtype, constants, named);
        },
        scope, nb::name("dispatch"), nb::is_method(), "dtype"_a.none() = nb::none(), "constants"_a, "named"_a,
        "The KernelInstance for a dtype (a tuple or dict of several) and constants, in declaration order or by name.");
    nb::cpp_function_def([type](nb::handle self, int device) { dispatcher_of(self, type).preload(device); }, scope,
                         nb::name("preload"), nb::is_method(), "device"_a = 0,
                         "Load every specialisation for a CUDA device, so that no later call waits for the GPU.");
    nb::cpp_function_def(
        [type](nb::handle self, const nb::args& arguments, const nb::kwargs& named) {
            return dispatcher_of(self, type).info(arguments, named);
        },
        scope, nb::name("info"), nb::is_method(),
        "What would run for these arguments; for `device=`, the image of each specialisation; else what is built.");
}

}  // namespace

nb::object make_kernel_type(nb::module_& m) {
    static const std::string name = concat(nb::cast<std::string>(m.attr("__name__")), ".Dispatcher");
    constexpr auto flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION;
    PyType_Spec spec{name.c_str(), sizeof(KernelObject), 0, static_cast<unsigned>(flags), slots};
    nb::object type = nb::steal(PyType_FromSpec(&spec));
    if (!type.is_valid()) throw nb::python_error();
    add_methods(type);
    add_tuning(type);
    return type;
}

nb::object make_kernel_object(nb::handle type, const Dispatcher& dispatcher) {
    auto* made = PyObject_New(KernelObject, reinterpret_cast<PyTypeObject*>(type.ptr()));
    if (!made) throw nb::python_error();
    made->entry = call_kernel;
    made->dispatcher = &dispatcher;
    return nb::steal(reinterpret_cast<PyObject*>(made));
}

}  // namespace gristmill
