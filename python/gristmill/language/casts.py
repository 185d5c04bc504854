"""Casts: between every two dtypes, of bits, and of pointers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.facts import Facts
from gristmill.compiler.ir import Pointer, Value
from gristmill.compiler.op import emit, op
from gristmill.dtypes import dt_numpy
from gristmill.errors import KernelError
from gristmill.language.arrays import to_dtype
from gristmill.language.elementwise import ne
from gristmill.language.structure import PointerType
from gristmill.language.types import as_value, cast_to, constant, describe, is_number, need_dtype


@op("cast", name="cast", is_cheap=True, is_cast=True)
def cast(x: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: Any = False) -> Value:
    """x as `dtype`: floats round to nearest even, floats to integers truncate, to bool is `!= 0`.

    8-bit floats saturate. `fp_downcast_rounding="rtz"` rounds to a narrower float towards zero. `bitcast=True` keeps
    the bits instead, between dtypes of one width. Pointers convert to and from 64-bit integers, and to other pointers.
    """
    dtype = dtype.pointer if isinstance(dtype, PointerType) else dtype
    dtype = dtype if isinstance(dtype, Pointer) else need_dtype(dtype, "cast()")
    if is_number(x) and not bitcast and isinstance(dtype, dt.Dtype):
        return constant(bool(x) if dtype == dt.bool_ else x, dtype)
    x = as_value(x, "cast()")
    rounding = _rounding(fp_downcast_rounding, x, dtype)
    if bitcast or x.type.is_pointer or isinstance(dtype, Pointer):
        return _bitcast(x, dtype, bool(bitcast))
    if rounding == "rtz":
        return emit("cast", x.type.with_dtype(dtype), x, to=dtype, rounding=rounding)
    return cast_to(x, dtype)


def _rounding(rounding: Any, x: Value, dtype: Any) -> str:
    if rounding not in (None, "", "rtne", "rtz"):
        raise KernelError(f"cast(): rounding {describe(rounding)} is not 'rtne' or 'rtz'", fix="leave it out")
    is_narrower = x.type.dtype.is_float and dtype.is_float and dtype.bits < x.type.dtype.bits
    if rounding and not is_narrower:
        what = f"cast(): rounding is of floats to narrower floats, not of {x.type.dtype.name} to {dtype.name}"
        raise KernelError(what, fix="leave `fp_downcast_rounding` out")
    return rounding or ""


def _bitcast(x: Value, dtype: Any, is_asked: bool) -> Value:
    source = x.type.dtype
    if source == dtype:
        return x
    if isinstance(source, Pointer) and dtype == dt.bool_ and not is_asked:
        return ne(_bitcast(x, dt.i64, True), 0)
    if isinstance(dtype, Pointer) and source in (dt.i8, dt.i16, dt.i32, dt.u8, dt.u16, dt.u32) and not is_asked:
        x, source = cast_to(x, dt.i64), dt.i64
    is_address = isinstance(source, Pointer) or isinstance(dtype, Pointer)
    is_value = any(isinstance(d, dt.Dtype) and not d.is_int for d in (source, dtype))
    if source.bits != dtype.bits or dt.bool_ in (source, dtype) or (is_address and is_value):
        fix = "use a dtype of the same width, or leave `bitcast` out to convert the value"
        if is_address:
            fix = "pointers convert to and from `tl.int64` and `tl.uint64`, and to `tl.pointer_type(...)`"
        raise KernelError(f"cast(): cannot keep the bits of {x.type} as {dtype.name}", fix=fix)
    return emit("cast", x.type.with_dtype(dtype), x, to=dtype, bitcast=True)


@cast.reference
def _(x: Any, *, to: Any, bitcast: bool = False, rounding: str = "", machine: Any = None) -> Any:
    if isinstance(to, Pointer) or not isinstance(x, np.ndarray | np.generic):
        return machine.address(x, to)
    if bitcast:
        return np.asarray(x).view(dt_numpy(to))
    return _towards_zero(x, to) if rounding == "rtz" else to_dtype(x, to)


def _towards_zero(x: Any, to: Any) -> Any:
    near = np.asarray(to_dtype(x, to))
    word = {1: np.uint8, 2: np.uint16, 4: np.uint32}[near.dtype.itemsize]
    is_above = np.abs(near.astype(np.float64)) > np.abs(np.asarray(x).astype(np.float64))
    return (near.view(word) - is_above.astype(word)).astype(word).view(near.dtype)


@cast.facts
def _(op: Any, x: Facts) -> Facts:
    source, to = op.operands[0].type.dtype, op.attributes["to"]
    widens = source.is_int and to.is_int and to.bits >= source.bits
    return x if widens else Facts(constancy=x.constancy)


@cast.sign
def _(op: Any, x: bool) -> bool:
    source, to = op.operands[0].type.dtype, op.attributes["to"]
    if isinstance(source, Pointer) or isinstance(to, Pointer):
        return False
    is_unsigned = source.kind in ("uint", "bool")
    bits = 1 if source == dt.bool_ else source.bits
    return bool(to.is_int and ((is_unsigned and to.bits > bits) or (x and to.bits >= bits)))


@cast.lower
def _(m: Any, x: Any, *, to: Any, bitcast: bool = False, rounding: str = "") -> Any:
    if bitcast:
        return m.bitcast(x, to)
    near = m.cast(x, to)
    if rounding != "rtz":
        return near
    word = {8: dt.u8, 16: dt.u16, 32: dt.u32}[to.bits]
    bits, back = m.bitcast(near, word), m.cast(near, x.dtype)
    below = m.subtract(bits, m.constant(word, 1))
    return m.bitcast(m.select(m.compare(">", m.absolute(back), m.absolute(x)), below, bits), to)
