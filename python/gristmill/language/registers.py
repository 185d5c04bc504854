"""Formulas for one register with Python's operators, and numbers kept as pairs of floats for twice the precision.

A pair is (high, low) with |low| at most half an ulp of high. A formula sees the machine's words only through
`Register`, so that it reads like the mathematics it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.machine import V
from gristmill.dtypes import Dtype
from gristmill.language import polynomials

Pair = tuple["Register", "Register"]
Operand = Any


class Register:
    """A register of a machine; the other operand of an operator may be a number, which takes its dtype."""

    __slots__ = ("machine", "v")

    def __init__(self, machine: Any, v: V):
        self.machine = machine
        self.v = v

    @property
    def dtype(self) -> Dtype:
        assert isinstance(self.v.dtype, Dtype)
        return self.v.dtype

    @property
    def is_double(self) -> bool:
        """Whether it is f64; the formulas know only f32 beside it."""
        return self.dtype == dt.f64

    def wrap(self, v: V) -> Register:
        return Register(self.machine, v)

    def constant(self, number: float) -> Register:
        """A number of the same dtype."""
        return self.wrap(self.machine.constant(self.dtype, number))

    def _binary(self, word: str, other: Operand, is_swapped: bool = False) -> Register:
        x, y = self.v, (other if isinstance(other, Register) else self.constant(other)).v
        return self.wrap(getattr(self.machine, word)(*((y, x) if is_swapped else (x, y))))

    def __add__(self, other: Operand) -> Register:
        return self._binary("add", other)

    def __radd__(self, other: Operand) -> Register:
        return self._binary("add", other, is_swapped=True)

    def __sub__(self, other: Operand) -> Register:
        return self._binary("subtract", other)

    def __rsub__(self, other: Operand) -> Register:
        return self._binary("subtract", other, is_swapped=True)

    def __mul__(self, other: Operand) -> Register:
        return self._binary("multiply", other)

    def __rmul__(self, other: Operand) -> Register:
        return self._binary("multiply", other, is_swapped=True)

    def __truediv__(self, other: Operand) -> Register:
        return self._binary("divide_exactly", other)

    def __rtruediv__(self, other: Operand) -> Register:
        return self._binary("divide_exactly", other, is_swapped=True)

    def __floordiv__(self, other: Operand) -> Register:
        return self._binary("quotient", other)

    def __and__(self, other: Operand) -> Register:
        return self._binary("bit_and", other)

    def __or__(self, other: Operand) -> Register:
        return self._binary("bit_or", other)

    def __xor__(self, other: Operand) -> Register:
        return self._binary("bit_xor", other)

    def __lshift__(self, other: Operand) -> Register:
        return self._binary("shift_left", other)

    def __rshift__(self, other: Operand) -> Register:
        return self._binary("shift_right", other)

    def __neg__(self) -> Register:
        return self.wrap(self.machine.negative(self.v))

    def __abs__(self) -> Register:
        return self.wrap(self.machine.absolute(self.v))

    def _compare(self, predicate: str, other: Operand) -> Register:
        other = other if isinstance(other, Register) else self.constant(other)
        return self.wrap(self.machine.compare(predicate, self.v, other.v))

    def __lt__(self, other: Operand) -> Register:
        return self._compare("<", other)

    def __le__(self, other: Operand) -> Register:
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> Register:
        return self._compare(">", other)

    def __ge__(self, other: Operand) -> Register:
        return self._compare(">=", other)

    def equals(self, other: Operand) -> Register:
        return self._compare("==", other)

    def differs(self, other: Operand) -> Register:
        return self._compare("!=", other)

    def is_nan(self) -> Register:
        return self.differs(self)

    def to(self, dtype: Dtype) -> Register:
        return self.wrap(self.machine.cast(self.v, dtype))

    def as_bits(self, dtype: Dtype) -> Register:
        return self.wrap(self.machine.bitcast(self.v, dtype))

    def bits(self) -> Register:
        """The bits of a float as an unsigned integer."""
        return self.as_bits(dt.u64 if self.is_double else dt.u32)

    def multiply_high(self, other: Operand) -> Register:
        return self._binary("multiply_high", other)


def where(condition: Register, x: Operand, y: Operand) -> Register:
    """x where `condition` holds, else y; one of them may be a number."""
    like = x if isinstance(x, Register) else y
    x, y = (v if isinstance(v, Register) else like.constant(v) for v in (x, y))
    return like.wrap(like.machine.select(condition.v, x.v, y.v))


def fma(x: Register, y: Operand, z: Operand) -> Register:
    """x * y + z, rounded once."""
    y, z = (v if isinstance(v, Register) else x.constant(v) for v in (y, z))
    return x.wrap(x.machine.fma(x.v, y.v, z.v))


def polynomial(x: Register, table: dict[Dtype, tuple[float, ...]]) -> Register:
    """The polynomial in x with the coefficients for its dtype."""
    return x.wrap(polynomials.horner(x.machine, x.v, table[x.dtype]))


def sqrt(x: Register) -> Register:
    return x.wrap(x.machine.sqrt(x.v))


def floor(x: Register) -> Register:
    return x.wrap(x.machine.floor(x.v))


def largest(x: Register, y: Operand) -> Register:
    """The greater one; NaN if either is."""
    y = y if isinstance(y, Register) else x.constant(y)
    return x.wrap(x.machine.maximum(x.v, y.v, keep_nan=True))


def smallest(x: Register, y: Operand) -> Register:
    """The lesser one; NaN if either is."""
    y = y if isinstance(y, Register) else x.constant(y)
    return x.wrap(x.machine.minimum(x.v, y.v, keep_nan=True))


def exp(x: Register) -> Register:
    return x.wrap(polynomials.exp(x.machine, x.v))


def log(x: Register) -> Register:
    return x.wrap(polynomials.log(x.machine, x.v))


def copy_sign(size: Register, sign: Register) -> Register:
    """`size` with the sign bit of `sign`."""
    return size.wrap(polynomials.copy_sign(size.machine, size.v, sign.v))


def has_sign(x: Register) -> Register:
    """Whether the sign bit of a float is set."""
    return x.as_bits(dt.i64 if x.is_double else dt.i32) < 0


def nearest_integer(x: Register, scale: float) -> Pair:
    """The integer nearest to scale * x, as a float and as an integer."""
    n, bits = polynomials.nearest_integer(x.machine, x.v, scale)
    return x.wrap(n), x.wrap(bits)


def times_power_of_two(x: Register, n: Register) -> Register:
    """x * 2^n for an integer n of x's width, with gradual underflow."""
    return x.wrap(polynomials.times_power_of_two(x.machine, x.v, n.v))


def two_sum(x: Register, y: Operand) -> Pair:
    """x + y, and what its rounding lost."""
    y = y if isinstance(y, Register) else x.constant(y)
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def quick_two_sum(x: Register, y: Register) -> Pair:
    """As `two_sum`, for |x| >= |y|."""
    total = x + y
    return total, y - (total - x)


def two_product(x: Register, y: Operand) -> Pair:
    """x * y, and what its rounding lost; a sum fused with the product would count that twice."""
    y = y if isinstance(y, Register) else x.constant(y)
    product = x.wrap(x.machine.multiply_alone(x.v, y.v))
    return product, fma(x, y, -product)


def formula(name: str, function: Callable[..., Register]) -> Callable[..., V]:
    """A lowering from a function of registers; f64 becomes a function of its own where that saves code."""

    def lower(m: Any, *operands: V) -> V:
        def body(machine: Any, *inner: V) -> V:
            return function(*(Register(machine, v) for v in inner)).v

        return m.outline(name, body, *operands)

    return lower


NAN, INFINITY = math.nan, math.inf
