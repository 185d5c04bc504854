"""Elementary and special functions as ops: what each gives, how exactly, and its formula.

The bounds are of f32 and f64, in ulp (units in the last place of the result); halves are computed in f32 and rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Value
from gristmill.compiler.op import OpRow, emit, op
from gristmill.errors import KernelError
from gristmill.language import exponentials, references, special, trigonometry
from gristmill.language.registers import Register, formula
from gristmill.language.types import as_value, cast_to, is_number, need_float, promoted

Formula = Callable[..., Register]


def emit_wide(name: str, *operands: Value) -> Value:
    """Emit a function of floats that have one dtype and shape: half precision goes through f32."""
    own = operands[0].type.dtype
    if own.bits < 32:
        wide = [cast_to(x, dt.f32) for x in operands]
        return cast_to(emit(name, wide[0].type, *wide), own)
    return emit(name, operands[0].type, *operands)


def float_pair(x: Any, y: Any, name: str) -> tuple[Value, Value]:
    """Bring two operands to one floating dtype and shape."""
    a, b = promoted(x, y, what=f"{name}()")
    return need_float(a, name), b


def _declare(infer: Callable[..., Value], name: str, doc: str, reference: Callable[..., Any], lower: Any) -> OpRow:
    infer.__name__, infer.__doc__ = name, doc
    row = op("math", name=name)(infer)
    row.reference(reference)
    row.lower(lower)
    return row


def unary(name: str, function: Formula, reference: Callable[..., Any], doc: str) -> OpRow:
    """Declare a function of one float, whose meaning is `reference` of wider floats, rounded once."""

    def infer(x: Any) -> Value:
        return emit_wide(name, need_float(as_value(x, f"{name}()"), name))

    return _declare(infer, name, doc, lambda x: rounded(reference, x), formula(name, function))


def binary(name: str, function: Formula, reference: Callable[..., Any], doc: str, names: str = "xy") -> OpRow:
    """Declare a function of two floats, which are promoted as for `+`; `names` are those of the parameters."""

    def infer(x: Any, y: Any) -> Value:
        return emit_wide(name, *float_pair(x, y, name))

    def infer_swapped(y: Any, x: Any) -> Value:
        return emit_wide(name, *float_pair(y, x, name))

    signature = infer if names == "xy" else infer_swapped
    return _declare(signature, name, doc, lambda x, y: rounded(reference, x, y), formula(name, function))


def rounded(function: Callable[..., Any], *operands: Any) -> Any:
    """Apply a numpy function in f64, or beyond it for f64, and round its result once."""
    own = operands[0].dtype
    wide = np.float64 if own == np.float32 else np.longdouble
    return np.asarray(function(*(x.astype(wide) for x in operands))).astype(own)


def each(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """A function of Python floats applied to every element of an array."""

    def apply(x: Any) -> Any:
        flat = [function(float(v)) for v in np.ravel(x)]
        return np.array(flat, np.float64).reshape(np.shape(x))

    return apply


sin = unary("sin", trigonometry.sin, np.sin, "The sine of x in radians, of any size; within 1 ulp.")
cos = unary("cos", trigonometry.cos, np.cos, "The cosine of x in radians, of any size; within 1 ulp.")
tan = unary("tan", trigonometry.tan, np.tan, "The tangent of x in radians, of any size; within 3 ulp.")
asin = unary("asin", trigonometry.asin, np.arcsin, "The arc sine, in [-pi/2, pi/2]; within 2 ulp.")
acos = unary("acos", trigonometry.acos, np.arccos, "The arc cosine, in [0, pi]; within 2 ulp.")
atan = unary("atan", trigonometry.atan, np.arctan, "The arc tangent, in [-pi/2, pi/2]; within 2 ulp.")
atan2 = binary(
    "atan2",
    trigonometry.atan2,
    np.arctan2,
    "The angle of the point (x, y), in [-pi, pi], with the signs of zero that C's `atan2` has; within 2 ulp.",
    names="yx",
)
sinh = unary("sinh", exponentials.sinh, np.sinh, "The hyperbolic sine; within 3 ulp.")
cosh = unary("cosh", exponentials.cosh, np.cosh, "The hyperbolic cosine; within 3 ulp.")
asinh = unary("asinh", exponentials.asinh, np.arcsinh, "The inverse hyperbolic sine; within 3 ulp.")
acosh = unary("acosh", exponentials.acosh, np.arccosh, "The inverse hyperbolic cosine, of x >= 1; within 3 ulp.")
atanh = unary("atanh", exponentials.atanh, np.arctanh, "The inverse hyperbolic tangent; within 3 ulp.")
exp10 = unary("exp10", exponentials.exp10, lambda x: np.power(x.dtype.type(10), x), "10 to the x; within 2 ulp.")
log10 = unary("log10", exponentials.log10, np.log10, "The logarithm to base 10; within 1 ulp, exact for powers of ten.")
log1p = unary("log1p", exponentials.log1p, np.log1p, "ln(1 + x), exact for small x too; within 3 ulp.")
expm1 = unary("expm1", exponentials.expm1, np.expm1, "e to the x, less 1, exact for small x too; within 2 ulp.")
erf = unary("erf", special.erf, each(math.erf), "The error function; within 2 ulp.")
erfc = unary("erfc", special.erfc, each(math.erfc), "1 - erf(x), without cancellation for large x; within 5 ulp.")
cbrt = unary("cbrt", special.cbrt, np.cbrt, "The cube root, of negative numbers too; within 1 ulp.")
hypot = binary(
    "hypot", special.hypot, np.hypot, "sqrt(x^2 + y^2), where neither overflow nor underflow shows; within 1 ulp."
)
fmod = binary("fmod", special.fmod, np.fmod, "The remainder of x / y with the sign of x; exact.")


def _erfinv(x: float) -> float:
    """By Newton from a rough start; near 1 on erfc, whose argument does not lose bits there."""
    size = abs(x)
    if not size < 1:
        return math.copysign(math.inf, x) if size == 1 else math.nan
    w = -math.log1p(-size * size)
    t = 2 / (math.pi * 0.147) + math.log(1 - size * size) / 2 if size < 0.9 else 0.0
    y = math.sqrt(math.sqrt(t * t + w / 0.147) - t) if size < 0.9 else math.sqrt(-math.log((1 - size) * (1 + size)))
    for _ in range(60):
        error = math.erf(y) - size if size < 0.5 else (1 - size) - math.erfc(y)
        step = error / (2 / math.sqrt(math.pi) * math.exp(-y * y))
        step = step / (1 + y * step) if 1 + y * step > 0.5 else step / 2
        y -= step
        if abs(step) < 1e-17 * y:
            break
    return math.copysign(y, x)


erfinv = unary(
    "erfinv", special.erfinv, each(_erfinv), "The inverse of erf: of +-1 infinite, beyond NaN; within 4 ulp."
)
lgamma = unary(
    "lgamma",
    special.lgamma,
    references.lgamma,
    "ln |gamma(x)|, of 0 and negative integers inf; within 4 ulp, for x < 0 of the larger of it, ln gamma(-x) and 1.",
)
tgamma = unary(
    "tgamma", special.tgamma, references.tgamma, "gamma(x): of 0 +-inf, of negative integers NaN; within 5 ulp."
)


@op("math", name="pow")
def pow_(x: Any, y: Any) -> Value:
    """x to the y, with the special values of C's `pow`; within 2 ulp.

    An integer tile y is converted: of 32 bits and more beside f32 the power is computed in f64.
    """
    x = x if is_number(x) else need_float(as_value(x, "pow()"), "pow")
    whole = isinstance(y, Value) and y.type.dtype.is_int
    if not whole:
        return emit_wide("pow", *float_pair(x, y, "pow"))
    x = need_float(as_value(x, "pow()"), "pow")
    own = x.type.dtype
    inner = dt.f64 if y.type.dtype.bits > 16 or own == dt.f64 else dt.f32
    a, b = promoted(cast_to(x, inner), cast_to(y, inner), what="pow()")
    return cast_to(emit("pow", a.type, a, b), own)


@pow_.reference
def _(x: Any, y: Any) -> Any:
    return rounded(np.power, x, y)


pow_.lower(formula("pow", exponentials.power))


def check_int(x: Any, what: str, bits: tuple[int, ...] = (32, 64)) -> Value:
    """Return x as an integer tile of one of these widths."""
    x = as_value(x, f"{what}()")
    if not x.type.dtype.is_int or x.type.dtype.bits not in bits:
        widths = " or ".join(map(str, bits))
        fix = f"cast it first, as in `x.to(tl.int{bits[0]})`"
        raise KernelError(f"{what}(): needs integers of {widths} bits, got {x.type}", fix=fix)
    return x
