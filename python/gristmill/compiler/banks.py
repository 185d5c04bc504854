"""Where elements lie in shared memory so that threads meet no bank twice: a linear map derived from two layouts.

One layout writes and another reads. Elements side by side in registers of both go side by side, up to 16 bytes, and are
moved at once. Threads whose accesses are served together (a warp, or the half or quarter of it that moves 128 bytes)
must differ in the bank. Elements that share a bank form a subspace: it is grown from vectors that lie outside what the
threads of either layout span, one of which always exists.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from gristmill.compiler.layout import Layout, flatten, rank

BANK_BYTES = 4
ROW_BYTES = 128  # of all banks
ACCESS_BYTES = 16


@dataclass(frozen=True)
class Arrangement:
    """`images[i]` is the offset, in elements, of the tile's row-major position 1 << i; offsets combine by XOR.

    `neighbours` are the positions whose offsets are 1, 2, 4...: register bases of both layouts.
    """

    images: tuple[int, ...]
    neighbours: tuple[int, ...]

    @property
    def width(self) -> int:
        """Elements that one access moves."""
        return 1 << len(self.neighbours)

    def offset(self, position: int) -> int:
        """Where the element at a row-major position lies."""
        offset = 0
        for i, image in enumerate(self.images):
            offset ^= image if position >> i & 1 else 0
        return offset

    def group(self, layout: Layout) -> list[int]:
        """Registers, XORed with the first one's, that hold an access's elements in order."""
        bits = [_positions(layout.reg, layout).index(vector) for vector in self.neighbours]
        return [sum(1 << bit for i, bit in enumerate(bits) if n >> i & 1) for n in range(self.width)]


def in_order(shape: tuple[int, ...]) -> Arrangement:
    """Row-major order, element by element."""
    size = flatten(tuple(s - 1 for s in shape), shape).bit_length()
    return Arrangement(tuple(1 << i for i in range(size)), ())


@functools.lru_cache(maxsize=1024)
def arrange(source: Layout, target: Layout, itemsize: int) -> Arrangement:
    """Return where the elements of a tile lie between being written in `source` and read in `target`."""
    most = max(0, (ACCESS_BYTES // itemsize).bit_length() - 1)
    wide = _arranged(source, target, itemsize, _neighbours(source, target, most))
    is_aligned = all(_is_aligned(wide, layout) for layout in (source, target))
    return wide if is_aligned else _arranged(source, target, itemsize, [])


def _arranged(source: Layout, target: Layout, itemsize: int, neighbours: list[int]) -> Arrangement:
    size = len(in_order(source.shape).images)
    access = max(BANK_BYTES, itemsize << len(neighbours))
    bank_bits = (ROW_BYTES // access).bit_length() - 1
    parts = [_positions(layout.lane[:bank_bits], layout) for layout in (source, target)]
    same_bank = _same_bank(size, neighbours, parts, size - len(neighbours) - bank_bits)
    within = (access // (itemsize << len(neighbours))).bit_length() - 1
    basis = [*neighbours, *same_bank[:within]]
    banks = _completed([*basis, *same_bank[within:]], [*parts[0], *parts[1]], size)
    return Arrangement(_inverse([*basis, *banks, *same_bank[within:]], size), tuple(neighbours))


def _is_aligned(arrangement: Arrangement, layout: Layout) -> bool:
    """Whether each thread's accesses start on multiples of their width, and each register has a place of its own."""
    own = [p for p in _positions(layout.reg, layout) if p]
    others = _positions((*layout.lane, *layout.warp), layout) + [p for p in own if p not in arrangement.neighbours]
    return rank(own) == len(own) and all(arrangement.offset(p) % arrangement.width == 0 for p in others)


def wavefronts(arrangement: Arrangement, layout: Layout, itemsize: int) -> int:
    """Return into how many parts an access of a warp falls for want of banks; 1 is best."""
    access = max(BANK_BYTES, itemsize * arrangement.width)
    bits = (ROW_BYTES // access).bit_length() - 1
    lanes = [arrangement.offset(p) * itemsize for p in _positions(layout.lane[:bits], layout)]
    words: dict[int, set[int]] = {}
    for n in range(1 << len(lanes)):
        byte = 0
        for i, image in enumerate(lanes):
            byte ^= image if n >> i & 1 else 0
        words.setdefault(byte % ROW_BYTES // access, set()).add(byte // access)
    return max(map(len, words.values()))


def _positions(bases: Iterable[tuple[int, ...]], layout: Layout) -> list[int]:
    return [flatten(basis, layout.shape) for basis in bases]


def _neighbours(source: Layout, target: Layout, most: int) -> list[int]:
    """Register bases that both layouts have, the lowest first."""
    there = set(_positions(target.reg, target))
    own = _positions(source.reg, source)
    return sorted(p for p in own if p and p in there and own.count(p) == 1)[:most]


def _same_bank(size: int, neighbours: list[int], parts: list[list[int]], count: int) -> list[int]:
    """Vectors that neither set of lanes reaches together with the neighbours and each other."""
    found: list[int] = []
    spans = [_Span([*neighbours, *part]) for part in parts]
    while len(found) < count:
        first, second = (next(1 << i for i in reversed(range(size)) if not span.has(1 << i)) for span in spans)
        candidates = (first, second, first ^ second)
        vector = next(c for c in candidates if not any(span.has(c) for span in spans))
        found.append(vector)
        for span in spans:
            span.add(vector)
    return found


def _completed(basis: list[int], preferred: list[int], size: int) -> list[int]:
    """Vectors that make a basis of the whole space of it: from `preferred` first."""
    span, found = _Span(basis), []
    for vector in (*preferred, *(1 << i for i in range(size))):
        if not span.has(vector):
            span.add(vector)
            found.append(vector)
    return found


class _Span:
    """What vectors of bits reach by XOR."""

    def __init__(self, vectors: Iterable[int]):
        self.reduced: list[int] = []
        for vector in vectors:
            self.add(vector)

    def _rest(self, vector: int) -> int:
        for other in self.reduced:
            vector = min(vector, vector ^ other)
        return vector

    def has(self, vector: int) -> bool:
        return self._rest(vector) == 0

    def add(self, vector: int) -> None:
        if rest := self._rest(vector):
            self.reduced.append(rest)


def _inverse(order: list[int], size: int) -> tuple[int, ...]:
    """The offsets of the unit vectors where `order[i]` has the offset 1 << i."""
    rows = [(vector, 1 << i) for i, vector in enumerate(order)]
    for bit in range(size):
        at = next(i for i in range(bit, size) if rows[i][0] >> bit & 1)
        rows[bit], rows[at] = rows[at], rows[bit]
        vector, image = rows[bit]
        rows = [(v ^ vector, m ^ image) if i != bit and v >> bit & 1 else (v, m) for i, (v, m) in enumerate(rows)]
    return tuple(image for _, image in rows)
