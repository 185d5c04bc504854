"""Arrangements in shared memory: each element has a place, accesses are wide, and no bank is met twice."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.compiler.banks import ROW_BYTES, arrange, in_order, wavefronts
from gristmill.compiler.layout import Layout, blocked, flatten
from test_layout import SKEWED, pairs_of_layouts

SIZES = [1, 2, 4, 8]


@given(pairs_of_layouts(), st.sampled_from(SIZES))
@example(SKEWED, 2)
def test_each_element_has_a_place_of_its_own_and_no_bank_is_met_twice(pair, itemsize):
    source, target = pair
    arrangement = arrange(source, target, itemsize)
    places = [arrangement.offset(position) for position in range(source.elements)]
    assert sorted(places) == list(range(source.elements))
    assert wavefronts(arrangement, source, itemsize) == wavefronts(arrangement, target, itemsize) == 1


@given(pairs_of_layouts(), st.sampled_from(SIZES))
@settings(max_examples=50)
def test_an_access_takes_neighbours_in_order(pair, itemsize):
    arrangement = arrange(*pair, itemsize)
    for layout in pair:
        for first in range(layout.registers):
            places = [
                arrangement.offset(flatten(layout.at(first ^ r), layout.shape)) for r in arrangement.group(layout)
            ]
            start = min(places)
            assert sorted(places) == list(range(start, start + arrangement.width)) and start % arrangement.width == 0


TENSOR = Layout(  # the accumulator of m16n8, four warps along rows
    (64, 64), ((0, 1), (8, 0), (0, 8), (0, 16), (0, 32)), ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), ((16, 0), (32, 0))
)


@pytest.mark.parametrize(
    ("source", "target", "itemsize", "width"),
    [
        (TENSOR, blocked((64, 64), 8, 4), 2, 2),
        (TENSOR, blocked((64, 64), 4, 4), 4, 4),
        (blocked((64, 64), 8, 4), blocked((64, 64), 8, 4, order=(0, 1)), 2, 1),
        (blocked((64, 64), 4, 4), blocked((64, 64), 4, 4, warp_axis=1), 4, 4),
    ],
)
def test_what_lies_side_by_side_in_both_moves_at_once(source, target, itemsize, width):
    arrangement = arrange(source, target, itemsize)
    assert arrangement.width == width
    assert wavefronts(arrangement, source, itemsize) == wavefronts(arrangement, target, itemsize) == 1


def test_row_major_order_has_conflicts_that_are_counted():
    columns = blocked((64, 64), 1, 4, order=(0, 1))
    assert wavefronts(in_order((64, 64)), columns, 4) == 32
    assert wavefronts(in_order((64, 64)), blocked((64, 64), 1, 4), 4) == 1
    assert ROW_BYTES == 32 * 4
