"""Updates of memory and visits of elements by threads: once for each element, however many threads hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op
from gristmill.compiler.layout import Layout
from gristmill.compiler.machine import Step, V
from gristmill.compiler.targets.threads import Held, _first_registers, _representative, _width

RELEASES = ("release", "acq_rel")
ACQUIRES = ("acquire", "acq_rel")


def update(m: Any, op: Op, pointers: Any, operands: Sequence[Any], mask: Any | None, step: Step) -> Any:
    """Update each element by the one thread that owns it; where others hold copies they are given what it found.

    All threads of the program count as one to others: a release publishes what any of them wrote before, and after an
    acquire all of them see what others published.
    """
    attributes = op.attributes
    is_used, orders = attributes.get("is_used", True), attributes.get("orders", True)
    if orders and attributes["sem"] in RELEASES:
        m.barrier()
    layout = pointers.layout if isinstance(pointers, Held) else None
    owner = _owner(m, layout)
    if layout is None:
        found = {0: step(pointers, [[x] for x in operands], _all(m, owner, mask))[0]}
    else:
        found = _update_registers(m, op, pointers, operands, mask, owner, step)
    if not is_used:
        return None
    if owner is not None:
        found = _given(m, layout, found, owner)
    elif orders and attributes["sem"] in ACQUIRES:
        m.barrier()
    if layout is None:
        return found[0]
    return Held(layout, [found[_representative(layout, r)] for r in range(layout.registers)])


def _owner(m: Any, layout: Layout | None) -> V | None:
    """Whether the thread owns its elements; None if all do."""
    if layout is None:
        return m._owner(range(5), m.warp_bits, range(m.num_blocks.bit_length() - 1))
    return m.owner(layout)


def _all(m: Any, *guards: V | None) -> V | None:
    return m.all_of([g for g in guards if g is not None])


def _update_registers(
    m: Any, op: Op, pointers: Held, operands: Sequence[Held], mask: Held | None, owner: V | None, step: Step
) -> dict[int, V]:
    layout, found = pointers.layout, dict[int, V]()
    width = _width(op, layout) if op.attributes.get("in_pairs") else 1
    for r in _first_registers(layout, width):
        groups = [list(x.registers[r : r + width]) for x in operands]
        guard = _all(m, owner, None if mask is None else mask.registers[r])
        found |= dict(enumerate(step(pointers.registers[r], groups, guard), r))
    return found


def _given(m: Any, layout: Layout | None, found: dict[int, V], owner: V) -> dict[int, V]:
    """Hand what owners found to all threads: each element has a place in shared memory, threads that own none
    write to places of their own behind those."""
    first = m.constant(dt.i32, 0)
    places = {0: first} if layout is None else dict(m.positions(layout))
    elements = 1 if layout is None else layout.elements
    dtype = next(iter(found.values())).dtype
    (memory,) = m.scratch([dtype], elements + 32 * m.num_warps)
    own = m.thread_bits([(i, 1 << i) for i in range(5)], [(i, 32 << i) for i in m.warp_bits], (), dt.i32)
    elsewhere = m.add_index(own, m.constant(dt.i32, elements))
    for register, place in places.items():
        m.shared_store(memory, m.select(owner, place, elsewhere), found[register])
    m.barrier()
    return {register: m.shared_load(memory, place, dtype) for register, place in places.items()}


def each(m: Any, tiles: Sequence[Any], mask: Any | None, visit: Callable[[Sequence[V], V | None], None]) -> None:
    """Visit each element by the thread that owns it."""
    layout = next((t.layout for t in tiles if isinstance(t, Held)), None)
    owner = _owner(m, layout)
    for r in [0] if layout is None else _first_registers(layout, 1):
        visit([_register(t, r) for t in tiles], _all(m, owner, None if mask is None else _register(mask, r)))


def _register(tile: Any, register: int) -> V:
    return tile.registers[register] if isinstance(tile, Held) else tile
