"""Matrix products of blocks: every dtype, shapes down to 1, accumulators, batches."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.errors import KernelError
from machines import bfloat16, compute, kernel_of, on_each_machine

SHAPES = [(16, 16, 16), (32, 8, 64), (1, 1, 1), (2, 64, 4), (64, 32, 16)]


def numbers(size: int, dtype, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 8, size).astype(dtype)


def padded(x: np.ndarray, size: int) -> np.ndarray:
    """`compute` takes inputs of one size."""
    return np.concatenate([x, np.zeros(size - x.size, x.dtype)])


def product(run, a, b, shape, result, acc="None", **others):
    m, k, n = shape
    size = max(a.size, b.size)
    body = f"""
x = tl.reshape(tl.gather(a, tl.arange(0, {m * k}), 0), ({m}, {k}))
y = tl.reshape(tl.gather(b, tl.arange(0, {k * n}), 0), ({k}, {n}))
z = tl.dot(x, y{"" if acc == "None" else ", " + acc})
"""
    out = compute(
        run, f"tl.reshape(z, ({m * n},))", body=body, a=padded(a, size), b=padded(b, size), size=m * n, dtype=result
    )
    return out.reshape(m, n)


@on_each_machine
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "result"),
    [("float16", "float32"), (bfloat16, "float32"), ("float32", "float32"), ("float64", "float64"), ("int8", "int32")],
)
def test_product_is_that_of_the_elements(run, shape, dtype, result):
    """Small integers, whose products and sums are exact in every dtype."""
    m, k, n = shape
    a, b = numbers(m * k, dtype), numbers(k * n, dtype, 1)
    want = a.reshape(m, k).astype("f8") @ b.reshape(k, n).astype("f8")
    assert (product(run, a, b, shape, result) == want).all()


@on_each_machine
def test_product_is_added_to_the_accumulator(run):
    a, b = numbers(256, "float32"), numbers(256, "float32", 1)
    want = a.reshape(16, 16) @ b.reshape(16, 16) + 5
    assert (product(run, a, b, (16, 16, 16), "float32", "tl.full((16, 16), 5.0, tl.float32)") == want).all()


@on_each_machine
def test_products_are_summed_in_a_loop(run):
    a, b = numbers(256, "float16"), numbers(256, "float16", 1)
    body = """
z = tl.zeros((16, 16), tl.float32)
for i in range(3):
    z = tl.dot(tl.reshape(a, (16, 16)), tl.reshape(b, (16, 16)), z)
"""
    got = compute(run, "tl.reshape(z, (256,))", body=body, a=a, b=b, dtype="float32")
    assert (got.reshape(16, 16) == 3 * (a.reshape(16, 16).astype("f4") @ b.reshape(16, 16).astype("f4"))).all()


@on_each_machine
def test_batches_multiply_one_by_one(run):
    a, b = numbers(512, "float32"), numbers(512, "float32", 1)
    body = "z = tl.dot(tl.reshape(a, (4, 16, 8)), tl.reshape(b, (4, 8, 16)))"
    got = compute(run, "tl.reshape(z, (1024,))", body=body, a=a, b=b, size=1024)
    assert (got.reshape(4, 16, 16) == a.reshape(4, 16, 8) @ b.reshape(4, 8, 16)).all()


@on_each_machine
def test_f32_operands_keep_their_precision(run):
    """Random f32: within a few ulp of the f64 product, far closer than tf32 would be."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(32 * 32).astype("f4") for _ in range(2))
    want = a.reshape(32, 32).astype("f8") @ b.reshape(32, 32).astype("f8")
    assert np.abs(product(run, a, b, (32, 32, 32), "float32") - want).max() < 1e-5


@on_each_machine
def test_result_may_be_rounded_to_half(run):
    a, b = numbers(256, "float16"), numbers(256, "float16", 1)
    body = "z = tl.dot(tl.reshape(a, (16, 16)), tl.reshape(b, (16, 16)), out_dtype=tl.float16)"
    got = compute(run, "tl.reshape(z, (256,))", body=body, a=a, b=b)
    assert (got.reshape(16, 16) == a.reshape(16, 16) @ b.reshape(16, 16)).all()


MISUSE = {
    "tl.dot(x, x)": "needs two or three axes",
    "tl.dot(y, tl.reshape(x, (8, 2)))": "do not multiply",
    "tl.dot(y, y.to(tl.float16))": "differ in dtype: f32 and f16",
    "tl.dot(y.to(tl.int64), y.to(tl.int64))": "cannot multiply i64",
    "tl.dot(y, y, tl.zeros((2, 8), tl.float32))": "acc is f32[2, 8], the product [4, 4]",
    "tl.dot(y, y, tl.zeros((4, 4), tl.int32))": "acc is i32, the sum f32",
    "tl.dot(y, y, input_precision='fast')": "unknown precision `fast`",
    "tl.dot(y, y, out_dtype=tl.int32)": "cannot return i32",
}


@pytest.mark.parametrize("call", MISUSE)
def test_misuse_is_an_error_with_a_fix(call):
    from gristmill.compiler.frontend import build
    from gristmill.specialisation import VARIANTS

    head = "@gm.kernel(grid=1)\ndef k(p: gm.ptr[gm.f32], n: gm.i32):\n    x = tl.load(p + tl.arange(0, 16))\n"
    kernel = kernel_of(f"{head}    y = tl.reshape(x, (4, 4))\n    {call}\n")
    with pytest.raises(KernelError) as caught:
        build(kernel, kernel.specialisations()[0], VARIANTS[0])
    assert MISUSE[call] in str(caught.value)
    assert caught.value.fix
