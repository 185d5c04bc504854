"""Choices between a large tile and what follows from it, which warps skip where they change none of their rows."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.compiler.compile import compile_variant
from gristmill.compiler.ir import Op, walk
from gristmill.compiler.simt.machine import SimtMachine
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS
from gristmill.specialisation import VARIANTS
from machines import kernel_of, on_each_machine
from test_windows_shapes import prepared

ROWS, COLUMNS = 8, 1024
WHOLE_ROWS = "(grown + tl.min(tl.abs(acc), 1) * 0)"  # what is reduced is laid out so: two rows a warp
INF, NAN = np.inf, np.nan
SOURCE = """
@gm.kernel(grid=1, num_warps=4)
def k(x: gm.ptr[gm.f32], w: gm.ptr[gm.f32], least: gm.ptr[gm.f32], out: gm.ptr[gm.f32], steps: gm.i32):
    rows, columns = tl.arange(0, {rows}), tl.arange(0, {columns})
    places = rows[:, None] * {columns} + columns[None, :]
    acc = tl.load(x + places)
    most = tl.load(least + rows)
    for step in range(0, steps):
        grown = tl.load(w + step * {rows} + rows)
        over = {over}
        most = tl.where(over, grown, most)
        changed = {changed}
        acc = tl.where({condition}, changed, acc)
        {more}
    tl.store(out + places, acc)
"""


def changing(
    changed="acc * grown[:, None]", condition="over[:, None]", more="pass", rows=ROWS, columns=COLUMNS, **more_
):
    return kernel_of(SOURCE.format(**locals(), over=more_.get("over", "grown > most")))


def run_changing(run, kernel, least, *grown):
    """Returns what was given and what has become of it."""
    x = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("f4")
    x[1, 3], x[4, 5], x[6, 7] = INF, NAN, -0.0
    out = np.full_like(x, 77)
    w = np.array(grown, "f4").reshape(-1, ROWS)
    run(kernel, None, x, w, np.array(least, "f4"), out, len(w))
    return x, out


FACTORS = {  # of each row, step by step, and what factors are compared with
    "none grows": ([5] * ROWS, [[2] * ROWS]),
    "all grow": ([1] * ROWS, [[2] * ROWS, [3] * ROWS]),
    "one grows": ([5, 5, 5, 1, 5, 5, 5, 5], [[2] * ROWS, [3] * ROWS]),
    "one of each warp": ([1, 5] * 4, [[2] * ROWS, [2] * ROWS]),
    "from nothing": ([-INF, -INF, 1, 1, 1, 1, -INF, 9], [[-INF, 2, 3, -INF, 4, 0.5, INF, 9]]),
    "no numbers": ([NAN, 1, NAN, 1, 1, 1, 1, 1], [[2, NAN, NAN, 2, 1, 1, 1, 1], [3, 3, 3, 3, NAN, 1, 1, 1]]),
    "no step": ([1] * ROWS, []),
}


@on_each_machine
@pytest.mark.parametrize("name", FACTORS)
def test_rows_that_grow_are_changed(run, name):
    least, steps = FACTORS[name]
    x, out = run_changing(run, changing(), least, *steps)
    most, want = np.array(least, "f4"), x
    for grown in np.array(steps, "f4").reshape(-1, ROWS):
        over = grown > most
        with np.errstate(invalid="ignore"):
            most, want = np.where(over, grown, most), np.where(over[:, None], want * grown[:, None], want)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(np.signbit(out[6, 7]), np.signbit(want[6, 7]))


@on_each_machine
def test_factors_that_follow_from_what_is_changed(run):
    x, out = run_changing(run, changing(f"acc * {WHOLE_ROWS}[:, None]"), [1, 5] * 4, [2] * ROWS, [6] * ROWS)
    np.testing.assert_array_equal(out, x * np.array([12, 6] * 4, "f4")[:, None])


@on_each_machine
def test_several_ops_of_rows_and_numbers(run):
    kernel = changing("(acc * grown[:, None] + most[:, None]) * 0.5")
    x, out = run_changing(run, kernel, [1, 5] * 4, [2] * ROWS)
    want = np.where(np.array([True, False] * 4)[:, None], (x * 2 + np.array([2, 5] * 4)[:, None]) * 0.5, x)
    np.testing.assert_array_equal(out, want.astype("f4"))


def test_only_warps_whose_rows_grow_compute(monkeypatch):
    ways, plain = [], SimtMachine.in_warps

    def noted(self, condition, compute, otherwise):
        ways.append(condition.each.reshape(-1, 32)[:, 0].tolist())
        return plain(self, condition, compute, otherwise)

    monkeypatch.setattr(SimtMachine, "in_warps", noted)
    kernel = changing(f"acc * {WHOLE_ROWS}[:, None]")
    run_changing(run_simulated, kernel, [5, 5, 5, 1, 5, 5, 5, 5], [2] * ROWS, [3] * ROWS, [9] * ROWS)
    assert [sum(each) for each in ways] == [1, 1, 4]
    assert ways[0] == ways[1]


# ---- what is recognised ----------------------------------------------------------------------------------------------

OTHERS = {  # what is no such choice, or not worth a branch
    "a condition of elements": {"condition": "acc > 0"},
    "a condition of columns": {"condition": "(columns < step)[None, :]", "rows": 64, "columns": 128},
    "a factor of elements": {"changed": "acc * tl.load(x + places)"},
    "something else": {"changed": "tl.zeros_like(acc) + grown[:, None]"},
    "a second use": {"more": "tl.store(out + places, changed)"},
    "few elements": {"columns": 64},
}


def changes(kernel) -> int:
    return sum(isinstance(s, Op) and s.name == "change" for s in walk(prepared(kernel).body))


def votes(kernel) -> int:
    code = compile_variant(kernel, kernel.expanded[0], VARIANTS[0], TARGETS["sm_80"]).code.decode()
    return code.count("vote.sync.any")


def test_a_warp_votes_and_branches():
    assert changes(changing()) == 1
    assert votes(changing()) >= 1


@pytest.mark.parametrize("name", OTHERS)
def test_other_choices_stay(name):
    assert votes(changing(**OTHERS[name])) == 0


def test_rows_of_many_tests_are_chosen_element_by_element():
    """Where a thread has as many rows as elements, asking its warp costs what it saves."""
    kernel = changing(rows=128, columns=16)
    assert (changes(kernel), votes(kernel)) == (1, 0)
