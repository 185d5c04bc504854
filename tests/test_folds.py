"""Reductions and scans: by built-in functions, by an author's, over one and several blocks, along every axis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.compiler.simt.run import run_simulated
from gristmill.errors import KernelError
from machines import compute, kernel_of, on_each_machine

ADD = "def add(a, b):\n    return a + b"
LAST = "def last(a, b):\n    return b"
AFFINE = "def affine(a, b, c, d):\n    return a * c, b * c + d"
LARGER = """
def larger(a, i, b, j):
    first = (a > b) | ((a == b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)
"""


def numbers(size: int, dtype: str = "int32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-50, 50, size).astype(dtype)


@on_each_machine
@pytest.mark.parametrize("size", [1, 2, 64, 1024])
def test_reduce_by_a_function_is_what_the_function_makes(run, size):
    x = numbers(size)
    got = compute(run, "tl.reduce(x, 0, add)", head=ADD, x=x, size=1)
    assert got == [x.sum()]


@on_each_machine
@pytest.mark.parametrize(
    ("axis", "shape"), [(0, (8, 32)), (1, (8, 32)), (-1, (2, 4, 16)), (1, (2, 4, 16)), (0, (2, 4, 16))]
)
def test_reduce_goes_along_any_axis(run, axis, shape):
    x = numbers(int(np.prod(shape)))
    got = compute(
        run,
        "tl.reshape(y, (n,))",
        body=f"n: tl.constexpr = {x.size // shape[axis]}\ny = tl.reduce(tl.reshape(x, {shape}), {axis}, add)",
        head=ADD,
        x=x,
        size=x.size // shape[axis],
    )
    assert (got == x.reshape(shape).sum(axis).ravel()).all()


@on_each_machine
def test_reduce_keeps_axes_when_asked(run):
    x = numbers(64)
    body = "y = tl.reshape(x, (4, 16)) - tl.reduce(tl.reshape(x, (4, 16)), 1, add, keep_dims=True)"
    got = compute(run, "tl.reshape(y, (64,))", body=body, head=ADD, x=x)
    assert (got == (x.reshape(4, 16) - x.reshape(4, 16).sum(1, keepdims=True)).ravel()).all()


@on_each_machine
@pytest.mark.parametrize("size", [1, 4, 256, 2048])
def test_reduce_of_several_blocks_carries_them_together(run, size):
    x = numbers(size).astype(np.float32)
    body = "value, place = tl.reduce((x, tl.arange(0, x.shape[0])), 0, larger)"
    assert compute(run, "place", body=body, head=LARGER, x=x, size=1, dtype="int32") == [x.argmax()]
    assert compute(run, "value", body=body, head=LARGER, x=x, size=1) == [x.max()]


@on_each_machine
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "uint32", "int64"])
def test_place_of_the_extremum_is_the_first(run, name, dtype):
    x = np.abs(numbers(512)).astype(dtype)
    got = compute(run, f"tl.{name}(x, 0)", x=x, size=1, dtype="int32")
    assert got == [getattr(np, name)(x)]


@on_each_machine
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremum_with_its_place(run, name):
    x = numbers(256, "int16")
    body = f"value, place = tl.{name}(tl.reshape(x, (16, 16)), 1, return_indices=True)"
    assert (compute(run, "value", body=body, x=x, size=16) == getattr(x.reshape(16, 16), name)(1)).all()
    places = compute(run, "place", body=body, x=x, size=16, dtype="int32")
    assert (places == getattr(x.reshape(16, 16), "arg" + name)(1)).all()


@on_each_machine
def test_place_of_the_extremum_passes_over_nan(run):
    x = np.array([np.nan, 1, np.nan, 5, 2, np.nan, 5, -1], np.float32)
    assert compute(run, "tl.argmax(x, 0)", x=x, size=1, dtype="int32") == [3]
    assert compute(run, "tl.argmin(x, 0)", x=x, size=1, dtype="int32") == [7]
    nothing = np.full(8, np.nan, np.float32)
    assert compute(run, "tl.argmax(x, 0)", x=nothing, size=1, dtype="int32") == [0]


@on_each_machine
def test_bits_are_folded(run):
    x = numbers(256)
    assert compute(run, "tl.xor_sum(x, 0)", x=x, size=1) == [np.bitwise_xor.reduce(x)]
    assert compute(run, "tl.reduce_or(x, 0)", x=x, size=1) == [np.bitwise_or.reduce(x)]
    assert compute(run, "tl.reduce_or(x > 48, 0)", x=x, size=1, dtype="bool") == [(x > 48).any()]


# ---- scans


@on_each_machine
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [1, 2, 32, 64, 1024, 4096])
def test_running_sums(run, size, reverse):
    x = numbers(size)
    step = -1 if reverse else 1
    assert (compute(run, f"tl.cumsum(x, 0, {reverse})", x=x) == x[::step].cumsum(dtype=x.dtype)[::step]).all()


@on_each_machine
@pytest.mark.parametrize(
    ("dtype", "result"), [("int8", "int32"), ("uint16", "uint32"), ("bool", "uint32"), ("int64", "int64")]
)
def test_running_sums_of_short_integers_have_32_bits(run, dtype, result):
    x = (numbers(256) % 2).astype(dtype)
    assert (compute(run, "tl.cumsum(x)", x=x, dtype=result) == x.cumsum(dtype=result)).all()


@on_each_machine
def test_running_products(run):
    x = np.where(numbers(128) > 0, 2.0, 0.5).astype(np.float32)
    assert (compute(run, "tl.cumprod(x, 0)", x=x) == x.cumprod()).all()


@on_each_machine
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan_goes_along_any_axis(run, axis, reverse):
    x, shape = numbers(512), (4, 16, 8)
    body = f"y = tl.cumsum(tl.reshape(x, {shape}), {axis}, {reverse})"
    want = np.flip(np.flip(x.reshape(shape), axis).cumsum(axis), axis) if reverse else x.reshape(shape).cumsum(axis)
    assert (compute(run, "tl.reshape(y, (512,))", body=body, x=x) == want.ravel()).all()


@on_each_machine
@pytest.mark.parametrize("reverse", [False, True])
@given(st.sampled_from([1, 2, 8, 64, 512]), st.integers(0, 9))
def test_scan_keeps_the_order_of_a_function_that_does_not_commute(run, reverse, size, seed):
    """Steps y = a y + b, one after another, modulo 2^32."""
    a, b = numbers(size, seed=seed), numbers(size, seed=seed + 10)
    body = f"slope, start = tl.associative_scan((a, b), 0, affine, {reverse})"
    got = [compute(run, name, body=body, head=AFFINE, a=a, b=b) for name in ("slope", "start")]
    slope, start, want = np.int32(1), np.int32(0), []
    with np.errstate(over="ignore"):
        for one, other in list(zip(a, b, strict=True))[:: -1 if reverse else 1]:
            slope, start = slope * one, start * one + other
            want.append((slope, start))
    assert [list(x[:: -1 if reverse else 1]) for x in got] == [list(x) for x in zip(*want, strict=True)]


@on_each_machine
def test_scan_in_a_loop_starts_anew(run):
    x = numbers(256)
    body = "y = x\nfor i in range(3):\n    y = tl.cumsum(y, 0)"
    assert (compute(run, "y", body=body, x=x) == x.cumsum(dtype="i4").cumsum(dtype="i4").cumsum(dtype="i4")).all()


@on_each_machine
def test_function_and_kernel_may_use_the_same_number(run):
    """The function stands alone where it is run: what is computed before it is not there."""
    x = numbers(64)
    head = "def bounded(a, b):\n    return tl.minimum(a + b, 1000)"
    body = "y = tl.minimum(x, 1000)"
    for fold, size in (("tl.associative_scan(y, 0, bounded)", 64), ("tl.reduce(y, 0, bounded)", 1)):
        got = compute(run, fold, head=head, body=body, x=x, size=size)
        assert (got == np.minimum(np.cumsum(x), 1000)[-size:]).all()


@pytest.mark.parametrize("size", [1, 2, 32, 128])
def test_folds_in_place_of_fewer_elements_than_threads_race_with_nobody(size):
    """Threads with copies of elements tell what they make of them to no other thread, nor to memory."""
    source = f"""
    @gm.kernel(grid=1)
    def k(p: gm.ptr[gm.i32]):
        x = tl.load(p + tl.arange(0, {size}))
        tl.store(p + tl.arange(0, {size}), tl.cumsum(x, 0, reverse=True) + tl.sum(x))
    """
    x = numbers(size)
    want = x[::-1].cumsum()[::-1] + x.sum()
    run_simulated(kernel_of(source), None, x)
    assert (x == want).all()


# ---- functions of elements


@on_each_machine
def test_function_is_mapped_over_blocks_that_broadcast(run):
    x = numbers(64)
    head = "def both(a, b):\n    return tl.where(a > b, a, b), a * b"
    body = "high, product = tl.map_elementwise(both, tl.reshape(x, (8, 8)), tl.arange(0, 8))"
    a, b = x.reshape(8, 8), np.arange(8)
    assert (compute(run, "tl.ravel(high)", body=body, head=head, x=x) == np.maximum(a, b).ravel()).all()
    assert (compute(run, "tl.ravel(product)", body=body, head=head, x=x) == (a * b).ravel()).all()


# ---- misuse

MISUSE = {
    "scalar": ("tl.reduce(n, 0, add)", ADD, "needs a block"),
    "shapes": ("tl.reduce((x, tl.arange(0, 8)), 0, larger)", LARGER, "the blocks differ in shape"),
    "dtype": ("tl.reduce(x, 0, f)", "def f(a, b):\n    return a > b", "the function must return f32, got bool"),
    "count": ("tl.reduce(x, 0, f)", "def f(a, b):\n    return a, b", "the function must return f32, got f32, f32"),
    "no function": ("tl.reduce(x, 0, 3)", ADD, "`3` is no helper function"),
    "branch": ("tl.reduce(x, 0, f)", "def f(a, b):\n    return a if a > b else b", "may only compute"),
    "axis": ("tl.associative_scan(x, 1, add)", ADD, "axis 1 is out of range"),
    "order": ("tl.argmax(n, 0)", ADD, "needs a block"),
    "nothing to map": ("tl.map_elementwise(add)", ADD, "there is nothing to map"),
    "floats": ("tl.xor_sum(x)", ADD, "needs integers"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_an_error_with_a_fix(case):
    from gristmill.compiler.frontend import build
    from gristmill.specialisation import VARIANTS

    call, head, message = MISUSE[case]
    body = f"    x = tl.load(p + tl.arange(0, 16))\n    {call}\n"
    source = f"{head}\n\n@gm.kernel(grid=1)\ndef k(p: gm.ptr[gm.f32], n: gm.i32):\n{body}"
    kernel = kernel_of(source)
    with pytest.raises(KernelError, match=message) as caught:
        build(kernel, kernel.specialisations()[0], VARIANTS[0])
    assert caught.value.fix
    assert caught.value.position is not None
