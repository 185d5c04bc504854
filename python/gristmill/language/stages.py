"""Ops of software pipelines: passes insert them, authors never write them.

A ring has several slots for a tile in shared memory, which copies from global memory fill ahead of time. Where warps
have roles, a pipe tells producers which slots are empty, and consumers which are full.
"""

from __future__ import annotations

from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op, Tile, Value
from gristmill.compiler.op import emit, emit_effect, op
from gristmill.language.types import as_value


@op("internal", kind="tile", lies_in_shared=True, is_kept=True, place_alignment=1024)
def ring(stages: int, tile: Tile, is_turned: bool, panel: int, elements: int) -> Value:
    """Shared memory for `stages` tiles; `is_turned`: `slot` gives their transposes.

    The tiles lie in panels of `panel` bytes, each takes the room of so many `elements`.
    """
    how = {"is_turned": is_turned, "panel": panel, "elements": elements}
    return emit("ring", tile.with_shape((stages, *tile.shape)), **how)


@ring.lower(on="threads")
def _(m: Any, op: Any) -> Any:
    return m.ring(op)


@op("internal", kind="tile", lies_in_shared=True, is_shared_view=True)
def ring_in(room: Any, tile: Tile, is_turned: bool, panel: int, elements: int) -> Value:
    """A `ring` of other tiles in the memory of one whose tiles take as much."""
    room = as_value(room)
    how = {"is_turned": is_turned, "panel": panel, "elements": elements}
    return emit("ring_in", tile.with_shape((room.type.shape[0], *tile.shape)), room, **how)


@ring_in.lower(on="threads")
def _(m: Any, op: Any, room: Any) -> Any:
    return m.ring_in(op, room)


@op("internal", kind="tile", effect="read", fills_shared=True)
def copy(pointers: Any, ring: Any, slot: Any, guard: Any, mask: Any = None, **hints: Any) -> None:
    """Begin to copy what the pointers name to a slot if `guard` holds; 0 where `mask` does not."""
    given = (pointers, ring, slot, guard) if mask is None else (pointers, ring, slot, guard, mask)
    emit_effect("copy", *map(as_value, given), **hints)


@copy.lower(on="threads")
def _(m: Any, op: Any, pointers: Any, ring: Any, slot: Any, guard: Any, mask: Any = None) -> None:
    m.copy(op, pointers, ring, slot, guard, mask)


@op("internal", kind="tile", effect="act")
def commit() -> None:
    """End a group of copies."""
    emit_effect("commit")


@commit.lower(on="threads")
def _(m: Any, op: Any) -> None:
    m.commit_copies()


@op("internal", kind="tile", effect="act")
def arrive(pending: int) -> None:
    """Wait until all groups but the last `pending` have come, those of all threads."""
    emit_effect("arrive", pending=pending)


@arrive.lower(on="threads")
def _(m: Any, op: Any) -> None:
    m.wait_for_copies(op.attributes["pending"])
    m.show_tensor_cores()
    m.barrier()


@op("internal", kind="tile", lies_in_shared=True, is_shared_view=True)
def slot(ring: Any, index: Any) -> Value:
    """One of a ring's tiles, where it lies."""
    ring, index = as_value(ring), as_value(index)
    return emit("slot", ring.type.with_shape(ring.type.shape[1:]), ring, index)


@slot.lower(on="threads")
def _(m: Any, op: Any, ring: Any, index: Any) -> Any:
    return m.slot(ring, index)


@op("internal", kind="tile", lies_in_shared=True, is_kept=True)
def pipe(
    stages: int,
    has_copies: bool = True,
    has_windows: bool = False,
    has_tickets: bool = False,
    is_fetched: bool = False,
    ctas: int = 1,
) -> Value:
    """Two barriers for each slot of rings: of copies that have come, and of warps that have read.

    `has_copies`: threads copy to it; `has_windows`: the hardware does. `has_tickets`: its slots are numbers of tiles
    that are drawn, which all warps read. `is_fetched`: threads read it, no tensor cores. `ctas`: how many blocks of a
    cluster copy parts of each slot to all of them: it is free when warps of all have read.
    """
    how = {"has_copies": has_copies, "has_windows": has_windows, "has_tickets": has_tickets, "is_fetched": is_fetched}
    return emit("pipe", Tile(dt.u64, (2, stages)), **how, ctas=ctas)


@pipe.lower(on="threads")
def _(m: Any, op: Any) -> Any:
    return m.pipe(op)


@op("internal", kind="tile", effect="act", waits_for_slot=True)
def take(pipe: Any) -> Value:
    """Wait until the consumers' slot is full; returns its number."""
    return emit("take", Tile(dt.i32), as_value(pipe))


@take.lower(on="threads")
def _(m: Any, op: Any, pipe: Any) -> Any:
    return m.take(pipe)


@op("internal", kind="tile", effect="act", frees_slot=True)
def release(pipe: Any, guard: Any) -> None:
    """The slot before the consumers' is read, if `guard` holds."""
    emit_effect("release", as_value(pipe), as_value(guard))


@release.lower(on="threads")
def _(m: Any, op: Any, pipe: Any, guard: Any) -> None:
    m.release(pipe, guard)


@op("internal", kind="tile", effect="act", frees_slot=True)
def next_slot(pipe: Any) -> None:
    """Go on to the consumers' next slot."""
    emit_effect("next_slot", as_value(pipe))


@next_slot.lower(on="threads")
def _(m: Any, op: Any, pipe: Any) -> None:
    m.next_slot(pipe)


@op("internal", kind="tile", effect="act")
def wait_turn() -> None:
    """Wait until the warpgroup before has begun its products of this step; the first one for the last one's before."""
    emit_effect("wait_turn")


@wait_turn.lower(on="threads")
def _(m: Any, op: Any) -> None:
    m.wait_turn()


@op("internal", kind="tile", effect="act", passes_turn=True)
def pass_turn() -> None:
    """Let the next warpgroup begin its products; behind the last one the first."""
    emit_effect("pass_turn")


@pass_turn.lower(on="threads")
def _(m: Any, op: Any) -> None:
    m.pass_turn()


@op("internal", kind="tile", effect="act", fills_shared=True)
def acquire(pipe: Any) -> Value:
    """Wait until the producers' slot is empty; returns its number."""
    return emit("acquire", Tile(dt.i32), as_value(pipe))


@acquire.lower(on="threads")
def _(m: Any, op: Any, pipe: Any) -> Any:
    return m.acquire(pipe)


@op("internal", kind="tile", effect="act", fills_shared=True)
def expect(pipe: Any, size: int) -> None:
    """The hardware is going to copy that many bytes to the producers' slot."""
    emit_effect("expect", as_value(pipe), size=size)


@expect.lower(on="threads")
def _(m: Any, op: Any, pipe: Any) -> None:
    m.expect(pipe, op.attributes["size"])


@op("internal", kind="tile", effect="read", fills_shared=True)
def copy_window(pipe: Any, ring: Any, slot: Any, window: Op) -> None:
    """Let the hardware begin to copy a window to a slot; 0 where it is outside of the array."""
    emit_effect("copy_window", *window.operands, pipe, ring, slot, **window.attributes)


@copy_window.lower(on="threads")
def _(m: Any, op: Any, *operands: Any) -> None:
    *window, pipe, ring, slot = operands
    m.copy_window(op, window, pipe, ring, slot)


@op("internal", kind="tile", effect="act", fills_shared=True)
def publish(pipe: Any) -> None:
    """The slot is full when the copies begun so far have come; go on to the producers' next one."""
    emit_effect("publish", as_value(pipe))


@publish.lower(on="threads")
def _(m: Any, op: Any, pipe: Any) -> None:
    m.publish(pipe)


@op("internal", kind="tile", is_cheap=True)
def cluster_rank() -> Value:
    """The number of this block in its cluster."""
    return emit("cluster_rank", Tile(dt.i32))


cluster_rank.sign_function = lambda op: True


@cluster_rank.lower(on="threads")
def _(m: Any, op: Any) -> Any:
    return m.cluster_rank()
