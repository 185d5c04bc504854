"""The 8-bit products of unsloth, whose operands have a scale for each block: declarations, arguments and results."""

from __future__ import annotations

import numpy as np

import gristmill as gm
from gristmill.dtypes import dt_numpy
from published_cases import D, wide
from unsloth_cases import CASES

M, N, K, BLOCK = 37, 64, 96, 32
F8 = dt_numpy(gm.f8e4m3)
SCALES = {
    "As": gm.ptr[gm.f32], "Bs": gm.ptr[gm.f32], "M": gm.i32, "N": gm.i32, "K": gm.i32,
    "stride_As_m": gm.stride["As", 0], "stride_Bs_n": gm.stride["Bs", 0],
}  # fmt: skip
BLOCKS = {"BLOCK_SIZE_M": [16], "BLOCK_SIZE_N": [BLOCK], "BLOCK_SIZE_K": [BLOCK], "GROUP_SIZE_M": [2]}
ONES = {"stride_As_k": [1], "stride_Bs_k": [1]}


def product(kernel, signature, **constants):
    return CASES.case(
        "fp8", kernel, signature=signature | SCALES, constants=BLOCKS | ONES | constants, num_warps=4, num_stages=3,
        grid=lambda BLOCK_SIZE_M, BLOCK_SIZE_N: gm.cdiv(M, BLOCK_SIZE_M) * gm.cdiv(N, BLOCK_SIZE_N),
    )  # fmt: skip


def spread(scales, rows, columns):
    """Repeat a scale for each of the `rows` by `columns` numbers that share it."""
    return np.kron(wide(scales), np.ones((rows, columns)))


def scaled(draw):
    """Numbers of 8 bits with their scales, and the product."""
    a, b = draw.normal(M, K, dtype=F8), draw.normal(N, K, dtype=F8)
    of_a = np.abs(draw.normal(M, K // BLOCK, dtype=np.float32))
    of_b = np.abs(draw.normal(N // BLOCK, K // BLOCK, dtype=np.float32))
    found = (wide(a) * spread(of_a, 1, BLOCK)) @ (wide(b) * spread(of_b, BLOCK, BLOCK)).T
    return {"As": of_a, "Bs": of_b, "M": M, "N": N, "K": K}, a, b, found


@product(
    "_w8a8_block_fp8_matmul_tma",
    {
        "a_desc": gm.descriptor[gm.f8e4m3, "BLOCK_SIZE_M", "BLOCK_SIZE_K"],
        "b_desc": gm.descriptor[gm.f8e4m3, "BLOCK_SIZE_N", "BLOCK_SIZE_K"],
        "c_desc": gm.descriptor[D, "BLOCK_SIZE_M", "BLOCK_SIZE_N"],
    },
    OUT_DTYPE=D, NUM_STAGES=[3],
)  # fmt: skip
def _(draw, constants):
    scales, a, b, found = scaled(draw)
    return {"a_desc": a, "b_desc": b, "c_desc": draw.empty(M, N), **scales}, {"c_desc": found}


@product(
    "_w8a8_block_fp8_matmul",
    {
        "A": gm.ptr[gm.f8e4m3], "B": gm.ptr[gm.f8e4m3], "C": gm.ptr[D], "group_n": gm.i32, "group_k": gm.i32,
        "stride_am": gm.stride["A", 0], "stride_bn": gm.stride["B", 0], "stride_cm": gm.stride["C", 0],
    },
    stride_ak=[1], stride_bk=[1], stride_cn=[1], LONG_INDEXING=[False, True],
)  # fmt: skip
def _(draw, constants):
    scales, a, b, found = scaled(draw)
    return {"A": a, "B": b, "C": draw.empty(M, N), "group_n": BLOCK, "group_k": BLOCK, **scales}, {"C": found}


ROWS = 7


@CASES.case(
    "fp8", "_w8a8_block_fp8_small_m", num_warps=4, num_stages=2, ulps=8,
    signature={
        "X": gm.ptr[D], "B": gm.ptr[gm.f8e4m3], "C": gm.ptr[D], "Bs": gm.ptr[gm.f32], "P": gm.ptr[gm.f32],
        "L": gm.ptr[gm.i32], **dict.fromkeys("MNK", gm.i32), "stride_xm": gm.stride["X", 0],
        "stride_bn": gm.stride["B", 0], "stride_cm": gm.stride["C", 0], "stride_Bs_n": gm.stride["Bs", 0],
        "KB_PER_SPLIT": gm.i32,
    },
    constants={
        "stride_Bs_k": [1], "GROUP_N": [BLOCK], "BLOCK_SIZE_M": [16], "BLOCK_SIZE_N": [16], "BLOCK_SIZE_K": [BLOCK],
        "SPLIT_K": [1, 2],
    },
    grid=lambda BLOCK_SIZE_N, SPLIT_K: (gm.cdiv(N, BLOCK_SIZE_N), SPLIT_K),
)  # fmt: skip
def _(draw, constants):
    scales, _, b, _ = scaled(draw)
    x, splits = draw.normal(ROWS, K), constants["SPLIT_K"]
    blocks = x.astype(np.float32).reshape(ROWS, K // BLOCK, BLOCK)
    of_x = (np.abs(blocks).max(-1, keepdims=True) / np.float32(448)).astype(np.float32)
    rounded = (blocks / of_x).astype(F8)
    found = (wide(rounded) * of_x).reshape(ROWS, K) @ (wide(b) * spread(scales["Bs"], BLOCK, BLOCK)).T
    arguments = {"X": x, "B": b, "C": draw.empty(ROWS, N), "Bs": scales["Bs"], "M": ROWS, "N": N, "K": K}
    arguments |= {"P": draw.empty(splits, ROWS, N, dtype=np.float32), "L": np.zeros(N // 16, np.int32)}
    return arguments | {"KB_PER_SPLIT": -(-K // BLOCK // splits)}, {"C": found}


@CASES.case(
    "fp8", "_fp8_rowwise_gemv_rows_kernel", num_warps=4, num_stages=2,
    signature={
        "x_ptr": gm.ptr[D], "w_ptr": gm.ptr[gm.f8e4m3], "s_ptr": gm.ptr[gm.f32], "y_ptr": gm.ptr[D],
        "p_ptr": gm.ptr[gm.f32], **dict.fromkeys("MNK", gm.i32), "stride_wn": gm.stride["w_ptr", 0],
    },
    constants={"BLOCK_M": [16], "BLOCK_N": [32], "BLOCK_K": [32], "SPLIT_K": [1, 2], "LONG_INDEXING": [True]},
    grid=lambda BLOCK_N, SPLIT_K: (gm.cdiv(N, BLOCK_N), SPLIT_K),
)  # fmt: skip
def _(draw, constants):
    x, w, splits = draw.normal(ROWS, K), draw.normal(N, K, dtype=F8), constants["SPLIT_K"]
    scales = draw.normal(N, dtype=np.float32)
    arguments = {"x_ptr": x, "w_ptr": w, "s_ptr": scales, "y_ptr": draw.empty(ROWS, N), "M": ROWS, "N": N, "K": K}
    arguments |= {"p_ptr": draw.empty(splits, ROWS, N, dtype=np.float32)}
    if splits == 1:
        return arguments, {"y_ptr": wide(x) @ wide(w).T * wide(scales)}
    each = -(-K // splits // BLOCK) * BLOCK
    parts = np.stack([wide(x[:, at : at + each]) @ wide(w[:, at : at + each]).T for at in range(0, K, each)])
    return arguments, {"p_ptr": parts}
