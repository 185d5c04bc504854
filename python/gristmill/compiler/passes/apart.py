"""Sums that go round a loop stay apart in the threads that compute them, and come together behind it.

In `total = total * f + sum(x, 1)` every step's sum over lanes is waited for, though nobody looks at it before the loop
ends. Sums are linear: each lane keeps a total of its own elements, falls by the same factor, and the lanes' totals are
added once. That is for loops whose products leave whole rows to a warp.
"""

from __future__ import annotations

from dataclasses import dataclass

from gristmill import symbolic
from gristmill.compiler.ir import (
    Block,
    For,
    Function,
    If,
    Op,
    Statement,
    Value,
    definitions,
    is_zero,
    replace_below,
    uses,
)
from gristmill.compiler.op import ROWS
from gristmill.compiler.tensor import group_accumulator


def run(function: Function) -> None:
    """Mark such sums of every loop that multiplies what follows from other products."""
    if function.producer is not None:
        _block(function.body, definitions(function.body), uses(function.body), function.num_warps)


def _block(block: Block, made: dict[Value, Statement], counts: dict[Value, int], num_warps: int) -> None:
    statements: list[Statement] = []
    for statement in block.statements:
        for inner in statement.blocks:
            _block(inner, made, counts, num_warps)
        statements.append(statement)
        if isinstance(statement, For) and _has_rows(statement):
            statements += _joined(statement, block, _Rows(made, num_warps), counts)
    block.statements[:] = statements


def _has_rows(loop: For) -> bool:
    return any(isinstance(s, Op) and s.attributes.get("is_held") for s in loop.body.statements)


def _joined(loop: For, block: Block, rows: _Rows, counts: dict[Value, int]) -> list[Op]:
    """Keep the loop's sums apart; returns what brings them together."""
    found: list[Op] = []
    for place, argument in enumerate(loop.body.arguments[1:]):
        total = _sum_of(loop, place, argument, rows, counts)
        if total is not None:
            total.attributes["is_apart"] = True
            result = Value(argument.type, argument.name)
            for statement in block.statements[block.statements.index(loop) + 1 :]:
                replace_below(statement, {loop.results[place]: result})
            block.yields[:] = [result if v is loop.results[place] else v for v in block.yields]
            found.append(Op(ROWS["join_lanes"], [loop.results[place]], {}, [result], loop.position))
    return found


def _sum_of(loop: For, place: int, argument: Value, rows: _Rows, counts: dict[Value, int]) -> Op | None:
    """The sum that is added to what goes round, from 0 on, and to nothing else."""
    made = rows.made
    last, is_from_zero = made.get(loop.body.yields[place]), is_zero(loop.operands[3 + place], made)
    if not (
        is_from_zero and isinstance(last, Op) and last.row.expression == symbolic.Op.ADD and counts.get(argument) == 1
    ):
        return None
    if counts.get(last.results[0]) != 1:
        return None
    for total, before in (last.operands, last.operands[::-1]):
        op, scaled = made.get(total), made.get(before)
        is_sum = isinstance(op, Op) and op.row.is_sum and counts.get(total) == 1 and rows.are_reduced(op)
        is_scaled = isinstance(scaled, Op) and scaled.row.expression == symbolic.Op.MUL and argument in scaled.operands
        is_scaled = is_scaled and all(v is argument or rows.have_one(v, loop) for v in scaled.operands)  # type: ignore
        if is_sum and (before is argument or (is_scaled and counts.get(before) == 1)):
            return op  # type: ignore[return-value]
    return None


@dataclass
class _Rows:
    """Which tiles have an element for each row of a product whose rows are warps' own, and lie as its rows do."""

    made: dict[Value, Statement]
    num_warps: int

    def are_reduced(self, op: Op) -> bool:
        """Whether it reduces each row of what follows from a product, element by element."""
        return op.attributes["axis"] == 1 and self._follow_product(op.operands[0])

    def _follow_product(self, value: Value) -> bool:
        op = self.made.get(value)
        if isinstance(op, If):
            return all(map(self._follow_product, op.yields_of(value)))
        if not isinstance(op, Op) or len(value.type.shape) != 2:
            return False
        if op.row.anchor_layout:
            is_own = not any(column for _, column in group_accumulator(value.type.shape, self.num_warps).warp)
            return bool(op.attributes["by_groups"]) and is_own
        same = [v for v in op.operands if v.type.shape == value.type.shape]
        return op.row.is_elementwise and any(self._follow_product(v) for v in same)

    def have_one(self, value: Value, loop: For, known: frozenset[Value] = frozenset()) -> bool:
        """Whether the tile follows from such sums of rows, constants, and what goes round the loop, by arithmetic."""
        op, known = self.made.get(value), known | {value}
        if value.type.is_scalar:
            return True
        if value in loop.body.arguments:
            place = loop.body.arguments.index(value) - 1
            given = [loop.operands[3 + place], loop.body.yields[place]]
        elif isinstance(op, If):
            given = op.yields_of(value)
        elif isinstance(op, Op) and op.row.goes_along_axis:
            return op.row.result_layout is not None and self.are_reduced(op)
        elif isinstance(op, Op) and (op.row.is_elementwise or op.row.is_view or not op.operands):
            given = op.operands
        else:
            return False
        return all(v in known or self.have_one(v, loop, known) for v in given)
