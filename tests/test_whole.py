"""Masks that hold for a whole tile: values at the edges, and which branch a step takes."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from gristmill.compiler.ir import For, If, Op, walk
from gristmill.compiler.passes import whole
from gristmill.compiler.simt.machine import SimtMachine
from gristmill.compiler.simt.run import run_simulated
from machines import kernel_of, on_each_machine
from test_pipeline import ops, prepared

ROWS, COLUMNS, STEP = 16, 512, 128
MASKED = """
{head}
@gm.kernel(grid=1, num_warps=4)
def k(x: gm.ptr[gm.f32], most: gm.ptr[gm.f32], total: gm.ptr[gm.f32], place: gm.ptr[gm.i32], low: gm.{kind},
      high: gm.{kind}, offset: gm.{kind}):
    rows, columns = tl.arange(0, 16), tl.arange(0, 128)
    greatest, sums = tl.full((16,), -float("inf"), tl.float32), tl.zeros((16, 128), tl.float32)
    places = tl.zeros((16,), tl.int32)
    for start in range(0, 512, 128):
        a = tl.load(x + rows[:, None] * 512 + (start + columns)[None, :])
        at = {at}
        a = tl.where({mask}, a, {other})
        {reduced}
        greatest = tl.maximum(greatest, found)
        sums += tl.where(a == -float("inf"), 0.0, a)
    tl.store(most + rows, greatest)
    tl.store(place + rows, places)
    tl.store(total + rows[:, None] * 128 + columns[None, :], sums)
"""
UPPER = "tl.broadcast_to((at < high)[None, :], (16, 128))"
WINDOW = "tl.broadcast_to((at >= low)[None, :], (16, 128)) & tl.broadcast_to((at < high)[None, :], (16, 128))"
DIAGONAL = "(at[None, :] <= (rows + low)[:, None]) & (at[None, :] > (rows - high)[:, None])"
MAX = "found = tl.max(a, 1)"


def masked(mask=UPPER, other='-float("inf")', reduced=MAX, kind="i32", at="start + columns + offset", head=""):
    return kernel_of(MASKED.format(**locals()))


def numbers():
    return np.random.default_rng(0).integers(-9, 10, (ROWS, COLUMNS)).astype("f4")


def run_masked(run, kernel, low, high, offset=0, x=None):
    most, total, place = np.full(ROWS, np.nan, "f4"), np.full((ROWS, STEP), np.nan, "f4"), np.full(ROWS, -7, "i4")
    run(kernel, None, numbers() if x is None else x, most, total, place, low=low, high=high, offset=offset)
    return most, total, place


def check(run, kernel, keep, low, high, offset=0, x=None, other=-np.inf):
    most, total, _ = run_masked(run, kernel, low, high, offset, x)
    a = np.where(np.broadcast_to(keep, (ROWS, COLUMNS)), numbers() if x is None else x, other)
    np.testing.assert_array_equal(most, a.max(1))
    np.testing.assert_array_equal(total, np.where(a == -np.inf, 0, a).reshape(ROWS, -1, STEP).sum(1))


@contextmanager
def branches():
    """Yields a list of whether each choice's mask held everywhere, filled while the simulated device runs."""
    taken, run_if = [], SimtMachine.run_if

    def note(m, statement, values):
        if statement.attributes.get("is_whole"):
            taken.append(bool(m.agreed(values[statement.operands[0]], statement)))
        run_if(m, statement, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimtMachine, "run_if", note)
        yield taken


AT = np.arange(COLUMNS)


@on_each_machine
@pytest.mark.parametrize("high", [-5, 0, 1, 127, 128, 129, 500, 511, 512, 2**31 - 1])
def test_upper_bounds(run, high):
    check(run, masked(), high > AT, 0, high)


@on_each_machine
@pytest.mark.parametrize(
    ("low", "high"), [(0, 512), (100, 101), (127, 129), (128, 384), (200, 100), (-(2**31), 2**31 - 1), (511, 512)]
)
def test_windows_have_two_sides(run, low, high):
    check(run, masked(WINDOW), (low <= AT) & (high > AT), low, high)


@on_each_machine
@pytest.mark.parametrize(("low", "high"), [(0, 600), (130, 3), (511, 1), (-16, 0), (600, 600)])
def test_diagonals_have_two_sides(run, low, high):
    row = np.arange(ROWS)[:, None]
    check(run, masked(DIAGONAL), (row + low >= AT) & (row - high < AT), low, high)


def test_a_step_whose_mask_holds_takes_the_branch_without_it():
    with branches() as taken:
        run_masked(run_simulated, masked(), 0, 300)
    assert taken == [True, True, False, False]


def test_parts_of_a_mask_are_judged_one_by_one():
    with branches() as taken:
        run_masked(run_simulated, masked(WINDOW), 200, 500)
    assert list(zip(taken[::2], taken[1::2], strict=True)) == [
        (False, True),
        (False, True),
        (True, True),
        (True, False),
    ]


def test_one_branch_has_no_mask_and_reductions_are_inside():
    function = prepared(masked())
    (branch,) = [s for s in walk(function.body) if isinstance(s, If) and s.attributes.get("is_whole")]
    then, otherwise = ([s.name for s in walk(block) if isinstance(s, Op)] for block in branch.blocks)
    assert "where" not in then and "lt" not in then and then.count("max") == 1
    assert otherwise.count("where") == otherwise.count("lt") == otherwise.count("max") == 1
    (loop,) = [s for s in walk(function.body) if isinstance(s, For)]
    assert branch in loop.body.statements
    made = {v: s for s in loop.body.statements for v in s.results}
    assert made[branch.operands[0]].results[0].type.is_scalar


@on_each_machine
def test_what_is_not_chosen_may_be_nan(run):
    x = numbers()
    x[:, 300:] = np.nan
    check(run, masked(), AT < 300, 0, 300, x=x)
    check(run, masked(other='float("nan")'), AT < 512, 0, 512)
    most, total, _ = run_masked(run, masked(other='float("nan")'), 0, 511)
    assert np.isnan(total[:, 127]).all() and not np.isnan(total[:, :127]).any() and not np.isnan(most).any()


# ---- integers of other kinds, and those that wrap ------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize(("kind", "cast"), [("i64", "tl.int64"), ("u32", "tl.uint32"), ("u64", "tl.uint64")])
@pytest.mark.parametrize("high", [0, 1, 200, 512])
def test_wide_and_unsigned_indices(run, kind, cast, high):
    check(run, masked(kind=kind, at=f"(start + columns).to({cast}) + offset"), high > AT, 0, high)


@on_each_machine
@pytest.mark.parametrize("offset", [2**31 - 1, 2**31 - 200, -(2**31)])
@pytest.mark.parametrize("mask", [UPPER, WINDOW])
def test_indices_that_wrap_are_compared_as_they_are(run, mask, offset):
    low, high = -(2**31) + 50, 2**31 - 100
    at = (AT + offset + 2**31) % 2**32 - 2**31
    check(run, masked(mask), (at < high) & ((at >= low) | (mask == UPPER)), low, high, offset)


@on_each_machine
def test_differences_of_unsigned_numbers_wrap(run):
    """Far above every bound where they would be negative."""
    kernel = masked(kind="u32", at="(start + columns).to(tl.uint32) - offset")
    check(run, kernel, (AT >= 200) & (AT < 400), 0, 200, 200)


def test_a_tile_that_wraps_in_part_is_not_judged_by_its_ends():
    with branches() as taken:
        run_masked(run_simulated, masked(), 0, 2**31 - 100, 2**31 - 200)
    assert taken[0] is False  # its last index is far below 0


# ---- reductions of several tiles, or by an author's function ---------------------------------------------------------

LARGER = """
def larger(a, b):
    return tl.maximum(a, b)


def first(a, i, b, j):
    takes_a = (a > b) | ((a == b) & (i < j))
    return tl.where(takes_a, a, b), tl.where(takes_a, i, j)

"""
PLACES = "places = tl.where(found > greatest, {}, places)"
REDUCED = {
    "by a function": "found = tl.reduce(a, 1, larger)",
    "with places": "found = tl.max(a, 1)\n        " + PLACES.format("start + tl.argmax(a, 1)"),
    "of two tiles": "found, i = tl.reduce((a, tl.broadcast_to((start + columns)[None, :], (16, 128))), 1, first)\n"
    "        " + PLACES.format("i"),
}


@on_each_machine
@pytest.mark.parametrize("high", [0, 1, 300, 512])
@pytest.mark.parametrize("name", REDUCED)
def test_all_reductions_of_a_chosen_tile(run, name, high):
    kernel = masked(reduced=REDUCED[name], head=LARGER)
    most, _, place = run_masked(run, kernel, 0, high)
    a = np.where(high > AT, numbers(), -np.inf)
    np.testing.assert_array_equal(most, a.max(1))
    np.testing.assert_array_equal(place, 0 if name == "by a function" else a.argmax(1))


def test_masks_of_floats_and_small_tiles_have_no_branch():
    of_floats = masked("a < high.to(tl.float32)")
    assert not [s for s in walk(prepared(of_floats).body) if isinstance(s, If)] and ops(prepared(of_floats), "where")
    assert whole.LEAST * 128 <= ROWS * STEP  # those above are large


@on_each_machine
def test_choices_outside_of_loops_stay(run):
    source = """
    @gm.kernel(grid=1, num_warps=4)
    def k(x: gm.ptr[gm.f32], out: gm.ptr[gm.f32], n: gm.i32):
        at = tl.arange(0, 2048)
        tl.store(out + at, tl.where(at < n, tl.load(x + at), -1.0))
    """
    x, out = np.arange(2048, dtype="f4"), np.zeros(2048, "f4")
    run(kernel_of(source), None, x, out, n=1000)
    np.testing.assert_array_equal(out, np.where(np.arange(2048) < 1000, x, -1))
    assert not [s for s in walk(prepared(kernel_of(source)).body) if isinstance(s, If) and "is_whole" in s.attributes]
