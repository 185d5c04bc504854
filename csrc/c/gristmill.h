/* Kernels without Python, for C and C++. Link with the library of this name; nothing else is needed to run.
 *
 * Calls choose and check as those of the Python module do. Functions that may fail return a gristmill_status;
 * gristmill_error() then says what was wrong and what to change. All of them may be called from any thread. */
#ifndef GRISTMILL_H
#define GRISTMILL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* TYPE: a wrong dtype or kind of argument; VALUE: a wrong size, stride or number; RUNTIME: driver, device, processor. */
typedef enum { GRISTMILL_OK, GRISTMILL_TYPE, GRISTMILL_VALUE, GRISTMILL_RUNTIME } gristmill_status;

typedef enum {
    GRISTMILL_F16,
    GRISTMILL_BF16,
    GRISTMILL_F32,
    GRISTMILL_F64,
    GRISTMILL_I8,
    GRISTMILL_I16,
    GRISTMILL_I32,
    GRISTMILL_I64,
    GRISTMILL_U8,
    GRISTMILL_U16,
    GRISTMILL_U32,
    GRISTMILL_U64,
    GRISTMILL_BOOL,
    GRISTMILL_F8E4M3,
    GRISTMILL_F8E5M2
} gristmill_dtype;

typedef struct gristmill_kernel gristmill_kernel;

/* An array in the memory of the device that the call is for. `strides` are in elements; NULL: dense, the last axis
 * fastest. Shape and strides are read during the call only. */
typedef struct {
    void* data;
    gristmill_dtype dtype;
    int32_t rank;
    const int64_t* shape;
    const int64_t* strides;
} gristmill_array;

/* DEFAULT: a size, shape or stride that follows from an array, or a scalar with a default. */
typedef enum { GRISTMILL_DEFAULT, GRISTMILL_ARRAY, GRISTMILL_INTEGER, GRISTMILL_REAL } gristmill_kind;

typedef struct {
    gristmill_kind kind;
    gristmill_array array;
    int64_t integer;
    double real;
} gristmill_argument;

/* A value as Python writes it: "1024", "0.5", "True"; text without quotes. */
typedef struct {
    const char* name;
    const char* value;
} gristmill_constant;

typedef enum { GRISTMILL_CPU, GRISTMILL_CUDA } gristmill_device;

/* Where a call runs. CUDA: on the device of this ordinal, in its primary context, on `stream` (a CUstream or
 * cudaStream_t; NULL: the default stream). `grid`: the number of programs along 3 axes; NULL: as the kernel declares. */
typedef struct {
    gristmill_device device;
    int32_t ordinal;
    void* stream;
    const int64_t* grid;
} gristmill_place;

/* The package and its version, and the number of its kernels with the name of each (NULL from there on). */
const char* gristmill_version(void);
size_t gristmill_count(void);
const char* gristmill_name(size_t kernel);

/* What the last failed call of this thread found. */
const char* gristmill_error(void);

/* Find a kernel; `*kernel` is valid as long as the process. With dtypes (by dtype variable, all of them) or constants
 * (some of them) its calls use only specialisations that have these; without, the arguments of each call decide. */
gristmill_status gristmill_find(const char* name, const gristmill_dtype* dtypes, size_t dtype_count,
                                const gristmill_constant* constants, size_t constant_count,
                                const gristmill_kernel** kernel);

/* Run a kernel. Arguments are in the order of its parameters; those left out at the end are DEFAULT. On the CPU the call
 * returns when the work is done; on CUDA when it is in the stream. `place` NULL: the CPU. */
gristmill_status gristmill_launch(const gristmill_kernel* kernel, const gristmill_argument* arguments,
                                  size_t argument_count, const gristmill_place* place);

/* Load all code of a kernel for a CUDA device, so that no later call waits for the device. */
gristmill_status gristmill_preload(const gristmill_kernel* kernel, int32_t ordinal);

static inline gristmill_argument gristmill_dense(void* data, gristmill_dtype dtype, int32_t rank, const int64_t* shape) {
    gristmill_argument argument = {GRISTMILL_ARRAY, {data, dtype, rank, shape, NULL}, 0, 0};
    return argument;
}

static inline gristmill_argument gristmill_strided(void* data, gristmill_dtype dtype, int32_t rank,
                                                   const int64_t* shape, const int64_t* strides) {
    gristmill_argument argument = {GRISTMILL_ARRAY, {data, dtype, rank, shape, strides}, 0, 0};
    return argument;
}

static inline gristmill_argument gristmill_integer(int64_t value) {
    gristmill_argument argument = {GRISTMILL_INTEGER, {NULL, GRISTMILL_F32, 0, NULL, NULL}, value, 0};
    return argument;
}

static inline gristmill_argument gristmill_real(double value) {
    gristmill_argument argument = {GRISTMILL_REAL, {NULL, GRISTMILL_F32, 0, NULL, NULL}, 0, value};
    return argument;
}

#ifdef __cplusplus
}
#endif

#endif
