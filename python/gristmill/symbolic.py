"""Integer expressions of a call (grid, pick, extents), traced once into postfix code that the launcher runs."""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NoReturn

from gristmill.errors import DeclarationError
from gristmill.positions import Span, caller_position, caller_span, node_span, place, tree_of

Code = tuple[int, ...]


class Op(IntEnum):
    """Words of the postfix code; the first three are followed by one operand word.

    Values are 64-bit and wrap. Division and remainder round down, as Python's; by zero they give 0. SELECT takes
    condition, a and b in this order. NEXT_POW2 gives 2**62 at most.
    """

    CONST = 0
    PARAM = 1
    CONSTANT = 2
    ADD = 3
    SUB = 4
    MUL = 5
    FLOORDIV = 6
    MOD = 7
    MIN = 8
    MAX = 9
    CDIV = 10
    LT = 11
    LE = 12
    EQ = 13
    NE = 14
    AND = 15
    OR = 16
    NOT = 17
    SELECT = 18
    NEXT_POW2 = 19
    SM_COUNT = 20


class Expr:
    """An integer that is known at a call; `is_condition` if it can only be 0 or 1."""

    __slots__ = ("code", "is_condition")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, code: Code, is_condition: bool = False):
        self.code = tuple(int(word) for word in code)
        self.is_condition = is_condition

    def __repr__(self) -> str:
        return f"Expr({list(self.code)})"

    def __add__(self, other: object) -> Expr:
        return _apply(Op.ADD, self, other)

    def __radd__(self, other: object) -> Expr:
        return _apply(Op.ADD, other, self)

    def __sub__(self, other: object) -> Expr:
        return _apply(Op.SUB, self, other)

    def __rsub__(self, other: object) -> Expr:
        return _apply(Op.SUB, other, self)

    def __mul__(self, other: object) -> Expr:
        return _apply(Op.MUL, self, other)

    def __rmul__(self, other: object) -> Expr:
        return _apply(Op.MUL, other, self)

    def __floordiv__(self, other: object) -> Expr:
        return _apply(Op.FLOORDIV, self, other)

    def __rfloordiv__(self, other: object) -> Expr:
        return _apply(Op.FLOORDIV, other, self)

    def __mod__(self, other: object) -> Expr:
        return _apply(Op.MOD, self, other)

    def __rmod__(self, other: object) -> Expr:
        return _apply(Op.MOD, other, self)

    def __neg__(self) -> Expr:
        return _apply(Op.SUB, 0, self)

    def __pos__(self) -> Expr:
        return self

    def __lt__(self, other: object) -> Expr:
        return _compare(Op.LT, self, other)

    def __le__(self, other: object) -> Expr:
        return _compare(Op.LE, self, other)

    def __gt__(self, other: object) -> Expr:
        return _compare(Op.LT, other, self)

    def __ge__(self, other: object) -> Expr:
        return _compare(Op.LE, other, self)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return _compare(Op.EQ, self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return _compare(Op.NE, self, other)

    def __and__(self, other: object) -> Expr:
        return _combine(Op.AND, "&", self, other)

    def __rand__(self, other: object) -> Expr:
        return _combine(Op.AND, "&", other, self)

    def __or__(self, other: object) -> Expr:
        return _combine(Op.OR, "|", self, other)

    def __ror__(self, other: object) -> Expr:
        return _combine(Op.OR, "|", other, self)

    def __invert__(self) -> Expr:
        return Expr((*_condition(self, "~").code, Op.NOT), is_condition=True)

    def __truediv__(self, other: object) -> NoReturn:
        raise _asking_error(_explain_division)

    def __rtruediv__(self, other: object) -> NoReturn:
        raise _asking_error(_explain_division)

    def __bool__(self) -> NoReturn:
        raise _asking_error(_explain_truth)

    def __index__(self) -> NoReturn:
        raise _error("a plain integer is needed here, but the value is known only at a call", _OPERATORS_FIX)

    __int__ = __float__ = __index__

    def _refuse(self, *_: object) -> NoReturn:
        raise _error("an expression of a call has no such operator", _OPERATORS_FIX)

    __pow__ = __rpow__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __xor__ = __rxor__ = _refuse
    __abs__ = __divmod__ = __rdivmod__ = __matmul__ = __round__ = __ceil__ = __floor__ = __iter__ = _refuse


_OPERATORS_FIX = "use + - * // %, comparisons, & | ~, gm.cdiv, gm.minimum, gm.maximum, gm.where or gm.next_power_of_2"

sm_count = Expr((Op.SM_COUNT,))


def parameter(index: int, is_condition: bool = False) -> Expr:
    """Return the value of the parameter at `index`, counted without the constants."""
    return Expr((Op.PARAM, index), is_condition)


def constant(index: int, is_condition: bool = False) -> Expr:
    """Return the value of the constant at `index`."""
    return Expr((Op.CONSTANT, index), is_condition)


def lift(value: object) -> Expr:
    """Return `value`, an Expr or an integer, as an Expr.

    Raises DeclarationError for anything else, floats included, and for integers that 64 bits do not hold.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, float):
        raise _error(f"`{value!r}` is a float; expressions of a call are integers", "write an integer")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _error(f"`{value!r}` is not an integer", _OPERATORS_FIX) from None
    if not -(2**63) <= number < 2**63:
        raise _error(f"`{number}` does not fit in 64 bits", "write a number from -2**63 to 2**63 - 1")
    return Expr((Op.CONST, number), is_condition=isinstance(value, bool))


def compile_code(value: object) -> Code:
    """Return the code of an expression or integer.

    Raises DeclarationError, as `lift` does and for an expression too deep for the launcher.
    """
    code = lift(value).code
    if depth(code) > MAX_DEPTH:
        raise _error(f"the expression holds {depth(code)} values at once, {MAX_DEPTH} at most are possible", _DEPTH_FIX)
    return code


_DEPTH_FIX = "write it flatter, as in `a + b + c` for `a + (b + c)`"


def _apply(op: Op, *operands: object) -> Expr:
    words = [word for operand in operands for word in lift(operand).code]
    return Expr((*words, op))


def _compare(op: Op, left: object, right: object) -> Expr:
    return Expr(_apply(op, left, right).code, is_condition=True)


def _combine(op: Op, sign: str, left: object, right: object) -> Expr:
    return Expr((*_condition(left, sign).code, *_condition(right, sign).code, op), is_condition=True)


def _condition(value: object, where: str) -> Expr:
    expression = lift(value)
    if not expression.is_condition:
        raise _error(f"`{where}` takes conditions, found a number", "compare first, as in `n % 8 == 0`")
    return expression


def cdiv(a: Expr | int, b: Expr | int) -> Any:
    """Divide integers, rounding up."""
    if isinstance(a, Expr) or isinstance(b, Expr):
        return _apply(Op.CDIV, a, b)
    return -(-operator.index(a) // operator.index(b))


def minimum(a: Expr | int, b: Expr | int) -> Any:
    """Return the smaller of two integers."""
    if isinstance(a, Expr) or isinstance(b, Expr):
        return _apply(Op.MIN, a, b)
    return min(operator.index(a), operator.index(b))


def maximum(a: Expr | int, b: Expr | int) -> Any:
    """Return the larger of two integers."""
    if isinstance(a, Expr) or isinstance(b, Expr):
        return _apply(Op.MAX, a, b)
    return max(operator.index(a), operator.index(b))


def where(condition: Expr | bool, a: Expr | int, b: Expr | int) -> Any:
    """Return `a` where the condition holds, else `b`."""
    if not isinstance(condition, Expr):
        return a if condition else b
    first, second = lift(a), lift(b)
    words = (*_condition(condition, "gm.where").code, *first.code, *second.code, Op.SELECT)
    return Expr(words, first.is_condition and second.is_condition)


def next_power_of_2(n: Expr | int) -> Any:
    """Return the smallest power of two that is not below `n`; 1 for 0 and negative numbers."""
    if isinstance(n, Expr):
        return _apply(Op.NEXT_POW2, n)
    return 1 << max(0, operator.index(n) - 1).bit_length()


FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "cdiv": cdiv,
    "minimum": minimum,
    "maximum": maximum,
    "where": where,
    "next_power_of_2": next_power_of_2,
}

MAX_DEPTH = 32  # values that the launcher holds while it runs an expression
_LOADS = (Op.CONST, Op.PARAM, Op.CONSTANT)
_DIVISIONS = (Op.FLOORDIV, Op.MOD, Op.CDIV)
_OPERANDS = dict.fromkeys((*_LOADS, Op.SM_COUNT), 0) | {Op.NOT: 1, Op.NEXT_POW2: 1, Op.SELECT: 3}
_BINARY: Mapping[Op, Callable[[int, int], int]] = {
    Op.ADD: operator.add,
    Op.SUB: operator.sub,
    Op.MUL: operator.mul,
    Op.FLOORDIV: operator.floordiv,
    Op.MOD: operator.mod,
    Op.MIN: min,
    Op.MAX: max,
    Op.CDIV: cdiv,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.AND: lambda a, b: a != 0 and b != 0,
    Op.OR: lambda a, b: a != 0 or b != 0,
}


def evaluate(
    code: Sequence[int], parameters: Sequence[Any] = (), constants: Sequence[Any] = (), sm_count: int = 1
) -> int:
    """Run postfix code as the launcher does, in Python."""
    stack: list[int] = []
    loads = {Op.PARAM: parameters, Op.CONSTANT: constants}
    for op, word in _instructions(code):
        if op is Op.CONST:
            stack.append(word)
        elif op in loads:
            stack.append(operator.index(loads[op][word]))
        elif op is Op.SM_COUNT:
            stack.append(sm_count)
        else:
            _step(op, stack)
        stack[-1] = (stack[-1] + 2**63) % 2**64 - 2**63
    (result,) = stack
    return result


def _instructions(code: Sequence[int]) -> Iterator[tuple[Op, int]]:
    """Yield each opcode with its operand word; 0 for those that have none."""
    words = iter(code)
    for word in words:
        op = Op(word)
        yield op, next(words) if op in _LOADS else 0


def depth(code: Sequence[int]) -> int:
    """Return how many values are held at once while `code` runs."""
    held = most = 0
    for op, _ in _instructions(code):
        held += 1 - _OPERANDS.get(op, 2)
        most = max(most, held)
    return most


def _step(op: Op, stack: list[int]) -> None:
    if op is Op.NOT:
        stack.append(int(stack.pop() == 0))
    elif op is Op.NEXT_POW2:
        stack.append(next_power_of_2(min(stack.pop(), 2**62)))
    elif op is Op.SELECT:
        b, a, condition = stack.pop(), stack.pop(), stack.pop()
        stack.append(a if condition else b)
    else:
        b, a = stack.pop(), stack.pop()
        stack.append(0 if op in _DIVISIONS and b == 0 else int(_BINARY[op](a, b)))


# ---- text ----------------------------------------------------------------------------------------------------------

_OPERATORS: Mapping[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def parse(text: str, names: Mapping[str, Expr]) -> Expr:
    """Read an expression from text, as in `gm.ptr[D, "n_rows * n_cols"]`.

    Raises DeclarationError, without a position, for unknown names and for what is not an integer expression.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise DeclarationError(f"`{text}` is not an expression: {error.msg}", fix=_OPERATORS_FIX) from None
    return lift(_read(tree.body, names))


def _read(node: ast.expr, names: Mapping[str, Expr]) -> Expr:
    match node:
        case ast.Constant(value=bool() | int() as value):
            return lift(value)
        case ast.Name(id=name):
            return _named(name, names)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return lift(_OPERATORS[type(op)](_read(operand, names)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return lift(_OPERATORS[type(op)](_read(left, names), _read(right, names)))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return lift(_OPERATORS[type(op)](_read(left, names), _read(right, names)))
        case ast.Call(func=called, args=arguments, keywords=[]) if _function_name(called) in FUNCTIONS:
            return _call(_function_name(called), [_read(a, names) for a in arguments])
    message = f"`{ast.unparse(node)}` cannot be part of an expression"
    raise DeclarationError(message, fix=_suggest(node) or _OPERATORS_FIX)


def _named(name: str, names: Mapping[str, Expr]) -> Expr:
    if name in names:
        return names[name]
    fix = "use one of " + ", ".join(names) if names else 'add an index parameter, as in `n: gm.size["x"]`'
    raise DeclarationError(f"unknown name `{name}`", fix=fix)


def _function_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _call(name: str, arguments: list[Expr]) -> Expr:
    try:
        return lift(FUNCTIONS[name](*arguments))
    except TypeError:
        fix = f"write `gm.{name}({', '.join(inspect.signature(FUNCTIONS[name]).parameters)})`"
        raise DeclarationError(f"`{name}` cannot take {len(arguments)} arguments", fix=fix) from None


# ---- diagnostics ---------------------------------------------------------------------------------------------------


def _error(message: str, fix: str) -> DeclarationError:
    return DeclarationError(message, fix=fix, position=caller_position())


def _asking_error(explain: Callable[[ast.expr | None], tuple[str, str]]) -> DeclarationError:
    """Return an error at the author's innermost expression that asks a traced value for too much."""
    found = caller_span()
    tree = tree_of(found[0]) if found else None
    if found is None or tree is None:
        return DeclarationError(*explain(None))
    path, span = found
    node = _asking_node(tree, span)
    return DeclarationError(*explain(node), position=place(path, node_span(node) if node else span))


def _asking_node(tree: ast.Module, span: Span) -> ast.expr | None:
    """Return the innermost expression around `span` that has a suggestion; of an `if` statement, as an expression."""
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.expr) and _suggest(n)]
    for statement in ast.walk(tree):
        if isinstance(statement, (ast.If, ast.While)):
            choice = ast.IfExp(statement.test, ast.Name("a"), ast.Name("b"))
            nodes.append(ast.copy_location(choice, statement.test))
    around = [n for n in nodes if node_span(n).covers(span)]
    return min(around, key=lambda n: len(ast.unparse(n)), default=None)


def _explain_truth(node: ast.expr | None) -> tuple[str, str]:
    what = f"`{_spelling(node)}`" if node is not None else "`if`, `and`, `or` or `not`"
    fix = _suggest(node) if node is not None else None
    message = f"{what} needs a truth value, which is known only at a call"
    return message, fix or "write `&`, `|`, `~` with parentheses, or `gm.where(condition, a, b)`"


def _explain_division(node: ast.expr | None) -> tuple[str, str]:
    fix = _suggest(node) if isinstance(node, ast.BinOp) else None
    return "`/` gives a float; expressions of a call are integers", fix or "write `//`, or `gm.cdiv(a, b)` to round up"


def _spelling(node: ast.expr) -> str:
    match node:
        case ast.BoolOp(op=op):
            return "and" if isinstance(op, ast.And) else "or"
        case ast.UnaryOp():
            return "not"
        case ast.IfExp():
            return "if"
    return ast.unparse(node)


def _suggest(node: ast.expr) -> str | None:
    """Return what to write for an expression that cannot be traced; None if it can."""
    match node:
        case ast.BoolOp(op=op, values=values):
            sign = " & " if isinstance(op, ast.And) else " | "
            return _write(sign.join(f"({ast.unparse(v)})" for v in values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _write(f"~({ast.unparse(operand)})")
        case ast.Compare(ops=[_, _, *_]):
            return _write(" & ".join(_links(node)))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _write(f"gm.where({ast.unparse(test)}, {ast.unparse(body)}, {ast.unparse(orelse)})")
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[a, b]):
            return _write(f"gm.{name}imum({ast.unparse(a)}, {ast.unparse(b)})")
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            floored = ast.unparse(ast.BinOp(left, ast.FloorDiv(), right))
            return f"write `{floored}`, or `gm.cdiv({ast.unparse(left)}, {ast.unparse(right)})` to round up"
    return None


def _write(text: str) -> str:
    return f"write `{text}`"


def _links(node: ast.Compare) -> list[str]:
    terms = [node.left, *node.comparators]
    pairs = zip(terms[:-1], node.ops, terms[1:], strict=True)
    return [f"({ast.unparse(ast.Compare(left=left, ops=[sign], comparators=[right]))})" for left, sign, right in pairs]
