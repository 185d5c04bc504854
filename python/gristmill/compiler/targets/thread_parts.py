"""Operands of f32 for warpgroups: what tf32 cuts off, and tiles whose elements lie side by side across the depth.

Warpgroups multiply the upper bits of f32, and take it from shared memory along the depth only. The left operand they
take to registers where it lies across, or is multiplied in two parts, of which the second is what the upper bits leave.
The right one is copied, turned; for exact products another copy has the second part. Each warpgroup makes the copies
that its own instructions read, so that one computes while another copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op
from gristmill.compiler.layout import LANE_BITS, Coordinates, Layout, flatten
from gristmill.compiler.machine import V
from gristmill.compiler.targets.thread_products import Shared
from gristmill.compiler.tensor import CHUNK_BYTES, GROUP_WARPS, group_left, panel_bytes, panels, powers

WIDTH = CHUNK_BYTES // 4  # elements that are written at once
MOST_WORDS = 48  # of a thread between reading and writing
Write = tuple[Shared, V, list[V]]  # elements side by side, and where they go


@dataclass(frozen=True, eq=False)
class Parts:
    """An operand as warpgroups take it, in shared memory or registers, and what upper bits leave, if that counts."""

    high: Any
    low: Any = None


def terms(a: Any, b: Any) -> list[tuple[Any, Any]]:
    """The products of tiles whose sum is that of two operands, the smallest first."""
    a, b = (x if isinstance(x, Parts) else Parts(x) for x in (a, b))
    low = [(a.low, b.high), (a.high, b.low)] if a.low and b.low else []
    return [*low, (a.high, b.high)]


def take(m: Any, op: Op, tile: Shared, sums: Layout) -> Parts:
    """Read the left operand as instructions take it from registers, and compute what its upper bits leave."""
    assert op.attributes["pending"] == 0, "its words stay in their registers until it is waited for"
    layout = group_left(sums, tile.shape[1])
    places = m.positions(layout, tile.arrangement)
    words = [m.shared_load(tile.memory, tile.place(m, place), tile.dtype) for _, place in places]
    has_low = op.attributes["is_promoted"]
    return Parts(m.tile(layout, words), m.tile(layout, [m.rest_of_tf32(x) for x in words]) if has_low else None)


def parts(m: Any, op: Op, tile: Shared) -> Parts:
    """Make the copies of the right operand: they are there for the warpgroup that made them.

    Much is read before anything is written, so that no read waits for the one before.
    """
    made = _rooms(m, op, tile)
    m.group_barrier()  # what is there has been read
    writes: list[Write] = []
    for write in (_read_across if op.attributes["is_across"] else _read_along)(m, tile, made):
        writes.append(write)
        if len(writes) * WIDTH == MOST_WORDS:
            _write(m, writes)
    _write(m, writes)
    m.show_tensor_cores()
    m.group_barrier()
    return made


def _write(m: Any, writes: list[Write]) -> None:
    for room, index, words in writes:
        m.shared_store_wide(room.memory, m.add_index(index, room.start), words)
    writes.clear()


def _rooms(m: Any, op: Op, tile: Shared) -> Parts:
    """Places for the copies, of which each warpgroup has its own."""
    is_across, has_low = op.attributes["is_across"], op.attributes["has_low"]
    assert is_across == (tile.inner == 1)
    count, owners = is_across + has_low, m.num_warps // GROUP_WARPS
    panel = panel_bytes(tile.shape[0] * tile.dtype.itemsize)
    arrangement = panels(tile.shape, 0, tile.dtype.itemsize, panel)
    memory = m.shared(tile.dtype, count * owners * tile.elements)
    own = m.group_bits(tuple((2 + i, count * tile.elements << i) for i in range(owners.bit_length() - 1)))
    places = [m.add_index(own, m.constant(dt.i32, i * tile.elements)) for i in range(count)]
    rooms = [Shared(memory, arrangement, tile.shape, 0, tile.dtype, panel, tile.elements, p) for p in places]
    return Parts(rooms[0] if is_across else tile, rooms[-1] if has_low else None)


def _read_along(m: Any, tile: Shared, own: Parts) -> Iterator[Write]:
    """What is left of a tile that lies along the depth goes to the same places."""
    layout = _layout(m, tile.shape, [*_chunks(tile), *_columns(tile)])
    for _, index in m.positions(layout, _wide(own.low)):
        words = m.shared_load_wide(tile.memory, tile.place(m, index), tile.dtype, WIDTH)
        yield own.low, index, [m.rest_of_tf32(x) for x in words]


def _read_across(m: Any, tile: Shared, own: Parts) -> Iterator[Write]:
    """A tile that lies across the depth is turned, and what is left of it: a warp reads a row of banks at once."""
    columns = _columns(tile)
    layout = _layout(m, tile.shape, [*columns[:LANE_BITS], *_chunks(tile), *columns[LANE_BITS:]])
    source, target = dict(m.positions(layout, tile.arrangement)), _wide(own.high)
    group = target.group(layout)
    for register, index in m.positions(layout, target):
        at = [tile.place(m, source[register ^ other]) for other in group]
        words = [m.shared_load(tile.memory, place, tile.dtype) for place in at]
        yield own.high, index, words
        if own.low is not None:
            yield own.low, index, [m.rest_of_tf32(x) for x in words]


def _wide(room: Shared) -> Any:
    """A room's arrangement as it is written: elements side by side along the depth at once."""
    steps = tuple(flatten((c, 0), room.shape) for c in powers(1, WIDTH))
    return replace(room.arrangement, neighbours=steps)


def _chunks(tile: Shared) -> list[Coordinates]:
    """Steps along the depth from one chunk to another."""
    return [(c, 0) for c in powers(WIDTH, tile.shape[0])]


def _columns(tile: Shared) -> list[Coordinates]:
    return [(0, c) for c in powers(1, tile.shape[1])]


def _layout(m: Any, shape: tuple[int, ...], bases: list[Coordinates]) -> Layout:
    """How a warpgroup's threads share a tile: lanes and warps take the first of `bases`."""
    own = [(c, 0) for c in powers(1, WIDTH)]
    lanes, warps, rest = bases[:LANE_BITS], bases[LANE_BITS : LANE_BITS + 2], bases[LANE_BITS + 2 :]
    of_groups = [(0, 0) for _ in powers(1, m.num_warps // GROUP_WARPS)]
    return Layout(shape, (*own, *rest), tuple(lanes), (*warps, *of_groups))
