"""What a CUDA machine says to tensor cores and to other roles."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op
from gristmill.compiler.layout import Layout
from gristmill.compiler.machine import V
from gristmill.compiler.targets import cuda_groups, cuda_roles, cuda_tensor
from gristmill.compiler.targets.tensor_machine import TensorMachine
from gristmill.compiler.tensor import Unit
from gristmill.dtypes import Dtype

FixedBits = tuple[tuple[int, int], ...]


class CudaTensorMachine(TensorMachine):
    """The words in PTX."""

    function: Any
    warp: V
    say: Any
    in_prologue: Any
    shuffle_index: Any

    def copy_ahead(self, memory: V, index: V, pointer: V, width: int, guard: V | None, mask: V | None) -> None:
        cuda_tensor.copy_ahead(self, memory, index, pointer, width, guard, mask)

    def commit_copies(self) -> None:
        cuda_tensor.commit_copies(self)

    def wait_for_copies(self, pending: int) -> None:
        cuda_tensor.wait_for_copies(self, pending)

    def matrix_load(self, memory: V, index: V, count: int, is_turned: bool, dtype: Dtype) -> list[V]:
        return cuda_tensor.matrix_load(self, memory, index, count, is_turned, dtype)

    def matrix_store(self, memory: V, index: V, words: Sequence[V], is_turned: bool, dtype: Dtype) -> None:
        cuda_tensor.matrix_store(self, memory, index, words, is_turned, dtype)

    def multiply_matrices(self, unit: Unit, a: Sequence[V], b: Sequence[V], sums: Sequence[V]) -> list[V]:
        return cuda_tensor.multiply_matrices(self, unit, a, b, sums)

    def show_tensor_cores(self) -> None:
        if self.function.has_groups:
            self.say('call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()')

    def multiply_shared(self, op: Op, a: Any, b: Any, layout: Layout, sums: list[V]) -> list[V]:
        return cuda_groups.multiply_shared(self, op, a, b, layout, sums)

    def settle_products(self, sums: list[V], pending: int, words: Sequence[V]) -> list[V]:
        return cuda_groups.settle(self, sums, pending, words)

    @functools.cache  # noqa: B019
    def uniform_warp(self) -> V:
        """The warp's index, in a register that its lanes are known to have in common."""
        with self.in_prologue():
            return self.shuffle_index(self.warp, self.constant(dt.i32, 0))

    def pipe(self, op: Op) -> Any:
        return cuda_roles.begin(self, super().pipe(op))

    def take(self, pipe: Any) -> V:
        return cuda_roles.take(self, pipe)

    def release(self, pipe: Any, guard: V) -> None:
        cuda_roles.release(self, pipe, guard)

    def next_slot(self, pipe: Any) -> None:
        cuda_roles.next_slot(self, pipe)

    def acquire(self, pipe: Any) -> V:
        return cuda_roles.acquire(self, pipe)

    def expect(self, pipe: Any, size: int) -> None:
        cuda_roles.expect(self, pipe, size)

    def copy_window(self, op: Op, window: Sequence[V], pipe: Any, ring: Any, slot: V) -> None:
        from gristmill.compiler.targets import cuda_windows

        cuda_windows.copy_window(self, op, window, pipe, ring, slot)

    def wait_for_stores(self, pending: int) -> None:
        self.say(f'call void asm sideeffect "cp.async.bulk.wait_group.read {pending};", "~{{memory}}"()')

    def store_box(
        self, op: Op, window: Sequence[V], buffer: Any, place: tuple[int, int], first: tuple[int, int], groups: Any
    ) -> None:
        from gristmill.compiler.targets import cuda_windows

        cuda_windows.store_box(self, op, window, buffer, place, first, groups)

    def commit_stores(self) -> None:
        self.say('call void asm sideeffect "cp.async.bulk.commit_group;", "~{memory}"()')

    def publish(self, pipe: Any) -> None:
        cuda_roles.publish(self, pipe)

    @functools.cache  # noqa: B019
    def group_bits(self, bits: FixedBits) -> V:
        with self.in_prologue():
            warp = self.uniform_warp()
            result = self.constant(dt.i32, 0)
            for bit, number in bits:
                is_set = self.compare(
                    "!=", self.bit_and(warp, self.constant(dt.i32, 1 << bit)), self.constant(dt.i32, 0)
                )
                part = self.select(is_set, self.constant(dt.i32, number), self.constant(dt.i32, 0))
                result = self.bit_xor(result, part)
            return result

    def round_tf32(self, x: V) -> V:
        return cuda_tensor.round_tf32(self, x)

    def rest_of_tf32(self, x: V) -> V:
        return cuda_tensor.rest_of_tf32(self, x)

    def group_barrier(self) -> None:
        cuda_groups.barrier(self)

    def wait_turn(self) -> None:
        cuda_groups.wait_turn(self)

    def pass_turn(self) -> None:
        cuda_groups.pass_turn(self)

    def take_turns(self, op: Op) -> V:
        return cuda_roles.take_turns(self)

    def join_elements(self, elements: Sequence[V]) -> V:
        return cuda_tensor.join_elements(self, elements)
