"""Matrix products on tensor cores: operands go to shared memory in panels, warps take them from there word by word."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.banks import Arrangement, in_order
from gristmill.compiler.ir import Op
from gristmill.compiler.layout import Coordinates, Layout, combine, flatten
from gristmill.compiler.machine import V
from gristmill.compiler.tensor import CHUNK_BYTES, UNITS, Unit, inner_axis, left, panel_bytes, panels, right
from gristmill.dtypes import Dtype


@dataclass(frozen=True, eq=False)
class Shared:
    """A tile in shared memory that all threads of the block read, `start` elements behind `memory`.

    It lies in panels of `panel` bytes along the axis `inner`. Of a ring, `elements` are those of a slot.
    """

    memory: V
    arrangement: Arrangement
    shape: tuple[int, ...]
    inner: int
    dtype: Dtype
    panel: int
    elements: int
    start: V | None = None

    def offset(self, outer: int, inner: int) -> int:
        """Where an element lies, by its index along the axis whose elements lie side by side, and the other one."""
        coordinates = (outer, inner) if self.inner == 1 else (inner, outer)
        return self.arrangement.offset(flatten(coordinates, self.shape))

    def place(self, m: Any, index: V) -> V:
        """Where in `memory` an element lies, by where it lies in the tile."""
        return index if self.start is None else m.add_index(index, self.start)


def share(m: Any, op: Op, tile: Any) -> Shared:
    """Write a tile to shared memory, as many elements at once as a thread has side by side, and wait for all.

    Of two buffers it takes one after the other: who writes one has waited since everybody read it.
    """
    layout, dtype = tile.layout, tile.registers[0].dtype
    if op.attributes["is_turned"]:
        layout = layout.permute((1, 0))
    inner = inner_axis(layout)
    panel = panel_bytes(layout.shape[inner] * dtype.itemsize)
    arrangement = panels(layout.shape, inner, dtype.itemsize, panel)
    buffers = op.attributes.get("buffers", 1)
    (memory,) = m.scratch([dtype], buffers * layout.elements)
    shared = Shared(memory, arrangement, layout.shape, inner, dtype, panel, layout.elements)
    if buffers > 1:
        shared = slot(m, shared, m.take_turns(op))
    write(m, shared, layout, tile.registers)
    m.show_tensor_cores()
    m.barrier()
    return shared


def write(m: Any, shared: Shared, layout: Layout, registers: Sequence[V], rows: int | None = None) -> None:
    """Write a tile, or its first rows: by matrices where warps hold them, or what a thread has side by side at once."""
    from gristmill.compiler.targets import thread_windows

    if shared.inner == 0 and rows is None:
        shared, layout = turned(shared), layout.permute((1, 0))
    if m.function.has_groups and thread_windows.is_of_matrices(layout, shared):
        return thread_windows.write_matrices(m, shared, layout, registers, rows or layout.shape[0])
    writing = replace(shared.arrangement, neighbours=side_by_side(layout, shared.inner, shared.dtype.itemsize))
    group = writing.group(layout)
    for register, index in m.positions(layout, writing):
        m.shared_store_wide(shared.memory, shared.place(m, index), [registers[register ^ other] for other in group])


def turned(tile: Shared) -> Shared:
    """The transpose of a tile, where it lies."""
    shape, inner = tile.shape[::-1], 1 - tile.inner
    arrangement = panels(shape, inner, tile.dtype.itemsize, tile.panel)
    return replace(tile, shape=shape, inner=inner, arrangement=arrangement)


def ring(m: Any, op: Op) -> Shared:
    """Room for several tiles, one behind the other."""
    kind = op.results[0].type
    (memory,) = m.scratch([kind.dtype], kind.shape[0] * op.attributes["elements"])
    return _slots(op, memory)


def ring_in(op: Op, room: Shared) -> Shared:
    """Other tiles in the room of a ring, which take as much."""
    return _slots(op, room.memory)


def _slots(op: Op, memory: V) -> Shared:
    """Tiles of a ring as they lie in memory."""
    _, *given = op.results[0].type.shape
    shape, inner = tuple(given), len(given) - 1
    if op.attributes["is_turned"]:
        shape, inner = shape[::-1], len(given) - 1 - inner
    dtype, panel, elements = op.results[0].type.dtype, op.attributes["panel"], op.attributes["elements"]
    assert isinstance(dtype, Dtype)
    arrangement = panels(shape, inner, dtype.itemsize, panel) if len(shape) > 1 else in_order(shape)
    return Shared(memory, arrangement, shape, inner, dtype, panel, elements)


def fetch(m: Any, layout: Layout, tile: Shared) -> Any:
    """Read a tile of one axis, as many elements at once as a thread has side by side."""
    writing = replace(tile.arrangement, neighbours=side_by_side(layout, 0, tile.dtype.itemsize))
    group = writing.group(layout)
    found: dict[int, V] = {}
    for register, index in m.positions(layout, writing):
        elements = m.shared_load_wide(tile.memory, tile.place(m, index), tile.dtype, len(group))
        found |= {register ^ other: x for other, x in zip(group, elements, strict=True)}
    firsts = [layout.register_holding(layout.at(r)) for r in range(layout.registers)]
    return m.tile(layout, [found[r] for r in firsts])


def slot(m: Any, ring: Shared, index: V) -> Shared:
    """One of a ring's tiles."""
    return replace(ring, start=m.multiply(index, m.constant(dt.i32, ring.elements)))


@dataclass(eq=False)
class Pipe:
    """The barriers of a ring: full[slot], then empty[slot]; who fills it; and what a machine keeps beside."""

    memory: V
    stages: int
    has_copies: bool
    has_windows: bool
    has_tickets: bool = False
    is_fetched: bool = False
    ctas: int = 1
    state: Any = None


def pipe(m: Any, op: Op) -> Pipe:
    """Two barriers a slot, and a number for tickets."""
    _, stages = op.results[0].type.shape
    has_tickets = op.attributes["has_tickets"]
    (memory,) = m.scratch([dt.u64], (3 if has_tickets else 2) * stages)
    how = (op.attributes["has_copies"], op.attributes["has_windows"], has_tickets, op.attributes["is_fetched"])
    return Pipe(memory, stages, *how, ctas=op.attributes["ctas"])


def copy(m: Any, op: Op, pointers: Any, ring: Shared, index: V, guard: V, mask: Any) -> None:
    """Begin to copy a tile to a slot of the ring, each access by the thread that owns its elements."""
    place, layout = slot(m, ring, index), pointers.layout
    turned = layout if ring.shape == layout.shape and ring.inner == len(layout.shape) - 1 else layout.permute((1, 0))
    width = min(op.attributes["width"], layout.vector_width())
    side_by_side = tuple(flatten(basis, turned.shape) for basis in turned.reg[: width.bit_length() - 1])
    writing = replace(ring.arrangement, neighbours=side_by_side)
    guards = [g for g in (m.owner(layout), guard) if g is not None]
    for register, offset in m.positions(turned, writing):
        is_there = None if mask is None else mask.registers[register]
        target = m.add_index(offset, place.start)
        m.copy_ahead(place.memory, target, pointers.registers[register], width, m.all_of(guards), is_there)


def side_by_side(layout: Layout, inner: int, itemsize: int) -> tuple[int, ...]:
    """The positions of registers that one access writes, up to a chunk, and no other bit moves along."""
    others = (*layout.lane, *layout.warp)
    found: list[int] = []
    for basis in layout.reg:
        step = 1 << len(found)
        if basis[inner] != step or sum(basis) != step or step * itemsize >= CHUNK_BYTES:
            break
        if any(other[inner] & step for other in (*others, *layout.reg[len(found) + 1 :])):
            break
        found.append(flatten(basis, layout.shape))
    return tuple(found)


def product(m: Any, op: Op, a: Shared, b: Shared, acc: Any) -> Any:
    """acc + a @ b: step by step along the depth, and in each step instruction by instruction."""
    if op.attributes["by_groups"]:
        own = m.take_left(op, a, acc.layout) if op.attributes["is_taken"] else a
        return _with_used(m, op, acc, lambda sums: m.multiply_shared(op, own, b, acc.layout, sums))
    unit, layout, precision = UNITS[b.dtype], acc.layout, op.attributes.get("precision", "")
    sums = list(acc.registers)
    take_left = _held(unit, a) if op.attributes["is_held"] else _Operand(m, a, left(unit, layout, a.shape[1]))
    take_right = _Operand(m, b, right(unit, layout, b.shape[0]))
    left_words, right_words, size = unit.words
    small: list[V] = []
    if precision == "tf32x3":  # the cores cut sums off: those of f32 are added to the others outside of them
        sums, small = ([m.constant(unit.summed, 0)] * len(sums) for _ in range(2))
    for depth in range(0, b.shape[0], unit.k):
        lefts = _split(_parts(m, unit, precision, take_left((0, depth))), left_words)
        rights = _split(_parts(m, unit, precision, take_right((depth, 0))), right_words)
        for i, (x, y) in enumerate(itertools.product(lefts, rights)):
            own = slice(i * size, (i + 1) * size)
            sums[own] = m.multiply_matrices(unit, x[0], y[0], sums[own])
            for of_left, of_right in ((1, 0), (0, 1)) if small else ():
                small[own] = m.multiply_matrices(unit, x[of_left], y[of_right], small[own])
    for part in (zero_for_nan(m, small), acc.registers) if small else ():
        sums = [m.add(x, y) for x, y in zip(sums, part, strict=True)]
    return m.tile(layout, sums)


def zero_for_nan(m: Any, sums: Sequence[V]) -> list[V]:
    """Sums of small parts: those of an infinity, times 0, would hide it; NaN of others is in the large ones too."""
    return [m.select(m.compare("==", x, x), x, m.constant(x.dtype, 0)) for x in sums]


def settle(m: Any, op: Op, sums: Any, words: Any) -> Any:
    """The sums of products that are open, when they are there."""
    held = words.registers if words is not None else ()
    return _with_used(m, op, sums, lambda own: m.settle_products(own, op.attributes["pending"], held))


def _with_used(m: Any, op: Op, tile: Any, change: Callable[[list[V]], list[V]]) -> Any:
    """Change the registers of columns that there are; padding stays what it is."""
    used = [r for r in range(len(tile.registers)) if tile.layout.at(r)[1] < op.attributes["columns"]]
    registers = list(tile.registers)
    for register, value in zip(used, change([registers[r] for r in used]), strict=True):
        registers[register] = value
    return m.tile(tile.layout, registers)


def _parts(m: Any, unit: Unit, precision: str, words: Sequence[V]) -> list[Sequence[V]]:
    """f32 as tf32, or as the sum of two, the larger first; other words as they are."""
    if unit.operand != dt.f32:
        return [words]
    if precision != "tf32x3":
        return [[m.round_tf32(x) for x in words]]
    return [words, [m.rest_of_tf32(x) for x in words]]  # the cores themselves take the upper bits of words


def _split(parts: Sequence[Sequence[V]], size: int) -> list[list[Sequence[V]]]:
    """For each instruction its words of each part."""
    return [[words[i : i + size] for words in parts] for i in range(0, len(parts[0]), size)]


def _held(unit: Unit, words: Any) -> Callable[[Coordinates], Sequence[V]]:
    """Takes the words of a left operand in registers, which go along an instruction, then the depth, then the rows."""
    size = unit.words[0]
    steps = words.layout.shape[1] * unit.word_elements // unit.k

    def take(origin: Coordinates) -> Sequence[V]:
        firsts = range(origin[1] // unit.k * size, len(words.registers), steps * size)
        return [word for first in firsts for word in words.registers[first : first + size]]

    return take


class _Operand:
    """Takes a warp's share of an operand for one step along the depth, as words in the order of its layout."""

    def __init__(self, m: Any, tile: Shared, layout: Layout):
        self.m, self.tile, self.layout = m, tile, layout
        self.within = max(0, (4 // tile.dtype.itemsize).bit_length() - 1)  # register bits of a word
        self.rest = layout.reg[self.within :]
        self.rows = self._rows()

    def _rows(self) -> Sequence[Coordinates]:
        """Along what the rows of a matrix load go, 8 of a chunk of 16 bytes; empty where there is none."""
        size, lanes = self.tile.dtype.itemsize, self.layout.lane
        depth = next(axis for axis, c in enumerate(lanes[0]) if c)
        if size == 8 or self.tile.shape[self.tile.inner] * size < CHUNK_BYTES:
            return ()
        self.is_turned = self.tile.inner != depth
        if self.is_turned:
            return (self.layout.reg[0], *lanes[:2]) if size == 2 else ()
        return lanes[2:5]

    def __call__(self, origin: Coordinates) -> list[V]:
        return self._by_matrix(origin) if self.rows else self._by_element(origin)

    def _offset(self, coordinates: Coordinates) -> int:
        return self.tile.arrangement.offset(flatten(coordinates, self.tile.shape))

    def _thread(self, lanes: Sequence[Coordinates]) -> tuple[V, int]:
        """The part of offsets that lanes and warps decide, and the bits that it may have."""
        lane = [(i, self._offset(b)) for i, b in enumerate(lanes) if any(b)]
        warp = [(i, self._offset(b)) for i, b in enumerate(self.layout.warp) if any(b)]
        used = 0
        for _, number in lane + warp:
            used |= number
        thread = self.m.thread_bits(lane, warp, (), dt.i32)
        return self.tile.place(self.m, thread), used

    def _at(self, thread: tuple[V, int], bits: int, bases: Sequence[Coordinates], origin: Coordinates) -> V:
        own = tuple(a ^ b for a, b in zip(combine(bases, bits, 2), origin, strict=True))
        return self.m.combine_index(thread[0], self._offset(own), thread[1])

    def _by_matrix(self, origin: Coordinates) -> list[V]:
        """Up to four matrices at once: the second's rows are given by lanes 8 to 15, and so on."""
        inside, outside = self.rest[:2], self.rest[2:]
        thread = self._thread([*self.rows, *inside])
        words: list[V] = []
        for r in range(1 << len(outside)):
            place = self._at(thread, r, outside, origin)
            words += self.m.matrix_load(self.tile.memory, place, 1 << len(inside), self.is_turned, self.tile.dtype)
        return words

    def _by_element(self, origin: Coordinates) -> list[V]:
        thread = self._thread(self.layout.lane)
        places = [self._at(thread, r, self.layout.reg, origin) for r in range(self.layout.registers)]
        elements = [self.m.shared_load(self.tile.memory, place, self.tile.dtype) for place in places]
        size = 1 << self.within
        return [self.m.join_elements(elements[i : i + size]) for i in range(0, len(elements), size)]
