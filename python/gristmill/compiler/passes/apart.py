"""Sums that go round a loop stay apart in the threads that compute them, and come together behind it.

In `total = total * f + sum(x, 1)` every step's sum over lanes is waited for, though nobody looks at it before the loop
ends. Sums are linear: each lane keeps a total of its own elements, falls by the same factor, and the lanes' totals are
added once. That is for loops whose products leave whole rows to a warp.
"""

from __future__ import annotations

from gristmill.compiler.ir import Block, For, Function, Op, Statement, Value, definitions, replace_below, uses
from gristmill.compiler.op import ROWS


def run(function: Function) -> None:
    """Mark such sums of every loop that multiplies what follows from other products."""
    if function.producer is not None:
        _block(function.body, definitions(function.body), uses(function.body))


def _block(block: Block, made: dict[Value, Statement], counts: dict[Value, int]) -> None:
    statements: list[Statement] = []
    for statement in block.statements:
        for inner in statement.blocks:
            _block(inner, made, counts)
        statements.append(statement)
        if isinstance(statement, For) and _has_rows(statement):
            statements += _joined(statement, block, made, counts)
    block.statements[:] = statements


def _has_rows(loop: For) -> bool:
    return any(isinstance(s, Op) and s.attributes.get("is_held") for s in loop.body.statements)


def _joined(loop: For, block: Block, made: dict[Value, Statement], counts: dict[Value, int]) -> list[Op]:
    """Keep the loop's sums apart; returns what brings them together."""
    found: list[Op] = []
    for place, argument in enumerate(loop.body.arguments[1:]):
        total = _sum_of(loop, place, argument, made, counts)
        if total is not None:
            total.attributes["is_apart"] = True
            result = Value(argument.type, argument.name)
            for statement in block.statements[block.statements.index(loop) + 1 :]:
                replace_below(statement, {loop.results[place]: result})
            block.yields[:] = [result if v is loop.results[place] else v for v in block.yields]
            found.append(Op(ROWS["join_lanes"], [loop.results[place]], {}, [result], loop.position))
    return found


def _sum_of(
    loop: For, place: int, argument: Value, made: dict[Value, Statement], counts: dict[Value, int]
) -> Op | None:
    """The sum that is added to what goes round, from 0 on, and to nothing else."""
    initial, last = made.get(loop.operands[3 + place]), made.get(loop.body.yields[place])
    is_from_zero = isinstance(initial, Op) and not initial.operands and initial.attributes.get("value", 1) == 0
    if not (is_from_zero and isinstance(last, Op) and last.name == "add" and counts.get(argument) == 1):
        return None
    if counts.get(last.results[0]) != 1:
        return None
    for total, before in (last.operands, last.operands[::-1]):
        op, scaled = made.get(total), made.get(before)
        is_sum = isinstance(op, Op) and op.name == "sum" and counts.get(total) == 1
        is_scaled = isinstance(scaled, Op) and scaled.name == "mul" and argument in scaled.operands
        if is_sum and (before is argument or (is_scaled and counts.get(before) == 1)):
            return op  # type: ignore[return-value]
    return None
