"""Tiles by ticket: each program draws the next one from a counter in global memory, while it works on its own.

One producer draws, and leaves the number in shared memory, where every warp of both roles reads it when it has done its
tile. There are two places, with barriers as those of a pipe. The program that draws the last ticket sets the counter
back for the next launch.
"""

from __future__ import annotations

from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.machine import V
from gristmill.compiler.targets import cuda_roles
from gristmill.dtypes import Dtype

PARAMETER = "ptr addrspace(1) %tickets"
DRAW = (
    "{ .reg .pred p, q; .reg .u32 old; setp.ne.u32 p, $0, 0; @p atom.relaxed.gpu.global.add.u32 old, [$1], 1; "
    "setp.eq.and.u32 q, old, $2, p; @q st.relaxed.gpu.global.u32 [$1], 0; @p add.u32 old, old, $3; "
    "@p st.shared.u32 [$4], old; @p mbarrier.arrive.shared::cta.b64 _, [$5]; }"
)
READ = "ld.shared.u32 $0, [$1];"


def draw(m: Any, pipe: Any, count: V, step: V) -> None:
    """Draw the ticket that comes behind this program's tile, of `count` that `step` programs share."""
    if m.role != "producers":
        return
    slot = cuda_roles.acquire(m, pipe)
    count, step, one = m.cast(count, dt.i32), m.cast(step, dt.i32), m.constant(dt.i32, 1)
    is_first = m.cast(cuda_roles.is_first_producer(m), dt.u32)
    counter = m.emit("ptrtoint ptr addrspace(1) %tickets to i64", dt.u64)
    full, place = cuda_roles.filling(m, pipe), _place(m, pipe, slot)
    cuda_roles.assembly(m, DRAW, is_first, counter, m.subtract(count, one), step, place, full)
    cuda_roles.next_slot(m, pipe, "drawers")


def following(m: Any, pipe: Any, dtype: Dtype) -> V:
    """Wait for the ticket, and tell that the warp has read it."""
    slot = cuda_roles.take(m, pipe, m.role)
    place = m.typed(_place(m, pipe, slot))
    result = m.emit(f'call i32 asm sideeffect "{READ}", "=r,r,~{{memory}}"({place})', dt.i32)
    m.warp_barrier()
    cuda_roles.give_back(m, pipe, slot)
    cuda_roles.next_slot(m, pipe, m.role)
    known = m.shuffle_index(result, m.constant(dt.i32, 0))  # that all lanes have it in common
    return m.cast(known, dtype)


def _place(m: Any, pipe: Any, slot: V) -> V:
    """Behind the barriers."""
    start = m.emit(f"ptrtoint ptr addrspace(3) {pipe.memory.text} to i32", dt.i32)
    return m.add(start, m.add(m.constant(dt.i32, 16 * pipe.stages), m.multiply(slot, m.constant(dt.i32, 8))))
