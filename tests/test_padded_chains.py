"""Chained products whose blocks between have any size: what pads them is neither copied nor multiplied."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gristmill.compiler.compile import compile_variant
from gristmill.compiler.targets import TARGETS
from gristmill.specialisation import VARIANTS
from machines import kernel_of
from test_windows_shapes import on_each, run_windows

CHAIN = """
@gm.kernel(grid=1, num_warps=4, num_stages=2)
def k(q: gm.ptr[gm.f16], x: gm.ptr[gm.f16], y: gm.ptr[gm.f16], out: gm.ptr[gm.f32], n: gm.shape["x", 0]):
    queries = tl.make_tensor_descriptor(q, [64, 64], [64, 1], [64, 64])
    keys = tl.make_tensor_descriptor(x, [n, 64], [64, 1], [{block}, 64])
    values = tl.make_tensor_descriptor(y, [n, 64], [64, 1], [{block}, 64])
    rows, columns, steps = tl.arange(0, 64), tl.arange(0, 64), tl.arange(0, {padded})[None, :]
    a = queries.load([0, 0])
    acc = tl.zeros((64, 64), tl.float32)
    for start in range(0, n, {block}):
        s = tl.dot(a, keys.load([start, 0]).T)
        p = tl.where(steps < {block}, s * 2 + 1, 0.0)
        acc = tl.dot(p.to(tl.float16), values.load([start, 0]), acc)
    tl.store(out + rows[:, None] * 64 + columns[None, :], acc)
"""


def chain(block):
    return kernel_of(CHAIN.format(block=block, padded=1 << (block - 1).bit_length()))


@on_each
@pytest.mark.parametrize("n", [0, 1, 80, 200])
@pytest.mark.parametrize("block", [48, 64, 80, 112])
def test_values_are_those_of_the_block(run, block, n):
    rng = np.random.default_rng(block + n)
    q, x, y = (rng.integers(-1, 2, (size, 64)).astype("f2") for size in (64, n, n))
    out = np.full((64, 64), np.nan, "f4")
    copied = run(chain(block), None, q, x, y, out)
    want = (q.astype("f8") @ x.T.astype("f8") * 2 + 1) @ y.astype("f8")
    assert (out == want).all()
    assert run is not run_windows or n == 0 or copied == {"q", "x", "y"}


@pytest.mark.parametrize("block", [48, 80, 112])
def test_instructions_take_the_block_and_no_more(block):
    text = compile_variant(chain(block), chain(block).expanded[0], VARIANTS[0], TARGETS["sm_90a"]).code.decode()
    widths = {int(n) for n in re.findall(r"wgmma\.mma_async\S+m64n(\d+)k16", text)}
    assert widths == {block, 64}
    assert text.count(f"m64n{block}k16") % 4 == 0  # the depth of the first product, of 64
    assert text.count("m64n64k16") % (block // 16) == 0  # that of the second is the block
