"""Blocks that the hardware copies: loops that they are copied for, when they are not, what is told, and mistakes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from assembled import assemble_text, entry_of
from gristmill.compiler.ir import For, Op, walk
from gristmill.compiler.simt import run as simulated
from gristmill.compiler.simt.run import run_simulated
from gristmill.errors import SimulationError
from machines import kernel_of
from ptx import needs_ptxas
from test_windows_shapes import (
    SQUARE,
    integers,
    itself,
    on_each,
    placed_kernel,
    prepared,
    product_kernel,
    product_source,
    run_placed,
    run_product,
    run_windows,
    same,
    wide,
)

# ---- loops -----------------------------------------------------------------------------------------------------------

PERSISTENT = """
@gm.kernel(grid=2, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], bias: gm.ptr[gm.f32], residual: gm.ptr[gm.f16], c: gm.ptr[gm.f32],
      m: gm.shape["a", 0], depth: gm.shape["a", 1], n: gm.shape["c", 1]):
    left = tl.make_tensor_descriptor(a, [m, depth], [depth, 1], [64, 32])
    right = tl.make_tensor_descriptor(b, [depth, n], [n, 1], [32, 64])
    across = tl.cdiv(n, 64)
    for tile in range(tl.program_id(0), tl.cdiv(m, 64) * across, tl.num_programs(0)):
        row, column = tile // across * 64, tile % across * 64
        acc = tl.zeros((64, 64), tl.float32)
        for start in range(0, depth, 32):
            acc = tl.dot(left.load([row, start]), right.load([start, column]), acc)
        rows, columns = row + tl.arange(0, 64)[:, None], column + tl.arange(0, 64)
        acc += tl.load(bias + columns, mask=columns < n)[None, :]
        keep = (rows < m) & (columns < n)[None, :]
        acc += tl.load(residual + rows * n + columns[None, :], mask=keep).to(tl.float32) * tl.max(acc)
        {store}
"""


def run_persistent(run, kernel, depth):
    a, b, residual = integers(72, depth), integers(depth, 72, seed=1), integers(72, 72, seed=2)
    bias, c = integers(72, dtype="f32"), np.full((72, 72), np.nan, "f4")
    copied = run(kernel, None, a, b, bias, residual, c)
    want = np.pad(wide(a) @ wide(b), (0, 56)) + np.pad(bias, (0, 56))
    largest = want.reshape(2, 64, 2, 64).max((1, 3)).repeat(64, 0).repeat(64, 1)  # of each tile, outside included
    return c, want[:72, :72] + residual * largest[:72, :72], copied


STORE = "tl.store(c + rows * n + columns[None, :], acc, mask=keep)"


@on_each
@pytest.mark.parametrize("depth", [0, 8, 136])
def test_slots_go_on_from_tile_to_tile(run, depth):
    """The epilogue loads, lets threads exchange numbers, and stores, while the next tile's blocks come."""
    c, want, copied = run_persistent(run, kernel_of(PERSISTENT.format(store=STORE)), depth)
    same(c, want)
    assert run is not run_windows or copied == ({"a", "b"} if depth else set())


@on_each
def test_results_may_be_stored_through_a_descriptor(run):
    store = "tl.make_tensor_descriptor(c, [m, n], [n, 1], [64, 64]).store([row, column], acc)"
    c, want, _ = run_persistent(run, kernel_of(PERSISTENT.format(store=store)), 72)
    same(c, want)


GROUPED = """
@gm.kernel(grid=2, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], ends: gm.ptr[gm.i32], rows: gm.ptr[gm.i32], c: gm.ptr[gm.f32],
      m: gm.shape["a", 0], depth: gm.shape["a", 1], n: gm.shape["rows", 0]):
    left = tl.make_tensor_descriptor(a, [m, depth], [depth, 1], [64, 32])
    right = tl.make_tensor_descriptor(b, [depth, 64], [64, 1], [32, 64])
    for tile in range(tl.program_id(0), n, 2):
        row = tl.load(rows + tile)
        acc = tl.zeros((64, 64), tl.float32)
        if row >= 0:
            for start in range(tl.multiple_of(tl.load(ends + tile), 32), tl.load(ends + tile + 1), 32):
                acc = tl.dot(left.load([row, start]), right.load([start, 0]), acc)
        tl.store(c + tile * 4096 + SQUARE, acc)
""".replace("SQUARE", SQUARE)


@on_each
def test_bounds_and_places_may_be_loaded_before_the_loop(run):
    """Tiles have 2, 0, 5, 1 and 3 steps, and one is left out."""
    ends, rows = np.array([0, 64, 64, 224, 256, 320], np.int32), np.array([0, 3, 10, -1, 70], np.int32)
    a, b = integers(72, 320), integers(320, 64, seed=1)
    c, want = np.full((5, 64, 64), np.nan, "f4"), np.zeros((5, 64, 64))
    copied = run(kernel_of(GROUPED), None, a, b, ends, rows, c)
    for tile in np.flatnonzero(rows >= 0):
        block = wide(a[rows[tile] : rows[tile] + 64, ends[tile] : ends[tile + 1]])
        want[tile, : len(block)] = block @ wide(b[ends[tile] : ends[tile + 1]])
    same(c, want)
    assert run is not run_windows or copied == {"a", "b"}


SEVERAL = """
@gm.kernel(grid=1, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], d: gm.ptr[gm.f16], e: gm.ptr[gm.f16], f: gm.ptr[gm.f16],
      c: gm.ptr[gm.f32], m: gm.shape["a", 0], n: gm.shape["a", 1]):
    first, second = tl.zeros((64, 64), tl.float32), tl.zeros((64, 64), tl.float32)
    of_a = tl.make_tensor_descriptor(a, [m, n], [n, 1], [64, 32])
    of_b = tl.make_tensor_descriptor(b, [n, m], [m, 1], [32, 64])
    of_d = tl.make_tensor_descriptor(d, [n, m], [m, 1], [32, 64])
    of_e = tl.make_tensor_descriptor(e, [m, n], [n, 1], [64, 32])
    of_f = tl.make_tensor_descriptor(f, [m, n], [n, 1], [64, 32])
    of_g = tl.make_tensor_descriptor(a, [m, n], [n, 1], [64, 16])
    of_h = tl.make_tensor_descriptor(b, [n, m], [m, 1], [16, 64])
    of_i = tl.make_tensor_descriptor(e, [m, n], [n, 1], [64, 16])
    of_j = tl.make_tensor_descriptor(d, [n, m], [m, 1], [16, 64])
    {lines}
    tl.store(c + SQUARE, first * 64.0 + second)
""".replace("SQUARE", SQUARE)
LOOP = "for i in range(0, n, 32):\n        "
LOOPS = {  # what computes both sums, of arrays [m, n] and [n, m], and the arrays of which blocks are copied
    "other operands": (
        LOOP + "first = tl.dot(of_a.load([0, i]), of_b.load([i, 0]), first)\n"
        "        second = tl.dot(of_d.load([i, 0]).T, of_e.load([0, i]).T, second)",
        lambda a, b, d, e, f: (a @ b, d.T @ e.T),
        "abde",
    ),
    "an array for both": (
        LOOP + "first = tl.dot(of_a.load([0, i]), of_a.load([8, i]).T, first)\n"
        "        second = tl.dot(of_a.load([16, i]), of_b.load([i, 0]), second)",
        lambda a, b, d, e, f: (a @ np.pad(a[8:], ((0, 8), (0, 0))).T, np.pad(a[16:], ((0, 16), (0, 0))) @ b),
        "aaab",
    ),
    "the same block in each step": (
        LOOP + "first = tl.dot(of_a.load([0, i]), of_b.load([0, 0]), first)",
        lambda a, b, d, e, f: (sum(np.split(np.pad(a, ((0, 0), (0, 8))), 3, 1)) @ b[:32], 0 * a @ b),
        "ab",
    ),
    "sums that change": (
        LOOP + "first = tl.dot(of_a.load([0, i]), of_b.load([i, 0]), first) * 2",
        lambda a, b, d, e, f: (8 * a[:, :32] @ b[:32] + 4 * a[:, 32:64] @ b[32:64] + 2 * a[:, 64:] @ b[64:], 0 * a @ b),
        "ab",
    ),
    "one loop behind another": (
        LOOP + "first = tl.dot(of_a.load([0, i]), of_b.load([i, 0]), first)\n    "
        "for j in range(32, n, 32):\n        second = tl.dot(of_e.load([0, j]), of_d.load([j, 0]), second)",
        lambda a, b, d, e, f: (a @ b, e[:, 32:] @ d[32:]),
        "abed",
    ),
    "one loop behind another, of other blocks": (
        LOOP + "first = tl.dot(of_a.load([0, i]), of_b.load([i, 0]), first)\n    "
        "for j in range(0, n, 32):\n        second = tl.dot(of_e.load([0, j]), of_f.load([0, j]).T, second)",
        lambda a, b, d, e, f: (a @ b, e @ f.T),
        "abef",
    ),
}


def run_several(run, lines, compute):
    arrays = [integers(64, 88, seed=i) for i in range(5)]
    arrays[1:3] = [np.ascontiguousarray(x.T) for x in arrays[1:3]]
    c = np.full((64, 64), np.nan, "f4")
    copied = run(kernel_of(SEVERAL.format(lines=lines)), None, *arrays, c)
    first, second = compute(*map(wide, arrays))
    return c, first * 64 + second, copied


@on_each
@pytest.mark.parametrize("name", LOOPS)
def test_loops_may_have_several_products(run, name):
    lines, compute, used = LOOPS[name]
    c, want, copied = run_several(run, lines, compute)
    same(c, want)
    assert run is not run_windows or copied == set(used)


@pytest.mark.parametrize("name", LOOPS)
def test_equal_descriptors_share_a_map(name):
    lines, _, used = LOOPS[name]
    function = prepared(kernel_of(SEVERAL.format(lines=lines)))
    assert [m.parameter for m in function.maps] == list(dict.fromkeys(used))
    copies = [s for s in walk(function.producer) if isinstance(s, Op) and s.name == "copy_window"]
    assert [function.maps[op.attributes["map"]].parameter for op in copies] == list(used)


POINTERS = {  # what is not read through a descriptor, nor a block of a matrix: rows are taken round
    "a": "tl.load(a + rows % m * depth + (start + steps)[None, :], mask=(rows < m) & (start + steps < depth)[None, :])",
    "b": "tl.load(b + (start + steps)[:, None] % depth * n + columns, "
    "mask=(start + steps < depth)[:, None] & (columns < n))",
}
MIXED = """
@gm.kernel(grid=2, num_warps=4, num_stages={stages})
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], m: gm.shape["c", 0], n: gm.shape["c", 1],
      depth: gm.shape["a", 1]):
    left = tl.make_tensor_descriptor(a, [m, depth], [depth, 1], [64, 32])
    right = tl.make_tensor_descriptor(b, [depth, n], [n, 1], [32, 64])
    steps, rows = tl.arange(0, 32), tl.arange(0, 64)[:, None]
    for column in range(tl.program_id(0) * 64, n, 128):
        columns = column + tl.arange(0, 64)[None, :]
        acc = tl.zeros((64, 64), tl.float32)
        for start in range(0, depth, 32):
            acc = tl.dot({x}, {y}, acc)
        tl.store(c + rows * n + columns, acc, mask=(rows < m) & (columns < n))
"""


def mixed_source(name, stages=3):
    x, y = "left.load([0, start])", "right.load([start, column])"
    return MIXED.format(stages=stages, x=POINTERS["a"] if name == "a" else x, y=POINTERS["b"] if name == "b" else y)


@on_each
@pytest.mark.parametrize(("name", "stages"), [("a", 3), ("b", 4)])
def test_one_operand_may_be_read_through_pointers(run, name, stages):
    c, want, copied = run_product(run, kernel_of(mixed_source(name, stages)), (56, 136, 136))
    assert (c == want).all()
    assert run is not run_windows or copied == {"a", "b"} - {name}


# ---- what the hardware does not copy ---------------------------------------------------------------------------------


def strided(rows, columns, step, first=0):
    return lambda a: np.lib.stride_tricks.as_strided(a.ravel()[first:], (rows, columns), (2 * step, 2))


UNKNOWN = {  # descriptors, and what they are of an array of [40, 128]
    "a pointer into an array": ({"base": "a + 8", "array": "[m - 1, depth], [depth, 1]"}, strided(39, 128, 128, 8)),
    "half rows": ({"array": "[m * 2, depth // 2], [depth // 2, 1]"}, strided(80, 64, 64)),
    "rows off 16 bytes": ({"array": "[m // 4, depth], [depth + 4, 1]"}, strided(10, 128, 132)),
    "rows of 68": ({"array": "[m // 4, 64], [68, 1]"}, strided(10, 64, 68)),
    "a size that is loaded": ({"array": "[m - tl.load(b).to(tl.int32) * 0, depth], [depth, 1]"}, itself),
    "a size that is chosen": ({"array": "[tl.minimum(m, 24), depth], [depth, 1]"}, lambda a: a[:24]),
    "wide offsets": ({"place": "[x.to(tl.int64), start]"}, itself),
    "wide offsets from arguments": ({"place": "[x, start]", "kind": "i64"}, itself),
    "a stride of floats": ({"array": "[m, depth], [(x + 128.0).to(tl.int32), 1]", "kind": "f32"}, itself),
}


@on_each
@pytest.mark.parametrize("name", UNKNOWN)
def test_arrays_that_no_map_describes_are_read_through_pointers(run, name):
    given, rows = UNKNOWN[name]
    kernel = placed_kernel(**given)
    assert prepared(kernel).maps == []
    c, want, copied = run_placed(run, kernel, rows, size=(40, 128), beyond=0)
    same(c, want)
    assert run is not run_windows or copied == set()


UNFIT = {  # blocks that warpgroups do not multiply, or that swizzles do not suit
    "rows of 16": ((16, 64, 64), {}),
    "columns of 8": ((64, 8, 64), {}),
    "f32 of few columns": ((64, 16, 32), {"dtype": "f32"}),
    "two warps": ((64, 64, 64), {"warps": 2}),
    "one stage": ((64, 64, 64), {"stages": 1}),
}


@on_each
@pytest.mark.parametrize("name", UNFIT)
def test_blocks_that_warpgroups_do_not_take_are_read_through_pointers(run, name):
    tile, given = UNFIT[name]
    kernel = product_kernel(tile, **given)
    assert prepared(kernel).maps == []
    c, want, _ = run_product(run, kernel, (tile[0] - 1, tile[1], 72), dtype=given.get("dtype", "f16"))
    assert (c == want).all()


@on_each
def test_arrays_that_start_elsewhere_than_on_16_bytes_are_read(run):
    a, b, c = np.empty(64 * 64 + 1, "f2")[1:].reshape(64, 64), integers(64, 64, seed=1), np.full((64, 64), np.nan, "f4")
    a[:] = integers(64, 64)
    copied = run(product_kernel(), None, a, b, c)
    assert (c == wide(a) @ wide(b)).all()
    assert run is not run_windows or copied == set()


USED = """
@gm.kernel(grid=1, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], m: gm.shape["a", 0], depth: gm.shape["a", 1]):
    left = tl.make_tensor_descriptor(a, [m, depth], [depth, 1], [64, 64])
    right = tl.make_tensor_descriptor(b, [depth, 64], [64, 1], [64, 64])
    acc, more = tl.zeros((64, 64), tl.float32), tl.zeros((64, 64), tl.float32)
    {lines}
    tl.store(c + SQUARE, acc + more)
""".replace("SQUARE", SQUARE)
STEP = "for start in range(0, depth, 64):\n        "
PLAIN = "acc = tl.dot(left.load([0, start]), right.load([start, 0]), acc)"
USES = {  # of blocks of an array [64, 128] and another [128, 64], and what they give
    "by a sum": (
        STEP + "x = left.load([0, start])\n        acc = tl.dot(x, right.load([start, 0]), acc)\n"
        "        more += x.to(tl.float32)",
        lambda a, b: a @ b + a[:, :64] + a[:, 64:],
    ),
    "computed": (STEP + PLAIN.replace("start]),", "start]) * 2,"), lambda a, b: 2 * a @ b),
    "read behind the loop": (STEP + PLAIN + "\n    more += right.load([64, 0])", lambda a, b: a @ b + b[64:]),
    "without a loop": ("acc = tl.dot(left.load([0, 64]), right.load([64, 0]))", lambda a, b: a[:, 64:] @ b[64:]),
    "unrolled": ("for i in tl.static_range(2):\n        start = i * 64\n        " + PLAIN, np.matmul),
    "in a while loop": ("start = 0\n    while start < depth:\n        " + PLAIN + "\n        start += 64", np.matmul),
    "in a branch": (STEP + "if start > 0:\n            " + PLAIN, lambda a, b: a[:, 64:] @ b[64:]),
    "at a place that the loop loads": (
        STEP + "i = tl.load(a).to(tl.int32) * 0 + start\n        " + PLAIN.replace("[0, start]", "[0, i]"),
        np.matmul,
    ),
    "with atomics about": ("tl.atomic_add(c, 1.0)\n    tl.debug_barrier()\n    " + STEP + PLAIN, np.matmul),
}


@on_each
@pytest.mark.parametrize("name", USES)
def test_blocks_that_are_not_for_a_loops_products_alone_are_read_through_pointers(run, name):
    lines, compute = USES[name]
    kernel = kernel_of(USED.format(lines=lines))
    assert prepared(kernel_of(USED.format(lines=STEP + PLAIN))).maps and prepared(kernel).maps == []
    a, b, c = integers(64, 128), integers(128, 64, seed=1), np.full((64, 64), 7, "f4")
    copied = run(kernel, None, a, b, c)
    same(c, compute(wide(a), wide(b)))
    assert run is not run_windows or copied == set()


@on_each
def test_a_block_that_is_read_before_the_loop_is_copied_once(run):
    kernel = kernel_of(
        USED.format(lines="x = left.load([0, 64])\n    " + STEP + "acc = tl.dot(x, right.load([start, 0]), acc)")
    )
    assert [m.parameter for m in prepared(kernel).maps] == ["a", "b"]
    a, b, c = integers(64, 128), integers(128, 64, seed=1), np.full((64, 64), 7, "f4")
    copied = run(kernel, None, a, b, c)
    same(c, wide(a[:, 64:]) @ wide(b[:64] + b[64:]))
    assert run is not run_windows or copied == {"a", "b"}


@on_each
def test_what_the_kernel_writes_is_read_through_pointers(run):
    lines = STEP + PLAIN + f"\n    tl.debug_barrier()\n    tl.store(a + {SQUARE}, acc.to(tl.float16))"
    kernel = kernel_of(USED.format(lines=lines))
    assert prepared(kernel).maps == []
    a, b, c = integers(64, 128), integers(128, 64, seed=1), np.full((64, 64), np.nan, "f4")
    want = wide(a) @ wide(b)
    run(kernel, None, a, b, c)
    assert (c == want).all() and (a.ravel()[:4096] == want.ravel()).all()


@on_each
def test_a_block_may_be_for_two_products(run):
    """Whether it is copied or read through pointers."""
    lines = (
        LOOP + "x = of_a.load([0, i])\n        first = tl.dot(x, of_b.load([i, 0]), first)\n"
        "        second = tl.dot(x, of_e.load([0, i]).T, second)"
    )
    c, want, _ = run_several(run, lines, lambda a, b, d, e, f: (a @ b, a @ e.T))
    same(c, want)


# ---- what is told ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POINTERS)
def test_four_warps_copy_where_one_operand_is_read_through_pointers(name):
    function = prepared(kernel_of(mixed_source(name)))
    assert function.producer_warps == 4 and function.block_threads == 256 and len(function.maps) == 1
    (pipe,) = (op for op in function.common.statements if op.name == "pipe")
    assert pipe.attributes["has_copies"] and pipe.attributes["has_windows"]


RINGS = {
    "other operands": ["ring"] * 4 + ["pipe"],
    "one loop behind another": ["ring", "ring", "pipe"],
    "one loop behind another, of other blocks": ["ring", "ring", "pipe", "ring_in", "ring_in"],
}


@pytest.mark.parametrize("name", RINGS)
def test_loops_share_a_ring_of_the_same_blocks_or_the_room_of_as_large_ones(name):
    function = prepared(kernel_of(SEVERAL.format(lines=LOOPS[name][0])))
    assert [op.name for op in function.common.statements] == RINGS[name]


PROGRAMS = {  # tile, warps, what is turned; boxes of both arrays, bytes of a slot
    "squares": ((64, 64, 64), 4, "", 2, 16384),
    "panels": ((64, 128, 128), 8, "", 4, 49152),
    "turned": ((64, 256, 32), 8, "b", 2, 20480),
    "narrow": ((128, 16, 16), 4, "ab", 3, 4608),
}


def numbers_in(text, pattern):
    """The numbers that the registers matched by a pattern are set to, each once."""
    registers = dict.fromkeys(re.findall(pattern, text))
    return [int(n) for r in registers for n in re.findall(rf"mov\.[bu]32\s+{re.escape(r)}, (\d+);", text)]


EXPECTED = r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[%r\d+\], (%r\d+);"
ARRIVALS = r"mbarrier\.init\.shared::cta\.b64 \[%r\d+\], (%r\d+);"


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_thread_tells_the_hardware_and_waits_for_bytes(name):
    tile, warps, turned, boxes, size = PROGRAMS[name]
    text = entry_of(product_source(tile, warps, turned=turned), "sm_90a", name=name).text
    assert len(re.findall(r"@%p\d+ cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global", text)) == boxes
    assert len(re.findall(r"\.param \.align 64 \.b8 \w+\[128\]", text)) == text.count("prefetch.tensormap") == 2
    assert numbers_in(text, EXPECTED) == [size] and numbers_in(text, ARRIVALS) == [1, warps]
    assert not re.search(r"cp\.async\.(ca|cg|mbarrier)|ld\.global|setmaxnreg", text)
    assert f".reqntid {32 * warps + 32}" in text and "wgmma.mma_async" in text


def test_threads_copy_the_operand_that_is_read_through_pointers():
    text = entry_of(mixed_source("a"), "sm_90a", name="mixed").text
    loops = 2  # whole steps, and the rest
    assert text.count("cp.async.bulk.tensor.2d") == len(re.findall(EXPECTED, text)) == loops
    assert set(numbers_in(text, EXPECTED)) == {4096} and numbers_in(text, ARRIVALS) == [32 * 4 + 1, 4]
    assert "cp.async.cg" in text and text.count("cp.async.mbarrier.arrive") == loops


@needs_ptxas
def test_programs_assemble_without_spills():
    sources = {name: product_source(p[0], p[1], turned=p[2]) for name, p in PROGRAMS.items()}
    sources |= {f"mixed_{name}": mixed_source(name) for name in POINTERS}
    sources |= {"persistent": PERSISTENT.format(store=STORE), "grouped": GROUPED}
    texts = [entry_of(source, "sm_90a", name=name).text for name, source in sources.items()]
    usage = assemble_text(texts, "sm_90a")
    assert len(usage) == len(sources) and not any(u.local_bytes for u in usage.values())


# ---- mistakes that the simulated device finds ------------------------------------------------------------------------


def ops(loop, name):
    return [s for s in loop.body.statements if s.name == name]


def without(loop, name):
    loop.body.statements.remove(ops(loop, name)[0])


def expect_more(loop, size):
    ops(loop, "expect")[0].attributes["size"] += size


def release_twice(loop):
    """In each step but the first, from its beginning on."""
    (release,), (guard,) = ops(loop, "release"), ops(loop, "ne")
    loop.body.statements.remove(guard)
    loop.body.statements[:0] = [guard, Op(release.row, list(release.operands), {}, [])]


def copy_to_the_first(loop):
    for op in ops(loop, "copy_window"):
        op.operands[-1] = loop.operands[0]  # 0


MISTAKES = {  # what changes the consumers' and the producers' loop, and the report
    "bytes that never come": (lambda c, p: expect_more(p, 2), "a slot waits for 2 bytes more than are copied to it"),
    "bytes that nobody waits for": (lambda c, p: expect_more(p, -16), "a slot waits for -16 bytes more than"),
    "no copy": (lambda c, p: without(p, "copy_window"), "a slot waits for 2048 bytes more than"),
    "nothing expected": (lambda c, p: without(p, "expect"), "a slot waits for -2560 bytes more than"),
    "released early": (lambda c, p: release_twice(c), "is written while a product that nobody has waited for reads"),
    "never released": (lambda c, p: without(c, "release"), "wait for an? (full|empty) slot that never comes"),
    "never published": (lambda c, p: without(p, "publish"), "is copied to again before the last copy has come"),
    "the same slot": (lambda c, p: copy_to_the_first(p), "is copied to again before the last copy has come"),
}


def run_changed(monkeypatch, change):
    """Whether a program of which `change` has changed the loops, the consumers' and the producers', multiplies."""
    kernel = product_kernel((64, 16, 16))
    function = prepared(kernel)
    change(*(next(s for s in walk(block) if isinstance(s, For)) for block in (function.body, function.producer)))
    monkeypatch.setattr(simulated, "_prepared", lambda *given: (function, {}))
    c, want, _ = run_product(run_simulated, kernel, (64, 16, 144))
    return (c == want).all()


def test_a_program_that_is_not_changed_is_right(monkeypatch):
    assert run_changed(monkeypatch, lambda consumers, producers: None)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(monkeypatch, name):
    change, report = MISTAKES[name]
    with pytest.raises(SimulationError, match=report):
        run_changed(monkeypatch, change)
