// The extension module: one dispatcher for each kernel, and nothing else of its own.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "call.hpp"
#include "dispatcher.hpp"
#include "report.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gristmill;

namespace {

PyObject* python_type(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::type: return PyExc_TypeError;
        case ErrorKind::value: return PyExc_ValueError;
        default: return PyExc_RuntimeError;
    }
}

void translate(const std::exception_ptr& pending, void*) {
    try {
        std::rethrow_exception(pending);
    } catch (const Failure& failure) {
        PyErr_SetString(python_type(failure.kind()), failure.what());
    }
}

// The `tp_call` of types whose call is one of ours: no dispatch of nanobind's in between.
template <class Self, class Body>
PyObject* guarded(PyObject* self, Body body) {
    try {
        body(*nb::inst_ptr<Self>(self));
        return Py_NewRef(Py_None);
    } catch (const Failure& failure) {
        PyErr_SetString(python_type(failure.kind()), failure.what());
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

PyObject* call_dispatcher(PyObject* self, PyObject* positional, PyObject* keywords) {
    return guarded<Dispatcher>(self, [=](const Dispatcher& target) { call(target.callable(), positional, keywords); });
}

PyObject* call_launcher(PyObject* self, PyObject* positional, PyObject* keywords) {
    return guarded<GridLauncher>(self, [=](const GridLauncher& target) {
        call(target.instance.callable(), positional, keywords, target.grid.ptr());
    });
}

nb::object name_of(const Dispatcher& self) { return nb::str(self.kernel().name); }
nb::object doc_of(const Dispatcher& self) { return nb::str(self.kernel().doc); }
nb::object text_signature_of(const Dispatcher& self) { return nb::cast(self.text_signature()); }
nb::object signature_of(const Dispatcher& self) { return self.signature(); }

template <nb::object (*get)(const Dispatcher&)>
PyObject* getter(PyObject* self, void*) {
    try {
        return get(*nb::inst_ptr<Dispatcher>(self)).release().ptr();
    } catch (nb::python_error& error) {
        error.restore();
    }
    return nullptr;
}

// What functions have: a type does not let these be set after it is made.
PyGetSetDef dispatcher_attributes[] = {
    {"__name__", getter<name_of>, nullptr, nullptr, nullptr},
    {"__qualname__", getter<name_of>, nullptr, nullptr, nullptr},
    {"__doc__", getter<doc_of>, nullptr, nullptr, nullptr},
    {"__text_signature__", getter<text_signature_of>, nullptr, nullptr, nullptr},
    {"__signature__", getter<signature_of>, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot dispatcher_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(call_dispatcher)}, {Py_tp_getset, dispatcher_attributes}, {0, nullptr}};
PyType_Slot launcher_slots[] = {{Py_tp_call, reinterpret_cast<void*>(call_launcher)}, {0, nullptr}};

void bind_instance(nb::module_& m) {
    nb::class_<Instance>(m, "KernelInstance", "One picked specialisation of a kernel.")
        .def_prop_ro("name", [](const Instance& self) { return self.kernel().name; })
        .def_prop_ro("id", [](const Instance& self) { return self.row().id; })
        .def_prop_ro("entry_point", [](const Instance& self) { return self.row().entries[0].symbol; })
        .def_prop_ro("dtypes", &Instance::dtypes, "Names of dtypes, by dtype variable.")
        .def_prop_ro("constants", &Instance::constants)
        .def_prop_ro("num_warps", [](const Instance& self) { return self.row().num_warps; })
        .def_prop_ro("num_stages", [](const Instance& self) { return self.row().num_stages; })
        .def_prop_ro("source", [](const Instance& self) { return self.kernel().source; })
        .def_prop_ro("images", &Instance::images)
        .def_prop_ro("backward", &Instance::backward,
                     "The gradient kernel's instance with the same dtypes and constants, or None.")
        .def("ptx", &Instance::ptx, "target"_a, "variant"_a = "a32",
             "The PTX text built for a target, as in \"sm_80\".")
        .def(
            "launch",
            [](const Instance& self, const nb::args& arguments, const nb::kwargs& named) {
                call(self.callable(), arguments.ptr(), named.ptr());
            },
            "Run with the kernel's arguments; `grid=` replaces the kernel's own, `stream=` the current stream.")
        .def("__getitem__", [](const Instance& self, nb::object grid) { return GridLauncher{self, std::move(grid)}; })
        .def("__eq__", [](const Instance& self, const Instance& other) { return &self.row() == &other.row(); })
        .def("__hash__", [](const Instance& self) { return reinterpret_cast<std::intptr_t>(&self.row()); })
        .def("__repr__", &Instance::text);
    nb::class_<GridLauncher>(m, "GridLauncher", nb::type_slots(launcher_slots),
                             "A KernelInstance with a grid: call it with the kernel's arguments.")
        .def("__repr__", [](const GridLauncher& self) {
            return concat(self.instance.text(), "[", nb::repr(self.grid).c_str(), "]");
        });
}

void bind_dispatcher(nb::module_& m) {
    nb::class_<Dispatcher>(m, "Dispatcher", nb::type_slots(dispatcher_slots))
        .def_prop_ro("source", [](const Dispatcher& self) { return self.kernel().source; })
        .def_prop_ro("supported_dtypes", &Dispatcher::supported_dtypes,
                     "Names of dtypes; tuples of them where there are several dtype variables.")
        .def_prop_ro("instances", &Dispatcher::instances)
        .def("dispatch", &Dispatcher::dispatch, "dtype"_a.none() = nb::none(), "constants"_a, "named"_a,
             "The KernelInstance for a dtype (a tuple or dict of several) and constants, in declaration order or by "
             "name.")
        .def("preload", &Dispatcher::preload, "device"_a = 0,
             "Load every specialisation for a CUDA device, so that no later call waits for the GPU.")
        .def("info", &Dispatcher::info,
             "What would run for these arguments; for `device=`, the image of each specialisation; else what is built.")
        .def("__repr__",
             [](const Dispatcher& self) { return concat("<kernel ", self.kernel().name, self.text_signature(), ">"); });
}

void preload(std::optional<int> device) {
    const int ordinal = device ? *device : current_device();
    for (const auto& kernel : tables.kernels) preload_kernel(kernel, ordinal);
}

void add_kernels(nb::module_& m) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < tables.kernels.size(); ++i) {
        names.emplace_back(tables.kernels[i].name);
        m.attr(tables.kernels[i].name) = nb::cast(&dispatcher(i), nb::rv_policy::reference);
    }
    std::ranges::sort(names);
    nb::list all;
    for (const auto& name : names) all.append(name);
    m.attr("__all__") = all;
}

}  // namespace

NB_MODULE(GRISTMILL_MODULE, m) {
    nb::set_leak_warnings(false);  // dispatchers live as long as the process
    nb::register_exception_translator(translate);
    bind_instance(m);
    bind_dispatcher(m);
    m.def("info", &package_info, "What the package holds. Does not touch CUDA.");
    m.def("doctor", &doctor, "(check, status, text) for each thing that calls need; may initialise CUDA.");
    m.def("preload", &preload, "device"_a.none() = nb::none(),
          "Load every kernel for a CUDA device (None: the current one), so that no later call waits for the GPU.");
    add_kernels(m);
}
