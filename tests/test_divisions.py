"""Divisions by what a loop does not change: which become multiplications, and that quotients and remainders stay."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.compiler.interpreter import interpret
from gristmill.compiler.ir import For, Function, Op, walk
from gristmill.compiler.passes import divisions
from machines import kernel_of, on_each_machine
from staged import GENERAL, WIDE, indented, plain_function

HEAD = """
@gm.kernel(grid=1)
def k(y: gm.ptr[gm.i32], other: gm.i32, n: gm.shape["y", 0], d: gm.shape["y", 1], e: gm.shape["y", 2]):
"""
LOOP = """
    for i in range(0, 3):
        number = n + i
{lines}
"""
BOTH = "tl.store(y + 2 * i, number // d)\ntl.store(y + 2 * i + 1, number % d)"
LARGEST = (1 << 31) - 1


def divided(lines: str, variant=GENERAL) -> Function:
    """The function after the pass, of a loop of these lines."""
    function = plain_function(HEAD + LOOP.format(lines=indented(indented(lines))), variant)
    divisions.run(function)
    return function


def left(function: Function) -> int:
    """How many divisions stand in loops."""
    loops = [s for s in walk(function.body) if isinstance(s, For)]
    return sum(isinstance(s, Op) and s.row.divides for loop in loops for s in walk(loop.body))


@functools.cache
def both() -> Function:
    return divided(BOTH)


@given(st.integers(0, LARGEST - 2), st.integers(0, LARGEST))
@example(LARGEST - 2, 1)
@example(LARGEST - 2, LARGEST)
@example(LARGEST - 3, LARGEST - 1)
@example(0, 0)
def test_quotients_and_remainders_are_those_of_a_division(number, divisor):
    y = np.full(6, -1, np.int32)
    interpret(both(), (1,), {"y": y, "n": number, "d": divisor, "e": 1, "other": 1})
    numbers = np.arange(number, number + 3, dtype=np.int64)
    by = max(divisor, 1)
    assert y[::2].tolist() == (numbers // by).tolist()
    assert y[1::2].tolist() == (numbers % by).tolist()


@pytest.mark.parametrize(
    "lines, count",
    [
        (BOTH, 0),
        ("tl.store(y, number // (d * tl.maximum(e, 4)) + number % (e + 3))", 0),
        ("if number > e:\n    tl.store(y, number // d)", 0),
        ("for j in range(0, e):\n    tl.store(y + j, j // d + i % e)", 0),
        ("tl.store(y, (number - e) // d)", 1),
        ("tl.store(y, number // other)", 1),
        ("tl.store(y, number // (d + i))", 1),
        ("tl.store(y, number // tl.load(y))", 1),
        ("tl.store(y, number // 24 + number % 7)", 2),
        ("tl.store(y + tl.arange(0, 4), (number + tl.arange(0, 4)) // d)", 1),
    ],
)  # fmt: skip
def test_divisions_left(lines, count):
    """Of numbers that may be negative, by what changes, by constants, and of tiles."""
    assert left(divided(lines)) == count


def test_wide_integers_are_divided():
    assert left(divided(BOTH, WIDE)) == 2


@on_each_machine
def test_tiles_by_number(run):
    """A program goes from tile to tile, whose places are quotients and remainders."""
    kernel = kernel_of("""
@gm.kernel(grid=2)
def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], rows: gm.shape["x", 0], columns: gm.shape["x", 1]):
    for tile in range(tl.program_id(0), rows * columns, tl.num_programs(0)):
        tl.store(y + tile % columns * rows + tile // columns, tl.load(x + tile))
""")
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    y = np.full((7, 5), np.nan, np.float32)
    run(kernel, x=x, y=y)
    assert (y == x.T).all()
