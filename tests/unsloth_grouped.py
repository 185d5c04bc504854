"""The grouped products of unsloth, one weight for each expert's rows: declarations, arguments and results."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import gristmill as gm
from published_cases import D, wide
from unsloth_cases import CASES

FORWARD, BACKWARD = "moe/grouped_gemm/kernels/forward", "moe/grouped_gemm/kernels/backward"
TOKENS, TOPK, EXPERTS, N, K = 23, 2, 4, 64, 48
PROGRAMS = 3
INDICES = {"m_sizes_ptr": gm.ptr[gm.i32], "gather_indices_ptr": gm.ptr[gm.i64]}
NUMBERS = {"NUM_TOKENS": TOKENS, "NUM_SMS": PROGRAMS}
SIZES = {"NUM_EXPERTS": [EXPERTS], "TOPK": [TOPK], "N": [N], "K": [K]}
BLOCKS = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 16}


def configs(*choices):
    """Configurations in which what a choice names is true, and what another one names is false."""
    names = {name for choice in choices for name in choice}
    return [
        gm.Config(num_warps=4, num_stages=2, **BLOCKS | {name: name in choice for name in sorted(names)})
        for choice in choices
    ]


def grouped(file, kernel, arrays, *choices, grid=PROGRAMS, **constants):
    signature = dict.fromkeys(arrays, gm.ptr[D]) | INDICES | dict.fromkeys(NUMBERS, gm.i32)
    return CASES.case(
        file, kernel, signature=signature, constants=SIZES | constants, configs=configs(*choices), grid=grid, ulps=8,
    )  # fmt: skip


# ---- what is computed ----------------------------------------------------------------------------------------------


def routing(draw):
    """Rows are pairs of a token and an expert; `order` sorts them by expert. The second expert has none."""
    others = draw.rng.integers(2, EXPERTS, TOKENS)
    chosen = np.stack([np.zeros(TOKENS, int), others], 1).ravel()
    order = np.argsort(chosen, kind="stable")
    return SimpleNamespace(order=order, expert=chosen[order], counts=np.bincount(chosen, minlength=EXPERTS))


def base(route):
    return {"m_sizes_ptr": route.counts.astype(np.int32), "gather_indices_ptr": route.order, **NUMBERS}


def weights(draw):
    return draw.normal(EXPERTS, N, K, scale=0.2)


def inputs(draw, route, is_permuted):
    """The array of inputs, of tokens or in the experts' order, and its rows in the experts' order."""
    x = draw.normal(TOKENS if is_permuted else TOKENS * TOPK, K)
    return x, wide(x)[route.order // TOPK] if is_permuted else wide(x)


def outputs(draw, route, is_permuted):
    """Gradients of outputs, of pairs or in the experts' order, and their rows in the experts' order."""
    y = draw.normal(TOKENS * TOPK, N)
    return y, wide(y)[route.order] if is_permuted else wide(y)


def placed(rows, route, is_permuted):
    found = np.empty_like(rows)
    found[route.order if is_permuted else slice(None)] = rows
    return found


@grouped(
    FORWARD, "_grouped_gemm_forward_kernel", ("x_ptr", "w_ptr", "y_ptr", "topk_weights_ptr"),
    (), ("PERMUTE_X",), ("PERMUTE_X", "USE_TMA_LOAD_W", "USE_TMA_STORE"), ("PERMUTE_Y", "FUSE_MUL_POST"),
    ("PERMUTE_Y", "USE_TMA_LOAD_X", "USE_TMA_LOAD_W"), ("USE_TMA_LOAD_X", "USE_TMA_LOAD_W", "USE_TMA_STORE"),
    ("PERMUTE_Y", "FUSE_MUL_PRE"),
)  # fmt: skip
def _(draw, constants):
    route, w = routing(draw), weights(draw)
    x, rows = inputs(draw, route, constants["PERMUTE_X"])
    scales = draw.normal(TOKENS * TOPK)
    found = np.einsum("rk,rnk->rn", rows, wide(w)[route.expert])
    if constants["FUSE_MUL_PRE"] or constants["FUSE_MUL_POST"]:
        found *= wide(scales)[route.order][:, None]
    arguments = {"x_ptr": x, "w_ptr": w, "y_ptr": draw.empty(TOKENS * TOPK, N), "topk_weights_ptr": scales}
    return arguments | base(route), {"y_ptr": placed(found, route, constants["PERMUTE_Y"])}


@grouped(
    BACKWARD, "_grouped_gemm_dX_kernel", ("dY_ptr", "w_ptr", "dX_ptr"),
    (), ("PERMUTE_X",), ("PERMUTE_X", "USE_TMA_LOAD_dY", "USE_TMA_LOAD_W"), ("PERMUTE_Y", "USE_TMA_STORE"),
    ("USE_TMA_LOAD_dY", "USE_TMA_LOAD_W", "USE_TMA_STORE"),
)  # fmt: skip
def _(draw, constants):
    route, w = routing(draw), weights(draw)
    up, rows = outputs(draw, route, constants["PERMUTE_Y"])
    found = np.einsum("rn,rnk->rk", rows, wide(w)[route.expert])
    arguments = {"dY_ptr": up, "w_ptr": w, "dX_ptr": draw.empty(TOKENS * TOPK, K)}
    return arguments | base(route), {"dX_ptr": placed(found, route, constants["PERMUTE_X"])}


def gradient_of_weights(draw, constants):
    """Weights of experts without rows stay as they are, or become zero."""
    route, before = routing(draw), weights(draw)
    x, x_rows = inputs(draw, route, constants["PERMUTE_X"])
    up, up_rows = outputs(draw, route, constants["PERMUTE_Y"])
    found = np.stack([up_rows[route.expert == e].T @ x_rows[route.expert == e] for e in range(EXPERTS)])
    arguments = {"x_ptr": x, "dY_ptr": up, "dW_ptr": before} | base(route)
    kept = np.full(EXPERTS, constants["ACCUMULATE"]) | ((route.counts == 0) & ("EXPERTS_POW2" not in constants))
    return arguments, {"dW_ptr": found + np.where(kept[:, None, None], wide(before), 0)}


OF_WEIGHTS = (
    ("x_ptr", "dY_ptr", "dW_ptr"), (), ("PERMUTE_X", "USE_TMA_LOAD_dY"), ("PERMUTE_Y", "USE_TMA_LOAD_X", "ACCUMULATE"),
    ("USE_TMA_LOAD_dY", "USE_TMA_LOAD_X", "USE_TMA_STORE"),
    ("USE_TMA_LOAD_dY", "USE_TMA_LOAD_X", "USE_TMA_STORE", "ACCUMULATE"),
)  # fmt: skip
grouped(BACKWARD, "_grouped_gemm_dW_kernel", *OF_WEIGHTS)(gradient_of_weights)
grouped(
    BACKWARD, "_grouped_gemm_dW_per_expert_kernel", *OF_WEIGHTS, EXPERTS_POW2=[EXPERTS],
    grid=lambda BLOCK_SIZE_N, BLOCK_SIZE_K: EXPERTS * gm.cdiv(N, BLOCK_SIZE_N) * gm.cdiv(K, BLOCK_SIZE_K),
)(gradient_of_weights)  # fmt: skip
