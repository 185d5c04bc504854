#include "repeat.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "dtype.hpp"
#include "plain.hpp"
#include "scalars.hpp"

namespace nb = nanobind;

namespace gristmill {

// An array but for its address.
struct KnownArray {
    const TypeInfo* type;
    dlpack::Device device;
    std::int32_t rank;
    dlpack::DataType dtype;
    Span span;
    std::uint16_t offset;  // of its address in the block
    std::uint8_t parameter;
    bool is_output, is_contiguous;
};

struct KnownValue {
    std::int64_t integer;
    std::uint16_t offset;
    std::uint8_t parameter;
    Dtype dtype;
    bool is_given;     // else the block has its value already
    bool is_decisive;  // another value may need another choice
    bool is_index;
};

struct KnownCall {
    const Specialisation* only;
    std::size_t argument_count;
    std::vector<KnownArray> arrays;
    std::vector<std::int64_t> lengths;  // shape and strides of each array
    std::vector<KnownValue> values;
    std::vector<std::uint16_t> offsets;  // by parameter
    std::vector<std::byte> block;        // of addresses and values
    bool is_aligned;  // as all of its addresses; alike, every specialisation would take the variant that it took
    bool has_maps;  // beside what is read anyway
    const dlpack::ExchangeApi* streams;
    cuda::GpuDevice* device;
    Launch launch;  // but for the stream and the parameters
    std::vector<MadeMap> maps;
};

// The parameters of one call, in the making.
class RepeatParameters {
public:
    // Where an array lies in memory.
    struct Place {
        std::uintptr_t begin, end;
    };

    explicit RepeatParameters(const KnownCall& call) {
        std::copy(call.block.begin(), call.block.end(), block_.begin());
        for (std::size_t i = 0; i < call.offsets.size(); ++i) pointers_[i] = block_.data() + call.offsets[i];
    }
    void set_address(std::size_t array, const KnownArray& known, const std::byte* data) {
        const auto address = reinterpret_cast<std::uintptr_t>(data);
        std::memcpy(block_.data() + known.offset, &address, sizeof address);
        places_[array] = {address + static_cast<std::uintptr_t>(known.span.low),
                          address + static_cast<std::uintptr_t>(known.span.high)};
        addresses_ |= address;
    }
    std::byte* value(const KnownValue& known) { return block_.data() + known.offset; }
    const std::byte* address(std::uint16_t offset) const {
        const std::byte* address;
        std::memcpy(&address, block_.data() + offset, sizeof address);
        return address;
    }
    void set_pointer(std::size_t parameter, void* value) { pointers_[parameter] = value; }
    bool is_aligned() const { return addresses_ % aligned_bytes == 0; }
    const Place& place(std::size_t array) const { return places_[array]; }
    void** pointers() { return pointers_.data(); }

private:
    alignas(8) std::array<std::byte, 8 * most_parameters> block_;
    std::array<void*, most_parameters + most_maps + 1> pointers_;  // and a counter
    std::array<Place, most_parameters> places_;
    std::uintptr_t addresses_ = 0;
};

namespace {

bool has_layout(const dlpack::Tensor& tensor, const KnownArray& known, const std::int64_t* lengths) {
    if (tensor.device.type != known.device.type || tensor.device.id != known.device.id) return false;
    if (tensor.rank != known.rank || tensor.dtype.code != known.dtype.code || tensor.dtype.bits != known.dtype.bits ||
        tensor.dtype.lanes != known.dtype.lanes || !tensor.strides)
        return false;
    for (std::int32_t axis = 0; axis < tensor.rank; ++axis)
        if (tensor.shape[axis] != lengths[axis] || tensor.strides[axis] != lengths[tensor.rank + axis]) return false;
    return true;
}

// Of what most often tells calls apart: shape and type of the first array, and how many arguments there are. Not 0.
std::uint64_t hash_of(const dlpack::Tensor& first, const Specialisation* only, const CallArguments& given) {
    constexpr std::uint64_t golden_ratio = 0x9E3779B97F4A7C15u;
    const auto device = static_cast<std::uint64_t>(first.device.id) << 32;
    std::uint64_t hash = device | given.count << 16 | std::uint64_t{first.dtype.code} << 8 | first.dtype.bits;
    hash = (hash ^ reinterpret_cast<std::uintptr_t>(only)) * golden_ratio;
    for (std::int32_t axis = 0; axis < first.rank; ++axis)
        hash = (hash ^ static_cast<std::uint64_t>(first.shape[axis])) * golden_ratio;
    return hash | 1;
}

bool read_tensor(const TypeInfo& type, PyObject* object, dlpack::Tensor& tensor) {
    if (type.api->tensor_from_object(object, &tensor) == 0) return true;
    PyErr_Clear();
    return false;
}

bool is_plain(const TypeInfo& type, PyObject* object, const void* data) {
    if (!type.is_negated || plain_tensors.contains(object, data)) return true;
    try {
        refuse_negated(type, object, data);
        return true;
    } catch (const ArrayProblem&) {
        return false;
    }
}

// Reading one runs no Python code.
bool is_builtin_number(PyObject* object) {
    return PyFloat_CheckExact(object) || PyLong_CheckExact(object) || PyBool_Check(object);
}

PyObject* argument(const CallArguments& given, std::size_t parameter) {
    return parameter < given.count ? given.values[parameter] : nullptr;
}

Scalar read_value(const Kernel& kernel, const KnownValue& known, PyObject* object) {
    const Parameter& parameter = kernel.parameters[known.parameter];
    return known.is_index ? read_index(kernel, parameter, object) : read_scalar(kernel, parameter, known.dtype, object);
}

bool set_value(const Kernel& kernel, const KnownValue& known, PyObject* object, RepeatParameters& parameters) {
    if (is_missing(object)) return !known.is_given;
    if (!known.is_given || !is_builtin_number(object)) return false;
    const Scalar scalar = read_value(kernel, known, object);
    if (known.is_decisive) return scalar.integer == known.integer;
    if (is_floating(known.dtype))
        store_real(known.dtype, scalar.real, parameters.value(known));
    else
        store_integer(known.dtype, scalar.integer, parameters.value(known));
    return true;
}

// One may stand for an output and for an input; what overlaps otherwise is for the full check to judge.
bool is_same(const KnownCall& call, const RepeatParameters& parameters, std::size_t a, std::size_t b) {
    const KnownArray &one = call.arrays[a], &other = call.arrays[b];
    const RepeatParameters::Place &place = parameters.place(a), &other_place = parameters.place(b);
    return place.begin == other_place.begin && place.end == other_place.end && one.is_contiguous &&
           other.is_contiguous && one.dtype.bits == other.dtype.bits;
}

bool is_apart(const KnownCall& call, const RepeatParameters& parameters, std::size_t output) {
    const RepeatParameters::Place place = parameters.place(output);
    for (std::size_t i = 0; i < call.arrays.size(); ++i) {
        const RepeatParameters::Place& other = parameters.place(i);
        if (other.begin < place.end && place.begin < other.end && !is_same(call, parameters, output, i)) return false;
    }
    return true;
}

bool are_outputs_apart(const KnownCall& call, const RepeatParameters& parameters) {
    for (std::size_t i = 0; i < call.arrays.size(); ++i)
        if (call.arrays[i].is_output && !is_apart(call, parameters, i)) return false;
    return true;
}

bool has_exchange(const TypeInfo& type) { return type.api && type.api->tensor_from_object; }

bool is_repeatable(const Bound& bound) {
    const KernelIndex& index = bound.index();
    const auto types = bound.types();
    const auto has_number = [&](std::uint8_t i) {
        const int variable = index.slot(i).dtype_var;
        return (is_missing(bound.object(i)) || is_builtin_number(bound.object(i))) &&
               (variable < 0 || bound.arguments().dtypes[static_cast<std::size_t>(variable)] != unbound);
    };
    return std::ranges::all_of(types, [](auto* type) { return has_exchange(*type); }) &&
           std::ranges::any_of(types, [](auto* type) { return type->api->current_stream != nullptr; }) &&
           std::ranges::all_of(index.values(), has_number);
}

// Whether a tensor still is what was checked.
bool is_as_checked(const dlpack::Tensor& tensor, const View& view) {
    if (tensor.rank != view.rank || tensor.shape != view.shape || tensor.strides != view.strides) return false;
    View now = view;
    complete(now);
    return now.count == view.count && now.is_contiguous == view.is_contiguous && now.span.low == view.span.low &&
           now.span.high == view.span.high && tensor.device.id == view.device.ordinal &&
           dtype_from_dlpack(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == view.dtype;
}

std::uint16_t offset_of(const Plan& plan, std::size_t parameter) {
    return static_cast<std::uint16_t>(static_cast<std::byte*>(plan.pointers[parameter]) - plan.block.data());
}

bool add_array(KnownCall& call, const Bound& bound, const Plan& plan, std::uint8_t parameter) {
    const View& view = *bound.arguments().views[parameter];
    const TypeInfo& type = *bound.types()[call.arrays.size()];
    dlpack::Tensor tensor;
    if (!read_tensor(type, bound.object(parameter), tensor) || !tensor.strides || !is_as_checked(tensor, view))
        return false;
    const bool is_output = std::ranges::find(bound.index().outputs(), parameter) != bound.index().outputs().end();
    call.arrays.push_back({&type, tensor.device, tensor.rank, tensor.dtype, view.span, offset_of(plan, parameter),
                           parameter, is_output, view.is_contiguous});
    call.lengths.insert(call.lengths.end(), tensor.shape, tensor.shape + tensor.rank);
    call.lengths.insert(call.lengths.end(), tensor.strides, tensor.strides + tensor.rank);
    call.is_aligned &= reinterpret_cast<std::uintptr_t>(view.data) % aligned_bytes == 0;
    if (!call.streams) call.streams = type.api->current_stream ? type.api : nullptr;
    return true;
}

KnownValue known_value(const Bound& bound, const Plan& plan, std::uint8_t parameter) {
    const Slot& slot = bound.index().slot(parameter);
    const Arguments& arguments = bound.arguments();
    const Dtype dtype = slot.dtype_var < 0 ? slot.dtype : arguments.dtypes[static_cast<std::size_t>(slot.dtype_var)];
    const bool is_real = slot.is_scalar() && is_floating(dtype);
    const bool is_decisive = !is_real && bound.index().is_decisive(parameter);
    const bool is_given = !is_missing(bound.object(parameter));
    return {arguments.integers[parameter], offset_of(plan, parameter), parameter, dtype, is_given, is_decisive,
            !slot.is_scalar()};
}

// Null: an array has changed since it was checked.
std::unique_ptr<const KnownCall> make_known(const CallArguments& given, const Bound& bound, const Plan& plan,
                                            const Launch& launch, cuda::GpuDevice& device,
                                            std::span<const MadeMap> maps) {
    auto call = std::make_unique<KnownCall>(
        KnownCall{bound.only(), given.count, {}, {}, {}, {}, {}, true, !maps.empty(), nullptr, &device, launch, {}});
    call->maps.assign(maps.begin(), maps.end());
    for (const auto i : bound.index().arrays())
        if (!add_array(*call, bound, plan, i)) return nullptr;
    for (const auto i : bound.index().values()) call->values.push_back(known_value(bound, plan, i));
    for (std::size_t i = 0; i < bound.index().parameter_count(); ++i) call->offsets.push_back(offset_of(plan, i));
    call->block.assign(plan.block.begin(), plan.block.begin() + static_cast<std::ptrdiff_t>(plan.block_bytes));
    return call;
}

// Python code may run in here, and make calls that replace this one; so may other threads, once the GIL is released.
void launch_like(const KnownCall& call, void** parameters) {
    Launch made = call.launch;
    cuda::GpuDevice& device = *call.device;
    made.config.stream = exchange_stream(*call.streams, device.ordinal());
    made.parameters = parameters;
    const nb::gil_scoped_release released;
    gristmill::launch(made, device, device.kernel(made.entry));
}

// The maps are remade where an array lies elsewhere. Its large frame is kept out of calls without maps.
[[gnu::noinline]] void launch_with_maps(const KnownCall& call, RepeatParameters& parameters) {
    std::array<cuda::EncodedMap, most_maps> maps;
    for (std::size_t i = 0; i < call.maps.size(); ++i) {
        const MadeMap& known = call.maps[i];
        const std::byte* address = parameters.address(call.offsets[known.layout.map->parameter]);
        if (address == known.address)
            maps[i] = known.encoded;
        else
            encode(call.launch.place.kernel, known.layout, address, *call.device, maps[i]);
        parameters.set_pointer(call.offsets.size() + i, &maps[i]);
    }
    launch_like(call, parameters.pointers());
}

}  // namespace

KnownCalls::KnownCalls() = default;
KnownCalls::~KnownCalls() = default;

const KnownCalls::Row* KnownCalls::find(std::uint64_t hash) const {
    for (const Row& row : (*rows_)[(hash >> 32) % sets])
        if (row.hash == hash) return &row;
    return nullptr;
}

// Calls that never come back must not cost more, nor drive out the others.
KnownCalls::Row* KnownCalls::place_for(std::uint64_t hash) {
    if (!rows_) rows_ = std::make_unique<std::array<std::array<Row, ways>, sets>>();
    auto& set = (*rows_)[(hash >> 32) % sets];
    const auto same = std::ranges::find(set, hash, &Row::hash);
    if (same == set.end())
        if (const auto empty = std::ranges::find(set, std::uint64_t{0}, &Row::hash); empty != set.end()) return &*empty;
    if (++misses_ % patience != 0) return nullptr;
    return same != set.end() ? &*same : &set[misses_ / patience % ways];
}

bool KnownCalls::launch(const Callable& callable, const CallArguments& given) {
    if (first_ >= given.count || !cuda::ready_driver()) return false;
    const TypeInfo& type = type_info(given.values[first_]);
    dlpack::Tensor first;
    if (!has_exchange(type) || !read_tensor(type, given.values[first_], first)) return false;
    const Row* row = find(hash_of(first, callable.only, given));
    if (!row) return false;
    const KnownCall& call = *row->call;
    if (call.only != callable.only || call.argument_count != given.count) return false;
    RepeatParameters parameters(call);
    if (!read_arrays(call, given, first, parameters) || parameters.is_aligned() != call.is_aligned) return false;
    for (const KnownValue& known : call.values)
        if (!set_value(callable.index.kernel, known, argument(given, known.parameter), parameters)) return false;
    if (!are_outputs_apart(call, parameters)) return false;
    if (call.has_maps)
        launch_with_maps(call, parameters);
    else
        launch_like(call, parameters.pointers());
    return true;
}

// Python code may run in here, and make calls that replace this one.
bool KnownCalls::read_arrays(const KnownCall& call, const CallArguments& given, const dlpack::Tensor& first,
                             RepeatParameters& parameters) const {
    const std::uint64_t version = version_;
    const std::int64_t* lengths = call.lengths.data();
    dlpack::Tensor tensor = first;
    for (std::size_t i = 0; i < call.arrays.size(); ++i) {
        const KnownArray& known = call.arrays[i];
        PyObject* object = given.values[known.parameter];
        if (Py_TYPE(object) != known.type->type) return false;
        if (i > 0 && !read_tensor(*known.type, object, tensor)) return false;
        if (version != version_ || !has_layout(tensor, known, lengths)) return false;
        if (!is_plain(*known.type, object, tensor.data) || version != version_) return false;
        if (!tensor.data && known.span.high != known.span.low) return false;
        parameters.set_address(i, known, static_cast<const std::byte*>(tensor.data) + tensor.byte_offset);
        lengths += 2 * known.rank;
    }
    return true;
}

void KnownCalls::forget() {
    rows_.reset();
    first_ = most_parameters;
    ++version_;
}

void KnownCalls::keep(const CallArguments& given, const Bound& bound, const Plan& plan, const Launch& launch,
                      cuda::GpuDevice& device, std::span<const MadeMap> maps) {
    if (!is_repeatable(bound)) return;
    const std::size_t parameter = bound.index().arrays().front();
    dlpack::Tensor first;
    if (!read_tensor(*bound.types().front(), given.values[parameter], first)) return;
    const std::uint64_t hash = hash_of(first, bound.only(), given);
    Row* row = place_for(hash);
    if (!row) return;
    auto call = make_known(given, bound, plan, launch, device, maps);
    if (!call) return;
    *row = {hash, std::move(call)};
    first_ = parameter;
    ++version_;
}

}  // namespace gristmill
