"""What a launcher must know to make a tensor map: the hardware's description of an array, of which it copies boxes."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.dtypes import Dtype

Code = tuple[int, ...]  # postfix, as `symbolic` writes it, over the kernel's parameters


@dataclass(frozen=True)
class TensorMap:
    """The array at a pointer parameter. Axes go from the innermost, whose elements follow each other, outwards.

    `extents` are elements along each axis, `strides` the steps in elements along all but the first; `box` is what one
    copy takes. `swizzle`: bytes of the rows whose 16-byte chunks change places in shared memory, 0 if none do.
    """

    parameter: str
    dtype: Dtype
    extents: tuple[Code, ...]
    strides: tuple[Code, ...]
    box: tuple[int, ...]
    swizzle: int
