"""Tiles spread over the threads of a block: how views, memory access, reductions and relayouts follow from layouts.

Shared by the machine that emits PTX and one that executes the same steps; both supply the words below.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op, Value
from gristmill.compiler.layout import Coordinates, Layout, combine, flatten, owner_bits, unflatten
from gristmill.compiler.machine import Machine, Step, V
from gristmill.dtypes import Dtype

Bits = Sequence[tuple[int, int]]


@dataclass(eq=False)
class Held:
    """A tile in registers: `registers[r]` is each thread's register r of `layout`; replicated ones are one object."""

    layout: Layout
    registers: Sequence[V]


class Late(Sequence[V]):
    """Registers that are emitted when they are asked for: `emit(register)` gives that one and its neighbours."""

    def __init__(self, size: int, emit: Callable[[int], dict[int, V]]):
        self.size, self.emit, self.emitted = size, emit, dict[int, V]()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, register: Any) -> Any:
        if isinstance(register, slice):
            return [self[r] for r in range(*register.indices(self.size))]
        if not 0 <= register < self.size:
            raise IndexError(register)
        if register not in self.emitted:
            self.emitted |= self.emit(register)
        return self.emitted[register]


LATE_ACCESSES = 3  # that a store and the ones after it have asked for


@dataclass(eq=False)
class InShared:
    """A tile in shared memory, each thread's registers in slots of its own."""

    layout: Layout
    memory: V
    dtype: Dtype

    @property
    def width(self) -> int:
        """Registers that one access of 16 bytes takes."""
        return min(self.layout.registers, 16 // self.dtype.itemsize)


class ThreadMachine(Machine):
    """Composes tile methods from words on threads; subclasses supply the words."""

    layouts: dict[Value, Layout]
    constancy: dict[Value, int]
    num_warps: int
    num_blocks: int
    loop_depth: int

    # -- words

    @abstractmethod
    def thread_bits(self, lane: Bits, warp: Bits, block: Bits, dtype: Dtype) -> V:
        """XOR over (bit, number) of `number` where that bit of the lane's, warp's or block's index is set."""

    @abstractmethod
    def is_thread(self, lane_bits: Sequence[int], warp_bits: Sequence[int], block_bits: Sequence[int]) -> V:
        """Whether all these bits of the thread's index are 0."""

    @abstractmethod
    def shuffle_xor(self, x: V, mask: int) -> V: ...

    @abstractmethod
    def barrier(self) -> None: ...

    @abstractmethod
    def from_blocks(self, own: Sequence[V]) -> list[list[V]]:
        """Return what each block of the cluster has in place of each of `own`, which all threads of a block hold."""

    @abstractmethod
    def shared(self, dtype: Dtype, elements: int) -> V:
        """Reserve shared memory for the whole kernel; returns a handle."""

    @abstractmethod
    def shared_store(self, memory: V, index: V, x: V) -> None: ...

    @abstractmethod
    def shared_load(self, memory: V, index: V, dtype: Dtype) -> V: ...

    @abstractmethod
    def shared_store_wide(self, memory: V, index: V, elements: Sequence[V]) -> None:
        """Write consecutive elements; `index` is a multiple of their number."""

    @abstractmethod
    def shared_load_wide(self, memory: V, index: V, dtype: Dtype, width: int) -> list[V]:
        """Read them back; never folded into an earlier read, so that registers are free in between."""

    @abstractmethod
    def wide_load(
        self, pointer: V, width: int, mask: V | None, others: Sequence[V] | None, hints: dict[str, object]
    ) -> list[V]:
        """Read `width` consecutive elements; under a false mask none, and the results are `others`, or 0."""

    @abstractmethod
    def wide_store(self, pointer: V, elements: Sequence[V], mask: V | None, hints: dict[str, object]) -> None: ...

    # -- elementwise and views

    def map(self, function: Callable[..., V], result: Value, tiles: Sequence[V | Held]) -> V | Held:
        if result.type.is_scalar:
            return function(*tiles)
        helds = [t for t in tiles if isinstance(t, Held)]
        columns = [t.registers for t in helds]
        layout = self.layouts[result]
        group = min(self.constancy.get(result, 1), layout.vector_width())
        made: dict[tuple[int, ...], V] = {}

        def emit(r: int) -> dict[int, V]:
            row = [column[r] for column in columns]
            key = tuple(map(id, row))
            if key not in made:
                made[key] = registers[r - r % group] if r % group else function(*row)
            return {r: made[key]}

        registers = Late(layout.registers, emit)
        return Held(layout, registers if any(isinstance(c, Late) for c in columns) else list(registers))

    def uniform(self, result: Value, element: V) -> V | Held:
        if result.type.is_scalar:
            return element
        layout = self.layouts[result]
        return Held(layout, [element] * layout.registers)

    def coordinates(self, result: Value, axis: int) -> Held:
        layout, dtype = self.layouts[result], result.type.dtype
        assert isinstance(dtype, Dtype)
        thread = self._thread_coordinate(layout, axis, dtype)
        used = 0
        for basis in layout.lane + layout.warp + layout.block:
            used |= basis[axis]
        registers: dict[int, V] = {}
        for r in range(layout.registers):
            own = combine(layout.reg, r, len(layout.shape))[axis]
            if own not in registers:
                registers[own] = self._combine_index(thread, own, used)
        return Held(
            layout, [registers[combine(layout.reg, r, len(layout.shape))[axis]] for r in range(layout.registers)]
        )

    def _thread_coordinate(self, layout: Layout, axis: int, dtype: Dtype) -> V:
        parts = (layout.lane, layout.warp, layout.block)
        lane, warp, block = ([(i, b[axis]) for i, b in enumerate(part) if b[axis]] for part in parts)
        return self.thread_bits(lane, warp, block, dtype)

    def _combine_index(self, thread: V, own: int, used: int) -> V:
        if own == 0:
            return thread
        number = self.constant(thread.dtype, own)  # type: ignore[arg-type]
        return self.bit_xor(thread, number) if own & used else self.add_index(thread, number)

    def add_index(self, x: V, y: V) -> V:
        """x + y of indices that are known not to wrap."""
        return self.add(x, y)

    def _view(self, result: Value, tile: V | Held, source_of: Callable[[Coordinates], Coordinates]) -> V | Held:
        if not isinstance(tile, Held):
            return self.uniform(result, tile)
        layout = self.layouts[result]
        registers = []
        for r in range(layout.registers):
            source = tile.layout.register_holding(source_of(combine(layout.reg, r, len(layout.shape))))
            assert source >= 0, f"{result} needs a relayout"
            registers.append(tile.registers[source])
        return Held(layout, registers)

    def reshape(self, result: Value, tile: V | Held) -> V | Held:
        shape = result.type.shape
        return self._view(result, tile, lambda c: unflatten(flatten(c, shape), tile.layout.shape))  # type: ignore[union-attr]

    def broadcast(self, result: Value, tile: V | Held) -> V | Held:
        source = tile.layout.shape  # type: ignore[union-attr]
        return self._view(result, tile, lambda c: tuple(0 if s == 1 else x for x, s in zip(c, source, strict=True)))

    def permute(self, result: Value, tile: V | Held, order: Sequence[int]) -> V | Held:
        inverse = [list(order).index(i) for i in range(len(order))]
        return self._view(result, tile, lambda c: tuple(c[i] for i in inverse))

    # -- memory

    def load(self, op: Op, pointers: V | Held, mask: V | Held | None, other: V | Held | None) -> V | Held:
        if not isinstance(pointers, Held):
            assert not isinstance(mask, Held) and not isinstance(other, Held)
            return self.wide_load(pointers, 1, mask, None if other is None else [other], op.attributes)[0]
        width, layout = _width(op, pointers.layout), pointers.layout

        def emit(register: int) -> dict[int, V]:
            if (held := _representative(layout, register)) != register:
                return {register: loaded[held]}
            r = register - register % width
            group = range(r, r + width)
            guard = mask.registers[r] if isinstance(mask, Held) else None
            others = [other.registers[i] for i in group] if isinstance(other, Held) else None
            elements = self.wide_load(pointers.registers[r], width, guard, others, op.attributes)
            return dict(zip(group, elements, strict=True))

        loaded = Late(layout.registers, emit)
        return Held(self.layouts[op.results[0]], loaded if op.attributes.get("late") else list(loaded))

    def store(self, op: Op, pointers: V | Held, value: V | Held, mask: V | Held | None) -> None:
        if not isinstance(pointers, Held):
            owner = self._owner(range(5), self.warp_bits, range(self.num_blocks.bit_length() - 1))
            guards = [g for g in (owner, mask) if isinstance(g, V)]
            return self.wide_store(pointers, [value], self._all(guards), op.attributes)  # type: ignore[list-item]
        width, layout = _width(op, pointers.layout), pointers.layout
        owner = self._owner(*owner_bits(layout))
        assert isinstance(value, Held)
        firsts = _first_registers(layout, width)
        for i, r in enumerate(firsts):
            for ahead in firsts[i : i + LATE_ACCESSES]:
                _ = value.registers[ahead : ahead + width]
            guards = [g for g in (owner, mask.registers[r] if isinstance(mask, Held) else None) if g is not None]
            self.wide_store(pointers.registers[r], value.registers[r : r + width], self._all(guards), op.attributes)

    def update(self, op: Op, pointers: Any, operands: Sequence[Any], mask: Any | None, step: Step) -> Any:
        from gristmill.compiler.targets import thread_updates

        return thread_updates.update(self, op, pointers, operands, mask, step)

    def each(self, tiles: Sequence[Any], mask: Any | None, visit: Callable[[Sequence[V], V | None], None]) -> None:
        from gristmill.compiler.targets import thread_updates

        thread_updates.each(self, tiles, mask, visit)

    def wait_for_all(self) -> None:
        self.barrier()

    def _owner(self, lanes: Sequence[int], warps: Sequence[int], blocks: Sequence[int]) -> V | None:
        return self.is_thread(lanes, warps, blocks) if lanes or warps or blocks else None

    @property
    def warp_bits(self) -> range:
        return range(self.num_warps.bit_length() - 1)

    def _all(self, guards: Sequence[V]) -> V | None:
        result: V | None = None
        for guard in guards:
            result = guard if result is None else self.bit_and(result, guard)
        return result

    # -- a tile of one's own in shared memory

    def hold(self, tile: V | Held) -> InShared:
        """Copy each thread's registers to shared memory, where only the same thread reads them: no barrier."""
        assert isinstance(tile, Held)
        dtype = tile.registers[0].dtype
        assert isinstance(dtype, Dtype)
        kept = InShared(tile.layout, self.shared(dtype, tile.layout.registers * 32 * self.num_warps), dtype)
        width = kept.width
        for r in range(0, tile.layout.registers, width):
            self.shared_store_wide(kept.memory, self._slot(kept, r), tile.registers[r : r + width])
        return kept

    def held(self, op: Op, kept: InShared) -> Held:
        """Read a held tile back."""

        def emit(register: int) -> dict[int, V]:
            r = register - register % kept.width
            elements = self.shared_load_wide(kept.memory, self._slot(kept, r), kept.dtype, kept.width)
            return dict(enumerate(elements, r))

        registers = Late(kept.layout.registers, emit)
        return Held(kept.layout, registers if op.attributes.get("late") else list(registers))

    def _slot(self, kept: InShared, register: int) -> V:
        """Groups of `width` registers, thread by thread: neighbouring threads' groups are neighbours."""
        lane = [(i, kept.width << i) for i in range(5)]
        warp = [(i, kept.width << (5 + i)) for i in self.warp_bits]
        own = self.thread_bits(lane, warp, (), dt.i32)
        return self.add_index(own, self.constant(dt.i32, register * 32 * self.num_warps)) if register else own

    # -- across threads

    def reduce(self, op: Op, tile: V | Held, axis: int, combine_two: Callable[[V, V], V], identity: object) -> V | Held:
        assert isinstance(tile, Held)
        layout = tile.layout
        groups = _fold_registers(layout, tile.registers, axis, combine_two)
        _, lane_bits, warp_bits, block_bits = layout.split(axis)
        for key, x in groups.items():
            for bit in lane_bits:
                x = combine_two(x, self.shuffle_xor(x, 1 << bit))
            groups[key] = x
        if warp_bits:
            groups = self._reduce_warps(layout, axis, groups, warp_bits, combine_two)
        if block_bits:
            groups = self._reduce_blocks(layout, axis, groups, block_bits, combine_two)
        result = op.results[0]
        if result.type.is_scalar:
            return groups[()]
        target = self.layouts[result]
        keys = [combine(target.reg, r, len(target.shape)) for r in range(target.registers)]
        return Held(target, [groups[k] for k in keys])

    def _reduce_warps(
        self,
        layout: Layout,
        axis: int,
        groups: dict[Coordinates, V],
        warp_bits: list[int],
        combine_two: Callable[[V, V], V],
    ) -> dict[Coordinates, V]:
        """Exchange one value a warp (and lane that holds another one) through shared memory."""
        lanes = [i for i, b in enumerate(layout.lane) if not b[axis] and any(b)]
        all_warps = self.warp_bits
        dtype = next(iter(groups.values())).dtype
        assert isinstance(dtype, Dtype)
        span = len(groups) << len(lanes)
        memory = self.shared(dtype, span * self.num_warps)
        lane_index = [(bit, self.num_warps * len(groups) << i) for i, bit in enumerate(lanes)]
        own = self.thread_bits(lane_index, [(i, 1 << i) for i in all_warps], (), dt.i32)
        base = self.thread_bits(lane_index, [(i, 1 << i) for i in all_warps if i not in warp_bits], (), dt.i32)
        if self.loop_depth:
            self.barrier()
        for g, x in enumerate(groups.values()):
            self.shared_store(memory, self.add_index(own, self.constant(dt.i32, g * self.num_warps)), x)
        self.barrier()
        steps = _subsets(warp_bits)
        return {
            key: _fold([self._shared_at(memory, base, g * self.num_warps + s, dtype) for s in steps], combine_two)
            for g, key in enumerate(groups)
        }

    def _reduce_blocks(
        self,
        layout: Layout,
        axis: int,
        groups: dict[Coordinates, V],
        block_bits: list[int],
        combine_two: Callable[[V, V], V],
    ) -> dict[Coordinates, V]:
        """Exchange what each block has: all threads of a block have it where nothing but registers is left."""
        spread = layout.lane + layout.warp + layout.block
        assert all(not any(_without(basis, axis)) for basis in spread), (
            "other axes of a cluster's tile lie in registers"
        )
        parts = _subsets(block_bits)
        came = zip(groups, self.from_blocks(list(groups.values())), strict=True)
        return {key: _fold([numbers[b] for b in parts], combine_two) for key, numbers in came}

    def _shared_at(self, memory: V, base: V, shift: int, dtype: Dtype) -> V:
        return self.shared_load(memory, self.add_index(base, self.constant(dt.i32, shift)), dtype)

    def relayout(self, result: Value, tile: V | Held) -> V | Held:
        """Bring a tile to the layout of `result`: by renaming registers, or through shared memory."""
        assert isinstance(tile, Held)
        source, target = tile.layout, self.layouts[result]
        assert source.block == target.block, "a relayout stays within its block"
        keeps_threads = (source.lane, source.warp) == (target.lane, target.warp)
        if keeps_threads and all(source.register_holding(base) >= 0 for base in target.reg):
            return self._view(result, tile, lambda c: c)
        dtype = result.type.dtype
        assert isinstance(dtype, Dtype)
        memory = self.shared(dtype, result.type.elements)
        if self.loop_depth:
            self.barrier()
        for register, index in self._positions(source):
            self.shared_store(memory, index, tile.registers[register])
        self.barrier()
        loaded = {register: self.shared_load(memory, index, dtype) for register, index in self._positions(target)}
        return Held(target, [loaded[_representative(target, r)] for r in range(target.registers)])

    def _positions(self, layout: Layout) -> list[tuple[int, V]]:
        flat = [(i, flatten(b, layout.shape)) for i, b in enumerate(layout.lane) if any(b)]
        warp = [(i, flatten(b, layout.shape)) for i, b in enumerate(layout.warp) if any(b)]
        thread, used = self.thread_bits(flat, warp, (), dt.i32), 0
        for _, number in flat + warp:
            used |= number
        own = {r: flatten(combine(layout.reg, r, len(layout.shape)), layout.shape) for r in _first_registers(layout, 1)}
        return [(r, self._combine_index(thread, position, used)) for r, position in own.items()]


def _width(op: Op, layout: Layout) -> int:
    return min(int(op.attributes.get("width", 1)), layout.vector_width())


def _representative(layout: Layout, register: int) -> int:
    return layout.register_holding(combine(layout.reg, register, len(layout.shape)))


def _first_registers(layout: Layout, width: int) -> list[int]:
    """The first register of each group of `width`, without those that only replicate another."""
    return [r for r in range(0, layout.registers, width) if _representative(layout, r) == r]


def _fold_registers(
    layout: Layout, registers: Sequence[V], axis: int, combine_two: Callable[[V, V], V]
) -> dict[Coordinates, V]:
    groups: dict[Coordinates, list[V]] = {}
    for r in range(layout.registers):
        if _representative(layout, r) == r:
            own = combine(layout.reg, r, len(layout.shape))
            groups.setdefault(_without(own, axis), []).append(registers[r])
    return {key: _fold(values, combine_two) for key, values in groups.items()}


def _without(coordinates: Coordinates, axis: int) -> Coordinates:
    return coordinates[:axis] + coordinates[axis + 1 :]


def _subsets(bits: Sequence[int]) -> list[int]:
    """All numbers that have no bits but these."""
    return [sum(1 << bit for i, bit in enumerate(bits) if n >> i & 1) for n in range(1 << len(bits))]


CHAINS = 4


def _fold(values: list[V], combine_two: Callable[[V, V], V]) -> V:
    """Combine in a few independent chains, then those pairwise: short dependences, few live values."""
    chains = values[:CHAINS]
    for i, value in enumerate(values[CHAINS:]):
        chains[i % CHAINS] = combine_two(chains[i % CHAINS], value)
    while len(chains) > 1:
        half = (len(chains) + 1) // 2
        chains = [
            combine_two(chains[i], chains[i + half]) if i + half < len(chains) else chains[i] for i in range(half)
        ]
    return chains[0]
