#include "arrays.hpp"

#include <deque>

#include "dtype.hpp"
#include "plain.hpp"
#include "stream.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t));

[[noreturn]] void fail_dtype(std::string found) {
    std::string all;
    for (std::size_t i = 0; i < dtype_count; ++i) all.append(i ? ", " : "").append(dtype_name(static_cast<Dtype>(i)));
    throw ArrayProblem{ErrorKind::type, concat("elements of ", found), std::move(all), "convert the array first"};
}

[[noreturn]] void fail_read(const char* protocol) {
    const std::string text = take_python_error();
    throw ArrayProblem{ErrorKind::type,
                       concat("an array that cannot be read through ", protocol, ": ", text),
                       {},
                       "pass a plain, materialised array"};
}

[[noreturn]] void fail_no_array(PyObject* object) {
    throw ArrayProblem{
        ErrorKind::type, type_name(object),
        "arrays of NumPy, PyTorch, CuPy, JAX; objects with __dlpack__, __cuda_array_interface__ or the buffer protocol",
        "pass an array"};
}

bool ask_negated(const TypeInfo& type, PyObject* object) {
    PyObject* arguments[] = {object};
    const auto answer = nb::steal(PyObject_Vectorcall(type.is_negated, arguments, 1, nullptr));
    if (!answer.is_valid()) fail_read("is_neg()");
    return answer.ptr() == Py_True;
}

Device device_of(dlpack::Device device) {
    if (device.type == dlpack::cuda) return {DeviceKind::cuda, device.id};
    if (device.type == dlpack::cpu || device.type == dlpack::cuda_host) return {DeviceKind::cpu, 0};
    if (device.type == dlpack::cuda_managed) return {DeviceKind::cuda, device.id};
    throw ArrayProblem{ErrorKind::value, concat("an array on a device of DLPack type ", device.type),
                       "the CPU, CUDA devices", "copy it to one of these"};
}

void require_memory(const View& view) {
    if (view.data || view.count == 0) return;
    throw ArrayProblem{ErrorKind::value,
                       concat(describe_array(view), " without memory, as of a fake, meta or freed tensor"),
                       {},
                       "pass a materialised array; do not trace this call"};
}

struct KnownDtype {
    PyObject* object;
    Dtype dtype;
};

Dtype inspect_numpy_dtype(nb::handle dtype) {
    const std::string name = nb::str(dtype.attr("name")).c_str();
    const bool is_native = nb::cast<bool>(dtype.attr("isnative"));
    const auto parsed = parse_dtype(name);
    if (!parsed || !is_native) fail_dtype(concat(is_native ? "" : "byte-swapped ", name));
    return *parsed;
}

// NumPy's dtypes are objects that live as long as NumPy: compared by address.
Dtype numpy_dtype(PyObject* array) {
    static std::deque<KnownDtype> known;
    static PyObject* const name = PyUnicode_InternFromString("dtype");
    const auto dtype = nb::steal(PyObject_GetAttr(array, name));
    if (!dtype.is_valid()) fail_read("its dtype");
    for (const KnownDtype& row : known)
        if (row.object == dtype.ptr()) return row.dtype;
    const Dtype parsed = inspect_numpy_dtype(dtype);
    if (known.size() < 64) known.push_back({nb::object(dtype).release().ptr(), parsed});
    return parsed;
}

Dtype format_dtype(const Py_buffer& buffer) {
    const char* format = buffer.format ? buffer.format : "B";
    const auto dtype = dtype_from_format(format, static_cast<std::size_t>(buffer.itemsize));
    if (!dtype) fail_dtype(concat("buffer format \"", format, "\""));
    return *dtype;
}

int pointer_device(std::uintptr_t pointer) {
    const cuda::Api& api = cuda::driver();
    int ordinal = 0;
    if (pointer == 0) return 0;
    cuda::check(api, api.cuPointerGetAttribute(&ordinal, cuda::pointer_device_ordinal, pointer),
                "asking the driver whose memory an argument is");
    return ordinal;
}

nb::object item(const nb::dict& interface, const char* key) {
    return interface.contains(key) ? nb::object(interface[key]) : nb::none();
}

// Producers before DLPack 1.0 do not know `max_version`.
nb::object ask_for_capsule(nb::handle object, const nb::dict& arguments) {
    nb::dict with_version;
    for (const auto& [key, value] : arguments) with_version[key] = value;
    with_version["max_version"] = nb::make_tuple(1, 3);
    try {
        return object.attr("__dlpack__")(**with_version);
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_TypeError)) throw;
    }
    return object.attr("__dlpack__")(**arguments);
}

nb::object capsule_of(nb::handle object, const StreamChoice& streams) {
    const nb::object pair = object.attr("__dlpack_device__")();
    const auto type = nb::cast<int>(nb::object(pair[nb::int_(0)]));
    const auto ordinal = nb::cast<int>(nb::object(pair[nb::int_(1)]));
    nb::dict arguments;
    if (device_of({type, ordinal}).kind == DeviceKind::cuda) {
        const auto stream = reinterpret_cast<std::uintptr_t>(streams.find(ordinal).value_or(nullptr));
        arguments["stream"] = stream ? stream : 1;  // the protocol's name for the default stream
    }
    return ask_for_capsule(object, arguments);
}

}  // namespace

// What stands in a torch view of this kind has the sign still to be flipped: only torch knows.
void refuse_negated(const TypeInfo& type, PyObject* object, const void* data) {
    if (!type.is_negated || plain_tensors.contains(object, data)) return;
    if (ask_negated(type, object))
        throw ArrayProblem{ErrorKind::value,
                           "a lazily negated view (is_neg() is true), whose memory holds the opposite sign",
                           {},
                           "pass `x.resolve_neg()`"};
    plain_tensors.add(object, data);
}

ArrayArgument::ArrayArgument(PyObject* object, const TypeInfo& type, const StreamChoice& streams) : ArrayArgument() {
    if (type.protocol == Protocol::exchange)
        read_exchange(object, type);
    else
        read_other(object, type, streams);
    if (type.framework == Framework::jax) view_.is_read_only = true;
    require_memory(view_);
}

void ArrayArgument::read_other(PyObject* object, const TypeInfo& type, const StreamChoice& streams) {
    switch (type.protocol) {
        case Protocol::numpy: read_buffer(object, true); break;
        case Protocol::buffer: read_buffer(object, false); break;
        case Protocol::capsule: read_capsule(object, streams); break;
        case Protocol::cuda_interface: read_interface(object, "__cuda_array_interface__", DeviceKind::cuda); break;
        case Protocol::host_interface: read_interface(object, "__array_interface__", DeviceKind::cpu); break;
        default: fail_no_array(object);
    }
}

void ArrayArgument::release() {
    if (holds_ == Holds::buffer) PyBuffer_Release(&buffer_);
    if (holds_ == Holds::managed && managed_->deleter) managed_->deleter(managed_);
    if (holds_ == Holds::versioned && versioned_->deleter) versioned_->deleter(versioned_);
}

void ArrayArgument::set_tensor(const dlpack::Tensor& tensor) {
    const auto [code, bits, lanes] = tensor.dtype;
    const auto dtype = dtype_from_dlpack(code, bits, lanes);
    if (!dtype) fail_dtype(dlpack_name(code, bits, lanes));
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(*dtype));
    auto* data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
    view_ = {data, tensor.shape, tensor.strides, bytes, tensor.rank, *dtype, false, device_of(tensor.device), bytes};
    complete(view_);
}

void ArrayArgument::read_exchange(PyObject* object, const TypeInfo& type) {
    dlpack::Tensor tensor;
    if (type.api->tensor_from_object) {
        if (type.api->tensor_from_object(object, &tensor) != 0) fail_read("the DLPack exchange API");
    } else {
        if (type.api->managed_from_object(object, &versioned_) != 0) fail_read("the DLPack exchange API");
        holds_ = Holds::versioned;
        tensor = versioned_->tensor;
    }
    set_tensor(tensor);
    refuse_negated(type, object, tensor.data);
}

void ArrayArgument::read_capsule(PyObject* object, const StreamChoice& streams) {
    try {
        take_capsule(capsule_of(object, streams));
    } catch (nb::python_error& error) {
        error.restore();
        fail_read("__dlpack__");
    }
}

// A capsule is used up by renaming it: from then on the deleter is ours to call.
void ArrayArgument::take_capsule(nb::handle capsule) {
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
        versioned_ = static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
        PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
        holds_ = Holds::versioned;
        if (versioned_->version.major != 1)
            throw ArrayProblem{ErrorKind::type, concat("DLPack version ", versioned_->version.major),
                               "version 1 and before"};
        set_tensor(versioned_->tensor);
        view_.is_read_only = versioned_->flags & dlpack::flag_read_only;
        return;
    }
    if (!PyCapsule_IsValid(capsule.ptr(), "dltensor"))
        throw ArrayProblem{ErrorKind::type, "a __dlpack__ that returns no DLPack capsule"};
    managed_ = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    holds_ = Holds::managed;
    set_tensor(managed_->tensor);
}

// NumPy gives no format for the types of ml_dtypes, but its dtype names them.
void ArrayArgument::read_buffer(PyObject* object, bool is_numpy) {
    const int flags = is_numpy ? PyBUF_STRIDES : PyBUF_STRIDES | PyBUF_FORMAT;
    if (PyObject_GetBuffer(object, &buffer_, flags) != 0) fail_read("the buffer protocol");
    holds_ = Holds::buffer;
    const Dtype dtype = is_numpy ? numpy_dtype(object) : format_dtype(buffer_);
    view_ = {static_cast<std::byte*>(buffer_.buf),
             reinterpret_cast<std::int64_t*>(buffer_.shape),
             reinterpret_cast<std::int64_t*>(buffer_.strides),
             1,
             buffer_.ndim,
             dtype,
             buffer_.readonly != 0,
             {},
             static_cast<std::int64_t>(buffer_.itemsize)};
    complete(view_);
}

void ArrayArgument::set_shape(nb::handle shape, nb::handle strides) {
    for (const nb::handle length : shape) extents_.push_back(nb::cast<std::int64_t>(length));
    view_.rank = static_cast<std::int32_t>(extents_.size());
    if (!strides.is_none())
        for (const nb::handle stride : strides) extents_.push_back(nb::cast<std::int64_t>(stride));
    view_.shape = extents_.data();
    view_.strides = strides.is_none() ? nullptr : extents_.data() + view_.rank;
    view_.stride_bytes = 1;
    complete(view_);
}

void ArrayArgument::read_interface(PyObject* object, const char* name, DeviceKind kind) {
    const nb::dict interface = nb::cast<nb::dict>(nb::getattr(object, name));
    const std::string typestr = nb::str(item(interface, "typestr")).c_str();
    const auto dtype = dtype_from_typestr(typestr);
    if (!dtype) fail_dtype(concat("typestr \"", typestr, "\""));
    if (!item(interface, "mask").is_none())
        throw ArrayProblem{ErrorKind::value, "an array with a mask", {}, "apply the mask first"};
    const nb::object data = item(interface, "data");
    const auto pointer = nb::cast<std::uintptr_t>(nb::object(data[nb::int_(0)]));
    view_.data = reinterpret_cast<std::byte*>(pointer);
    view_.dtype = *dtype;
    view_.item_bytes = static_cast<std::int64_t>(dtype_bytes(*dtype));
    view_.is_read_only = nb::cast<bool>(nb::object(data[nb::int_(1)]));
    view_.device = {kind, kind == DeviceKind::cuda ? pointer_device(pointer) : 0};
    set_shape(item(interface, "shape"), item(interface, "strides"));
    const nb::object stream = item(interface, "stream");
    if (!stream.is_none()) producer_stream_ = reinterpret_cast<cuda::Stream>(nb::cast<std::uintptr_t>(stream));
}

}  // namespace gristmill
