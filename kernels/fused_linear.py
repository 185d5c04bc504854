"""Layers with what follows them, in one pass: an activation, a factor, and a sum with what went around the layer."""

import math

import numpy as np
from activation import gated, gates, gelu_gates, np_gelu, np_sigmoid, within_reach
from matmul import ACCURACY, matrix, place_of, product
from tiles import GENERAL, LARGE, SMALL, count, in_use, is_fastest

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, spec

D = gm.dtype_var("D", [gm.f16, gm.bf16, gm.f32])

# A stage less than there would be room for: what is around the layer goes through shared memory too.
TILES = [LARGE | {"num_stages": 5}, SMALL, GENERAL]


def programs(n, out_size, BLOCK_M, BLOCK_N):
    """The grid: programs go from tile to tile, as many as the device runs at once."""
    return gm.minimum(count(out_size // n, n, BLOCK_M, BLOCK_N), gm.sm_count)


def suits(n, depth, x_size, w_size, w_depth, bias_size, residual_size, out_size, out_columns, BLOCK_M, BLOCK_N):
    """Whether the shapes are those of a layer, and no smaller tile is faster."""
    is_layer = (w_size == n * depth) & (w_depth == depth) & (bias_size == n)
    agrees = (x_size * n == out_size * depth) & (out_columns == n) & (residual_size == out_size)
    return is_layer & agrees & is_fastest(lambda *tile: count(out_size // n, n, *tile), BLOCK_M, BLOCK_N)


@gm.kernel(
    configs=[gm.Config(**tile) for tile in TILES],
    ACTIVATION=["none", "relu", "gelu", "silu"],
    where=in_use,
    grid=programs,
    pick=suits,
)
def linear_activated(
    x: gm.ptr[D],
    w: gm.ptr[D],
    bias: gm.ptr[D],
    residual: gm.ptr[D],
    out: gm.ptr[D],
    scale: gm.f32 = 1.0,
    n: gm.shape["w", 0] = None,
    depth: gm.shape["x", -1] = None,
    x_size: gm.size["x"] = None,
    w_size: gm.size["w"] = None,
    w_depth: gm.shape["w", 1] = None,
    bias_size: gm.size["bias"] = None,
    residual_size: gm.size["residual"] = None,
    out_size: gm.size["out"] = None,
    out_columns: gm.shape["out", -1] = None,
    BLOCK_M: gm.constexpr = None,
    BLOCK_N: gm.constexpr = None,
    STEP_BYTES: gm.constexpr = None,
    ACTIVATION: gm.constexpr = None,
):
    """out = residual + scale * activation(x @ w.T + bias) along the last axis, for contiguous arrays of one dtype.

    The shapes are [..., depth], [n, depth], [n], and twice [..., n]. ACTIVATION is "none", "relu", "gelu" (in its tanh
    form) or "silu", each as the kernel of that name. Sums are as those of `matmul`; what follows is f32 too, or f64 for
    f64, and rounded once. residual and out may be the same array.
    """
    m = out_size // n
    STEP: tl.constexpr = STEP_BYTES // D.itemsize
    left = matrix(x, m, depth, depth, 1, BLOCK_M, STEP, False)
    right = matrix(w, depth, n, 1, depth, STEP, BLOCK_N, True)
    to = matrix(out, m, n, n, 1, BLOCK_M, BLOCK_N, False)
    for tile in range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N), tl.num_programs(0)):
        row, column = place_of(tile, m, n, BLOCK_M, BLOCK_N)
        rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
        sums = product(left, right, row, column, depth, BLOCK_M, BLOCK_N, STEP, D, False, True)
        sums += tl.load(bias + columns, mask=columns < n).to(sums.dtype)[None, :]
        v = scale.to(sums.dtype) * activated(sums, D, ACTIVATION)
        places, keep = rows[:, None] * n + columns[None, :], (rows[:, None] < m) & (columns[None, :] < n)
        to.store([row, column], tl.load(residual + places, mask=keep).to(sums.dtype) + v)


def activated(v, dtype, ACTIVATION):
    """An activation of sums, to the accuracy of `dtype`."""
    if ACTIVATION == "relu":
        return tl.where(v <= 0, 0.0, v)
    if ACTIVATION == "gelu":
        share, root, _ = gelu_gates(within_reach(v, dtype), dtype)
        return gated(v, share, root)
    if ACTIVATION == "silu":
        share, root, _ = gates(v, dtype)
        return gated(v, share, root)
    return v


# ---- reference and cases -------------------------------------------------------------------------------------------

ACTIVATIONS = {
    "none": lambda v: v,
    "relu": lambda v: np.where(v <= 0, 0.0, v),
    "gelu": np_gelu,
    "silu": lambda v: v * np_sigmoid(v),
}


def case(rows, n, depth, use="test", activation=None, scale=1.0):
    shapes = {"x": (*rows, depth), "w": (n, depth), "bias": (n,), "residual": (*rows, n), "out": (*rows, n)}
    name = " ".join([" x ".join(map(str, (*rows, n, depth))), *([activation] if activation else [])])
    return Case(name, shapes, use, scalars={"scale": scale, "ACTIVATION": activation} if activation else {})


CASES = [
    *(case(sizes[:1], *sizes[1:]) for sizes in [(2, 129, 40), (1, 1, 1), (65, 7, 33), (5, 7, 0), (0, 3, 4), (3, 0, 4)]),
    *(case((2,), 129, 40, activation=name, scale=0.5) for name in ACTIVATIONS),
    case((3, 5), 64, 72, activation="silu", scale=-2.0),
    case((100, 10), 500, 500, "demo", "gelu"),
    *(case(rows, 4096, 4096, "bench", name) for name in (None, "gelu") for rows in [(8, 512), (512,)]),
]


def cost(shapes, itemsize):
    """What is read and written once, and two operations for each product of elements."""
    size = sum(map(math.prod, shapes.values()))
    return Cost(size * itemsize("out"), 2 * math.prod(shapes["out"]) * shapes["x"][-1])


def reference(x, w, bias, residual, scale, ACTIVATION):
    return residual + scale * ACTIVATIONS[ACTIVATION or "none"](x @ w.T + bias)


spec(linear_activated, reference=reference, cases=CASES, cost=cost, whole=["w", "bias"], tolerance=ACCURACY)
