"""Loads through pointers that the hardware copies: of which form addresses and masks are, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gristmill.symbolic import evaluate
from machines import MACHINES, kernel_of
from test_tensor import PLAIN, TURNED, kernel_for
from test_windows_shapes import integers, prepared, run_product, run_windows, same, wide

RUNS = MACHINES | {"simt": pytest.param(run_windows, id="sm_90a")}
on_each = pytest.mark.parametrize("run", list(RUNS.values()))

LOADED = """
@gm.kernel(grid=1, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], x: gm.{kind}, y: gm.i32, m: gm.shape["a", 0],
      k: gm.shape["a", 1], n: gm.shape["b", 0]):
    rows, steps, columns = tl.arange(0, 64), tl.arange(0, 32), tl.arange(0, 16)
    acc = tl.zeros((64, 16), tl.float32)
    {before}
    for start in range(0, n, 32):
        {line}
        right = tl.load(b + (start + steps)[:, None] * 16 + columns[None, :], mask=(start + steps < n)[:, None])
        acc = tl.dot({load}, right, acc)
    tl.store(c + rows[:, None] * 16 + columns[None, :], acc)
"""
BLOCK = "a + rows[:, None] * k + (start + steps)[None, :]"
Numbers = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A left operand: `place(i, j, m, k)` is where its element stands in `a`, `keep` where it is read; else `other`."""

    load: str
    place: Numbers = lambda i, j, m, k: i * k + j
    keep: Numbers = lambda i, j, m, k: True
    size: tuple[int, int] = (128, 64)
    depth: int = 64
    x: Any = 8
    y: int = 8
    kind: str = "i32"
    before: str = "pass"
    line: str = "pass"
    other: float = 0.0

    def kernel(self):
        return kernel_of(LOADED.format(load=self.load, before=self.before, line=self.line, kind=self.kind))

    def maps(self):
        """The names of the arrays of which blocks are copied."""
        return {tensor_map.parameter for tensor_map in prepared(self.kernel()).maps}

    def check(self, run):
        """Compare the product with numpy's; returns what `run` returned."""
        a, b = integers(*self.size), integers(self.depth, 16, seed=1)
        c = np.full((64, 16), np.nan, "f4")
        found = run(self.kernel(), None, a, b, c, x=self.x, y=self.y)
        where = np.arange(64)[:, None], np.arange(self.depth)[None, :], *self.size
        place, keep = np.broadcast_arrays(self.place(*where), self.keep(*where), where[0] + where[1])[:2]
        assert (place[keep] >= 0).all() and (place[keep] < a.size).all()
        block = np.where(keep, wide(a).ravel()[np.where(keep, place, 0)], self.other)
        same(c, block @ wide(b))
        return found


def each_of(cases):
    return pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases.items()])


# ---- addresses -------------------------------------------------------------------------------------------------------

FORMS = {
    "rows, then columns": Case(f"tl.load({BLOCK})"),
    "columns, then rows": Case("tl.load(a + (start + steps)[None, :] + rows[:, None] * k)"),
    "a tile of offsets": Case("tl.load(a + (rows[:, None] * k + (start + steps)[None, :]))"),
    "offsets in front": Case("tl.load(rows[:, None] * k + (start + steps)[None, :] + a)"),
    "the stride in front": Case("tl.load(a + k * rows[:, None] + (start + steps)[None, :])"),
    "rows' starts": Case("tl.load(p + start + steps[None, :])", before="p = a + rows[:, None] * k"),
    "a pointer that is moved": Case("tl.load(p + rows[:, None] * k + steps[None, :])", line="p = a + start"),
    "columns behind others": Case(f"tl.load({BLOCK} + n)", lambda i, j, m, k: i * k + j + 64, size=(72, 128)),
    "rows behind others": Case(
        "tl.load(a + (n + rows)[:, None] * k + (start + steps)[None, :])", lambda i, j, m, k: (i + 64) * k + j
    ),
    "rows behind others, by a pointer": Case(
        "tl.load(p + rows[:, None] * k + (start + steps)[None, :])",
        lambda i, j, m, k: (i + 64) * k + j,
        before="p = a + n * k",
    ),
    "one matrix of many": Case(f"tl.load({BLOCK} + tl.num_programs(0) * n * k)", lambda i, j, m, k: (i + 64) * k + j),
    "a place that cancels": Case("tl.load(a + ((rows + x)[:, None] * k + (start + steps)[None, :] - x * k))"),
    "every other row": Case(
        "tl.load(a + rows[:, None] * (2 * k) + (start + steps)[None, :])", lambda i, j, m, k: 2 * i * k + j
    ),
    "rows between": Case(
        "tl.load(a + k + rows[:, None] * 2 * k + (start + steps)[None, :])", lambda i, j, m, k: (2 * i + 1) * k + j
    ),
    "a stride that is a number": Case("tl.load(a + rows[:, None] * 64 + (start + steps)[None, :])"),
    "a stride that is an argument": Case(
        "tl.load(a + rows[:, None] * x + (start + steps)[None, :])", lambda i, j, m, k: i * 24 + j, x=24
    ),
    "rows that overlap": Case(
        "tl.load(a + rows[:, None] * 8 + (start + steps)[None, :])", lambda i, j, m, k: i * 8 + j
    ),
    "rows that end in the next": Case(f"tl.load({BLOCK})", size=(72, 24)),
    "64-bit indices": Case("tl.load(a + rows.to(tl.int64)[:, None] * k + (start + steps).to(tl.int64)[None, :])"),
    "a 64-bit stride": Case("tl.load(a + rows[:, None] * k.to(tl.int64) + (start + steps)[None, :])"),
    "promises": Case(
        "tl.load(a + rows[:, None] * k + tl.max_contiguous(tl.multiple_of(start + steps, 32), 32)[None, :])"
    ),
    "steps outside": Case("tl.load(a + rows[:, None] + (start + steps)[None, :] * k)", lambda i, j, m, k: i + j * k),
    "turned": Case("tl.load(a + (start + steps)[:, None] * k + rows[None, :]).T", lambda i, j, m, k: i + j * k),
    "turned offsets": Case(
        "tl.load(a + tl.trans((start + steps)[:, None] * k + rows[None, :]))", lambda i, j, m, k: i + j * k
    ),
    "turned pointers": Case(
        "tl.load(tl.trans(a + (start + steps)[:, None] * k + rows[None, :]))", lambda i, j, m, k: i + j * k
    ),
    "a range that starts elsewhere": Case(
        "tl.load(a + rows[:, None] * k + (start + tl.arange(32, 64))[None, :])", lambda i, j, m, k: i * k + j + 32
    ),
    "a column that the loop carries": Case(
        "tl.load(a + rows[:, None] * k + p + steps[None, :])",
        lambda i, j, m, k: i * k + j + 32,
        before="p = 0",
        line="p += 32",
    ),
    "a row that is loaded": Case(
        "tl.load(a + (p + rows)[:, None] * k + (start + steps)[None, :], mask=(start + steps < k)[None, :])",
        lambda i, j, m, k: (i + 8) * k + j,
        before="p = tl.load(b).to(tl.int32) * 0 + 8",
    ),
}


@on_each
@each_of(FORMS)
def test_addresses_of_blocks_of_a_matrix(run, case):
    assert case.maps() == {"a", "b"}
    assert case.check(run) == {"a", "b"} or run is not run_windows


# ---- masks -----------------------------------------------------------------------------------------------------------


def masked(mask, keep, load=BLOCK, more="", **given):
    return Case(f"tl.load({load}, mask={mask}{more})", keep=keep, **{"size": (56, 40)} | given)


def inside(i, j, m, k):
    return (i < m) & (j < k)


ROWS, COLUMNS = "(rows < m)[:, None]", "(start + steps < k)[None, :]"
MASKS = {
    "both axes": masked(f"{ROWS} & {COLUMNS}", inside),
    "both axes, as tiles": masked("(rows[:, None] < m) & (start + steps[None, :] < k)", inside),
    "what is left": masked("(rows[:, None] < m) & (steps[None, :] < k - start)", inside),
    "from 0 on": masked(
        f"(rows >= 0)[:, None] & {ROWS} & ((start + steps >= 0) & (start + steps < k))[None, :]", inside
    ),
    "rows alone": masked(ROWS, lambda i, j, m, k: i < m, size=(56, 64)),
    "columns alone": masked(COLUMNS, lambda i, j, m, k: j < k, size=(64, 40)),
    "one row": masked(f"{ROWS} & {COLUMNS}", inside, size=(1, 40)),
    "one row more than a block": masked(f"{ROWS} & {COLUMNS}", inside, size=(65, 40)),
    "few columns": masked(f"{ROWS} & {COLUMNS}", inside, size=(63, 8)),
    "fewer rows than there are": masked(
        f"(rows < x)[:, None] & {COLUMNS}", lambda i, j, m, k: (i < 19) & (j < k), x=19
    ),
    "fewer columns than there are": masked(
        f"{ROWS} & (start + steps < x)[None, :]", lambda i, j, m, k: (i < m) & (j < 19), x=19
    ),
    "half of the rows": masked(f"(rows < m // 2)[:, None] & {COLUMNS}", lambda i, j, m, k: (i < m // 2) & (j < k)),
    "all rows but some": masked(f"(rows < m - x)[:, None] & {COLUMNS}", lambda i, j, m, k: (i < m - 8) & (j < k)),
    "columns further on": masked(
        f"{ROWS} & (start + steps + 8 < k)[None, :]", lambda i, j, m, k: (i < m) & (j + 8 < k)
    ),
    "64-bit indices": masked(f"(rows.to(tl.int64) < m)[:, None] & {COLUMNS}", inside),
    "a turned mask": masked("tl.trans((start + steps < k)[:, None] & (rows < m)[None, :])", inside),
    "zeros elsewhere": masked(f"{ROWS} & {COLUMNS}", inside, more=", other=0.0"),
    "hints": masked(f"{ROWS} & {COLUMNS}", inside, more=", eviction_policy='evict_first', cache_modifier='.cg'"),
    "rows behind others": masked(
        f"(n + rows < m)[:, None] & {COLUMNS}",
        lambda i, j, m, k: (64 + i < m) & (j < k),
        "a + (n + rows)[:, None] * k + (start + steps)[None, :]",
        place=lambda i, j, m, k: (i + 64) * k + j,
        size=(100, 40),
    ),
    "rows of one matrix of many": masked(
        f"(rows < n)[:, None] & {COLUMNS}",
        lambda i, j, m, k: (i < 32) & (j < k),
        f"{BLOCK} + n * k",
        place=lambda i, j, m, k: (i + 32) * k + j,
        size=(64, 40),
        depth=32,
    ),
    "turned": Case(
        "tl.load(a + (start + steps)[:, None] * k + rows[None, :], "
        "mask=(start + steps < m)[:, None] & (rows < k)[None, :]).T",
        lambda i, j, m, k: i + j * k,
        lambda i, j, m, k: (j < m) & (i < k),
        size=(56, 40),
    ),
}


@on_each
@each_of(MASKS)
def test_masks_say_where_arrays_end(run, case):
    assert case.maps() == {"a", "b"}
    assert case.check(run) == {"a", "b"} or run is not run_windows


@on_each
@pytest.mark.parametrize("mask", ["(rows < y)[:, None]", "(start + steps < y)[None, :]"])
def test_a_mask_that_is_nowhere_true_leaves_zeros(run, mask):
    """There is no array without elements: calls without a map go through pointers."""
    case = masked(mask, lambda i, j, m, k: False, y=0)
    assert case.check(run) == set() or run is not run_windows


UNBOUNDED = (1 << 31) - 1
EXTENTS = {  # of `a`, from the innermost axis outwards, and the stride, where x, y, m, k, n are 8, 24, 100, 304, 200
    "no mask": (f"tl.load({BLOCK})", (UNBOUNDED, UNBOUNDED), 304),
    "both": (f"tl.load({BLOCK}, mask={ROWS} & {COLUMNS})", (304, 100), 304),
    "rows": (f"tl.load({BLOCK}, mask={ROWS})", (UNBOUNDED, 100), 304),
    "columns": (f"tl.load({BLOCK}, mask=(steps < k - start)[None, :])", (304, UNBOUNDED), 304),
    "steps outside": (
        "tl.load(a + (start + steps)[None, :] * k + rows[:, None], mask=(start + steps < m)[None, :])",
        (UNBOUNDED, 100),
        304,
    ),
    "some rows": (f"tl.load({BLOCK}, mask=(rows < y)[:, None])", (UNBOUNDED, 24), 304),
    "all rows but some": (f"tl.load({BLOCK}, mask=(rows < m - x)[:, None])", (UNBOUNDED, 92), 304),
    "rows behind others": (f"tl.load({BLOCK} + n * k, mask=(rows < m)[:, None])", (UNBOUNDED, 300), 304),
    "rows of one matrix of many": (f"tl.load({BLOCK} + n * m * k, mask=(rows < m)[:, None])", (UNBOUNDED, 20100), 304),
    "columns behind others": (f"tl.load({BLOCK} + n, mask={COLUMNS})", (504, UNBOUNDED), 304),
    "every other row": (
        "tl.load(a + rows[:, None] * 2 * k + (start + steps)[None, :], mask=(rows < m // 2)[:, None])",
        (UNBOUNDED, 50),
        608,
    ),
}


@pytest.mark.parametrize("name", EXTENTS)
def test_maps_are_of_what_is_read(name):
    load, extents, stride = EXTENTS[name]
    (of_a,) = (m for m in prepared(Case(load).kernel()).maps if m.parameter == "a")
    numbers = (0, 0, 0, 8, 24, 100, 304, 200)
    found = [evaluate(code, numbers) for code in (*of_a.extents, *of_a.strides)]
    assert found == [*extents, stride]


# ---- what is no block of a matrix ------------------------------------------------------------------------------------

ELSEWHERE = {
    "rows taken round": Case(
        "tl.load(a + (rows % m)[:, None] * k + (start + steps)[None, :])",
        lambda i, j, m, k: i % m * k + j,
        size=(40, 64),
    ),
    "rows that are loaded": Case(
        "tl.load(a + p[:, None] * k + (start + steps)[None, :])",
        lambda i, j, m, k: 0 * i + j,
        before="p = tl.load(b + rows).to(tl.int32) * 0",
    ),
    "the last row again": Case(
        "tl.load(a + tl.minimum(rows, m - 1)[:, None] * k + (start + steps)[None, :])",
        lambda i, j, m, k: np.minimum(i, m - 1) * k + j,
        size=(40, 64),
    ),
    "pairs of rows": Case(
        "tl.load(a + (rows // 2)[:, None] * k + (start + steps)[None, :])", lambda i, j, m, k: i // 2 * k + j
    ),
    "two strides": Case(
        "tl.load(a + rows[:, None] * k + (start + steps)[None, :] * x)", lambda i, j, m, k: i * k + j * 8, size=(72, 64)
    ),
    "every other column": Case(
        "tl.load(a + rows[:, None] * 2 * k + (start + steps)[None, :] * 2)", lambda i, j, m, k: 2 * (i * k + j)
    ),
    "a diagonal": Case(
        "tl.load(a + rows[:, None] * (k + 1) + (start + steps)[None, :])", lambda i, j, m, k: i * k + i + j
    ),
    "columns backwards": Case(
        "tl.load(a + rows[:, None] * k + (63 - start - steps)[None, :])", lambda i, j, m, k: i * k + 63 - j
    ),
    "one row": Case("tl.load(a + (start + steps)[None, :] + rows[:, None] * 0)", lambda i, j, m, k: 0 * i + j),
    "indices multiplied": Case("tl.load(a + rows[:, None] * (start + steps)[None, :])", lambda i, j, m, k: i * j),
    "bits": Case("tl.load(a + (rows[:, None] * 64 | (start + steps)[None, :]))", lambda i, j, m, k: i * 64 | j),
    "pointers that the loop carries": Case(
        "tl.load(p)",
        lambda i, j, m, k: i * k + 32 + j,
        before="p = a + rows[:, None] * k + steps[None, :]",
        line="p += 32",
    ),
    "a pointer that the loop carries": Case(
        "tl.load(p + rows[:, None] * k + steps[None, :])",
        lambda i, j, m, k: i * k + 32 + j,
        before="p = a",
        line="p += 32",
    ),
    "volatile": Case(f"tl.load({BLOCK}, volatile=True)"),
    "ones elsewhere": masked(f"{ROWS} & {COLUMNS}", inside, more=", other=1.0", other=1.0),
    "a block elsewhere": masked(
        f"{ROWS} & {COLUMNS}", inside, more=", other=tl.full((64, 32), 2.0, tl.float16)", other=2.0
    ),
    "two ends of the rows": masked(
        f"{ROWS} & (rows < x)[:, None]", lambda i, j, m, k: (i < m) & (i < 8), size=(56, 64)
    ),
    "rows here and there": masked(
        "((rows < 10) | (rows > 20))[:, None]", lambda i, j, m, k: (i < 10) | (i > 20), size=(64, 64)
    ),
    "every other row alone": masked("(rows * 2 < m)[:, None]", lambda i, j, m, k: 2 * i < m, size=(56, 64)),
    "a corner": masked("rows[:, None] + start + steps[None, :] < 70", lambda i, j, m, k: i + j < 70, size=(64, 64)),
    "a triangle": masked("start + steps[None, :] <= rows[:, None]", lambda i, j, m, k: j <= i, size=(64, 64)),
    "an end of the whole": masked(
        "rows[:, None] * k + start + steps[None, :] < m * k", lambda i, j, m, k: i * k + j < m * k, size=(56, 64)
    ),
    "what data say": masked("tl.load(b + rows)[:, None] == 7", lambda i, j, m, k: False, size=(64, 64)),
    "steps alone": masked("(rows < m)[:, None] & (start < x)", lambda i, j, m, k: (i < m) & (j < 32), size=(56, 64)),
}


@on_each
@each_of(ELSEWHERE)
def test_what_is_no_block_of_a_matrix_is_read_through_pointers(run, case):
    assert "a" not in case.maps()
    found = case.check(run)
    assert run is not run_windows or "a" not in found


USED = """
@gm.kernel(grid=1, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], k: gm.shape["a", 1]):
    rows, steps, columns = tl.arange(0, 64), tl.arange(0, 32), tl.arange(0, 16)
    acc = tl.zeros((64, 16), tl.float32)
    {line}
    tl.store(c + rows[:, None] * 16 + columns[None, :], acc)
"""
LEFT = f"tl.load({BLOCK})"
RIGHT = "tl.load(b + (start + steps)[:, None] * 16 + columns[None, :])"
STEP = "for start in range(0, k, 32):\n        "
USES = {  # of blocks of an array [64, 64] and another [64, 16], and what they give
    "behind no loop": ("start = 32\n    acc = tl.dot(%s, %s)", lambda a, b: a[:, 32:] @ b[32:]),
    "in a branch": (STEP + "if start > 0:\n            acc = tl.dot(%s, %s, acc)", lambda a, b: a[:, 32:] @ b[32:]),
    "by a sum as well": (
        STEP + "x, y = %s, %s\n        acc = tl.dot(x, y, acc) + tl.sum(x.to(tl.float32), 1)[:, None]",
        lambda a, b: a @ b + a.sum(1, keepdims=True),
    ),
    "both computed": (STEP + "acc = tl.dot(%s * 2, %s + 1, acc)", lambda a, b: 2 * a @ (b + 1)),
    "of what the kernel writes": (
        STEP + "acc = tl.dot(%s, %s, acc)\n    tl.debug_barrier()\n"
        "    tl.store(a + rows, rows.to(tl.float16))\n    tl.store(b + rows, rows.to(tl.float16))",
        np.matmul,
    ),
}


@on_each
@pytest.mark.parametrize("name", USES)
def test_blocks_that_are_not_for_a_loops_products_alone_are_read_through_pointers(run, name):
    line, compute = USES[name]
    kernel = kernel_of(USED.format(line=line % (LEFT, RIGHT)))
    others = ["b"] if name == "by a sum as well" else []  # which only the product reads
    assert [m.parameter for m in prepared(kernel).maps] == others
    a, b, c = integers(64, 64), integers(64, 16, seed=1), np.full((64, 16), np.nan, "f4")
    want = compute(wide(a), wide(b))
    run(kernel, None, a, b, c)
    same(c, want)


@on_each
@pytest.mark.parametrize("load", [PLAIN, TURNED], ids=["plain", "turned"])
@pytest.mark.parametrize("shape", [(64, 64, 64), (65, 72, 40), (1, 8, 8), (63, 56, 72), (64, 64, 0), (65, 63, 33)])
def test_products_of_any_shape(run, shape, load):
    """The last one's rows do not start on 16 bytes: another variant serves it."""
    kernel = kernel_for(load=load)
    c, want, copied = run_product(run, kernel, shape, turned="b" if load is TURNED else "")
    assert (c == want).all()
    if run is run_windows:
        assert copied == ({"a", "b"} if shape[2] % 8 == 0 < shape[2] else set())


# ---- mistakes of the compiler that these tests found: what is right, on every machine -------------------------------

WRONG = {
    # `>=` is taken for "from 0 on" whatever it compares.
    "rows from a first on": masked("(rows >= x)[:, None]", lambda i, j, m, k: i >= 8, size=(64, 64)),
    "rows up to a last": masked("(x >= rows)[:, None]", lambda i, j, m, k: i <= 8, size=(64, 64)),
    "columns from the diagonal on": masked(
        "start + steps[None, :] >= rows[:, None]", lambda i, j, m, k: j >= i, size=(64, 64)
    ),
    "columns up to the diagonal": masked(
        "rows[:, None] >= start + steps[None, :]", lambda i, j, m, k: i >= j, size=(64, 64)
    ),
    # An index from 0 on is one in a matrix, or in some columns, that lie further on.
    "rows of one matrix of many": masked(
        "(rows - y >= 0)[:, None]",
        lambda i, j, m, k: i >= 8,
        "a + x * k + (rows - y)[:, None] * k + (start + steps)[None, :]",
        size=(64, 64),
    ),
    "columns of some": masked(
        "(start + steps - y >= 0)[None, :]",
        lambda i, j, m, k: j >= 8,
        "a + rows[:, None] * k + (x + start + steps - y)[None, :]",
        size=(64, 64),
    ),
    # Addresses are right though one index is below 0: the other one makes up for it.
    "the last columns": Case(
        "tl.load(a + rows[:, None] * k + (k - 64 + start + steps)[None, :])",
        lambda i, j, m, k: i * k + k - 64 + j,
        size=(64, 72),
    ),
    "blocks from the end on": Case(
        "tl.load(a + rows[:, None] * k + (k - 32 - start + steps)[None, :])",
        lambda i, j, m, k: i * k + k - 32 - 2 * (j // 32 * 32) + j,
    ),
    "columns before a row": Case(
        "tl.load(a + (rows + 1)[:, None] * k + (start + steps - 8)[None, :])", lambda i, j, m, k: (i + 1) * k + j - 8
    ),
    "rows before the array": Case(
        "tl.load(a + (rows - 8)[:, None] * k + (y + start + steps)[None, :])", lambda i, j, m, k: i * k + j, y=512
    ),
    # A reshape is taken for a broadcast.
    "indices of another shape": Case(
        "tl.load(a + tl.reshape(tl.arange(0, 128)[:, None] * k + (start // 2 + tl.arange(0, 16))[None, :], (64, 32)))",
        lambda i, j, m, k: (2 * i + j % 32 // 16) * k + j // 32 * 16 + j % 16,
    ),
    # Numbers that wrap are computed in more bits, and ones without a sign as if they had one.
    "8 bits that wrap": Case(
        "tl.load(a + ((x + 100).to(tl.int32) + 156 + rows)[:, None] * k + (start + steps)[None, :])",
        lambda i, j, m, k: (56 + i) * k + j,
        x=56,
        kind="i8",
    ),
    "a difference without a sign": Case(
        "tl.load(a + ((x - 8).to(tl.int32) - 184 + rows)[:, None] * k + (start + steps)[None, :])",
        lambda i, j, m, k: (64 + i) * k + j,
        x=0,
        kind="u8",
    ),
    "a comparison without a sign": masked(
        "((rows - x).to(tl.uint32) < tl.cast(y, tl.uint32))[:, None]",
        lambda i, j, m, k: (i >= 8) & (i < 16),
        size=(64, 64),
    ),
}


@on_each
@each_of(WRONG)
def test_what_is_copied_is_what_pointers_read(run, case):
    case.check(run)


LOST = {  # left operands of which no block can be copied, though they look like it: `b` keeps its map
    "a pointer moved back": Case("tl.load(a + (rows + 1)[:, None] * k + (start + steps)[None, :] - k)"),
    "64-bit offsets": Case(f"tl.load({BLOCK} + x)", lambda i, j, m, k: i * k + j + 8, kind="i64"),
    "a matrix of each program": masked(
        "(rows < m)[:, None]", lambda i, j, m, k: i < m, f"{BLOCK} + tl.program_id(0) * m * k", size=(56, 64)
    ),
    "an end that is chosen": masked("(rows < tl.minimum(m, 24))[:, None]", lambda i, j, m, k: i < 24, size=(56, 64)),
    "an end of a step": masked("(steps < 24)[None, :]", lambda i, j, m, k: j % 32 < 24, size=(64, 64)),
    "rows off 16 bytes": Case(
        "tl.load(a + rows[:, None] * 12 + (start + steps)[None, :])", lambda i, j, m, k: i * 12 + j
    ),
    "no stride": Case("tl.load(a + rows[:, None] + (start + steps)[None, :])", lambda i, j, m, k: i + j),
    "turned twice": Case("tl.load(a + (start + steps)[:, None] + rows[None, :] * k).T"),
    "rows backwards": Case(
        "tl.load(a + (m - 1 - rows)[:, None] * k + (start + steps)[None, :])", lambda i, j, m, k: (m - 1 - i) * k + j
    ),
    "the last columns": masked(
        "(k - 64 + start + steps < k)[None, :]",
        lambda i, j, m, k: True,
        "a + rows[:, None] * k + (k - 64 + start + steps)[None, :]",
        place=lambda i, j, m, k: i * k + k - 64 + j,
        size=(64, 72),
    ),
}


@each_of(LOST)
def test_what_cannot_be_copied_takes_no_map_from_others(case):
    assert "b" in case.check(run_windows)
