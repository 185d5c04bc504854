"""Mathematical functions under the names of CUDA's library of them, as `tl.extra.libdevice` in Triton.

They are Gristmill's own on every machine; each function's documentation gives its accuracy.
"""

from __future__ import annotations

from gristmill.language.elementwise import abs_ as abs
from gristmill.language.elementwise import abs_ as fabs
from gristmill.language.elementwise import div_rn, fma
from gristmill.language.elementwise import maximum as fmax
from gristmill.language.elementwise import minimum as fmin
from gristmill.language.fast import (
    fast_cosf,
    fast_dividef,
    fast_exp10f,
    fast_expf,
    fast_log2f,
    fast_log10f,
    fast_logf,
    fast_powf,
    fast_sinf,
    fast_tanf,
)
from gristmill.language.functions import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cbrt,
    cos,
    cosh,
    erf,
    erfc,
    erfinv,
    exp10,
    expm1,
    fmod,
    hypot,
    lgamma,
    log1p,
    log10,
    sin,
    sinh,
    tan,
    tgamma,
)
from gristmill.language.functions import pow_ as pow
from gristmill.language.mathematics import ceil, exp, exp2, floor, log, log2, rsqrt, sqrt, tanh
from gristmill.language.rounding import (
    copysign,
    double_as_longlong,
    finitef,
    float_as_int,
    float_as_uint,
    int_as_float,
    isfinited,
    isinf,
    isnan,
    llrint,
    llround,
    longlong_as_double,
    nextafter,
    rint,
    saturatef,
    signbit,
    trunc,
    uint_as_float,
)
from gristmill.language.rounding import rint as nearbyint
from gristmill.language.rounding import round_ as round
from gristmill.language.words import brev, byte_perm, clz, ffs, mulhi, popc, umulhi

__all__ = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "brev", "byte_perm", "cbrt", "ceil", "clz",
    "copysign", "cos", "cosh", "div_rn", "double_as_longlong", "erf", "erfc", "erfinv", "exp", "exp10", "exp2",
    "expm1", "fabs", "fast_cosf", "fast_dividef", "fast_exp10f", "fast_expf", "fast_log10f", "fast_log2f",
    "fast_logf", "fast_powf", "fast_sinf", "fast_tanf", "ffs", "finitef", "float_as_int", "float_as_uint", "floor",
    "fma", "fmax", "fmin", "fmod", "hypot", "int_as_float", "isfinited", "isinf", "isnan", "lgamma", "llrint",
    "llround", "log", "log10", "log1p", "log2", "longlong_as_double", "mulhi", "nearbyint", "nextafter", "popc", "pow",
    "rint", "round", "rsqrt", "saturatef", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc",
    "uint_as_float", "umulhi",
]  # fmt: skip
