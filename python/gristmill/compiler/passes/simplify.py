"""Drop what nothing uses and share what is computed twice, so that later passes see each fact once."""

from __future__ import annotations

from typing import Any

from gristmill.compiler.ir import Block, Function, Op, Statement, Value


def run(function: Function) -> None:
    """Leave out checks that nobody asked for, share equal pure ops, then drop unused ones."""
    if not function.is_checked:
        _leave_out_checks(function.body)
    _share(function.body, {}, {})
    drop_unused(function)


def drop_unused(function: Function) -> None:
    """Drop pure statements whose results nothing uses."""
    _drop(function.body, set())


def _leave_out_checks(block: Block) -> None:
    block.statements[:] = [s for s in block.statements if not (isinstance(s, Op) and s.row.is_check)]
    for statement in block.statements:
        for inner in statement.blocks:
            _leave_out_checks(inner)


def _share(block: Block, known: dict[Any, Value], same: dict[Value, Value]) -> None:
    known, kept = dict(known), []
    for statement in block.statements:
        statement.operands[:] = [same.get(v, v) for v in statement.operands]
        # A machine runs an op's block alone, by its arguments: what stands outside is not there.
        around = {} if isinstance(statement, Op) else known
        for inner in statement.blocks:
            _share(inner, around, same)
        if isinstance(statement, Op) and not statement.row.effect and len(statement.results) == 1:
            key = _key(statement)
            if key in known:
                same[statement.results[0]] = known[key]
                continue
            known[key] = statement.results[0]
        kept.append(statement)
    block.statements[:] = kept
    block.yields[:] = [same.get(v, v) for v in block.yields]


def _key(op: Op) -> Any:
    attributes = tuple(sorted((k, repr(v)) for k, v in op.attributes.items()))
    return op.row.name, tuple(map(id, (*op.operands, *op.blocks))), attributes, op.results[0].type


def _drop(block: Block, needed: set[Value]) -> set[Value]:
    """Remove unused pure statements, last first; returns the outer values that are needed."""
    needed = needed | set(block.yields)
    kept: list[Statement] = []
    for statement in reversed(block.statements):
        if not (needed & set(statement.results) or _has_effect(statement) or _is_promise(statement)):
            continue
        needed |= set(statement.operands)
        for inner in statement.blocks:
            needed |= _drop(inner, set())
        kept.append(statement)
    block.statements[:] = kept[::-1]
    return needed


def _has_effect(statement: Statement) -> bool:
    if isinstance(statement, Op):
        return bool(statement.row.is_lasting)
    return any(_has_effect(s) for block in statement.blocks for s in block.statements)


def _is_promise(statement: Statement) -> bool:
    return isinstance(statement, Op) and bool(statement.row.is_promise)
