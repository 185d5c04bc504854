"""Tensor cores: their instructions, the layouts of what they take and give, and how operands lie in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.banks import Arrangement
from gristmill.compiler.layout import Coordinates, Layout, flatten
from gristmill.dtypes import Dtype

PANEL_BYTES = 128
CHUNK_BYTES = 16
STORE_BUFFERS = 2  # of columns of panels, which the hardware stores in turn


@dataclass(frozen=True)
class Unit:
    """A warp's product [m, k] by [k, n]: operands in words of 32 bits (64 for f64), sums in `summed`.

    `operand` is what it multiplies: f32 stands for tf32, its upper 19 bits.
    """

    operand: Dtype
    summed: Dtype
    m: int
    n: int
    k: int

    @property
    def word_elements(self) -> int:
        """Elements of an operand in a word."""
        return max(1, 32 // self.operand.bits)

    @property
    def words(self) -> tuple[int, int, int]:
        """Words of a thread: of the left operand, of the right one, and its sums."""
        threads = 32 * self.word_elements
        return self.m * self.k // threads, self.k * self.n // threads, self.m * self.n // 32


UNITS = {
    dt.f16: Unit(dt.f16, dt.f32, 16, 8, 16),
    dt.bf16: Unit(dt.bf16, dt.f32, 16, 8, 16),
    dt.f32: Unit(dt.f32, dt.f32, 16, 8, 8),
    dt.i8: Unit(dt.i8, dt.i32, 16, 8, 32),
    dt.u8: Unit(dt.u8, dt.i32, 16, 8, 32),
    dt.f64: Unit(dt.f64, dt.f64, 8, 8, 4),
}


def accumulator(unit: Unit, shape: tuple[int, ...], num_warps: int, has_rows: bool = False) -> Layout:
    """The layout of a product: each warp has as many whole instructions' results as any other, near each other.

    Registers count an instruction's own sums first, then instructions along the columns, then along the rows. Warps
    have whole rows if that is asked for.
    """
    rows, columns = shape[0] // unit.m, shape[1] // unit.n
    warp: list[Coordinates] = []
    step = [unit.m, unit.n]
    for _ in range(num_warps.bit_length() - 1):
        axis = 0 if rows >= columns or has_rows else 1
        if max(rows, columns) == 1:
            warp.append((0, 0))
            continue
        warp.append((step[0], 0) if axis == 0 else (0, step[1]))
        step[axis] *= 2
        rows, columns = (rows // 2, columns) if axis == 0 else (rows, columns // 2)
    own = ((0, 1), (8, 0)) if unit.m == 16 else ((0, 1),)
    along_columns = tuple((0, c) for c in powers(unit.n, shape[1]) if (0, c) not in warp)
    along_rows = tuple((r, 0) for r in powers(unit.m, shape[0]) if (r, 0) not in warp)
    lane = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))
    return Layout(shape, own + along_columns + along_rows, lane, tuple(warp))


@dataclass(frozen=True)
class GroupUnit:
    """What warpgroups multiply, as instructions call it; `has_any_order`: operands lie along the depth or across it."""

    name: str
    summed: Dtype
    has_any_order: bool = False


GROUP_UNITS = {
    dt.f16: GroupUnit("f16", dt.f32, has_any_order=True),
    dt.bf16: GroupUnit("bf16", dt.f32, has_any_order=True),
    dt.f32: GroupUnit("tf32", dt.f32),
    dt.f8e4m3: GroupUnit("e4m3", dt.f32),
    dt.f8e5m2: GroupUnit("e5m2", dt.f32),
    dt.i8: GroupUnit("s8", dt.i32),
    dt.u8: GroupUnit("u8", dt.i32),
}
GROUP_DEPTH_BYTES = 32  # of one instruction
GROUP_WARPS = 4
GROUP_ROWS = 64
MOST_COLUMNS = 256  # of one instruction


IN_ORDER = (1, 2, 4, 8, 16, 32)  # the bits of a row's number in an instruction's block
# What a row stands for where a left operand of f32 comes from a tile that lies across the depth: a warp's lanes then
# read four rows of the depth, of each two chunks of 16 bytes, and no bank twice.
ACROSS = (1, 2, 16, 4, 8, 32)


def group_accumulator(shape: tuple[int, ...], num_warps: int, order: tuple[int, ...] = IN_ORDER) -> Layout:
    """The layout of a product by warpgroups, each of which has rows in blocks of 64: as of the same instructions."""
    groups = num_warps // GROUP_WARPS
    by_rows = min(groups, shape[0] // GROUP_ROWS)
    rows, columns = GROUP_ROWS * by_rows, shape[1] // max(1, groups // by_rows)
    own = [(r, 0) for r in order]
    warp = [*own[4:], *((r, 0) for r in powers(GROUP_ROWS, rows)), *((0, c) for c in powers(columns, shape[1]))]
    along_columns = tuple((0, c) for c in powers(8, columns))
    along_rows = tuple((r, 0) for r in powers(rows, shape[0]))
    return Layout(shape, ((0, 1), own[3], *along_columns, *along_rows), ((0, 2), (0, 4), *own[:3]), tuple(warp))


def sums_of(how: Mapping[str, Any], operand: Dtype, shape: tuple[int, ...], num_warps: int) -> Layout:
    """The layout of the sums of a product that is computed so, of such operands; what it holds lies alike."""
    if how["by_groups"]:
        return group_accumulator(shape, num_warps, how["order"])
    return accumulator(UNITS[operand], shape, num_warps, how["has_rows"])


def group_left(sums: Layout, depth: int) -> Layout:
    """The words of f32 that threads hold of a product's left operand: four for each instruction, then along the depth,
    then the next block of rows."""
    along_rows = tuple(b for b in sums.reg[2:] if b[0])
    along_depth = tuple((0, c) for c in powers(GROUP_DEPTH_BYTES // 4, depth))
    warp = tuple((b[0], 0) for b in sums.warp)
    words = (sums.reg[1], (0, 4))
    return Layout((sums.shape[0], depth), (*words, *along_depth, *along_rows), ((0, 1), (0, 2), *sums.lane[2:]), warp)


def in_words(halves: Layout) -> Layout:
    """The layout of words of two halves that a thread has side by side in a row."""
    reg, lane, warp = (tuple((r, c // 2) for r, c in bases) for bases in (halves.reg[1:], halves.lane, halves.warp))
    return Layout((halves.shape[0], halves.shape[1] // 2), reg, lane, warp)


def in_halves(words: Layout) -> Layout:
    """The inverse of `in_words`."""
    reg, lane, warp = (tuple((r, 2 * c) for r, c in bases) for bases in (words.reg, words.lane, words.warp))
    return Layout((words.shape[0], 2 * words.shape[1]), ((0, 1), *reg), lane, warp)


def fits_groups(a: tuple[int, ...], b: tuple[int, ...], dtype: Dtype, num_warps: int, is_along: bool = False) -> bool:
    """Whether warpgroups can multiply: whole blocks of rows, and columns that instructions have.

    `is_along`: elements of both operands lie side by side along the depth, which all but halves need.
    """
    unit = GROUP_UNITS.get(dtype)
    if unit is None or not (unit.has_any_order or is_along) or num_warps % GROUP_WARPS or a[0] % GROUP_ROWS:
        return False
    groups = num_warps // GROUP_WARPS
    columns = b[1] // max(1, groups // min(groups, a[0] // GROUP_ROWS))
    return columns >= 16 and a[1] * dtype.itemsize >= GROUP_DEPTH_BYTES


def left(unit: Unit, sums: Layout, depth: int) -> Layout:
    """What each thread takes of the left operand, [rows, depth], for the instructions of one step along the depth."""
    words = unit.word_elements
    own = tuple((0, w) for w in powers(1, words))
    halves = ((8, 0), (0, 4 * words)) if unit.m == 16 else ()
    rows = tuple(b for b in sums.reg[len(halves) or 1 :] if b[0])
    warp = tuple((b[0], 0) for b in sums.warp)
    lane = ((0, words), (0, 2 * words), (1, 0), (2, 0), (4, 0))
    return Layout((sums.shape[0], depth), own + halves + rows, lane, warp)


def right(unit: Unit, sums: Layout, depth: int) -> Layout:
    """What each thread takes of the right operand, [depth, columns]."""
    words = unit.word_elements
    own = tuple((w, 0) for w in powers(1, words))
    halves: tuple[Coordinates, ...] = ((4 * words, 0),) if unit.m == 16 else ()
    columns = tuple(b for b in sums.reg[2 if unit.m == 16 else 1 :] if b[1])
    warp = tuple((0, b[1]) for b in sums.warp)
    lane = ((words, 0), (2 * words, 0), (0, 1), (0, 2), (0, 4))
    return Layout((depth, sums.shape[1]), own + halves + columns, lane, warp)


def powers(start: int, end: int) -> list[int]:
    """start, 2 start, 4 start... below `end`."""
    found = []
    while start < end:
        found.append(start)
        start *= 2
    return found


def inner_axis(layout: Layout) -> int:
    """The axis along which a thread has elements side by side."""
    first = layout.reg[0] if layout.reg else ()
    return first.index(1) if sum(first) == 1 else len(layout.shape) - 1


def panel_bytes(inner_bytes: int) -> int:
    """The width of panels: of the widest swizzle that divides an inner axis of so many bytes, or all of a short one."""
    return min(PANEL_BYTES, inner_bytes & -inner_bytes)


def panels(shape: tuple[int, ...], inner: int, itemsize: int, panel: int) -> Arrangement:
    """Panels of `panel` bytes along the inner axis, swizzled as TMA and wgmma do.

    Within each 1024 bytes, or 512 or 256, chunks of 16 bytes change places by the number of the 128 bytes that they lie
    in: eight rows of a column of chunks, which matrix loads read at once, lie in different banks.
    """
    width = panel // itemsize
    outer = 1 - inner
    images = [0] * (flatten(tuple(s - 1 for s in shape), shape).bit_length())
    for axis, size in ((inner, shape[inner]), (outer, shape[outer])):
        for c in powers(1, size):
            position = flatten(tuple(c if a == axis else 0 for a in range(2)), shape)
            number, within = divmod(c, width) if axis == inner else (0, c * width)
            images[position.bit_length() - 1] = _swizzled(number * width * shape[outer] + within, width, itemsize)
    return Arrangement(tuple(images), ())


def _swizzled(offset: int, width: int, itemsize: int) -> int:
    byte = offset * itemsize
    mask = width * itemsize // CHUNK_BYTES - 1
    return (byte ^ (byte >> 7 & max(0, mask)) << 4) // itemsize
