"""Where shared memory lies: what lasts for the whole kernel, and two areas that exchanges take in turn.

An exchange writes its area, passes a barrier and reads it. The next one takes the other area, and the one after that
the first again: whoever writes it has passed the barrier in between, and so have those who read it before. Only where
straight code ends, at a loop or a branch, is that not known, and the next exchange there begins with a barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.compiler.ir import Pointer
from gristmill.compiler.machine import V
from gristmill.dtypes import Dtype

SHARED = "gristmill_shared"  # all of a block's shared memory: its size is the launch's
ALIGNMENT = 16


class SharedMemory:
    """Hands out places; those in areas are marked in the text until the areas' own places are known."""

    def __init__(self) -> None:
        self.lasting_bytes = 0
        self.area_bytes = [0, 0]
        self.turn = 0
        self.label = ""  # of the straight code in which the last exchange stands

    @property
    def total_bytes(self) -> int:
        return self._start(2)

    def lasting(self, dtype: Dtype | Pointer, elements: int) -> V:
        """A place for the whole kernel."""
        start = _aligned(self.lasting_bytes)
        self.lasting_bytes = start + elements * dtype.itemsize
        return _handle(str(start), dtype)

    def exchange(self, m: Any, dtypes: Sequence[Dtype | Pointer], elements: int) -> list[V]:
        """Places for one exchange, which nobody reads any more."""
        is_first = not self.label and not m.loop_depth
        if m.label != self.label and not is_first:
            m.barrier()
        self.label, self.turn = m.label, 1 - self.turn
        handles, end = [], 0
        for dtype in dtypes:
            start = _aligned(end)
            handles.append(_handle(f"$area{self.turn}+{start}$", dtype))
            end = start + elements * dtype.itemsize
        self.area_bytes[self.turn] = max(self.area_bytes[self.turn], end)
        return handles

    def placed(self, line: str) -> str:
        """A line of code with areas' places filled in."""
        before, *rest = line.split("$area")
        for part in rest:
            place, after = part.split("$", 1)
            area, offset = place.split("+")
            before += str(self._start(int(area)) + int(offset)) + after
        return before

    def _start(self, area: int) -> int:
        start = _aligned(self.lasting_bytes)
        for size in self.area_bytes[:area]:
            start = _aligned(start) + size
        return _aligned(start) if area < 2 else start


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _handle(place: str, dtype: Dtype | Pointer) -> V:
    element = dtype.element if isinstance(dtype, Pointer) else dtype
    return V(f"getelementptr (i8, ptr addrspace(3) @{SHARED}, i32 {place})", Pointer(element))
