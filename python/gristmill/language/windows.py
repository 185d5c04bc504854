"""Blocks that the hardware copies: an op that a descriptor's load becomes where a target has tensor maps.

Passes keep it where tensor cores take the block from shared memory, and read it through pointers elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.compiler.ir import Op, Pointer, Tile, Value
from gristmill.compiler.op import emit, emit_effect, op
from gristmill.language.types import as_value


@op("internal", kind="tile", effect="read", is_window=True)
def window(base: Any, shape: Sequence[Any], strides: Sequence[Any], offsets: Sequence[Any], block: Any) -> Value:
    """The block at `offsets` of the array of `shape` and `strides` at `base`; 0 outside of the array and the block."""
    assert isinstance(base.type.dtype, Pointer)
    operands = [as_value(x) for x in (*shape, *strides, *offsets)]
    return emit("window", Tile(base.type.dtype.element, padded_shape(block)), base, *operands, block=tuple(block))


@op("internal", kind="tile", effect="write", is_window=True, place_alignment=1024)
def store_window(
    base: Any, shape: Sequence[Any], strides: Sequence[Any], offsets: Sequence[Any], block: Any, value: Value
) -> None:
    """Write what is inside of the array and the block."""
    operands = [as_value(x) for x in (*shape, *strides, *offsets)]
    emit_effect("store_window", base, *operands, value, block=tuple(block))


@op("internal", kind="tile", effect="update", is_window=True, place_alignment=1024)
def add_window(
    base: Any, shape: Sequence[Any], strides: Sequence[Any], offsets: Sequence[Any], block: Any, value: Value
) -> None:
    """Add what is inside of the array and the block to what stands there, element by element, in any order."""
    operands = [as_value(x) for x in (*shape, *strides, *offsets)]
    emit_effect("add_window", base, *operands, value, block=tuple(block))


@store_window.lower(on="threads")
@add_window.lower(on="threads")
def _(m: Any, op: Op, *operands: Any) -> None:
    *window, value = operands
    m.store_window(op, window, value)


def padded_shape(block: Sequence[int]) -> tuple[int, ...]:
    """The sizes of the tile that holds a block."""
    return tuple(1 << (size - 1).bit_length() for size in block)


def tile_of(op: Op) -> Value:
    """What a window loads, or stores."""
    return op.results[0] if op.results else op.operands[-1]


def parts_of(op: Op) -> tuple[Value, list[Value], list[Value], list[Value]]:
    """The base, shape, strides and offsets of an op that begins with those of a window."""
    rank = len(op.attributes["block"])
    base, *numbers = op.operands[: 1 + 3 * rank]
    return base, numbers[:rank], numbers[rank : 2 * rank], numbers[2 * rank :]
