"""Ops that take an author's function of elements: its body becomes a block of the op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gristmill.compiler.ir import Block, Op, Tile, Value
from gristmill.compiler.machine import Combine
from gristmill.compiler.op import block_of, call_function, op
from gristmill.errors import KernelError
from gristmill.language.types import as_value, broadcast_value, common_shape, describe


def combining_block(function: Callable[..., Any], tiles: Sequence[Value], what: str) -> Block:
    """Compile `function(*first, *second)`, which makes one element of two, each of one value a tile."""
    types = [Tile(tile.type.dtype) for tile in tiles]
    block = block_of(function, [*types, *types])
    returned = [as_value(value, f"{what}: what the function returns") for value in block.yields]
    if [v.type for v in returned] != types:
        wanted, found = (", ".join(str(t) for t in ts) for ts in (types, [v.type for v in returned]))
        fix = "cast what it returns, as in `.to(a.dtype)`"
        raise KernelError(f"{what}: the function must return {wanted}, got {found}", fix=fix)
    if not all(isinstance(s, Op) and s.row.is_elementwise for s in block.statements):
        raise KernelError(
            f"{what}: the function may only compute, element by element", fix="use `tl.where` instead of `if`"
        )
    return block


def combine_by(m: Any, op: Op) -> Combine:
    """How a machine combines two elements by the op's block."""
    (block,) = op.blocks

    def combine(a: Sequence[Any], b: Sequence[Any]) -> Sequence[Any]:
        found: Sequence[Any] = m.run(block, dict(zip(block.arguments, [*a, *b], strict=True)))
        return found

    return combine


def inputs_of(input: Any, what: str) -> list[Value]:
    """One block or a tuple of blocks of one shape."""
    tiles = [as_value(x, what) for x in (input if isinstance(input, tuple) else (input,))]
    if not tiles or tiles[0].type.is_scalar:
        found = describe(tiles[0]) if tiles else "nothing"
        raise KernelError(f"{what}: needs a block, got {found}", fix="a scalar is its own result: drop the call")
    if any(tile.type.shape != tiles[0].type.shape for tile in tiles):
        shapes = ", ".join(str(list(tile.type.shape)) for tile in tiles)
        raise KernelError(f"{what}: the blocks differ in shape: {shapes}", fix="broadcast them first")
    return tiles


def as_given(input: Any, results: Sequence[Value]) -> Any:
    """A tuple where a tuple was given."""
    return tuple(results) if isinstance(input, tuple) else results[0]


@op("elementwise")
def map_elementwise(scalar_fn: Any, *args: Any, pack: Any = 1) -> Any:
    """What `scalar_fn` makes of the elements of `args`, which are broadcast to each other; one block or several.

    It is compiled for whole blocks: where it chooses by a value it uses `tl.where`. `pack` has no effect.
    """
    tiles = [as_value(x, "map_elementwise()") for x in args]
    if not tiles:
        raise KernelError("map_elementwise(): there is nothing to map", fix="pass blocks behind the function")
    shape: tuple[int, ...] = ()
    for tile in tiles:
        shape = common_shape(shape, tile.type.shape, "map_elementwise()")
    return call_function(scalar_fn, [broadcast_value(tile, shape) for tile in tiles])
