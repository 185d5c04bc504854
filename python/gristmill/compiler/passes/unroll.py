"""Loops that ask for it take several steps at once, then what is left one by one."""

from __future__ import annotations

from gristmill.compiler.ir import Block, For, Function, Mapping, Op, Statement, Value, clone_block, definitions
from gristmill.compiler.op import Builder, building
from gristmill.language import elementwise as ew
from gristmill.language.types import constant


def run(function: Function) -> None:
    """Unroll the kernel's loops by the factors that `tl.range(loop_unroll_factor=...)` gave them."""
    _unroll_block(function.body, definitions(function.body))


def _unroll_block(block: Block, made: dict[Value, Statement]) -> None:
    statements: list[Statement] = []
    for statement in block.statements:
        for inner in statement.blocks:
            _unroll_block(inner, made)
        factor = statement.attributes.pop("unroll", 1) if isinstance(statement, For) else 1
        statements += _two_loops(statement, factor, made) if isinstance(statement, For) and factor > 1 else [statement]
    block.statements[:] = statements


def _two_loops(loop: For, factor: int, made: dict[Value, Statement]) -> list[Statement]:
    lower, upper, step, *initial = loop.operands
    start = Block()
    with building(Builder(start)):
        wide = ew.mul(step, factor)
        middle = _middle(loop, factor, made)
        if middle is None:
            distance = ew.where(ew.gt(upper, lower), ew.sub(upper, lower), 0)
            middle = ew.add(lower, ew.mul(ew.floordiv(distance, wide), wide))
    results = [Value(v.type, v.name) for v in loop.results]
    body = _repeated(loop, step, factor, made)
    many = For([lower, middle, wide, *initial], body, results, dict(loop.attributes), loop.position)
    rest = For([middle, upper, step, *results], loop.body, loop.results, dict(loop.attributes), loop.position)
    return [*start.statements, many, rest]


def _middle(loop: For, factor: int, made: dict[Value, Statement]) -> Value | None:
    """Where the steps that are left begin, where the loop's bounds are known."""
    bounds = [_number(v, made) for v in loop.operands[:3]]
    if None in bounds:
        return None
    lower, upper, step = (int(b) for b in bounds if b is not None)
    chunks = max(0, upper - lower) // (step * factor)
    return constant(lower + chunks * step * factor, loop.operands[0].type.dtype)  # type: ignore[arg-type]


def _number(value: Value, made: dict[Value, Statement]) -> int | None:
    statement = made.get(value)
    return statement.attributes.get("value") if isinstance(statement, Op) and not statement.operands else None


def _times(step: Value, i: int, made: dict[Value, Statement]) -> Value:
    number = _number(step, made)
    return ew.mul(step, i) if number is None else constant(number * i, step.type.dtype)  # type: ignore[arg-type]


def _repeated(loop: For, step: Value, factor: int, made: dict[Value, Statement]) -> Block:
    """A body of `factor` steps."""
    index, *carried = loop.body.arguments
    new = Block([Value(v.type, v.name) for v in loop.body.arguments])
    values = list(new.arguments[1:])
    for i in range(factor):
        with building(Builder(new)):
            at = new.arguments[0] if i == 0 else ew.add(new.arguments[0], _times(step, i, made))
        mapping: Mapping = {index: at, **dict(zip(carried, values, strict=True))}
        copy = clone_block(Block([], loop.body.statements, loop.body.yields), mapping)
        new.statements += copy.statements
        values = copy.yields
    new.yields = values
    return new
