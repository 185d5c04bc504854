"""`tl.math`: the elementwise functions of the language, and those that older Triton kept here."""

from __future__ import annotations

from gristmill.language.elementwise import abs_ as abs
from gristmill.language.elementwise import clamp, div_rn, fma, maximum, minimum
from gristmill.language.extra.libdevice import (
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
    isinf,
    isnan,
    lgamma,
    log1p,
    log10,
    nearbyint,
    pow,
    rint,
    round,
    sin,
    sinh,
    tan,
    tgamma,
    trunc,
    umulhi,
)
from gristmill.language.index import cdiv
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

__all__ = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cdiv", "ceil", "clamp", "cos", "cosh",
    "div_rn", "erf", "erfc", "erfinv", "exp", "exp10", "exp2", "expm1", "fdiv", "floor", "fma", "fmod", "hypot",
    "isinf", "isnan", "lgamma", "log", "log10", "log1p", "log2", "maximum", "minimum", "nearbyint", "pow", "rint",
    "round", "rsqrt", "sigmoid", "sin", "sinh", "softmax", "sqrt", "sqrt_rn", "tan", "tanh", "tgamma", "trunc",
    "umulhi",
]  # fmt: skip
