"""Linear layouts element by element, and what is derived from them, executed for every thread with numpy."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, Function, Place, Tile, Value
from gristmill.compiler.layout import (
    LANE_BITS,
    Layout,
    all_points,
    blocked,
    combine,
    default_vector,
    flatten,
    owner_bits,
    rank,
    unflatten,
)
from gristmill.compiler.simt.machine import SimtMachine
from gristmill.compiler.simt.numbers import Numbers
from gristmill.compiler.targets.threads import Held

MAX_ELEMENTS = 1 << 9


# ---- layouts to try ------------------------------------------------------------------------------------------------


def bits_of(shape: tuple[int, ...]) -> int:
    return sum(size.bit_length() - 1 for size in shape)


shapes = st.lists(st.sampled_from([1, 2, 4, 16, 64, 512]), min_size=1, max_size=3).map(tuple)
shapes = shapes.filter(lambda s: np.prod(s) <= MAX_ELEMENTS)
warps = st.sampled_from([1, 2, 4])
clusters = st.sampled_from([1, 1, 2, 4])


@st.composite
def blocked_layouts(draw) -> Layout:
    shape = draw(shapes)
    how = {"order": draw(st.none() | st.permutations(range(len(shape))))}
    how |= {"warp_axis": draw(st.none() | st.integers(0, len(shape) - 1)), "num_blocks": draw(clusters)}
    return blocked(shape, draw(st.sampled_from([1, 2, 4, 8])), draw(warps), **how)


@st.composite
def layouts_of(draw, shape: tuple[int, ...], num_warps: int, num_blocks: int = 1, *, are_units: bool = False) -> Layout:
    """Any layout that is onto: invertible bases, some replicated, in any order over registers, lanes, warps, blocks.

    With `are_units` each basis moves along one axis by a power of two, as those of blocked layouts do.
    """
    vectors = [1 << i for i in range(bits_of(shape))]
    if not are_units:
        for target, source in draw(st.lists(st.tuples(*[st.integers(0, max(0, len(vectors) - 1))] * 2), max_size=20)):
            if vectors and target != source:
                vectors[target] ^= vectors[source]
    parts = [LANE_BITS, num_warps.bit_length() - 1, num_blocks.bit_length() - 1]
    missing = max(0, sum(parts) - len(vectors))
    vectors = draw(st.permutations(vectors + [0] * draw(st.integers(missing, missing + 2))))
    return layout_by_parts(shape, [unflatten(v, shape) for v in vectors], parts)


def layout_by_parts(shape: tuple[int, ...], bases: list[tuple[int, ...]], parts: list[int]) -> Layout:
    """Cut a list of bases into registers (what is left over), lanes, warps and blocks."""
    ends = list(itertools.accumulate([len(bases) - sum(parts), *parts]))
    return Layout(shape, *(tuple(bases[a:b]) for a, b in zip([0, *ends], ends, strict=False)))


@st.composite
def any_layouts(draw, *, are_units: bool = False) -> Layout:
    return draw(layouts_of(draw(shapes), draw(warps), draw(clusters), are_units=are_units) | blocked_layouts())


def held_by(layout: Layout) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Map each (register, lane, warp, block) to the element there."""
    return {point: layout.at(*point) for point in all_points(layout)}


def threads_of(layout: Layout) -> list[tuple[int, int, int]]:
    return [point[1:] for point in all_points(layout) if point[0] == 0]


# ---- the map -------------------------------------------------------------------------------------------------------


@given(any_layouts())
def test_every_layout_holds_every_element_and_nothing_else(layout):
    assert layout.is_onto()
    elements = set(itertools.product(*(range(size) for size in layout.shape)))
    assert set(held_by(layout).values()) == elements


@given(any_layouts(), st.data())
def test_layout_without_one_basis_is_not_onto(layout, data):
    whole = [flatten(b, layout.shape) for b in layout.bases]
    needed = [i for i in range(len(whole)) if rank(whole[:i] + whole[i + 1 :]) < rank(whole)]
    assume(needed)
    place = data.draw(st.sampled_from(needed))
    bases = [*layout.bases]
    bases[place] = (0,) * len(layout.shape)
    poorer = layout_by_parts(layout.shape, bases, [LANE_BITS, len(layout.warp), len(layout.block)])
    assert not poorer.is_onto()
    assert len(set(held_by(poorer).values())) == np.prod(layout.shape) // 2


@given(any_layouts())
def test_map_is_linear_over_bits(layout):
    origin = (0,) * len(layout.shape)
    assert layout.at(0, 0, 0, 0) == origin
    for register, lane, warp, block in all_points(layout):
        parts = (layout.at(register), layout.at(0, lane), layout.at(0, 0, warp), layout.at(0, 0, 0, block))
        assert layout.at(register, lane, warp, block) == tuple(np.bitwise_xor.reduce(parts))


@given(any_layouts())
def test_register_holding_is_the_lowest_register_of_its_element(layout):
    for register in range(layout.registers):
        found = layout.register_holding(layout.at(register))
        assert layout.at(found) == layout.at(register)
        assert all(layout.at(earlier) != layout.at(register) for earlier in range(found))
    own = {layout.at(register) for register in range(layout.registers)}
    others = set(held_by(layout).values()) - own
    assert all(layout.register_holding(element) == -1 for element in others)


def test_layout_of_a_scalar_shape_is_all_replication():
    layout = blocked((), 4, 2)
    assert layout == Layout((), (), ((),) * 5, ((),))
    assert layout.is_onto()
    assert owner_bits(layout) == ([0, 1, 2, 3, 4], [0], [])


@pytest.mark.parametrize(
    ("shape", "vector", "num_warps", "text"),
    [
        ((1024,), 4, 4, "reg=[1 2 512] lane=[4 8 16 32 64] warp=[128 256]"),
        ((16,), 8, 2, "reg=[1 2 4] lane=[8 0 0 0 0] warp=[0]"),
        ((8, 32), 2, 2, "reg=[0,1 4,0] lane=[0,2 0,4 0,8 0,16 1,0] warp=[2,0]"),
    ],
)
def test_blocked_fills_registers_then_lanes_then_warps(shape, vector, num_warps, text):
    assert str(blocked(shape, vector, num_warps)) == text


@given(blocked_layouts())
def test_each_block_of_a_cluster_has_a_connected_part(layout):
    for block in range(1 << len(layout.block)):
        held = {flatten(layout.at(r, lane, warp, block), layout.shape) for r, lane, warp, _ in all_points(layout)}
        if len(layout.shape) == 1:
            assert max(held) - min(held) + 1 == len(held)


@given(shapes, warps, st.data())
def test_warps_go_along_the_axis_they_are_told(shape, num_warps, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    told = blocked(shape, 1, num_warps, warp_axis=axis)
    assert all(b[axis] or not any(b) for b in told.warp)


@given(st.sampled_from([1, 2, 64, 4096, 1 << 17]), st.sampled_from([32, 128, 1024]), st.sampled_from([1, 2, 4, 8, 16]))
def test_default_vector_leaves_no_thread_idle(elements, threads, wanted):
    vector = default_vector(elements, threads, wanted)
    assert 1 <= vector <= wanted
    assert vector * threads <= max(elements, threads)
    assert vector == wanted or 2 * vector * threads > elements


# ---- views ---------------------------------------------------------------------------------------------------------


@given(any_layouts(), st.data())
def test_permute_permutes_every_element_and_back(layout, data):
    order = data.draw(st.permutations(range(len(layout.shape))))
    permuted = layout.permute(order)
    assert permuted.shape == tuple(layout.shape[i] for i in order)
    for point, element in held_by(layout).items():
        assert permuted.at(*point) == tuple(element[i] for i in order)
    assert permuted.permute([order.index(i) for i in range(len(order))]) == layout


@given(any_layouts(), st.data())
def test_reshape_keeps_row_major_positions_and_back(layout, data):
    bits = bits_of(layout.shape)
    cuts = sorted(data.draw(st.lists(st.integers(0, bits), max_size=2)))
    shape = tuple(1 << (b - a) for a, b in zip([0, *cuts], [*cuts, bits], strict=True))
    reshaped = layout.reshape(shape)
    for point, element in held_by(layout).items():
        assert flatten(reshaped.at(*point), shape) == flatten(element, layout.shape)
    assert reshaped.reshape(layout.shape) == layout


@given(any_layouts(), st.data())
def test_expand_inserts_a_coordinate_0_and_slice_removes_it(layout, data):
    axis = data.draw(st.integers(0, len(layout.shape)))
    expanded = layout.expand(axis)
    assert expanded.shape[axis] == 1
    for point, element in held_by(layout).items():
        assert expanded.at(*point) == (*element[:axis], 0, *element[axis:])
    assert expanded.slice(axis) == layout.compact()


@given(any_layouts(), st.data())
def test_slice_drops_a_coordinate_of_what_each_thread_holds(layout, data):
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    sliced = layout.slice(axis)
    assert sliced.is_onto()
    assert all(any(basis) for basis in sliced.reg)
    for thread in threads_of(layout):
        whole = {layout.at(r, *thread) for r in range(layout.registers)}
        left = {sliced.at(r, *thread) for r in range(sliced.registers)}
        assert left == {element[:axis] + element[axis + 1 :] for element in whole}


@given(any_layouts())
def test_compact_keeps_what_each_thread_holds(layout):
    compact = layout.compact()
    assert compact.threads == layout.threads
    for thread in threads_of(layout):
        whole = {layout.at(r, *thread) for r in range(layout.registers)}
        assert {compact.at(r, *thread) for r in range(compact.registers)} == whole


# ---- what memory access takes from them ----------------------------------------------------------------------------


@given(any_layouts(are_units=True), st.data())
def test_vector_width_is_the_run_of_consecutive_elements_in_every_thread(layout, data):
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    width = layout.vector_width(axis)
    for (register, *thread), element in held_by(layout).items():
        start = layout.at(register - register % width, *thread)
        assert start[axis] % width == 0
        step = tuple(register % width if i == axis else 0 for i in range(len(element)))
        assert element == tuple(a + b for a, b in zip(start, step, strict=True))
    if 2 * width <= layout.registers:
        assert layout.at(width) != tuple(width if i == axis else 0 for i in range(len(layout.shape)))


@given(any_layouts())
def test_owners_hold_each_element_in_one_thread(layout):
    spare = owner_bits(layout)
    owners: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for (_, *thread), element in held_by(layout).items():
        if not any(index >> i & 1 for index, bits in zip(thread, spare, strict=True) for i in bits):
            owners.setdefault(element, set()).add(tuple(thread))
    assert len(owners) == np.prod(layout.shape)
    assert all(len(threads) == 1 for threads in owners.values())


@given(st.lists(st.integers(0, 255), max_size=10))
def test_rank_counts_what_the_vectors_reach(vectors):
    reached = {combine([(v,) for v in vectors], bits, 1) for bits in range(1 << len(vectors))}
    assert 1 << rank(vectors) == len(reached)


@given(shapes, st.data())
def test_flatten_and_unflatten_are_inverse(shape, data):
    position = data.draw(st.integers(0, int(np.prod(shape)) - 1))
    coordinates = unflatten(position, shape)
    assert coordinates == tuple(map(int, np.unravel_index(position, shape)))
    assert flatten(coordinates, shape) == position


# ---- executed for every thread -------------------------------------------------------------------------------------


PLACES, PLACE_BYTES = 8, 65536


class Threads(SimtMachine):
    """The simulated device with the threads of a layout, for steps that no kernel stands around."""

    def __init__(self, layout: Layout):
        function = Function("", Block(), 1 << len(layout.warp), 1 << len(layout.block), used_bytes=PLACES * PLACE_BYTES)
        super().__init__(function)
        self.places = iter([Place(PLACE_BYTES * i, PLACE_BYTES) for i in range(PLACES)])

    def scratch(self, dtypes: Any, elements: int) -> list[Any]:
        assert elements * sum(dtype.itemsize for dtype in dtypes) <= PLACE_BYTES
        return super().scratch(dtypes, elements)

    def place(self, layout: Layout) -> Value:
        """Return a value that has this layout."""
        value = Value(Tile(dt.i32, layout.shape))
        self.layouts[value] = layout
        return value


def load(layout: Layout, array: np.ndarray) -> Held:
    """Return the tile that holds `array` in a layout."""
    threads = sorted(threads_of(layout), key=lambda thread: thread[::-1])
    each = [np.array([array[layout.at(r, *thread)] for thread in threads]) for r in range(layout.registers)]
    return Held(layout, [Numbers(numbers.astype(np.int32), dt.i32) for numbers in each])


def assert_holds(tile: Held, array: np.ndarray) -> None:
    threads = 32 << len(tile.layout.warp) + len(tile.layout.block)
    each = [list(np.broadcast_to(x.each, threads)) for x in tile.registers]
    assert each == [list(x.each) for x in load(tile.layout, array).registers]


@st.composite
def pairs_of_layouts(draw) -> tuple[Layout, Layout]:
    """Two layouts of one shape for one number of threads; in a cluster, both give its blocks the same parts."""
    shape, num_warps = draw(shapes), draw(warps)
    if draw(st.booleans()):
        return draw(layouts_of(shape, num_warps)), draw(layouts_of(shape, num_warps))
    num_blocks, vectors = draw(clusters), st.sampled_from([1, 2, 4])
    found = [blocked(shape, draw(vectors), num_warps, num_blocks=num_blocks, warp_axis=a) for a in (None, 0)]
    return found[0], found[found[0].block == found[1].block]


# The threads' bits agree, but not which elements they stand for: registers cannot just be renamed.
SKEWED = tuple(Layout((4,), ((first,),), ((2,), (0,), (0,), (0,), (0,)), ()) for first in (1, 3))


@given(pairs_of_layouts())
@example(SKEWED)
def test_relayout_moves_every_element_and_back_is_the_identity(pair):
    source, target = pair
    machine = Threads(source)
    array = np.random.default_rng(0).permutation(np.prod(source.shape)).reshape(source.shape)
    there = machine.relayout(machine.place(target), load(source, array))
    assert_holds(there, array)
    assert_holds(machine.relayout(machine.place(source), there), array)


@given(any_layouts(), st.data())
def test_coordinates_are_those_of_the_map(layout, data):
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    machine = Threads(layout)
    assert_holds(machine.coordinates(machine.place(layout), axis), np.indices(layout.shape)[axis])


@given(shapes, warps, st.data())
def test_reduction_gives_every_holder_the_total(shape, num_warps, data):
    layout = data.draw(layouts_of(shape, num_warps, are_units=True))
    axis = data.draw(st.integers(0, len(shape) - 1))
    assert_reduces(layout, axis)


@given(st.sampled_from([1, 2, 64, 512]), warps, st.sampled_from([2, 4, 8]), st.sampled_from([1, 4]))
def test_reduction_over_a_cluster_gives_every_thread_the_total(size, num_warps, num_blocks, vector):
    assert_reduces(blocked((size,), vector, num_warps, num_blocks=num_blocks), 0)


def assert_reduces(layout: Layout, axis: int) -> None:
    machine = Threads(layout)
    array = np.random.default_rng(0).integers(0, 1000, layout.shape)
    op = SimpleNamespace(results=[machine.place(layout.slice(axis))], attributes={})
    (total,) = machine.reduce(op, [load(layout, array)], axis, lambda a, b: [machine.add(a[0], b[0])])
    if len(layout.shape) == 1:
        assert (total.each == array.sum()).all()
    else:
        assert_holds(total, array.sum(axis))


@given(shapes, warps, st.booleans(), st.data())
def test_scan_gives_every_holder_what_comes_before(shape, num_warps, reverse, data):
    """By a function that does not commute: 10 a + b, as digits are read."""
    layout = data.draw(layouts_of(shape, num_warps, are_units=True))
    axis = data.draw(st.integers(0, len(shape) - 1))
    machine = Threads(layout)
    array, one = np.random.default_rng(0).integers(0, 10, shape), np.ones(shape, int)

    def read(a, b):
        numbers = (a[0].each * b[1].each + b[0].each, a[1].each * b[1].each)
        return [Numbers(number % 9973, dt.i32) for number in numbers]

    op = SimpleNamespace(results=[machine.place(layout), machine.place(layout)])
    got, _ = machine.scan(op, [load(layout, array), load(layout, 10 * one)], axis, read, reverse=reverse)
    digits = np.moveaxis(np.flip(array, axis) if reverse else array, axis, 0)
    want = np.array(list(itertools.accumulate(digits, lambda a, b: (10 * a + b) % 9973)))
    assert_holds(got, np.flip(np.moveaxis(want, 0, axis), axis) if reverse else np.moveaxis(want, 0, axis))


@given(any_layouts(), st.data())
def test_views_of_a_tile_need_no_movement_in_the_layout_that_follows(layout, data):
    machine = Threads(layout)
    array = np.arange(np.prod(layout.shape)).reshape(layout.shape)
    tile = load(layout, array)
    order = data.draw(st.permutations(range(len(layout.shape))))
    assert_holds(machine.permute(machine.place(layout.permute(order)), tile, order), array.transpose(order))
    flat = (int(np.prod(layout.shape)),)
    assert_holds(machine.reshape(machine.place(layout.reshape(flat)), tile), array.reshape(flat))
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    row = load(layout.slice(axis).expand(axis), array.take([0], axis))
    repeated = np.broadcast_to(array.take([0], axis), layout.shape)
    assert_holds(machine.broadcast(machine.place(layout), row), repeated)


@given(any_layouts(), st.data())
def test_preimage_is_where_the_element_lies(layout, data):
    element = data.draw(st.tuples(*(st.integers(0, size - 1) for size in layout.shape)))
    assert layout.at(*layout.preimage(element)) == element


# Lanes in reverse, and pairs of registers that change places with the lowest lane bit: one shuffle and two.
TURNED = Layout((64,), ((32,),), ((16,), (8,), (4,), (2,), (1,)), ())
STRAIGHT = Layout((64,), ((32,),), ((1,), (2,), (4,), (8,), (16,)), ())
PAIRED = Layout((64,), ((1,),), ((2,), (4,), (8,), (16,), (32,)), ())


@pytest.mark.parametrize(
    ("pair", "shuffles"), [((STRAIGHT, TURNED), 2), ((STRAIGHT, PAIRED), 4), ((PAIRED, TURNED), 4)]
)
def test_relayout_within_a_warp_shuffles(pair, shuffles, monkeypatch):
    source, target = pair
    machine, array = Threads(source), np.random.default_rng(0).permutation(64)
    counted = []
    for name in ("shuffle_index", "shuffle_xor"):
        word = getattr(machine, name)
        monkeypatch.setattr(machine, name, lambda *a, word=word: (counted.append(1), word(*a))[1])
    monkeypatch.setattr(machine, "barrier", lambda: pytest.fail("a warp needs no barrier"))
    assert_holds(machine.relayout(machine.place(target), load(source, array)), array)
    assert len(counted) == shuffles
