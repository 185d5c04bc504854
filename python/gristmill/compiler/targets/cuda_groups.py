"""Products of warpgroups (wgmma): descriptors of tiles in shared memory, and the instructions of a step as one text.

A warpgroup's instructions run on behind the text until they are waited for, and their sums are registers that nothing
may touch until then: the same registers go in and out of each text.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op, Pointer
from gristmill.compiler.layout import Layout, flatten
from gristmill.compiler.machine import V
from gristmill.compiler.targets import cuda_roles, cuda_text
from gristmill.compiler.targets.thread_parts import terms
from gristmill.compiler.targets.thread_products import zero_for_nan
from gristmill.compiler.tensor import GROUP_DEPTH_BYTES, GROUP_ROWS, GROUP_UNITS, GROUP_WARPS, MOST_COLUMNS
from gristmill.dtypes import Dtype

SUMS = {dt.f32: "f32", dt.i32: "s32"}
SHARED_ADDRESSES = 0x3FFFF  # of a block
SWIZZLES = {128: 1, 64: 2, 32: 3}
MOST_PROMOTED_COLUMNS = 128  # at a time, so that what is not added yet takes few registers
PROMOTED = 128  # of the depth that sums of 8-bit floats, which lose bits, go along before they are added in f32
BEGIN = "wgmma.fence.sync.aligned;"
COMMIT, WAIT = "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned %d;"
ATTRIBUTES = "convergent nounwind"
Pair = tuple[Any, Any]  # of tiles that are multiplied


@dataclass(frozen=True)
class Numbers:
    """The numbers of what a text is given: sums first, then the tiles' descriptors, then the words of tiles in
    registers."""

    sums: int
    descriptors: dict[Any, int]
    words: dict[Any, int]


def multiply_shared(m: Any, op: Op, a: Any, b: Any, layout: Layout, sums: list[V]) -> list[V]:
    """Return sums + a @ b. The left tile is [rows, depth], the right one [depth, columns], each either way inside.

    The left one may lie in registers instead, as instructions take it. Of 8-bit floats, and of f32 in parts, each
    step's sums are added to the others outside of the tensor cores.
    """
    pairs = terms(a, b)
    tiles = {x: side for pair in pairs for side, x in enumerate(pair)}
    shared = {x: _descriptor(m, x, layout, side) for x, side in tiles.items() if not _is_held(x)}
    held = [x for x in tiles if _is_held(x)]
    words = [m.bitcast(word, dt.u32) for x in held for word in x.registers]
    depth = op.attributes["depth"]
    most = MOST_PROMOTED_COLUMNS if op.attributes["is_promoted"] else MOST_COLUMNS
    columns = min(most, 4 << sum(1 for basis in layout.reg if basis[1]), op.attributes["columns"])
    places = _places(layout, columns, len(sums))

    def numbers(count: int) -> Numbers:
        of_words = itertools.accumulate((len(x.registers) for x in held), initial=count + len(shared))
        return Numbers(count, {x: count + i for i, x in enumerate(shared)}, dict(zip(held, of_words, strict=False)))

    if not op.attributes["is_promoted"]:
        is_begun = not op.attributes["is_first"]
        text = _text(op, pairs, columns, places, range(depth), numbers(len(sums)), is_begun)
        given = sums if is_begun else []
        return _call(m, text, list(shared.values()), given, len(sums), words, dtype=sums[0].dtype)
    size = columns // 2
    for start in range(0, depth, PROMOTED):
        depths = range(start, min(start + PROMOTED, depth))
        for block, place in enumerate(places):
            own: list[V] = []
            for some in (pairs[:-1], pairs[-1:]) if len(pairs) > 1 else (pairs,):
                text = _text(op, some, columns, [place], depths, numbers(size), is_begun=bool(own))
                own = _call(m, text, list(shared.values()), zero_for_nan(m, own), size, words)
            part = slice(block * size, (block + 1) * size)
            sums[part] = [m.add(x, y) for x, y in zip(sums[part], own, strict=True)]
    return sums


def _is_held(tile: Any) -> bool:
    return hasattr(tile, "registers")


def _list(numbers: range) -> str:
    return "{" + ",".join(f"${i}" for i in numbers) + "}"


def _places(layout: Layout, columns: int, count: int) -> list[tuple[int, int]]:
    """The row and column at which each block of a warpgroup's sums begins."""
    of_columns = 1 << sum(1 for basis in layout.reg if basis[1] >= columns)
    blocks = range(count // (columns // 2))
    return [(block // of_columns * _rows_apart(layout), block % of_columns * columns) for block in blocks]


def _text(
    op: Op,
    pairs: list[Pair],
    columns: int,
    places: list[tuple[int, int]],
    depths: range,
    numbers: Numbers,
    is_begun: bool = True,
) -> str:
    """The instructions along a part of the depth, for each pair of tiles; whether they add to sums that are given."""
    texts = ["{ .reg .b64 a, b; .reg .pred none; setp.ne.b32 none, 0, 0;", BEGIN]
    steps = range(depths.start, depths.stop, GROUP_DEPTH_BYTES // pairs[0][1].dtype.itemsize)
    for i, (pair, depth) in enumerate(itertools.product(pairs, steps)):
        adds = "1" if is_begun or i else "none"
        for block, place in enumerate(places):
            own = _list(range(block * columns // 2, (block + 1) * columns // 2))
            texts += _instruction(pair, place, depth, columns, own, numbers, adds)
    texts.append(f"{_end(op)} }}")
    return " ".join(texts)


def _rows_apart(layout: Layout) -> int:
    """Rows from one of a warpgroup's blocks to the next."""
    return min((basis[0] for basis in layout.reg if basis[0] > 8), default=0)


def _instruction(
    pair: Pair, place: tuple[int, int], depth: int, columns: int, sums: str, numbers: Numbers, adds: str
) -> list[str]:
    (a, b), (row, column) = pair, place
    unit = GROUP_UNITS[b.dtype]
    texts = [f"add.s64 b, ${numbers.descriptors[b]}, {_offset(b, (depth, column)) >> 4};"]
    how = [adds] + (["1", "1"] if unit.summed == dt.f32 else [])
    if _is_held(a):
        # Registers go along the instruction's words, then along the depth, then along the rows.
        step = GROUP_DEPTH_BYTES // b.dtype.itemsize
        of_depth, of_rows = 4 * (depth // step), row // max(1, _rows_apart(a.layout)) * 4 * (b.shape[0] // step)
        first = numbers.words[a] + of_depth + of_rows
        left = _list(range(first, first + 4))
    else:
        texts.insert(0, f"add.s64 a, ${numbers.descriptors[a]}, {_offset(a, (row, depth)) >> 4};")
        left, how = "a", how + ([str(int(a.inner == 0))] if unit.has_any_order else [])
    how += [str(int(b.inner == 1))] if unit.has_any_order else []
    shape = f"m{GROUP_ROWS}n{columns}k{GROUP_DEPTH_BYTES // b.dtype.itemsize}"
    kind = f"{SUMS[unit.summed]}.{unit.name}.{unit.name}"
    return [*texts, f"wgmma.mma_async.sync.aligned.{shape}.{kind} {sums}, {left}, b, {', '.join(how)};"]


def _offset(tile: Any, coordinates: tuple[int, int]) -> int:
    """Bytes from the tile's start to where an instruction's part of it starts."""
    return int(tile.arrangement.offset(flatten(coordinates, tile.shape)) * tile.dtype.itemsize)


def _descriptor(m: Any, tile: Any, layout: Layout, axis: int) -> V:
    """The 64 bits that tell where the warpgroup's part of a tile starts and how it lies."""
    size, width = tile.dtype.itemsize, tile.panel
    own = [0, 0]
    bits = []
    for i, basis in enumerate(layout.warp[2:], 2):
        own[axis] = basis[axis]
        bits.append((i, _offset(tile, (own[0], own[1]))))
        own = [0, 0]
    start = m.emit(f"ptrtoint ptr addrspace(3) {tile.memory.text} to i32", dt.i32)
    if tile.start is not None:
        start = m.add(start, m.multiply(tile.start, m.constant(dt.i32, size)))
    if any(number for _, number in bits):
        start = m.add(start, m.group_bits(tuple(bits)))
    if m.ctas > 1:  # in a cluster an address says which block's it is, too
        start = m.bit_and(start, m.constant(dt.i32, SHARED_ADDRESSES))
    panels_apart = tile.shape[1 - tile.inner] * width  # ignored where the depth lies along the panels
    fixed = SWIZZLES[width] << 62 | (8 * width >> 4) << 32 | (panels_apart >> 4 & 0x3FFF) << 16
    low = m.emit(f"lshr {m.typed(start)}, 4", dt.u32)
    wide = m.emit(f"zext {m.typed(low)} to i64", dt.u64)
    return m.emit(f"or disjoint {m.typed(wide)}, {fixed - (1 << 64) if fixed >> 63 else fixed}", dt.u64)


def _call(
    m: Any,
    text: str,
    descriptors: list[V],
    sums: list[V],
    count: int = 0,
    words: Sequence[V] = (),
    dtype: Dtype | Pointer = dt.f32,
) -> list[V]:
    """Emit `text`, in whose results the sums go in and out; or, where none are given, `count` new ones come out.

    Behind them come the descriptors, then words of an operand.
    """
    count, dtype = len(sums) or count, sums[0].dtype if sums else dtype
    letter = "f" if dtype == dt.f32 else "r"
    ties = map(str, range(len(sums)))
    constraints = ",".join(
        [*[f"={letter}"] * count, *["l"] * len(descriptors), *["r"] * len(words), *ties, "~{memory}"]
    )
    code = f'asm sideeffect "{text}", "{constraints}"'
    return cuda_text.call(m, code, dtype, count, [*descriptors, *words, *sums], ATTRIBUTES)


def _group(m: Any) -> V:
    """The number of the thread's warpgroup."""
    return m.emit(f"lshr {m.typed(m.uniform_warp())}, {GROUP_WARPS.bit_length() - 1}", dt.i32)


def barrier(m: Any) -> None:
    """A warpgroup's own barrier; behind that of the consumers, if they are more."""
    if m.num_warps == GROUP_WARPS:
        return m.barrier()
    number = m.add(_group(m), m.constant(dt.i32, cuda_roles.CONSUMERS + 1))
    name = "llvm.nvvm.barrier.cta.sync.aligned.count"
    m.declarations.add(f"declare void @{name}(i32, i32)")
    m.say(f"call void @{name}({m.typed(number)}, i32 {32 * GROUP_WARPS})")


# A warpgroup's turn is a barrier of it and of the one before, which only arrives. The turn is the first one's when all
# begin, as if the last one had passed it, and is taken back when all are done: no barrier is left half way.
TURN = f"bar.%s $0, {64 * GROUP_WARPS};"


def _groups(m: Any) -> int:
    """How many warpgroups consume."""
    return m.function.present_warps // GROUP_WARPS


def _is_group(m: Any, number: int) -> V:
    return m.compare("==", _group(m), m.constant(dt.i32, number))


def _turns(m: Any) -> V:
    """The barrier of the first warpgroup's turn, behind those of the warpgroups."""
    return m.constant(dt.i32, cuda_roles.CONSUMERS + 1 + _groups(m))


def wait_turn(m: Any) -> None:
    """Wait until the warpgroup before has passed the turn."""
    cuda_roles.assembly(m, TURN % "sync", m.add(_turns(m), _group(m)))


def pass_turn(m: Any) -> None:
    """Arrive where the next warpgroup waits."""
    is_last, zero, one = _is_group(m, _groups(m) - 1), m.constant(dt.i32, 0), m.constant(dt.i32, 1)
    following = m.select(is_last, zero, m.add(_group(m), one))
    cuda_roles.assembly(m, TURN % "arrive", m.add(_turns(m), following))


def begin_turns(m: Any) -> None:
    """The last warpgroup lets the first one begin."""
    cuda_roles.assembly(m, f"@$1 {TURN % 'arrive'}", _turns(m), _is_group(m, _groups(m) - 1))


def finish_turns(m: Any) -> None:
    """The first warpgroup takes back what the last one passed."""
    cuda_roles.assembly(m, f"@$1 {TURN % 'sync'}", _turns(m), _is_group(m, 0))


def settle(m: Any, sums: list[V], pending: int, words: Sequence[V]) -> list[V]:
    """Wait for all products but the last ones; the words stay in their registers until then."""
    return _call(m, WAIT % pending, [], sums, words=words)


def _end(op: Op) -> str:
    pending = op.attributes["pending"]
    return COMMIT if pending is None else f"{COMMIT} {WAIT % pending}"
