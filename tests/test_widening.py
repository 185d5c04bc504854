"""In code for 64-bit offsets a literal that meets an index is as wide as the index; elsewhere types must agree."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from gristmill.compiler.frontend import build
from gristmill.compiler.interpreter import run_kernel
from gristmill.declare import Kernel
from gristmill.errors import KernelError
from gristmill.specialisation import VARIANTS
from host import run_on_host
from machines import kernel_of, needs_host

LARGEST = """
@gm.kernel(BLOCK=[8], grid=1)
def largest(x: gm.ptr[gm.f32], out: gm.ptr[gm.i64], n: gm.size["x"], BLOCK: gm.constexpr):
    best = -float("inf")
    where = 0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < n, other=-float("inf"))
        here = tl.min(tl.where(v == tl.max(v), i, n))
        where = tl.where(tl.max(v) > best, here, where)
        best = tl.maximum(best, tl.max(v))
    tl.store(out, where)
"""
NESTED = """
@gm.kernel(grid=1)
def nested(x: gm.ptr[gm.i32], out: gm.ptr[gm.i64], n: gm.size["x"]):
    last = -1
    steps = 0
    for outer in range(3):
        i = 0
        while i < n:
            if tl.load(x + i) > outer:
                last = i
            i = i + 1
        steps = steps + 1
    choice = last if steps > 2 else 5
    tl.store(out, choice)
    tl.store(out + 1, steps)
"""
RUNS = [pytest.param(run_kernel, id="interpreter"), pytest.param(run_on_host, id="host", marks=needs_host)]


def in_variant(run, kernel: Kernel, variant, *arguments):
    if run is run_on_host:
        return partial(run, variant=variant)(kernel, None, *arguments)
    from gristmill.compiler.interpreter import interpret

    names = [p.name for p in kernel.parameters]
    function = build(kernel, kernel.specialisations()[0], variant)
    return interpret(function, (1,), dict(zip(names, arguments, strict=True)))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
@pytest.mark.parametrize("run", RUNS)
def test_an_index_kept_by_a_loop_starts_from_a_literal(run, variant):
    x, out = np.array([3, 9, -1, 9, 2, 0, 1, 4, 12, 5, 6], np.float32), np.full(1, -77)
    in_variant(run, kernel_of(LARGEST), variant, x, out, len(x))
    assert out[0] == 8


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
@pytest.mark.parametrize("run", RUNS)
def test_inner_loops_and_branches_widen_what_outer_loops_keep(run, variant):
    x, out = np.array([1, 5, 2, 3, 0], np.int32), np.full(2, -77)
    in_variant(run, kernel_of(NESTED), variant, x, out, len(x))
    assert out.tolist() == [3, 3]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_paths_of_a_helper_return_one_width(variant):
    source = """
    def first(x, n):
        if n > 2:
            return n
        return 7


    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], out: gm.ptr[gm.i64], n: gm.size["x"]):
        tl.store(out, first(x, n))
    """
    for size, want in ((5, 5), (2, 7)):
        out = np.full(1, -77)
        in_variant(run_kernel, kernel_of(source), variant, np.zeros(size, np.float32), out, size)
        assert out[0] == want


def test_what_is_wider_than_an_index_is_an_error_in_each_variant():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], n: gm.i32):
        total = 0.0
        for i in range(n):
            total = total + tl.load(x + i).to(tl.float64)
        tl.store(x, total)
    """
    for variant in VARIANTS:
        with pytest.raises(KernelError, match="`total` is f32 before the loop and f64 after a step"):
            build(kernel_of(source), kernel_of(source).specialisations()[0], variant)


def test_in_32_bit_code_i32_and_i64_do_not_meet():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.i64], n: gm.i64):
        last = 0
        for i in range(4):
            last = n + i
        tl.store(x, last)
    """
    with pytest.raises(KernelError, match="`last` is i32 before the loop and i64 after a step"):
        build(kernel_of(source), kernel_of(source).specialisations()[0], VARIANTS[0])
