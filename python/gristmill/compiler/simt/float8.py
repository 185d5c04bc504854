"""8-bit floats on the simulator: registers hold their bits, arithmetic sees f32."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gristmill.dtypes import Dtype
from gristmill.language.float8 import LARGEST, NAN_BITS, is_float8


@functools.cache
def _values(name: str) -> np.ndarray:
    """What each of the 256 patterns is."""
    bits = np.arange(256, dtype=np.uint16)
    if name == "f8e5m2":  # the upper half of an f16
        return (bits << 8).view(np.float16).astype(np.float32)
    exponent, mantissa = (bits >> 3 & 15).astype(np.int32), (bits & 7).astype(np.float32)
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    size[bits & 0x7F == NAN_BITS] = np.nan
    return np.where(bits & 0x80, -size, size).astype(np.float32)


def decoded(each: Any, dtype: Any) -> Any:
    """The numbers of a register, as f32 where they have 8 bits."""
    return _values(dtype.name)[np.asarray(each)] if is_float8(dtype) else each


def encoded(each: Any, dtype: Dtype) -> Any:
    """The bits of the nearest numbers, of two the even one; what is too large is the largest, NaN one NaN."""
    number = np.asarray(each).astype(np.float64)
    values = _values(dtype.name)[:NAN_BITS].astype(np.float64)
    values = values[values <= LARGEST[dtype.name]]
    middles, size = (values[1:] + values[:-1]) / 2, np.abs(number)
    code = np.searchsorted(middles, size, side="left")
    is_tie = size == middles[np.minimum(code, len(middles) - 1)]
    code += is_tie & (code % 2 == 1)
    signed = code | np.where(np.signbit(number), 0x80, 0)
    return np.where(np.isnan(number), NAN_BITS, signed).astype(np.uint8)[()]
