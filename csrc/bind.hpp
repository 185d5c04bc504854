// Binding a Python call to a kernel's parameters, constants and stream.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>

#include "arrays.hpp"
#include "dispatch.hpp"
#include "stream.hpp"

namespace gristmill {

class KnownCalls;

// A kernel as calls see it.
struct Callable {
    const KernelIndex& index;
    const Specialisation* only;  // an instance's; null: chosen at each call
    KnownCalls& known;
};

// Whether an argument is left out: null or None.
inline bool is_missing(PyObject* object) { return !object || object == Py_None; }

// The arguments of a Python call, borrowed: as in a vectorcall, the values of keywords follow the others.
struct CallArguments {
    PyObject* const* values;
    std::size_t count;  // without keywords
    PyObject* names;    // tuple of the keywords; null: none
};

// The same of a call that comes with a tuple and a dict. Lives as long as the call.
class PackedArguments {
public:
    // `keywords` may be null. Hold the GIL.
    PackedArguments(PyObject* positional, PyObject* keywords);
    const CallArguments& arguments() const { return arguments_; }

private:
    // With one keyword more than there are names, or one argument more than parameters, a call fails.
    static constexpr std::size_t most_keywords = most_parameters + most_constants + 3;
    std::array<PyObject*, most_parameters + most_keywords> values_;
    nanobind::object names_;
    CallArguments arguments_;
};

// One call, from its Python arguments to a plan. Lives on the stack; holds the arrays.
class Bound {
public:
    // Hold the GIL. Raises Failure naming kernel and argument.
    Bound(const Callable& callable, const CallArguments& given);

    const Callable& callable() const { return callable_; }
    const KernelIndex& index() const { return callable_.index; }
    const Specialisation* only() const { return callable_.only; }
    const Arguments& arguments() const { return arguments_; }
    PyObject* object(std::size_t parameter) const { return objects_[parameter]; }  // null: left out
    std::span<const TypeInfo* const> types() const { return std::span(types_).first(array_count_); }  // of the arrays
    ArgumentArrays& arrays() { return arrays_; }
    PyObject* grid() const { return grid_; }  // the value of `grid=`; null
    // The caller's stream, a framework's, an array's own, or the default stream.
    cuda::Stream stream();

private:
    void bind_positional(const CallArguments& given);
    void bind_keywords(const CallArguments& given);
    void bind_keyword(PyObject* name, PyObject* value);
    void bind_constant(std::size_t constant, PyObject* value);
    [[noreturn]] void fail_missing() const;
    void read_arrays();
    void read_array(std::size_t parameter, const TypeInfo& type, const StreamChoice& streams);
    void read_scalars();

    const Kernel& kernel() const { return callable_.index.kernel; }

    const Callable& callable_;
    PyObject* stream_ = nullptr;
    PyObject* grid_ = nullptr;
    std::array<PyObject*, most_parameters> objects_;
    std::array<const TypeInfo*, most_parameters> types_;  // of the arrays, in order
    std::size_t array_count_ = 0;
    Arguments arguments_;
    ArgumentArrays arrays_;
};

}  // namespace gristmill
