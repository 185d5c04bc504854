// What the build writes for the launcher: kernels, specialisations and images, as plain constant data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gristmill {

// The order is that of `gristmill.dtypes.ALL`.
enum class Dtype : std::uint8_t { f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, boolean, f8e4m3, f8e5m2 };

enum class ParameterKind : std::uint8_t { pointer, size, shape, stride, scalar };

// Postfix code over 64-bit integers; the opcodes are in grid.hpp. Empty: absent.
using Code = std::span<const std::int64_t>;

struct Parameter {
    const char* name;
    ParameterKind kind;
    std::int8_t dtype_var;  // pointer or scalar: index into Kernel::dtype_vars; -1: `dtype` is fixed
    Dtype dtype;            // read only when dtype_var is -1 (index parameters: i64, packed as the variant says)
    std::int8_t tensor;     // size, shape, stride: index of the array's parameter; else -1
    std::int8_t axis;       // shape, stride: may be negative, counted from the end
    bool is_read;           // pointer: some specialisation loads through it
    bool is_written;        // pointer: some specialisation stores through it
    bool is_strided;        // pointer: the kernel takes its strides, so it need not be contiguous
    bool has_default;       // scalar: may be left out at the call
    double default_value;
    Code extent;            // pointer: the number of elements that the array must have at least
};

struct ConstantValue {
    enum class Kind : std::uint8_t { integer, boolean, real, text } kind;
    std::int64_t integer;   // also for boolean
    double real;
    const char* text;
};

using HostFunction = void (*)(const void* parameters, const std::int64_t* grid, std::int64_t begin, std::int64_t end);

inline constexpr std::size_t most_maps = 8, most_map_axes = 5;  // of an entry; of a map

// The array at a pointer, as the hardware copies boxes of it. Axes go from the innermost, whose elements follow each
// other, outwards; the expressions are of the kernel's parameters.
struct TensorMap {
    std::uint8_t parameter;
    Dtype dtype;
    std::span<const Code> extents;       // elements along each axis
    std::span<const Code> strides;       // steps in elements along all axes but the first
    std::span<const std::uint16_t> box;  // elements of one copy along each axis
    std::uint16_t swizzle;               // bytes of the rows whose chunks change places: 0 (none), 32, 64 or 128
};

// How the code made for one CUDA target is launched. The blocks of a cluster run one program together.
struct Geometry {
    std::uint32_t threads;                 // of a block
    std::uint32_t shared_bytes;            // dynamic shared memory of a block
    std::uint32_t ctas;                    // blocks of a cluster, along x; 1: no cluster
    bool waits = false;                    // for the kernel before it in its stream, before it touches memory
    bool draws = false;                    // tiles from a counter, whose address is the last parameter
    std::span<const TensorMap> maps = {};  // parameters that follow the kernel's own; only for Variant::aligned32
};

// What an entry of a cubin takes of a thread; all 0: not known.
struct Usage {
    std::uint16_t registers;
    std::uint16_t stack_bytes;  // of local memory, in all
    std::uint16_t spill_bytes;  // of it, stored for want of registers
};

// The code for one specialisation under one set of promises: images are found by symbol.
struct Entry {
    const char* symbol;
    std::span<const Geometry> geometry;  // by Image::source, all 0 where it is not built; empty: no CUDA code
    std::span<const HostFunction> host;  // by index of HostLevel in Tables::host_levels; empty: no CPU code
    std::span<const std::uint16_t> ptx;  // indices into Tables::images
};

// Order of Specialisation::entries.
enum class Variant : std::uint8_t { aligned32, general32, general64 };

// By parameter: the index must be a multiple of it; 0 or 1: any.
using Divisors = std::span<const std::uint16_t>;

struct Specialisation {
    const char* id;                              // gelu_forward__f32__1024
    std::span<const Dtype> dtypes;               // by dtype variable
    std::span<const ConstantValue> constants;    // by constant
    std::uint16_t num_warps, num_stages;
    std::span<const Divisors> divisibility;      // for aligned32: on the CPU, then by Image::source; or one for all of them
    Entry entries[3];                            // by Variant; of `aligned=True` only the first, the others are all 0
    std::int32_t backward;                       // specialisation of Kernel::backward with the same dtypes and constants; -1: none
};

// A device that calls were measured on: its name, "sm_90" or "x86-64-v3", and multiprocessors or threads of a CPU.
struct TunedDevice {
    const char* name;
    const char* architecture;
    std::int64_t units;
};

inline constexpr std::size_t most_keys = 8;  // of a kernel

// The specialisation that was measured to be the fastest, of calls of one key. A row speaks of the calls that name the
// constants in `named`, as the specialisation has them, no others, and take the same variant of it.
struct TunedRow {
    std::uint16_t device;          // index into Tables::tuned_devices
    std::uint16_t specialisation;
    Variant variant;
    std::uint16_t named;           // a bit for each constant
    std::span<const std::int64_t> key;
};

struct Kernel {
    const char* name;
    const char* doc;
    const char* source;                              // the author's text
    const char* file;                                // relative to the project
    std::span<const Parameter> parameters;
    std::span<const char* const> dtype_vars;
    std::span<const char* const> constants;
    std::span<const Specialisation> specialisations; // in declared order: of those that fit a call, the first is used
    std::span<const Code> grid;                      // 1 to 3 expressions
    Code pick;                                       // true where a specialisation can serve a call; empty: always
    std::int32_t backward;                           // kernel index; -1: none
    std::span<const std::uint16_t> cubins;           // indices into Tables::images; each holds every entry of the kernel
    std::span<const Usage> usage = {};               // by cubin, specialisation and Variant; empty: not known
    Code padded = {};                                // true where unaligned matrices are worth a copy; empty: never
    Code prefer = {};                                // true where one that can is to be taken first; empty: always
    std::uint16_t configured = 0;                    // a bit for each constant that configurations set
    std::span<const char* const> key_names = {};     // what tells tuned calls apart, as text and as code
    std::span<const Code> key = {};
    std::span<const TunedRow> tuned = {};            // in order of device, then key
};

enum class ImageKind : std::uint8_t { cubin, ptx };

struct Image {
    ImageKind kind;
    std::uint16_t sm;             // 80, 90, 100
    char suffix;                  // 'a', 'f' or 0
    std::uint16_t ptx_version;    // 70 for 7.0; cubin: 0
    std::uint16_t source;         // number of the target whose code it is made of
    std::uint32_t offset, size;   // of its stream in the blob: LZMA, several images may share one
    std::uint32_t start, raw_size;  // of the image in the decompressed stream
};

enum class HostLevel : std::uint8_t { x86_64_v2, x86_64_v3, x86_64_v4, aarch64 };

struct Tables {
    const char* package;                         // name of the distribution
    const char* version;                         // of the package
    const char* gristmill_version;               // of the compiler that built it
    std::span<const Kernel> kernels;
    std::span<const Image> images;
    std::span<const HostLevel> host_levels;      // ascending
    const unsigned char* blob;
    std::span<const TunedDevice> tuned_devices = {};
};

extern const Tables tables;

}  // namespace gristmill
