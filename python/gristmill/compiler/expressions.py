"""The frontend's expressions: Python source to tiles, or to compile-time objects."""

from __future__ import annotations

import ast
import difflib
import math
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any

from gristmill.compiler.ir import Block, If, Pointer, Value
from gristmill.compiler.op import COMPOSITES, ROWS, Composite, OpRow, emit
from gristmill.compiler.scope import Scope
from gristmill.dtypes import Dtype
from gristmill.errors import KernelError
from gristmill.language import bits, index, shape
from gristmill.language import elementwise as ew
from gristmill.language.types import as_value, constant, describe, is_number

Evaluate = Callable[[Scope, Any], Any]


def evaluate(scope: Scope, node: ast.expr) -> Any:
    """Return the tile or compile-time object that an expression stands for."""
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
    "NamedExpr": ("`:=`", "assign in a statement of its own"),
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
    return _unwrap(scope.lookup(node.id))


def _unwrap(found: Any) -> Any:
    return found.value if type(found).__name__ == "constexpr" and hasattr(found, "value") else found


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
        return _UNARY_PYTHON[type(node.op)](operand)
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
    return _compile_time(scope, python, left, right)


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
    blocks = (Block(), Block())
    values = []
    for block, branch in zip(blocks, (node.body, node.orelse), strict=True):
        with scope.builder.inside(block):
            values.append(as_value(evaluate(scope, branch), "a branch"))
    if values[0].type != values[1].type:
        fix = "cast one of them, as in `x.to(tl.float32)`"
        raise KernelError(f"the branches differ in type: {values[0].type} and {values[1].type}", fix=fix)
    for block, value in zip(blocks, values, strict=True):
        block.yields.append(value)
    result = Value(values[0].type)
    scope.builder.block.statements.append(If([condition], *blocks, [result], {}, scope.builder.position))
    return result


def _tuple(scope: Scope, node: ast.Tuple | ast.List) -> Any:
    return tuple(evaluate(scope, e) for e in node.elts)


def _subscript(scope: Scope, node: ast.Subscript) -> Any:
    base = evaluate(scope, node.value)
    if not isinstance(base, Value):
        return _compile_time(scope, operator.getitem, base, evaluate(scope, node.slice))
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for axis, item in enumerate(items):
        if isinstance(item, ast.Constant) and item.value is None:
            base = shape.expand_dims(base, axis)
        elif not (isinstance(item, ast.Slice) and item.lower is item.upper is item.step is None):
            raise KernelError("a tile is indexed only by `:` and `None`", fix="use `x[:, None]` to add an axis")
    return base


def _slice(scope: Scope, node: ast.Slice) -> slice:
    parts = (evaluate(scope, p) if p is not None else None for p in (node.lower, node.upper, node.step))
    return slice(*parts)


ALIASES = {"to": "cast", "view": "reshape"}
PROPERTIES: dict[str, Callable[[Value], Any]] = {
    "dtype": lambda x: ElementOf(x.type.dtype) if isinstance(x.type.dtype, Pointer) else x.type.dtype,
    "shape": lambda x: x.type.shape,
    "type": lambda x: ElementOf(x.type.dtype) if isinstance(x.type.dtype, Pointer) else x.type.dtype,
    "T": lambda x: shape.trans(x),
}


class ElementOf:
    """What `pointer.dtype` is: only its `element_ty` is of use."""

    def __init__(self, pointer: Pointer):
        self.element_ty = pointer.element
        self.pointer = pointer


def _attribute(scope: Scope, node: ast.Attribute) -> Any:
    base = evaluate(scope, node.value)
    if isinstance(base, Value) or (is_number(base) and node.attr == "to"):
        return _tile_attribute(base, node.attr)
    try:
        return _unwrap(getattr(base, node.attr))
    except AttributeError:
        spelled = ast.unparse(node.value)
        where = f"see `{getattr(base, '__name__', spelled)}` for what it has"
        fix = _closest(node.attr, dir(base), f"{spelled}.") or where
        raise KernelError(f"`{spelled}` has no `{node.attr}`", fix=fix) from None


def _closest(name: str, names: Iterable[str], before: str) -> str | None:
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean `{before}{close[0]}`?" if close else None


def _tile_attribute(base: Any, name: str) -> Any:
    if name in PROPERTIES:
        return PROPERTIES[name](base)
    name = ALIASES.get(name, name)
    row = ROWS.get(name) or COMPOSITES.get(name)
    if row is None:
        fix = _closest(name, [*ROWS, *COMPOSITES, *PROPERTIES, *ALIASES], ".")
        fix = fix or "see `gristmill.language` for what there is"
        raise KernelError(f"tiles have no `{name}`", fix=fix)
    return BoundRow(row, base)


class BoundRow:
    """An op called as a method of a tile or number: `x.to(dtype)`."""

    def __init__(self, row: OpRow | Composite, first: Any):
        self.row = row
        self.first = first


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
    has_tiles = any(isinstance(x, Value) for x in (*arguments, *named.values()))
    if callee in BUILTINS:
        return _compile_time(scope, lambda *a: BUILTINS[callee](*a, **named), *arguments)
    function = getattr(callee, "function", callee)
    if isinstance(function, types.FunctionType) and getattr(function, "__module__", "") == "gristmill.symbolic":
        return _symbolic(scope, function, arguments, named, has_tiles)
    if isinstance(function, types.FunctionType):
        return scope.inline(scope, function, arguments, named)
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


def _fold(row: OpRow, python: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*operands: Any) -> Any:
        if not any(isinstance(x, Value) for x in operands):
            return python(*operands)
        result = operands[0]
        for operand in operands[1:]:
            result = row(result, operand)
        return result

    return apply


def _length(x: Any) -> int:
    if isinstance(x, Value) and x.type.is_scalar:
        raise KernelError(f"len(): needs a block, got {x.type}", fix="use the number of elements itself")
    return x.type.shape[0] if isinstance(x, Value) else len(x)


def _convert(dtype_name: str, python: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def apply(x: Any) -> Any:
        from gristmill.dtypes import parse_dtype

        return ew.cast(x, parse_dtype(dtype_name)) if isinstance(x, Value) else python(x)

    return apply


BUILTINS: dict[Any, Callable[..., Any]] = {
    min: _fold(ew.minimum, min),
    max: _fold(ew.maximum, max),
    abs: lambda x: ew.abs_(x) if isinstance(x, Value) else abs(x),
    len: _length,
    float: _convert("f32", float),
    int: _convert("i32", int),
}


def _joined(scope: Scope, node: ast.JoinedStr) -> str:
    parts = []
    for value in node.values:
        part = evaluate(scope, value.value if isinstance(value, ast.FormattedValue) else value)
        parts.append(describe(part) if isinstance(part, Value) else str(part))
    return "".join(parts)


def decay(value: Any) -> Any:
    """Turn a number into a tile, as assigning it to a name does; other compile-time objects stay."""
    if is_number(value):
        return constant(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(decay(v) for v in value)
    return value


def check_boolean(value: Any, dtype: Dtype) -> Value:
    """Return value as a tile of dtype."""
    return emit("cast", as_value(value).type.with_dtype(dtype), as_value(value), to=dtype)


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
}
