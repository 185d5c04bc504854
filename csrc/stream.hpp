// The stream of a call: the caller's, or the current one of the framework that the arrays come from.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <span>

#include "driver.hpp"
#include "types.hpp"

namespace gristmill {

class StreamChoice {
public:
    // `given` is the value of `stream=`: null, None, an int, or an object with `__cuda_stream__`.
    StreamChoice(PyObject* given, std::span<const TypeInfo* const> types) : given_(given), types_(types) {}

    // Empty if neither the caller nor a framework names one. Hold the GIL. Raises Failure for a `stream=` that is none.
    std::optional<cuda::Stream> find(int device) const;

private:
    PyObject* given_;
    std::span<const TypeInfo* const> types_;
};

// The current stream of the framework that has this API. Raises Failure.
cuda::Stream exchange_stream(const dlpack::ExchangeApi& api, int device);

// Whether both name one stream; 0 and 1 are the legacy default stream.
bool is_same_stream(cuda::Stream a, cuda::Stream b);

// Make what comes next on `stream` wait for what is already on `earlier`.
void order_after(const cuda::Api& api, cuda::Stream stream, cuda::Stream earlier);

}  // namespace gristmill
