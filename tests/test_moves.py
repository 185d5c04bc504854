"""Ops that move elements: each against what numpy makes of it, along every axis and in every dtype."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import KernelError
from machines import compute, kernel_of, on_each_machine

DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64"]


def numbers(size: int, dtype: str = "int32", seed: int = 0) -> np.ndarray:
    if dtype == "bool":
        return np.random.default_rng(seed).integers(0, 2, size).astype(bool)
    low = 0 if dtype.startswith("u") else -60
    return np.random.default_rng(seed).integers(low, 60, size).astype(dtype)


@on_each_machine
@pytest.mark.parametrize("dtype", DTYPES)
def test_interleave_alternates(run, dtype):
    x, y = numbers(128, dtype), numbers(128, dtype, seed=1)
    got = compute(run, "tl.interleave(x, y)", x=x, y=y, size=256)
    assert (got == np.stack([x, y], -1).ravel()).all()


@on_each_machine
@pytest.mark.parametrize("size", [1, 2, 256])
def test_split_undoes_join(run, size):
    x, y = numbers(size), numbers(size, seed=1)
    body = "a, b = tl.split(tl.join(x, y))"
    assert (compute(run, "a", body=body, x=x, y=y) == x).all()
    assert (compute(run, "b", body=body, x=x, y=y) == y).all()


@on_each_machine
def test_split_of_two_elements_gives_scalars(run):
    x = numbers(2)
    body = "a, b = tl.split(x)"
    assert compute(run, "b * 100 + a", body=body, x=x, size=1) == [x[1] * 100 + x[0]]


@on_each_machine
def test_join_of_scalars_is_a_block_of_two(run):
    assert list(compute(run, "tl.join(a, b)", a=3, b=4, size=2, dtype="int32")) == [3, 4]


@on_each_machine
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cat_puts_one_block_after_the_other(run, axis):
    x, y, shape = numbers(64), numbers(64, seed=1), (2, 8, 4)
    body = f"z = tl.cat(tl.reshape(x, {shape}), tl.reshape(y, {shape}), dim={axis})"
    got = compute(run, "tl.reshape(z, (128,))", body=body, x=x, y=y, size=128)
    assert (got == np.concatenate([x.reshape(shape), y.reshape(shape)], axis).ravel()).all()


@on_each_machine
@pytest.mark.parametrize("dtype", DTYPES)
def test_flip_turns_the_order(run, dtype):
    x = numbers(1024, dtype)
    assert (compute(run, "tl.flip(x, 0)", x=x) == x[::-1]).all()


@on_each_machine
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_flip_goes_along_any_axis(run, axis):
    x, shape = numbers(512), (4, 16, 8)
    body = f"y = tl.flip(tl.reshape(x, {shape}), {axis})"
    got = compute(run, "tl.reshape(y, (512,))", body=body, x=x)
    assert (got == np.flip(x.reshape(shape), axis).ravel()).all()


@on_each_machine
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["int32", "float64", "bool", "float16"])
def test_gather_takes_elements_along_an_axis(run, axis, dtype):
    x = numbers(256, dtype)
    places = np.random.default_rng(3).integers(0, (8, 32)[axis], 128).astype(np.int32)
    shape = (4, 32) if axis == 0 else (8, 16)
    body = f"y = tl.gather(tl.reshape(x, (8, 32)), tl.reshape(places, {shape}), {axis})"
    got = compute(run, "tl.reshape(y, (128,))", body=body, x=x, places=places, size=128)
    assert (got == np.take_along_axis(x.reshape(8, 32), places.reshape(shape), axis).ravel()).all()


@on_each_machine
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [1, 2, 8, 64, 512])
def test_sort_orders_the_last_axis(run, size, descending):
    x = numbers(size)
    want = np.sort(x)[::-1] if descending else np.sort(x)
    assert (compute(run, f"tl.sort(x, descending={descending})", x=x) == want).all()


@on_each_machine
def test_sort_orders_each_row(run):
    x = numbers(256, "float32")
    got = compute(run, "tl.reshape(tl.sort(tl.reshape(x, (8, 32))), (256,))", x=x)
    assert (got == np.sort(x.reshape(8, 32)).ravel()).all()


@on_each_machine
def test_sort_puts_nan_last(run):
    x = np.array([3, np.nan, -np.inf, 0, np.nan, np.inf, -1, 2], np.float32)
    assert np.array_equal(compute(run, "tl.sort(x)", x=x), np.sort(x), equal_nan=True)


@on_each_machine
@pytest.mark.parametrize("k", [1, 4, 32])
def test_topk_are_the_largest(run, k):
    x = numbers(64, "float32")
    assert (compute(run, f"tl.topk(x, {k})", x=x, size=k) == np.sort(x)[::-1][:k]).all()
    assert (compute(run, f"tl.topk(x, {k}, descending=False)", x=x, size=k) == np.sort(x)[:k]).all()


@on_each_machine
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("bins", [1, 16, 64, 512])
def test_histogram_counts_what_lies_in_its_bins(run, bins, dtype):
    x = numbers(1024, dtype)
    want = np.bincount(x[(x >= 0) & (x < bins)].astype(int), minlength=bins)
    assert (compute(run, f"tl.histogram(x, {bins})", x=x, size=bins, dtype="int32") == want).all()


@on_each_machine
def test_histogram_passes_over_what_is_masked(run):
    x = np.abs(numbers(256))
    got = compute(run, "tl.histogram(x, 64, mask=x % 3 == 0)", x=x, size=64)
    assert (got == np.bincount(x[x % 3 == 0], minlength=64)).all()


@on_each_machine
def test_swizzle_walks_rows_in_groups(run):
    places = np.arange(64, dtype=np.int32)
    got = [compute(run, f"tl.swizzle2d(x // 8, x % 8, 7, 8, 4)[{i}]", x=places[:64])[:56].reshape(7, 8) for i in (0, 1)]
    assert got[0][0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert got[1][0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert got[0][4].tolist() == [4, 5, 6, 4, 5, 6, 4, 5]
    assert sorted(zip(*(g.ravel().tolist() for g in got), strict=True)) == [(i, j) for i in range(7) for j in range(8)]


@on_each_machine
@settings(max_examples=20)
@given(st.sampled_from(["flip(x, 0)", "sort(x)", "gather(x, x & 63, 0)", "interleave(x, x + 1)"]), st.integers(0, 99))
def test_moves_in_a_loop_read_what_the_last_round_made(run, call, seed):
    x = np.abs(numbers(64, seed=seed))
    call = call.replace("interleave(x, x + 1)", "split(tl.join(x, x + 1))[1]")
    body = f"for i in range(3):\n    x = tl.{call}"
    want = x
    for _ in range(3):
        want = {"f": want[::-1], "s": np.sort(want), "g": want[want & 63]}[call[0]] if "join" not in call else want + 1
    assert (compute(run, "x", body=body, x=x) == want).all()


MISUSE = {
    "tl.flip(n)": "needs a block",
    "tl.flip(x, 1)": "axis 1 is out of range",
    "tl.split(x)": "must have size 2",
    "tl.cat(x, tl.arange(0, 8))": "differ in shape",
    "tl.gather(x, x, 0)": "must be integers",
    "tl.gather(x, tl.arange(0, 8)[:, None], 0)": "differ beside axis",
    "tl.sort(tl.reshape(x, (4, 4)), 0)": "along the last axis",
    "tl.topk(x, 3)": "power of two",
    "tl.topk(x, 32)": "32 of 16",
    "tl.histogram(x, 8)": "needs one axis of integers",
    "tl.histogram(tl.arange(0, 8), 8, mask=tl.arange(0, 8))": "the mask must be bools",
    "tl.histogram(tl.arange(0, 8), n)": "known at build time",
}


@pytest.mark.parametrize("call", MISUSE)
def test_misuse_is_an_error_with_a_fix(call):
    from gristmill.compiler.frontend import build
    from gristmill.specialisation import VARIANTS

    head = "@gm.kernel(grid=1)\ndef k(p: gm.ptr[gm.f32], n: gm.i32):\n    x = tl.load(p + tl.arange(0, 16))\n"
    kernel = kernel_of(f"{head}    {call}\n")
    with pytest.raises(KernelError, match=MISUSE[call]) as caught:
        build(kernel, kernel.specialisations()[0], VARIANTS[0])
    assert caught.value.fix
    assert caught.value.position is not None
