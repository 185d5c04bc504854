"""Blocks that the hardware copies, on the simulated device: all threads of the machine copy a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill.compiler.ir import Op
from gristmill.compiler.simt import updates
from gristmill.compiler.simt.reports import COMPILER_FIX
from gristmill.errors import SimulationError
from gristmill.tensor_map import TensorMap

CHUNK_BYTES = 16


def copy(m: Any, op: Op, window: Sequence[Any], ring: Any, start: Any) -> None:
    """Begin to copy a block to the tile at `start`: chunks side by side, of each thread as many as of any other."""
    block = op.attributes["block"]
    base, *numbers = window
    lengths, strides, offsets = (numbers[i : i + len(block)] for i in range(0, 3 * len(block), len(block)))
    width = CHUNK_BYTES // ring.dtype.itemsize
    _check_column(m, op, offsets[-1].each, width)
    places = _places(m.function.maps[op.attributes["map"]], block, ring, width)
    for first in range(0, len(places), len(m.index)):
        chunk = first + m.index
        is_there = chunk < len(places)
        row, column, place = places[np.where(is_there, chunk, 0)].T
        outer = [np.zeros_like(row)] * (len(block) - 2)
        elements = [
            _element(m, base, lengths, strides, offsets, [*outer, row, column + i], is_there) for i in range(width)
        ]
        m.copies.begin(m.tile_at(ring), place + start, elements, is_there)


def _check_column(m: Any, op: Op, column: Any, width: int) -> None:
    """The hardware answers a column that is no multiple of a chunk with an illegal instruction."""
    found = int(np.ravel(column)[0])
    if found % width:
        name = m.function.maps[op.attributes["map"]].parameter
        message = f"`{name}` is copied from column {found}, which is not on {CHUNK_BYTES} bytes"
        raise SimulationError(message, fix=COMPILER_FIX)


def store(m: Any, op: Op, window: Sequence[Any], buffer: Any, row: int, column: int, first: Any) -> None:
    """Store a box: all threads of the machine a part of it."""
    block, tensor_map = op.attributes["block"], m.function.maps[op.attributes["map"]]
    base, *numbers = window
    lengths, strides, offsets = (numbers[i : i + len(block)] for i in range(0, 3 * len(block), len(block)))
    box = [(row + r, column + c) for r in range(tensor_map.box[1]) for c in range(tensor_map.box[0])]
    _check_column(m, op, offsets[-1].each, CHUNK_BYTES // buffer.dtype.itemsize)
    cells = np.array([(first[0] + r, first[1] + c, buffer.offset(r, c)) for r, c in box])
    for start in range(0, len(cells), len(m.index)):
        cell = start + m.index
        r, c, place = cells[np.where(cell < len(cells), cell, 0)].T
        (number,) = m.tile_at(buffer).load(place + buffer.start.each)
        indices = [*[np.zeros_like(r)] * (len(block) - 2), r, c]
        inside, where = _place(lengths, strides, offsets, indices, cell < len(cells))
        dtype = base.dtype.element
        addresses = base.each + where * dtype.itemsize
        if op.row.effect == "update":
            updates.update(m.memory, "add", addresses, [number], inside, dtype)
        else:
            m.memory.store(addresses, inside, [number], dtype)


def _place(lengths: Any, strides: Any, offsets: Any, indices: Any, is_there: Any) -> tuple[Any, Any]:
    """Whether indices of the block are inside of the array, and where."""
    inside, place = is_there, np.zeros(is_there.shape, np.int64)
    for axis, index in enumerate(indices):
        along = index + np.int64(offsets[axis].each)
        inside = inside & (along >= 0) & (along < np.int64(lengths[axis].each))
        place += along * np.int64(strides[axis].each)
    return inside, place


def _element(m: Any, base: Any, lengths: Any, strides: Any, offsets: Any, indices: Any, is_there: Any) -> Any:
    """What stands at indices of the block; 0 outside of the array."""
    inside, place = _place(lengths, strides, offsets, indices, is_there)
    dtype = base.dtype.element
    (loaded,) = m.memory.load(base.each + place * dtype.itemsize, inside, None, 1, dtype, np.full(place.shape, True))
    return loaded


def _places(tensor_map: TensorMap, block: Sequence[int], ring: Any, width: int) -> Any:
    """Row, column and place in shared memory of each chunk that the boxes bring."""
    found = []
    for row, column in tensor_map.boxes(*block[-2:]):
        for r in range(row, row + tensor_map.box[1]):
            found += [(r, c, ring.offset(r, c)) for c in range(column, column + tensor_map.box[0], width)]
    return np.array(found)
