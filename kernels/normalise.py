"""Layer norm and RMS norm along rows."""

import numpy as np
from rowwise import CONFIGS, computed_in, fits, rows, same_shape

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Tolerance, spec, streaming

D = gm.dtype_var("D", gm.Float)


@gm.kernel(configs=CONFIGS, grid=rows, pick=fits)
def layer_norm_forward(
    x: gm.ptr[D],
    weight: gm.ptr[D, "n_cols"],
    bias: gm.ptr[D, "n_cols"],
    y: gm.ptr[D],
    eps: gm.f64 = 1e-5,
    n: gm.size["x"] = None,
    n_cols: gm.shape["x", -1] = None,
    BLOCK: gm.constexpr = None,
    ONE_PASS: gm.constexpr = None,
):
    """y = (x - mean) / sqrt(variance + eps) weight + bias along the last axis; variance divides by the row's length.

    x and y have one shape, weight and bias one row's length; one dtype. f16 and bf16 are computed in f32. f32 within
    1e-5 of the row's largest value, whatever the mean. Ba, Kiros and Hinton, arXiv 1607.06450.
    """
    C = computed_in(D)
    x += tl.program_id(0) * n_cols
    y += tl.program_id(0) * n_cols
    cols = tl.arange(0, BLOCK)
    if ONE_PASS:
        keep = cols < n_cols
        v = tl.load(x + cols, mask=keep).to(C)
        centred = tl.where(keep, v - tl.sum(v) / n_cols, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred) / n_cols + eps.to(C))
        w = tl.load(weight + cols, mask=keep).to(C)
        b = tl.load(bias + cols, mask=keep).to(C)
        tl.store(y + cols, centred * (scale * w) + b, mask=keep)
    else:
        mean, variance = moments(x, n_cols, BLOCK, C)
        scale = 1.0 / tl.sqrt(variance + eps.to(C))
        for start in range(0, n_cols, BLOCK):
            keep = start + cols < n_cols
            v = tl.load(x + start + cols, mask=keep).to(C)
            w = tl.load(weight + start + cols, mask=keep).to(C)
            b = tl.load(bias + start + cols, mask=keep).to(C)
            tl.store(y + start + cols, (v - mean) * (scale * w) + b, mask=keep)


def moments(x, n_cols, BLOCK, C):
    """Mean and variance of a row in one pass: sums of what is left after the mean of the first tile is taken off.

    With f the first tile's share of the row, (mean - shift)^2 <= variance (1 - f) / f, so that the difference of
    squares loses no more than log2(1/f) bits: 4 for 131,072 columns in tiles of 8192.
    """
    cols = tl.arange(0, BLOCK)
    shift = tl.sum(tl.load(x + cols, mask=cols < n_cols).to(C)) / tl.minimum(n_cols, BLOCK)
    sums = tl.zeros((BLOCK,), C)
    squares = tl.zeros((BLOCK,), C)
    for start in range(0, n_cols, BLOCK):
        keep = start + cols < n_cols
        rest = tl.where(keep, tl.load(x + start + cols, mask=keep).to(C) - shift, 0.0)
        sums += rest
        squares += rest * rest
    offset = tl.sum(sums) / n_cols
    return shift + offset, tl.sum(squares) / n_cols - offset * offset


@gm.kernel(configs=CONFIGS, grid=rows, pick=fits)
def rms_norm_forward(
    x: gm.ptr[D],
    weight: gm.ptr[D, "n_cols"],
    y: gm.ptr[D],
    eps: gm.f64 = 1e-5,
    n: gm.size["x"] = None,
    n_cols: gm.shape["x", -1] = None,
    BLOCK: gm.constexpr = None,
    ONE_PASS: gm.constexpr = None,
):
    """y = x / sqrt(mean(x^2) + eps) weight along the last axis.

    x and y have one shape, weight one row's length; one dtype. f16 and bf16 are computed in f32, and rounded once.
    f32 within 1e-5. Zhang and Sennrich, arXiv 1910.07467.
    """
    C = computed_in(D)
    x += tl.program_id(0) * n_cols
    y += tl.program_id(0) * n_cols
    cols = tl.arange(0, BLOCK)
    if ONE_PASS:
        keep = cols < n_cols
        v = tl.load(x + cols, mask=keep).to(C)
        scale = 1.0 / tl.sqrt(tl.sum(v * v) / n_cols + eps.to(C))
        tl.store(y + cols, v * (scale * tl.load(weight + cols, mask=keep).to(C)), mask=keep)
    else:
        squares = tl.zeros((BLOCK,), C)
        for start in range(0, n_cols, BLOCK):
            v = tl.load(x + start + cols, mask=start + cols < n_cols).to(C)
            squares += v * v
        scale = 1.0 / tl.sqrt(tl.sum(squares) / n_cols + eps.to(C))
        for start in range(0, n_cols, BLOCK):
            keep = start + cols < n_cols
            v = tl.load(x + start + cols, mask=keep).to(C)
            w = tl.load(weight + start + cols, mask=keep).to(C)
            tl.store(y + start + cols, v * (scale * w), mask=keep)


def np_layer_norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps) * weight + bias


def np_rms_norm(x, weight, eps):
    return x * (weight / np.sqrt((x * x).mean(-1, keepdims=True) + eps))


def one_row(rows, columns):
    return (columns,)


spec(
    layer_norm_forward,
    reference=np_layer_norm,
    cases=same_shape("x", "y", weight=one_row, bias=one_row),
    cost=streaming(flops=9),
    tolerance=Tolerance(f32=1e-5, f64=1e-13, absolute=2e-7),
)
spec(
    rms_norm_forward,
    reference=np_rms_norm,
    cases=same_shape("x", "y", weight=one_row),
    cost=streaming(flops=5),
    tolerance=Tolerance(f32=1e-5, f64=1e-13),
)
