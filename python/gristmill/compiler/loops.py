"""The frontend's loops: counted at run time, unrolled at build time, and `while`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.assign import bind
from gristmill.compiler.expressions import evaluate, is_constexpr, truth
from gristmill.compiler.ir import Block, For, Value, While
from gristmill.compiler.merge import Carried, has_tiles, is_same_constant
from gristmill.compiler.scope import CHANGED_CONSTANT, Scope
from gristmill.dtypes import Dtype
from gristmill.errors import KernelError
from gristmill.language import elementwise as ew
from gristmill.language.iterate import range as tile_range
from gristmill.language.iterate import static_range
from gristmill.language.types import (
    as_value,
    cast_to,
    constant,
    describe,
    is_number,
    literal_dtype,
    promote_integers,
)

Run = Callable[[Scope, list[ast.stmt]], None]
"""What runs the statements of a body."""


def returns(node: ast.AST) -> bool:
    """Whether a `return` stands below a statement."""
    return any(isinstance(n, ast.Return) for n in ast.walk(node))


def for_loop(scope: Scope, node: ast.For, run: Run) -> None:
    """A `for` of any kind, without a `return` in it."""
    iterator = iterable(scope, node)
    if not isinstance(iterator, tile_range):
        for item in iterator:
            bind(scope, node.target, item)
            run(scope, node.body)
        return
    if returns(node):
        raise KernelError("`return` inside a loop is not supported", fix="use a mask or a `while` condition")
    if not isinstance(node.target, ast.Name):
        raise KernelError("a loop over a range has one name", fix="use `for i in range(n)`")
    _counted(scope, node.target.id, node.body, iterator, run)


def iterable(scope: Scope, node: ast.For) -> Any:
    """What a `for` iterates over: a range at run time, or the items of a loop that is unrolled."""
    if node.orelse:
        raise KernelError("`else` on a loop is not supported", fix="put it after the loop")
    iterator = _iterator(scope, node.iter)
    return iterator if isinstance(iterator, tile_range) else _static_items(iterator)


def _iterator(scope: Scope, node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        return evaluate(scope, node)
    callee = evaluate(scope, node.func)
    if callee not in (range, tile_range, static_range):
        return evaluate(scope, node)
    arguments = [evaluate(scope, a) for a in node.args]
    named = {str(k.arg): evaluate(scope, k.value) for k in node.keywords}
    kind = tile_range if callee is range else callee
    try:
        return kind(*arguments, **named)
    except TypeError:
        fix = f"call it as `{callee.__name__}(start, stop, step)`"
        raise KernelError(f"`{ast.unparse(node)}` has other arguments than a loop takes", fix=fix) from None


def _static_items(iterator: Any) -> Any:
    if isinstance(iterator, static_range):
        first, second, step = iterator.bounds
        bounds = [*((0, first) if second is None else (first, second)), 1 if step is None else step]
        if any(not isinstance(b, int) for b in bounds):
            raise KernelError("static_range(): bounds must be known at build time", fix="use `tl.range`")
        if bounds[2] == 0:
            raise KernelError("static_range(): the step is 0", fix="use another step")
        return range(*bounds)
    if isinstance(iterator, (tuple, list, range)):
        return iterator
    raise KernelError(f"cannot loop over {describe(iterator)}", fix="use `range`, `tl.range` or `tl.static_range`")


# ---- counted loops -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bounds:
    """A loop that counts up from `lower`; the author's index is `down_from` less the count where that is given."""

    lower: Value
    upper: Value
    step: Value
    items: range | None
    down_from: Value | None = None

    def index(self, induction: Value) -> Value:
        """What the author's index is, inside the body."""
        if self.down_from is None:
            return induction
        return ew.sub(self.down_from, cast_to(induction, self.down_from.type.dtype))

    def last(self) -> Value | None:
        """The index after the loop, where it is known."""
        like = self.down_from or self.lower
        assert isinstance(like.type.dtype, Dtype)
        return constant(self.items[-1], like.type.dtype) if self.items else None


def _counted(scope: Scope, name: str, body: list[ast.stmt], loop: tile_range, run: Run) -> None:
    bounds = _bounds(loop)
    outer = scope.names.pop(name, None)
    carried = Carried(scope, _carried_names(scope, body, {name}))

    def make() -> Block:
        induction = Value(bounds.lower.type, name)
        block = Block([induction, *carried.fresh()])
        with scope.builder.inside(block):
            scope.names[name] = bounds.index(induction)
        _step(scope, block, carried, body, run)
        return block

    block = carried.build(make)
    results = carried.fresh()
    options = {k: v for k, v in loop.options.items() if v is not None}
    operands = [bounds.lower, bounds.upper, bounds.step, *carried.initial]
    scope.builder.block.statements.append(For(operands, block, results, options, scope.builder.position))
    carried.bind(results)
    del scope.names[name]
    _leave_index(scope, name, bounds, outer, is_assigned=name in _stored(body))


def _leave_index(scope: Scope, name: str, bounds: Bounds, outer: Any, *, is_assigned: bool) -> None:
    """Let the index stand after the loop as Python does, where that is known at build time."""
    after = outer if bounds.items is not None and not bounds.items else bounds.last()
    if after is None or is_assigned:
        scope.removed[name] = "it is a loop's index"
    else:
        scope.names[name] = after


def _step(scope: Scope, block: Block, carried: Carried, body: list[ast.stmt], run: Run) -> None:
    """Run a loop's body in `block`, whose last arguments stand for what is carried, and yield the next values."""
    before = dict(scope.names)
    carried.bind(block.arguments[len(block.arguments) - len(carried.initial) :])
    with scope.builder.inside(block):
        run(scope, body)
        block.yields += carried.next_values()
    for name in scope.names.keys() - before.keys():
        scope.removed[name] = "it is first assigned inside a loop"
    for name in before.keys() - set(carried.names):
        if not is_same_constant(scope.names.get(name), before[name]) and not isinstance(before[name], Value):
            scope.removed[name] = CHANGED_CONSTANT
            del before[name]
    scope.names = before


def _carried_names(scope: Scope, body: list[ast.stmt], but: set[str]) -> list[str]:
    stored = _stored(body) - _declared(scope, body) - but
    return sorted(n for n in stored if n in scope.names and has_tiles(scope.names[n]))


def _stored(body: list[ast.stmt]) -> set[str]:
    return {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _declared(scope: Scope, body: list[ast.stmt]) -> set[str]:
    """The names that a body assigns as `N: tl.constexpr = ...` only."""
    nodes = [n for s in body for n in ast.walk(s)]
    declarations = [n for n in nodes if isinstance(n, ast.AnnAssign) and is_constexpr(evaluate(scope, n.annotation))]
    names = [n.target.id for n in declarations if isinstance(n.target, ast.Name)]
    targets = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return {name for name in names if targets.count(name) == names.count(name)}


def _bounds(loop: tile_range) -> Bounds:
    first, second, step = loop.bounds
    lower, upper = (0, first) if second is None else (first, second)
    step = 1 if step is None else step
    if is_number(step) and step == 0:
        raise KernelError("a loop's step must not be 0", fix="use another step")
    for tile in (lower, upper, step):
        if isinstance(tile, Value) and not (tile.type.is_scalar and _is_integer(tile.type.dtype)):
            raise KernelError(
                f"a loop's bounds are scalar integers, got {tile.type}", fix="convert them, or use a scalar"
            )
    dtype = reduce(promote_integers, map(_bound_dtype, (lower, upper, step)))
    items = range(lower, upper, step) if all(map(is_number, (lower, upper, step))) else None
    if is_number(step) and step < 0:
        return _downwards(lower, upper, step, items)
    typed = [_typed(x, dtype) for x in (lower, upper, step)]
    return Bounds(typed[0], typed[1], typed[2], items)


def _downwards(lower: Any, upper: Any, step: int, items: range | None) -> Bounds:
    """Count the distance from `lower` up, unsigned: it does not overflow."""
    dtype = reduce(promote_integers, map(_bound_dtype, (lower, upper)))
    distance_dtype = dt.u64 if dtype.bits == 64 else dt.u32
    first, last = _typed(lower, dtype), _typed(upper, dtype)
    if items is None:
        is_any = ew.gt(first, last)
        distance = ew.where(is_any, cast_to(ew.sub(first, last), distance_dtype), constant(0, distance_dtype))
    else:
        distance = constant(max(0, lower - upper), distance_dtype)
    return Bounds(constant(0, distance_dtype), distance, constant(-step, distance_dtype), items, first)


def _typed(bound: Any, dtype: Dtype) -> Value:
    return constant(bound, dtype) if is_number(bound) else cast_to(bound, dtype)


def _is_integer(dtype: Any) -> bool:
    return isinstance(dtype, Dtype) and dtype.is_int


def _bound_dtype(bound: Any) -> Dtype:
    dtype = literal_dtype(bound) if is_number(bound) else as_value(bound, "a loop's bound").type.dtype
    if not isinstance(dtype, Dtype) or not dtype.is_int:
        raise KernelError(f"a loop's bounds are integers, got {describe(bound)}", fix="convert it first")
    return dtype


# ---- while ---------------------------------------------------------------------------------------------------------


def while_loop(scope: Scope, node: ast.While, run: Run) -> None:
    """A `while` at run time."""
    if node.orelse or returns(node):
        raise KernelError("`return` in, or `else` on, a loop is not supported", fix="use the loop's condition")
    carried = Carried(scope, _carried_names(scope, node.body, set()))

    def make() -> tuple[Block, Block]:
        condition, body = Block(carried.fresh()), Block(carried.fresh())
        outer = dict(scope.names)
        carried.bind(condition.arguments)
        with scope.builder.inside(condition):
            goes_on = truth(scope, node.test)
            condition.yields = [as_value(goes_on), *condition.arguments]
        scope.names = outer
        _step(scope, body, carried, node.body, run)
        return condition, body

    condition, body = carried.build(make)
    results = carried.fresh()
    statement = While(carried.initial, condition, body, results, {}, scope.builder.position)
    scope.builder.block.statements.append(statement)
    carried.bind(results)
