"""The language of kernel bodies, in Triton's spelling: `import gristmill.language as tl`."""

from __future__ import annotations

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
from gristmill.language.debug import static_assert
from gristmill.language.elementwise import PropagateNan, cast, clamp, div_rn, fma, maximum, minimum, where
from gristmill.language.elementwise import abs_ as abs
from gristmill.language.functions import cos, erf, sin
from gristmill.language.index import arange, cdiv, full, num_programs, program_id, zeros, zeros_like
from gristmill.language.iterate import constexpr, range, static_range
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
from gristmill.language.reduce import max_ as max
from gristmill.language.reduce import min_ as min
from gristmill.language.reduce import sum_ as sum
from gristmill.language.shape import broadcast, broadcast_to, expand_dims, permute, reshape, trans
from gristmill.language.words import umulhi

__all__ = [
    "PropagateNan", "abs", "arange", "bfloat16", "broadcast", "broadcast_to", "cast", "cdiv", "ceil", "clamp",
    "constexpr", "cos", "div_rn", "erf", "exp", "exp2", "expand_dims", "extra", "fdiv", "float16", "float32",
    "float64", "float8e4nv", "float8e5", "floor", "fma", "full", "int1", "int16", "int32", "int64", "int8", "load",
    "log", "log2", "math", "max", "maximum", "min", "minimum", "num_programs", "pair_uniform_to_normal", "permute",
    "philox", "philox_impl", "program_id", "rand", "rand4x", "randint", "randint4x", "randn", "randn4x", "random",
    "range", "reshape", "rsqrt", "sigmoid", "sin", "softmax", "sqrt", "sqrt_rn", "static_assert", "static_range",
    "store", "sum", "tanh", "trans", "uint16", "uint32", "uint64", "uint8", "uint_to_uniform_float", "umulhi", "where",
    "zeros", "zeros_like",
]  # fmt: skip
