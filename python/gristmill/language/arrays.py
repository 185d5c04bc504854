"""Dtypes as numpy has them, and conversions between them as kernels convert: each rounds once."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.dtypes import dt_numpy
from gristmill.language.float8 import encode, is_float8


def filled(shape: tuple[int, ...], number: Any, dtype: dt.Dtype) -> Any:
    """Return an array of one number, rounded to `dtype`."""
    return np.full(shape, to_dtype(np.asarray(number), dtype))


def to_dtype(x: Any, to: Any) -> Any:
    """Convert a numpy array as `cast` does."""
    target = dt_numpy(to)
    if to == dt.bool_:
        return computed(x) != 0
    if is_float8(to):
        return to_float8(x, to)
    if to.is_int and x.dtype.kind not in "iub":
        return _saturated(x.astype(np.float64), np.int32 if to.bits < 32 else target).astype(target)
    if to.is_float and to.bits == 16 and x.dtype.itemsize > 2 and x.dtype != np.float32:
        return odd_single(x.astype(np.float64)).astype(target)
    return x.astype(target)


def to_float8(x: Any, dtype: dt.Dtype) -> Any:
    """Round numbers to nearest even; what is too large, infinity too, becomes the largest number, NaN one NaN."""
    return np.asarray(encode(x, dtype)).view(dt_numpy(dtype))


def computed(x: Any) -> Any:
    """What arithmetic sees of an operand: 8-bit floats as f32."""
    is_small = isinstance(x, np.ndarray) and x.dtype in (dt_numpy(dt.f8e4m3), dt_numpy(dt.f8e5m2))
    return x.astype(np.float32) if is_small else x


def odd_single(x: Any) -> Any:
    """f64 to f32 so that rounding again is as good as rounding once: truncated, the last bit set if inexact."""
    x = np.asarray(x, np.float64)
    with np.errstate(over="ignore", under="ignore"):
        near = x.astype(np.float32)
    word, back = near.view(np.uint32), near.astype(np.float64)
    truncated = word - (np.abs(back) > np.abs(x)).astype(np.uint32)
    exact = (back == x) | (x != x)
    return np.asarray(np.where(exact, word, truncated | np.uint32(1))).view(np.float32)


def _saturated(x: Any, target: Any) -> Any:
    """Truncate; beyond the range the nearest integer, for NaN 0."""
    low, high = np.iinfo(target).min, np.iinfo(target).max
    with np.errstate(invalid="ignore"):
        inside = np.where((x >= low) & (x < high), x, 0).astype(target)
    return np.where(x < low, low, np.where(x >= high, high, inside)).astype(target)
