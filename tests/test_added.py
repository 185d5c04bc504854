"""Blocks that are added to an array: by the hardware where a product's sums are, element by element elsewhere."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gristmill.compiler.compile import compile_variants
from gristmill.compiler.targets import TARGETS
from machines import kernel_of
from test_pipeline import ops
from test_windows_shapes import on_each, prepared

ADDED = """
@gm.kernel(grid={programs}, num_warps={warps}, num_stages=2)
def k(a: gm.ptr[gm.{operand}], b: gm.ptr[gm.{operand}], c: gm.ptr[gm.{dtype}], depth: gm.shape["a", 1],
      m: gm.shape["c", 0], n: gm.shape["c", 1], size: gm.shape["a", 0]):
    left = tl.make_tensor_descriptor(a, [size, depth], [depth, 1], [{rows}, {step}])
    right = tl.make_tensor_descriptor(b, [{right}], [{pitch}, 1], [{block}])
    to = tl.make_tensor_descriptor(c, [m, n], [n, 1], [{rows}, {used}])
    acc = tl.zeros(({rows}, {columns}), {sums})
    for start in range(0, depth, {step}):
        acc = tl.dot(left.load([0, start]), {y}, acc)
    {others}
    to.atomic_add([{row}, {column}], acc)
"""
KINDS = {  # operands, their numpy dtype, sums, numpy's, and how the right operand lies
    "f32": ("f16", "f2", "tl.float32", "f4"),
    "i32": ("i8", "i1", "tl.int32", "i4"),
}


def added(dtype="f32", rows=64, columns=64, used=None, warps=4, programs=1, row="0", column="0", others="pass"):
    operand, _, sums, _ = KINDS[dtype]
    step = 32 if dtype == "f32" else 64
    is_turned = dtype == "i32"
    right, pitch = (f"{columns}, depth", "depth") if is_turned else (f"depth, {columns}", columns)
    block = f"{columns}, {step}" if is_turned else f"{step}, {columns}"
    y = "right.load([0, start]).T" if is_turned else "right.load([start, 0])"
    return kernel_of(ADDED.format(**{**locals(), "used": used or columns}))


def run_added(run, kernel, shape, dtype="f32", rows=64, columns=64, depth=96):
    """Returns what stands there afterwards, what stood there before, and the block."""
    _, kind, _, result = KINDS[dtype]
    rng = np.random.default_rng(columns)
    a, b = (rng.integers(-3, 4, s).astype(kind) for s in ((rows, depth), (depth, columns)))
    before = rng.integers(-9, 10, shape).astype(result)
    after = before.copy()
    run(kernel, None, a, np.ascontiguousarray(b.T) if dtype == "i32" else b, after)
    return after, before, a.astype("f8") @ b.astype("f8")


def expected(before, block, row=0, column=0):
    """The block added at a place, which may be outside in part."""
    want, (m, n) = before.astype("f8"), before.shape
    for i in range(max(0, -row), min(block.shape[0], m - row)):
        for j in range(max(0, -column), min(block.shape[1], n - column)):
            want[row + i, column + j] += block[i, j]
    return want


@on_each
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("rows", "columns", "warps"), [(64, 32, 4), (128, 64, 8), (64, 128, 8)])
def test_blocks_are_added(run, dtype, rows, columns, warps):
    kernel = added(dtype, rows, columns, warps=warps)
    after, before, block = run_added(run, kernel, (rows, columns), dtype, rows, columns)
    np.testing.assert_array_equal(after, before + block)


@on_each
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    ("shape", "row", "column"),
    [
        ((1, 4), 0, 0),
        ((63, 60), 0, 0),
        ((65, 68), 0, 0),
        ((100, 100), 37, 40),
        ((100, 100), 99, 96),
        ((200, 160), 5, 4),
    ],
)
def test_what_is_outside_of_the_array_is_left_out(run, dtype, shape, row, column):
    kernel = added(dtype, row=str(row), column=str(column))
    after, before, block = run_added(run, kernel, shape, dtype)
    np.testing.assert_array_equal(after, expected(before, block, row, column))


@on_each
@pytest.mark.parametrize("used", [40, 48, 56])
def test_blocks_may_be_narrower_than_the_tile(run, used):
    after, before, block = run_added(run, added(used=used), (64, 80))
    np.testing.assert_array_equal(after, expected(before, block[:, :used]))


@on_each
@pytest.mark.parametrize("dtype", KINDS)
def test_programs_add_to_one_place(run, dtype):
    kernel = added(dtype, programs=5, row="tl.program_id(0) % 2 * 8")
    after, before, block = run_added(run, kernel, (72, 64), dtype)
    want = before + 3 * expected(0 * before, block) + 2 * expected(0 * before, block, 8)
    np.testing.assert_array_equal(after, want)


@on_each
def test_special_numbers_stay_in_their_place(run):
    a, b, c = np.zeros((64, 32), "f2"), np.zeros((32, 64), "f2"), np.full((64, 64), 1, "f4")
    a[3, 0], b[0, 5] = np.inf, 1
    with np.errstate(invalid="ignore"):
        run(added(), None, a, b, c)
    want = np.ones((64, 64))
    want[3] = np.nan  # inf * 0
    want[3, 5] = np.inf
    np.testing.assert_array_equal(c, want)


# ---- who adds --------------------------------------------------------------------------------------------------------


def text_of(kernel, target="sm_90a", number=0):
    return compile_variants(kernel, kernel.specialisations()[0], TARGETS[target])[number].code.decode()


@pytest.mark.parametrize("dtype", KINDS)
def test_the_hardware_adds_where_it_copies(dtype):
    kernel = added(dtype)
    text = text_of(kernel)
    assert re.search(r"cp\.reduce\.async\.bulk\.tensor\.2d\.global\.shared::cta\.add", text)
    assert not re.search(r"\b(red|atom)\.", text)
    assert [m.parameter for m in prepared(kernel).maps] == ["a", "b", "c"]


def test_threads_add_elsewhere():
    for text in (text_of(added(), "sm_80"), text_of(added(), number=1)):
        assert "cp.reduce" not in text and re.search(r"\b(red|atom)\.\S*add", text)


OTHERS = {
    "reads it": "acc += tl.load(c)",
    "adds to it twice": "to.atomic_add([8, 0], acc)",
}


@on_each
@pytest.mark.parametrize("name", OTHERS)
def test_an_array_that_is_used_otherwise_is_added_to_by_threads(run, name):
    kernel = added(others=OTHERS[name])
    assert not ops(prepared(kernel), "add_window") and "c" not in {m.parameter for m in prepared(kernel).maps}
    after, before, block = run_added(run, kernel, (72, 64))
    twice = expected(before, block, 8) if "twice" in name else before
    np.testing.assert_array_equal(after, expected(twice, block + (before[0, 0] if name == "reads it" else 0)))
