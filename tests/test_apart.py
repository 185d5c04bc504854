"""What comes to a chain of products besides their operands: sums that stay apart, small tiles, blocks before loops."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gristmill.compiler.compile import compile_variants
from gristmill.compiler.ir import For, Op, walk
from gristmill.compiler.targets import TARGETS
from machines import kernel_of
from test_pipeline import ops
from test_windows_shapes import on_each, prepared, run_windows

CHAINED = """
@gm.kernel(grid=1, num_warps={warps}, num_stages=2)
def k(q: gm.ptr[gm.f16], x: gm.ptr[gm.f16], y: gm.ptr[gm.f16], z: gm.ptr[gm.f32], w: gm.ptr[gm.f32],
      out: gm.ptr[gm.f32], total: gm.ptr[gm.f32], n: gm.shape["x", 0], m: gm.shape["q", 0]):
    queries = tl.make_tensor_descriptor(q, [m, 64], [64, 1], [{rows}, 64])
    keys = tl.make_tensor_descriptor(x, [n, 64], [64, 1], [64, 64])
    values = tl.make_tensor_descriptor(y, [n, 64], [64, 1], [64, 64])
    rows, columns = tl.arange(0, {rows}), tl.arange(0, 64)
    {tiles}
        a = queries.load([row, 0])
        acc, sums = tl.zeros(({rows}, 64), tl.float32), {initial}
        for start in range(0, n, 64):
            s = tl.dot(a, keys.load([start, 0]).T)
            p = {p}
            sums = {sums}
            acc = tl.dot(p.to(tl.float16), values.load([start, 0]), acc)
        tl.store(out + (row + rows)[:, None] * 64 + columns[None, :], acc, mask=(row + rows < m)[:, None])
        tl.store(total + row + {place}, sums)
"""
ONE = "for row in range(0, {rows}, {rows}):"
EACH = "for row in range(0, m, {rows}):"


def chained(sums="sums * 0.5 + tl.sum(p, 1)", p="s * 2 + 1", warps=4, tiles=ONE, initial=None, place="rows"):
    rows = 16 * warps
    tiles, initial = tiles.format(rows=rows), initial or f"tl.zeros(({rows},), tl.float32)"
    return kernel_of(CHAINED.format(**locals()))


def inputs(n, warps=4, tiles=1, depth=64):
    rng = np.random.default_rng(n + warps)
    arrays = [rng.integers(-1, 2, (size, depth)).astype("f2") for size in (16 * warps * tiles, n, n)]
    return [*arrays, rng.integers(-2, 3, max(n, 64)).astype("f4"), rng.integers(0, 3, 64 * warps).astype("f4")]


def run_chained(run, kernel, n, warps=4, tiles=1):
    """Returns both results, what was given, and the first products of each step."""
    given = inputs(n, warps, tiles)
    out, total = np.full((16 * warps * tiles, 64), np.nan, "f4"), np.full(16 * warps * tiles, np.nan, "f4")
    copied = run(kernel, None, *given, out, total)
    assert run is not run_windows or n == 0 or copied == {"q", "x", "y"}
    q, x, y, *small = (v.astype("f8") for v in given)
    return out, total, small, [(q @ x[i : i + 64].T, y[i : i + 64]) for i in range(0, n, 64)]


FACTORS = {  # by what sums fall, of numbers and of the step's own
    "a number": ("0.5", lambda s, w: 0.5),
    "sums of rows": ("tl.minimum(tl.max(s, 1), 2.0)", lambda s, w: np.minimum(s.max(1), 2)),
    "a tile that is loaded": ("tl.load(w + rows)", lambda s, w: w[: len(s)]),
    "sums of columns": ("tl.minimum(tl.max(s, 0), 2.0)", lambda s, w: np.minimum(s.max(0), 2)),
}
APART = ("a number", "sums of rows")


@on_each
@pytest.mark.parametrize("n", [0, 64, 320])
@pytest.mark.parametrize("name", FACTORS)
def test_sums_that_fall_by_a_factor(run, name, n):
    text, factor = FACTORS[name]
    out, total, (_, w), steps = run_chained(run, chained(f"sums * {text} + tl.sum(p, 1)"), n)
    want, product = np.zeros(64), np.zeros((64, 64))
    for s, y in steps:
        want, product = want * factor(s, w) + (2 * s + 1).sum(1), product + (2 * s + 1) @ y
    np.testing.assert_array_equal(total, want)
    np.testing.assert_array_equal(out, product)


KEPT = {  # sums that are looked at in the loop, or are not of a warp's own rows; and a step of them
    "of columns": ({"sums": "sums + tl.sum(p, 0)"}, lambda sums, p, w: sums + p.sum(0)),
    "of all": (
        {"sums": "sums + tl.sum(p)", "initial": "0.0", "place": "0 * rows"},
        lambda sums, p, w: sums + p.sum(),
    ),
    "that are used": (
        {"sums": "sums + tl.sum(p, 1)", "p": "s * 2 + 1 + sums[:, None]"},
        lambda sums, p, w: sums + (p + sums[:, None]).sum(1),
    ),
    "from 1 on": (
        {"initial": "tl.full((64,), 1.0, tl.float32)"},
        lambda sums, p, w: sums * 0.5 + p.sum(1),
    ),
    "of the transpose": ({"sums": "sums + tl.sum(tl.trans(p), 1)"}, lambda sums, p, w: sums + p.sum(0)),
    "the greatest": ({"sums": "tl.maximum(sums, tl.max(p, 1))"}, lambda sums, p, w: np.maximum(sums, p.max(1))),
    "of another tile": (
        {"sums": "sums + tl.sum(tl.load(w + rows[:, None] + columns[None, :]), 1)"},
        lambda sums, p, w: sums + w[np.arange(64)[:, None] + np.arange(64)].sum(1),
    ),
}


@on_each
@pytest.mark.parametrize("n", [0, 192])
@pytest.mark.parametrize("name", KEPT)
def test_other_sums_come_together_in_each_step(run, name, n):
    how, follow = KEPT[name]
    kernel = chained(**how)
    assert not [op for op in ops(prepared(kernel), "sum", "max") if op.attributes.get("is_apart")]
    assert not ops(prepared(kernel), "join_lanes")
    _, total, (_, w), steps = run_chained(run, kernel, n)
    want = np.full(64, name == "from 1 on", "f8")
    for s, _ in steps:
        want = follow(want, 2 * s + 1, w)
    written = slice(0, 1 if name == "of all" else 64)
    np.testing.assert_array_equal(total[written], want[written])


@pytest.mark.parametrize("name", FACTORS)
def test_what_stays_apart_comes_together_behind_the_loop(name):
    function = prepared(chained(f"sums * {FACTORS[name][0]} + tl.sum(p, 1)"))
    marked = [op.attributes.get("is_apart", False) for op in ops(function, "sum")]
    assert marked == [name in APART] * 2  # of the first step, and of the loop
    joined, loops = ops(function, "join_lanes"), [s for s in walk(function.body) if isinstance(s, For)]
    assert len(joined) == (name in APART)
    assert [[s for s in walk(loop.body) if s in joined] for loop in loops] == [joined, []]  # the loop over tiles alone


def shuffles(kernel) -> list[int]:
    """How many shuffles there are before the last product of the code, and behind it."""
    text = compile_variants(kernel, kernel.specialisations()[0], TARGETS["sm_90a"])[0].code.decode()
    text = text[: text.rindex("wgmma.mma_async")], text[text.rindex("wgmma.mma_async") :]
    return [len(re.findall(r"shfl\.sync\.bfly", part)) for part in text]


def test_a_step_takes_no_shuffle_for_such_a_sum():
    """Two registers' rows over four lanes are two times two shuffles, once."""
    inside, behind = shuffles(chained())
    assert (inside, behind) == (0, 4)
    inside, behind = shuffles(chained(**KEPT["from 1 on"][0]))
    assert inside == 2 * 4 and behind == 0  # of the first step, and of the loop


# ---- small tiles of a step -------------------------------------------------------------------------------------------


@on_each
@pytest.mark.parametrize("n", [0, 64, 100, 320])
def test_small_tiles_of_a_step_come_by_slots(run, n):
    z = "tl.load(z + start + columns, mask=start + columns < n, other=0.0)"
    kernel = chained(sums="sums + tl.sum(p, 1)", p=f"s * {z}[None, :]")
    function = prepared(kernel)
    assert ops(function, "fetch") and not [op for op in ops(function, "load") if op.results[0].type.shape == (64,)]
    given = inputs(n)
    out, total = np.full((64, 64), np.nan, "f4"), np.full(64, np.nan, "f4")
    run(kernel, None, *given, out, total)
    q, x, y, z, _ = (v.astype("f8") for v in given)
    p = (q @ x.T) * z[:n]
    np.testing.assert_array_equal(out, p @ y)
    np.testing.assert_array_equal(total, p.sum(1))


# ---- blocks before loops ---------------------------------------------------------------------------------------------


@on_each
@pytest.mark.parametrize(("tiles", "n"), [(1, 64), (3, 128), (4, 64), (2, 0)])
def test_a_block_before_a_loop_has_slots_of_its_own(run, tiles, n):
    """Two: producers fetch the next tile's while this one is read."""
    kernel = chained(tiles=EACH)
    shapes = [op.results[0].type.shape for op in ops(prepared(kernel), "ring")]
    assert shapes == [(2, 64, 64)] * 3 and len(ops(prepared(kernel), "pipe")) == 3
    out, _, _, steps = run_chained(run, kernel, n, tiles=tiles)
    np.testing.assert_array_equal(out, sum(((2 * s + 1) @ y for s, y in steps), np.zeros_like(out)))


def test_a_block_before_a_loop_is_taken_once_for_each_tile():
    function = prepared(chained(tiles=EACH))
    (outer,) = [s for s in function.body.statements if isinstance(s, For)]
    own = [s.name for s in outer.body.statements if isinstance(s, Op)]
    assert own.count("take") == own.count("release") == 1
