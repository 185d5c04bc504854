"""The machine that emits NVPTX LLVM IR: a thread is a thread."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import For, Function, If, Op, Place, Pointer, Value, While
from gristmill.compiler.machine import V
from gristmill.compiler.targets import cuda_cluster, cuda_roles, cuda_tickets
from gristmill.compiler.targets.cuda_products import CudaTensorMachine
from gristmill.compiler.targets.llvm import LlvmMachine
from gristmill.compiler.targets.threads import Bits, Held, ThreadMachine
from gristmill.dtypes import Dtype
from gristmill.errors import Position

SHARED = "gristmill_shared"  # all of a block's shared memory: its size is the launch's
LOWEST_WAITING_SM = 90  # from here on blocks may start while the kernel before ends, and wait for it before they read
SREG = "llvm.nvvm.read.ptx.sreg"
AXES = "xyz"
Values = dict[Value, V | Held]
FixedBits = tuple[tuple[int, int], ...]
Test = Callable[[Values], V]
Step = Callable[[Values], list[V | Held]]


class CudaMachine(CudaTensorMachine, LlvmMachine, ThreadMachine):
    """Emits one kernel; `text()` is its LLVM IR without the module's header."""

    kinds = ("cuda", "threads")
    pointer_type = "ptr addrspace(1)"
    has_half_arithmetic = True

    def __init__(self, function: Function):
        super().__init__()
        self.function = function
        self.layouts = function.layouts
        self.constancy = function.constancy
        self.num_warps = function.num_warps
        self.num_blocks = function.num_blocks
        self.ctas = function.num_blocks * function.num_ctas
        self.has_met = False  # whether blocks of the cluster wait for each other on the way to here
        self.places: Iterator[Place] = iter(())
        self.awaited = []
        self.has_float8 = function.has_clusters  # both came with sm_89 and sm_90; there is no target between
        self.outlined: dict[str, str] = {}
        self.role = ""  # of the program that is emitted, where warps have roles
        self.parameters = {value: V(f"%{value.name}", value.type.dtype) for value in function.parameters}
        with self.in_prologue():
            tid = self.call(f"{SREG}.tid.x", dt.i32)
            self.lane = self.emit(f"and {self.typed(tid)}, 31", dt.i32)
            self.warp = self.emit(f"lshr {self.typed(tid)}, 5", dt.i32)
            is_alone = self.num_blocks == 1
            self.rank = V("0", dt.i32) if is_alone else self.call(f"{SREG}.cluster.ctarank", dt.i32)
            self._bools = {v: self._as_bool(p) for v, p in self.parameters.items() if v.type.dtype == dt.bool_}

    def _as_bool(self, parameter: V) -> V:
        return self.emit(f"trunc i8 {parameter.text} to i1", dt.bool_)

    def text(self) -> str:
        """Lower the whole function and return its text."""
        from gristmill.compiler.targets import cuda_windows

        values: dict[Value, V | Held] = {**self.parameters, **self._bools}
        if self.function.producer is None:
            self.wait_for_kernel()
            self.run(self.function.body, values)
        else:
            cuda_roles.text(self, values)
        cuda_cluster.arrive(self)
        threads = self.function.block_threads
        declared = [self._declare(v) for v in self.function.parameters]
        parameters = ", ".join([*declared, *cuda_windows.parameters(self)])
        head = f"define ptx_kernel void @{self.function.name}({parameters})"
        cluster = f' "nvvm.cluster_dim"="{self.ctas},1,1"' if self.ctas > 1 else ""
        is_counted = self.function.blocks_per_sm > 1 or self.function.counts_blocks
        several = f' "nvvm.minctasm"="{self.function.blocks_per_sm}"' if is_counted else ""
        head += f' "nvvm.reqntid"="{threads},1,1"{several}{cluster} {{'
        body = [head, "entry:", *self.prologue, *self.lines, "  ret void", "}"]
        if self.shared_bytes:
            body.insert(0, f"@{SHARED} = external addrspace(3) global [0 x i8], align 1024")
        return "\n".join([*sorted(self.declarations), "", *self.outlined.values(), *body]) + "\n"

    def wait_for_kernel(self) -> None:
        """Wait for the kernel before this one, which may not have ended when blocks start."""
        if self.function.sm >= LOWEST_WAITING_SM:
            if self.num_blocks > 1:  # the next kernel's clusters find their multiprocessors while the last ones end
                cuda_roles.let_start(self)
            self.declarations.add("declare void @llvm.nvvm.griddepcontrol.wait()")
            self.say("call void @llvm.nvvm.griddepcontrol.wait()")

    def _declare(self, parameter: Value) -> str:
        if isinstance(parameter.type.dtype, Pointer):
            return f"{self.pointer_type} align {self.function.facts.get(parameter, 1)} %{parameter.name}"
        kind = "i8" if parameter.type.dtype == dt.bool_ else self.element_type(parameter.type.dtype)
        return f"{kind} %{parameter.name}"

    # -- words

    def program_id(self, axis: int) -> V:
        name = "clusterid" if self.ctas > 1 else "ctaid"
        return self.call(f"{SREG}.{name}.{AXES[axis]}", dt.i32)

    def cluster_rank(self) -> V:
        return self.call(f"{SREG}.cluster.ctarank", dt.i32)

    def num_programs(self, axis: int) -> V:
        name = "nclusterid" if self.ctas > 1 else "nctaid"
        return self.call(f"{SREG}.{name}.{AXES[axis]}", dt.i32)

    def divide(self, x: V, y: V) -> V:
        if x.dtype.bits == 64:
            return self.divide_exactly(x, y)
        if x.dtype.bits == 16:
            return self._in_single(self.divide, x, y)
        return self.call("llvm.nvvm.div.full", dt.f32, x, y)

    def divide_roughly(self, x: V, y: V) -> V:
        if x.dtype != dt.f32:
            return self.divide(x, y)
        if x.text == self.constant(dt.f32, 1.0).text:
            return self.call("llvm.nvvm.rcp.approx.ftz.f", dt.f32, y)
        return self.call("llvm.nvvm.div.approx.f", dt.f32, x, y)

    def outline(self, name: str, function: Callable[..., V], *operands: V) -> V:
        """f64 takes many instructions for each element: one function serves all registers."""
        if operands[0].dtype != dt.f64:
            return function(self, *operands)
        symbol = f"{self.function.name}__{name}"
        if symbol not in self.outlined:
            self.outlined[symbol] = ""
            self.outlined[symbol] = self._function_text(symbol, function, operands)
        arguments = ", ".join(map(self.typed, operands))
        return self.emit(f"call double @{symbol}({arguments})", dt.f64)

    def _function_text(self, symbol: str, function: Callable[..., V], operands: Sequence[V]) -> str:
        outer, self.lines, label, self.label = self.lines, [], self.label, "entry"
        parameters = [V(f"%a{i}", x.dtype) for i, x in enumerate(operands)]
        result = function(self, *parameters)
        lines, self.lines, self.label = self.lines, outer, label
        head = f"define internal double @{symbol}({', '.join(map(self.typed, parameters))}) noinline nounwind {{"
        return "\n".join([head, "entry:", *lines, f"  ret double {result.text}", "}"])

    def exp2(self, x: V, *, is_gradual: bool = False) -> V:
        from gristmill.language import polynomials

        if x.dtype != dt.f32:
            return self.outline("exp2", polynomials.exp2, x)
        return self.call("llvm.nvvm.ex2.approx.f" if is_gradual else "llvm.nvvm.ex2.approx.ftz.f", dt.f32, x)

    def rsqrt(self, x: V) -> V:
        return self.call("llvm.nvvm.rsqrt.approx.f", dt.f32, x) if x.dtype == dt.f32 else super().rsqrt(x)

    def multiply_add(self, x: V, y: V, z: V) -> V:
        return self.fma(x, y, z)

    def add_index(self, x: V, y: V) -> V:
        return self.emit(f"add nuw nsw {self.typed(x)}, {y.text}", x.dtype)

    def thread_bits(self, lane: Bits, warp: Bits, block: Bits, dtype: Dtype) -> V:
        with self.in_prologue():
            return self._thread_bits(tuple(lane), tuple(warp), tuple(block), dtype)

    @functools.cache  # noqa: B019
    def _thread_bits(self, lane: FixedBits, warp: FixedBits, block: FixedBits, dtype: Dtype) -> V:
        result, used = self.constant(dt.i32, 0), 0
        for index, bits in ((self.lane, lane), (self.warp, warp), (self.rank, block)):
            for mask, shift, covers in _runs(bits):
                part = self._shifted(index, mask, shift)
                if used == 0:
                    result = part
                else:
                    word = "xor" if covers & used else "or disjoint"
                    result = self.emit(f"{word} {self.typed(result)}, {part.text}", dt.i32)
                used |= covers
        return self.cast(result, dtype) if dtype != dt.i32 else result

    def _shifted(self, index: V, mask: int, shift: int) -> V:
        warps = self.function.present_warps + self.function.producer_warps
        counts = {self.lane: 32, self.warp: warps, self.rank: self.num_blocks}
        whole = (1 << (counts[index] - 1).bit_length()) - 1
        part = index if mask == whole else self.emit(f"and {self.typed(index)}, {mask}", dt.i32)
        if shift == 0:
            return part
        word = f"shl nuw nsw {self.typed(part)}, {shift}" if shift > 0 else f"lshr {self.typed(part)}, {-shift}"
        return self.emit(word, dt.i32)

    def is_thread(self, lane_bits: Sequence[int], warp_bits: Sequence[int], block_bits: Sequence[int]) -> V:
        parts = ((lane_bits, 0), (warp_bits, 5), (block_bits, 10))
        lane, warp, block = (tuple((i, 1 << (i + shift)) for i in bits) for bits, shift in parts)
        with self.in_prologue():
            return self.compare("==", self._thread_bits(lane, warp, block, dt.i32), self.constant(dt.i32, 0))

    def shuffle_xor(self, x: V, mask: int) -> V:
        return self._shuffle("bfly", x, f"i32 {mask}")

    def shuffle_index(self, x: V, lane: V) -> V:
        return self._shuffle("idx", x, self.typed(lane))

    def any_of_warp(self, x: V) -> V:
        self.declarations.add("declare i1 @llvm.nvvm.vote.any.sync(i32, i1)")
        return self.emit(f"call i1 @llvm.nvvm.vote.any.sync(i32 -1, {self.typed(x)})", dt.bool_)

    def in_warps(self, condition: V, compute: Callable[[], list[V]], otherwise: list[V]) -> list[V]:
        then, end, before = self.new_label("some"), self.new_label("end"), self.label
        self.say(f"br i1 {condition.text}, label %{then}, label %{end}")
        self.begin_label(then)
        found, last = compute(), self.label
        self.say(f"br label %{end}")
        self.begin_label(end)
        pairs = zip(found, otherwise, strict=True)
        return [self.phi(x.dtype, 0, [(x, last), (y, before)]) for x, y in pairs]

    def _shuffle(self, mode: str, x: V, operand: str) -> V:
        bits = 8 if x.dtype == dt.bool_ else x.dtype.bits
        if bits == 64:
            return self._shuffle_halves(mode, x, operand)
        word = self.bitcast(x, dt.u32) if bits == 32 else self.to_word(x)
        name = f"llvm.nvvm.shfl.sync.{mode}.i32"
        self.declarations.add(f"declare i32 @{name}(i32, i32, i32, i32)")
        moved = self.emit(f"call i32 @{name}(i32 -1, {self.typed(word)}, {operand}, i32 31)", dt.u32)
        return self.bitcast(moved, x.dtype) if bits == 32 else self.from_word(moved, x.dtype)

    def to_word(self, x: V) -> V:
        assert isinstance(x.dtype, Dtype)
        narrow = x if x.dtype.kind != "float" else self.bitcast(x, dt.u8 if x.dtype.bits == 8 else dt.u16)
        return self.cast(narrow, dt.u32)

    def from_word(self, word: V, dtype: Dtype | Pointer) -> V:
        assert isinstance(dtype, Dtype)
        if dtype.kind == "float":
            return self.bitcast(self.cast(word, dt.u8 if dtype.bits == 8 else dt.u16), dtype)
        return self.cast(word, dtype)

    def _shuffle_halves(self, mode: str, x: V, operand: str) -> V:
        pair = self.emit(f"bitcast {self.typed(self.bitcast(x, dt.u64))} to <2 x i32>", dt.u32, 2)
        moved = [self._shuffle(mode, self._element(pair, i), operand) for i in range(2)]
        return self.bitcast(self._join_words(moved), x.dtype)

    def _join_words(self, halves: Sequence[V]) -> V:
        vector = self._pack(halves)
        return self.emit(f"bitcast {self.typed(vector)} to i64", dt.u64)

    def barrier(self) -> None:
        if self.function.producer is not None:
            name = "llvm.nvvm.barrier.cta.sync.aligned.count"
            self.declarations.add(f"declare void @{name}(i32, i32)")
            return self.say(f"call void @{name}(i32 {cuda_roles.CONSUMERS}, i32 {32 * self.function.present_warps})")
        self.declarations.add("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)")
        self.say("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")

    def warp_barrier(self) -> None:
        self.declarations.add("declare void @llvm.nvvm.bar.warp.sync(i32)")
        self.say("call void @llvm.nvvm.bar.warp.sync(i32 -1)")

    @property
    def shared_bytes(self) -> int:
        return self.function.used_bytes

    def shared_at(self, place: Place, dtype: Dtype | Pointer, elements: int) -> V:
        element = dtype.element if isinstance(dtype, Pointer) else dtype
        return V(f"getelementptr (i8, ptr addrspace(3) @{SHARED}, i32 {place.start})", Pointer(element))

    def shared_place(self, memory: V, index: V, dtype: Dtype | Pointer) -> str:
        place = f"ptr addrspace(3) {memory.text}, {self.typed(index)}"
        return f"ptr addrspace(3) {self.emit(f'getelementptr {self.memory_type(dtype)}, {place}', dtype).text}"

    def _shared_address(self, memory: V, index: V, dtype: Dtype | Pointer) -> str:
        return f"{self.shared_place(memory, index, dtype)}, align {dtype.itemsize}"

    def from_blocks(self, own: Sequence[V]) -> list[list[V]]:
        return cuda_cluster.from_blocks(self, own)

    def shared_store(self, memory: V, index: V, x: V) -> None:
        stored = self.cast(x, dt.u8) if x.dtype == dt.bool_ else x
        self.say(f"store {self.typed(stored)}, {self._shared_address(memory, index, x.dtype)}")

    def shared_load(self, memory: V, index: V, dtype: Dtype | Pointer) -> V:
        address = self._shared_address(memory, index, dtype)
        if dtype == dt.bool_:
            return self.cast(self.emit(f"load i8, {address}", dt.u8), dt.bool_)
        return self.emit(f"load {self.element_type(dtype)}, {address}", dtype)

    def shared_add(self, memory: V, index: V, x: V, guard: V | None) -> None:
        place = self.emit(f"ptrtoint {self.shared_place(memory, index, x.dtype)} to i32", dt.i32)
        operands = ", ".join(map(self.typed, (place, x, guard or self.constant(dt.bool_, True))))
        self.say(f'call void asm sideeffect "@$2 red.shared.add.u32 [$0], $1;", "r,r,b,~{{memory}}"({operands})')

    def shared_store_wide(self, memory: V, index: V, elements: Sequence[V]) -> None:
        kept = [self.cast(x, dt.u8) if x.dtype == dt.bool_ else x for x in elements]
        value = self._pack(kept) if len(kept) > 1 else kept[0]
        size = len(kept) * value.dtype.bits // 8
        self.say(f"store {self.typed(value)}, {self.shared_place(memory, index, kept[0].dtype)}, align {size}")

    def shared_load_wide(self, memory: V, index: V, dtype: Dtype, width: int) -> list[V]:
        kept, lanes = dt.u8 if dtype == dt.bool_ else dtype, width if width > 1 else 0
        place = f"{self.shared_place(memory, index, kept)}, align {width * dtype.itemsize}"
        value = self.emit(f"load volatile {self.type_of(kept, lanes)}, {place}", kept, lanes)
        elements = [self._element(value, i) for i in range(width)] if lanes else [value]
        return [self.cast(x, dtype) for x in elements]

    # -- global memory

    def wide_load(
        self, pointer: V, width: int, mask: V | None, others: Sequence[V] | None, hints: dict[str, object]
    ) -> list[V]:
        from gristmill.compiler.targets import cuda_memory

        return cuda_memory.wide_load(self, pointer, width, mask, others, hints)

    def keep(self, elements: Sequence[V]) -> list[V]:
        from gristmill.compiler.targets import cuda_memory

        return cuda_memory.keep(self, elements)

    def kept(self, words: Sequence[V], like: Sequence[V]) -> list[V]:
        from gristmill.compiler.targets import cuda_memory

        return cuda_memory.kept(self, words, like)

    def wide_store(self, pointer: V, elements: Sequence[V], mask: V | None, hints: dict[str, object]) -> None:
        from gristmill.compiler.targets import cuda_memory

        cuda_memory.wide_store(self, pointer, elements, mask, hints)

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
        from gristmill.compiler.targets import cuda_atomic

        return cuda_atomic.atomic(self, kind, pointer, operands, mask, (sem, scope), is_used)

    def atomic_pair(
        self, pointer: V, pair: Sequence[V], mask: V | None, sem: str, scope: str, *, is_used: bool = True
    ) -> list[V]:
        from gristmill.compiler.targets import cuda_atomic

        return cuda_atomic.atomic_pair(self, pointer, pair, mask, (sem, scope), is_used)

    def inline_assembly(self, op: Op, tiles: Sequence[V | Held]) -> Any:
        """Run an op's PTX on tiles of one shape."""
        from gristmill.compiler.targets import cuda_assembly

        return cuda_assembly.run(self, op, tiles)

    def print_line(self, texts: Sequence[str], numbers: Sequence[tuple[V, str]], mask: V | None) -> None:
        from gristmill.compiler.targets import cuda_debug

        cuda_debug.print_line(self, texts, numbers, mask)

    def fail(self, message: str, position: Position | None, failed: V) -> None:
        from gristmill.compiler.targets import cuda_debug

        cuda_debug.fail(self, message, position, failed)

    def _element(self, vector: V, i: int) -> V:
        return self.emit(f"extractelement {self.typed(vector)}, i32 {i}", vector.dtype)

    def _pack(self, elements: Sequence[V]) -> V:
        lanes, dtype = len(elements), elements[0].dtype
        vector = V("poison", dtype, lanes)
        for i, x in enumerate(elements):
            vector = self.emit(f"insertelement {self.typed(vector)}, {self.typed(x)}, i32 {i}", dtype, lanes)
        return vector

    # -- statements

    def run_op(self, op: Op, values: dict[Value, V | Held]) -> None:
        outer, self.places = self.places, iter(op.places)
        super().run_op(op, values)
        self.places = outer

    def _registers(self, tile: V | Held) -> Sequence[V]:
        return tile.registers if isinstance(tile, Held) else [tile]

    def _like(self, tile: V | Held, registers: list[V]) -> V | Held:
        return Held(tile.layout, registers) if isinstance(tile, Held) else registers[0]

    def run_if(self, statement: If, values: dict[Value, V | Held]) -> None:
        labels = [self.new_label("then"), self.new_label("else"), self.new_label("end")]
        condition = values[statement.operands[0]]
        assert isinstance(condition, V)
        self.say(f"br i1 {condition.text}, label %{labels[0]}, label %{labels[1]}")
        outcomes, had_met = [], self.has_met
        ends: list[tuple[bool, int]] = []
        for label, block in zip(labels, statement.blocks, strict=False):
            self.has_met = had_met
            self.begin_label(label)
            tiles = self.run(block, dict(values))
            outcomes.append((tiles, self.label))
            ends.append((self.has_met, len(self.lines)))
            self.say(f"br label %{labels[2]}")
        cuda_cluster.meet(self, ends)
        self.begin_label(labels[2])
        (then, then_label), (other, other_label) = outcomes
        for result, a, b in zip(statement.results, then, other, strict=True):
            pairs = zip(self._registers(a), self._registers(b), strict=True)
            merged = [self.phi(x.dtype, 0, [(x, then_label), (y, other_label)]) for x, y in pairs]
            values[result] = self._like(a, merged)

    def run_for(self, loop: For, values: dict[Value, V | Held]) -> None:
        lower, upper, step = (values[v] for v in loop.operands[:3])
        assert isinstance(lower, V) and isinstance(upper, V) and isinstance(step, V)
        induction = loop.body.arguments[0]

        def goes_on(inner: dict[Value, V | Held]) -> V:
            i = inner[induction]
            assert isinstance(i, V)
            return self.compare("<", i, upper)

        tickets = values[self.function.tickets] if loop.attributes.get("draws") and self.function.tickets else None

        def advance(inner: dict[Value, V | Held]) -> list[V | Held]:
            if tickets is not None:
                cuda_tickets.draw(self, tickets, upper, step)
            yields = self.run(loop.body, inner)
            i = inner[induction]
            assert isinstance(i, V) and isinstance(i.dtype, Dtype)
            return [self.add(i, step) if tickets is None else cuda_tickets.following(self, tickets, i.dtype), *yields]

        initial: list[V | Held] = [lower, *(values[v] for v in loop.operands[3:])]
        final = self._loop(loop.body.arguments, initial, values, goes_on, advance)
        values.update(zip(loop.results, final[1:], strict=True))

    def run_while(self, loop: While, values: dict[Value, V | Held]) -> None:
        def goes_on(inner: dict[Value, V | Held]) -> V:
            inner.update(zip(loop.condition.arguments, (inner[v] for v in loop.body.arguments), strict=True))
            condition, *carried = self.run(loop.condition, inner)
            inner.update(zip(loop.body.arguments, carried, strict=True))
            return condition

        initial = [values[v] for v in loop.operands]
        final = self._loop(loop.body.arguments, initial, values, goes_on, lambda inner: self.run(loop.body, inner))
        values.update(zip(loop.results, final, strict=True))

    def _loop(
        self,
        arguments: list[Value],
        initial: list[V | Held],
        values: dict[Value, V | Held],
        goes_on: Test,
        advance: Step,
    ) -> list[V | Held]:
        head, body, end = self.new_label("head"), self.new_label("body"), self.new_label("end")
        before = self.label
        self.say(f"br label %{head}")
        self.begin_label(head)
        phis: list[tuple[int, V, V]] = []
        inner = dict(values)
        for argument, tile in zip(arguments, initial, strict=True):
            inner[argument] = self._like(tile, [self._open_phi(x, phis) for x in self._registers(tile)])
        carried = [inner[a] for a in arguments]
        self.loop_depth += 1
        condition = goes_on(inner)
        self.say(f"br i1 {condition.text}, label %{body}, label %{end}")
        self.begin_label(body)
        next_tiles = advance(inner)
        self.say(f"br label %{head}")
        self.loop_depth -= 1
        self._close_phis(phis, [x for t in next_tiles for x in self._registers(t)], before)
        self.begin_label(end)
        return carried

    def _open_phi(self, x: V, phis: list[tuple[int, V, V]]) -> V:
        result = V(self.fresh(), x.dtype)
        phis.append((len(self.lines), result, x))
        self.lines.append("")
        return result

    def _close_phis(self, phis: list[tuple[int, V, V]], nexts: list[V], before: str) -> None:
        for (line, result, first), following in zip(phis, nexts, strict=True):
            pairs = f"[ {first.text}, %{before} ], [ {following.text}, %{self.label} ]"
            self.lines[line] = f"  {result.text} = phi {self.type_of(result.dtype)} {pairs}"


def _runs(bits: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Group (bit, number) into runs that one mask and shift serve: (mask of the index, left shift, bits covered)."""
    runs: list[tuple[int, int, int]] = []
    for bit, number in bits:
        for single in (1 << i for i in range(number.bit_length()) if number >> i & 1):
            shift = single.bit_length() - 1 - bit
            same = next((k for k, (mask, s, _) in enumerate(runs) if s == shift and not mask >> bit & 1), None)
            if same is None:
                runs.append((1 << bit, shift, single))
            else:
                mask, _, covers = runs[same]
                runs[same] = (mask | 1 << bit, shift, covers | single)
    return runs
