"""Blocks that the hardware stores: chunk by chunk through shared memory, where one is written while others are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op
from gristmill.compiler.layout import Layout, combine
from gristmill.compiler.machine import V
from gristmill.compiler.targets.thread_products import Shared, side_by_side
from gristmill.compiler.tensor import PANEL_BYTES, STORE_BUFFERS, panels


def store_window(m: Any, op: Op, window: Sequence[V], tile: Any) -> None:
    """Write each chunk to a buffer that the hardware has read, and let one thread tell it to store that."""
    tensor_map = m.function.maps[op.attributes["map"]]
    (rows, width), dtype = tile.layout.shape, tile.registers[0].dtype
    columns = min(width, chunk_columns(tile.layout, PANEL_BYTES // dtype.itemsize))
    count, own = width // columns, _chunk(tile.layout, columns)
    buffers = min(STORE_BUFFERS, count)
    memory = m.shared(dtype, buffers * rows * columns)
    arrangement = panels((rows, columns), 1, dtype.itemsize, tensor_map.swizzle)
    room = Shared(memory, arrangement, (rows, columns), 1, dtype, tensor_map.swizzle, rows * columns)
    last = -(-op.attributes["block"][-1] // columns)
    for chunk in range(last):
        is_even = chunk > 0 or last % buffers == 0
        m.wait_for_stores(buffers - 1 if is_even else 0)
        m.barrier()
        buffer = replace(room, start=m.constant(dt.i32, chunk % buffers * room.elements))
        _write(m, buffer, own, _registers(tile, own, chunk * columns))
        m.show_tensor_cores()
        m.barrier()
        for row, column in tensor_map.boxes(rows, min(columns, op.attributes["block"][-1] - chunk * columns)):
            m.store_box(op, window, buffer, row, column, chunk * columns)
        m.commit_stores()


def chunk_columns(layout: Layout, panel: int) -> int:
    """The columns of a chunk: whole panels that all threads have a part of."""
    return max(panel, *(2 * basis[1] for basis in (*layout.lane, *layout.warp)))


def _chunk(layout: Layout, columns: int) -> Layout:
    own = tuple(basis for basis in layout.reg if basis[1] < columns)
    return replace(layout, shape=(layout.shape[0], columns), reg=own)


def _registers(tile: Any, own: Layout, column: int) -> list[V]:
    """A chunk's registers, in the order of its own layout."""
    places = (combine(own.reg, r, 2) for r in range(own.registers))
    return [tile.registers[tile.layout.register_holding((row, column + c))] for row, c in places]


def _write(m: Any, buffer: Shared, layout: Layout, registers: Sequence[V]) -> None:
    """Write a tile, as many elements at once as a thread has side by side."""
    side = side_by_side(layout, 1, buffer.dtype.itemsize)
    writing = replace(buffer.arrangement, neighbours=side)
    group = writing.group(layout)
    for register, index in m.positions(layout, writing):
        place = m.add_index(index, buffer.start)
        m.shared_store_wide(buffer.memory, place, [registers[register ^ other] for other in group])
