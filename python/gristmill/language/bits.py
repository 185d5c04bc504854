"""Bitwise operations and shifts, of integers and, but for shifts, of bools."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.facts import Facts
from gristmill.compiler.ir import Value
from gristmill.compiler.op import OpRow, emit, op
from gristmill.errors import KernelError
from gristmill.language.types import as_value, cast_to, constant, promoted


def _bit_operands(x: Any, y: Any, what: str) -> tuple[Value, Value]:
    a, b = promoted(x, y, what=what)
    if a.type.dtype.is_float:
        raise KernelError(
            f"{what}: needs integers or bools, got {a.type}", fix="compare first, or cast with `bitcast=True`"
        )
    return a, b


def _bitwise(name: str, symbol: str, word: str, numpy_function: Any) -> OpRow:
    def infer(x: Any, y: Any) -> Value:
        a, b = _bit_operands(x, y, symbol)
        return emit(name, a.type, a, b)

    infer.__name__ = name
    infer.__doc__ = f"x {symbol} y, bit by bit, of integers or bools."
    row = op("bits", is_cheap=True, is_conjunction=symbol == "&")(infer)
    row.reference(lambda x, y: numpy_function(x, y))
    row.facts(lambda op, x, y: Facts(constancy=min(x.constancy, y.constancy)))
    row.lower(lambda m, x, y: getattr(m, word)(x, y))
    return row


and_ = _bitwise("and", "&", "bit_and", np.bitwise_and)
or_ = _bitwise("or", "|", "bit_or", np.bitwise_or)
xor = _bitwise("xor", "^", "bit_xor", np.bitwise_xor)


@op("bits", is_cheap=True)
def invert(x: Any) -> Value:
    """~x: every bit flipped; on bools the negation."""
    x = as_value(x)
    if not (x.type.dtype == dt.bool_ or x.type.dtype.is_int):
        raise KernelError(f"~: needs integers or bools, got {x.type}", fix="compare first")
    return xor(
        x,
        constant(
            True if x.type.dtype == dt.bool_ else -1 if x.type.dtype.is_signed else (1 << x.type.dtype.bits) - 1,
            x.type.dtype,
        ),
    )


@invert.reference
def _(x: Any) -> Any:
    return np.invert(x)


def _is_signed(x: Any) -> bool:
    return isinstance(x, Value) and bool(x.type.dtype.is_signed)


def _shift(name: str, symbol: str, word: str, numpy_function: Any) -> OpRow:
    def infer(x: Any, y: Any) -> Value:
        a, b = _bit_operands(x, y, symbol)
        if name == "shr" and _is_signed(x) and not a.type.dtype.is_signed:
            signed = dt.parse_dtype(f"i{a.type.dtype.bits}")
            return cast_to(emit(name, a.type.with_dtype(signed), cast_to(a, signed), cast_to(b, signed)), a.type.dtype)
        return emit(name, a.type, a, b)

    infer.__name__ = name
    infer.__doc__ = f"x {symbol} y of integers; y from 0 to one less than the width."
    if name == "shr":
        infer.__doc__ += " Copies of the sign come in where x is signed, whatever y is."
    row = op("bits", is_cheap=True)(infer)
    row.reference(lambda x, y: numpy_function(x, y))
    row.lower(lambda m, x, y: getattr(m, word)(x, y))
    return row


shl = _shift("shl", "<<", "shift_left", np.left_shift)
shr = _shift("shr", ">>", "shift_right", np.right_shift)
