"""The frontend's statements: assignments, branches and loops over tiles."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import reduce
from typing import Any

from gristmill.compiler.expressions import binary, decay, evaluate, truth
from gristmill.compiler.ir import Block, For, If, Tile, Value, While
from gristmill.compiler.scope import Scope
from gristmill.compiler.widening import build_loop, meet, next_value
from gristmill.dtypes import Dtype
from gristmill.errors import KernelError
from gristmill.language import elementwise as ew
from gristmill.language.iterate import constexpr, static_range
from gristmill.language.iterate import range as tile_range
from gristmill.language.types import (
    as_value,
    cast_to,
    constant,
    describe,
    is_number,
    literal_dtype,
    promote_integers,
    spell,
)


class _Missing:
    """The value of a path that does not return."""


MISSING = _Missing()


def execute_function(scope: Scope, body: list[ast.stmt]) -> Any:
    """Run a function's statements; returns what it returns, or None.

    A `return` below an `if` at this level makes what follows the other branch.
    """
    for i, statement in enumerate(body):
        if isinstance(statement, ast.Return):
            with scope.at(statement):
                return evaluate(scope, statement.value) if statement.value else None
        if isinstance(statement, ast.If) and _returns(statement):
            with scope.at(statement):
                return _branch_to_return(scope, statement, body[i + 1 :])
        execute(scope, statement)
    return None


def _returns(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Return) for n in ast.walk(node))


def _branch_to_return(scope: Scope, node: ast.If, rest: list[ast.stmt]) -> Any:
    condition = truth(scope, node.test)
    if isinstance(condition, bool):
        return execute_function(scope, (node.body if condition else node.orelse) + rest)
    blocks, values = (Block(), Block()), []
    for block, body in zip(blocks, (node.body, node.orelse), strict=True):
        with scope.builder.inside(block):
            names = dict(scope.names)
            ends = body and isinstance(body[-1], ast.Return)
            values.append(_as_results(execute_function(scope, body if ends else body + rest)))
            scope.names = names
    if len(values[0]) == len(values[1]):
        pairs = [meet(scope, blocks, list(pair)) for pair in zip(*values, strict=True)]
        values = [[pair[side] for pair in pairs] for side in (0, 1)]
    if [v.type for v in values[0]] != [v.type for v in values[1]]:
        kinds = " and ".join(", ".join(str(v.type) for v in vs) or "nothing" for vs in values)
        raise KernelError(f"the paths return different types: {kinds}", fix="return the same types on every path")
    for block, vs in zip(blocks, values, strict=True):
        block.yields = vs
    results = [Value(v.type) for v in values[0]]
    scope.builder.block.statements.append(If([condition], *blocks, results, {}, scope.builder.position))
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def _as_results(value: Any) -> list[Value]:
    if value is None:
        return []
    return (
        [as_value(v, "a returned value") for v in value]
        if isinstance(value, tuple)
        else [as_value(value, "a returned value")]
    )


def execute(scope: Scope, statement: ast.stmt) -> None:
    """Run one statement."""
    handler = _HANDLERS.get(type(statement))
    with scope.at(statement):
        if handler is None:
            raise _unsupported(statement)
        handler(scope, statement)


_INSTEAD = {
    "Break": "put the condition into the loop's bounds, or use `while`",
    "Continue": "use `if` around the rest of the loop's body",
    "Try": "kernels have no exceptions: mask instead",
    "With": "kernels have no contexts",
    "FunctionDef": "move the helper function to the module",
    "ClassDef": "move it out of the kernel",
    "Global": "pass the value as a parameter",
    "Nonlocal": "pass the value as a parameter",
    "Assert": "use `tl.static_assert` for compile-time conditions",
    "Delete": "leave it out",
    "Raise": "kernels have no exceptions: mask instead",
    "Import": "import at the top of the file",
    "ImportFrom": "import at the top of the file",
}


def _unsupported(statement: ast.stmt) -> KernelError:
    kind = type(statement).__name__
    return KernelError(
        f"`{_KEYWORD.get(kind, kind.lower())}` is not supported in kernels",
        fix=_INSTEAD.get(kind, "write it another way"),
    )


_KEYWORD = {"FunctionDef": "def", "ClassDef": "class", "ImportFrom": "import", "Delete": "del"}


def execute_all(scope: Scope, body: list[ast.stmt]) -> None:
    """Run statements among which no `return` may stand."""
    for statement in body:
        execute(scope, statement)


def _expression(scope: Scope, node: ast.Expr) -> None:
    if not isinstance(node.value, ast.Constant):
        evaluate(scope, node.value)


def _assign(scope: Scope, node: ast.Assign) -> None:
    value = decay(evaluate(scope, node.value))
    for target in node.targets:
        _bind(scope, target, value)


def _bind(scope: Scope, target: ast.expr, value: Any) -> None:
    if isinstance(target, ast.Name):
        if isinstance(value, Value) and not value.name:
            value.name = target.id
        scope.names[target.id] = value
        scope.removed.pop(target.id, None)
    elif isinstance(target, (ast.Tuple, ast.List)):
        _bind_all(scope, target.elts, value)
    else:
        with scope.at(target):
            raise _not_assignable(target)


def _not_assignable(target: ast.expr) -> KernelError:
    if isinstance(target, ast.Starred):
        return KernelError("`*` cannot gather values", fix="give one name to each value")
    what = "elements of tiles" if isinstance(target, ast.Subscript) else "attributes"
    return KernelError(f"{what} cannot be assigned", fix="make a new tile, as with `tl.where`, or store to a pointer")


def _bind_all(scope: Scope, targets: list[ast.expr], value: Any) -> None:
    if not isinstance(value, tuple) or len(value) != len(targets):
        count = len(value) if isinstance(value, tuple) else 1
        raise KernelError(
            f"{len(targets)} names for {count} value{'s' * (count != 1)}", fix="give one name to each value"
        )
    for target, item in zip(targets, value, strict=True):
        _bind(scope, target, item)


def _annotated(scope: Scope, node: ast.AnnAssign) -> None:
    if node.value is None:
        raise KernelError("a declaration without a value has no meaning in a kernel", fix="assign a value")
    value, annotation = evaluate(scope, node.value), evaluate(scope, node.annotation)
    is_constexpr = annotation is constexpr or getattr(annotation, "__name__", "") == "constexpr"
    is_constexpr = is_constexpr or type(annotation).__name__ == "constexpr"
    if is_constexpr and isinstance(value, Value):
        raise KernelError("a constexpr must be known at build time", fix="drop the annotation")
    if isinstance(annotation, Dtype):
        value = cast_to(as_value(value), annotation)
    _bind(scope, node.target, value if is_constexpr else decay(value))


def _augmented(scope: Scope, node: ast.AugAssign) -> None:
    if not isinstance(node.target, ast.Name):
        return _bind(scope, node.target, None)
    old = scope.lookup(node.target.id)
    _bind(scope, node.target, decay(binary(scope, type(node.op), old, evaluate(scope, node.value))))


def _if(scope: Scope, node: ast.If) -> None:
    condition = truth(scope, node.test)
    if isinstance(condition, bool):
        return execute_all(scope, node.body if condition else node.orelse)
    before = dict(scope.names)
    blocks, after = [], []
    for body in (node.body, node.orelse):
        scope.names = dict(before)
        block = Block()
        with scope.builder.inside(block):
            execute_all(scope, body)
        blocks.append(block)
        after.append(scope.names)
    scope.names = before
    _merge(scope, node, condition, blocks, after)


def _merge(scope: Scope, node: ast.If, condition: Value, blocks: list[Block], after: list[dict[str, Any]]) -> None:
    results = []
    for name in sorted(after[0].keys() | after[1].keys()):
        sides = [names.get(name, MISSING) for names in after]
        if sides[0] is sides[1]:
            continue
        if MISSING in sides:
            scope.removed[name] = "only one branch of an `if` assigns it"
            continue
        tiles = [_side(scope, block, side, name) for block, side in zip(blocks, sides, strict=True)]
        tiles = meet(scope, blocks, tiles)
        if tiles[0].type != tiles[1].type:
            fix = f"cast one of them, as in `{name} = {name}.to(tl.float32)`"
            raise KernelError(f"`{name}` is {tiles[0].type} in one branch and {tiles[1].type} in the other", fix=fix)
        for block, tile in zip(blocks, tiles, strict=True):
            block.yields.append(tile)
        scope.names[name] = Value(tiles[0].type, name)
        results.append(scope.names[name])
    then, otherwise = blocks
    scope.builder.block.statements.append(If([condition], then, otherwise, results, {}, scope.builder.position))


def _side(scope: Scope, block: Block, value: Any, name: str) -> Value:
    with scope.builder.inside(block):
        return as_value(value, f"`{name}`")


def _carried_names(scope: Scope, body: list[ast.stmt], but: set[str]) -> list[str]:
    stored = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return sorted(n for n in stored - but if n in scope.names and _is_data(scope.names[n]))


def _is_data(value: Any) -> bool:
    return isinstance(value, Value) or is_number(value)


def _loop_body(scope: Scope, block: Block, carried: list[str], body: list[ast.stmt]) -> None:
    """Run a loop's body in `block`, whose last arguments stand for the carried names, and yield their new values."""
    before, was_in_loop = dict(scope.names), scope.in_loop
    for name, value in zip(carried, block.arguments[len(block.arguments) - len(carried) :], strict=True):
        scope.names[name] = value
    scope.in_loop = True
    with scope.builder.inside(block):
        execute_all(scope, body)
        block.yields += [_next_value(scope, name, before[name]) for name in carried]
    for name in scope.names.keys() - before.keys():
        scope.removed[name] = "it is first assigned inside a loop"
    scope.names, scope.in_loop = before, was_in_loop


def _next_value(scope: Scope, name: str, initial: Any) -> Value:
    new = next_value(name, as_value(scope.names[name], f"`{name}`"), as_type(initial))
    if new.type != as_type(initial):
        fix = f"start with that type, as in `{name} = {_start(new)}`"
        raise KernelError(f"`{name}` is {as_type(initial)} before the loop and {new.type} after a step", fix=fix)
    return new


def as_type(value: Any) -> Tile:
    """The type of a loop-carried name before the loop."""
    assert isinstance(value, Value)
    return value.type


def _start(new: Value) -> str:
    if not isinstance(new.type.dtype, Dtype):
        return "..."
    dtype = spell(new.type.dtype)
    return f"tl.full((), 0, {dtype})" if new.type.is_scalar else f"tl.zeros({new.type.shape}, {dtype})"


def _for(scope: Scope, node: ast.For) -> None:
    if node.orelse:
        raise KernelError("`else` on a loop is not supported", fix="put it after the loop")
    if _returns(node):
        raise KernelError("`return` inside a loop is not supported", fix="use a mask or a `while` condition")
    iterator = _iterator(scope, node.iter)
    if isinstance(iterator, static_range) or not isinstance(iterator, (range, tile_range)):
        return _unrolled(scope, node, iterator)
    if not isinstance(node.target, ast.Name):
        raise KernelError("a loop over a range has one name", fix="use `for i in range(n)`")
    lower, upper, step = _bounds(scope, iterator)
    carried = _carried_names(scope, node.body, {node.target.id})
    initial = [as_value(scope.names[name]) for name in carried]
    target = node.target.id

    def build() -> Block:
        induction = Value(lower.type, target)
        block = Block([induction, *(Value(v.type, n) for v, n in zip(initial, carried, strict=True))])
        scope.names[target] = induction
        _loop_body(scope, block, carried, node.body)
        return block

    block = build_loop(scope, carried, initial, build)
    results = [Value(v.type, n) for v, n in zip(initial, carried, strict=True)]
    options = {k: v for k, v in getattr(iterator, "options", {}).items() if v is not None}
    operands = [lower, upper, step, *initial]
    scope.builder.block.statements.append(For(operands, block, results, options, scope.builder.position))
    scope.names.update(zip(carried, results, strict=True))
    del scope.names[node.target.id]
    scope.removed[node.target.id] = "it is a loop's index"


class _Range:
    """`range(...)` with tiles among its bounds."""


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


def _bounds(scope: Scope, iterator: Any) -> tuple[Value, Value, Value]:
    first, second, step = iterator.bounds
    lower, upper = (0, first) if second is None else (first, second)
    step = 1 if step is None else step
    if is_number(step) and step <= 0:
        raise KernelError(f"a loop's step must be positive, got {step}", fix="count up and subtract in the body")
    tiles = [x for x in (lower, upper, step) if isinstance(x, Value)]
    for tile in tiles:
        if not tile.type.is_scalar or not isinstance(tile.type.dtype, Dtype) or not tile.type.dtype.is_int:
            raise KernelError(
                f"a loop's bounds are scalar integers, got {tile.type}", fix="convert them, or use a scalar"
            )
    dtype = reduce(promote_integers, map(_bound_dtype, (lower, upper, step)))
    typed = [constant(x, dtype) if is_number(x) else cast_to(x, dtype) for x in (lower, upper, step)]  # type: ignore[arg-type]
    return typed[0], typed[1], typed[2]


def _bound_dtype(bound: Any) -> Dtype:
    dtype = literal_dtype(bound) if is_number(bound) else as_value(bound, "a loop's bound").type.dtype
    if not isinstance(dtype, Dtype) or not dtype.is_int:
        raise KernelError(f"a loop's bounds are integers, got {describe(bound)}", fix="convert it first")
    return dtype


def _unrolled(scope: Scope, node: ast.For, iterator: Any) -> None:
    items = _static_items(iterator)
    for item in items:
        _bind(scope, node.target, item)
        execute_all(scope, node.body)


def _static_items(iterator: Any) -> Any:
    if isinstance(iterator, static_range):
        first, second, step = iterator.bounds
        bounds = [*((0, first) if second is None else (first, second)), 1 if step is None else step]
        if any(not isinstance(b, int) for b in bounds):
            raise KernelError("static_range(): bounds must be known at build time", fix="use `tl.range`")
        return range(*bounds)
    if isinstance(iterator, (tuple, list)):
        return iterator
    raise KernelError(f"cannot loop over {describe(iterator)}", fix="use `range`, `tl.range` or `tl.static_range`")


def _while(scope: Scope, node: ast.While) -> None:
    if node.orelse or _returns(node):
        raise KernelError("`return` in, or `else` on, a loop is not supported", fix="use the loop's condition")
    carried = _carried_names(scope, node.body, set())
    initial = [as_value(scope.names[name]) for name in carried]

    def build() -> tuple[Block, Block]:
        condition, body = (Block([Value(v.type, n) for v, n in zip(initial, carried, strict=True)]) for _ in range(2))
        outer = dict(scope.names)
        scope.names.update(zip(carried, condition.arguments, strict=True))
        with scope.builder.inside(condition):
            goes_on = truth(scope, node.test)
            condition.yields = [as_value(goes_on), *condition.arguments]
        scope.names = outer
        _loop_body(scope, body, carried, node.body)
        return condition, body

    condition, body = build_loop(scope, carried, initial, build)
    results = [Value(v.type, n) for v, n in zip(initial, carried, strict=True)]
    scope.builder.block.statements.append(While(initial, condition, body, results, {}, scope.builder.position))
    scope.names.update(zip(carried, results, strict=True))


def _return_inside(scope: Scope, node: ast.Return) -> None:
    raise KernelError("`return` is supported only at the top level of a function", fix="use a mask, or restructure")


def _pass(scope: Scope, node: ast.Pass) -> None:
    return None


_HANDLERS: dict[type, Callable[[Scope, Any], None]] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.If: _if,
    ast.For: _for,
    ast.While: _while,
    ast.Return: _return_inside,
    ast.Pass: _pass,
}
__all__ = ["MISSING", "ew", "execute", "execute_all", "execute_function"]
