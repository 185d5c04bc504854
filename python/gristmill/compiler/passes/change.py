"""Let warps skip what changes none of their rows.

`x = tl.where(grown[:, None], f(x), x)` computes f for each element, though in most steps of a loop no row may have
grown. Where a thread has many elements of few rows, its warp asks first whether the condition holds in any of its
threads, and branches.

That is for conditions, and whatever else f takes, that are the same along an axis, and for an f of elementwise ops that
nothing else uses. The branch comes as soon as it may: what does not lead to it is one run of instructions behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.compiler.ir import Block, Function, Op, Statement, Tile, Value, definitions, uses, walk
from gristmill.compiler.op import ROWS

LEAST = 16  # elements of a thread that a branch is worth


def run(function: Function) -> None:
    """Make an op of every such choice and what it is between."""
    made, counts = definitions(function.body), uses(function.body)
    for block in [function.body, *(b for s in walk(function.body) if not isinstance(s, Op) for b in s.blocks)]:
        for op in [s for s in block.statements if isinstance(s, Op) and s.row.is_choice]:
            steps = _steps(op, made, counts) if op.results[0].type.elements >= LEAST * function.threads else None
            if steps and all(step in block.statements for step in steps):
                _put(_changed(op, steps), block, [op, *steps])


def _put(changed: Op, block: Block, instead: Sequence[Op]) -> None:
    """Let an op stand for others, with what leads to it right behind what cannot be moved."""
    statements = [s for s in block.statements if s not in instead]
    made = {v: i for i, s in enumerate(statements) for v in s.results}
    moved, pending, place = set[int](), list(changed.operands), 0
    while pending:
        index = made.get(pending.pop())
        if index is not None and _is_movable(statements[index]):
            moved.add(index)
            pending += statements[index].operands
        elif index is not None:
            place = max(place, index + 1)
    moved = {i for i in moved if i >= place}
    leading = [statements[i] for i in sorted(moved)]
    rest = [s for i, s in enumerate(statements) if i >= place and i not in moved]
    block.statements[:] = [*statements[:place], *leading, changed, *rest]


def _is_movable(statement: Statement) -> bool:
    return isinstance(statement, Op) and not statement.row.effect and not statement.row.anchor_layout


def _steps(op: Op, made: dict[Value, Statement], counts: dict[Value, int]) -> list[Op] | None:
    """The ops by which what is chosen follows from what is chosen otherwise, in order; None if there is more to it."""
    condition, changed, x = op.operands
    if not _is_of_rows(condition, made):
        return None
    found: list[Op] = []
    pending, is_from_x = [changed], False
    while pending:
        value = pending.pop()
        step = made.get(value)
        if value is x:
            is_from_x = True
        elif not _is_of_rows(value, made):
            if not isinstance(step, Op) or not step.row.is_elementwise or not step.operands or counts[value] != 1:
                return None
            found.insert(0, step)
            pending += step.operands
    return found if is_from_x else None


def _is_of_rows(value: Value, made: dict[Value, Statement]) -> bool:
    """Whether the tile repeats a smaller one."""
    op = made.get(value)
    return isinstance(op, Op) and op.row.is_view and op.operands[0].type.elements < value.type.elements


def _changed(op: Op, steps: list[Op]) -> Op:
    """The op that stands for the choice and the steps, which become a block of elements."""
    condition, changed, x = op.operands
    inside = {v for step in steps for v in step.results}
    others = list(dict.fromkeys(v for step in steps for v in step.operands if v is not x and v not in inside))
    element = {v: Value(Tile(v.type.dtype), v.name) for v in (x, *others, *(s.results[0] for s in steps))}
    statements: list[Statement] = [
        Op(s.row, [element[v] for v in s.operands], dict(s.attributes), [element[s.results[0]]], s.position)
        for s in steps
    ]
    block = Block([element[x], *(element[v] for v in others)], statements, [element[changed]])
    return Op(ROWS["change"], [x, condition, *others], {}, op.results, op.position, (block,))
