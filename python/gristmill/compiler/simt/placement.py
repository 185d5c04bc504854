"""Where each exchange's shared memory lies on the device: found by emitting the kernel and listening.

The emitting machine decides it, in the order of the text, and with it which barriers may be left out. The simulated
device executes in the order of time; so that it has the same places and the same barriers, they are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.compiler.ir import Function, Op, Pointer, Value
from gristmill.compiler.machine import V
from gristmill.compiler.targets.cuda import CudaMachine
from gristmill.compiler.targets.cuda_shared import ALIGNMENT
from gristmill.compiler.targets.threads import Held
from gristmill.dtypes import Dtype


@dataclass(frozen=True)
class Exchange:
    """An area, how many bytes of it from its start, whether a barrier comes first, and where each dtype's part is."""

    area: int
    size: int
    has_barrier: bool
    starts: tuple[int, ...]


Exchanges = dict[tuple[Op | None, int], Exchange]  # by the op and how many it had before


def exchanges_of(function: Function) -> Exchanges:
    """Return the exchanges of a kernel that has been through the passes."""
    listener = _Listener(function)
    listener.text()
    return listener.exchanges


class _Listener(CudaMachine):
    def __init__(self, function: Function):
        super().__init__(function)
        self.op: Op | None = None
        self.exchange_count = 0
        self.has_barrier = False
        self.exchanges: Exchanges = {}

    def run_op(self, op: Op, values: dict[Value, V | Held]) -> None:
        outer, self.op, self.exchange_count = (self.op, self.exchange_count), op, 0
        super().run_op(op, values)
        self.op, self.exchange_count = outer

    def barrier(self) -> None:
        self.has_barrier = True
        super().barrier()

    def scratch(self, dtypes: Sequence[Dtype | Pointer], elements: int) -> list[V]:
        self.has_barrier = False
        handles = super().scratch(dtypes, elements)
        starts, end = [], 0
        for dtype in dtypes:
            starts.append(-(-end // ALIGNMENT) * ALIGNMENT)
            end = starts[-1] + elements * dtype.itemsize
        key = (self.op, self.exchange_count)
        self.exchanges[key] = Exchange(self.memory.turn, end, self.has_barrier, tuple(starts))
        self.exchange_count += 1
        return handles
