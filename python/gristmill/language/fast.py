"""Functions of f32 that are fast rather than exact: on CUDA what the hardware approximates.

Other machines compute them as exactly as the functions without `fast`. The bounds on CUDA are those of the CUDA C
Programming Guide, "Intrinsic Functions", and of PTX's `.approx` instructions.
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
from gristmill.language import exponentials, trigonometry
from gristmill.language.functions import Formula, rounded
from gristmill.language.registers import exp, formula, log
from gristmill.language.types import as_value, promoted


def _single(x: Value, name: str) -> Value:
    if x.type.dtype != dt.f32:
        raise KernelError(f"{name}(): needs f32, got {x.type}", fix="convert first, as in `x.to(tl.float32)`")
    return x


def _unary(name: str, doc: str, reference: Any, exact: Formula, approximate: Callable[..., Any]) -> OpRow:
    def infer(x: Any) -> Value:
        x = _single(as_value(x, f"{name}()"), name)
        return emit(name, x.type, x)

    infer.__name__, infer.__doc__ = name, doc
    row = op("math", name=name)(infer)
    row.reference(lambda x: rounded(reference, x))
    row.lower(formula(name, exact))
    row.lower(approximate, on="cuda")
    return row


def _scaled(m: Any, x: Any, factor: float) -> Any:
    return m.multiply(x, m.constant(dt.f32, factor))


def _log2(m: Any, x: Any) -> Any:
    return m.call("llvm.nvvm.lg2.approx.f", dt.f32, x)


def _sine(m: Any, x: Any) -> Any:
    return m.call("llvm.nvvm.sin.approx.f", dt.f32, x)


def _cosine(m: Any, x: Any) -> Any:
    return m.call("llvm.nvvm.cos.approx.f", dt.f32, x)


fast_sinf = _unary("fast_sinf", "The sine; on CUDA off by up to 2^-21.4 in [-pi, pi].", np.sin, trigonometry.sin, _sine)
fast_cosf = _unary(
    "fast_cosf", "The cosine; on CUDA off by up to 2^-21.1 in [-pi, pi].", np.cos, trigonometry.cos, _cosine
)
fast_tanf = _unary(
    "fast_tanf",
    "The tangent; on CUDA `fast_sinf` by `fast_cosf`.",
    np.tan,
    trigonometry.tan,
    lambda m, x: m.divide_roughly(_sine(m, x), _cosine(m, x)),
)
fast_expf = _unary(
    "fast_expf",
    "e to the x; on CUDA within 2 + 1.2 |x| ulp.",
    np.exp,
    exp,
    lambda m, x: m.exp2(_scaled(m, x, math.log2(math.e))),
)
fast_exp10f = _unary(
    "fast_exp10f",
    "10 to the x; on CUDA within 2 + 3 |x| ulp.",
    lambda x: np.power(10.0, x),
    exponentials.exp10,
    lambda m, x: m.exp2(_scaled(m, x, math.log2(10))),
)
fast_logf = _unary(
    "fast_logf",
    "The natural logarithm; on CUDA off by up to 2^-21.4 in [0.5, 2], beyond it within 3 ulp.",
    np.log,
    log,
    lambda m, x: _scaled(m, _log2(m, x), math.log(2)),
)
fast_log2f = _unary(
    "fast_log2f",
    "The logarithm to base 2; on CUDA off by up to 2^-22 in [0.5, 2], beyond it within 2 ulp.",
    np.log2,
    lambda x: log(x) * (1 / math.log(2)),
    _log2,
)
fast_log10f = _unary(
    "fast_log10f",
    "The logarithm to base 10; on CUDA off by up to 2^-22 in [0.5, 2], beyond it within 3 ulp.",
    np.log10,
    exponentials.log10,
    lambda m, x: _scaled(m, _log2(m, x), math.log10(2)),
)


@op("math")
def fast_powf(x: Any, y: Any) -> Value:
    """x to the y for x > 0; on CUDA 2 to the (y log2 x), so that large exponents lose bits."""
    a, b = promoted(x, y, what="fast_powf()")
    return emit("fast_powf", _single(a, "fast_powf").type, a, b)


@fast_powf.reference
def _(x: Any, y: Any) -> Any:
    return rounded(np.power, x, y)


fast_powf.lower(formula("fast_powf", exponentials.power))


@fast_powf.lower(on="cuda")
def _(m: Any, x: Any, y: Any) -> Any:
    return m.exp2(m.multiply(y, _log2(m, x)))


@op("math")
def fast_dividef(x: Any, y: Any) -> Value:
    """x / y of f32; within 2 ulp for |y| from 2^-126 to 2^126, beyond it 0 or NaN."""
    from gristmill.language.elementwise import div_approx

    a, b = promoted(x, y, what="fast_dividef()")
    return div_approx(_single(a, "fast_dividef"), b)
