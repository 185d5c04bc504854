// The extension module: one dispatcher for each kernel, and nothing else of its own.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "call.hpp"
#include "dispatcher.hpp"
#include "guard.hpp"
#include "kernel_type.hpp"
#include "report.hpp"
#include "trial.hpp"
#include "tuning_file.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gristmill;

namespace {

void translate(const std::exception_ptr& pending, void*) {
    try {
        std::rethrow_exception(pending);
    } catch (const Failure& failure) {
        PyErr_SetString(python_type(failure.kind()), failure.what());
    }
}

PyObject* call_launcher(PyObject* self, PyObject* positional, PyObject* keywords) {
    return guarded([&] {
        const auto& target = *nb::inst_ptr<GridLauncher>(self);
        call(target.instance.callable(), PackedArguments(positional, keywords).arguments(), target.grid.ptr());
        return Py_NewRef(Py_None);
    });
}

PyObject* launch_instance(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
    return guarded([&] {
        call(nb::inst_ptr<Instance>(self)->callable(), {values, static_cast<std::size_t>(count), names});
        return Py_NewRef(Py_None);
    });
}

PyType_Slot launcher_slots[] = {{Py_tp_call, reinterpret_cast<void*>(call_launcher)}, {0, nullptr}};

// Not through nanobind, which would pack the arguments into a tuple.
PyMethodDef instance_methods[] = {
    {"launch", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(launch_instance)),
     METH_FASTCALL | METH_KEYWORDS,
     "Run with the kernel's arguments; `grid=` replaces the kernel's own, `stream=` the current stream."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot instance_slots[] = {{Py_tp_methods, instance_methods}, {0, nullptr}};

void bind_instance(nb::module_& m) {
    nb::class_<Instance>(m, "KernelInstance", nb::type_slots(instance_slots),
                         "One picked specialisation of a kernel.")
        .def_prop_ro("name", [](const Instance& self) { return self.kernel().name; })
        .def_prop_ro("id", [](const Instance& self) { return self.row().id; })
        .def_prop_ro("entry_point", [](const Instance& self) { return self.row().entries[0].symbol; })
        .def_prop_ro("dtypes", &Instance::dtypes, "Names of dtypes, by dtype variable.")
        .def_prop_ro("constants", &Instance::constants)
        .def_prop_ro("num_warps", [](const Instance& self) { return self.row().num_warps; })
        .def_prop_ro("num_stages", [](const Instance& self) { return self.row().num_stages; })
        .def_prop_ro("only_aligned", [](const Instance& self) { return is_only_aligned(self.row()); },
                     "Whether it is compiled for aligned calls only (`aligned=True`).")
        .def_prop_ro("source", [](const Instance& self) { return self.kernel().source; })
        .def_prop_ro("images", &Instance::images)
        .def("info", &Instance::info,
             "What its code takes in each CUDA image: threads, registers, shared memory, spills, occupancy.")
        .def_prop_ro("backward", &Instance::backward,
                     "The gradient kernel's instance with the same dtypes and constants, or None.")
        .def("ptx", &Instance::ptx, "target"_a, "variant"_a = "a32",
             "The PTX text built for a target, as in \"sm_80\".")
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

void bind_trial(nb::module_& m) {
    nb::class_<Trial>(m, "Trial", "One call in every configuration that could serve it, on copies of its arrays.")
        .def_prop_ro("kernel", &Trial::kernel)
        .def_prop_ro("place", &Trial::place, "Device, architecture and units, as in a tuned table.")
        .def_prop_ro("key_names", &Trial::key_names)
        .def_prop_ro("key", &Trial::key)
        .def_prop_ro("constants", &Trial::constants, "Those that the call names.")
        .def_prop_ro("dtypes", &Trial::dtypes)
        .def_prop_ro("candidates", &Trial::candidates,
                     "(specialisation, variant) of each; the first is taken without a tuned table.")
        .def("check", &Trial::check, "candidate"_a,
             "Run once; how far the outputs are from the first candidate's: at most 1 is right.")
        .def("time", &Trial::time, "candidate"_a, "is_warm"_a = false, "Microseconds of one call.");
}

void preload(std::optional<int> device) {
    const int ordinal = device ? *device : current_device();
    for (const auto& kernel : tables.kernels) preload_kernel(kernel, ordinal);
}

void add_kernels(nb::module_& m) {
    std::vector<std::string> names;
    m.attr("Dispatcher") = make_kernel_type(m);
    for (std::size_t i = 0; i < tables.kernels.size(); ++i) {
        names.emplace_back(tables.kernels[i].name);
        m.attr(tables.kernels[i].name) = make_kernel_object(m.attr("Dispatcher"), dispatcher(i));
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
    bind_trial(m);
    m.def("info", &package_info, "What the package holds. Does not touch CUDA.");
    m.def("doctor", &doctor, "(check, status, text) for each thing that calls need; may initialise CUDA.");
    m.def("preload", &preload, "device"_a.none() = nb::none(),
          "Load every kernel for a CUDA device (None: the current one), so that no later call waits for the GPU.");
    m.def(
        "load_tuning", [](nb::handle table) { return load_tuning(table, nullptr); }, "table"_a,
        "Take these kernels' rows of a tuned table, a file or its content; returns how many there are.");
    add_kernels(m);
    load_tuning_from_environment();
}
