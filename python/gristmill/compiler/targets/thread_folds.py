"""Reductions and scans over threads: registers first, then lanes, warps and blocks, as the layout's bits tell.

An element is a tuple of registers, one of each tile that is folded together. A scan goes through the bits of the axis
from the lowest: each time two neighbouring halves of a doubled length meet, wherever the layout keeps them, the later
half takes over the total of the earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op
from gristmill.compiler.layout import Coordinates, Layout, combine, without
from gristmill.compiler.machine import Combine, V

Element = tuple[V, ...]
Groups = dict[Coordinates, Element]
Two = Callable[[Element, Element], Element]
CHAINS = 4


def _two(combine_two: Combine) -> Two:
    return lambda a, b: tuple(combine_two(a, b))


def reduce(m: Any, op: Op, tiles: Sequence[Any], axis: int, combine_two: Combine) -> list[Any]:
    """Combine the elements along `axis`; every holder of a result's element has it."""
    layout, two = tiles[0].layout, _two(combine_two)
    groups = _fold_registers(layout, _elements(tiles), axis, two)
    _, lane_bits, warp_bits, block_bits = layout.split(axis)
    is_apart = op.attributes.get("is_apart", False)
    if warp_bits or block_bits:
        m.read_early()
    assert not (is_apart and (warp_bits or block_bits)), "what stays apart is brought together by lanes alone"
    for key, x in groups.items():
        for bit in () if is_apart else lane_bits:
            x = two(x, _shuffled(m, x, bit))
        groups[key] = x
    if warp_bits:
        groups = _reduce_warps(m, layout, axis, groups, warp_bits, two)
    if block_bits:
        groups = _reduce_blocks(m, layout, axis, groups, block_bits, two)
    return [_result(m, value, i, groups) for i, value in enumerate(op.results)]


def join_lanes(m: Any, tile: Any) -> Any:
    """Add what lanes hold for one element."""
    registers = list(tile.registers)
    for bit in [i for i, basis in enumerate(tile.layout.lane) if not any(basis)]:
        registers = [m.add(x, m.shuffle_xor(x, 1 << bit)) for x in registers]
    return m.tile(tile.layout, registers)


def _elements(tiles: Sequence[Any]) -> list[Element]:
    return list(zip(*(tile.registers for tile in tiles), strict=True))


def _shuffled(m: Any, x: Element, bit: int) -> Element:
    return tuple(m.shuffle_xor(v, 1 << bit) for v in x)


def _result(m: Any, value: Any, place: int, groups: Groups) -> Any:
    if value.type.is_scalar:
        return groups[()][place]
    target = m.layouts[value]
    keys = [combine(target.reg, r, len(target.shape)) for r in range(target.registers)]
    return m.tile(target, [groups[k][place] for k in keys])


def _fold_registers(layout: Layout, elements: Sequence[Element], axis: int, two: Two) -> Groups:
    groups: dict[Coordinates, list[Element]] = {}
    for r in range(layout.registers):
        own = combine(layout.reg, r, len(layout.shape))
        if layout.register_holding(own) == r:
            groups.setdefault(without(own, axis), []).append(elements[r])
    return {key: _fold(values, two) for key, values in groups.items()}


def _reduce_warps(m: Any, layout: Layout, axis: int, groups: Groups, warp_bits: list[int], two: Two) -> Groups:
    """Exchange one element a warp (and lane that holds another one) through shared memory."""
    lanes = [i for i, b in enumerate(layout.lane) if not b[axis] and any(b)]
    span = len(groups) << len(lanes)
    memories = m.scratch([v.dtype for v in next(iter(groups.values()))], span * m.num_warps)
    lane_index = [(bit, m.num_warps * len(groups) << i) for i, bit in enumerate(lanes)]
    own = m.thread_bits(lane_index, [(i, 1 << i) for i in m.warp_bits], (), dt.i32)
    base = m.thread_bits(lane_index, [(i, 1 << i) for i in m.warp_bits if i not in warp_bits], (), dt.i32)
    for g, x in enumerate(groups.values()):
        _write(m, memories, m.add_index(own, m.constant(dt.i32, g * m.num_warps)), x)
    m.barrier()

    def at(shift: int, x: Element) -> Element:
        return _read(m, memories, m.add_index(base, m.constant(dt.i32, shift)), x)

    steps = _subsets(warp_bits)
    return {key: _fold([at(g * m.num_warps + s, x) for s in steps], two) for g, (key, x) in enumerate(groups.items())}


def _write(m: Any, memories: Sequence[V], place: V, x: Element) -> None:
    for memory, v in zip(memories, x, strict=True):
        m.shared_store(memory, place, v)


def _read(m: Any, memories: Sequence[V], place: V, like: Element) -> Element:
    return tuple(m.shared_load(memory, place, v.dtype) for memory, v in zip(memories, like, strict=True))


def _reduce_blocks(m: Any, layout: Layout, axis: int, groups: Groups, block_bits: list[int], two: Two) -> Groups:
    """Exchange what each block has: all threads of a block have it where nothing but registers is left."""
    spread = layout.lane + layout.warp + layout.block
    assert all(not any(without(basis, axis)) for basis in spread), "other axes of a cluster's tile lie in registers"
    parts = _subsets(block_bits)
    came = zip(groups, _from_blocks(m, list(groups.values())), strict=True)
    return {key: _fold([elements[b] for b in parts], two) for key, elements in came}


def gather_blocks(m: Any, op: Op, tiles: Sequence[Any]) -> list[Any]:
    """Each tile whole in the registers of all threads; all threads of a block have the same part of it."""
    came = iter(_from_blocks(m, [(x,) for tile in tiles for x in tile.registers]))
    results = []
    for value, tile in zip(op.results, tiles, strict=True):
        target, parts = m.layouts[value], [next(came) for _ in tile.registers]
        places = [tile.layout.preimage(target.at(r)) for r in range(target.registers)]
        assert not any(lane or warp for _, lane, warp, _ in places), "lanes and warps have different parts"
        results.append(m.tile(target, [parts[register][block][0] for register, _, _, block in places]))
    return results


def _from_blocks(m: Any, own: list[Element]) -> list[list[Element]]:
    """What each block has in place of each element: one exchange for all registers of one size."""
    flat, width = [v for x in own for v in x], len(own[0])
    came: dict[int, list[V]] = {}
    for is_long in (False, True):
        places = [i for i, v in enumerate(flat) if (v.dtype.bits == 64) == is_long]
        if places:
            came |= zip(places, m.from_blocks([flat[i] for i in places]), strict=True)
    return [list(zip(*(came[i + j] for j in range(width)), strict=True)) for i in range(0, len(flat), width)]


def _subsets(bits: Sequence[int]) -> list[int]:
    """All numbers that have no bits but these."""
    return [sum(1 << bit for i, bit in enumerate(bits) if n >> i & 1) for n in range(1 << len(bits))]


def _fold(values: list[Element], two: Two) -> Element:
    """Combine in a few independent chains, then those pairwise: short dependences, few live values."""
    chains = values[:CHAINS]
    for i, value in enumerate(values[CHAINS:]):
        chains[i % CHAINS] = two(chains[i % CHAINS], value)
    while len(chains) > 1:
        half = (len(chains) + 1) // 2
        chains = [two(chains[i], chains[i + half]) if i + half < len(chains) else chains[i] for i in range(half)]
    return chains[0]


def scan(m: Any, op: Op, tiles: Sequence[Any], axis: int, combine_two: Combine, reverse: bool) -> list[Any]:
    """Each element combined with all before it along `axis` (`reverse`: with all after it, last first)."""
    layout = tiles[0].layout
    steps = _Scan(m, layout, axis, tiles, _two(combine_two), reverse)
    for bit in range(layout.shape[axis].bit_length() - 1):
        steps.join(1 << bit)
    return [m.tile(m.layouts[value], [x[i] for x in steps.prefix]) for i, value in enumerate(op.results)]


class _Scan:
    """Prefixes within aligned runs along the axis, and the runs' totals; `join` doubles the runs."""

    def __init__(self, m: Any, layout: Layout, axis: int, tiles: Sequence[Any], two: Two, reverse: bool):
        self.m, self.layout, self.axis, self.two, self.reverse = m, layout, axis, two, reverse
        self.prefix = _elements(tiles)
        self.total = list(self.prefix)

    def join(self, size: int) -> None:
        basis = tuple(size if a == self.axis else 0 for a in range(len(self.layout.shape)))
        for bases, step in (
            (self.layout.reg, self._registers),
            (self.layout.lane, self._lanes),
            (self.layout.warp, self._warps),
        ):
            if basis in bases:
                return step(bases.index(basis))
        raise AssertionError("a scan needs a layout in which each bit of the axis has a place within the block")

    def _registers(self, bit: int) -> None:
        made: dict[Any, Element] = {}
        for low in (r for r in range(self.layout.registers) if not r >> bit & 1):
            high = low | 1 << bit
            earlier, later = (high, low) if self.reverse else (low, high)
            first, second = self.total[earlier], self.total[later]
            self.prefix[later] = self.two(first, self.prefix[later])
            key = (_names(first), _names(second))
            if key not in made:
                made[key] = self.two(first, second)
            self.total[low] = self.total[high] = made[key]

    def _lanes(self, bit: int) -> None:
        moved = {_names(x): x for x in self.total}
        self._threads(self.m.is_thread([bit], [], []), {k: _shuffled(self.m, x, bit) for k, x in moved.items()})

    def _warps(self, bit: int) -> None:
        self._threads(self.m.is_thread([], [bit], []), self._through_shared(bit))

    def _threads(self, is_low: V, moved: dict[Any, Element]) -> None:
        """Join halves that different threads hold; `moved`: the totals of the other half, by this half's."""
        is_earlier = self.m.bit_xor(is_low, self.m.constant(dt.bool_, True)) if self.reverse else is_low
        totals: dict[Any, Element] = {}
        for r, own in enumerate(list(self.total)):
            key = _names(own)
            other = moved[key]
            self.prefix[r] = self._choose(is_earlier, self.prefix[r], self.two(other, self.prefix[r]))
            if key not in totals:
                totals[key] = self.two(self._choose(is_earlier, own, other), self._choose(is_earlier, other, own))
            self.total[r] = totals[key]

    def _choose(self, condition: V, a: Element, b: Element) -> Element:
        return tuple(self.m.select(condition, x, y) for x, y in zip(a, b, strict=True))

    def _through_shared(self, bit: int) -> dict[Any, Element]:
        """Swap totals between the warps that differ in `bit`."""
        m, width = self.m, 32 * self.m.num_warps
        distinct = {_names(x): x for x in self.total}
        memories = m.scratch([v.dtype for v in self.total[0]], len(distinct) * width)
        own = m.thread_bits([(i, 1 << i) for i in range(5)], [(i, 32 << i) for i in m.warp_bits], (), dt.i32)
        for g, x in enumerate(distinct.values()):
            _write(m, memories, m.add_index(own, m.constant(dt.i32, g * width)), x)
        m.barrier()
        there = m.bit_xor(own, m.constant(dt.i32, 32 << bit))
        return {
            key: _read(m, memories, m.add_index(there, m.constant(dt.i32, g * width)), x)
            for g, (key, x) in enumerate(distinct.items())
        }


def _names(x: Element) -> tuple[int, ...]:
    return tuple(map(id, x))
