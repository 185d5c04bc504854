"""The attention and integer products of liger-kernel: declarations, arguments and results as in liger_cases."""

from __future__ import annotations

import numpy as np

import gristmill as gm
from liger_cases import D, case, wide

BATCH, HEADS, LENGTH, WIDTH = 1, 2, 37, 20
SCALE = 0.25
KERNEL_SIZE = 7


def blocks(m, n, k):
    return {"BLOCK_SIZE_M": [m], "BLOCK_SIZE_N": [n], "BLOCK_SIZE_K": [k]}


# ---- int8 times 2-bit weights --------------------------------------------------------------------------------------


@case(
    "experimental/mm_int8int2", "matmul_kernel", title="mm_int8int2", dtypes=[gm.i8],
    signature={
        "a_ptr": gm.ptr[gm.dtype_var("D", gm.Int)], "b_ptr": gm.ptr[gm.u8], "c_ptr": gm.ptr[gm.i32],
        "M": gm.shape["a_ptr", 0], "N": gm.shape["b_ptr", 1],
        **{f"stride_{name}": gm.stride[f"{name[0]}_ptr", 0] for name in ("am", "bk", "cm")},
    },
    constants={"K": [256], "stride_ak": [1], "stride_bn": [1], "stride_cn": [1]},
    configs=[
        gm.Config(BLOCK_SIZE_M=32, BLOCK_SIZE_N=32, BLOCK_SIZE_K=32, GROUP_SIZE_M=4, num_warps=4, num_stages=4),
        gm.Config(BLOCK_SIZE_M=64, BLOCK_SIZE_N=128, BLOCK_SIZE_K=64, GROUP_SIZE_M=8, num_warps=4, num_stages=4),
    ],
    grid=lambda M, N, BLOCK_SIZE_M, BLOCK_SIZE_N: gm.cdiv(M, BLOCK_SIZE_M) * gm.cdiv(N, BLOCK_SIZE_N),
)  # fmt: skip
def _(draw, constants):
    depth = constants["K"]
    a = draw.rng.integers(-128, 128, (70, depth), np.int8)
    weights = draw.rng.integers(-1, 3, (depth, 40))
    parts = (weights + 1).astype(np.uint8).reshape(4, depth // 4, 40)  # each in two bits of one byte
    packed = sum(parts[i] << (2 * i) for i in range(4)).astype(np.uint8)
    out = np.full((70, 40), -77, np.int32)
    return {"a_ptr": a, "b_ptr": packed, "c_ptr": out}, {"c_ptr": a.astype(np.int64) @ weights}


# ---- neighbourhood attention ---------------------------------------------------------------------------------------


def strides(**arrays):
    """Arrays [batch, head, row, column] of D by name, with the names of their strides but the last, which is 1."""
    found = dict.fromkeys(arrays, gm.ptr[D])
    for name, (prefix, row, _) in arrays.items():
        found |= {f"{prefix}_{end}_stride": gm.stride[name, i] for i, end in enumerate(("batch", "head", row))}
    return found


def attention(kernel, rows, columns, *, scaled=False, extra=None, **arrays):
    """Declare one kernel; `rows` and `columns` are those of its result."""
    constants = {"batch_size": [BATCH], "num_heads": [HEADS], "seq_len": [LENGTH], "head_dim": [WIDTH]}
    constants |= {f"{prefix}_{column}_stride": [1] for prefix, _, column in arrays.values()}
    constants |= ({"scale": [SCALE]} if scaled else {}) | (extra or {})

    def grid(BLOCK_SIZE_M, BLOCK_SIZE_N):
        return BATCH * HEADS, gm.cdiv(rows, BLOCK_SIZE_M), gm.cdiv(columns, BLOCK_SIZE_N)

    signature = strides(**arrays) | ({"mask_ptr": gm.ptr[gm.f32]} if extra else {})
    return case(
        "fused_neighborhood_attention", f"_fused_neighborhood_attention_{kernel}_kernel", signature=signature,
        constants=constants | blocks(32, 16, 16), num_warps=4, num_stages=2, grid=grid, ulps=8,
    )  # fmt: skip


def is_near(dilation):
    apart = np.arange(LENGTH)[None, :] - np.arange(LENGTH)[:, None]
    return (abs(apart) <= KERNEL_SIZE // 2 * dilation) & (apart % dilation == 0)


@case(
    "fused_neighborhood_attention", "_neighborhood_mask_kernel", dtypes=[gm.f32], grid=LENGTH, num_warps=1,
    signature={"mask_ptr": gm.ptr[D]},
    constants={"seq_len": [LENGTH], "kernel_size": [KERNEL_SIZE], "dilation": [1, 3], "BLOCK_SIZE": [64]},
)  # fmt: skip
def _(draw, constants):
    return {"mask_ptr": draw.empty(LENGTH, LENGTH)}, {"mask_ptr": is_near(constants["dilation"]).astype(float)}


def states(draw):
    return draw.normal(BATCH, HEADS, LENGTH, WIDTH)


def scores(draw):
    return draw.normal(BATCH, HEADS, LENGTH, LENGTH, scale=0.2)


def turned(x):
    return wide(x).swapaxes(-1, -2)


SCORES, STATES = ("seq", "seq2"), ("seq", "dim")


@attention(
    "qk", LENGTH, LENGTH, scaled=True, extra={"kernel_size": [KERNEL_SIZE], "dilation": [2]},
    Q_ptr=("q", *STATES), K_ptr=("k", *STATES), QK_ptr=("qk", *SCORES),
)  # fmt: skip
def _(draw, constants):
    q, k, near = states(draw), states(draw), is_near(2)
    arguments = {"Q_ptr": q, "K_ptr": k, "QK_ptr": scores(draw), "mask_ptr": near.astype(np.float32)}
    return arguments, {"QK_ptr": np.where(near, wide(q) @ turned(k) * SCALE, -np.inf)}


@attention("av", LENGTH, WIDTH, Attn_ptr=("attn", *SCORES), V_ptr=("v", *STATES), Out_ptr=("out", *STATES))
def _(draw, constants):
    attn, v = scores(draw), states(draw)
    return {"Attn_ptr": attn, "V_ptr": v, "Out_ptr": draw.empty(*v.shape)}, {"Out_ptr": wide(attn) @ wide(v)}


@attention(
    "grad_qk", LENGTH, WIDTH, scaled=True,
    grad_attn_ptr=("grad_attn", *SCORES), K_ptr=("k", *STATES), grad_Q_ptr=("grad_q", *STATES),
)  # fmt: skip
def _(draw, constants):
    up, k = scores(draw), states(draw)
    arguments = {"grad_attn_ptr": up, "K_ptr": k, "grad_Q_ptr": draw.empty(*k.shape)}
    return arguments, {"grad_Q_ptr": wide(up) @ wide(k) * SCALE}


@attention(
    "grad_k", LENGTH, WIDTH, scaled=True,
    grad_attn_ptr=("grad_attn", *SCORES), Q_ptr=("q", *STATES), grad_K_ptr=("grad_k", *STATES),
)  # fmt: skip
def _(draw, constants):
    up, q = scores(draw), states(draw)
    arguments = {"grad_attn_ptr": up, "Q_ptr": q, "grad_K_ptr": draw.empty(*q.shape)}
    return arguments, {"grad_K_ptr": turned(up) @ wide(q) * SCALE}


@attention(
    "grad_v", LENGTH, WIDTH,
    Attn_ptr=("attn", *SCORES), grad_output_ptr=("grad_out", *STATES), grad_V_ptr=("grad_v", *STATES),
)  # fmt: skip
def _(draw, constants):
    attn, up = scores(draw), states(draw)
    arguments = {"Attn_ptr": attn, "grad_output_ptr": up, "grad_V_ptr": draw.empty(*up.shape)}
    return arguments, {"grad_V_ptr": turned(attn) @ wide(up)}


@attention(
    "grad_attn", LENGTH, LENGTH,
    grad_output_ptr=("grad_out", *STATES), V_ptr=("v", *STATES), grad_attn_ptr=("grad_attn", *SCORES),
)  # fmt: skip
def _(draw, constants):
    up, v = states(draw), states(draw)
    arguments = {"grad_output_ptr": up, "V_ptr": v, "grad_attn_ptr": scores(draw)}
    return arguments, {"grad_attn_ptr": wide(up) @ turned(v)}
