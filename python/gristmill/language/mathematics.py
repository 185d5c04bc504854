"""Elementary functions; f16 and bf16 are computed in f32 and rounded again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Value
from gristmill.compiler.op import OpRow, composite, emit, op
from gristmill.language import polynomials
from gristmill.language.types import as_value, cast_to, need_float


def _wide(name: str, x: Any) -> Value:
    """Emit a function of floats: half precision goes through f32."""
    x = need_float(as_value(x, f"{name}()"), name)
    if x.type.dtype.bits < 32:
        return cast_to(emit(name, x.type.with_dtype(dt.f32), cast_to(x, dt.f32)), x.type.dtype)
    return emit(name, x.type, x)


def _unary(name: str, doc: str, reference: Callable[[Any], Any], lower: Callable[[Any, Any], Any]) -> OpRow:
    def infer(x: Any) -> Value:
        return _wide(name, x)

    infer.__name__ = name
    infer.__doc__ = doc
    row = op("math")(infer)
    row.reference(lambda x: reference(x))
    row.lower(lower)
    return row


floor = _unary("floor", "The greatest integer not above x.", np.floor, lambda m, x: m.floor(x))
ceil = _unary("ceil", "The least integer not below x.", np.ceil, lambda m, x: m.ceil(x))
sqrt = _unary("sqrt", "The square root, correctly rounded.", np.sqrt, lambda m, x: m.sqrt(x))
sqrt_rn = _unary("sqrt_rn", "The square root, correctly rounded.", np.sqrt, lambda m, x: m.sqrt(x))
rsqrt = _unary(
    "rsqrt", "1 / sqrt(x); f32 within 2 ulp.", lambda x: (1 / np.sqrt(x)).astype(x.dtype), lambda m, x: m.rsqrt(x)
)
EXP2_DOC = "2 to the x; f32 within 2 ulp, on CUDA 0 where the result is denormal."
exp2 = _unary("exp2", EXP2_DOC, np.exp2, lambda m, x: m.exp2(x))
exp = _unary("exp", "e to the x; within 2 ulp.", np.exp, lambda m, x: m.outline("exp", polynomials.exp, x))
log = _unary("log", "The natural logarithm; within 2 ulp.", np.log, lambda m, x: m.outline("log", polynomials.log, x))
log2 = _unary(
    "log2", "The logarithm to base 2; f32 within 3 ulp.", np.log2, lambda m, x: m.outline("log2", polynomials.log2, x)
)


def _is_f32_on_cuda(machine: Any, op: Any) -> bool:
    return op.results[0].type.dtype == dt.f32


@exp.lower(on="threads", when=_is_f32_on_cuda)
def exp_by_exp2(m: Any, x: Any) -> Any:
    """e^x = 2^t (1 + e ln2) with t = x log2(e) rounded and e what the rounding lost: 2 ulp, one ex2.

    At the clamps ex2 gives inf and 0, and `e` is positive, so no NaN appears.
    """
    low, high = (m.constant(dt.f32, c) for c in (-105.0, 89.5))
    x = m.minimum(m.maximum(x, low, keep_nan=True), high, keep_nan=True)
    log2e = m.constant(dt.f32, float(np.float32(math.log2(math.e))))
    rest = m.constant(dt.f32, math.log2(math.e) - float(np.float32(math.log2(math.e))))
    t = m.multiply(x, log2e)
    lost = m.fma(x, rest, m.fma(x, log2e, m.negative(t)))
    p = m.exp2(t, is_gradual=True)
    return m.fma(m.multiply(p, m.constant(dt.f32, math.log(2))), lost, p)


@op("math")
def tanh(x: Any) -> Value:
    """The hyperbolic tangent; within 4 ulp, exact signs and limits."""
    return _wide("tanh", x)


@tanh.reference
def _(x: Any) -> Any:
    return np.tanh(x)


@tanh.lower
def _(m: Any, x: Any) -> Any:
    return m.outline("tanh", lambda m, x: polynomials.tanh(m, x, polynomials.exp), x)


@tanh.lower(on="threads", when=_is_f32_on_cuda)
def _(m: Any, x: Any) -> Any:
    return polynomials.tanh(m, x, exp_by_exp2)


@composite("math")
def sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + exp(-x)), without overflow and without loss for negative x; halves are computed in f32."""
    if x.dtype.is_float and x.dtype.bits < 32:
        return sigmoid(x.to(dt.f32)).to(x.dtype)
    e = exp(-abs(x))
    return where(x >= 0, 1.0, e) / (1.0 + e)


@sigmoid.reference
def _(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


@composite("math")
def softmax(x, dim=None, keep_dims=False, ieee_rounding=False):  # type: ignore[no-untyped-def]
    """exp(x) / sum(exp(x)) along `dim` (None: along axis 0), from which the greatest element is subtracted first.

    A row of -inf alone gives NaN. Halves are computed in f32; `ieee_rounding` rounds the division correctly. The
    result has x's shape whether or not `keep_dims` is given.
    """
    if x.dtype.is_float and x.dtype.bits < 32:
        return softmax(x.to(dt.f32), dim, keep_dims, ieee_rounding).to(x.dtype)
    e = exp(x - max_(x, 0 if dim is None else dim, keep_dims=True))
    return fdiv(e, sum_(e, 0 if dim is None else dim, keep_dims=True), ieee_rounding)


@softmax.reference
def _(x: Any, dim: int | None = None) -> Any:
    e = np.exp(x - x.max(axis=dim or 0, keepdims=True))
    return e / e.sum(axis=dim or 0, keepdims=True)


@composite("math")
def fdiv(x, y, ieee_rounding=False, approx=False):  # type: ignore[no-untyped-def]
    """x / y; with `ieee_rounding` correctly rounded, with `approx` fastest: see `div_approx`."""
    if ieee_rounding:
        return div_rn(x, y)
    if approx:
        return div_approx(x, y)
    return x / y


from gristmill.language.elementwise import abs_ as abs  # noqa: E402
from gristmill.language.elementwise import div_approx, div_rn, where  # noqa: E402
from gristmill.language.reduce import max_, sum_  # noqa: E402
