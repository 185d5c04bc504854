"""Attention of liger-kernel over depth and over several tokens: declarations and results as in liger_cases."""

from __future__ import annotations

import numpy as np

import gristmill as gm
from liger_cases import D, case, gradient, softmax, wide

# ---- attention over the blocks of a model --------------------------------------------------------------------------

DEPTH, TOKENS, WIDTH = 5, 3, 37
EPS = 1e-5
OVER_DEPTH = {"n_blocks": gm.i32, "n_tokens": gm.i32, "D": gm.i32}
STORED = {"Alpha_ptr": gm.ptr[gm.f32], "RSTD_ptr": gm.ptr[gm.f32]}
NUMBERS = {"n_blocks": DEPTH, "n_tokens": TOKENS, "D": WIDTH}
LARGE = {"BLOCK_D": [64], "MAX_BLOCKS": [8]}


def arrays(*names):
    return dict.fromkeys(names, gm.ptr[D])


def over_depth(v, query, norm):
    """The weighted sum of blocks [depth, token, element], the weights [token, depth], and what norms divide by."""
    v, query, norm = wide(v), wide(query), wide(norm)
    rates = 1 / np.sqrt((v * v).mean(-1) + EPS)
    alpha = softmax((v * rates[..., None] * norm @ query).T)
    return np.einsum("tn,ntd->td", alpha, v), alpha, rates.T


def depth_inputs(draw):
    return draw.normal(DEPTH, TOKENS, WIDTH), draw.normal(WIDTH, scale=0.3), draw.normal(WIDTH)


@case(
    "attn_res", "_attn_res_fwd_kernel", grid=TOKENS, ulps=8, constants=LARGE | {"eps": [EPS]},
    signature=arrays("V_ptr", "W_query_ptr", "W_norm_ptr", "Out_ptr") | STORED | OVER_DEPTH,
)  # fmt: skip
def _(draw, constants):
    v, query, norm = depth_inputs(draw)
    out, alpha, rates = over_depth(v, query, norm)
    arguments = {"V_ptr": v, "W_query_ptr": query, "W_norm_ptr": norm, "Out_ptr": draw.empty(TOKENS, WIDTH), **NUMBERS}
    arguments |= {name: draw.empty(TOKENS, DEPTH, dtype=np.float32) for name in STORED}
    return arguments, {"Out_ptr": out, "Alpha_ptr": alpha, "RSTD_ptr": rates}


@case(
    "attn_res", "_attn_res_bwd_kernel", grid=TOKENS, constants=LARGE,
    signature=arrays("dOut_ptr", "V_ptr", "W_query_ptr", "W_norm_ptr", "dV_ptr") | STORED | OVER_DEPTH
    | {"dW_query_ptr": gm.ptr[gm.f32], "dW_norm_ptr": gm.ptr[gm.f32], "eps": gm.f32},
)  # fmt: skip
def _(draw, constants):
    v, query, norm = inputs = depth_inputs(draw)
    up = draw.normal(TOKENS, WIDTH)
    _, alpha, rates = over_depth(*inputs)
    found = [
        gradient(lambda x, i=i: (wide(up) * over_depth(*inputs[:i], x, *inputs[i + 1 :])[0]).sum(), inputs[i])
        for i in range(3)
    ]
    arguments = {"dOut_ptr": up, "V_ptr": v, "W_query_ptr": query, "W_norm_ptr": norm, "eps": EPS, **NUMBERS}
    arguments |= {"Alpha_ptr": alpha.astype(np.float32, "C"), "RSTD_ptr": rates.astype(np.float32, "C")}
    arguments |= {"dV_ptr": draw.empty(*v.shape)}
    arguments |= {name: np.zeros(WIDTH, np.float32) for name in ("dW_query_ptr", "dW_norm_ptr")}
    return arguments, dict(zip(("dV_ptr", "dW_query_ptr", "dW_norm_ptr"), found, strict=True))


# ---- masks of scores -----------------------------------------------------------------------------------------------

BATCH, LENGTH = 2, 21
STRIDES = {"m": 1, "b": 0}


def scores_of(kernel, array, **constants):
    strides = {f"stride_{name}": gm.stride[array, axis] for name, axis in STRIDES.items()}
    return case(
        "multi_token_attention", kernel, num_warps=4, signature=arrays(array, "out_ptr") | strides | {"L": gm.i32},
        constants={"stride_n": [1], "BLOCK": [16]} | constants,
        grid=lambda BLOCK: (gm.cdiv(LENGTH, BLOCK), gm.cdiv(LENGTH, BLOCK), BATCH),
    )  # fmt: skip


def masked(draw, array, value):
    scores = draw.normal(BATCH, LENGTH, LENGTH)
    arguments = {array: scores, "out_ptr": draw.empty(*scores.shape), "L": LENGTH}
    return arguments, {"out_ptr": np.where(np.tri(LENGTH, dtype=bool), wide(scores), value)}


@scores_of("_mask_fwd_kernel", "scores_ptr", mask_val=[0.0, -512.0])
def _(draw, constants):
    return masked(draw, "scores_ptr", constants["mask_val"])


@scores_of("_mask_bwd_kernel", "grad_in_ptr")
def _(draw, constants):
    return masked(draw, "grad_in_ptr", 0)
