"""Products of f32 by warpgroups: of operands that lie along the depth or across it, exact or of what tf32 has."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gristmill.compiler.compile import compile_variants, lower_variant
from gristmill.compiler.ir import For, Op, walk
from gristmill.compiler.layout import flatten
from gristmill.compiler.targets import TARGETS
from gristmill.compiler.tensor import ACROSS, IN_ORDER, group_accumulator, group_left, panel_bytes, panels
from gristmill.specialisation import VARIANTS
from machines import MACHINES, kernel_of, shipped_kernels
from test_pipeline import ops, prepared
from test_windows_shapes import run_windows

on_each = pytest.mark.parametrize("run", list((MACHINES | {"simt": pytest.param(run_windows, id="sm_90a")}).values()))
ORDERS = [(a, b) for a in (False, True) for b in (False, True)]
PRODUCT = """
@gm.kernel(grid=2, num_warps={warps}, num_stages=3)
def k(a: gm.ptr[gm.f32], b: gm.ptr[gm.f32], c: gm.ptr[gm.f32], m: gm.shape["c", 0], n: gm.shape["c", 1],
      depth: gm.shape["a", {a_axis}]):
    left = tl.make_tensor_descriptor(a, {a_shape}, {a_block})
    right = tl.make_tensor_descriptor(b, {b_shape}, {b_block})
    row = tl.program_id(0) * {rows}
    rows, columns = row + tl.arange(0, {rows}), tl.arange(0, {columns})
    acc = tl.zeros(({rows}, {columns}), tl.float32)
    for start in range(0, depth, 32):
        x = {a_load}
        y = {b_load}
        acc = tl.dot(x, y, acc, input_precision="{precision}")
    tl.store(c + rows[:, None] * n + columns[None, :], acc, mask=(rows < m)[:, None] & (columns < n)[None, :])
"""


def product_kernel(order=(False, True), precision="tf32x3", rows=128, columns=64, warps=8):
    """A kernel whose operands are transposes where `order` says so."""
    a_turned, b_turned = order
    return kernel_of(
        PRODUCT.format(
            **locals(),
            a_axis=int(not a_turned),
            a_shape="[depth, m], [m, 1]" if a_turned else "[m, depth], [depth, 1]",
            a_block=[32, rows] if a_turned else [rows, 32],
            a_load="left.load([start, row]).T" if a_turned else "left.load([row, start])",
            b_shape="[n, depth], [depth, 1]" if b_turned else "[depth, n], [n, 1]",
            b_block=[columns, 32] if b_turned else [32, columns],
            b_load="right.load([0, start]).T" if b_turned else "right.load([start, 0])",
        )
    )


def run_orders(run, kernel, order, a, b):
    """Return a @ b, of arrays that lie as `order` says."""
    c = np.full((a.shape[0], b.shape[1]), 77, "f4")
    copied = run(kernel, None, *(np.ascontiguousarray(x.T) if t else x for x, t in zip((a, b), order, strict=True)), c)
    assert run is not run_windows or copied == {"a", "b"}
    return c


@on_each
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
@pytest.mark.parametrize(
    ("rows", "columns", "warps", "depth"), [(128, 128, 8, 160), (64, 64, 4, 32), (128, 64, 4, 100)]
)
def test_products_of_small_numbers_are_exact(run, order, precision, rows, columns, warps, depth):
    rng = np.random.default_rng(depth)
    a, b = (rng.integers(-9, 10, s).astype("f4") for s in ((rows + 4, depth), (depth, columns - 4)))
    c = run_orders(run, product_kernel(order, precision, rows, columns, warps), order, a, b)
    np.testing.assert_array_equal(c, a.astype("f8") @ b.astype("f8"))


@on_each
@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_exact_products_lose_no_more_than_a_millionth(run, order):
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype("f4") for s in ((128, 256), (256, 64)))
    c = run_orders(run, product_kernel(order), order, a, b)
    assert (np.abs(c - a.astype("f8") @ b) <= 1e-6 * (np.abs(a).astype("f8") @ np.abs(b))).all()


@on_each
@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_infinities_and_nans_stay_what_they_are(run, order):
    a, b = np.ones((128, 64), "f4"), np.ones((64, 64), "f4")
    a[3, 40], a[5, 1], a[7, 2], a[9, :2] = np.inf, -np.inf, np.nan, (np.inf, -np.inf)
    c = run_orders(run, product_kernel(order), order, a, b)
    want = np.full((128, 64), 64.0)
    want[[3, 5, 7, 9]] = np.array([np.inf, -np.inf, np.nan, np.nan])[:, None]
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("precision", "terms"), [("tf32x3", 3), ("tf32", 1)])
def test_warpgroups_multiply_every_order(order, precision, terms):
    """One instruction a warpgroup and 8 of the depth, for each product of parts; words of the left one where it lies
    across, or has parts."""
    kernel = product_kernel(order, precision)
    aligned, *others = compile_variants(kernel, kernel.specialisations()[0], TARGETS["sm_90a"])
    text = aligned.code.decode()
    assert len(re.findall("wgmma.mma_async[^;]*m64n64k8.f32.tf32.tf32", text)) == 4 * terms
    assert not any("wgmma" in other.code.decode() for other in others)
    from_registers = len(re.findall(r"wgmma.mma_async[^;]*\}, \{(?:%r\d+,){3}%r\d+\}, b", text))
    assert from_registers == 4 * terms * (terms == 3 or order[0])
    assert len(ops(prepared(kernel), "parts")) == (terms == 3 or not order[1])


def test_copies_of_the_right_operand_are_each_warpgroups_own():
    """For two warpgroups, 32 x 64 of b: what is cut off, and of a tile that lies across, all."""
    rooms = {order: ops(prepared(product_kernel(order)), "parts")[0].attributes["room"] for order in ORDERS}
    assert rooms == {(a_turned, b_turned): (2 - b_turned) * 2 * 32 * 64 * 4 for a_turned, b_turned in ORDERS}


@pytest.mark.parametrize(("precision", "copies"), [("tf32x3", 1), ("tf32", 0)])
def test_a_product_whose_right_operand_alone_lies_across_is_swapped(precision, copies):
    """128 x 128: the left operand's copies, of what is cut off, are then the right one's."""
    kernel = product_kernel((False, False), precision, rows=128, columns=128)
    function = prepared(kernel)
    (product,) = ops(function, "product")
    assert function.has_swapped and product.attributes["order"] == ACROSS
    assert [op.attributes["room"] for op in ops(function, "parts")] == [2 * 32 * 128 * 4] * copies
    (loop,) = [s for s in walk(function.body) if isinstance(s, For)]
    assert not [s for s in loop.body.statements if isinstance(s, Op) and s.row.is_relayout]


@pytest.mark.parametrize("order", ORDERS)
def test_products_of_words_that_the_next_step_takes_again_are_waited_for(order):
    (product,) = ops(prepared(product_kernel(order, "tf32", rows=128, columns=128)), "product")
    assert product.attributes["is_taken"] == (order != (False, True))
    assert product.attributes["pending"] == (0 if product.attributes["is_taken"] else 1)


@pytest.mark.parametrize("depth", [32, 64])
@pytest.mark.parametrize("is_across", [False, True])
def test_words_of_the_left_operand_come_from_all_banks_at_once(depth, is_across):
    sums = group_accumulator((128, 64), 8, ACROSS if is_across else IN_ORDER)
    left = group_left(sums, depth)
    tile = panels((128, depth), int(not is_across), 4, panel_bytes(4 * (128 if is_across else depth)))
    for register in range(left.registers):
        places = [tile.offset(flatten(left.at(register, lane), left.shape)) for lane in range(32)]
        assert len({place % 32 for place in places}) == 32


BOTH = """
@gm.kernel(grid=1, num_warps=8, num_stages=3)
def k(a: gm.ptr[gm.f32], b: gm.ptr[gm.f32], c: gm.ptr[gm.f32], depth: gm.shape["a", 1]):
    left = tl.make_tensor_descriptor(a, [128, depth], [depth, 1], [128, 32])
    right = tl.make_tensor_descriptor(b, [depth, 128], [128, 1], [32, 128])
    same = tl.make_tensor_descriptor(a, [128, depth], [depth, 1], [128, 32])
    for turn in range(2):
        acc = tl.zeros((128, 128), tl.float32)
        if turn == 0:
            for start in range(0, depth, 32):
                acc = tl.dot(left.load([0, start]), right.load([start, 0]), acc, input_precision="{precision}")
        else:
            for start in range(0, depth, 32):
                acc = tl.dot(left.load([0, start]), same.load([0, start]).T, acc, input_precision="{precision}")
        rows, columns = tl.arange(0, 128), tl.arange(0, 128)
        tl.store(c + turn * 16384 + rows[:, None] * 128 + columns[None, :], acc)
"""


@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
@pytest.mark.parametrize("depth", [32, 160])
def test_loops_whose_tiles_lie_differently_share_the_room_of_their_rings(precision, depth):
    kernel, rng = kernel_of(BOTH.format(precision=precision)), np.random.default_rng(depth)
    a, b = (rng.integers(-9, 10, shape).astype("f4") for shape in ((128, depth), (depth, 128)))
    c = np.full((2, 128, 128), 77, "f4")
    run_windows(kernel, None, a, b, c)
    np.testing.assert_array_equal(c[0], a.astype("f8") @ b)
    np.testing.assert_array_equal(c[1], a.astype("f8") @ a.T)
    names = [op.name for op in prepared(kernel).common.statements]
    assert (names.count("ring"), names.count("ring_in"), names.count("pipe")) == (2, 2, 1)


def test_gradients_of_f32_have_the_large_tile():
    kernel = shipped_kernels()["matmul_backward"]
    found = [
        s for s in kernel.specialisations() if s.dtypes[0][1].name == "f32" and dict(s.constants)["BLOCK_N"] == 128
    ]
    assert len(found) == 2
    for specialisation in found:
        lowered = lower_variant(kernel, specialisation, VARIANTS[0], TARGETS["sm_90a"], lambda stage, thing: None)
        assert not lowered.overflows and "wgmma" in lowered.text
