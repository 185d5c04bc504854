"""Copies on their way, and the pipes that they come by, on the simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Function, Op
from gristmill.compiler.machine import V
from gristmill.compiler.simt import windows
from gristmill.compiler.simt.memory import GlobalMemory, element_of
from gristmill.compiler.simt.numbers import Numbers
from gristmill.compiler.simt.races import Clock
from gristmill.compiler.simt.reports import COMPILER_FIX, spread
from gristmill.compiler.simt.roles import PRODUCERS, PipeState, Roles
from gristmill.compiler.simt.shared import Copies, SharedTile
from gristmill.compiler.targets.threads import ThreadMachine
from gristmill.errors import SimulationError


def reserved(memory: V) -> SharedTile:
    """The shared memory that a machine's word names."""
    found = cast(Numbers, memory).each
    assert isinstance(found, SharedTile)
    return found


class PipeMachine(ThreadMachine):
    """Executes copies to shared memory, by threads and by the hardware; a pipe's slots pass from role to role."""

    function: Function
    roles: Roles
    memory: GlobalMemory
    copies: Copies
    clock: Clock
    index: Any

    def copy_ahead(self, memory: V, index: V, pointer: V, width: int, guard: V | None, mask: V | None) -> None:
        does, dtype = spread(cast(Numbers, guard).each, self.index) if guard is not None else True, element_of(pointer)
        if self.roles.role == PRODUCERS:
            does = np.logical_and(does, self.index < 32 * self.function.producer_warps)
        reads = np.logical_and(does, True if mask is None else cast(Numbers, mask).each)
        readers = np.full(self.index.shape, True)
        loaded = self.memory.load(cast(Numbers, pointer).each, reads, None, width, dtype, readers)
        self.copies.begin(reserved(memory), cast(Numbers, index).each, loaded, np.broadcast_to(does, self.index.shape))

    def commit_copies(self) -> None:
        self.copies.commit()

    def pipe(self, op: Op) -> Any:
        pipe = super().pipe(op)
        pipe.state = PipeState()
        return pipe

    def take(self, pipe: Any) -> V:
        state = pipe.state
        self.roles.let_go_on()
        self.roles.wait(lambda: state.filled > state.taken, "a full slot")
        self.copies.finish(state.groups.pop(0))
        self.clock.barrier()
        return Numbers(np.int32(state.taken % pipe.stages), dt.i32)

    def release(self, pipe: Any, guard: V) -> None:
        slot = (pipe.state.taken - 1) % pipe.stages
        pipe.state.released[slot] += int(np.all(cast(Numbers, guard).each))
        if pipe.state.released[slot] > -(-(pipe.state.taken - slot) // pipe.stages):
            raise SimulationError("a slot is released before it is read", fix=COMPILER_FIX)
        self.clock.barrier()
        self.roles.let_go_on()  # what is too soon shows at once

    def next_slot(self, pipe: Any) -> None:
        pipe.state.taken += 1

    def wait_turn(self) -> None:
        self._turn(True)

    def pass_turn(self) -> None:
        self._turn(False)

    def _turn(self, is_waiting: bool) -> None:
        """All warpgroups go step by step here: there is no order to keep, but each turn must be taken and passed."""
        if self.roles.has_turn == is_waiting:
            raise SimulationError("a turn is not passed before the next, or was not taken", fix=COMPILER_FIX)
        self.roles.has_turn = is_waiting

    def acquire(self, pipe: Any) -> V:
        state = pipe.state
        rounds, slot = divmod(state.filled, pipe.stages)
        self.roles.wait(lambda: state.released[slot] >= rounds, "an empty slot")
        self.clock.barrier()
        return Numbers(np.int32(state.filled % pipe.stages), dt.i32)

    def expect(self, pipe: Any, size: int) -> None:
        pipe.state.missing += size

    def copy_window(self, op: Op, window: Sequence[V], pipe: Any, ring: Any, slot: V) -> None:
        windows.copy(self, op, window, ring, cast(Numbers, slot).each * ring.elements)
        tensor_map = self.function.maps[op.attributes["map"]]
        pipe.state.missing -= tensor_map.box_bytes * len(tensor_map.boxes(*op.attributes["block"][-2:]))

    def wait_for_stores(self, pending: int) -> None:
        """What is stored is stored at once."""

    def store_box(
        self, op: Op, window: Sequence[V], buffer: Any, place: tuple[int, int], first: tuple[int, int], groups: Any
    ) -> None:
        for group in range(groups.rows * groups.columns):
            row = place[0] + group * groups.step * (groups.rows > 1)
            column = place[1] + group * groups.step * (groups.columns > 1)
            if first[0] + row < op.attributes["block"][-2]:  # else no such group is there
                windows.store(self, op, window, buffer, row, column, first)

    def commit_stores(self) -> None:
        """See wait_for_stores."""

    def tile_at(self, ring: Any) -> SharedTile:
        """The shared memory of a ring."""
        return reserved(ring.memory)

    def publish(self, pipe: Any) -> None:
        if pipe.state.missing:
            message = f"a slot waits for {pipe.state.missing} bytes more than are copied to it"
            raise SimulationError(message, fix=COMPILER_FIX)
        pipe.state.groups.append(self.copies.begun())
        pipe.state.filled += 1

    def wait_for_copies(self, pending: int) -> None:
        self.copies.wait(pending)
