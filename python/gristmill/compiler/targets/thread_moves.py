"""Ops that move elements between threads: by renaming registers, shuffles, or through shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.banks import Arrangement, arrange, in_order
from gristmill.compiler.ir import Pointer, Value
from gristmill.compiler.layout import Layout, combine, flatten, rank
from gristmill.compiler.machine import V
from gristmill.dtypes import Dtype

MOST_SHUFFLES = 4  # of a register; beyond, shared memory is cheaper
MANY_SHUFFLES = 64  # of a tile, likewise
CHUNK_BYTES = 16384  # that a relayout within warps takes at a time, if it can


@dataclass(frozen=True)
class Way:
    """Where a relayout within warps finds elements: bits of the source's index by those of the target's.

    The target's register r of lane l is the source's register `registers[r]` ^ what `lane_registers` gives for the bits
    of l, in the lane `register_lanes[r]` ^ what `lanes` gives for them.
    """

    registers: tuple[int, ...]
    register_lanes: tuple[int, ...]
    lanes: tuple[int, ...]
    lane_registers: tuple[int, ...]


def within_warps(source: Layout, target: Layout) -> Way | None:
    """How a relayout goes without leaving the warps, in a few shuffles; None if it does not."""
    if (source.warp, source.block) != (target.warp, target.block):
        return None
    origins = [source.preimage(combine(target.reg, r, len(target.shape))) for r in range(target.registers)]
    bases = [source.preimage(basis) for basis in target.lane]
    if any(found is None or found[2] or found[3] for found in (*origins, *bases)):
        return None
    registers, register_lanes = zip(*((found[0], found[1]) for found in origins if found), strict=True)
    lane_registers, lanes = zip(*((found[0], found[1]) for found in bases if found), strict=True)
    count = 1 << rank(lane_registers)
    if count > MOST_SHUFFLES or (count > 1 and count * target.registers > MANY_SHUFFLES):
        return None
    return Way(registers, register_lanes, lanes, lane_registers)


def shuffled(m: Any, tile: Any, target: Layout, way: Way) -> Any:
    """Take each register from the lane that has it; where lanes want different ones, from each, and choose."""
    choices = sorted({combine_bits(way.lane_registers, lane) for lane in range(32)})
    wanted = m.thread_bits(list(enumerate(way.lane_registers)), (), (), dt.i32)
    is_same_lane = way.lanes == tuple(1 << i for i in range(5))
    made: dict[tuple[int, int], V] = {}

    def taken(register: int, lane: int) -> V:
        if (register, lane) not in made:
            x = tile.registers[register]
            made[register, lane] = (m.shuffle_xor(x, lane) if lane else x) if is_same_lane else moved(x, lane)
        return made[register, lane]

    def moved(x: V, lane: int) -> V:
        place = m.thread_bits(list(enumerate(way.lanes)), (), (), dt.i32)
        return m.shuffle_index(x, m.bit_xor(place, m.constant(dt.i32, lane)) if lane else place)

    registers = []
    for register, lane in zip(way.registers, way.register_lanes, strict=True):
        x = taken(register ^ choices[0], lane)
        for choice in choices[1:]:
            is_wanted = m.compare("==", wanted, m.constant(dt.i32, choice))
            x = m.select(is_wanted, taken(register ^ choice, lane), x)
        registers.append(x)
    return m.tile(target, registers)


def combine_bits(numbers: Sequence[int], bits: int) -> int:
    """The XOR of the numbers whose bit is set."""
    result = 0
    for i, number in enumerate(numbers):
        result ^= number if bits >> i & 1 else 0
    return result


def _own(layout: Layout, register: int) -> tuple[int, ...]:
    return combine(layout.reg, register, len(layout.shape))


def join(m: Any, result: Value, x: Any, y: Any) -> Any:
    """Pairs of elements; which half a thread's register is tells its own bit, or the thread's."""
    layout: Layout = m.layouts[result]
    _, lanes, warps, _ = layout.split(len(layout.shape) - 1)
    is_first = m.is_thread(lanes, warps, []) if lanes or warps else None
    registers = []
    for r in range(layout.registers):
        *rest, half = _own(layout, r)
        source = x.layout.register_holding(tuple(rest))
        pair = (x.registers[source], y.registers[source])
        registers.append(pair[half] if is_first is None else m.select(is_first, *pair))
    return m.tile(layout, registers)


def split(m: Any, results: Sequence[Value], tile: Any) -> list[Any]:
    """The halves of pairs, both of which the thread has."""
    layout: Layout = m.layouts[results[0]]
    places = [_own(layout, r) for r in range(layout.registers)]
    return [
        m.tile(layout, [tile.registers[tile.layout.register_holding((*place, half))] for place in places])
        for half in (0, 1)
    ]


def exchange(m: Any, result: Value, tile: Any, axis: int, mask: int) -> Any:
    """Elements whose coordinate along `axis` differs by `mask`."""
    layout: Layout = tile.layout
    step = tuple(mask if a == axis else 0 for a in range(len(layout.shape)))
    moves = layout.preimage(step)
    assert moves is not None and not moves[3]
    reg, lane, warp, _ = moves
    if warp:
        return through_shared(m, tile, layout, flatten(step, layout.shape))
    moved: dict[int, V] = {}
    for x in tile.registers if lane else ():
        if id(x) not in moved:
            moved[id(x)] = m.shuffle_xor(x, lane)
    source = [tile.registers[r ^ reg] for r in range(layout.registers)]
    return m.tile(layout, [moved[id(x)] if lane else x for x in source])


def _write(m: Any, memory: V, tile: Any, arrangement: Arrangement) -> None:
    group = arrangement.group(tile.layout)
    for register, index in m.positions(tile.layout, arrangement):
        m.shared_store_wide(memory, index, [tile.registers[register ^ other] for other in group])


def through_shared(m: Any, tile: Any, target: Layout, change: int = 0) -> Any:
    """The tile in layout `target`, or, of each place there, the element at the row-major position XOR `change`."""
    dtype = tile.registers[0].dtype
    arrangement = arrange(tile.layout, target, dtype.itemsize)
    (memory,) = m.scratch([dtype], tile.layout.elements)
    _write(m, memory, tile, arrangement)
    m.barrier()
    return m.tile(target, _read(m, memory, target, arrangement, dtype, change))


def _read(m: Any, memory: V, target: Layout, arrangement: Arrangement, dtype: Any, change: int = 0) -> list[V]:
    loaded: dict[int, V] = {}
    rows, within = divmod(arrangement.offset(change), arrangement.width)
    shift, group = m.constant(dt.i32, rows * arrangement.width), arrangement.group(target)
    for register, index in m.positions(target, arrangement):
        place = m.bit_xor(index, shift) if rows else index
        elements = m.shared_load_wide(memory, place, dtype, arrangement.width)
        loaded |= {register ^ other: elements[i ^ within] for i, other in enumerate(group)}
    return [loaded[target.register_holding(_own(target, r))] for r in range(target.registers)]


def stays_in_warps(source: Layout, target: Layout) -> bool:
    """Whether each warp has the same elements in both layouts, and no other warp has them."""
    if (source.warp, source.block) != (target.warp, target.block):
        return False
    own, there, warps = (
        [flatten(b, source.shape) for b in bases]
        for bases in (source.reg + source.lane, target.reg + target.lane, source.warp)
    )
    is_same = rank(own) == rank(there) == rank([*own, *there])
    return is_same and rank([*own, *warps]) == rank(own) + len(warps)


def through_own_shared(m: Any, tile: Any, target: Layout) -> Any:
    """The tile in a layout whose warps have the same elements: each warp by itself, part by part in the same place.

    A part is what registers with one choice of some bits have, which move the same way in both layouts.
    """
    source, dtype = tile.layout, tile.registers[0].dtype
    common = _common(source, target, dtype.itemsize)
    (source_part, source_bits), (target_part, target_bits) = (_part(x, common) for x in (source, target))
    arrangement = arrange(source_part, target_part, dtype.itemsize)
    (memory,) = m.scratch([dtype], source_part.elements)
    registers: list[Any] = [None] * target.registers
    for n in range(1 << len(common)):
        if n:
            m.warp_barrier()
        inner = [tile.registers[r] for r in _registers(source, source_bits, n)]
        _write(m, memory, m.tile(source_part, inner), arrangement)
        m.warp_barrier()
        for r, x in zip(
            _registers(target, target_bits, n), _read(m, memory, target_part, arrangement, dtype), strict=True
        ):
            registers[r] = x
    return m.tile(target, registers)


def _common(source: Layout, target: Layout, itemsize: int) -> list[int]:
    """Positions that single registers' bits of both layouts lead to, as many as make parts small; large ones first."""
    positions = [[flatten(basis, layout.shape) for basis in layout.reg] for layout in (source, target)]
    single = [p for p in positions[0] if p in positions[1] and p.bit_count() == 1 and _is_apart(p, source, target)]
    size, chosen = source.elements * itemsize, list[int]()
    for p in sorted(single, reverse=True):
        if size <= CHUNK_BYTES:
            break
        chosen.append(p)
        size //= 2
    return chosen


def _is_apart(position: int, *layouts: Layout) -> bool:
    """Whether no other bit leads to elements with this bit in their position."""
    return all(sum(bool(flatten(b, layout.shape) & position) for b in layout.bases) == 1 for layout in layouts)


def _part(layout: Layout, common: Sequence[int]) -> tuple[Layout, list[int]]:
    """The layout without the register bits that lead to these positions, which are left out of positions; the bits."""
    bits = [[flatten(b, layout.shape) for b in layout.reg].index(p) for p in common]

    def shorter(basis: tuple[int, ...]) -> tuple[int, ...]:
        position = flatten(basis, layout.shape)
        for p in common:  # the largest first
            position = (position // (2 * p)) * p + position % p
        return (position,)

    reg = tuple(shorter(b) for i, b in enumerate(layout.reg) if i not in bits)
    lane, warp, block = (tuple(map(shorter, part)) for part in (layout.lane, layout.warp, layout.block))
    return Layout((layout.elements >> len(common),), reg, lane, warp, block), bits


def _registers(layout: Layout, bits: Sequence[int], choice: int) -> list[int]:
    """The registers whose `bits` are those of `choice`, in order."""
    wanted = sum(1 << bit for i, bit in enumerate(bits) if choice >> i & 1)
    mask = sum(1 << bit for bit in bits)
    return [r for r in range(layout.registers) if r & mask == wanted]


def gather(m: Any, result: Value, tile: Any, places: Any, axis: int) -> Any:
    """Elements at given coordinates along an axis, from a copy in shared memory."""
    dtype = tile.registers[0].dtype
    (memory,) = m.scratch([dtype], tile.layout.elements)
    _write(m, memory, tile, in_order(tile.layout.shape))
    m.barrier()
    shape, layout = tile.layout.shape, m.layouts[result]
    others = layout.map_coordinates(shape, lambda basis: tuple(0 if a == axis else b for a, b in enumerate(basis)))
    stride = m.constant(dt.i32, flatten(tuple(int(a == axis) for a in range(len(shape))), shape))
    base = dict(m.positions(others))
    registers = []
    for r in range(layout.registers):
        own = base[others.register_holding(_own(others, r))]
        along = m.multiply(m.cast(places.registers[r], dt.i32), stride)
        registers.append(m.shared_load(memory, m.add(own, along), dtype))
    return m.tile(layout, registers)


def histogram(m: Any, result: Value, tile: Any, mask: Any) -> Any:
    """Counts in shared memory, to which each element's first holder adds."""
    layout, target = tile.layout, m.layouts[result]
    (bins,) = target.shape
    (memory,), zero, one = m.scratch([dt.i32], bins), m.constant(dt.i32, 0), m.constant(dt.i32, 1)
    for _, index in m.positions(target):
        m.shared_store(memory, index, zero)
    m.barrier()
    owner = m.owner(layout)
    for r in m.first_registers(layout):
        x = tile.registers[r]
        guards = [m.compare("<", x, m.constant(x.dtype, bins))] if x.dtype.bits > 8 or bins < 128 else []
        guards += [m.compare(">=", x, m.constant(x.dtype, 0))] if x.dtype.is_signed else []
        guards += [g for g in (owner, mask.registers[r] if mask is not None else None) if g is not None]
        m.shared_add(memory, m.cast(x, dt.i32), one, m.all_of(guards))
    m.barrier()
    loaded = {r: m.shared_load(memory, index, dt.i32) for r, index in m.positions(target)}
    return m.tile(target, [loaded[target.register_holding(_own(target, r))] for r in range(target.registers)])


def dot(m: Any, result: Value, a: Any, b: Any, acc: Any) -> Any:
    """A matrix product from copies in shared memory: each thread sums its own elements, column of `a` by row of `b`."""
    layout, dtypes = m.layouts[result], [tile.registers[0].dtype for tile in (a, b)]
    memories = m.scratch(dtypes, max(a.layout.elements, b.layout.elements))
    for tile, memory in zip((a, b), memories, strict=True):
        for register, index in m.positions(tile.layout):
            m.shared_store(memory, index, tile.registers[register])
    m.barrier()
    rows = layout.map_coordinates(a.layout.shape, lambda c: (*c[:-1], 0))
    columns = layout.map_coordinates(b.layout.shape, lambda c: (*c[:-2], 0, c[-1]))
    starts = [dict(m.positions(part)) for part in (rows, columns)]
    sum_dtype, width = result.type.dtype, layout.shape[-1]

    def step(k: V, sums: list[V]) -> list[V]:
        k = m.cast(k, dt.i32)
        shifts = (k, m.multiply(k, m.constant(dt.i32, width)))
        left, right = (
            {r: _wide(m, m.shared_load(memory, m.add(start, shift), dtype), sum_dtype) for r, start in places.items()}
            for memory, dtype, places, shift in zip(memories, dtypes, starts, shifts, strict=True)
        )
        return [
            _multiply_add(
                m, left[rows.register_holding(_own(rows, r))], right[columns.register_holding(_own(columns, r))], x
            )
            for r, x in enumerate(sums)
        ]

    return m.tile(layout, m.repeat(a.layout.shape[-1], 1, list(acc.registers), step))


def _wide(m: Any, x: V, dtype: Dtype | Pointer) -> V:
    return m.cast(x, dtype)


def _multiply_add(m: Any, x: V, y: V, z: V) -> V:
    return m.fma(x, y, z) if z.dtype.is_float else m.add(m.multiply(x, y), z)
