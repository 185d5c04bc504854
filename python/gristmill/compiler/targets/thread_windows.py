"""Blocks that the hardware stores: chunk by chunk through shared memory, where one is written while others are read."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op
from gristmill.compiler.layout import Coordinates, Layout, combine, flatten
from gristmill.compiler.machine import V
from gristmill.compiler.targets.thread_products import Shared, write
from gristmill.compiler.tensor import CHUNK_BYTES, PANEL_BYTES, panels


def store_window(m: Any, op: Op, window: Sequence[V], tile: Any) -> None:
    """Write each chunk to a buffer that the hardware has read, and let one thread tell it to store that.

    Warpgroups that have rows of their own do so without each other.
    """
    tensor_map = m.function.maps[op.attributes["map"]]
    width, dtype, used = tile.layout.shape[1], tile.registers[0].dtype, op.attributes["block"][-2:]
    rows, columns = _chunk_shape(tile.layout, tensor_map.box[1], used[0], PANEL_BYTES // dtype.itemsize)
    if op.row.effect == "update" and op.attributes["buffers"] * columns >= width:
        columns = width  # nothing waits for one part of it
    own = _chunk(tile.layout, rows, columns)
    firsts = [(row, column) for row in range(0, used[0], rows) for column in range(0, used[1], columns)]
    buffers = min(op.attributes["buffers"], len(firsts))
    memory = m.shared(dtype, buffers * rows * columns)
    arrangement = panels((rows, columns), 1, dtype.itemsize, tensor_map.swizzle)
    room = Shared(memory, arrangement, (rows, columns), 1, dtype, tensor_map.swizzle, rows * columns)
    groups = groups_apart(tile.layout, tensor_map.box)
    barrier = m.group_barrier if groups else m.barrier
    for number, first in enumerate(firsts):
        if number == 0 or number >= buffers:
            m.wait_for_stores(buffers - 1 if number else 0)
            barrier()
        buffer = replace(room, start=m.constant(dt.i32, number % buffers * room.elements))
        down, across = min(rows, used[0] - first[0]), min(columns, used[1] - first[1])
        write(m, buffer, own, _registers(tile, own, first), down)
        m.show_tensor_cores()
        barrier()
        for place in tensor_map.boxes(groups.step if groups.rows > 1 else down, across // groups.columns):
            m.store_box(op, window, buffer, place, first, groups)
        m.commit_stores()


@dataclass(frozen=True)
class Groups:
    """How many warpgroups there are along rows and columns, each with a part of its own; False if they have none."""

    rows: int = 1
    columns: int = 1
    step: int = 0  # rows, or columns, from one group's part to the next

    def __bool__(self) -> bool:
        return self.rows * self.columns > 1


def groups_apart(layout: Layout, box: tuple[int, ...]) -> Groups:
    """The warpgroups of a tile, if each has rows of its own, or columns of its own boxes."""
    count, others = 1 << max(0, len(layout.warp) - 2), layout.warp[2:]
    rows, columns = layout.shape[0] // count, layout.shape[1] // count
    if others and others == tuple((rows << i, 0) for i in range(len(others))) and rows % box[1] == 0:
        return Groups(rows=count, step=rows)
    if others and others == tuple((0, columns << i) for i in range(len(others))) and columns % box[0] == 0:
        return Groups(columns=count, step=columns)
    return Groups()


def _chunk_shape(layout: Layout, rows: int, used: int, panel: int) -> tuple[int, int]:
    """The rows and columns of a chunk, which all threads have a part of: a box's rows of those `used`, or panels."""
    least = [max(2 * basis[axis] for basis in (*layout.lane, *layout.warp)) for axis in (0, 1)]
    if least[0] <= rows < used and least[1] == layout.shape[1]:
        return rows, layout.shape[1]
    return layout.shape[0], min(layout.shape[1], max(panel, least[1]))


def _chunk(layout: Layout, rows: int, columns: int) -> Layout:
    own = tuple(basis for basis in layout.reg if basis[0] < rows and basis[1] < columns)
    return replace(layout, shape=(rows, columns), reg=own)


MATRIX_LANES = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))  # of a product's sums, two side by side


def is_of_matrices(layout: Layout, buffer: Shared) -> bool:
    """Whether warps hold matrices of 8 x 8 halves as `stmatrix` takes them, turned or not."""
    turned = tuple((c, r) for r, c in MATRIX_LANES)
    is_half = buffer.dtype.itemsize == 2 and buffer.panel >= CHUNK_BYTES
    return is_half and (layout.reg[:1], layout.lane) in ((((0, 1),), MATRIX_LANES), (((1, 0),), turned))


def write_matrices(m: Any, buffer: Shared, layout: Layout, registers: Sequence[V], rows: int) -> None:
    """Up to four matrices at once: lanes 0 to 7 tell where the first one's rows are, lanes 8 to 15 the second one's."""
    is_turned = layout.reg[0] == (1, 0)
    across = (layout.reg[0], *layout.lane[:2]) if is_turned else layout.lane[2:]
    inside, outside = layout.reg[1:3], layout.reg[3:]
    lane = [(i, _offset(buffer, basis)) for i, basis in enumerate((*across, *inside))]
    warp = [(i, _offset(buffer, basis)) for i, basis in enumerate(layout.warp) if any(basis)]
    used = functools.reduce(operator.or_, (number for _, number in lane + warp), 0)
    thread = m.thread_bits(lane, warp, (), dt.i32)
    words = [m.join_elements(registers[i : i + 2]) for i in range(0, len(registers), 2)]
    size = 1 << len(inside)
    for i in range(1 << len(outside)):
        if combine(outside, i, 2)[0] >= rows:
            continue
        place = m.combine_index(thread, _offset(buffer, combine(outside, i, 2)), used)
        own = words[i * size : (i + 1) * size]
        m.matrix_store(buffer.memory, buffer.place(m, place), own, is_turned, buffer.dtype)


def _offset(buffer: Shared, coordinates: Coordinates) -> int:
    return buffer.arrangement.offset(flatten(coordinates, buffer.shape))


def _registers(tile: Any, own: Layout, first: Coordinates) -> list[V]:
    """A chunk's registers, in the order of its own layout."""
    places = (combine(own.reg, r, 2) for r in range(own.registers))
    return [tile.registers[tile.layout.register_holding((first[0] + r, first[1] + c))] for r, c in places]
