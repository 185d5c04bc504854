"""The machine words on numbers, by dtype: what one instruction does in every thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Pointer
from gristmill.compiler.machine import Machine, V
from gristmill.compiler.simt.intrinsics import meaning
from gristmill.compiler.simt.numbers import (
    Kind,
    Numbers,
    convert,
    from_bits,
    fused,
    number_of,
    round_to_bf16,
    to_bits,
)
from gristmill.dtypes import Dtype
from gristmill.language.float8 import decode, encode, is_float8

COMPARISONS = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip
SMALLEST_NORMAL = np.float32(2.0**-126)
LARGEST_DIVISOR = np.float32(2.0**126)


class ArithmeticMachine(Machine):
    """Executes arithmetic; run it under `np.errstate(all="ignore")`, since what numpy warns of is defined here."""

    def constant(self, dtype: Dtype, number: float | int | bool) -> Numbers:
        return Numbers(number_of(dtype, number), dtype)

    def _apply(self, function: Callable[..., Any], *operands: V) -> Numbers:
        dtype = operands[0].dtype
        each = function(*(_value(x) for x in operands))
        if dtype == dt.bf16:
            each = round_to_bf16(each)
        return Numbers(encode(each, cast(Dtype, dtype)) if is_float8(dtype) else each, dtype)

    def add(self, x: V, y: V) -> V:
        return self._apply(np.bitwise_xor if x.dtype == dt.bool_ else np.add, x, y)

    def subtract(self, x: V, y: V) -> V:
        return self._apply(np.bitwise_xor if x.dtype == dt.bool_ else np.subtract, x, y)

    def multiply(self, x: V, y: V) -> V:
        return self._apply(np.multiply, x, y)

    def fma(self, x: V, y: V, z: V) -> V:
        assert isinstance(x.dtype, Dtype)
        return Numbers(fused(_each(x), _each(y), _each(z), x.dtype), x.dtype)

    def multiply_add(self, x: V, y: V, z: V) -> V:
        return self.fma(x, y, z)

    def divide(self, x: V, y: V) -> V:
        return self.divide_exactly(x, y)

    def divide_exactly(self, x: V, y: V) -> V:
        return self._apply(np.divide, x, y)

    def divide_roughly(self, x: V, y: V) -> V:
        return self._apply(_roughly, x, y) if x.dtype == dt.f32 else self.divide(x, y)

    def quotient(self, x: V, y: V) -> V:
        return self._apply(_quotient, x, y)

    def remainder(self, x: V, y: V) -> V:
        return self._apply(np.fmod if x.dtype.is_float else _remainder, x, y)

    def negative(self, x: V) -> V:
        return self._apply(np.negative, x)

    def absolute(self, x: V) -> V:
        return self._apply(np.abs, x)

    def maximum(self, x: V, y: V, *, keep_nan: bool = False) -> V:
        return self._apply(_largest_of(x.dtype, keep_nan), x, y)

    def minimum(self, x: V, y: V, *, keep_nan: bool = False) -> V:
        if not x.dtype.is_float:
            return self._apply(np.minimum, x, y)
        largest = _largest_of(x.dtype, keep_nan)
        return self._apply(lambda a, b: -largest(-a, -b), x, y)

    def floor(self, x: V) -> V:
        return self._apply(np.floor, x)

    def ceil(self, x: V) -> V:
        return self._apply(np.ceil, x)

    def round_even(self, x: V) -> V:
        return self._apply(np.rint, x)

    def sqrt(self, x: V) -> V:
        return self._apply(np.sqrt, x)

    def rsqrt(self, x: V) -> V:
        if x.dtype == dt.f32:
            return self._apply(lambda a: (1 / np.sqrt(np.asarray(a, np.float64))).astype(np.float32), x)
        return self.divide_exactly(self.constant(x.dtype, 1.0), self.sqrt(x))  # type: ignore[arg-type]

    def exp2(self, x: V, *, is_gradual: bool = False) -> V:
        from gristmill.language import polynomials

        if x.dtype != dt.f32:
            return self.outline("exp2", polynomials.exp2, x)
        power = self._apply(lambda a: np.exp2(np.asarray(a, np.float64)).astype(np.float32), x)
        return power if is_gradual else self._apply(_flushed, power)

    def bit_and(self, x: V, y: V) -> V:
        return self._apply(np.bitwise_and, x, y)

    def bit_or(self, x: V, y: V) -> V:
        return self._apply(np.bitwise_or, x, y)

    def bit_xor(self, x: V, y: V) -> V:
        return self._apply(np.bitwise_xor, x, y)

    def shift_left(self, x: V, y: V) -> V:
        return self._apply(np.left_shift, x, y)

    def shift_right(self, x: V, y: V) -> V:
        return self._apply(np.right_shift, x, y)

    def call(self, name: str, dtype: Kind, *operands: V) -> V:
        """What an intrinsic of the CUDA target gives."""
        return Numbers(meaning(name)(*(_each(x) for x in operands)), dtype)

    def multiply_high(self, x: V, y: V) -> V:
        """The upper half of the product of integers, signed or not by their dtype."""
        return self._apply(_upper_half, x, y)

    def count_ones(self, x: V) -> V:
        return self._apply(lambda a: np.bitwise_count(_unsigned(a)).astype(np.asarray(a).dtype), x)

    def leading_zeros(self, x: V) -> V:
        """The zeros above the highest one; of 0 the width."""
        return self._apply(_leading_zeros, x)

    def reverse_bits(self, x: V) -> V:
        return self._apply(_reversed, x)

    def compare(self, predicate: str, x: V, y: V) -> V:
        return Numbers(COMPARISONS[predicate](_value(x), _value(y)), dt.bool_)

    def select(self, condition: V, x: V, y: V) -> V:
        return x if x is y else Numbers(np.where(_each(condition), _each(x), _each(y))[()], x.dtype)

    def cast(self, x: V, dtype: Kind) -> V:
        if x.dtype == dtype:
            return x
        assert isinstance(x.dtype, Dtype) and isinstance(dtype, Dtype)
        return Numbers(convert(_each(x), x.dtype, dtype)[()], dtype)

    def bitcast(self, x: V, dtype: Kind) -> V:
        return Numbers(from_bits(to_bits(_each(x), x.dtype), dtype)[()], dtype)

    def offset(self, pointer: V, elements: V) -> V:
        assert isinstance(pointer.dtype, Pointer)
        steps = np.asarray(_each(elements)).astype(np.int64)
        return Numbers(_each(pointer) + steps * pointer.dtype.element.itemsize, pointer.dtype)


def _each(x: V) -> Any:
    assert isinstance(x, Numbers)
    return x.each


def _value(x: V) -> Any:
    """What can be calculated with: 8-bit floats as f32."""
    return decode(_each(x), cast(Dtype, x.dtype)) if is_float8(x.dtype) else _each(x)


def _flushed(x: Any) -> Any:
    """0 in place of denormals, as instructions called `ftz` give."""
    return np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)[()]


def _roughly(x: Any, y: Any) -> Any:
    """x / y where |y| is from 2**-126 to 2**126; beyond it x times what is 0 or infinite, as `div.approx` gives."""
    magnitude = np.abs(y)
    is_usual = (magnitude >= SMALLEST_NORMAL) & (magnitude <= LARGEST_DIVISOR)
    return np.where(is_usual | (y == 0) | (y != y), x / y, x * _flushed(np.float32(1) / y))[()]


def _largest_of(dtype: Kind, keep_nan: bool) -> Callable[[Any, Any], Any]:
    """The maximum; of zeros +0 is the larger one."""
    if not dtype.is_float:
        return np.maximum
    largest = np.maximum if keep_nan else np.fmax
    return lambda x, y: np.where((x == 0) & (y == 0), x + y, largest(x, y))[()]


def _magnitude(x: Any) -> Any:
    kind = np.asarray(x).dtype
    return np.abs(x).view(f"u{kind.itemsize}") if kind.kind == "i" else x


def _quotient(x: Any, y: Any) -> Any:
    """Truncated; of the lowest integer by -1 itself, by 0 the dividend."""
    x, y = np.asarray(x), _divisor(y)
    size = (_magnitude(x) // _magnitude(y)).astype(x.dtype)
    return np.where((x < 0) != (y < 0), -size, size)[()] if x.dtype.kind == "i" else size


def _remainder(x: Any, y: Any) -> Any:
    """With the sign of x; by 0 it is 0."""
    x, y = np.asarray(x), _divisor(y)
    rest = (_magnitude(x) % _magnitude(y)).astype(x.dtype)
    return np.where(x < 0, -rest, rest)[()] if x.dtype.kind == "i" else rest


def _divisor(y: Any) -> Any:
    """1 in place of 0, as the language has it."""
    y = np.asarray(y)
    return np.where(y == 0, y.dtype.type(1), y)


def _unsigned(x: Any) -> Any:
    return np.asarray(x).view(f"u{np.asarray(x).dtype.itemsize}")


def _upper_half(x: Any, y: Any) -> Any:
    """By halves of the factors, none of whose products overflows; of negative factors the other one is taken away."""
    kind, (a, b) = np.asarray(x).dtype, (_unsigned(v).astype(np.uint64) for v in (x, y))
    half = np.uint64(kind.itemsize * 4)
    low = np.uint64((1 << int(half)) - 1)
    middle = (a >> half) * (b & low) + ((a & low) * (b & low) >> half)
    cross = (a & low) * (b >> half) + (middle & low)
    high = (a >> half) * (b >> half) + (middle >> half) + (cross >> half)
    high = high.astype(f"u{kind.itemsize}").view(kind)
    return high - np.where(x < 0, y, 0).astype(kind) - np.where(y < 0, x, 0).astype(kind)


def _leading_zeros(x: Any) -> Any:
    word, kind = _unsigned(x), np.asarray(x).dtype
    for step in (1, 2, 4, 8, 16, 32):
        if step < kind.itemsize * 8:
            word = word | word >> word.dtype.type(step)
    return (kind.itemsize * 8 - np.bitwise_count(word)).astype(kind)


def _reversed(x: Any) -> Any:
    """Bytes in the other order, and the bits of each."""
    word, kind = np.ascontiguousarray(_unsigned(x)), np.asarray(x).dtype
    bytes_ = word.reshape(*word.shape, 1).view(np.uint8)[..., ::-1]
    bits = np.packbits(np.unpackbits(bytes_[..., None], axis=-1, bitorder="little"), axis=-1)
    return np.ascontiguousarray(bits[..., 0]).view(kind)[..., 0].reshape(np.shape(x))
