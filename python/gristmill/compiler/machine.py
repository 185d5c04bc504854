"""The vocabulary that lowerings are written in: one machine idea a method, whether it emits code or executes it.

A `V` is one register: a scalar to a thread, or on a vector machine some elements side by side. A lowering passes
them on and reads only their dtype, so that it cannot tell an emitting machine from an executing one. Arithmetic goes
by the operands' dtype: `add` of two f32 adds floats. Tiles are whatever the machine makes of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from gristmill.compiler.ir import Block, Op, Pointer, Value
from gristmill.dtypes import Dtype


class V:
    """A register: `text` names it in emitted code, `lanes` is 0 for a scalar and the length of a vector otherwise."""

    __slots__ = ("text", "dtype", "lanes")

    def __init__(self, text: str, dtype: Dtype | Pointer, lanes: int = 0):
        self.text = text
        self.dtype = dtype
        self.lanes = lanes

    def __repr__(self) -> str:
        return f"{self.dtype.name}{'x' + str(self.lanes) if self.lanes else ''} {self.text}"


class Machine(ABC):
    """What every machine can do; `kinds` are the names under which lowerings address it, most specific first."""

    kinds: tuple[str, ...]

    # -- numbers

    @abstractmethod
    def constant(self, dtype: Dtype, number: float | int | bool) -> V: ...

    @abstractmethod
    def add(self, x: V, y: V) -> V: ...

    @abstractmethod
    def subtract(self, x: V, y: V) -> V: ...

    @abstractmethod
    def multiply(self, x: V, y: V) -> V: ...

    def multiply_alone(self, x: V, y: V) -> V:
        """x * y rounded, whatever is added to it: no machine may fuse the two."""
        return self.multiply(x, y)

    @abstractmethod
    def fma(self, x: V, y: V, z: V) -> V:
        """x * y + z with one rounding (f32 and f64)."""

    @abstractmethod
    def multiply_add(self, x: V, y: V, z: V) -> V:
        """x * y + z, fused only where that is fast."""

    @abstractmethod
    def divide(self, x: V, y: V) -> V:
        """Floats: within 2 ulp over the full range."""

    def divide_roughly(self, x: V, y: V) -> V:
        """f32: within 2 ulp for |y| from 2**-126 to 2**126."""
        return self.divide(x, y)

    @abstractmethod
    def divide_exactly(self, x: V, y: V) -> V:
        """Floats: correctly rounded."""

    @abstractmethod
    def quotient(self, x: V, y: V) -> V:
        """Integers: truncated towards zero."""

    @abstractmethod
    def remainder(self, x: V, y: V) -> V:
        """With the sign of x, for floats too."""

    @abstractmethod
    def negative(self, x: V) -> V: ...

    @abstractmethod
    def absolute(self, x: V) -> V: ...

    @abstractmethod
    def maximum(self, x: V, y: V, *, keep_nan: bool = False) -> V:
        """`keep_nan`: NaN if either is; else the other operand where one is NaN."""

    @abstractmethod
    def minimum(self, x: V, y: V, *, keep_nan: bool = False) -> V: ...

    @abstractmethod
    def floor(self, x: V) -> V: ...

    @abstractmethod
    def ceil(self, x: V) -> V: ...

    @abstractmethod
    def round_even(self, x: V) -> V: ...

    @abstractmethod
    def sqrt(self, x: V) -> V:
        """Correctly rounded."""

    @abstractmethod
    def rsqrt(self, x: V) -> V:
        """Within 2 ulp."""

    @abstractmethod
    def exp2(self, x: V, *, is_gradual: bool = False) -> V:
        """f32: within 2 ulp; results below 2**-126 may be 0 unless `is_gradual`."""

    def outline(self, name: str, function: Callable[..., V], *operands: V) -> V:
        """Call `function(machine, *operands)`, as a function of its own where code would grow too much inline."""
        return function(self, *operands)

    @abstractmethod
    def bit_and(self, x: V, y: V) -> V: ...

    @abstractmethod
    def bit_or(self, x: V, y: V) -> V: ...

    @abstractmethod
    def bit_xor(self, x: V, y: V) -> V: ...

    @abstractmethod
    def shift_left(self, x: V, y: V) -> V: ...

    @abstractmethod
    def shift_right(self, x: V, y: V) -> V:
        """Arithmetic for signed x, logical otherwise."""

    @abstractmethod
    def multiply_high(self, x: V, y: V) -> V:
        """The upper half of the product of integers, signed or not by their dtype."""

    @abstractmethod
    def count_ones(self, x: V) -> V: ...

    @abstractmethod
    def leading_zeros(self, x: V) -> V:
        """The zeros above the highest one; of 0 the width."""

    @abstractmethod
    def reverse_bits(self, x: V) -> V: ...

    def rarely(self, condition: V, usual: Sequence[V], function: Callable[[], Sequence[V]]) -> list[V]:
        """What `function()` gives where `condition` holds, else `usual`; by a branch where that saves work."""
        return [self.select(condition, x, y) for x, y in zip(function(), usual, strict=True)]

    @abstractmethod
    def compare(self, predicate: str, x: V, y: V) -> V:
        """`predicate` is one of < <= > >= == !=; on floats ordered, but != is true for NaN."""

    @abstractmethod
    def select(self, condition: V, x: V, y: V) -> V: ...

    @abstractmethod
    def cast(self, x: V, dtype: Dtype | Pointer) -> V:
        """Convert the value: floats round to nearest even, floats to integers truncate."""

    @abstractmethod
    def bitcast(self, x: V, dtype: Dtype | Pointer) -> V: ...

    @abstractmethod
    def offset(self, pointer: V, elements: V) -> V:
        """The address `elements` further, sign- or zero-extended by their dtype."""

    # -- the grid

    @abstractmethod
    def program_id(self, axis: int) -> V: ...

    @abstractmethod
    def num_programs(self, axis: int) -> V: ...

    # -- tiles

    @abstractmethod
    def map(self, function: Callable[..., V], result: Value, tiles: Sequence[Any]) -> Any:
        """Apply `function` to each register of the tiles, which have one shape; scalars stay scalars."""

    @abstractmethod
    def uniform(self, result: Value, element: V) -> Any:
        """A tile whose elements are all `element`."""

    @abstractmethod
    def coordinates(self, result: Value, axis: int) -> Any:
        """An i32 (or wider, by the result) tile of each element's own coordinate along `axis`."""

    @abstractmethod
    def reshape(self, result: Value, tile: Any) -> Any:
        """Keep row-major positions."""

    @abstractmethod
    def broadcast(self, result: Value, tile: Any) -> Any:
        """Repeat along the axes of size 1."""

    @abstractmethod
    def permute(self, result: Value, tile: Any, order: Sequence[int]) -> Any: ...

    @abstractmethod
    def load(self, op: Op, pointers: Any, mask: Any | None, other: Any | None) -> Any:
        """Read; elements whose mask is false are `other`, 0 without one, and their address is not touched."""

    @abstractmethod
    def store(self, op: Op, pointers: Any, value: Any, mask: Any | None) -> None: ...

    @abstractmethod
    def reduce(self, op: Op, tile: Any, axis: int, combine: Callable[[V, V], V], identity: Any) -> Any:
        """Combine the elements along `axis`; `identity` is (dtype, number) with combine(number, x) = x."""

    # -- statements

    @abstractmethod
    def run(self, block: Block, values: dict[Value, Any]) -> list[Any]:
        """Execute a block's statements with `values`, and return what it yields."""
