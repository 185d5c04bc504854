"""Arithmetic of threads on numpy arrays: a register is an array over all threads, or one number for all of them.

Numbers are rounded as a device rounds them. bf16 is kept as the f32 of the same value, the upper half of whose bits it
is, so that nothing but numpy is needed.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Pointer
from gristmill.compiler.machine import V
from gristmill.compiler.targets.llvm import half_bits
from gristmill.dtypes import Dtype
from gristmill.language.arrays import odd_single
from gristmill.language.float8 import decode, encode, is_float8

Kind = Dtype | Pointer
NAN_OF_BF16 = np.uint32(0x7FFF0000)


class Numbers(V):
    """A register: `each` has one number a thread, or no axis where all threads have the same."""

    __slots__ = ("each",)

    def __init__(self, each: Any, dtype: Kind):
        super().__init__("", dtype)
        self.each = each

    def __repr__(self) -> str:
        return f"{self.dtype.name} {self.each}"


@functools.cache
def storage(dtype: Kind) -> np.dtype:
    """Return the numpy dtype that registers of `dtype` are kept in; addresses are in bytes."""
    if isinstance(dtype, Pointer):
        return np.dtype(np.int64)
    if is_float8(dtype):
        return np.dtype(np.uint8)
    names = {"bf16": "float32", "bool": "bool"}
    return np.dtype(names.get(dtype.name, f"{dtype.kind}{dtype.bits}"))


def number_of(dtype: Dtype, number: float | int | bool) -> Any:
    """Return a Python number rounded or wrapped to `dtype`."""
    if dtype == dt.bf16:
        return from_bits(np.uint16(half_bits(float(number), dtype)), dtype)
    if is_float8(dtype):
        return encode(number, dtype)
    if dtype.is_float or dtype == dt.bool_:
        return np.float64(number).astype(storage(dtype))
    return np.array(int(number) % (1 << dtype.bits), f"u{dtype.itemsize}").view(storage(dtype))[()]


def to_bits(each: Any, dtype: Kind) -> Any:
    """Return what lies in memory, as unsigned integers; bools are bytes."""
    each = np.asarray(each)
    if dtype == dt.bf16:
        return (each.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return each.view(f"u{dtype.bits // 8}")


def from_bits(bits: Any, dtype: Kind) -> Any:
    """Return the numbers whose bits these are; a bool is whether its byte is not 0."""
    if dtype == dt.bool_:
        return bits != 0
    if dtype == dt.bf16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(storage(dtype))


def same_bits(x: Any, y: Any, dtype: Kind) -> Any:
    """Whether bits are those of one number: NaN is NaN, whatever it carries."""
    same = x == y
    if isinstance(dtype, Dtype) and dtype.is_float and dtype.bits > 8:
        a, b = from_bits(x, dtype), from_bits(y, dtype)
        same |= (a != a) & (b != b)
    return same


def round_to_bf16(single: Any) -> Any:
    """Round f32 to the nearest bf16, of two the even one."""
    single = np.asarray(single)
    word = single.view(np.uint32)
    near = (word + np.uint32(0x7FFF) + (word >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.asarray(np.where(single != single, NAN_OF_BF16, near)).view(np.float32)[()]


def convert(each: Any, source: Dtype, to: Dtype) -> Any:
    """Convert values: floats round to nearest even; to integers they truncate, to the nearest one within range."""
    each = np.asarray(each)
    if is_float8(source):
        each, source = np.asarray(decode(each, source)), dt.f32
    if to == dt.bool_:
        return each != 0
    if source.is_float and not to.is_float:
        return _truncated(each, storage(to) if to.bits >= 32 else np.dtype(np.int32)).astype(storage(to))
    if not to.is_float or to.bits >= 32:
        return each.astype(storage(to))
    if not source.is_float:
        each = each.astype(np.float64 if source.bits > 16 else np.float32)
    if to == dt.f16:
        return each.astype(np.float16)
    if is_float8(to):
        return encode(each, to)
    return round_to_bf16(odd_single(each) if each.dtype == np.float64 else each.astype(np.float32))


def _truncated(each: Any, kind: np.dtype) -> Any:
    wide, limits = each.astype(np.float64), np.iinfo(kind)
    low, high = float(limits.min), float(limits.max)
    inside = np.where((wide >= low) & (wide < high), wide, 0).astype(kind)
    return np.where(wide < low, kind.type(limits.min), np.where(wide >= high, kind.type(limits.max), inside))


def fused(x: Any, y: Any, z: Any, dtype: Dtype) -> Any:
    """x * y + z with one rounding."""
    if dtype == dt.f64:
        return _fused_double(x, y, z)
    product, term = np.asarray(x, np.float64) * np.asarray(y, np.float64), np.asarray(z, np.float64)
    return convert(_odd_sum(product, term), dt.f64, dtype)


def _odd_sum(x: Any, y: Any) -> Any:
    """x + y so that rounding again is as good as rounding once: truncated, the last bit set if inexact."""
    total, rest = _two_sum(x, y)
    word = total.view(np.int64)
    is_above = (rest < 0) != (total < 0)
    is_inexact = np.isfinite(total) & (rest != 0)
    return np.where(is_inexact, word - is_above | 1, word).view(np.float64)


def _two_sum(x: Any, y: Any) -> tuple[Any, Any]:
    """x + y, and what rounding it lost."""
    total = np.asarray(x + y)
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _fused_double(x: Any, y: Any, z: Any) -> Any:
    """By an exact product and a sum rounded to odd (Boldo and Melquiond, IEEE Trans. Comput. 57, 2008)."""
    product = np.asarray(x * y)
    is_usual = (x == 0) | (y == 0) | _is_usual(product)
    is_usual &= (np.abs(x) < 2.0**900) & (np.abs(y) < 2.0**900)
    if not (is_usual & ((z == 0) | _is_usual(z))).all():
        return _fused_long(x, y, z)
    low, low_rest = _two_sum(z, _lost(x, y, product, 27))
    high, high_rest = _two_sum(product, low)
    return high + _odd_sum(low_rest, high_rest)


def _is_usual(x: Any) -> Any:
    """Whether nothing overflows, and what rounding loses does not underflow."""
    size = np.abs(x)
    return (size > 2.0**-900) & (size < 2.0**900)


def _lost(x: Any, y: Any, product: Any, bits: int) -> Any:
    """What rounding lost of a product: from halves of the factors, whose products are exact (Dekker)."""
    (x_high, x_low), (y_high, y_low) = _halves(x, bits), _halves(y, bits)
    return ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low


def _halves(x: Any, bits: int) -> tuple[Any, Any]:
    shifted = x * ((1 << bits) + 1)
    high = shifted - (shifted - x)
    return high, x - high


def _fused_long(x: Any, y: Any, z: Any) -> Any:
    """In two long doubles; where the first lies between two doubles, the second says which one is nearer."""
    a, b, c = (np.asarray(v, np.longdouble) for v in (x, y, z))
    product = a * b
    lost = _lost(a, b, product, 32)
    total, rest = _two_sum(product, c)
    total, rest = _two_sum(total, rest + lost)
    near, below, above = (
        v.astype(np.float64) for v in (total, np.nextafter(total, -np.inf), np.nextafter(total, np.inf))
    )
    beside = np.where(rest > 0, above, np.where(rest < 0, below, near))
    plain = np.asarray(product + c).astype(np.float64)
    return np.where(np.isfinite(product + c) & np.isfinite(lost), np.where(below == above, near, beside), plain)
