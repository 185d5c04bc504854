"""Products of warpgroups (wgmma): descriptors of tiles in shared memory, and the instructions of a step as one text.

A warpgroup's instructions run on behind the text until they are waited for, and their sums are registers that nothing
may touch until then: the same registers go in and out of each text.
"""

from __future__ import annotations

from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op
from gristmill.compiler.layout import Layout, flatten
from gristmill.compiler.machine import V
from gristmill.compiler.targets import cuda_text
from gristmill.compiler.tensor import GROUP_ROWS, MOST_COLUMNS

SWIZZLES = {128: 1, 64: 2, 32: 3}
STEP = 16  # of the depth, along which an instruction goes
BEGIN = "wgmma.fence.sync.aligned;"
END = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned %d;"
ATTRIBUTES = "convergent nounwind"


def multiply_shared(m: Any, op: Op, a: Any, b: Any, layout: Layout, sums: list[V]) -> list[V]:
    """Return sums + a @ b. The left tile is [rows, depth], the right one [depth, columns], each either way inside."""
    columns = min(MOST_COLUMNS, 4 << sum(1 for basis in layout.reg if basis[1]), op.attributes["columns"])
    blocks = len(sums) // (columns // 2)
    of_columns = 1 << sum(1 for basis in layout.reg if basis[1] >= MOST_COLUMNS)
    texts = ["{ .reg .b64 a, b;", BEGIN]
    count = len(sums)
    for depth in range(0, a.shape[1], STEP):
        for block in range(blocks):
            row = (block // of_columns) * _rows_apart(layout)
            texts += _instruction(a, b, row, depth, block % of_columns * columns, columns, block, count)
    texts.append(END % int(op.attributes["is_open"]) + " }")
    descriptors = [_descriptor(m, x, layout, axis) for axis, x in enumerate((a, b))]
    return _call(m, " ".join(texts), descriptors, sums)


def _rows_apart(layout: Layout) -> int:
    """Rows from one of a warpgroup's blocks to the next."""
    return min((basis[0] for basis in layout.reg if basis[0] > 8), default=0)


def _instruction(a: Any, b: Any, row: int, depth: int, column: int, columns: int, block: int, count: int) -> list[str]:
    size = columns // 2
    sums = "{" + ",".join(f"${block * size + i}" for i in range(size)) + "}"
    places = (_offset(a, (row, depth)) >> 4, _offset(b, (depth, column)) >> 4)
    kind, shape = a.dtype.name, f"m{GROUP_ROWS}n{columns}k{STEP}"
    turned = f"{int(a.inner == 0)}, {int(b.inner == 1)}"
    return [
        f"add.s64 a, ${count}, {places[0]}; add.s64 b, ${count + 1}, {places[1]};",
        f"wgmma.mma_async.sync.aligned.{shape}.f32.{kind}.{kind} {sums}, a, b, 1, 1, 1, {turned};",
    ]


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
    panels_apart = tile.shape[1 - tile.inner] * width  # ignored where the depth lies along the panels
    fixed = SWIZZLES[width] << 62 | (8 * width >> 4) << 32 | (panels_apart >> 4 & 0x3FFF) << 16
    low = m.emit(f"lshr {m.typed(start)}, 4", dt.u32)
    wide = m.emit(f"zext {m.typed(low)} to i64", dt.u64)
    return m.emit(f"or disjoint {m.typed(wide)}, {fixed - (1 << 64) if fixed >> 63 else fixed}", dt.u64)


def _call(m: Any, text: str, descriptors: list[V], sums: list[V]) -> list[V]:
    count = len(sums)
    constraints = ",".join([*["=f"] * count, *["l"] * len(descriptors), *map(str, range(count)), "~{memory}"])
    code = f'asm sideeffect "{text}", "{constraints}"'
    return cuda_text.call(m, code, dt.f32, count, [*descriptors, *sums], ATTRIBUTES)


def settle(m: Any, sums: list[V]) -> list[V]:
    """Wait for all products, whose sums these are."""
    return _call(m, "wgmma.wait_group.sync.aligned 0;", [], sums)
