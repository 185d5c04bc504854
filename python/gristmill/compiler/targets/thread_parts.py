"""Operands of f32 for warpgroups: what tf32 cuts off, and tiles whose elements lie side by side along the depth.

Warpgroups multiply the upper bits of f32, and take it along the depth only. A tile that lies across is copied, turned;
for exact products another copy has what its elements' upper bits leave. Each warpgroup makes the copies that its own
instructions read, so that one computes while another copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op
from gristmill.compiler.layout import LANE_BITS, Coordinates, Layout, flatten
from gristmill.compiler.machine import V
from gristmill.compiler.targets.thread_products import Shared
from gristmill.compiler.tensor import CHUNK_BYTES, GROUP_ROWS, GROUP_WARPS, panel_bytes, panels, powers

WIDTH = CHUNK_BYTES // 4  # elements that are written at once
MOST_WORDS = 48  # of a thread between reading and writing
Write = tuple[Shared, V, list[V]]  # elements side by side, and where they go
DEPTHS = (1, 0)  # the axis of the depth: of the left operand, of the right one


@dataclass(frozen=True, eq=False)
class Parts:
    """An operand as warpgroups take it, and what its upper bits leave, if that is multiplied too."""

    high: Shared
    low: Shared | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.high.shape

    @property
    def dtype(self) -> dt.Dtype:
        return self.high.dtype


def terms(a: Any, b: Any) -> list[tuple[Shared, Shared]]:
    """The products of tiles whose sum is that of two operands, the smallest first."""
    if not isinstance(a, Parts):
        return [(a, b)]
    low = [(a.low, b.high), (a.high, b.low)] if a.low and b.low else []
    return [*low, (a.high, b.high)]


def parts(m: Any, op: Op, tiles: Sequence[Shared]) -> list[Parts]:
    """Make the copies of both operands: they are there for the warpgroup that made them.

    Much is read before anything is written, so that no read waits for the one before.
    """
    made = [_rooms(m, op, side, tile) for side, tile in enumerate(tiles)]
    m.group_barrier()  # what is there has been read
    writes: list[Write] = []
    for side, (tile, own) in enumerate(zip(tiles, made, strict=True)):
        for write in (_read_across if op.attributes["across"][side] else _read_along)(m, side, tile, own):
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


def _rooms(m: Any, op: Op, side: int, tile: Shared) -> Parts:
    """Places for an operand's copies: of the right one, which all warpgroups read, each has its own."""
    is_across, has_low = op.attributes["across"][side], op.attributes["has_low"]
    assert is_across == (tile.inner != DEPTHS[side])
    count, owners = is_across + has_low, m.num_warps // GROUP_WARPS if side else 1
    if count == 0:
        return Parts(tile, None)
    panel = panel_bytes(tile.shape[DEPTHS[side]] * tile.dtype.itemsize)
    arrangement = panels(tile.shape, DEPTHS[side], tile.dtype.itemsize, panel)
    memory = m.shared(tile.dtype, count * owners * tile.elements)
    own = m.group_bits(tuple((2 + i, count * tile.elements << i) for i in range(owners.bit_length() - 1)))
    places = [m.add_index(own, m.constant(dt.i32, i * tile.elements)) for i in range(count)]
    rooms = [Shared(memory, arrangement, tile.shape, DEPTHS[side], tile.dtype, panel, tile.elements, p) for p in places]
    return Parts(rooms[0] if is_across else tile, rooms[-1] if has_low else None)


def _read_along(m: Any, side: int, tile: Shared, own: Parts) -> Iterator[Write]:
    """What is left of a tile that lies along the depth goes to the same places."""
    if own.low is None:
        return
    depth = DEPTHS[side]
    chunks = [c << WIDTH.bit_length() - 1 for c in powers(1, tile.shape[depth] // WIDTH)]
    layout = _layout(m, side, tile.shape, [_on(depth, c) for c in chunks] + _outer(m, side, tile.shape))
    for _, index in m.positions(layout, _wide(own.low, depth)):
        place = tile.place(m, index)
        words = m.shared_load_wide(tile.memory, place, tile.dtype, WIDTH)
        yield own.low, index, [m.rest_of_tf32(x) for x in words]


def _read_across(m: Any, side: int, tile: Shared, own: Parts) -> Iterator[Write]:
    """A tile that lies across the depth is turned, and what is left of it: a warp reads a row of banks at once."""
    depth, outer = DEPTHS[side], _outer(m, side, tile.shape)
    chunks = [c << WIDTH.bit_length() - 1 for c in powers(1, tile.shape[depth] // WIDTH)]
    layout = _layout(m, side, tile.shape, [*outer[:LANE_BITS], *(_on(depth, c) for c in chunks), *outer[LANE_BITS:]])
    source, target = dict(m.positions(layout, tile.arrangement)), _wide(own.high, depth)
    group = target.group(layout)
    for register, index in m.positions(layout, target):
        places = [source[register ^ other] for other in group]
        at = [tile.place(m, p) for p in places]
        words = [m.shared_load(tile.memory, place, tile.dtype) for place in at]
        yield own.high, index, words
        if own.low is not None:
            yield own.low, index, [m.rest_of_tf32(x) for x in words]


def _wide(room: Shared, depth: int) -> Any:
    """A room's arrangement as it is written: elements side by side along the depth at once."""
    steps = tuple(flatten(_on(depth, c), room.shape) for c in powers(1, WIDTH))
    return replace(room.arrangement, neighbours=steps)


def _layout(m: Any, side: int, shape: tuple[int, ...], bases: list[Coordinates]) -> Layout:
    """How a warpgroup's threads share its part of a tile: lanes and warps take the first of `bases`."""
    own = [_on(DEPTHS[side], c) for c in powers(1, WIDTH)]
    lanes, warps, rest = bases[:LANE_BITS], bases[LANE_BITS : LANE_BITS + 2], bases[LANE_BITS + 2 :]
    groups = powers(1, m.num_warps // GROUP_WARPS)
    of_groups = [(0, 0) if side else (GROUP_ROWS * g, 0) for g in groups]
    return Layout(shape, (*own, *rest), tuple(lanes), (*warps, *of_groups))


def _outer(m: Any, side: int, shape: tuple[int, ...]) -> list[Coordinates]:
    """Steps across the depth inside a warpgroup's part: of the left operand it has blocks of rows."""
    if side:
        return [(0, c) for c in powers(1, shape[1])]
    blocks = powers(GROUP_ROWS * (m.num_warps // GROUP_WARPS), shape[0])
    return [(r, 0) for r in (*powers(1, GROUP_ROWS), *blocks)]


def _on(axis: int, c: int) -> Coordinates:
    return (c, 0) if axis == 0 else (0, c)
