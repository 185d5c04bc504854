"""Which scalar loads matter to one thread only: all threads execute them, but the one that stores uses the result.

`tl.store(p, tl.load(p) + 1)` on scalars is right without a barrier: what the other threads load, early or late, goes
nowhere.
"""

from __future__ import annotations

from gristmill.compiler.ir import Block, Function, Op, Statement, Value, walk


def lone_loads(function: Function) -> set[Op | None]:
    """Return the scalar loads whose result reaches nothing but scalar stores, which the first thread does."""
    statements = list(walk(function.body))
    blocks = [function.body, *(block for statement in statements for block in statement.blocks)]
    shared = _needed_by_all(blocks)
    for statement in reversed(statements):
        if not (_is_lone_store(statement) or (_is_scalar(statement) and not shared & set(statement.results))):
            shared |= set(statement.operands)
    loads = (s for s in statements if isinstance(s, Op) and s.row.effect == "read" and _is_scalar(s))
    return {op for op in loads if not shared & set(op.results)}


def _needed_by_all(blocks: list[Block]) -> set[Value]:
    return {value for block in blocks for value in block.yields}


def _is_lone_store(statement: Statement) -> bool:
    return isinstance(statement, Op) and statement.row.effect == "write" and statement.operands[0].type.is_scalar


def _is_scalar(statement: Statement) -> bool:
    """Whether it is an op on scalars."""
    values = (*statement.operands, *statement.results)
    return isinstance(statement, Op) and all(value.type.is_scalar for value in values)
