"""Layer norm and RMS norm along rows."""

import numpy as np
from rowwise import CONFIGS, computed_in, configurations, fits, in_use, parts, rows, same_shape

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Tolerance, spec, streaming

D = gm.dtype_var("D", gm.Float)


@gm.kernel(configs=CONFIGS, where=in_use, grid=rows, pick=fits)
def layer_norm_forward(
    x: gm.ptr[D],
    weight: gm.ptr[D, "n_cols"],
    bias: gm.ptr[D, "n_cols"],
    y: gm.ptr[D],
    eps: gm.f64 = 1e-5,
    n: gm.size["x"] = None,
    n_cols: gm.shape["x", -1] = None,
    BLOCK: gm.constexpr = None,
    TILE: gm.constexpr = None,
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
    keep = cols < n_cols
    v = tl.load(x + cols, mask=keep).to(C)
    PARTS: tl.constexpr = parts(D, BLOCK, ONE_PASS)
    count = tl.minimum(n_cols, BLOCK)
    mean, squares = moments(v, keep, count, BLOCK, PARTS, C)
    # Of full rows the compiler knows the count: a product less while the blocks of a cluster wait.
    variance = squares / (count if PARTS > 1 else n_cols)
    if not ONE_PASS:
        offset, spread = moments_of_rest(x, mean, n_cols, BLOCK, TILE, C)
        mean += offset
        variance += spread
    scale = tl.rsqrt(variance + eps.to(C))
    w = tl.load(weight + cols, mask=keep).to(C)
    b = tl.load(bias + cols, mask=keep).to(C)
    tl.store(y + cols, (v - mean) * (scale * w) + b, mask=keep)
    if not ONE_PASS:
        for start in range(BLOCK, n_cols, TILE):
            places = start + tl.arange(0, TILE)
            inside = places < n_cols
            rest = tl.load(x + places, mask=inside).to(C)
            factor = tl.load(weight + places, mask=inside).to(C)
            term = tl.load(bias + places, mask=inside).to(C)
            tl.store(y + places, (rest - mean) * (scale * factor) + term, mask=inside)


def moments(v, keep, count, BLOCK, PARTS, C):
    """Mean of the first `count` elements, and the sum of their squared distances from it.

    Each part has its own first, so that the blocks of a cluster tell each other both at once. Chan, Golub and LeVeque,
    Algorithms for computing the sample variance, 1983.
    """
    if PARTS == 1:
        mean = quotient(tl.sum(v), count.to(C))
        centred = tl.where(keep, v - mean, 0.0)
        return mean, tl.sum(centred * centred)
    SIZE: tl.constexpr = BLOCK // PARTS
    counts = tl.minimum(tl.maximum(count - SIZE * tl.arange(0, PARTS), 0), SIZE).to(C)
    each = tl.reshape(v, (PARTS, SIZE))
    means = quotient(tl.sum(each, 1), tl.maximum(counts, 1.0))
    distances = tl.where(tl.reshape(keep, (PARTS, SIZE)), each - means[:, None], 0.0)
    squares = tl.sum(distances * distances, 1)
    mean = quotient(tl.sum(means * counts), count.to(C))
    shifts = means - mean
    return mean, tl.sum(squares + counts * (shifts * shifts))


def quotient(x, y):
    """x / y, corrected by what its rounding left: exact where it can be, so that equal elements have no spread."""
    first = x / y
    return first + tl.fma(-first, y, x) / y


def moments_of_rest(x, shift, n_cols, BLOCK, TILE, C):
    """What the columns from BLOCK on add to the mean `shift` of the ones before, and to their variance, in one pass.

    With f the first columns' share of the row, (mean - shift)^2 <= variance (1 - f) / f, so that the difference of
    squares loses no more than log2(1/f) bits: 3 for 131,072 columns after the first 16,384.
    """
    sums = tl.zeros((TILE,), C)
    squares = tl.zeros((TILE,), C)
    for start in range(BLOCK, n_cols, TILE):
        places = start + tl.arange(0, TILE)
        inside = places < n_cols
        rest = tl.where(inside, tl.load(x + places, mask=inside).to(C) - shift, 0.0)
        sums += rest
        squares += rest * rest
    offset = tl.sum(sums) / n_cols
    return offset, tl.sum(squares) / n_cols - offset * offset


# It computes so little behind its reduction that rows in registers are faster.
@gm.kernel(configs=configurations(warps_of_16384=16), where=in_use, grid=rows, pick=fits)
def rms_norm_forward(
    x: gm.ptr[D],
    weight: gm.ptr[D, "n_cols"],
    y: gm.ptr[D],
    eps: gm.f64 = 1e-5,
    n: gm.size["x"] = None,
    n_cols: gm.shape["x", -1] = None,
    BLOCK: gm.constexpr = None,
    TILE: gm.constexpr = None,
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
    keep = cols < n_cols
    v = tl.load(x + cols, mask=keep).to(C)
    total = tl.sum(v * v)
    if not ONE_PASS:
        squares = tl.zeros((TILE,), C)
        for start in range(BLOCK, n_cols, TILE):
            places = start + tl.arange(0, TILE)
            rest = tl.load(x + places, mask=places < n_cols).to(C)
            squares += rest * rest
        total += tl.sum(squares)
    scale = 1.0 / tl.sqrt(total / n_cols + eps.to(C))
    tl.store(y + cols, v * (scale * tl.load(weight + cols, mask=keep).to(C)), mask=keep)
    if not ONE_PASS:
        for start in range(BLOCK, n_cols, TILE):
            places = start + tl.arange(0, TILE)
            rest = tl.load(x + places, mask=places < n_cols).to(C)
            factor = tl.load(weight + places, mask=places < n_cols).to(C)
            tl.store(y + places, rest * (scale * factor), mask=places < n_cols)


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
