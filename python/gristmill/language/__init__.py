"""The language of kernel bodies, in Triton's spelling: `import gristmill.language as tl`."""

from __future__ import annotations

from gristmill.compiler.ir import Pointer as pointer_type
from gristmill.dtypes import bf16 as bfloat16
from gristmill.dtypes import bool_ as int1
from gristmill.dtypes import f8e4m3 as float8e4nv
from gristmill.dtypes import f8e5m2 as float8e5
from gristmill.dtypes import f16 as float16
from gristmill.dtypes import f32 as float32
from gristmill.dtypes import f64 as float64
from gristmill.dtypes import i8 as int8
from gristmill.dtypes import i16 as int16
from gristmill.dtypes import i32 as int32
from gristmill.dtypes import i64 as int64
from gristmill.dtypes import u8 as uint8
from gristmill.dtypes import u16 as uint16
from gristmill.dtypes import u32 as uint32
from gristmill.dtypes import u64 as uint64
from gristmill.language import extra, math, random
from gristmill.language.assembly import inline_asm_elementwise
from gristmill.language.atomic import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xchg,
    atomic_xor,
)
from gristmill.language.casts import cast
from gristmill.language.debug import debug_barrier, device_assert, device_print, static_assert, static_print
from gristmill.language.descriptors import TensorDescriptor as tensor_descriptor
from gristmill.language.descriptors import (
    advance,
    load_tensor_descriptor,
    make_block_ptr,
    make_tensor_descriptor,
    store_tensor_descriptor,
)
from gristmill.language.elementwise import PropagateNan, clamp, div_rn, fma, maximum, minimum, where
from gristmill.language.elementwise import abs_ as abs
from gristmill.language.functions import cos, erf, sin
from gristmill.language.hints import assume, max_constancy, max_contiguous, multiple_of
from gristmill.language.index import arange, cdiv, full, num_programs, program_id, zeros, zeros_like
from gristmill.language.iterate import constexpr, range, static_range, tensor
from gristmill.language.mathematics import (
    ceil,
    exp,
    exp2,
    fdiv,
    floor,
    log,
    log2,
    rsqrt,
    sigmoid,
    softmax,
    sqrt,
    sqrt_rn,
    tanh,
)
from gristmill.language.matrix import dot
from gristmill.language.memory import load, store
from gristmill.language.random import (
    pair_uniform_to_normal,
    philox,
    philox_impl,
    rand,
    rand4x,
    randint,
    randint4x,
    randn,
    randn4x,
    uint_to_uniform_float,
)
from gristmill.language.rearrange import (
    cat,
    flip,
    gather,
    histogram,
    interleave,
    join,
    ravel,
    sort,
    split,
    swizzle2d,
    topk,
)
from gristmill.language.reduce import argmax, argmin, reduce, reduce_or, xor_sum
from gristmill.language.reduce import max_ as max
from gristmill.language.reduce import min_ as min
from gristmill.language.reduce import sum_ as sum
from gristmill.language.regions import map_elementwise
from gristmill.language.scaled import dot_scaled
from gristmill.language.scan import associative_scan, cumprod, cumsum
from gristmill.language.shape import broadcast, broadcast_to, expand_dims, permute, reshape, trans
from gristmill.language.shape import reshape as view
from gristmill.language.words import umulhi

__all__ = [
    "PropagateNan", "abs", "advance", "arange", "argmax", "argmin", "associative_scan", "assume", "atomic_add",
    "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "bfloat16",
    "broadcast", "broadcast_to", "cast", "cat", "cdiv", "ceil", "clamp", "constexpr", "cos", "cumprod", "cumsum",
    "debug_barrier", "device_assert", "device_print", "div_rn", "dot", "dot_scaled", "erf", "exp", "exp2",
    "expand_dims", "extra", "fdiv", "flip", "float16", "float32", "float64", "float8e4nv", "float8e5", "floor", "fma",
    "full", "gather", "histogram", "inline_asm_elementwise", "int1", "int16", "int32", "int64", "int8", "interleave",
    "join", "load", "load_tensor_descriptor", "log", "log2", "make_block_ptr", "make_tensor_descriptor",
    "map_elementwise", "math", "max", "max_constancy", "max_contiguous", "maximum", "min", "minimum", "multiple_of",
    "num_programs", "pair_uniform_to_normal", "permute", "philox", "philox_impl", "pointer_type", "program_id", "rand",
    "rand4x", "randint", "randint4x", "randn", "randn4x", "random", "range", "ravel", "reduce", "reduce_or", "reshape",
    "rsqrt", "sigmoid", "sin", "softmax", "sort", "split", "sqrt", "sqrt_rn", "static_assert", "static_print",
    "static_range", "store", "store_tensor_descriptor", "sum", "swizzle2d", "tanh", "tensor", "tensor_descriptor",
    "topk", "trans", "uint16", "uint32", "uint64", "uint8", "uint_to_uniform_float", "umulhi", "view", "where",
    "xor_sum", "zeros", "zeros_like",
]  # fmt: skip
