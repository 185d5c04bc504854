// DLPack 1.3: the structures that arrays are exchanged through, as dmlc/dlpack declares them.
#pragma once

#include <cstdint>

namespace gristmill::dlpack {

inline constexpr std::int32_t cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13;
inline constexpr std::uint64_t flag_read_only = 1;

struct Device {
    std::int32_t type;
    std::int32_t id;
};

struct DataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    std::int32_t rank;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements; null: dense
    std::uint64_t byte_offset;
};

struct Version {
    std::uint32_t major, minor;
};

// What a capsule named "dltensor" holds.
struct Managed {
    Tensor tensor;
    void* context;
    void (*deleter)(Managed*);
};

// What a capsule named "dltensor_versioned" holds.
struct ManagedVersioned {
    Version version;
    void* context;
    void (*deleter)(ManagedVersioned*);
    std::uint64_t flags;
    Tensor tensor;
};

// What `type.__dlpack_c_exchange_api__` holds; functions return 0, or -1 with a Python error set.
struct ExchangeApi {
    Version version;
    ExchangeApi* previous;
    void* allocate;
    int (*managed_from_object)(void* object, ManagedVersioned** out);
    void* object_from_managed;
    int (*tensor_from_object)(void* object, Tensor* out);  // may be null
    int (*current_stream)(std::int32_t device_type, std::int32_t device, void** out);
};

static_assert(sizeof(Tensor) == 48 && sizeof(ExchangeApi) == 56);

}  // namespace gristmill::dlpack
