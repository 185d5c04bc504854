// The Python type of dispatchers. Not one of nanobind's: those are called with a tuple, which costs as much as our own
// work for a call.
#pragma once

#include <nanobind/nanobind.h>

#include "dispatcher.hpp"

namespace gristmill {

// The type `Dispatcher` of a module. Raises nanobind::python_error.
nanobind::object make_kernel_type(nanobind::module_& m);

// `dispatcher` must live as long as the process.
nanobind::object make_kernel_object(nanobind::handle type, const Dispatcher& dispatcher);

}  // namespace gristmill
