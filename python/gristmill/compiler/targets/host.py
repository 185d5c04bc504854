"""The machine for CPUs: one thread holds a whole tile, and sweeps it in vectors that LLVM fits to the processor.

The function runs programs `begin` to `end` of the grid; parameters lie packed as for the CUDA driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import For, Function, If, Op, Pointer, Value, While
from gristmill.compiler.machine import Combine, Step, V
from gristmill.compiler.targets import (
    Target,
    host_atomic,
    host_debug,
    host_folds,
    host_loops,
    host_memory,
    host_moves,
)
from gristmill.compiler.targets.host_tiles import Buffer, Index, Kept, Lazy, Tile, Uses, pending
from gristmill.compiler.targets.llvm import LlvmMachine, half_bits
from gristmill.dtypes import Dtype
from gristmill.errors import Position
from gristmill.language import polynomials

ACCUMULATORS = 4


class HostMachine(LlvmMachine):
    """Emits one function with the host ABI; `text()` is its LLVM IR without the module's header."""

    kinds = ("host",)
    shared_bytes = 0

    def __init__(self, function: Function, target: Target):
        super().__init__()
        self.function = function
        self.target = target
        uses = Uses(function)
        self.kept, self.crossings = uses.kept, uses.crossings
        self.waiting: list[Kept] = []
        self.program: V = V("%program", dt.i64)

    def text(self) -> str:
        """Lower the whole function and return its text."""
        values = self._parameters()
        with self.in_prologue():
            self.grid = [self._grid(axis) for axis in range(3)]
        self.label = "programs"
        self.run(self.function.body, values)
        head = f"define void @{self.function.name}(ptr %parameters, ptr %grid, i64 %begin, i64 %end) nounwind {{"
        start = [
            "  %is_empty = icmp sge i64 %begin, %end",
            "  br i1 %is_empty, label %done, label %programs",
            "programs:",
        ]
        start.append(f"  %program = phi i64 [ %begin, %entry ], [ %next, %{self.label} ]")
        stop = ["  %next = add nsw i64 %program, 1", "  %is_last = icmp sge i64 %next, %end"]
        stop += ["  br i1 %is_last, label %done, label %programs", "done:", "  ret void", "}"]
        body = [head, "entry:", *self.prologue, *start, *self.lines, *stop]
        return "\n".join([*sorted(self.declarations), "", *body]) + "\n"

    def _parameters(self) -> dict[Value, Any]:
        values: dict[Value, Any] = {}
        offset = 0
        with self.in_prologue():
            for parameter in self.function.parameters:
                dtype = parameter.type.dtype
                size = 8 if isinstance(dtype, Pointer) else dtype.itemsize
                offset = -(-offset // size) * size
                address = self.emit(f"getelementptr i8, ptr %parameters, i64 {offset}", Pointer(dt.i8))
                values[parameter] = host_memory.read_element(self, address, dtype)
                offset += size
        return values

    def _grid(self, axis: int) -> V:
        address = self.emit(f"getelementptr i64, ptr %grid, i64 {axis}", Pointer(dt.i64))
        return self.emit(f"load i64, {self.typed(address)}", dt.i64)

    # -- numbers

    def element_type(self, dtype: Dtype | Pointer) -> str:
        """bf16, and f16 where the processor cannot convert it, are 16-bit integers to LLVM: it would call libraries."""
        is_opaque = dtype == dt.bf16 or (dtype == dt.f16 and self.target.level == "v2")
        return "i16" if is_opaque else super().element_type(dtype)

    def constant(self, dtype: Dtype, number: float | int | bool) -> V:
        if dtype.is_float and self.element_type(dtype) == "i16":
            return V(str(half_bits(float(number), dtype)), dtype)
        return super().constant(dtype, number)

    def exp2(self, x: V, *, is_gradual: bool = False) -> V:
        return polynomials.exp2(self, x)

    def float_extremum(self, which: str, x: V, y: V, keep_nan: bool) -> V:
        """One instruction where an operand is a constant: x86 hands out the second operand if one is NaN."""
        predicate = ">" if which == "max" else "<"
        if x.text[0] != "%":
            x, y = y, x
        if self._is_nan(y) and not keep_nan:
            return x
        if y.text[0] != "%":
            first, second = (y, x) if keep_nan else (x, y)
            return self.select(self.compare(predicate, first, second), first, second)
        if not keep_nan:
            return self.intrinsic(f"{which}num", x, y)
        better = self.select(self.compare(predicate, x, y), x, y)
        return self.select(self.compare("!=", x, x), x, better)

    def _is_nan(self, x: V) -> bool:
        scalar = self.constant(x.dtype, math.nan)  # type: ignore[arg-type]
        return x.text in (scalar.text, self.widen(scalar, x.lanes).text)

    def fma(self, x: V, y: V, z: V) -> V:
        """Without the instruction f32 goes through f64, which holds the product exactly."""
        if self.target.level != "v2" or x.dtype != dt.f32:
            return super().fma(x, y, z)
        wide = [self.cast(v, dt.f64) for v in (x, y, z)]
        return self.cast(self.add(self.multiply(*wide[:2]), wide[2]), dt.f32)

    def resize_float(self, x: V, dtype: Dtype) -> V:
        if x.dtype == dt.bf16 and dtype.bits >= 32:
            word = self.shift_left(self.cast(self.bitcast(x, dt.u16), dt.u32), self.constant(dt.u32, 16))
            return self.cast(self.bitcast(word, dt.f32), dtype)
        if x.dtype == dt.f32 and dtype == dt.bf16:
            return self._to_bfloat(x)
        if self.target.level == "v2" and x.dtype == dt.f16 and dtype.bits >= 32:
            return self.cast(host_memory.half_to_single(self, x), dtype)
        if self.target.level == "v2" and x.dtype == dt.f32 and dtype == dt.f16:
            return host_memory.single_to_half(self, x)
        return super().resize_float(x, dtype)

    def _to_bfloat(self, x: V) -> V:
        """Round to nearest even on the bits: no runtime library has the conversion everywhere."""
        word = self.bitcast(x, dt.u32)
        sixteen, one = self.constant(dt.u32, 16), self.constant(dt.u32, 1)
        odd = self.bit_and(self.shift_right(word, sixteen), one)
        rounded = self.add(word, self.add(odd, self.constant(dt.u32, 0x7FFF)))
        quiet = self.bit_or(word, self.constant(dt.u32, 0x400000))
        kept = self.select(self.compare("!=", x, x), quiet, rounded)
        return self.bitcast(self.cast(self.shift_right(kept, sixteen), dt.u16), dt.bf16)

    # -- the grid

    def program_id(self, axis: int) -> V:
        position = self.program
        for size in self.grid[:axis]:
            position = self.emit(f"udiv {self.typed(position)}, {size.text}", dt.i64)
        return position if axis == 2 else self.emit(f"urem {self.typed(position)}, {self.grid[axis].text}", dt.i64)

    def num_programs(self, axis: int) -> V:
        return self.grid[axis]

    # -- tiles

    def at(self, tile: V | Tile, index: Index) -> V:
        """Return a tile's elements at an index; a scalar stands for all."""
        if isinstance(tile, V):
            return tile
        if isinstance(tile, Lazy):
            return tile.element(index)
        if isinstance(tile, Buffer):
            return host_memory.read(self, tile, index)
        if tile.is_stored:
            return self.at(tile.buffer, index)
        if tile not in index.memo:
            index.memo[tile] = self.widen(self.at(tile.made, index), index.lanes)
            host_memory.write(self, tile.buffer, index, index.memo[tile])
        return index.memo[tile]

    def buffer(self, value: Value) -> Buffer:
        """Reserve memory for a tile, on the stack of the thread that runs the program."""
        dtype = value.type.dtype
        with self.in_prologue():
            size = f"[{value.type.elements} x {host_memory.kept_type(self, dtype)}]"
            kept = Pointer(dtype)  # type: ignore[arg-type]
            return Buffer(value.type.shape, self.emit(f"alloca {size}, align 64", kept))

    def map(self, function: Callable[..., V], result: Value, tiles: Sequence[V | Tile]) -> V | Tile:
        if result.type.is_scalar:
            return function(*tiles)
        return Lazy(result.type.shape, lambda i: function(*(self.at(t, i) for t in tiles)), [(t, True) for t in tiles])

    def uniform(self, result: Value, element: V) -> V | Tile:
        return element if result.type.is_scalar else Lazy(result.type.shape, lambda i: element)

    def coordinates(self, result: Value, axis: int) -> Tile:
        shape, dtype = result.type.shape, result.type.dtype
        assert isinstance(dtype, Dtype)
        return Lazy(shape, lambda i: self.cast(host_memory.coordinate(self, i, shape, axis), dtype))

    def reshape(self, result: Value, tile: V | Tile) -> V | Tile:
        if isinstance(tile, V):
            return self.uniform(result, tile)
        return Lazy(result.type.shape, lambda i: self.at(tile, i), [(tile, True)])

    def broadcast(self, result: Value, tile: V | Tile) -> V | Tile:
        assert not isinstance(tile, V)
        source = tile.shape
        strides = [0 if s == 1 else _stride(source, axis) for axis, s in enumerate(source)]
        return self._moved(result, tile, strides)

    def permute(self, result: Value, tile: V | Tile, order: Sequence[int]) -> V | Tile:
        assert not isinstance(tile, V)
        moved = self._moved(result, tile, [_stride(tile.shape, axis) for axis in order])
        *outer, first, last = range(len(order))
        moved.turned = tile if tuple(order) == (*outer, last, first) else None
        return moved

    def _moved(self, result: Value, tile: Tile, strides: list[int]) -> Lazy:
        shape = result.type.shape
        return Lazy(shape, lambda i: self.at(tile, host_memory.moved(self, i, shape, strides)), [(tile, False)])

    # -- memory

    def load(self, op: Op, pointers: Any, mask: Any, other: Any) -> V | Tile:
        if op.results[0].type.is_scalar:
            return host_memory.load_scalar(self, op, pointers, mask, other)
        sources = [(t, True) for t in (pointers, mask, other) if t is not None]
        return Lazy(op.results[0].type.shape, lambda i: host_memory.load(self, op, i, pointers, mask, other), sources)

    def store(self, op: Op, pointers: Any, value: Any, mask: Any) -> None:
        tiles = [t for t in (pointers, value, mask) if t is not None]
        self.settle([] if op in self.crossings else tiles, everything=True)
        if isinstance(pointers, V):
            return host_memory.store_scalar(self, op, pointers, value, mask)
        host_loops.sweep(self, pointers.shape, tiles, lambda i: host_memory.store(self, op, i, pointers, value, mask))

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
        return host_atomic.atomic(self, kind, pointer, operands, mask, sem)

    def update(self, op: Op, pointers: Any, operands: Sequence[Any], mask: Any | None, step: Step) -> Any:
        return host_atomic.update(self, op, pointers, operands, mask, step)

    def each(self, tiles: Sequence[Any], mask: Any | None, visit: Callable[[Sequence[V], V | None], None]) -> None:
        host_atomic.each(self, tiles, mask, visit)

    def print_line(self, texts: Sequence[str], numbers: Sequence[tuple[V, str]], mask: V | None) -> None:
        host_debug.print_line(self, texts, numbers, mask)

    def fail(self, message: str, position: Position | None, failed: V) -> None:
        host_debug.fail(self, message, position, failed)

    def settle(self, tiles: Sequence[Any], *, everything: bool = False, needed: set[Any] | None = None) -> None:
        """Store kept tiles that the coming sweep over `tiles` cannot store on its way, or that it may overtake."""
        on_the_way: dict[Kept, bool] = {}
        for tile in tiles:
            pending(tile, True, on_the_way)
        for kept in list(self.waiting):
            if kept.is_stored:
                continue
            passes = on_the_way.get(kept)
            if passes is False or (passes is None and (everything or (needed is not None and kept in needed))):
                self.force(kept)
        self.waiting = [k for k in self.waiting if not k.is_stored]

    def force(self, kept: Kept) -> None:
        """Store a kept tile in a sweep of its own."""
        self.settle([kept.made])
        if not kept.is_stored:
            host_loops.sweep(self, kept.shape, [kept], lambda i: self.at(kept, i))

    def reduce(self, op: Op, tiles: Sequence[Any], axis: int, combine: Combine, identities: Any = None) -> list[Any]:
        self.settle(tiles)
        return host_folds.reduce(self, op, tiles, axis, combine, identities)

    def join(self, result: Value, x: Any, y: Any) -> Any:
        return host_moves.join(self, result, x, y)

    def split(self, results: Sequence[Value], tile: Any) -> list[Any]:
        return list(host_moves.split(self, results, tile))

    def exchange(self, result: Value, tile: Any, axis: int, mask: int) -> Any:
        return host_moves.exchange(self, result, tile, axis, mask)

    def gather(self, result: Value, tile: Any, places: Any, axis: int) -> Any:
        return host_moves.gather(self, result, tile, places, axis)

    def histogram(self, result: Value, tile: Any, mask: Any) -> Any:
        return host_moves.histogram(self, result, tile, mask)

    def dot(self, result: Value, a: Any, b: Any, acc: Any) -> Any:
        return host_moves.dot(self, result, a, b, acc)

    def scan(self, op: Op, tiles: Sequence[Any], axis: int, combine: Combine, *, reverse: bool) -> list[Any]:
        self.settle(tiles)
        return host_folds.scan(self, op, tiles, axis, combine, reverse)

    # -- statements

    def run_op(self, op: Op, values: dict[Value, Any]) -> None:
        super().run_op(op, values)
        for value in op.results:
            if value in self.kept and isinstance(values[value], Lazy):
                values[value] = Kept(value.type.shape, values[value], self.buffer(value))
                self.waiting.append(values[value])

    def run_if(self, statement: If, values: dict[Value, Any]) -> None:
        host_loops.run_if(self, statement, values)

    def run_for(self, loop: For, values: dict[Value, Any]) -> None:
        host_loops.run_for(self, loop, values)

    def run_while(self, loop: While, values: dict[Value, Any]) -> None:
        host_loops.run_while(self, loop, values)


def _stride(shape: tuple[int, ...], axis: int) -> int:
    stride = 1
    for size in shape[axis + 1 :]:
        stride *= size
    return stride
