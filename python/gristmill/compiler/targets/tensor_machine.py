"""The words of machines with tensor cores: matrix loads and products, copies ahead, and pipes between roles."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from gristmill.compiler.ir import Op, Value
from gristmill.compiler.layout import Layout
from gristmill.compiler.machine import Machine, V
from gristmill.compiler.targets import thread_folds, thread_products
from gristmill.compiler.tensor import Unit
from gristmill.dtypes import Dtype


class TensorMachine(Machine):
    """Composes products from words; subclasses supply them."""

    layouts: dict[Value, Layout]

    @abstractmethod
    def copy_ahead(self, memory: V, index: V, pointer: V, width: int, guard: V | None, mask: V | None) -> None:
        """Begin to copy `width` elements from global memory if `guard` holds; zeros if `mask` does not."""

    @abstractmethod
    def commit_copies(self) -> None:
        """End a group of the thread's copies."""

    @abstractmethod
    def wait_for_copies(self, pending: int) -> None:
        """Wait until all of the thread's groups but the last `pending` have come."""

    @abstractmethod
    def take(self, pipe: Any) -> V:
        """Wait until the consumers' slot is full; returns its number."""

    @abstractmethod
    def release(self, pipe: Any, guard: V) -> None:
        """The slot before the consumers' is read, if `guard` holds."""

    @abstractmethod
    def next_slot(self, pipe: Any) -> None:
        """Go on to the consumers' next slot."""

    @abstractmethod
    def wait_turn(self) -> None:
        """Wait for the warpgroup's turn: what is the first one's when the consumers begin."""

    @abstractmethod
    def pass_turn(self) -> None:
        """Give the turn to the next warpgroup."""

    @abstractmethod
    def acquire(self, pipe: Any) -> V:
        """Wait until the producers' slot is empty; returns its number."""

    @abstractmethod
    def expect(self, pipe: Any, size: int) -> None:
        """The hardware is going to copy `size` bytes to the producers' slot."""

    @abstractmethod
    def copy_window(self, op: Op, window: Sequence[V], pipe: Any, ring: Any, slot: V) -> None:
        """Let the hardware begin to copy a block of an array: `window` has its base, lengths, strides and offsets."""

    @abstractmethod
    def wait_for_stores(self, pending: int) -> None:
        """Wait until the hardware has read all groups of boxes that it stores but the last `pending`."""

    @abstractmethod
    def store_box(
        self, op: Op, window: Sequence[V], buffer: Any, place: tuple[int, int], first: tuple[int, int], groups: Any
    ) -> None:
        """Let the hardware begin to store the box at a `place` in a buffer, whose first element is at `first`.

        Of several `groups`, each does so with the box that lies as many of their steps behind as it is number.
        """

    @abstractmethod
    def commit_stores(self) -> None:
        """End a group of boxes."""

    @abstractmethod
    def publish(self, pipe: Any) -> None:
        """The slot is full when the copies begun so far have come; go on to the producers' next one."""

    @abstractmethod
    def matrix_load(self, memory: V, index: V, count: int, is_turned: bool, dtype: Dtype) -> list[V]:
        """Read 1, 2 or 4 matrices of 8 rows of 16 bytes, whose places the warp's lanes give in turn, a word of each.

        Lane i gets word i % 4 of row i // 4; if the matrix `is_turned`, the halves in column i // 4 of two rows.
        """

    @abstractmethod
    def matrix_store(self, memory: V, index: V, words: Sequence[V], is_turned: bool, dtype: Dtype) -> None:
        """Write 1, 2 or 4 matrices, which lanes hold and tell the places of as in `matrix_load`."""

    @abstractmethod
    def multiply_matrices(self, unit: Unit, a: Sequence[V], b: Sequence[V], sums: Sequence[V]) -> list[V]:
        """One instruction of a tensor core by each warp: sums + a @ b, in the unit's layouts."""

    @abstractmethod
    def show_tensor_cores(self) -> None:
        """Let warpgroups' products see what the thread wrote to shared memory, behind the next barrier."""

    @abstractmethod
    def multiply_shared(self, op: Op, a: Any, b: Any, layout: Layout, sums: list[V]) -> list[V]:
        """sums + a @ b of tiles in shared memory, by warpgroups; `sums` are registers of columns that there are."""

    @abstractmethod
    def settle_products(self, sums: list[V], pending: int, words: Sequence[V]) -> list[V]:
        """Wait for all open products but the last `pending`; these are the sums, and the words held, of the last."""

    @abstractmethod
    def round_tf32(self, x: V) -> V:
        """The nearest f32 whose mantissa has 10 bits."""

    @abstractmethod
    def rest_of_tf32(self, x: V) -> V:
        """What tensor cores, which cut f32 to 10 bits of mantissa, leave of it, so that cutting rounds it; inf: 0."""

    @abstractmethod
    def group_barrier(self) -> None:
        """Wait for all threads of the warpgroup, and see what they wrote to shared memory."""

    @abstractmethod
    def group_bits(self, bits: tuple[tuple[int, int], ...]) -> V:
        """The numbers of the warp's bits that are set, combined by XOR, as one number of all lanes."""

    @abstractmethod
    def take_turns(self, op: Op) -> V:
        """0 and 1 in turn, each time that the program comes to the op."""

    @abstractmethod
    def join_elements(self, elements: Sequence[V]) -> V:
        """Elements side by side in a word; one of 32 bits or more is a word."""

    def share(self, op: Op, tile: Any) -> Any:
        return thread_products.share(self, op, tile)

    def join_lanes(self, tile: Any) -> Any:
        return thread_folds.join_lanes(self, tile)

    def fetch(self, result: Value, tile: Any) -> Any:
        return thread_products.fetch(self, self.layouts[result], tile)

    def turned(self, tile: Any) -> Any:
        return thread_products.turned(tile)

    def ring(self, op: Op) -> Any:
        return thread_products.ring(self, op)

    def ring_in(self, op: Op, room: Any) -> Any:
        return thread_products.ring_in(op, room)

    def pipe(self, op: Op) -> Any:
        return thread_products.pipe(self, op)

    def slot(self, ring: Any, index: V) -> Any:
        return thread_products.slot(self, ring, index)

    def copy(self, op: Op, pointers: Any, ring: Any, slot: V, guard: V, mask: Any) -> None:
        thread_products.copy(self, op, pointers, ring, slot, guard, mask)

    def store_window(self, op: Op, window: Sequence[V], tile: Any) -> None:
        from gristmill.compiler.targets import thread_windows

        thread_windows.store_window(self, op, window, tile)

    def settle(self, op: Op, sums: Any, words: Any) -> Any:
        return thread_products.settle(self, op, sums, words)

    def take_left(self, op: Op, a: Any, sums: Layout) -> Any:
        from gristmill.compiler.targets import thread_parts

        return thread_parts.take(self, op, a, sums)

    def parts(self, op: Op, b: Any) -> Any:
        from gristmill.compiler.targets import thread_parts

        return thread_parts.parts(self, op, b)

    def product(self, op: Op, a: Any, b: Any, acc: Any) -> Any:
        return thread_products.product(self, op, a, b, acc)
