"""The machine that executes what ThreadMachine composes: all threads of a program's blocks at once, step by step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, For, Function, If, Op, Place, Pointer, Statement, Value, While
from gristmill.compiler.layout import LANE_BITS, Layout
from gristmill.compiler.machine import V
from gristmill.compiler.simt import lone, printing, tensor, updates
from gristmill.compiler.simt.arithmetic import ArithmeticMachine
from gristmill.compiler.simt.memory import GlobalMemory, element_of
from gristmill.compiler.simt.numbers import Numbers, convert, from_bits, same_bits, storage, to_bits
from gristmill.compiler.simt.pipes import PipeMachine, reserved
from gristmill.compiler.simt.races import Clock
from gristmill.compiler.simt.reports import COMPILER_FIX, Reports, spread
from gristmill.compiler.simt.roles import Roles
from gristmill.compiler.simt.shared import Copies, SharedMemory, SharedTile
from gristmill.compiler.targets.llvm import LlvmMachine
from gristmill.compiler.targets.thread_parts import terms
from gristmill.compiler.targets.threads import Bits, Held, InShared, Late, ThreadMachine
from gristmill.compiler.tensor import GROUP_ROWS, GROUP_WARPS, Unit
from gristmill.dtypes import Dtype, parse_dtype
from gristmill.errors import Position, SimulationError
from gristmill.language.float8 import is_float8

Values = dict[Value, Any]


class SimtMachine(PipeMachine, ArithmeticMachine, ThreadMachine):
    """Executes one kernel: `run_program` for each program of a grid, over memory that keeps from one to the next.

    Threads are numbered lane by lane, warp by warp and block by block. Control flow is a program's: where threads
    would go different ways, that is reported.
    """

    kinds = ("simt", "cuda", "threads")

    def __init__(self, function: Function):
        self.function = function
        self.layouts = function.layouts
        self.constancy = function.constancy
        self.num_warps = function.num_warps
        self.num_blocks = function.num_blocks
        self.loop_depth = 0
        self.awaited = []
        threads = 32 * self.num_warps
        self.index = np.arange(threads * self.num_blocks)
        self.known_bits: dict[Any, Any] = {}
        self.clock = Clock(threads)
        self.reports = Reports(self.clock)
        self.memory = GlobalMemory(len(self.index), self.clock, self.reports)
        self.shared_memory = SharedMemory(function.used_bytes, self.num_blocks, self.reports)
        self.places: Iterator[Place] = iter(())
        self.copies = Copies()
        self.roles = Roles(self)
        self.op: Op | None = None
        self.statement: Statement | None = None
        self.sites: dict[Statement | None, int] = {None: 0}
        self.needed = lone.needed_by(function)
        self.grid: Sequence[int] = (1, 1, 1)
        self.rank = 0  # of a block among those that share a program

    # -- a call

    def bind(self, arguments: Mapping[str, Any]) -> dict[Value, Any]:
        """Return the parameters' registers: addresses for arrays, numbers for scalars."""
        with np.errstate(all="ignore"):
            bound = {value: self._bound(value, arguments[value.name]) for value in self.function.parameters}
        self.memory.watch()
        return bound

    def _bound(self, parameter: Value, argument: Any) -> Numbers:
        dtype = parameter.type.dtype
        if isinstance(dtype, Pointer):
            if parse_dtype(argument.dtype) != dtype.element:
                message = f"`{parameter.name}` has dtype {argument.dtype}, the kernel takes {dtype.element}"
                raise SimulationError(message, fix=f"pass an array of {dtype.element}")
            return Numbers(np.int64(self.memory.add(parameter.name, argument)), dtype)
        if dtype == dt.bf16:
            return Numbers(convert(np.float64(argument), dt.f64, dtype), dtype)
        return Numbers(np.asarray(argument).astype(storage(dtype))[()], dtype)

    def run_program(self, program: Sequence[int], bound: Values) -> None:
        """Execute one program of the grid: by each block of a cluster that shares it, one after another.

        Such a block copies by itself what others would copy to it: where their copies meet is not seen here.
        """
        for rank in range(self.function.num_ctas):
            self.rank = rank
            self._run_block(program, bound)

    def _run_block(self, program: Sequence[int], bound: Values) -> None:
        self.reports.program = program
        self.clock.next_program()
        self.shared_memory.poison(Place(0, self.function.used_bytes))
        self.shared_memory.end_products(0)
        self.copies, self.turns = Copies(), dict[Op, int]()
        values, function = dict(bound), self.function
        with np.errstate(all="ignore"):
            if function.producer is None or function.common is None:
                self.run(function.body, values)
                return
            self.run(function.common, values)
            programs = (function.body, function.producer)
            self.roles = Roles(self)
            self.roles.run(*(functools.partial(self.run, program, dict(values)) for program in programs))

    def program_id(self, axis: int) -> V:
        return Numbers(np.int32(self.reports.program[axis]), dt.i32)

    def cluster_rank(self) -> V:
        return Numbers(np.int32(self.rank), dt.i32)

    def num_programs(self, axis: int) -> V:
        return Numbers(np.int32(self.grid[axis]), dt.i32)

    # -- reports

    @contextmanager
    def at(self, statement: Statement) -> Iterator[None]:
        """Report what happens inside at this statement, or at the one around it if it has no position."""
        outer, self.statement = self.statement, statement if statement.position else self.statement
        self.clock.site = self._site(self.statement)
        try:
            yield
        except SimulationError as error:
            error.position = error.position or (self.statement.position if self.statement else None)
            raise
        finally:
            self.statement = outer
            self.clock.site = self._site(outer)

    def _site(self, statement: Statement | None) -> int:
        if statement not in self.sites:
            assert statement is not None and statement.position is not None
            self.sites[statement] = len(self.reports.sites)
            self.reports.sites.append(_place(statement.position))
        return self.sites[statement]

    def agreed(self, x: V, statement: Statement) -> Any:
        """Return the number that all threads have; raises at `statement` if they do not."""
        each = np.asarray(cast(Numbers, x).each)
        if each.ndim == 0 or (each == each[0]).all():
            return each.ravel()[0]
        other = int(np.argmax(each != each[0]))
        message = f"`{statement.name}`: threads disagree on where to go: {_show(each[0])} in {self.reports.thread(0)}"
        message += f"; {_show(each[other])} in {self.reports.thread(other)}"
        fix = "let the condition follow from scalars that all threads have"
        raise SimulationError(message, fix=fix, position=statement.position)

    # -- threads

    def thread_bits(self, lane: Bits, warp: Bits, block: Bits, dtype: Dtype) -> V:
        return Numbers(self._thread_bits(tuple(lane), tuple(warp), tuple(block)).astype(storage(dtype)), dtype)

    def _thread_bits(self, *parts: tuple[tuple[int, int], ...]) -> Any:
        if parts not in self.known_bits:
            starts = (0, LANE_BITS, LANE_BITS + self.num_warps.bit_length() - 1)
            found = np.zeros_like(self.index)
            for start, bits in zip(starts, parts, strict=True):
                for bit, number in bits:
                    found ^= (self.index >> start + bit & 1) * number
            self.known_bits[parts] = found
        return self.known_bits[parts]

    def is_thread(self, lane_bits: Sequence[int], warp_bits: Sequence[int], block_bits: Sequence[int]) -> V:
        parts = (lane_bits, 0), (warp_bits, LANE_BITS), (block_bits, 2 * LANE_BITS)
        own = self._thread_bits(*(tuple((i, 1 << i + shift) for i in bits) for bits, shift in parts))
        return Numbers(own == 0, dt.bool_)

    def shuffle_xor(self, x: V, mask: int) -> V:
        return Numbers(self._spread(x)[self.index ^ mask], x.dtype)

    def shuffle_index(self, x: V, lane: V) -> V:
        return Numbers(self._spread(x)[self.index & ~31 | self._spread(lane)], x.dtype)

    def any_of_warp(self, x: V) -> V:
        warps = self._spread(x).reshape(-1, 32).any(1)
        return Numbers(np.repeat(warps, 32), dt.bool_)

    def in_warps(self, condition: V, compute: Callable[[], list[V]], otherwise: list[V]) -> list[V]:
        warps = self._spread(condition).reshape(-1, 32)
        assert (warps == warps[:, :1]).all(), "threads of a warp go different ways"
        if not warps.any():
            return otherwise
        return [self.select(condition, x, y) for x, y in zip(compute(), otherwise, strict=True)]

    def _spread(self, x: V) -> Any:
        return spread(cast(Numbers, x).each, self.index)

    def barrier(self) -> None:
        self.clock.barrier()

    def warp_barrier(self) -> None:
        self.clock.warp_barrier()

    def from_blocks(self, own: Sequence[V]) -> list[list[V]]:
        assert self.loop_depth == 0, "a transaction barrier opens once"
        return [self._of_blocks(x) for x in own]

    def _of_blocks(self, x: V) -> list[V]:
        each = self._spread(x).reshape(self.num_blocks, -1)
        bits = to_bits(np.ascontiguousarray(each), x.dtype)
        if not same_bits(bits, bits[:, :1], x.dtype).all():
            message = "threads of a block push different numbers to the other blocks"
            raise SimulationError(message, fix=COMPILER_FIX)
        return [Numbers(number, x.dtype) for number in each[:, 0]]

    # -- shared memory

    def shared_at(self, place: Place, dtype: Dtype | Pointer, elements: int) -> V:
        self.shared_memory.poison(place)
        return _handle(SharedTile(self.shared_memory, place.start, dtype, elements))

    def shared_store(self, memory: V, index: V, x: V) -> None:
        self.shared_store_wide(memory, index, [x])

    def shared_load(self, memory: V, index: V, dtype: Dtype | Pointer) -> V:
        return self.shared_load_wide(memory, index, dtype, 1)[0]

    def shared_store_wide(self, memory: V, index: V, elements: Sequence[V]) -> None:
        reserved(memory).store(cast(Numbers, index).each, [cast(Numbers, x).each for x in elements])

    def shared_load_wide(self, memory: V, index: V, dtype: Dtype | Pointer, width: int) -> list[V]:
        return [Numbers(x, dtype) for x in reserved(memory).load(cast(Numbers, index).each, width)]

    def shared_add(self, memory: V, index: V, x: V, guard: V | None) -> None:
        holds = True if guard is None else cast(Numbers, guard).each
        reserved(memory).add(cast(Numbers, index).each, cast(Numbers, x).each, holds)

    def matrix_load(self, memory: V, index: V, count: int, is_turned: bool, dtype: Dtype) -> list[V]:
        each = reserved(memory).load(cast(Numbers, index).each, 16 // dtype.itemsize)
        rows = np.stack([np.ascontiguousarray(to_bits(x, dtype)) for x in each], -1).view(np.uint8)
        words = tensor.rows_to_words(rows, count, is_turned)
        return [Numbers(w.view(np.float32), dt.f32) if dtype == dt.f32 else Numbers(w, dt.u32) for w in words]

    def matrix_store(self, memory: V, index: V, words: Sequence[V], is_turned: bool, dtype: Dtype) -> None:
        rows = tensor.words_to_rows([self._spread(x) for x in words], is_turned)
        lanes = self.index % 32 < 8 * len(words)
        halves = [from_bits(np.ascontiguousarray(rows[:, i]), dtype) for i in range(8)]
        reserved(memory).store(cast(Numbers, index).each, halves, lanes)

    def multiply_matrices(self, unit: Unit, a: Sequence[V], b: Sequence[V], sums: Sequence[V]) -> list[V]:
        words = [[self._spread(x) for x in part] for part in (a, b, sums)]
        return [Numbers(each, unit.summed) for each in tensor.multiply(unit, *words)]

    def show_tensor_cores(self) -> None:
        """Products see what stores do."""

    def multiply_shared(self, op: Op, a: Any, b: Any, layout: Layout, sums: list[V]) -> list[V]:
        columns, depth, pairs = op.attributes["columns"], op.attributes["depth"], terms(a, b)
        rows = GROUP_ROWS * self.function.present_warps // GROUP_WARPS if self.function.absent_warps else None
        *small, large = (
            self._matrix(x, (rows, None), y.dtype)[:, :depth] @ self._matrix(y, (depth, columns))[:depth]
            for x, y in pairs
        )
        product = np.where(np.isnan(sum(small)), 0, sum(small)) + large if small else large
        registers = [r for r in range(layout.registers) if layout.at(r)[1] < columns]
        results: list[V] = []
        for register, x in zip(registers, sums, strict=True):
            own = tensor.coordinates(layout, register, self.index)
            results.append(Numbers(tensor.rounded(self._spread(x) + product[own[0], own[1]], x.dtype), x.dtype))
        shared = dict.fromkeys(x for pair in pairs for x in pair if not isinstance(x, Held))
        self.shared_memory.begin_product([reserved(x.memory).bytes_from(_start(x), x.elements) for x in shared])
        if op.attributes["pending"] is not None:
            self.shared_memory.end_products(op.attributes["pending"])
        return results

    def _matrix(self, tile: Any, used: tuple[int | None, int | None], dtype: Dtype | None = None) -> Any:
        """A tile in shared memory, or of words of `dtype` in registers, as warpgroups multiply it, in f64."""
        if isinstance(tile, Held):
            words = [self._spread(x) for x in tile.registers]
            return tensor.matrix_of_words(tile.layout, words, dtype, self.index)
        matrix = tensor.matrix_of(tile, reserved(tile.memory), _start(tile), used)
        if is_float8(tile.dtype):
            matrix = convert(matrix, tile.dtype, dt.f32)
        return (tensor.cut_tf32(matrix) if tile.dtype == dt.f32 else matrix).astype(np.float64)

    def group_barrier(self) -> None:
        self.clock.barrier()

    def group_bits(self, bits: tuple[tuple[int, int], ...]) -> V:
        return self.thread_bits((), bits, (), dt.i32)

    def rest_of_tf32(self, x: V) -> V:
        return Numbers(tensor.rest_of_tf32(cast(Numbers, x).each), x.dtype)

    def settle_products(self, sums: list[V], pending: int, words: Sequence[V]) -> list[V]:
        self.shared_memory.end_products(pending)
        return sums

    def round_tf32(self, x: V) -> V:
        return Numbers(tensor.round_tf32(cast(Numbers, x).each), x.dtype)

    def take_turns(self, op: Op) -> V:
        self.turns[op] = 1 - self.turns.get(op, 1)
        return self.constant(dt.i32, self.turns[op])

    def join_elements(self, elements: Sequence[V]) -> V:
        if len(elements) == 1:
            return elements[0]
        return Numbers(tensor.join([cast(Numbers, x).each for x in elements], cast(Dtype, elements[0].dtype)), dt.u32)

    # -- global memory

    def wide_load(
        self, pointer: V, width: int, mask: V | None, others: Sequence[V] | None, hints: dict[str, object]
    ) -> list[V]:
        dtype, instead = element_of(pointer), None
        if others is not None:
            instead = [cast(Numbers, x).each for x in others]
        guard = None if mask is None else cast(Numbers, mask).each
        loaded = self.memory.load(cast(Numbers, pointer).each, guard, instead, width, dtype, self._readers())
        return [Numbers(each, dtype) for each in loaded]

    def _readers(self) -> Any:
        """In which threads it matters what the op loads."""
        results = self.op.results if self.op is not None else []
        spare = self.needed.get(results[0]) if results else lone.EVERYBODY
        if not spare:
            return np.full(self.index.shape, spare is not None)
        bits = [[bit for part, bit in spare if part == name] for name in ("lane", "warp", "block")]
        return spread(cast(Numbers, self.is_thread(*bits)).each, self.index)

    def keep(self, elements: Sequence[V]) -> list[V]:
        return list(elements)

    def kept(self, words: Sequence[V], like: Sequence[V]) -> list[V]:
        return list(words)

    def wide_store(self, pointer: V, elements: Sequence[V], mask: V | None, hints: dict[str, object]) -> None:
        guard = None if mask is None else cast(Numbers, mask).each
        each = [cast(Numbers, x).each for x in elements]
        self.memory.store(cast(Numbers, pointer).each, guard, each, element_of(pointer))

    def atomic(
        self, kind: str, pointer: V, operands: Sequence[V], mask: V | None, *order: str, is_used: bool = True
    ) -> V:
        """Update one element of each thread in a step of its own where `mask` holds, and return what was there.

        Programs run one after another, so that `order`, memory order and scope, makes no difference.
        """
        guard, dtype = None if mask is None else cast(Numbers, mask).each, element_of(pointer)
        each = [cast(Numbers, x).each for x in operands]
        return Numbers(updates.update(self.memory, kind, cast(Numbers, pointer).each, each, guard, dtype), dtype)

    def print_line(self, texts: Sequence[str], numbers: Sequence[tuple[V, str]], mask: V | None) -> None:
        """Print a line of each thread where `mask` holds, numbers formatted as C does by their specification."""
        guard = None if mask is None else cast(Numbers, mask).each
        printing.print_lines(self.index, texts, cast(Any, numbers), guard)

    def fail(self, message: str, position: Position | None, failed: V) -> None:
        """End the call with a report where `failed` is true."""
        printing.check(self.reports, message, position, cast(Numbers, failed).each, self.index)

    def load(self, op: Op, pointers: Any, mask: Any, other: Any) -> Any:
        return self._late(op, super().load(op, pointers, mask, other))

    def held(self, op: Op, kept: InShared) -> Held:
        return cast(Held, self._late(op, super().held(op, kept)))

    def _late(self, op: Op, tile: Any) -> Any:
        """Registers that are emitted later still belong to their own op."""
        if isinstance(tile, Held) and isinstance(tile.registers, Late):
            tile.registers.emit = self._belonging(op, tile.registers.emit)
        return tile

    def _belonging(self, op: Op, emit: Callable[[int], dict[int, V]]) -> Callable[[int], dict[int, V]]:
        def emit_there(register: int) -> dict[int, V]:
            with self.at(op):
                return emit(register)

        return emit_there

    # -- statements

    def run(self, block: Block, values: Values) -> list[Any]:
        # As the emitting machines do: statement by statement.
        return [_settled(tile) for tile in LlvmMachine.run(cast(Any, self), block, values)]

    def run_op(self, op: Op, values: Values) -> None:
        """Execute an op; what it reserves is the same memory whenever it comes."""
        outer = self.op, self.places
        with self.at(op):
            self.op, self.places = op, iter(op.places)
            LlvmMachine.run_op(cast(Any, self), op, values)
            self.op, self.places = outer

    def repeat(self, stop: int, step: int, initial: list[V], body: Callable[[V, list[V]], list[V]]) -> list[V]:
        carried = initial
        for position in range(0, stop, step):
            carried = body(self.constant(dt.i64, position), carried)
        return carried

    def run_if(self, statement: If, values: Values) -> None:
        is_so = self.agreed(values[statement.operands[0]], statement)
        tiles = self.run(statement.then if is_so else statement.otherwise, values)
        values.update(zip(statement.results, tiles, strict=True))

    def run_for(self, loop: For, values: Values) -> None:
        index, upper, step = (values[v] for v in loop.operands[:3])
        if self.agreed(step, loop) <= 0:
            message = f"a loop's step must be positive, got {int(step.each)}"
            raise SimulationError(message, fix="count up and subtract in the body", position=loop.position)
        carried = [_settled(values[v]) for v in loop.operands[3:]]
        self.loop_depth += 1
        while self.agreed(self.compare("<", index, upper), loop):
            values.update(zip(loop.body.arguments, [index, *carried], strict=True))
            carried = self.run(loop.body, values)
            index = self._following(index, step, loop)
        self.loop_depth -= 1
        values.update(zip(loop.results, carried, strict=True))

    def _following(self, index: V, step: V, loop: For) -> V:
        following = self.add(index, step)
        if self.agreed(self.compare("<", following, index), loop):
            message = f"the loop's variable overflows {following.dtype.name}, so that the loop never ends"
            raise SimulationError(message, fix="give its bounds a wider dtype", position=loop.position)
        return following

    def run_while(self, loop: While, values: Values) -> None:
        carried = [_settled(values[v]) for v in loop.operands]
        self.loop_depth += 1
        while True:
            values.update(zip(loop.condition.arguments, carried, strict=True))
            goes_on, *carried = self.run(loop.condition, values)
            if not self.agreed(goes_on, loop):
                break
            values.update(zip(loop.body.arguments, carried, strict=True))
            carried = self.run(loop.body, values)
        self.loop_depth -= 1
        values.update(zip(loop.results, carried, strict=True))


def _settled(tile: Any) -> Any:
    """A tile that leaves its block has all its registers by then."""
    if isinstance(tile, Held) and isinstance(tile.registers, Late):
        return Held(tile.layout, list(tile.registers))
    return tile


def _place(position: Position) -> str:
    return f"{position.file}:{position.line}:{position.column}"


def _show(number: Any) -> str:
    return str(number.item()).lower()


def _start(tile: Any) -> Any:
    return 0 if tile.start is None else cast(Numbers, tile.start).each


def _handle(tile: SharedTile) -> V:
    return Numbers(tile, Pointer(tile.dtype.element if isinstance(tile.dtype, Pointer) else tile.dtype))
