"""The frontend's assignments: a value gets a name, or its items get several."""

from __future__ import annotations

import ast
from typing import Any

from gristmill.compiler.expressions import binary, decay, evaluate, evaluate_declared, is_constexpr
from gristmill.compiler.ir import Value
from gristmill.compiler.scope import Scope
from gristmill.dtypes import Dtype
from gristmill.errors import KernelError
from gristmill.language.types import as_value, cast_to, is_number


def assign(scope: Scope, node: ast.Assign) -> None:
    """`x = value`; a number becomes a tile."""
    value = decay(evaluate_declared(scope, node.value))
    for target in node.targets:
        bind(scope, target, value)


def bind(scope: Scope, target: ast.expr, value: Any) -> None:
    """Give a value to the names of a target."""
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
        bind(scope, target, item)


def annotated(scope: Scope, node: ast.AnnAssign) -> None:
    """`x: annotation = value`; `tl.constexpr` keeps a number as it is, a dtype converts."""
    if node.value is None:
        raise KernelError("a declaration without a value has no meaning in a kernel", fix="assign a value")
    value, annotation = evaluate(scope, node.value), evaluate(scope, node.annotation)
    is_constant = is_constexpr(annotation)
    if is_constant and isinstance(value, Value):
        raise KernelError("a constexpr must be known at build time", fix="drop the annotation")
    if isinstance(annotation, Dtype) and (isinstance(value, Value) or is_number(value)):
        value = cast_to(as_value(value), annotation)
    bind(scope, node.target, value if is_constant else decay(value))


def augmented(scope: Scope, node: ast.AugAssign) -> None:
    """`x += value`."""
    if not isinstance(node.target, ast.Name):
        return bind(scope, node.target, None)
    old = scope.lookup(node.target.id)
    bind(scope, node.target, decay(binary(scope, type(node.op), old, evaluate(scope, node.value))))
