"""Tiles by ticket: which loops draw them, that each tile is done once, and what a program does to the counter."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gristmill.compiler.compile import compile_variants
from gristmill.compiler.ir import For, walk
from gristmill.compiler.targets import TARGETS
from machines import kernel_of
from test_windows_shapes import on_each, prepared

TRIANGLE = """
@gm.kernel(grid={grid}, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], done: gm.ptr[gm.i32], m: gm.shape["a", 0],
      depth: gm.shape["a", 1]):
    left = tl.make_tensor_descriptor(a, [m, depth], [depth, 1], [64, 32])
    right = tl.make_tensor_descriptor(b, [depth, 64], [64, 1], [32, 64])
    rows, columns = tl.arange(0, 64), tl.arange(0, 64)
    for tile in range({first}, tl.cdiv(m, 64), {step}):
        acc = tl.zeros((64, 64), tl.float32)
        for start in range(0, {end}, 32):
            acc = tl.dot(left.load([tile * 64, start]), right.load([start, 0]), acc)
        at = tile * 64 + rows
        tl.store(c + at[:, None] * 64 + columns[None, :], acc, mask=(at < m)[:, None])
        {behind}
"""
UP_TO_ITSELF = "tl.minimum((tile + 1) * 32, depth)"


def triangle(end=UP_TO_ITSELF, grid="3", first="tl.program_id(0)", step="tl.num_programs(0)", behind="pass"):
    return kernel_of(TRIANGLE.format(**locals()))


DRAWING = {
    "an end that follows from the tile": {},
    "by more than one step": {"end": "tl.maximum(depth - tile * 32, 0)"},
    "by a choice": {"end": "tl.where(tile % 2 == 0, depth, 32)"},
}
SHARING_OUT = {
    "tiles of one length": {"end": "depth"},
    "programs along two axes": {"grid": "(3, 1)"},
    "programs of another axis": {"first": "tl.program_id(0) + tl.program_id(1)"},
    "a step that is fixed": {"step": "3"},
    "a first tile that is another": {"first": "tl.program_id(0) + 1"},
}


def draws(function) -> list[bool]:
    return [bool(s.attributes.get("draws")) for s in walk(function.body) if isinstance(s, For)]


@pytest.mark.parametrize("name", DRAWING)
def test_tiles_are_drawn_where_some_take_longer(name):
    function = prepared(triangle(**DRAWING[name]))
    assert function.tickets is not None and sum(draws(function)) == 1
    assert next(s for s in function.body.statements if isinstance(s, For)).attributes["draws"]


@pytest.mark.parametrize("name", SHARING_OUT)
def test_others_are_shared_out(name):
    function = prepared(triangle(**SHARING_OUT[name]))
    assert function.producer is not None and function.tickets is None and not any(draws(function))


@pytest.mark.parametrize(("target", "variant"), [("sm_80", 0), ("sm_90a", 1)])
def test_without_roles_nothing_is_drawn(target, variant):
    function = prepared(triangle(), target, variant)
    assert function.tickets is None and not any(draws(function))


def code(kernel):
    return compile_variants(kernel, kernel.specialisations()[0], TARGETS["sm_90a"])


def test_a_tile_takes_one_atomic_and_the_last_one_sets_the_counter_back():
    drawing, *others = code(triangle())
    assert drawing.draws and not any(other.draws for other in others)
    text = drawing.code.decode()
    assert len(re.findall(r"\batom\.\S*add", text)) == len(re.findall(r"\batom\.", text)) == 1
    assert len(re.findall(r"st\.relaxed\.gpu\.global\.u32 \[\S+\], 0;", text)) == 1
    plain = code(triangle("depth"))[0]
    assert not plain.draws and "atom." not in plain.code.decode()


def test_all_warps_read_the_ticket_and_tell_that_they_have():
    """Four consumers and the producer: the slot of a number is free when five have read it."""
    text = code(triangle())[0].code.decode()
    assert len(re.findall(r"ld\.shared\.u32", text)) == 2  # one of each role
    (five,) = re.findall(r"mov\.b32\s+(%r\d+), 5;", text)
    assert len(re.findall(rf"mbarrier\.init\S* \[%r\d+\], {five};", text)) == 2  # one for each place of a number


@on_each
@pytest.mark.parametrize(("m", "depth"), [(1, 32), (64, 64), (200, 96), (448, 40)])
def test_every_tile_is_done_once(run, m, depth):
    """More programs than tiles, as many, and fewer."""
    rng = np.random.default_rng(m)
    a, b = (rng.integers(-2, 3, s).astype("f2") for s in ((m, depth), (depth, 64)))
    c, done = np.full((m, 64), np.nan, "f4"), np.zeros(16, "i4")
    run(triangle(behind="tl.atomic_add(done + tile, 1, sem='relaxed')"), None, a, b, c, done)
    for tile in range(-(-m // 64)):
        end, own = min((tile + 1) * 32, depth), slice(64 * tile, 64 * tile + 64)
        deep = min(-(-end // 32) * 32, depth)
        np.testing.assert_array_equal(c[own], a[own, :deep].astype("f8") @ b[:deep].astype("f8"))
    np.testing.assert_array_equal(done, np.arange(16) < -(-m // 64))


def test_programs_that_count_tiles_draw_them():
    assert prepared(triangle(behind="tl.atomic_add(done + tile, 1, sem='relaxed')")).tickets is not None
