"""Ops that passes insert; authors never write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.facts import Facts
from gristmill.compiler.ir import Tile, Value
from gristmill.compiler.layout import Layout
from gristmill.compiler.op import ROWS, emit, emit_several, op
from gristmill.compiler.tensor import in_halves, in_words, sums_of
from gristmill.language.regions import combine_by
from gristmill.language.types import as_value


@op("internal", kind="tile", is_relayout=True)
def relayout(input: Any) -> Value:
    """The same tile in another layout; inserted by the compiler, never written by authors."""
    x = as_value(input)
    return emit("relayout", x.type, x)


@relayout.reference
def _(x: Any) -> Any:
    return x


@relayout.facts
def _(op: Any, x: Facts) -> Facts:
    return x


@relayout.lower(on="threads")
def _(m: Any, op: Any, x: Any) -> Any:
    return m.relayout(op.results[0], x)


@op("internal", kind="tile", lies_in_shared=True, is_kept=True)
def hold(input: Any) -> Value:
    """A copy of the tile in shared memory, for `held`."""
    x = as_value(input)
    return emit("hold", x.type, x)


@hold.reference
def _(x: Any) -> Any:
    return x


@hold.lower(on="threads")
def _(m: Any, op: Any, x: Any) -> Any:
    return m.hold(x)


@op("internal", kind="tile", goes_by_register=True)
def held(input: Any) -> Value:
    """The tile that `hold` copied, in registers."""
    x = as_value(input)
    return emit("held", x.type, x)


@held.reference
def _(x: Any) -> Any:
    return x


@held.lower(on="threads")
def _(m: Any, op: Any, x: Any) -> Any:
    return m.held(op, x)


@op("internal", kind="tile", lies_in_shared=True, is_kept=True, place_alignment=1024)
def share(input: Any, is_turned: bool = False) -> Value:
    """The tile in shared memory, for tensor cores; `is_turned`: the tile is the transpose of what is given."""
    x = as_value(input)
    return emit("share", x.type.with_shape(x.type.shape[:: -1 if is_turned else 1]), x, is_turned=is_turned)


@share.reference
def _(x: Any, *, is_turned: bool) -> Any:
    return x.T if is_turned else x


@share.lower(on="threads")
def _(m: Any, op: Any, x: Any) -> Any:
    return m.share(op, x)


@op("internal", kind="tile")
def join_lanes(input: Any) -> Value:
    """The sums of what lanes hold that have the same element each, and each a part of it."""
    x = as_value(input)
    return emit("join_lanes", x.type, x)


@join_lanes.reference
def _(x: Any) -> Any:
    return x


join_lanes.operand_layout = lambda op, layout: layout
join_lanes.forward_layout = lambda op, layout: layout


@join_lanes.lower(on="threads")
def _(m: Any, op: Any, x: Any) -> Any:
    return m.join_lanes(x)


@op("internal", kind="tile", is_common=True)
def gathered(inputs: Any) -> list[Value]:
    """Small tiles of which each block of a cluster has a part, whole in the registers of all threads."""
    return emit_several("gathered", [x.type for x in inputs], inputs)


@gathered.reference
def _(*tiles: Any) -> Any:
    return tiles


@gathered.lower(on="threads")
def _(m: Any, op: Any, *tiles: Any) -> Any:
    return m.gather_blocks(op, tiles)


@op("internal", kind="tile", reads_shared=True)
def fetch(input: Any) -> Value:
    """A tile of one axis in registers that lies in shared memory."""
    x = as_value(input)
    return emit("fetch", x.type, x)


@fetch.reference
def _(x: Any) -> Any:
    return x


@fetch.lower(on="threads")
def _(m: Any, op: Any, x: Any) -> Any:
    return m.fetch(op.results[0], x)


@op("internal", kind="tile", lies_in_shared=True, is_shared_view=True)
def turned(input: Any) -> Value:
    """The transpose of a tile in shared memory, where it lies."""
    x = as_value(input)
    return emit("turned", x.type.with_shape(x.type.shape[::-1]), x)


@turned.reference
def _(x: Any) -> Any:
    return x.T


@turned.lower(on="threads")
def _(m: Any, op: Any, x: Any) -> Any:
    return m.turned(x)


@op("internal", kind="tile", lies_in_shared=True, place_alignment=1024)
def parts(b: Any, is_across: bool, has_low: bool, room: int) -> Value:
    """A right operand of f32 in shared memory as warpgroups multiply it: along the depth, in parts if that is exact.

    `is_across`: whether it lies across; `has_low`: also what tf32 cuts off; `room`: bytes that the copies take.
    """
    b = as_value(b)
    return emit("parts", b.type, b, is_across=is_across, has_low=has_low, room=room)


@parts.reference
def _(b: Any, **how: Any) -> Any:
    return b


@parts.lower(on="threads")
def _(m: Any, op: Any, b: Any) -> Any:
    return m.parts(op, b)


@op("internal", kind="tile", is_for_held=True)
def words(input: Any) -> Value:
    """Halves as warpgroups take them from registers: two of a row that are side by side in a word."""
    x = as_value(input)
    return emit("words", Tile(dt.u32, (x.type.shape[0], x.type.shape[1] // 2)), x)


@words.reference
def _(x: Any) -> Any:
    return np.ascontiguousarray(x).view(np.uint32)


words.forward_layout = lambda op, layout: in_words(layout)
words.operand_layout = lambda op, layout: in_halves(layout)


@words.lower(on="threads")
def _(m: Any, op: Any, x: Any) -> Any:
    joined = [m.join_elements(x.registers[i : i + 2]) for i in range(0, len(x.registers), 2)]
    return m.tile(in_words(x.layout), joined)


@op("internal", kind="tile")
def product(a: Any, b: Any, acc: Any, **how: Any) -> Value:
    """What `dot` is, of operands in shared memory, by tensor cores.

    `precision`: of f32. `by_groups`: of warpgroups rather than warps. `has_rows`: each warp has whole rows of results.
    `is_held`: they hold `a` in registers, as `words`; `is_taken`: they take it there, of f32, with rows in `order`.
    `pending`: how many open products it leaves, of which it is the last: their results are there after `settle`, or as
    another's `acc`; None: all. `is_first`: acc is 0. `columns`: how many of b's columns there are; behind them it is
    padded.
    """
    a, b, acc = (as_value(x) for x in (a, b, acc))
    return emit("product", acc.type, a, b, acc, **how)


@product.reference
def _(a: Any, b: Any, acc: Any, **how: Any) -> Any:
    return ROWS["dot"].reference_function(a.view(b.dtype) if how["is_held"] else a, b, acc)  # type: ignore[misc]


def _sums(op: Any, num_warps: int) -> Layout:
    return sums_of(op.attributes, op.operands[1].type.dtype, op.results[0].type.shape, num_warps)


product.anchor_layout = _sums


@product.lower(on="threads")
def _(m: Any, op: Any, a: Any, b: Any, acc: Any) -> Any:
    return m.product(op, a, b, acc)


@op("internal", kind="tile")
def settle(x: Any, columns: int, pending: int = 0, words: Any = None) -> Value:
    """The sums of a product that is open, when they are there: when all are but the last `pending`.

    `words` are those that it holds, which stay as they are until then; `columns` as in `product`.
    """
    operands = [as_value(v) for v in (x, words) if v is not None]
    return emit("settle", operands[0].type, *operands, columns=columns, pending=pending)


@settle.reference
def _(x: Any, words: Any = None, **how: Any) -> Any:
    return x


settle.forward_layout = lambda op, layout: layout


@settle.lower(on="threads")
def _(m: Any, op: Any, x: Any, words: Any = None) -> Any:
    return m.settle(op, x, words)


@op("internal", kind="tile", branches=True)
def change(x: Any, condition: Any, others: Any) -> Value:
    """What the op's block makes of the elements of x and `others` where `condition` holds, and x elsewhere."""
    operands = [as_value(v) for v in (x, condition, *others)]
    return emit("change", operands[0].type, *operands)


@change.reference
def _(x: Any, condition: Any, *others: Any, op: Any, machine: Any) -> Any:
    return np.where(condition, machine.combine(op.blocks[0], [x], others)[0], x)


change.forward_layout = lambda op, layout: layout
change.operand_layout = lambda op, layout: layout


@change.lower(on="threads")
def _(m: Any, op: Any, x: Any, condition: Any, *others: Any) -> Any:
    made = combine_by(m, op)
    return m.change(x, condition, others, lambda *elements: made(elements, ())[0])
