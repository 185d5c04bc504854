"""The 8-bit floats as bytes: the number that each means, and the byte of a number, saturated as the hardware does."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gristmill import dtypes as dt

NAN_BITS = 0x7F


def is_float8(dtype: Any) -> bool:
    """Whether it is an 8-bit float."""
    return isinstance(dtype, dt.Dtype) and dtype.is_float and dtype.bits == 8


@functools.cache
def _values(dtype: dt.Dtype) -> Any:
    """The number that each byte means: sign, exponent, mantissa."""
    mantissa, bias, largest = (3, 7, 0x7E) if dtype == dt.f8e4m3 else (2, 15, 0x7B)
    code = np.arange(128)
    exponent, fraction = code >> mantissa, (code & (1 << mantissa) - 1) / (1 << mantissa)
    sizes = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))
    sizes[largest + 1 :] = np.nan
    if dtype == dt.f8e5m2:
        sizes[largest + 1] = np.inf
    return np.concatenate([sizes, -sizes]).astype(np.float32)


@functools.cache
def _middles(dtype: dt.Dtype) -> Any:
    """What lies halfway between each finite number that is not negative and the next."""
    sizes = _values(dtype)[:128].astype(np.float64)
    finite = sizes[np.isfinite(sizes)]
    return (finite[1:] + finite[:-1]) / 2


def decode(bits: Any, dtype: dt.Dtype) -> Any:
    """Return the f32 that bytes mean."""
    return _values(dtype)[bits]


def encode(x: Any, dtype: dt.Dtype) -> Any:
    """Return the bytes of the nearest numbers, of two the even one; at most the largest; NaN is positive."""
    wide = np.asarray(x).astype(np.float64)
    size, middles = np.abs(wide), _middles(dtype)
    below = np.searchsorted(middles, size)
    is_tie = middles[np.minimum(below, len(middles) - 1)] == size
    code = below + (is_tie & (below % 2 == 1)) | np.signbit(wide) * 0x80
    return np.where(np.isnan(wide), NAN_BITS, code).astype(np.uint8)[()]


def float8_bits(number: float, dtype: dt.Dtype) -> int:
    """The bits of a number."""
    return int(encode(number, dtype))
