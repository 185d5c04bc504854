"""What a launcher must know to make a tensor map: the hardware's description of an array, of which it copies boxes."""

from __future__ import annotations

import math
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

    def boxes(self, rows: int, columns: int) -> list[tuple[int, int]]:
        """Where the boxes begin that together hold a block: row and column."""
        return [(r, c) for c in range(0, columns, self.box[0]) for r in range(0, rows, self.box[1])]

    @property
    def box_bytes(self) -> int:
        """What one copy brings."""
        return math.prod(self.box) * self.dtype.itemsize
