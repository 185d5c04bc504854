"""Drop what nothing uses and share what is computed twice, so that later passes see each fact once."""

from __future__ import annotations

from typing import Any

from gristmill.compiler.ir import Block, For, Function, If, Op, Statement, Value, While


def run(function: Function) -> None:
    """Leave out checks that nobody asked for, share equal pure ops, then drop unused ones."""
    if not function.is_checked:
        _leave_out_checks(function.body)
    _share(function.body, {}, {})
    drop_unused(function)


def drop_unused(function: Function) -> None:
    """Drop pure statements whose results nothing uses, and what loops carry round for nothing else."""
    _drop(function.body, _needed(function.body))


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


def _needed(body: Block) -> set[Value]:
    """The values that effects need, directly or by way of others."""
    needed: set[Value] = set()
    known = -1
    while known != len(needed):
        known = len(needed)
        _mark(body, needed)
    return needed


def _mark(block: Block, needed: set[Value]) -> None:
    """Add what the statements need, last first."""
    for statement in reversed(block.statements):
        if isinstance(statement, For):
            carried = zip(
                statement.results,
                statement.body.arguments[1:],
                statement.body.yields,
                statement.operands[3:],
                strict=True,
            )
            for result, argument, *sources in carried:
                if result in needed or argument in needed:
                    needed |= {result, argument, *sources}
        elif isinstance(statement, If):
            for result, *sides in zip(statement.results, *(b.yields for b in statement.blocks), strict=True):
                needed |= set(sides) if result in needed else set()
        if _is_kept(statement, needed):
            count = 3 if isinstance(statement, For) else None
            needed |= set(statement.operands[:count])
            if isinstance(statement, (Op, While)):
                needed |= {v for inner in statement.blocks for v in (*inner.yields, *inner.arguments)}
        for inner in statement.blocks:
            _mark(inner, needed)


def _is_kept(statement: Statement, needed: set[Value]) -> bool:
    is_used = any(v in needed for v in statement.results)
    return is_used or _has_effect(statement) or _is_promise(statement) or isinstance(statement, While)


def _drop(block: Block, needed: set[Value]) -> None:
    kept = [s for s in block.statements if _is_kept(s, needed)]
    for statement in kept:
        if isinstance(statement, (For, If)):
            _drop_results(statement, needed)
        if not isinstance(statement, Op):
            for inner in statement.blocks:
                _drop(inner, needed)
    block.statements[:] = kept


def _drop_results(statement: For | If, needed: set[Value]) -> None:
    for place in range(len(statement.results) - 1, -1, -1):
        if statement.results[place] in needed:
            continue
        del statement.results[place]
        for inner in statement.blocks:
            del inner.yields[place]
        if isinstance(statement, For):
            del statement.operands[3 + place], statement.body.arguments[1 + place]


def _has_effect(statement: Statement) -> bool:
    if isinstance(statement, Op):
        return bool(statement.row.is_lasting)
    return any(_has_effect(s) for block in statement.blocks for s in block.statements)


def _is_promise(statement: Statement) -> bool:
    return isinstance(statement, Op) and bool(statement.row.is_promise)
