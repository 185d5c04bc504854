"""The attention of unsloth for large heads: how it is declared, called and, in numpy, what comes out of it."""

from __future__ import annotations

import numpy as np

import gristmill as gm
import unsloth_kernels
from published_cases import Cases, D, wide

CASES = Cases(unsloth_kernels.load)

BATCH, HEADS, GROUP, LENGTH, WIDTH = 2, 4, 2, 37, 64
KV_HEADS = HEADS // GROUP
SCALE = 0.125
LOG2_E = float(np.log2(np.e))
AXES = ("b", "h")


def strided(**arrays):
    """Arrays [batch, head, row, column] of D, whose columns lie side by side: the strides that kernels take of each."""
    found = dict.fromkeys((name for name, _ in arrays.values()), gm.ptr[D])
    for prefix, (name, row) in arrays.items():
        found |= {f"s{prefix}{end}": gm.stride[name, i] for i, end in enumerate((*AXES, row))}
    return found


Q, K, V, DO = {"q": ("Q", "m")}, {"k": ("K", "n")}, {"v": ("V", "n")}, {"do": ("DO", "m")}
RANGES = dict.fromkeys(("LO", "HI"), gm.ptr[gm.i32])
SUMS = dict.fromkeys(("LSE", "DELTA"), gm.ptr[gm.f32])
SCALES = {"qk_scale": gm.f32, "sm_scale": gm.f32}
SIZES = dict.fromkeys(("G", "S"), gm.i32)
BLOCKS = {
    "constants": {"HEAD_DIM": [WIDTH]},
    "configs": [
        gm.Config(BLOCK_M=16, BLOCK_N=32, num_warps=4, num_stages=1),
        gm.Config(BLOCK_M=32, BLOCK_N=16, num_warps=4, num_stages=2),
    ],
}


def by_rows(BLOCK_M):
    return gm.cdiv(LENGTH, BLOCK_M), BATCH * HEADS


def by_keys(BLOCK_N):
    return gm.cdiv(LENGTH, BLOCK_N), BATCH * KV_HEADS


def attention(kernel, signature, grid=by_rows, **declaration):
    given = BLOCKS | declaration
    return CASES.case("large_head_attention", kernel, signature=signature, grid=grid, ulps=8, **given)


# ---- what attention is ---------------------------------------------------------------------------------------------


def ranges():
    """The keys lo[b, i] to hi[b, i] of each row: packed sequences in one batch, a causal window in the other."""
    rows = np.arange(LENGTH)
    lo = np.stack([np.where(rows < 20, 0, 20), np.maximum(rows - 11, 0)])
    return lo.astype(np.int32), np.stack([rows, np.minimum(rows + 2, LENGTH - 1)]).astype(np.int32)


def rows_of_keys(lo, hi):
    """The first row that ends at or after each key, and the last that starts at or before it."""
    keys = np.arange(LENGTH)
    first = np.stack([np.searchsorted(h, keys) for h in hi])
    last = np.stack([np.searchsorted(x, keys, side="right") for x in lo]) - 1
    return first.astype(np.int32), last.astype(np.int32)


def states(draw, heads, width):
    """Heads [batch, head, row, column] that lie row by row in memory, as a model's do."""
    return draw.normal(BATCH, LENGTH, heads, width).swapaxes(1, 2)


def repeated(x):
    return np.repeat(wide(x), GROUP, axis=1)


def weights(q, k):
    """The softmax of the scores, and the logarithm to base 2 of its sums."""
    lo, hi = (x[:, None, :, None] for x in ranges())
    keys = np.arange(LENGTH)
    scores = np.where((keys >= lo) & (keys <= hi), wide(q) @ repeated(k).swapaxes(2, 3) * SCALE, -np.inf)
    largest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - largest)
    sums = powers.sum(-1, keepdims=True)
    return powers / sums, (largest + np.log(sums))[..., 0] * LOG2_E


def operands(draw, width):
    q, k, v = (states(draw, heads, width) for heads in (HEADS, KV_HEADS, KV_HEADS))
    lo, hi = ranges()
    return {"Q": q, "K": k, "V": v, "LO": lo, "HI": hi, "qk_scale": SCALE * LOG2_E, "G": GROUP, "S": LENGTH}


@attention(
    "_lh_fwd",
    strided(**Q, **K, **V, o=("O", "m")) | RANGES | SIZES | {"LSE": SUMS["LSE"], "qk_scale": gm.f32, "H": gm.i32},
)
def _(draw, constants):
    arguments = operands(draw, constants["HEAD_DIM"])
    p, lse = weights(arguments["Q"], arguments["K"])
    arguments |= {"O": np.zeros_like(arguments["Q"]), "LSE": draw.empty(*lse.shape, dtype=np.float32), "H": HEADS}
    return arguments, {"O": p @ repeated(arguments["V"]), "LSE": lse}


@attention(
    "_lh_bwd_pre", strided(o=("O", "m"), **DO) | {"DELTA": SUMS["DELTA"], "H": gm.i32, "S": gm.i32},
    constants={"HEAD_DIM": [WIDTH], "BLOCK_M": [16]}, configs=None, num_warps=4,
)  # fmt: skip
def _(draw, constants):
    out, up = (states(draw, HEADS, constants["HEAD_DIM"]) for _ in range(2))
    arguments = {"O": out, "DO": up, "DELTA": draw.empty(BATCH, HEADS, LENGTH, dtype=np.float32)}
    return arguments | {"H": HEADS, "S": LENGTH}, {"DELTA": (wide(out) * wide(up)).sum(-1)}


def backward(draw, width):
    """Arguments, the weights and the gradient of the scores."""
    arguments = operands(draw, width) | {"DO": states(draw, HEADS, width), "sm_scale": SCALE}
    p, lse = weights(arguments["Q"], arguments["K"])
    back = wide(arguments["DO"]) @ repeated(arguments["V"]).swapaxes(2, 3)
    delta = (p * back).sum(-1)
    arguments |= {"LSE": lse.astype(np.float32), "DELTA": delta.astype(np.float32)}
    return arguments, p, p * (back - delta[..., None])


BACKWARD = {**RANGES, **SIZES, **SUMS, **SCALES}


@attention("_lh_bwd_dq", strided(**Q, **K, **V, **DO, dq=("DQ", "m")) | BACKWARD | {"H": gm.i32})
def _(draw, constants):
    arguments, _, scores = backward(draw, constants["HEAD_DIM"])
    arguments |= {"DQ": np.zeros_like(arguments["Q"]), "H": HEADS}
    return arguments, {"DQ": scores @ repeated(arguments["K"]) * SCALE}


def summed(x):
    """Add the gradients of heads that share keys."""
    return x.reshape(BATCH, KV_HEADS, GROUP, *x.shape[2:]).sum(2)


@attention(
    "_lh_bwd_dkdv",
    strided(**Q, **K, **V, **DO, dk=("DK", "n"), dv=("DV", "n"))
    | BACKWARD | {**dict.fromkeys(("QLO", "QHI"), gm.ptr[gm.i32]), "HKV": gm.i32},
    grid=by_keys,
)  # fmt: skip
def _(draw, constants):
    arguments, p, scores = backward(draw, constants["HEAD_DIM"])
    first, last = rows_of_keys(arguments["LO"], arguments["HI"])
    arguments |= {"QLO": first, "QHI": last, "HKV": KV_HEADS}
    arguments |= {name: np.zeros_like(arguments["K"]) for name in ("DK", "DV")}
    wanted = {
        "DK": scores.swapaxes(2, 3) @ wide(arguments["Q"]) * SCALE,
        "DV": p.swapaxes(2, 3) @ wide(arguments["DO"]),
    }
    return arguments, {name: summed(x) for name, x in wanted.items()}
