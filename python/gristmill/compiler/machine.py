"""The vocabulary that lowerings are written in: one machine idea a method, whether it emits code or executes it.

A `V` is one register: a scalar to a thread, or on a vector machine some elements side by side. A lowering passes
them on and reads only their dtype, so that it cannot tell an emitting machine from an executing one. Arithmetic goes
by the operands' dtype: `add` of two f32 adds floats. Tiles are whatever the machine makes of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, Op, Pointer, Value
from gristmill.dtypes import Dtype
from gristmill.errors import KernelError, Position

Combine = Callable[[Sequence["V"], Sequence["V"]], Sequence["V"]]  # two elements, each of one or several tiles, to one


class V:
    """A register: `text` names it in emitted code, `lanes` is 0 for a scalar and the length of a vector otherwise."""

    __slots__ = ("text", "dtype", "lanes")

    def __init__(self, text: str, dtype: Dtype | Pointer, lanes: int = 0):
        self.text = text
        self.dtype = dtype
        self.lanes = lanes

    def __repr__(self) -> str:
        return f"{self.dtype.name}{'x' + str(self.lanes) if self.lanes else ''} {self.text}"


Step = Callable[[V, list[list[V]], V | None], list[V]]


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

    def atomic(
        self,
        kind: str,
        pointer: V,
        operands: Sequence[V],
        mask: V | None,
        sem: str,
        scope: str,
        *,
        is_used: bool = True,
    ) -> V:
        """Update one element in a step of its own where `mask` holds, and return what was there; 0 elsewhere.

        `kind` is add, max, min, and, or, xor, xchg, all with one operand, or cas with two: what is expected, compared
        bit by bit, and what then takes its place. `sem` and `scope` are those of `tl.atomic_add`. Max, min and bits
        are of integers. What is returned means nothing unless `is_used`.
        """
        raise self.lacks("atomics")

    def atomic_pair(
        self, pointer: V, pair: Sequence[V], mask: V | None, sem: str, scope: str, *, is_used: bool = True
    ) -> list[V]:
        """Add to two consecutive halves, each in a step of its own; `pointer` lies on a multiple of both."""
        second = self.offset(pointer, self.constant(dt.i32, 1))
        places = zip((pointer, second), pair, strict=True)
        return [self.atomic("add", p, [x], mask, sem, scope, is_used=is_used) for p, x in places]

    def update(self, op: Op, pointers: Any, operands: Sequence[Any], mask: Any | None, step: Step) -> Any:
        """Run `step(pointer, groups, mask)` once for each element, whoever holds copies of it; a tile of its results.

        A group has one register for each operand's element, or two for neighbours that one step may take together.
        """
        raise self.lacks("atomics")

    def each(self, tiles: Sequence[Any], mask: Any | None, visit: Callable[[Sequence[V], V | None], None]) -> None:
        """Run `visit(registers, mask)` once for each element of tiles of one shape; the first one is no constant."""
        raise self.lacks("printing and checks")

    def wait_for_all(self) -> None:
        """All threads of the program wait for each other, and see what the others have written; one does nothing."""
        return

    def print_line(self, texts: Sequence[str], numbers: Sequence[tuple[V, str]], mask: V | None) -> None:
        """Print `texts` with a number between each two, formatted as C does by its specification."""
        raise self.lacks("printing")

    def fail(self, message: str, position: Position | None, failed: V) -> None:
        """End the call with a message where `failed` is true."""
        raise self.lacks("checks")

    def lacks(self, what: str) -> KernelError:
        """The error for a word that this machine does not have."""
        return KernelError(f"the machine `{self.kinds[0]}` has no {what}", fix="leave it out for this target")

    @abstractmethod
    def reduce(self, op: Op, tiles: Sequence[Any], axis: int, combine: Combine, identities: Any = None) -> list[Any]:
        """Combine the elements along `axis` in any order; `identities` are (dtype, number) that change nothing."""

    @abstractmethod
    def scan(self, op: Op, tiles: Sequence[Any], axis: int, combine: Combine, *, reverse: bool) -> list[Any]:
        """Combine each element with all before it along `axis`, in order; `reverse`: with all after it, last first."""

    @abstractmethod
    def join(self, result: Value, x: Any, y: Any) -> Any:
        """Pairs along a new last axis."""

    @abstractmethod
    def split(self, results: Sequence[Value], tile: Any) -> list[Any]:
        """The halves of the pairs along the last axis."""

    @abstractmethod
    def exchange(self, result: Value, tile: Any, axis: int, mask: int) -> Any:
        """Element i along `axis` is element i ^ mask."""

    @abstractmethod
    def gather(self, result: Value, tile: Any, places: Any, axis: int) -> Any:
        """The elements at `places` along `axis`."""

    @abstractmethod
    def histogram(self, result: Value, tile: Any, mask: Any | None) -> Any:
        """How many elements equal 0, 1, ...; i32."""

    @abstractmethod
    def dot(self, result: Value, a: Any, b: Any, acc: Any) -> Any:
        """The matrix product of the last two axes, added to `acc`, in its dtype."""

    # -- statements

    @abstractmethod
    def run(self, block: Block, values: dict[Value, Any]) -> list[Any]:
        """Execute a block's statements with `values`, and return what it yields."""
