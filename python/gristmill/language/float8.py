"""The 8-bit floats in numpy: conversions that saturate, as the hardware's do."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.language.index import dt_numpy

LARGEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0}
NAN_BITS = 0x7F


def is_float8(dtype: Any) -> bool:
    """Whether it is an 8-bit float."""
    return isinstance(dtype, dt.Dtype) and dtype.is_float and dtype.bits == 8


def to_float8(x: Any, dtype: dt.Dtype) -> Any:
    """Round numbers to nearest even; what is too large, infinity too, becomes the largest number, NaN one NaN."""
    wide = np.asarray(x).astype(np.float64)
    limit = LARGEST[dtype.name]
    rounded = np.clip(wide, -limit, limit).astype(dt_numpy(dtype))
    bits = np.where(np.isnan(wide), np.uint8(NAN_BITS), rounded.view(np.uint8))
    return bits.astype(np.uint8).view(dt_numpy(dtype)).reshape(wide.shape)


def float8_bits(number: float, dtype: dt.Dtype) -> int:
    """The bits of a number."""
    return int(to_float8(np.array([number]), dtype).view(np.uint8)[0])


def computed(x: Any) -> Any:
    """What arithmetic sees of an operand: 8-bit floats as f32."""
    is_small = isinstance(x, np.ndarray) and x.dtype in (dt_numpy(dt.f8e4m3), dt_numpy(dt.f8e5m2))
    return x.astype(np.float32) if is_small else x
