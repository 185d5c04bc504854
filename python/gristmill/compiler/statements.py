"""The frontend's statements: functions, branches, and what every other statement is."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gristmill.compiler import loops
from gristmill.compiler.assign import annotated, assign, augmented, bind
from gristmill.compiler.expressions import evaluate, truth
from gristmill.compiler.ir import Value
from gristmill.compiler.loops import returns
from gristmill.compiler.merge import Join, has_tiles, is_same_constant
from gristmill.compiler.op import ROWS
from gristmill.compiler.scope import DIFFERENT_CONSTANTS, Scope
from gristmill.errors import KernelError
from gristmill.language.iterate import range as tile_range

Step = ast.stmt | Callable[[Scope], None]
"""A statement, or the binding of a name before the next ones, as where a loop is unrolled."""


class _Missing:
    """The value of a name that a path does not assign."""


MISSING = _Missing()


def execute_function(scope: Scope, body: Sequence[Step]) -> Any:
    """Run a function's statements; returns what it returns, or None.

    A `return` below an `if` makes what follows the other branch; below an unrolled loop it ends what is unrolled.
    """
    for i, step in enumerate(body):
        if not isinstance(step, ast.stmt):
            step(scope)
            continue
        with scope.at(step):
            if isinstance(step, ast.Return):
                return evaluate(scope, step.value) if step.value else None
            if isinstance(step, ast.If) and returns(step):
                return _branch_to_return(scope, step, body[i + 1 :])
            if isinstance(step, ast.For) and returns(step):
                return execute_function(scope, [*_unrolled(scope, step), *body[i + 1 :]])
        execute(scope, step)
    return None


def _unrolled(scope: Scope, node: ast.For) -> list[Step]:
    items = loops.iterable(scope, node)
    if isinstance(items, tile_range):
        raise KernelError("`return` inside a loop is not supported", fix="use a mask or a `while` condition")
    steps: list[Step] = []
    for item in items:
        steps += [partial(bind, target=node.target, value=item), *node.body]
    return steps


def _branch_to_return(scope: Scope, node: ast.If, rest: Sequence[Step]) -> Any:
    condition = truth(scope, node.test)
    if isinstance(condition, bool):
        return execute_function(scope, [*(node.body if condition else node.orelse), *rest])
    join, values = Join(scope, condition), []
    before = scope.names
    for block, body in zip(join.blocks, (node.body, node.orelse), strict=True):
        scope.names = dict(before)
        with scope.builder.inside(block):
            ends = body and isinstance(body[-1], ast.Return)
            values.append(execute_function(scope, body if ends else [*body, *rest]))
    scope.names = before
    merged = join.merge((values[0], values[1]), _different_returns)
    join.finish()
    return merged


def _different_returns(first: str, second: str) -> KernelError:
    kinds = [side if side != "None" else "nothing" for side in (first, second)]
    fix = "return the same types on every path"
    return KernelError(f"the paths return different types: {kinds[0]} and {kinds[1]}", fix=fix)


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
    "TryStar": "kernels have no exceptions: mask instead",
    "With": "kernels have no contexts",
    "FunctionDef": "move the helper function to the module",
    "AsyncFunctionDef": "move the helper function to the module",
    "ClassDef": "move it out of the kernel",
    "Global": "pass the value as a parameter",
    "Nonlocal": "pass the value as a parameter",
    "Delete": "leave it out",
    "Raise": "kernels have no exceptions: mask instead",
    "Import": "import at the top of the file",
    "ImportFrom": "import at the top of the file",
    "Match": "use `if` and `elif`",
    "TypeAlias": "move it out of the kernel",
}


def _unsupported(statement: ast.stmt) -> KernelError:
    kind = type(statement).__name__
    return KernelError(
        f"`{_KEYWORD.get(kind, kind.lower())}` is not supported in kernels",
        fix=_INSTEAD.get(kind, "write it another way"),
    )


_KEYWORD = {
    "FunctionDef": "def",
    "AsyncFunctionDef": "async def",
    "ClassDef": "class",
    "ImportFrom": "import",
    "Delete": "del",
    "TryStar": "try",
    "TypeAlias": "type",
    "AsyncFor": "async for",
    "AsyncWith": "async with",
}


def execute_all(scope: Scope, body: list[ast.stmt]) -> None:
    """Run statements among which no `return` may stand."""
    for statement in body:
        execute(scope, statement)


def _expression(scope: Scope, node: ast.Expr) -> None:
    if not isinstance(node.value, ast.Constant):
        evaluate(scope, node.value)


def _if(scope: Scope, node: ast.If) -> None:
    condition = truth(scope, node.test)
    if isinstance(condition, bool):
        return execute_all(scope, node.body if condition else node.orelse)
    before, after = dict(scope.names), []
    join = Join(scope, condition)
    for block, body in zip(join.blocks, (node.body, node.orelse), strict=True):
        scope.names = dict(before)
        with scope.builder.inside(block):
            execute_all(scope, body)
        after.append(scope.names)
    scope.names = before
    _merge_names(scope, join, after)
    join.finish()


def _merge_names(scope: Scope, join: Join, after: list[dict[str, Any]]) -> None:
    for name in sorted(after[0].keys() | after[1].keys()):
        first, second = (names.get(name, MISSING) for names in after)
        reason = _cannot_merge(first, second)
        if reason:
            scope.names.pop(name, None)
            scope.removed[name] = reason
        elif is_same_constant(first, second):
            scope.names[name] = first
        else:
            scope.names[name] = join.merge((first, second), partial(_different_types, name), name)


def _cannot_merge(first: Any, second: Any) -> str:
    if first is MISSING or second is MISSING:
        return "only one branch of an `if` assigns it"
    is_constant = not (has_tiles(first) and has_tiles(second))
    if is_constant and not is_same_constant(first, second) and first != second:
        return DIFFERENT_CONSTANTS
    return ""


def _different_types(name: str, first: str, second: str) -> KernelError:
    fix = f"cast one of them, as in `{name} = {name}.to(tl.float32)`"
    if "(" in first or "(" in second:
        fix = "give both the same number of values, each of the same type"
    return KernelError(f"`{name}` is {first} in one branch and {second} in the other", fix=fix)


def _return_inside(scope: Scope, node: ast.Return) -> None:
    raise KernelError("`return` inside a loop is not supported", fix="use a mask, or restructure")


def _pass(scope: Scope, node: ast.Pass) -> None:
    return None


def _assert(scope: Scope, node: ast.Assert) -> None:
    condition = evaluate(scope, node.test)
    if isinstance(condition, Value) and "device_assert" in ROWS:
        return ROWS["device_assert"](condition, evaluate(scope, node.msg) if node.msg else "")
    if isinstance(condition, Value):
        raise KernelError("`assert` needs a condition that is known at build time", fix="store a flag, or mask instead")
    if not condition:
        message = f": {evaluate(scope, node.msg)}" if node.msg else ""
        raise KernelError(f"assertion failed{message}", fix="change the constants or the `where=`")


_HANDLERS: dict[type, Callable[[Scope, Any], None]] = {
    ast.Expr: _expression,
    ast.Assign: assign,
    ast.AnnAssign: annotated,
    ast.AugAssign: augmented,
    ast.If: _if,
    ast.For: lambda scope, node: loops.for_loop(scope, node, execute_all),
    ast.While: lambda scope, node: loops.while_loop(scope, node, execute_all),
    ast.Return: _return_inside,
    ast.Pass: _pass,
    ast.Assert: _assert,
}
