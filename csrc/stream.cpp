#include "stream.hpp"

#include "error.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

constexpr unsigned event_without_timing = 2;

cuda::Stream handle_of(nb::handle number) {
    const auto value = PyLong_AsUnsignedLongLong(number.ptr());
    if (PyErr_Occurred()) throw nb::python_error();
    return reinterpret_cast<cuda::Stream>(static_cast<std::uintptr_t>(value));
}

[[noreturn]] void fail_stream(nb::handle object) {
    throw Failure(
        ErrorKind::type,
        {.what = "`stream` is no CUDA stream",
         .found = type_name(object.ptr()),
         .supported = "an int (the handle), an object with __cuda_stream__, torch.cuda.Stream, cupy.cuda.Stream, None",
         .fix = "pass the stream's handle, as in `stream=s.cuda_stream`"});
}

// A method by the protocol; some objects have it as a property.
cuda::Stream protocol_handle(nb::handle object) {
    nb::object pair = object.attr("__cuda_stream__");
    if (PyCallable_Check(pair.ptr())) pair = pair();
    return handle_of(nb::object(pair[nb::int_(1)]));
}

cuda::Stream stream_of(nb::handle object) {
    if (PyLong_Check(object.ptr()) && !PyBool_Check(object.ptr())) return handle_of(object);
    if (nb::hasattr(object, "__cuda_stream__")) return protocol_handle(object);
    for (const char* name : {"cuda_stream", "ptr"})
        if (nb::hasattr(object, name)) return handle_of(nb::object(object.attr(name)));
    fail_stream(object);
}

cuda::Stream framework_stream(Framework framework, int device) {
    if (framework == Framework::cupy)
        return handle_of(
            nb::object(nb::module_::import_("cupy").attr("cuda").attr("get_current_stream")().attr("ptr")));
    return handle_of(nb::object(nb::module_::import_("torch").attr("_C").attr("_cuda_getCurrentRawStream")(device)));
}

}  // namespace

std::optional<cuda::Stream> StreamChoice::find(int device) const {
    if (given_ && given_ != Py_None) return stream_of(given_);
    for (const TypeInfo* type : types_)
        if (type->api && type->api->current_stream) return exchange_stream(*type->api, device);
    for (const TypeInfo* type : types_)
        if (type->framework == Framework::cupy || type->framework == Framework::torch)
            return framework_stream(type->framework, device);
    return std::nullopt;
}

cuda::Stream exchange_stream(const dlpack::ExchangeApi& api, int device) {
    void* stream = nullptr;
    if (api.current_stream(dlpack::cuda, device, &stream) != 0)
        throw Failure(ErrorKind::runtime, {.what = concat("the current stream of cuda:", device, " is not known"),
                                           .found = take_python_error()});
    return static_cast<cuda::Stream>(stream);
}

bool is_same_stream(cuda::Stream a, cuda::Stream b) {
    const auto normal = [](cuda::Stream stream) {
        return reinterpret_cast<std::uintptr_t>(stream) == 1 ? nullptr : stream;
    };
    return normal(a) == normal(b);
}

void order_after(const cuda::Api& api, cuda::Stream stream, cuda::Stream earlier) {
    if (is_same_stream(stream, earlier)) return;
    cuda::Event event = nullptr;
    cuda::check(api, api.cuEventCreate(&event, event_without_timing), "making an event");
    const cuda::Result recorded = api.cuEventRecord(event, earlier);
    const cuda::Result waited = recorded == cuda::success ? api.cuStreamWaitEvent(stream, event, 0) : recorded;
    api.cuEventDestroy(event);
    cuda::check(api, waited, "ordering the launch after the stream that an argument names");
}

}  // namespace gristmill
