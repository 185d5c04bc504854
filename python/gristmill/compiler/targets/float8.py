"""8-bit floats, which machines hold as bytes: conversions in integer steps, or by the processor's instruction."""

from __future__ import annotations

from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.machine import V
from gristmill.dtypes import Dtype
from gristmill.language.float8 import NAN_BITS

MANTISSA = {"f8e4m3": 3, "f8e5m2": 2}
BIAS = {"f8e4m3": 7, "f8e5m2": 15}
LARGEST_BITS = {"f8e4m3": 0x7E, "f8e5m2": 0x7B}
PTX_NAMES = {"f8e4m3": "e4m3x2", "f8e5m2": "e5m2x2"}


def resize(m: Any, x: V, dtype: Dtype) -> V:
    """Convert between floats of which one has 8 bits, in one rounding."""
    assert isinstance(x.dtype, Dtype)
    if x.dtype.bits == 8:
        single = _by_instruction(m, x) if m.has_float8 else _to_single(m, x)
        return single if dtype == dt.f32 else m.cast(single, dtype)
    if x.dtype == dt.f64:
        x = m.round_to_odd(x)
    x = m.cast(x, dt.f32)
    return _by_instruction_from(m, x, dtype) if m.has_float8 else _from_single(m, x, dtype)


def _to_single(m: Any, x: V) -> V:
    assert isinstance(x.dtype, Dtype)
    byte = m.bitcast(x, dt.u8)
    if x.dtype == dt.f8e5m2:  # the upper half of an f16
        half = m.shift_left(m.cast(byte, dt.u16), m.constant(dt.u16, 8))
        return m.cast(m.bitcast(half, dt.f16), dt.f32)
    word = m.cast(byte, dt.u32)
    c = lambda value: m.constant(dt.u32, value)  # noqa: E731
    size = m.bit_and(word, c(0x7F))
    # The fields in place make a number too small by a power of two; the product is exact, of denormals too.
    small = m.bitcast(m.shift_left(size, c(20)), dt.f32)
    value = m.bitcast(m.multiply(small, m.constant(dt.f32, 2.0**120)), dt.u32)
    value = m.select(m.compare("==", size, c(NAN_BITS)), c(0x7FC00000), value)
    sign = m.shift_left(m.bit_and(word, c(0x80)), c(24))
    return m.bitcast(m.bit_or(value, sign), dt.f32)


def _from_single(m: Any, x: V, dtype: Dtype) -> V:
    mantissa, bias = MANTISSA[dtype.name], BIAS[dtype.name]
    drop = 23 - mantissa
    c = lambda value: m.constant(dt.u32, value)  # noqa: E731
    word = m.bitcast(x, dt.u32)
    size = m.bit_and(word, c(0x7FFFFFFF))
    odd = m.bit_and(m.shift_right(size, c(drop)), c(1))
    rounded = m.shift_right(m.add(size, m.add(odd, c((1 << (drop - 1)) - 1))), c(drop))
    normal = m.subtract(rounded, c((127 - bias) << mantissa))
    # Beside this number one step of an f32 is one step of the denormals, so that the sum rounds to them.
    magic = m.constant(dt.f32, 2.0 ** (24 - bias - mantissa))
    denormal = m.subtract(m.bitcast(m.add(m.bitcast(size, dt.f32), magic), dt.u32), m.bitcast(magic, dt.u32))
    is_normal = m.compare(">=", size, c((128 - bias) << 23))
    code = m.minimum(m.select(is_normal, normal, denormal), c(LARGEST_BITS[dtype.name]))
    signed = m.bit_or(code, m.bit_and(m.shift_right(word, c(24)), c(0x80)))
    result = m.select(m.compare("!=", x, x), c(NAN_BITS), signed)
    return m.bitcast(m.cast(result, dt.u8), dtype)


def _by_instruction(m: Any, x: V) -> V:
    assert isinstance(x.dtype, Dtype)
    pair = m.cast(m.bitcast(x, dt.u8), dt.u16)
    text = f'call <2 x half> asm "cvt.rn.f16x2.{PTX_NAMES[x.dtype.name]} $0, $1;", "=r,h"(i16 {pair.text})'
    both = m.emit(text, dt.f16, 2)
    return m.cast(m.emit(f"extractelement {m.typed(both)}, i32 0", dt.f16), dt.f32)


def _by_instruction_from(m: Any, x: V, dtype: Dtype) -> V:
    zero = m.constant(dt.f32, 0.0).text
    name = f"cvt.rn.satfinite.{PTX_NAMES[dtype.name]}.f32"
    pair = m.emit(f'call i16 asm "{name} $0, $2, $1;", "=h,f,f"({m.typed(x)}, float {zero})', dt.u16)
    return m.bitcast(m.cast(pair, dt.u8), dtype)
