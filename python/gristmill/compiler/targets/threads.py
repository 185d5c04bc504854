"""Tiles spread over the threads of a block: how views, memory access, reductions and relayouts follow from layouts.

Shared by the machine that emits PTX and one that executes the same steps; both supply the words below.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gristmill import dtypes as dt
from gristmill.compiler.banks import Arrangement, in_order
from gristmill.compiler.ir import Op, Place, Pointer, Value
from gristmill.compiler.layout import Coordinates, Layout, combine, flatten, owner_bits, unflatten
from gristmill.compiler.machine import Combine, Step, V
from gristmill.compiler.targets import thread_folds, thread_moves
from gristmill.compiler.targets.tensor_machine import TensorMachine
from gristmill.dtypes import Dtype

Bits = Sequence[tuple[int, int]]
PLACE_ALIGNMENT = 16


@dataclass(eq=False)
class Held:
    """A tile in registers: `registers[r]` is each thread's register r of `layout`; replicated ones are one object."""

    layout: Layout
    registers: Sequence[V]


class Late(Sequence[V]):
    """Registers that are emitted when they are asked for: `emit(register)` gives that one and its neighbours."""

    def __init__(self, size: int, emit: Callable[[int], dict[int, V]]):
        self.size, self.emit, self.emitted = size, emit, dict[int, V]()
        self.kept: dict[int, Callable[[], dict[int, V]]] = {}

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, register: Any) -> Any:
        if isinstance(register, slice):
            return [self[r] for r in range(*register.indices(self.size))]
        if not 0 <= register < self.size:
            raise IndexError(register)
        if register not in self.emitted:
            self.emitted |= self.kept.pop(register)() if register in self.kept else self.emit(register)
        return self.emitted[register]

    def put_away(self, first: int, width: int, m: ThreadMachine) -> None:
        """Emit `width` registers, and keep them side by side until one of them is asked for."""
        elements = self[first : first + width]
        words = m.keep(elements)

        def take_out() -> dict[int, V]:
            return dict(enumerate(m.kept(words, elements), first))

        for register in range(first, first + len(elements)):
            self.emitted.pop(register)
            self.kept[register] = take_out


FEW_TESTS = 8  # elements of a thread for each bool that its warp looks at before it branches
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


class ThreadMachine(TensorMachine):
    """Composes tile methods from words on threads; subclasses supply the words."""

    layouts: dict[Value, Layout]
    constancy: dict[Value, int]
    num_warps: int
    num_blocks: int
    loop_depth: int
    places: Iterator[Place]  # of the op that is lowered
    awaited: list[tuple[Late, int]]  # tiles whose first registers are read before the next exchange between blocks

    # -- words

    @abstractmethod
    def thread_bits(self, lane: Bits, warp: Bits, block: Bits, dtype: Dtype) -> V:
        """XOR over (bit, number) of `number` where that bit of the lane's, warp's or block's index is set."""

    @abstractmethod
    def is_thread(self, lane_bits: Sequence[int], warp_bits: Sequence[int], block_bits: Sequence[int]) -> V:
        """Whether all these bits of the thread's index are 0."""

    @abstractmethod
    def repeat(self, stop: int, step: int, initial: list[V], body: Callable[[V, list[V]], list[V]]) -> list[V]:
        """Run body(position, carried) for i64 positions 0, step, ... below `stop`."""

    @abstractmethod
    def shuffle_xor(self, x: V, mask: int) -> V: ...

    @abstractmethod
    def shuffle_index(self, x: V, lane: V) -> V:
        """What the lane of the same warp that `lane` names has in x."""

    @abstractmethod
    def any_of_warp(self, x: V) -> V:
        """Whether the bool x holds in some thread of the own warp."""

    @abstractmethod
    def in_warps(self, condition: V, compute: Callable[[], list[V]], otherwise: list[V]) -> list[V]:
        """What `compute` gives in warps where the condition holds, in all threads or in none; `otherwise` elsewhere."""

    @abstractmethod
    def keep(self, elements: Sequence[V]) -> list[V]:
        """The elements side by side in as few registers as hold them, until `kept` asks for them."""

    @abstractmethod
    def kept(self, words: Sequence[V], like: Sequence[V]) -> list[V]:
        """The elements that `keep` made `words` of, as many as `like` and of its dtype."""

    @abstractmethod
    def barrier(self) -> None: ...

    @abstractmethod
    def warp_barrier(self) -> None:
        """Wait for the threads of the own warp, and see what they wrote."""

    @abstractmethod
    def from_blocks(self, own: Sequence[V]) -> list[list[V]]:
        """Return what each block of the cluster has in place of each of `own`, which all threads of a block hold."""

    @abstractmethod
    def shared_at(self, place: Place, dtype: Dtype | Pointer, elements: int) -> V:
        """A handle of that many elements of shared memory, from the start of `place`."""

    def shared(self, dtype: Dtype | Pointer, elements: int) -> V:
        """Shared memory for good, or until a tile that is kept there is not needed any more."""
        return self.scratch([dtype], elements)[0]

    def scratch(self, dtypes: Sequence[Dtype | Pointer], elements: int) -> list[V]:
        """Shared memory for one exchange: it is written, then comes a barrier, then it is read; one handle a dtype.

        Where it lies, and whether a barrier comes first, the op's `places` say.
        """
        place = next(self.places)
        if place.has_barrier:
            self.barrier()
        handles, start = [], place.start
        for dtype in dtypes:
            handles.append(self.shared_at(Place(start, elements * dtype.itemsize), dtype, elements))
            start += -(-elements * dtype.itemsize // PLACE_ALIGNMENT) * PLACE_ALIGNMENT
        return handles

    @abstractmethod
    def shared_store(self, memory: V, index: V, x: V) -> None: ...

    @abstractmethod
    def shared_load(self, memory: V, index: V, dtype: Dtype | Pointer) -> V: ...

    @abstractmethod
    def shared_store_wide(self, memory: V, index: V, elements: Sequence[V]) -> None:
        """Write consecutive elements; `index` is a multiple of their number."""

    @abstractmethod
    def shared_load_wide(self, memory: V, index: V, dtype: Dtype, width: int) -> list[V]:
        """Read them back; never folded into an earlier read, so that registers are free in between."""

    @abstractmethod
    def shared_add(self, memory: V, index: V, x: V, guard: V | None) -> None:
        """Add to an element of shared memory, if `guard` holds, as one step."""

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

    def change(self, x: Held, condition: Held, others: Sequence[Held], function: Callable[..., V]) -> Held:
        """function(x, *others) where the condition holds, else x; warps branch where threads have few conditions."""
        columns = [condition.registers, x.registers, *(other.registers for other in others)]
        rows = {tuple(map(id, row)): row for row in zip(*columns, strict=True)}
        places = {key: place for place, key in enumerate(rows)}
        tests = list({id(row[0]): row[0] for row in rows.values()}.values())

        def compute() -> list[V]:
            return [self.select(test, function(*row), row[0]) for test, *row in rows.values()]

        if len(tests) * FEW_TESTS > len(rows):
            changed = compute()
        else:
            goes = self.any_of_warp(functools.reduce(self.bit_or, tests))
            changed = self.in_warps(goes, compute, [row[1] for row in rows.values()])
        return Held(x.layout, [changed[places[tuple(map(id, row))]] for row in zip(*columns, strict=True)])

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
                registers[own] = self.combine_index(thread, own, used)
        return Held(
            layout, [registers[combine(layout.reg, r, len(layout.shape))[axis]] for r in range(layout.registers)]
        )

    def _thread_coordinate(self, layout: Layout, axis: int, dtype: Dtype) -> V:
        parts = (layout.lane, layout.warp, layout.block)
        lane, warp, block = ([(i, b[axis]) for i, b in enumerate(part) if b[axis]] for part in parts)
        return self.thread_bits(lane, warp, block, dtype)

    def combine_index(self, thread: V, own: int, used: int) -> V:
        """thread XOR own, where `thread` has no bits but `used`: what they do not share is added, often for free."""
        if own & used:
            thread = self.bit_xor(thread, self.constant(thread.dtype, own & used))  # type: ignore[arg-type]
        rest = own & ~used
        return self.add_index(thread, self.constant(thread.dtype, rest)) if rest else thread  # type: ignore[arg-type]

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
        if op.attributes.get("early"):
            self.awaited.append((loaded, op.attributes["early"]))
        return Held(self.layouts[op.results[0]], loaded if op.attributes.get("late") else list(loaded))

    def read_early(self) -> None:
        """Read the first registers of late tiles: what threads will need when they have waited."""
        for loaded, registers in self.awaited:
            width = 16 // loaded[0].dtype.itemsize
            for r in range(0, min(registers, len(loaded)), width):
                loaded.put_away(r, width, self)
        self.awaited = []

    def store(self, op: Op, pointers: V | Held, value: V | Held, mask: V | Held | None) -> None:
        if not isinstance(pointers, Held):
            owner = self._owner(range(5), self.warp_bits, range(self.num_blocks.bit_length() - 1))
            guards = [g for g in (owner, mask) if isinstance(g, V)]
            return self.wide_store(pointers, [value], self.all_of(guards), op.attributes)  # type: ignore[list-item]
        width, layout = _width(op, pointers.layout), pointers.layout
        owner = self.owner(layout)
        assert isinstance(value, Held)
        firsts = _first_registers(layout, width)
        for i, r in enumerate(firsts):
            for ahead in firsts[i : i + LATE_ACCESSES]:
                _ = value.registers[ahead : ahead + width]
            guards = [g for g in (owner, mask.registers[r] if isinstance(mask, Held) else None) if g is not None]
            self.wide_store(pointers.registers[r], value.registers[r : r + width], self.all_of(guards), op.attributes)

    def owner(self, layout: Layout) -> V | None:
        """Whether the thread is the first of those that hold its elements; None if it is alone."""
        return self._owner(*owner_bits(layout))

    def first_registers(self, layout: Layout) -> list[int]:
        """The registers of a thread that do not only replicate another."""
        return _first_registers(layout, 1)

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

    def all_of(self, guards: Sequence[V]) -> V | None:
        """Whether all of them hold; None if there are none."""
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

    def reduce(self, op: Op, tiles: Sequence[Any], axis: int, combine: Combine, identities: Any = None) -> list[Any]:
        return thread_folds.reduce(self, op, tiles, axis, combine)

    def gather_blocks(self, op: Op, tiles: Sequence[Any]) -> list[Any]:
        return thread_folds.gather_blocks(self, op, tiles)

    def scan(self, op: Op, tiles: Sequence[Any], axis: int, combine: Combine, *, reverse: bool) -> list[Any]:
        return thread_folds.scan(self, op, tiles, axis, combine, reverse)

    def join(self, result: Value, x: Any, y: Any) -> Any:
        return thread_moves.join(self, result, x, y)

    def split(self, results: Sequence[Value], tile: Any) -> list[Any]:
        return thread_moves.split(self, results, tile)

    def exchange(self, result: Value, tile: Any, axis: int, mask: int) -> Any:
        return thread_moves.exchange(self, result, tile, axis, mask)

    def gather(self, result: Value, tile: Any, places: Any, axis: int) -> Any:
        return thread_moves.gather(self, result, tile, places, axis)

    def histogram(self, result: Value, tile: Any, mask: Any) -> Any:
        return thread_moves.histogram(self, result, tile, mask)

    def dot(self, result: Value, a: Any, b: Any, acc: Any) -> Any:
        return thread_moves.dot(self, result, a, b, acc)

    def tile(self, layout: Layout, registers: Sequence[V]) -> Held:
        """A tile in registers."""
        return Held(layout, registers)

    def relayout(self, result: Value, tile: V | Held) -> V | Held:
        """Bring a tile to the layout of `result`: by renaming registers, by shuffles, or through shared memory."""
        assert isinstance(tile, Held)
        source, target = tile.layout, self.layouts[result]
        assert source.block == target.block, "a relayout stays within its block"
        keeps_threads = (source.lane, source.warp) == (target.lane, target.warp)
        if keeps_threads and all(source.register_holding(base) >= 0 for base in target.reg):
            return self._view(result, tile, lambda c: c)
        if isinstance(result.type.dtype, Dtype) and (way := thread_moves.within_warps(source, target)):
            return thread_moves.shuffled(self, tile, target, way)
        if thread_moves.stays_in_warps(source, target):
            return cast("Held", thread_moves.through_own_shared(self, tile, target))
        return cast("Held", thread_moves.through_shared(self, tile, target))

    def positions(self, layout: Layout, arrangement: Arrangement | None = None) -> list[tuple[int, V]]:
        """Offsets of a thread's elements in shared memory: (register, offset), of the first of each access, without
        registers that only replicate; in row-major order unless `arrangement` says otherwise."""
        arrangement = arrangement or in_order(layout.shape)

        def offset(basis: Coordinates) -> int:
            return arrangement.offset(flatten(basis, layout.shape))

        lane = [(i, offset(b)) for i, b in enumerate(layout.lane) if any(b)]
        warp = [(i, offset(b)) for i, b in enumerate(layout.warp) if any(b)]
        thread, used = self.thread_bits(lane, warp, (), dt.i32), 0
        for _, number in lane + warp:
            used |= number
        inner = arrangement.group(layout)[-1]
        firsts = [r for r in _first_registers(layout, 1) if not r & inner]
        return [
            (r, self.combine_index(thread, offset(combine(layout.reg, r, len(layout.shape))), used)) for r in firsts
        ]


def _width(op: Op, layout: Layout) -> int:
    return min(int(op.attributes.get("width", 1)), layout.vector_width())


def _representative(layout: Layout, register: int) -> int:
    return layout.register_holding(combine(layout.reg, register, len(layout.shape)))


def _first_registers(layout: Layout, width: int) -> list[int]:
    """The first register of each group of `width`, without those that only replicate another."""
    return [r for r in range(0, layout.registers, width) if _representative(layout, r) == r]
