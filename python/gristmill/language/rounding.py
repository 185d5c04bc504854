"""Rounding to integers, signs, kinds of numbers, and the bits of floats as integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Value
from gristmill.compiler.op import OpRow, emit, op
from gristmill.errors import KernelError
from gristmill.language.elementwise import abs_, eq, lt, minimum, ne, where
from gristmill.language.functions import Formula, binary, emit_wide, float_pair
from gristmill.language.registers import Register, copy_sign, floor, formula, has_sign
from gristmill.language.registers import where as choose
from gristmill.language.types import as_value, cast_to, need_float
from gristmill.language.words import with_dtype


def _float(x: Any, what: str) -> Value:
    return need_float(as_value(x, f"{what}()"), what)


def _to_whole(name: str, doc: str, reference: Any, lower: Any) -> OpRow:
    def infer(x: Any) -> Value:
        return emit_wide(name, _float(x, name))

    infer.__name__, infer.__doc__ = name, doc
    row = op("math", name=name)(infer)
    row.reference(lambda x: reference(x))
    row.lower(lower)
    return row


def _truncated(x: Register) -> Register:
    return copy_sign(floor(abs(x)), x)


def _away(x: Register) -> Register:
    size = abs(x)
    whole = floor(size)
    return copy_sign(choose(size - whole >= 0.5, whole + 1.0, whole), x)


def _numpy_away(x: Any) -> Any:
    whole = np.trunc(x)
    is_far = np.abs(np.where(np.isfinite(x), x - whole, 0)) >= 0.5
    return np.copysign(np.where(is_far, np.abs(whole) + 1, np.abs(whole)), x).astype(x.dtype)


def _whole(name: str, doc: str, reference: Any, function: Formula) -> OpRow:
    return _to_whole(name, doc, reference, formula(name, function))


rint = _to_whole("rint", "The nearest integer, of two the even one, as a float.", np.rint, lambda m, x: m.round_even(x))
trunc = _whole("trunc", "x without its fraction, as a float.", np.trunc, _truncated)
round_ = _whole("round", "The nearest integer, of two the one further from 0, as a float.", _numpy_away, _away)


def _to_i64(name: str, doc: str, row: OpRow) -> OpRow:
    def infer(x: Any) -> Value:
        return cast_to(row(_float(x, name)), dt.i64)

    infer.__name__, infer.__doc__ = name, doc
    return op("math", name=name)(infer)


llrint = _to_i64(
    "llrint", "The nearest integer, of two the even one, as i64; beyond it the nearest i64, of NaN 0.", rint
)
llround = _to_i64(
    "llround", "The nearest integer, of two the one further from 0, as i64; beyond it the nearest i64.", round_
)
copysign = binary("copysign", copy_sign, np.copysign, "|x| with the sign of y, of zero and NaN too; exact.")


def _next(x: Register, y: Register) -> Register:
    """One more or less in the bits, which are ordered as the sizes are; from zero the smallest number towards y."""
    kind = dt.i64 if x.is_double else dt.i32
    word = x.as_bits(kind)
    moved = choose((y > x) ^ has_sign(x), word + 1, word - 1).as_bits(x.dtype)
    first = copy_sign(word.constant(1).as_bits(x.dtype), y)
    result = choose(x.equals(y), y, choose(x.equals(0.0), first, moved))
    return choose(x.is_nan() | y.is_nan(), math.nan, result)


@op("math")
def nextafter(x: Any, y: Any) -> Value:
    """The number next to x on the way to y, of f32 or f64; y itself where they are equal."""
    a, b = float_pair(x, y, "nextafter")
    if a.type.dtype.bits < 32:
        raise KernelError(f"nextafter(): needs f32 or f64, got {a.type}", fix="convert first, as in `x.to(tl.float32)`")
    return emit("nextafter", a.type, a, b)


@nextafter.reference
def _(x: Any, y: Any) -> Any:
    return np.nextafter(x, y)


nextafter.lower(formula("nextafter", _next))


@op("math")
def signbit(x: Any) -> Value:
    """1 where the sign bit of x is set, of -0 and NaN too, else 0; i32."""
    x = _float(x, "signbit")
    signed = {16: dt.i16, 32: dt.i32, 64: dt.i64}[x.type.dtype.bits]
    return cast_to(lt(with_dtype(x, signed), 0), dt.i32)


@op("math")
def isnan(x: Any) -> Value:
    """Whether x is NaN."""
    x = _float(x, "isnan")
    return ne(x, x)


@op("math")
def isinf(x: Any) -> Value:
    """Whether x is infinite."""
    return eq(abs_(_float(x, "isinf")), math.inf)


@op("math")
def isfinited(x: Any) -> Value:
    """Whether x is neither infinite nor NaN."""
    return lt(abs_(_float(x, "isfinited")), math.inf)


@op("math")
def finitef(x: Any) -> Value:
    """Whether x is neither infinite nor NaN."""
    return lt(abs_(_float(x, "finitef")), math.inf)


@op("math")
def saturatef(x: Any) -> Value:
    """x limited to [0, 1]; of NaN 0."""
    x = _float(x, "saturatef")
    return where(lt(0.0, x), minimum(x, 1.0), 0.0)


def _as_bits(name: str, source: dt.Dtype, to: dt.Dtype) -> OpRow:
    def infer(x: Any) -> Value:
        x = as_value(x, f"{name}()")
        if x.type.dtype != source:
            fix = f"use `x.to(dtype, bitcast=True)` for dtypes other than {source}"
            raise KernelError(f"{name}(): needs {source}, got {x.type}", fix=fix)
        return with_dtype(x, to)

    infer.__name__, infer.__doc__ = name, f"The bits of {source} as {to}."
    return op("bits", name=name)(infer)


float_as_int = _as_bits("float_as_int", dt.f32, dt.i32)
float_as_uint = _as_bits("float_as_uint", dt.f32, dt.u32)
int_as_float = _as_bits("int_as_float", dt.i32, dt.f32)
uint_as_float = _as_bits("uint_as_float", dt.u32, dt.f32)
double_as_longlong = _as_bits("double_as_longlong", dt.f64, dt.i64)
longlong_as_double = _as_bits("longlong_as_double", dt.i64, dt.f64)
