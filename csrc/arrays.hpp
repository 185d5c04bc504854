// Array arguments: a Python object read as a View, through the quickest protocol that its type has.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver.hpp"
#include "error.hpp"
#include "types.hpp"
#include "view.hpp"

namespace gristmill {

class StreamChoice;

// Why an object cannot be an argument; whoever knows the kernel and the parameter makes a Failure of it.
struct ArrayProblem {
    ErrorKind kind;
    std::string found;
    std::string supported = {};
    std::string fix = {};
};

// Borrows the object's memory until it goes.
class ArrayArgument {
public:
    // Hold the GIL. Raises ArrayProblem, or Failure from the driver.
    ArrayArgument(PyObject* object, const TypeInfo& type, const StreamChoice& streams);
    ~ArrayArgument() {
        if (holds_ != Holds::nothing) release();
    }
    ArrayArgument(const ArrayArgument&) = delete;
    ArrayArgument& operator=(const ArrayArgument&) = delete;

    const View& view() const { return view_; }
    // The stream that the data are ready on, where the array names one.
    const std::optional<cuda::Stream>& producer_stream() const { return producer_stream_; }

private:
    // Complete from here on: what a failed read holds is released too.
    ArrayArgument() {}
    void release();
    void read_exchange(PyObject* object, const TypeInfo& type);
    void read_other(PyObject* object, const TypeInfo& type, const StreamChoice& streams);
    void read_capsule(PyObject* object, const StreamChoice& streams);
    void read_buffer(PyObject* object, bool is_numpy);
    void read_interface(PyObject* object, const char* name, DeviceKind kind);
    void take_capsule(nanobind::handle capsule);
    void set_tensor(const dlpack::Tensor& tensor);
    void set_shape(nanobind::handle shape, nanobind::handle strides);

    enum class Holds : std::uint8_t { nothing, buffer, managed, versioned };

    View view_;
    Holds holds_ = Holds::nothing;
    std::optional<cuda::Stream> producer_stream_;
    std::vector<std::int64_t> extents_;  // shape, then strides, where the protocol gives Python tuples
    union {
        Py_buffer buffer_;
        dlpack::Managed* managed_;
        dlpack::ManagedVersioned* versioned_;
    };
};

// Raises ArrayProblem for a torch view whose memory holds the opposite sign. May run Python code.
void refuse_negated(const TypeInfo& type, PyObject* object, const void* data);

// The arrays of one call, in place: no allocation.
class ArgumentArrays {
public:
    ArgumentArrays() = default;
    ~ArgumentArrays() { std::destroy_n(begin(), size_); }
    ArgumentArrays(const ArgumentArrays&) = delete;
    ArgumentArrays& operator=(const ArgumentArrays&) = delete;

    const ArrayArgument& add(PyObject* object, const TypeInfo& type, const StreamChoice& streams) {
        ArrayArgument* added = std::construct_at(begin() + size_, object, type, streams);
        ++size_;
        return *added;
    }
    ArrayArgument* begin() { return reinterpret_cast<ArrayArgument*>(storage_.data()); }
    ArrayArgument* end() { return begin() + size_; }

private:
    std::size_t size_ = 0;
    alignas(ArrayArgument) std::array<std::byte, most_parameters * sizeof(ArrayArgument)> storage_;
};

}  // namespace gristmill
