"""The frontend's expressions: Python source to tiles, or to compile-time objects."""

from __future__ import annotations

import ast
import math
import operator
import types
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from gristmill.compiler.attributes import BoundMethod, BoundRow, attribute_of
from gristmill.compiler.functions import BUILTINS, holds_tiles, is_builtin
from gristmill.compiler.ir import Value
from gristmill.compiler.merge import Join
from gristmill.compiler.op import ROWS, Composite, OpRow
from gristmill.compiler.scope import Scope
from gristmill.dtypes import Dtype
from gristmill.errors import KernelError
from gristmill.language import bits, index, shape
from gristmill.language import elementwise as ew
from gristmill.language.structure import Structure
from gristmill.language.types import constant, describe, is_number

Evaluate = Callable[[Scope, Any], Any]


def evaluate(scope: Scope, node: ast.expr) -> Any:
    """Return the tile or compile-time object that an expression stands for."""
    return unwrap(evaluate_declared(scope, node))


def evaluate_declared(scope: Scope, node: ast.expr) -> Any:
    """As `evaluate`, but `tl.constexpr(3)` stays what it is, so that a name may keep it."""
    handler = _HANDLERS.get(type(node))
    with scope.at(node):
        if handler is None:
            what, fix = _INSTEAD.get(type(node).__name__, (type(node).__name__, "write it another way"))
            raise KernelError(f"{what} is not supported in kernels", fix=fix)
        return handler(scope, node)


_INSTEAD = {
    "Lambda": ("`lambda`", "write a helper function beside the kernel"),
    "ListComp": ("a comprehension", "write a loop over `tl.static_range`"),
    "GeneratorExp": ("a comprehension", "write a loop over `tl.static_range`"),
    "SetComp": ("a comprehension", "write a loop over `tl.static_range`"),
    "DictComp": ("a comprehension", "write a loop over `tl.static_range`"),
    "Dict": ("a dictionary", "use names or a tuple"),
    "Set": ("a set", "use a tuple"),
    "Yield": ("`yield`", "store the result to a pointer"),
    "YieldFrom": ("`yield`", "store the result to a pointer"),
    "Await": ("`await`", "leave it out"),
    "Starred": ("`*` outside a call", "write the items one by one"),
}


def truth(scope: Scope, node: ast.expr) -> Any:
    """Evaluate a condition: a Python bool where it is known at build time, else a scalar bool tile."""
    condition = evaluate(scope, node)
    if not isinstance(condition, Value):
        return bool(condition)
    with scope.at(node):
        if not condition.type.is_scalar:
            fix = "use `tl.where` to choose by element"
            raise KernelError(f"a condition must be one value, got the block {condition.type}", fix=fix)
        return as_bool(condition)


def as_bool(x: Value) -> Value:
    """x as bool: itself, or `x != 0`."""
    return x if x.type.dtype.name == "bool" else ew.ne(x, 0)


def _constant(scope: Scope, node: ast.Constant) -> Any:
    if isinstance(node.value, (bool, int, float, str)) or node.value is None or node.value is Ellipsis:
        return node.value
    raise KernelError(f"{type(node.value).__name__} constants are not supported", fix="use a number or a string")


def _name(scope: Scope, node: ast.Name) -> Any:
    return unwrap(scope.lookup(node.id))


def unwrap(found: Any) -> Any:
    """What a `tl.constexpr` or a number of numpy holds; anything else as it is."""
    if isinstance(found, np.generic):
        return found.item()
    return found.value if type(found).__name__ == "constexpr" and hasattr(found, "value") else found


def is_constexpr(annotation: Any) -> bool:
    """Whether an annotation says that a value is known at build time."""
    is_text = isinstance(annotation, str) and annotation.rpartition(".")[2] == "constexpr"
    return is_text or getattr(annotation, "__name__", type(annotation).__name__) == "constexpr"


def _quotient(a: Any, b: Any) -> Any:
    """Fold `//` as it is computed at run time: integers are truncated towards zero."""
    quotient = a // b
    return quotient + 1 if isinstance(quotient, int) and quotient < 0 and quotient * b != a else quotient


def _remainder(a: Any, b: Any) -> Any:
    """Fold `%` as it is computed at run time: with the sign of the dividend."""
    return math.fmod(a, b) if isinstance(a, float) or isinstance(b, float) else a - b * _quotient(a, b)


BINARY: dict[type, tuple[OpRow, Callable[[Any, Any], Any]]] = {
    ast.Add: (ew.add, operator.add),
    ast.Sub: (ew.sub, operator.sub),
    ast.Mult: (ew.mul, operator.mul),
    ast.Div: (ew.truediv, operator.truediv),
    ast.FloorDiv: (ew.floordiv, _quotient),
    ast.Mod: (ew.mod, _remainder),
    ast.BitAnd: (bits.and_, operator.and_),
    ast.BitOr: (bits.or_, operator.or_),
    ast.BitXor: (bits.xor, operator.xor),
    ast.LShift: (bits.shl, operator.lshift),
    ast.RShift: (bits.shr, operator.rshift),
}
COMPARE: dict[type, tuple[OpRow, Callable[[Any, Any], Any]]] = {
    ast.Lt: (ew.lt, operator.lt),
    ast.LtE: (ew.le, operator.le),
    ast.Gt: (ew.gt, operator.gt),
    ast.GtE: (ew.ge, operator.ge),
    ast.Eq: (ew.eq, operator.eq),
    ast.NotEq: (ew.ne, operator.ne),
}


_SIGNS: dict[type, str] = {ast.Pow: "**", ast.MatMult: "@"}


def _compile_time(scope: Scope, function: Callable[..., Any], *operands: Any) -> Any:
    try:
        return function(*operands)
    except KernelError:
        raise
    except Exception as error:
        raise KernelError(f"cannot compute at build time: {error}", fix="check the constants") from None


def _binary(scope: Scope, node: ast.BinOp) -> Any:
    return binary(scope, type(node.op), evaluate(scope, node.left), evaluate(scope, node.right))


def binary(scope: Scope, kind: type, left: Any, right: Any) -> Any:
    """Apply a binary operator to tiles or compile-time objects."""
    for operand in (left, right):
        if isinstance(operand, Structure):
            fix = "use `tl.advance` to move a block pointer, or compute with what you load"
            raise KernelError(f"operators take tiles, not a {operand.word}", fix=fix)
    if not isinstance(left, Value) and not isinstance(right, Value):
        python = operator.pow if kind is ast.Pow else BINARY[kind][1] if kind in BINARY else None
        if python is None:
            raise KernelError(f"`{_SIGNS[kind]}` is not supported", fix="write it with other operators")
        return _compile_time(scope, python, left, right)
    if kind not in BINARY:
        fix = "multiply instead, or use `tl.exp2(tl.log2(x) * y)`" if kind is ast.Pow else "multiply and use `tl.sum`"
        raise KernelError(f"`{_SIGNS[kind]}` is not supported on tiles", fix=fix)
    return BINARY[kind][0](left, right)


def _unary(scope: Scope, node: ast.UnaryOp) -> Any:
    operand = evaluate(scope, node.operand)
    if not isinstance(operand, Value):
        return _compile_time(scope, _UNARY_PYTHON[type(node.op)], operand)
    if isinstance(node.op, ast.Not):
        return bits.invert(as_bool(operand))
    if isinstance(node.op, ast.USub):
        return ew.neg(operand)
    return bits.invert(operand) if isinstance(node.op, ast.Invert) else operand


_UNARY_PYTHON: dict[type, Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


def _compare(scope: Scope, node: ast.Compare) -> Any:
    left, result = evaluate(scope, node.left), None
    for kind, comparator in zip(node.ops, node.comparators, strict=True):
        right = evaluate(scope, comparator)
        part = _compare_pair(scope, kind, left, right)
        result = part if result is None else _both(result, part)
        left = right
    return result


def _compare_pair(scope: Scope, kind: ast.cmpop, left: Any, right: Any) -> Any:
    if isinstance(kind, (ast.Is, ast.IsNot)):
        return (left is right) == isinstance(kind, ast.Is)
    if isinstance(kind, (ast.In, ast.NotIn)):
        if isinstance(right, Value) or isinstance(left, Value):
            raise KernelError("`in` has no meaning for tiles", fix="compare, as in `tl.max((x == y).to(tl.int32))`")
        return _compile_time(scope, lambda a, b: (a in b) == isinstance(kind, ast.In), left, right)
    row, python = COMPARE[type(kind)]
    if isinstance(left, Value) or isinstance(right, Value):
        if not all(isinstance(x, Value) or is_number(x) for x in (left, right)):
            return isinstance(kind, ast.NotEq)
        return row(left, right)
    if isinstance(kind, (ast.Eq, ast.NotEq)) and isinstance(left, tuple) and isinstance(right, tuple):
        return _compare_tuples(scope, kind, left, right)
    return _compile_time(scope, python, left, right)


def _compare_tuples(scope: Scope, kind: ast.cmpop, left: tuple[Any, ...], right: tuple[Any, ...]) -> Any:
    parts = [len(left) == len(right)]
    parts += [_compare_pair(scope, ast.Eq(), a, b) for a, b in zip(left, right, strict=False)]
    is_equal = False if any(part is False for part in parts) else reduce(_both, parts)
    if isinstance(kind, ast.Eq):
        return is_equal
    return bits.invert(is_equal) if isinstance(is_equal, Value) else not is_equal


def _both(a: Any, b: Any) -> Any:
    return bits.and_(a, b) if isinstance(a, Value) or isinstance(b, Value) else a and b


def _bool_op(scope: Scope, node: ast.BoolOp) -> Any:
    is_and = isinstance(node.op, ast.And)
    result = evaluate(scope, node.values[0])
    for value in node.values[1:]:
        if not isinstance(result, Value):
            if bool(result) != is_and:
                return result
            result = evaluate(scope, value)
            continue
        right = evaluate(scope, value)
        right = as_bool(right) if isinstance(right, Value) else bool(right)
        result = (bits.and_ if is_and else bits.or_)(as_bool(result), right)
    return result


def _if_expression(scope: Scope, node: ast.IfExp) -> Any:
    condition = truth(scope, node.test)
    if isinstance(condition, bool):
        return evaluate(scope, node.body if condition else node.orelse)
    join, sides = Join(scope, condition), []
    for block, branch in zip(join.blocks, (node.body, node.orelse), strict=True):
        with scope.builder.inside(block):
            sides.append(evaluate(scope, branch))
    merged = join.merge((sides[0], sides[1]), _different_branches)
    join.finish()
    return merged


def _different_branches(first: str, second: str) -> KernelError:
    fix = "cast one of them, as in `x.to(tl.float32)`"
    return KernelError(f"the branches differ in type: {first} and {second}", fix=fix)


def _tuple(scope: Scope, node: ast.Tuple | ast.List) -> Any:
    items: list[Any] = []
    for e in node.elts:
        items += _spread(scope, e) if isinstance(e, ast.Starred) else [evaluate(scope, e)]
    return tuple(items)


def _subscript(scope: Scope, node: ast.Subscript) -> Any:
    base = evaluate(scope, node.value)
    if not isinstance(base, Value):
        return _item(scope, base, evaluate(scope, node.slice))
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if sum(map(_is_ellipsis, items)) > 1:
        raise KernelError("`...` may stand once", fix="write `:` for each of the other axes")
    kept = sum(isinstance(item, ast.Slice) for item in items)
    if kept > len(base.type.shape):
        raise KernelError(f"{kept} axes are kept of {base.type}", fix="use one `:` for each axis")
    axis = 0
    for item in items:
        if isinstance(item, ast.Constant) and item.value is None:
            base = shape.expand_dims(base, axis)
        elif _is_ellipsis(item):
            axis += len(base.type.shape) - axis - sum(isinstance(i, ast.Slice) for i in items[items.index(item) :]) - 1
        elif not (isinstance(item, ast.Slice) and item.lower is item.upper is item.step is None):
            raise KernelError("a tile is indexed only by `:` and `None`", fix="use `x[:, None]` to add an axis")
        axis += 1
    return base


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _item(scope: Scope, base: Any, key: Any) -> Any:
    parts = (key.start, key.stop, key.step) if isinstance(key, slice) else (key,)
    if any(isinstance(part, Value) for part in parts):
        fix = "use a literal, `tl.static_range` or `i: tl.constexpr = ...`"
        raise KernelError("a tuple is indexed by what is known at build time", fix=fix)
    return _compile_time(scope, operator.getitem, base, key)


def _slice(scope: Scope, node: ast.Slice) -> slice:
    parts = (evaluate(scope, p) if p is not None else None for p in (node.lower, node.upper, node.step))
    return slice(*parts)


def _attribute(scope: Scope, node: ast.Attribute) -> Any:
    return attribute_of(evaluate(scope, node.value), node.attr, ast.unparse(node.value))


def _call(scope: Scope, node: ast.Call) -> Any:
    callee = evaluate(scope, node.func)
    arguments: list[Any] = []
    for a in node.args:
        if isinstance(a, ast.Starred):
            arguments.extend(_spread(scope, a))
        else:
            arguments.append(evaluate(scope, a))
    if any(k.arg is None for k in node.keywords):
        raise KernelError("`**` arguments are not supported in kernels", fix="name them")
    named = {str(k.arg): evaluate(scope, k.value) for k in node.keywords}
    return call(scope, callee, arguments, named)


def _spread(scope: Scope, node: ast.Starred) -> Any:
    items = evaluate(scope, node.value)
    if isinstance(items, (tuple, list)):
        return items
    with scope.at(node):
        raise KernelError(f"`*` needs a tuple, got {describe(items)}", fix="pass the arguments one by one")


def call(scope: Scope, callee: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
    """Call an op, a builtin, a compile-time function or a helper, which is inlined."""
    if isinstance(callee, BoundRow):
        callee, arguments = callee.row, [callee.first, *arguments]
    if isinstance(callee, OpRow):
        return callee(*arguments, **named)
    if isinstance(callee, Composite):
        return _composite(scope, callee, arguments, named)
    if isinstance(callee, Dtype):
        return ROWS["cast"](*arguments, callee, **named)
    if isinstance(callee, BoundMethod):
        return callee(*arguments, **named)
    has_tiles = holds_tiles((*arguments, *named.values()))
    if is_builtin(callee):
        meaning = BUILTINS[callee]
        return _compile_time(scope, lambda *a: meaning(*a, **named), *arguments)
    if isinstance(callee, type) and issubclass(callee, tuple) and hasattr(callee, "_fields"):
        return _compile_time(scope, lambda *a: callee(*a, **named), *arguments)
    function = getattr(callee, "function", callee)
    if isinstance(function, types.FunctionType) and getattr(function, "__module__", "") == "gristmill.symbolic":
        return _symbolic(scope, function, arguments, named, has_tiles)
    if isinstance(function, types.FunctionType):
        return scope.inline(scope, callee, arguments, named)
    if has_tiles or not callable(callee):
        fix = "use an operation of `gristmill.language`, or write a helper function in it"
        raise KernelError(f"`{getattr(callee, '__name__', callee)}` cannot be called on tiles", fix=fix)
    return _compile_time(scope, lambda *a: callee(*a, **named), *arguments)


def _composite(scope: Scope, callee: Composite, arguments: list[Any], named: dict[str, Any]) -> Any:
    """Inline an op's body; what is wrong in it is wrong at the call."""
    try:
        return scope.inline(scope, callee.function, arguments, named)
    except KernelError as error:
        error.position, error.calls = scope.builder.position, []
        raise


def _symbolic(scope: Scope, function: Any, arguments: list[Any], named: dict[str, Any], has_tiles: bool) -> Any:
    if has_tiles and function.__name__ == "cdiv":
        return scope.inline(scope, index.cdiv.function, arguments, named)
    if has_tiles and function.__name__ in ROWS:
        return ROWS[function.__name__](*arguments, **named)
    return _compile_time(scope, lambda *a: function(*a, **named), *arguments)


def _joined(scope: Scope, node: ast.JoinedStr) -> str:
    parts = []
    for value in node.values:
        parts.append(_formatted(scope, value) if isinstance(value, ast.FormattedValue) else evaluate(scope, value))
    return "".join(parts)


def _formatted(scope: Scope, field: ast.FormattedValue) -> str:
    part = evaluate(scope, field.value)
    spec = evaluate(scope, field.format_spec) if field.format_spec else ""
    if isinstance(part, Value):
        return describe(part)
    if field.conversion != -1:
        part = _CONVERSIONS[field.conversion](part)
    return str(_compile_time(scope, format, part, spec))


_CONVERSIONS: dict[int, Callable[[Any], str]] = {ord("r"): repr, ord("s"): str, ord("a"): ascii}


def _named_expression(scope: Scope, node: ast.NamedExpr) -> Any:
    value = evaluate_declared(scope, node.value)
    scope.names[node.target.id] = decay(value)
    scope.removed.pop(node.target.id, None)
    return unwrap(value)


def decay(value: Any) -> Any:
    """Turn a number into a tile, as assigning it to a name does; other compile-time objects stay."""
    if is_number(value):
        return constant(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(decay(v) for v in value)
    return value


_HANDLERS: dict[type, Evaluate] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _bool_op,
    ast.IfExp: _if_expression,
    ast.Tuple: _tuple,
    ast.List: _tuple,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.JoinedStr: _joined,
    ast.NamedExpr: _named_expression,
}
