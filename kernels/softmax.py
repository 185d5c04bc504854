"""Softmax along rows, and its gradient."""

import math

import numpy as np
from rowwise import CONFIGS, computed_in, fits, in_use, rows, same_shape

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Tolerance, spec, streaming

D = gm.dtype_var("D", gm.Float)


LOG2E = tl.constexpr(1 / math.log(2))
GROUP = tl.constexpr(8)  # neighbours that one thread holds: their maximum needs no exchange


@gm.kernel(configs=CONFIGS, where=in_use, grid=rows, pick=fits, backward="softmax_backward")
def softmax_forward(
    x: gm.ptr[D],
    y: gm.ptr[D],
    n: gm.size["x"],
    n_cols: gm.shape["x", -1],
    BLOCK: gm.constexpr,
    TILE: gm.constexpr,
    ONE_PASS: gm.constexpr,
):
    """y = softmax(x) along the last axis; x and y have one shape and dtype.

    f16 and bf16 are computed in f32. f32 within 1e-5. A row with NaN, +inf, or nothing but -inf is NaN.
    Longer rows keep a running maximum and sum for each group of neighbours (Milakov and Gimelshein, arXiv 1805.02867).
    """
    C = computed_in(D)
    x += tl.program_id(0) * n_cols
    y += tl.program_id(0) * n_cols
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + cols, mask=cols < n_cols, other=-float("inf")).to(C)
    highest = tl.max(v)
    if not ONE_PASS:
        top, total = statistics_of_rest(x, n_cols, BLOCK, TILE, C, D)
        highest = tl.maximum(highest, tl.max(top))
    e = power(v - highest, D)
    divisor = tl.sum(e)
    if not ONE_PASS:
        divisor += tl.sum(total * power(top - highest, D))
    scale = 1.0 / divisor
    tl.store(y + cols, e * scale, mask=cols < n_cols)
    if not ONE_PASS:
        for start in range(BLOCK, n_cols, TILE):
            places = start + tl.arange(0, TILE)
            rest = tl.load(x + places, mask=places < n_cols).to(C)
            tl.store(y + places, power(rest - highest, D) * scale, mask=places < n_cols)


def power(x, dtype):
    """e^x for x <= 0, within 1e-5 where it is not denormal; f64 exactly rounded almost always."""
    if dtype == tl.float64:
        return tl.exp(x)
    return tl.exp2(x * LOG2E)


def statistics_of_rest(x, n_cols, BLOCK, TILE, C, dtype):
    """The maximum, and the sum of e^(x - maximum), of groups of neighbours among the columns from BLOCK on."""
    top = tl.full((TILE // GROUP,), -float("inf"), C)
    total = tl.zeros((TILE // GROUP,), C)
    for start in range(BLOCK, n_cols, TILE):
        places = start + tl.arange(0, TILE)
        v = tl.load(x + places, mask=places < n_cols, other=-float("inf")).to(C)
        v = tl.reshape(v, (TILE // GROUP, GROUP))
        above = tl.maximum(top, tl.max(v, axis=1))
        base = tl.where(above == -float("inf"), 0.0, above)
        total = total * power(top - base, dtype) + tl.sum(power(v - base[:, None], dtype), axis=1)
        top = above
    return top, total


@gm.kernel(configs=CONFIGS, where=in_use, grid=rows, pick=fits)
def softmax_backward(
    dy: gm.ptr[D],
    y: gm.ptr[D],
    dx: gm.ptr[D],
    n: gm.size["y"],
    n_cols: gm.shape["y", -1],
    BLOCK: gm.constexpr,
    TILE: gm.constexpr,
    ONE_PASS: gm.constexpr,
):
    """dx = y (dy - sum(dy y)) along the last axis, y = softmax(x); arrays of one shape and dtype.

    f16 and bf16 are computed in f32. f32 within 1e-5 of the row's largest gradient.
    """
    C = computed_in(D)
    start_of_row = tl.program_id(0) * n_cols
    dy += start_of_row
    y += start_of_row
    dx += start_of_row
    cols = tl.arange(0, BLOCK)
    g = tl.load(dy + cols, mask=cols < n_cols).to(C)
    p = tl.load(y + cols, mask=cols < n_cols).to(C)
    mean = tl.sum(g * p)
    if not ONE_PASS:
        total = tl.zeros((TILE,), C)
        for start in range(BLOCK, n_cols, TILE):
            places = start + tl.arange(0, TILE)
            h = tl.load(dy + places, mask=places < n_cols).to(C)
            total += h * tl.load(y + places, mask=places < n_cols).to(C)
        mean += tl.sum(total)
    tl.store(dx + cols, p * (g - mean), mask=cols < n_cols)
    if not ONE_PASS:
        for start in range(BLOCK, n_cols, TILE):
            places = start + tl.arange(0, TILE)
            h = tl.load(dy + places, mask=places < n_cols).to(C)
            q = tl.load(y + places, mask=places < n_cols).to(C)
            tl.store(dx + places, q * (h - mean), mask=places < n_cols)


def np_softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


def np_softmax_backward(dy, y):
    return y * (dy - (dy * y).sum(-1, keepdims=True))


spec(
    softmax_forward,
    reference=np_softmax,
    cases=same_shape("x", "y"),
    cost=streaming(flops=8),
    tolerance=Tolerance(f32=1e-5, f64=1e-13),
)
spec(
    softmax_backward,
    reference=np_softmax_backward,
    cases=same_shape("dy", "y", "dx", ranges={"y": (0.0, 1.0)}),
    cost=streaming(flops=4),
    tolerance=Tolerance(f32=1e-5, f64=1e-13, absolute=1e-5),
)
