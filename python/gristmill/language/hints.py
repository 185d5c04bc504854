"""What the author knows and the compiler cannot find out: unchecked promises that make memory access wider.

A promise holds from where it is written to the end of its block, and of the value that it is about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gristmill.compiler.facts import Facts, power_of_two_in
from gristmill.compiler.ir import Op, Value
from gristmill.compiler.op import ROWS, OpRow, active_builder, emit, op
from gristmill.errors import KernelError
from gristmill.language.types import as_value, describe

Strengthen = Callable[[Facts, int], Facts]


def _last(values: Any, x: Value, what: str) -> int:
    """The promise for the last axis, along which memory is accessed: the largest power of two in it."""
    items = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if len(items) != max(1, len(x.type.shape)):
        fix = "give one number for each axis"
        raise KernelError(f"{what}(): {len(items)} numbers for {len(x.type.shape)} axes", fix=fix)
    for number in items:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            fix = "use a positive literal or a `gm.constexpr` parameter"
            raise KernelError(f"{what}(): needs positive numbers known at build time, got {describe(number)}", fix=fix)
    return power_of_two_in(items[-1])


def _integers(x: Any, what: str) -> Value:
    x = as_value(x, f"{what}()")
    if not (x.type.is_pointer or x.type.dtype.is_int):
        raise KernelError(f"{what}(): needs integers or pointers, got {x.type}", fix="promise it of the offsets")
    return x


def _declare(name: str, doc: str, strengthen: Strengthen) -> OpRow:
    def infer(input: Any, values: Any) -> Value:
        x = _integers(input, name)
        return emit(name, x.type, x, number=_last(values, x, name))

    infer.__name__, infer.__doc__ = name, doc
    row = op("hint", is_cheap=True, is_view=True, is_promise=True)(infer)
    row.reference(lambda x, *, number: x)
    row.facts(lambda op, x: strengthen(x, op.attributes["number"]))
    row.lower(lambda m, x, *, number: x)
    return row


multiple_of = _declare(
    "multiple_of",
    """`input`, whose values are promised to be multiples of `values`, one number for each axis.

Of neighbours that are promised to rise one by one, the first of each group is meant. Pointers are measured in bytes.
""",
    lambda x, number: replace(x, divisibility=max(x.divisibility, number)),
)
max_contiguous = _declare(
    "max_contiguous",
    "`input`, which is promised to rise by one within each group of `values` neighbours along the last axis.",
    lambda x, number: replace(x, contiguity=max(x.contiguity, number)),
)
max_constancy = _declare(
    "max_constancy",
    "`input`, which is promised to be the same within each group of `values` neighbours along the last axis.",
    lambda x, number: replace(x, constancy=max(x.constancy, number)),
)


_LEAST = {">=": (0, None), ">": (-1, None), "<=": (None, 0), "<": (None, -1)}
"""From which number on a comparison says that the other side, the left or the right, is not negative."""


@op("internal", is_cheap=True, is_view=True, is_promise=True)
def not_negative(x: Any) -> Value:
    """x, which is promised to be 0 or more."""
    return emit("not_negative", x.type, x)


not_negative.reference(lambda x: x)
not_negative.facts(lambda op, x: x)
not_negative.lower(lambda m, x: x)
not_negative.sign_function = lambda op, x: True


@op("hint")
def assume(cond: Any) -> None:
    """Promise that a scalar condition holds.

    `x % 16 == 0`, also joined by `&` or `and` with others, widens memory access as `multiple_of(x, 16)` does, and of
    `x >= 0` and `x > 0` masks need not ask again; what else is promised changes nothing.
    """
    if not isinstance(cond, Value):
        if not cond:
            raise KernelError("assume(): the condition is false at build time", fix="drop it, or the call")
        return
    if not cond.type.is_scalar or cond.type.dtype.name != "bool":
        fix = "compare one number, as in `tl.assume(stride % 16 == 0)`"
        raise KernelError(f"assume(): needs one condition, got {cond.type}", fix=fix)
    made = {v: s for s in active_builder().block.statements if isinstance(s, Op) for v in s.results}
    _promise(cond, made)


def _promise(cond: Value, made: dict[Value, Op]) -> None:
    statement = made.get(cond)
    if statement is None:
        return
    if statement.row.is_conjunction:
        for part in statement.operands:
            _promise(part, made)
    elif statement.row.predicate == "==":
        for rest, zero in (statement.operands, statement.operands[::-1]):
            if _number(zero, made) == 0:
                _promise_multiple(made.get(rest), made)
    elif statement.row.predicate in _LEAST:
        of_left, of_right = _LEAST[statement.row.predicate]
        for (x, bound), least in ((statement.operands, of_left), (statement.operands[::-1], of_right)):
            number = _number(bound, made)
            if least is not None and number is not None and number >= least and x.type.dtype.is_int:
                not_negative(x)


def _promise_multiple(rest: Op | None, made: dict[Value, Op]) -> None:
    """`rest` is x % number, or x & (number - 1), and known to be 0."""
    if rest is None or rest.row not in (ROWS["mod"], ROWS["and"]) or not rest.operands[0].type.dtype.is_int:
        return
    number = _number(rest.operands[1], made)
    if number is None:
        return
    divisor = number if rest.row is ROWS["mod"] else _low_ones(number) + 1
    if divisor:
        multiple_of(rest.operands[0], abs(divisor))


def _low_ones(number: int) -> int:
    """The ones at the end of a number's bits."""
    return (number ^ (number + 1)) >> 1


def _number(value: Value, made: dict[Value, Op]) -> int | None:
    statement = made.get(value)
    return statement.attributes["value"] if statement is not None and statement.row is ROWS["constant"] else None


@assume.reference
def _(cond: Any) -> None:
    return None
