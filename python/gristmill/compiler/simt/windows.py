"""Blocks that the hardware copies, on the simulated device: all threads of the machine copy a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill.compiler.ir import Op

CHUNK_BYTES = 16


def copy(m: Any, op: Op, window: Sequence[Any], ring: Any, start: Any) -> None:
    """Begin to copy a block to the tile at `start`: chunks side by side, of each thread as many as of any other."""
    rank = len(op.attributes["block"])
    base, *numbers = window
    lengths, strides, offsets = (numbers[i : i + rank] for i in range(0, 3 * rank, rank))
    width = CHUNK_BYTES // ring.dtype.itemsize
    chunks = ring.elements // width
    for first in range(0, chunks, len(m.index)):
        chunk = first + m.index
        is_there = chunk < chunks
        positions = np.where(is_there, chunk, 0) * width
        elements = [_element(m, op, base, lengths, strides, offsets, positions + i, is_there) for i in range(width)]
        m.copies.begin(m.tile_at(ring), _places(op, ring)[positions] + start, elements, is_there)


def _element(m: Any, op: Op, base: Any, lengths: Any, strides: Any, offsets: Any, position: Any, is_there: Any) -> Any:
    """What stands at a position of the block; 0 outside of the array."""
    inside, place = is_there, np.zeros(position.shape, np.int64)
    for axis, index in enumerate(np.unravel_index(position, op.attributes["block"])):
        along = index + np.int64(offsets[axis].each)
        inside = inside & (along >= 0) & (along < np.int64(lengths[axis].each))
        place += along * np.int64(strides[axis].each)
    dtype = base.dtype.element
    (loaded,) = m.memory.load(base.each + place * dtype.itemsize, inside, None, 1, dtype, np.full(place.shape, True))
    return loaded


def _places(op: Op, ring: Any) -> Any:
    """Where each position of the block lies in shared memory."""
    rows, columns = op.attributes["block"][-2:]
    return np.array([ring.offset(row, column) for row in range(rows) for column in range(columns)])
