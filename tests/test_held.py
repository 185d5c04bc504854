"""Chained products: a product of what follows from another one's sums takes them from registers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gristmill.compiler.compile import compile_variants
from gristmill.compiler.targets import TARGETS
from machines import MACHINES, bfloat16, kernel_of
from test_pipeline import ops, prepared
from test_windows_shapes import run_windows

on_each = pytest.mark.parametrize("run", list((MACHINES | {"simt": pytest.param(run_windows, id="sm_90a")}).values()))
CHAINED = """
@gm.kernel(grid=1, num_warps={warps}, num_stages=2)
def k(q: gm.ptr[gm.{dtype}], x: gm.ptr[gm.{dtype}], y: gm.ptr[gm.{dtype}], out: gm.ptr[gm.f32], n: gm.shape["x", 0]):
    left = tl.make_tensor_descriptor(q, [{rows}, {depth}], [{depth}, 1], [{rows}, {depth}])
    keys = tl.make_tensor_descriptor(x, [n, {depth}], [{depth}, 1], [{step}, {depth}])
    values = tl.make_tensor_descriptor(y, [n, {columns}], [{columns}, 1], [{step}, {columns}])
    a = tl.load(q + tl.arange(0, {rows})[:, None] * {depth} + tl.arange(0, {depth})[None, :])
    acc = tl.zeros(({rows}, {columns}), tl.float32)
    for start in range(0, n, {step}):
        s = tl.dot(a, keys.load([start, 0]).T)
        p = tl.where(s > 0, s * 2 + 1, -s).to(tl.{kind})
        acc = tl.dot(p, values.load([start, 0]), acc)
    tl.store(out + tl.arange(0, {rows})[:, None] * {columns} + tl.arange(0, {columns})[None, :], acc)
"""
DTYPES = {"f16": ("float16", np.float16), "bf16": ("bfloat16", bfloat16)}


def chained(dtype="f16", rows=64, depth=64, step=64, columns=64, warps=4):
    return kernel_of(CHAINED.format(**locals(), kind=DTYPES[dtype][0]))


def numbers(rng, *shape, dtype="f16"):
    return rng.integers(-1, 2, shape).astype(DTYPES[dtype][1])


@on_each
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "depth", "step", "columns", "warps"),
    [(64, 64, 64, 64, 4), (128, 32, 32, 64, 4), (128, 64, 64, 32, 8), (128, 16, 16, 128, 8)],
)
def test_products_of_products_of_small_numbers_are_exact(run, dtype, rows, depth, step, columns, warps):
    rng = np.random.default_rng(rows + step)
    q, x, y = (numbers(rng, *s, dtype=dtype) for s in ((rows, depth), (3 * step, depth), (3 * step, columns)))
    out = np.full((rows, columns), np.nan, "f4")
    run(chained(dtype, rows, depth, step, columns, warps), None, q, x, y, out)
    s = q.astype("f8") @ x.astype("f8").T
    np.testing.assert_array_equal(out, np.where(s > 0, 2 * s + 1, -s) @ y.astype("f8"))


def test_the_second_product_takes_its_left_operand_from_registers():
    """Nothing of it goes through shared memory: each instruction names four words and one descriptor."""
    kernel = chained(rows=128, columns=128, warps=8)
    products = ops(prepared(kernel), "product")  # of the first step's numbers, both in the loop, and the last step's
    assert [op.attributes["is_held"] for op in products] == [False, False, True, True]
    text = compile_variants(kernel, kernel.specialisations()[0], TARGETS["sm_90a"])[0].code.decode()
    held = re.findall(r"wgmma.mma_async[^;]*\}, \{([^}]*)\}, b, 1, 1, 1, 1;", text)
    assert len(held) == 2 * 4 and all(len(words.split(",")) == 4 for words in held)


def test_what_is_loaded_goes_through_shared_memory():
    scaled = CHAINED.replace("tl.where(s > 0, s * 2 + 1, -s)", "(tl.zeros((64, 64), tl.float32) + 2)")
    kernel = kernel_of(scaled.format(dtype="f16", kind="float16", rows=64, depth=64, step=64, columns=64, warps=4))
    assert not any(op.attributes["is_held"] for op in ops(prepared(kernel), "product"))
