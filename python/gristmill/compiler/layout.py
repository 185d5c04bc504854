"""Linear layouts: which register of which lane of which warp holds which element of a tile.

A layout is a map, linear over bits, from (register, lane, warp, block of the cluster) to coordinates: one basis vector
a bit, and the coordinates of an index are the XOR of the bases of its set bits (arXiv 2505.23819). A zero basis is
replication.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

Coordinates = tuple[int, ...]
LANE_BITS = 5


@dataclass(frozen=True)
class Layout:
    """Bases of the register, lane, warp and block bits, least significant first; each is coordinates in `shape`."""

    shape: tuple[int, ...]
    reg: tuple[Coordinates, ...]
    lane: tuple[Coordinates, ...]
    warp: tuple[Coordinates, ...]
    block: tuple[Coordinates, ...] = ()

    @property
    def registers(self) -> int:
        """Registers of one thread, replicated ones included."""
        return 1 << len(self.reg)

    @property
    def elements(self) -> int:
        """Elements of the tile."""
        return math.prod(self.shape)

    @property
    def threads(self) -> int:
        return 1 << (len(self.lane) + len(self.warp))

    @property
    def bases(self) -> tuple[Coordinates, ...]:
        return self.reg + self.lane + self.warp + self.block

    def at(self, register: int, lane: int = 0, warp: int = 0, block: int = 0) -> Coordinates:
        """Return the coordinates of one thread's register."""
        thread = lane | warp << len(self.lane) | block << (len(self.lane) + len(self.warp))
        bits = register | thread << len(self.reg)
        return combine(self.bases, bits, len(self.shape))

    def register_holding(self, coordinates: Coordinates) -> int:
        """Return the lowest register whose own part of the coordinates is `coordinates`; -1 if there is none."""
        return _register_table(self).get(coordinates, -1)

    def preimage(self, coordinates: Coordinates) -> tuple[int, int, int, int] | None:
        """Return a (register, lane, warp, block) at which the element lies, by the first bits that reach it."""
        reached = _independent([flatten(basis, self.shape) for basis in self.bases])
        rest, bits = _reduce(flatten(coordinates, self.shape), 0, reached)
        if rest:
            return None
        found = []
        for part in (self.reg, self.lane, self.warp, self.block):
            found.append(bits & (1 << len(part)) - 1)
            bits >>= len(part)
        return found[0], found[1], found[2], found[3]

    def map_coordinates(self, shape: tuple[int, ...], change: Callable[[Coordinates], Coordinates]) -> Layout:
        """Return the layout whose bases are `change(basis)`; `change` must be linear over bits."""
        parts = (self.reg, self.lane, self.warp, self.block)
        reg, lane, warp, block = (tuple(change(b) for b in part) for part in parts)
        return Layout(shape, reg, lane, warp, block)

    def slice(self, axis: int) -> Layout:
        """Drop an axis: the layout of what remains when it is reduced away."""
        return self.map_coordinates(without(self.shape, axis), lambda b: without(b, axis)).compact()

    def expand(self, axis: int) -> Layout:
        """Insert an axis of size 1."""
        return self.map_coordinates(_with(self.shape, axis, 1), lambda b: _with(b, axis, 0))

    def permute(self, order: Sequence[int]) -> Layout:
        """Reorder the axes: axis i of the result is axis `order[i]` of this one."""
        shape = tuple(self.shape[i] for i in order)
        return self.map_coordinates(shape, lambda b: tuple(b[i] for i in order))

    def reshape(self, shape: tuple[int, ...]) -> Layout:
        """Keep each element's row-major position, and name it by the coordinates in `shape`."""
        return self.map_coordinates(shape, lambda b: unflatten(flatten(b, self.shape), shape))

    def compact(self) -> Layout:
        """Drop register bits that only replicate."""
        return replace(self, reg=tuple(b for b in self.reg if any(b)))

    def vector_width(self, axis: int = -1) -> int:
        """Return how many registers in a row hold consecutive elements along `axis`."""
        width = 1
        for basis in self.reg:
            if basis[axis] != width or sum(basis) != width:
                break
            width *= 2
        return width

    def split(self, axis: int) -> tuple[list[int], list[int], list[int], list[int]]:
        """Return the register, lane, warp and block bits (by number) whose bases move along `axis`."""
        parts = (self.reg, self.lane, self.warp, self.block)
        reg, lane, warp, block = ([i for i, b in enumerate(part) if b[axis]] for part in parts)
        return reg, lane, warp, block

    def is_onto(self) -> bool:
        """Whether every element of the tile is held somewhere."""
        return rank([flatten(b, self.shape) for b in self.bases]) == sum(s.bit_length() - 1 for s in self.shape)

    def __str__(self) -> str:
        parts = {"reg": self.reg, "lane": self.lane, "warp": self.warp} | ({"block": self.block} if self.block else {})
        return " ".join(f"{name}={_short(part)}" for name, part in parts.items())


def _independent(vectors: Sequence[int]) -> list[tuple[int, int]]:
    """Vectors that are independent over GF(2) and reach what these do, each with the bits of those it is the sum of."""
    found: list[tuple[int, int]] = []
    for i, vector in enumerate(vectors):
        reduced = _reduce(vector, 1 << i, found)
        if reduced[0]:
            found.append(reduced)
    return found


def _reduce(vector: int, bits: int, by: list[tuple[int, int]]) -> tuple[int, int]:
    """Add to a vector those that make it smaller, and to its bits theirs."""
    for other, of_other in by:
        if vector ^ other < vector:
            vector, bits = vector ^ other, bits ^ of_other
    return vector, bits


def _short(part: tuple[Coordinates, ...]) -> str:
    return "[" + " ".join(",".join(map(str, b)) for b in part) + "]"


def without(items: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the items but that of one axis."""
    return items[:axis] + items[axis + 1 :]


def _with(items: tuple[int, ...], axis: int, item: int) -> tuple[int, ...]:
    return items[:axis] + (item,) + items[axis:]


@functools.lru_cache(maxsize=1024)
def _register_table(layout: Layout) -> dict[Coordinates, int]:
    table: dict[Coordinates, int] = {}
    for register in range(layout.registers):
        table.setdefault(combine(layout.reg, register, len(layout.shape)), register)
    return table


def combine(bases: Sequence[Coordinates], bits: int, dimensions: int) -> Coordinates:
    """Return the XOR of the bases of the set bits."""
    result = [0] * dimensions
    for i, basis in enumerate(bases):
        if bits >> i & 1:
            result = [a ^ b for a, b in zip(result, basis, strict=True)]
    return tuple(result)


def flatten(coordinates: Coordinates, shape: tuple[int, ...]) -> int:
    """Return the row-major position of coordinates."""
    position = 0
    for c, size in zip(coordinates, shape, strict=True):
        position = position * size + c
    return position


def unflatten(position: int, shape: tuple[int, ...]) -> Coordinates:
    """Return the coordinates of a row-major position."""
    result = []
    for size in reversed(shape):
        result.append(position % size)
        position //= size
    return tuple(reversed(result))


def rank(vectors: Sequence[int]) -> int:
    """Return the rank of bit vectors over GF(2)."""
    return len(_independent(vectors))


def common(shape: tuple[int, ...], num_warps: int, num_blocks: int) -> Layout:
    """Return the layout in which every thread has the whole tile, in row-major order."""
    none = (0,) * len(shape)
    reg = tuple(unflatten(1 << i, shape) for i in range(math.prod(shape).bit_length() - 1))
    lane, warp, block = (
        (none,) * bits for bits in (LANE_BITS, num_warps.bit_length() - 1, num_blocks.bit_length() - 1)
    )
    return Layout(shape, reg, lane, warp, block)


def blocked(
    shape: tuple[int, ...],
    vector: int,
    num_warps: int,
    *,
    num_blocks: int = 1,
    order: Sequence[int] | None = None,
    warp_axis: int | None = None,
) -> Layout:
    """Return the layout for wide coalesced access: `vector` elements a thread, then lanes, then warps, then blocks.

    Axes are filled in `order` (default: last first). Warps go along `warp_axis` first where one is given, so that a
    reduction along the others needs no shared memory. What the tile still needs becomes registers, what it has too
    little of becomes replication. Blocks of a cluster come after the registers: each has a connected part.
    """
    axes = list(order) if order is not None else list(range(len(shape) - 1, -1, -1))
    filled = [0] * len(shape)
    take = functools.partial(_take_bit, shape, filled)
    reg = [take(axes[:1]) for _ in range(min(vector, shape[axes[0]]).bit_length() - 1)] if shape else []
    lane = [take(axes) for _ in range(LANE_BITS)]
    warp_axes = axes if warp_axis is None else [warp_axis]
    warp = [take(warp_axes) for _ in range(num_warps.bit_length() - 1)]
    missing = sum(s.bit_length() - 1 - f for f, s in zip(filled, shape, strict=True))
    block_bits = num_blocks.bit_length() - 1
    reg += [take(axes) for _ in range(missing - block_bits)]
    block = [take(axes) for _ in range(block_bits)]
    return Layout(shape, tuple(reg), tuple(lane), tuple(warp), tuple(block))


ROW_BYTES = 128


def beside(layout: Layout, vector: int, itemsize: int) -> Layout:
    """Return a layout for wide access of two axes whose warps have the same elements as those of `layout`.

    Lanes go along rows of 128 bytes, then over rows; what the warps leave and the lanes do not take is for registers.
    """
    shape = layout.shape
    free: list[Coordinates] = [*((0, c) for c in _powers(shape[1])), *((r, 0) for r in _powers(shape[0]))]
    free = [basis for basis in free if basis not in layout.warp]
    reg = free[: vector.bit_length() - 1]
    rest = free[len(reg) :]
    across = [basis for basis in rest if 0 < basis[1] * itemsize < ROW_BYTES]
    order = [*across, *(b for b in rest if b[0]), *(b for b in rest if b[1] and b not in across)]
    lane: list[Coordinates] = [*order[:LANE_BITS], *[(0, 0)] * (LANE_BITS - len(order))]
    return Layout(shape, tuple(reg + order[LANE_BITS:]), tuple(lane), layout.warp)


def _powers(end: int) -> list[int]:
    return [1 << i for i in range(end.bit_length() - 1)]


def _take_bit(shape: tuple[int, ...], filled: list[int], axes: Sequence[int]) -> Coordinates:
    basis = [0] * len(shape)
    for axis in axes:
        if (1 << filled[axis]) < shape[axis]:
            basis[axis] = 1 << filled[axis]
            filled[axis] += 1
            break
    return tuple(basis)


def default_vector(elements: int, threads: int, wanted: int) -> int:
    """Return the registers in a row to give each thread: `wanted`, less where that would leave threads idle."""
    return max(1, min(wanted, elements // threads if elements >= threads else 1))


def owner_bits(layout: Layout) -> tuple[list[int], list[int], list[int]]:
    """Return the lane, warp and block bits that only replicate: where any is set, a thread holds copies."""
    known = _independent([flatten(b, layout.shape) for b in layout.reg])
    spare: tuple[list[int], list[int], list[int]] = ([], [], [])
    for part, bits in zip((layout.lane, layout.warp, layout.block), spare, strict=True):
        for i, basis in enumerate(part):
            vector, _ = _reduce(flatten(basis, layout.shape), 0, known)
            if vector:
                known.append((vector, 0))
            else:
                bits.append(i)
    return spare


def all_points(layout: Layout) -> list[tuple[int, int, int, int]]:
    """Return every (register, lane, warp, block); for tests and small proofs."""
    reg, lane, warp, block = (range(1 << len(p)) for p in (layout.reg, layout.lane, layout.warp, layout.block))
    return list(itertools.product(reg, lane, warp, block))
