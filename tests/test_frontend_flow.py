"""Returns at any depth, loops downwards and unrolled, what names mean after a loop, and what loops carry."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.compiler.ir import For, walk
from gristmill.compiler.passes import carried, unroll
from gristmill.errors import KernelError
from machines import RUNNERS, array, compute, kernel_of, on_each_machine, same
from staged import count, ops, plain_function, run_passes

# ---- returns -------------------------------------------------------------------------------------------------------

RETURNS = """
def nested(v, n, m):
    if n > 0:
        v = v + 1
        if m > 0:
            if n > 5:
                return v * 100
            v = v + 10
        elif m == 0:
            return v * 2
        v = v + 20
    else:
        if m > 0:
            return v - 1
    return v


def searched(v, KEYS: tl.constexpr, key):
    for k in KEYS:
        if k == key:
            return v * k
    return v * 0


def static_search(v, KEYS: tl.constexpr, KEY: tl.constexpr):
    for k in tl.static_range(len(KEYS)):
        if KEYS[k] == KEY:
            return v + k
    return v - 1


def both(v, n):
    if n > 0:
        return v, (n, 1)
    return v * 2, (n + 5, 2)
"""


def nested(v: int, n: int, m: int) -> int:
    if n > 0:
        v = v + 1
        if m > 0:
            if n > 5:
                return v * 100
            v = v + 10
        elif m == 0:
            return v * 2
        v = v + 20
    elif m > 0:
        return v - 1
    return v


@on_each_machine
@pytest.mark.parametrize(("n", "m"), list(itertools.product((0, 3, 9), (-1, 0, 1))))
def test_return_at_any_depth_of_branches(run, n, m):
    same(compute(run, "nested(x, n, m)", head=RETURNS, x=array("i32", 5), n=n, m=m), nested(5, n, m))


@on_each_machine
@pytest.mark.parametrize("n", [2, 3, 7])
def test_return_in_an_unrolled_loop_ends_it(run, n):
    same(compute(run, "searched(x, (2, 3, 5), n)", head=RETURNS, x=array("i32", 10), n=n), 10 * n if n < 7 else 0)
    want = {2: 10, 3: 11, 7: 9}[n]
    same(compute(run, f"static_search(x, (2, 3, 5), {n})", head=RETURNS, x=array("i32", 10)), want)


@on_each_machine
@pytest.mark.parametrize("n", [-3, 4])
def test_paths_return_nested_tuples(run, n):
    body = "a, (b, c) = both(x, n)"
    same(compute(run, "a * 100 + b * 10 + c", body=body, head=RETURNS, x=array("i32", 1), n=n), 141 if n > 0 else 222)


@on_each_machine
@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_kernel_returns_below_two_branches(run, n):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.i32], n: gm.i32):
        if n > 0:
            tl.store(x, 1)
            if n > 1:
                tl.store(x + 1, 2)
                if n > 2:
                    return
            else:
                return
            tl.store(x + 2, 3)
        tl.store(x + 3, 4)
    """
    x = np.zeros(4, np.int32)
    run(kernel_of(source), None, x, n)
    assert x.tolist() == [[0, 0, 0, 4], [1, 0, 0, 0], [1, 2, 3, 4], [1, 2, 0, 0]][n]


@on_each_machine
def test_static_condition_of_a_return_leaves_the_rest_out(run):
    head = """
    def f(v, N: tl.constexpr):
        for i in tl.static_range(3):
            if i == N:
                return v + i
            v = v * 10
        return nothing_that_exists
    """
    same(compute(run, "f(x, 2)", head=head, x=array("i32", 1)), 102)


# ---- counted loops -------------------------------------------------------------------------------------------------

DOWN = ["n, 0, -1", "n, -1, -3", "10, n, -2", "n, n, -1", "0, n, -1", "20, 3, -7", "3, 20, -7", "n, n - 6, -4"]


@on_each_machine
@pytest.mark.parametrize("bounds", DOWN)
@pytest.mark.parametrize("n", [0, 1, 9])
def test_loop_counts_down_by_a_constant(run, bounds, n):
    body = f"""
    total = 0
    steps = 0
    for i in range({bounds}):
        total = total * 31 + i
        steps += 1
    """
    total = steps = 0
    for i in range(*eval(f"({bounds})", {"n": n})):
        total, steps = (total * 31 + i + 2**31) % 2**32 - 2**31, steps + 1
    same(compute(run, "total", dt.i32, body=body, size=1, n=n), total)
    same(compute(run, "steps", dt.i32, body=body, size=1, n=n), steps)


@on_each_machine
def test_loop_counts_down_over_the_whole_range_of_its_dtype(run):
    body = """
    steps = 0
    last = tl.full((), 0, tl.int32)
    for i in range(n, -1073741825, -1073741824):
        steps += 1
        last = i
    """
    same(compute(run, "steps", dt.i32, body=body, size=1, n=2**31 - 1), 3)
    same(compute(run, "last", dt.i32, body=body, size=1, n=2**31 - 1), -1)
    unsigned = """
    total = tl.zeros((), tl.uint32)
    for i in range(tl.full((), 3, tl.uint32), tl.full((), 0, tl.uint32), -1):
        total += i
    """
    same(compute(run, "total", dt.u32, body=unsigned, size=1), 6)


@on_each_machine
@pytest.mark.parametrize("bounds", ["4", "2, 9, 3", "9, 2, -3", "0, 8, 8"])
def test_index_of_a_loop_with_constant_bounds_stands_after_it(run, bounds):
    body = f"for i in range({bounds}):\n    pass"
    same(compute(run, "i + x", body=body, x=array("i32", 0)), [*range(*eval(f"({bounds},)"))][-1])


@on_each_machine
def test_index_of_an_empty_loop_is_what_it_was(run):
    same(compute(run, "i + x", body="i = 7\nfor i in range(3, 3):\n    pass", x=array("i32", 0)), 7)
    with pytest.raises(KernelError, match="`i` is not defined here: it is a loop's index"):
        compute(run, "i + x", body="for i in range(0):\n    pass", x=array("i32", 0))


@on_each_machine
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 8, 17])
@pytest.mark.parametrize("step", [1, 3, "m"])
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_loop_that_is_unrolled_takes_the_same_steps(run, n, step, factor):
    body = f"""
    total = x
    before, last = x, x
    for i in tl.range(1, n, {step}, loop_unroll_factor={factor}):
        total = total * 3 + i
        before, last = last, x + i
    """
    total, before, last = 5, 5, 5
    for i in range(1, n, 2 if step == "m" else int(step)):
        total, before, last = total * 3 + i, last, 5 + i
    want = np.array([(total + 1000 * before + 100 * last) & 0xFFFFFFFF], np.uint32).view(np.int32)
    same(compute(run, "total + 1000 * before + 100 * last", body=body, x=array("i32", 5), n=n, m=2), *want)


UNROLLED = """
@gm.kernel(grid=1)
def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.size["x"]):
    acc = tl.zeros((256,), tl.float32)
    for i in tl.range(0, {upper}, 256, loop_unroll_factor=4):
        at = i + tl.arange(0, 256)
        acc += tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + tl.arange(0, 256), acc)
"""


def test_unrolled_loop_has_the_steps_side_by_side():
    function = plain_function(UNROLLED.format(upper="n"))
    unroll.run(function)
    many, rest = (s for s in walk(function.body) if isinstance(s, For))
    assert [sum(s.name == "load" for s in loop.body.statements) for loop in (many, rest)] == [4, 1]
    assert "unroll" not in many.attributes | rest.attributes


def test_unrolled_loop_still_reads_wide_where_it_is_full():
    loads = ops(run_passes(kernel_of(UNROLLED.format(upper="n"))), "load")
    assert [op.attributes["width"] for op in loads if len(op.operands) == 1].count(4) >= 4


@on_each_machine
@pytest.mark.parametrize("n", [1, 256, 1023, 1024, 1025, 3000])
def test_unrolled_sum_of_any_length(run, n):
    x, y = np.arange(n, dtype=np.float32) % 13, np.zeros(256, np.float32)
    run(kernel_of(UNROLLED.format(upper="n")), None, x, y)
    np.testing.assert_array_equal(y, np.pad(x, (0, -n % 256)).reshape(-1, 256).sum(0))


@on_each_machine
def test_options_of_a_range_change_nothing_that_is_computed(run):
    body = """
    total = x
    for i in tl.range(0, n, num_stages=3, flatten=True, warp_specialize=True, disallow_acc_multi_buffer=True,
                      disable_licm=True):
        total += i
    """
    same(compute(run, "total", body=body, x=array("i32", 1), n=5), 11)


# ---- what loops carry ----------------------------------------------------------------------------------------------


@on_each_machine
def test_tuple_goes_round_loops_and_branches(run):
    body = """
    state = (x, (0, x * 0))
    for i in range(n):
        a, (steps, last) = state
        if i % 2 == 0:
            state = (a + i, (steps + 1, a))
        else:
            state = (a, (steps, last + 1))
    found = state[0] * 100 + state[1][0] * 10 + state[1][1]
    """
    a, steps, last = 1, 0, 0
    for i in range(5):
        a, steps, last = (a + i, steps + 1, a) if i % 2 == 0 else (a, steps, last + 1)
    same(compute(run, "found", body=body, x=array("i32", 1), n=5), a * 100 + steps * 10 + last)


@on_each_machine
def test_tuple_goes_round_a_while_loop(run):
    body = """
    pair = (n, x)
    while pair[0] > 0:
        pair = (pair[0] // 2, pair[1] + pair[0])
    """
    same(compute(run, "pair[1] + pair[0]", body=body, x=array("i32", 1), n=13), 1 + 13 + 6 + 3 + 1)


@on_each_machine
def test_constant_that_a_loop_declares_stays_a_constant(run):
    body = """
    total = x
    WIDTH: tl.constexpr = 4
    for i in range(3):
        WIDTH: tl.constexpr = 4
        total += tl.sum(tl.full((WIDTH,), i, tl.int32))
    total += tl.sum(tl.full((WIDTH,), 1, tl.int32))
    """
    same(compute(run, "total", body=body, x=array("i32", 0)), 4 * 3 + 4)


@on_each_machine
@pytest.mark.parametrize("n", [0, 1])
def test_equal_constants_of_two_branches_stay_constants(run, n):
    body = """
    if n > 0:
        WIDTH: tl.constexpr = 4
        kind = tl.float32
        v = 1
    else:
        WIDTH: tl.constexpr = 4
        kind = tl.float32
        v = 2
    """
    same(compute(run, "tl.full((WIDTH,), v, kind)", dt.f32, body=body, size=4, n=n), *[2 - n] * 4)


def test_what_stays_the_same_is_not_carried():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.i32], n: gm.i32):
        a, b, c = (n, n + 1, n + 2)
        for i in range(n):
            for j in range(n):
                a, b = (a, b + j)
            c = c
        tl.store(x, a + b + c)
    """
    function = plain_function(source)
    before = [len(s.results) for s in walk(function.body) if isinstance(s, For)]
    carried.run(function)
    assert (before, [len(s.results) for s in walk(function.body) if isinstance(s, For)]) == ([3, 2], [1, 1])


@on_each_machine
@pytest.mark.parametrize("n", [0, 1, 3])
def test_what_counts_along_with_the_index_is_computed_from_it(run, n):
    body = """
    at, off, slow = n, 5, 0
    total = x
    for i in range(2, 2 + 4 * n, 4):
        total = total * 7 + at * 3 + off + slow
        at += 4
        off += 4
        slow += 1
    """
    total, at, off, slow = 1, n, 5, 0
    for _ in range(2, 2 + 4 * n, 4):
        total, at, off, slow = total * 7 + at * 3 + off + slow, at + 4, off + 4, slow + 1
    same(compute(run, "total", body=body, x=array("i32", 1), n=n), total)
    same(compute(run, "total + off", body=body, x=array("i32", 1), n=n), total + off)


def test_counting_along_is_not_carried():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.i32], n: gm.i32):
        at = n
        for i in range(0, n, 4):
            tl.store(x + at, i)
            at += 4
    """
    function = plain_function(source)
    carried.run(function)
    (loop,) = (s for s in walk(function.body) if isinstance(s, For))
    assert loop.results == []
    assert count(function, For) == 1


def outcome(body: str, **inputs: Any) -> str:
    with pytest.raises(KernelError) as caught:
        compute(RUNNERS["interpreter"], "x", body=body, x=array("i32", 1), **inputs)
    return caught.value.message


def test_value_that_only_a_loop_or_branch_assigns_is_named():
    assert "first assigned inside a loop" in outcome("for i in range(n):\n    v = i\nw = v", n=1)
    assert "only one branch" in outcome("if n > 0:\n    v = (1, 2)\nw = v[0]", n=1)
