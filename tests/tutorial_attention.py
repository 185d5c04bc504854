"""Attention as public Triton kernels write it: block pointers, descriptors of either side, and gradients."""

from __future__ import annotations

from gristmill.compat import triton
from gristmill.compat.triton import language as tl
from gristmill.compat.triton.tools.tensor_descriptor import TensorDescriptor

MASKED = tl.constexpr(-1.0e6)


@triton.jit
def weighed(x, largest):
    """Powers of two of what products are above the largest so far, what earlier ones fall by, and the largest."""
    new = tl.maximum(largest, tl.max(x, 1))
    return tl.math.exp2(x - new[:, None]), tl.math.exp2(largest - new), new


# ---- block pointers ------------------------------------------------------------------------------------------------


@triton.jit
def over_pointers(
    sums, total, largest, q, K_block, V_block, row, qk_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, rows: tl.constexpr, steps: tl.constexpr,
    N_CTX: tl.constexpr, is_eight_bits: tl.constexpr,
):  # fmt: skip
    """One loop over the keys that branches at the diagonal; what is annotated as a constant need not be one."""
    if CAUSAL:
        first_masked, last = row * BLOCK_M, (row + 1) * BLOCK_M
    else:
        first_masked, last = N_CTX, N_CTX
    K_block = tl.advance(K_block, (0, 0))
    for start in range(0, last, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = tl.load(K_block, boundary_check=(1,), padding_option="zero")
        qk = tl.dot(q, k)
        qk *= qk_scale
        if start + BLOCK_N > first_masked or start + BLOCK_N > N_CTX:
            keep = (start + steps[None, :]) < N_CTX
            if CAUSAL:
                keep = keep & (rows[:, None] >= (start + steps[None, :]))
            qk = tl.where(keep, qk, MASKED)
        p, rate, largest = weighed(qk, largest)
        total = total * rate + tl.sum(p, 1)
        sums = sums * rate[:, None]
        v = tl.load(V_block, boundary_check=(0,), padding_option="zero")
        p = p.to(tl.float8e5) if is_eight_bits else p.to(v.dtype)
        sums = tl.dot(p, v, sums)
        V_block = tl.advance(V_block, (BLOCK_N, 0))
        K_block = tl.advance(K_block, (0, BLOCK_N))
    return sums, total, largest


@triton.autotune(
    [triton.Config({"BLOCK_M": m, "BLOCK_N": 32}, num_stages=s, num_warps=4) for m in (64, 128) for s in (2, 3)],
    key=["N_CTX", "HEAD_DIM"],
)
@triton.jit
def pointers_forward(
    Q, K, V, sm_scale, M, Out, stride_qz, stride_qh, stride_qm, stride_qk, stride_kz, stride_kh, stride_kn, stride_kk,
    stride_vz, stride_vh, stride_vn, stride_vk, stride_oz, stride_oh, stride_om, stride_ok, Z, H, N_CTX,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    tl.static_assert(BLOCK_N <= HEAD_DIM)
    row = tl.program_id(0)
    head = tl.program_id(1)
    offset = (head // H).to(tl.int64) * stride_qz + (head % H).to(tl.int64) * stride_qh
    of_keys = (head // H).to(tl.int64) * stride_kz + (head % H).to(tl.int64) * stride_kh
    Q_block = tl.make_block_ptr(
        base=Q + offset, shape=(N_CTX, HEAD_DIM), strides=(stride_qm, stride_qk), offsets=(row * BLOCK_M, 0),
        block_shape=(BLOCK_M, HEAD_DIM), order=(1, 0),
    )  # fmt: skip
    v_order: tl.constexpr = (0, 1) if V.dtype.element_ty == tl.float8e5 else (1, 0)
    V_block = tl.make_block_ptr(
        base=V + of_keys, shape=(N_CTX, HEAD_DIM), strides=(stride_vn, stride_vk), offsets=(0, 0),
        block_shape=(BLOCK_N, HEAD_DIM), order=v_order,
    )  # fmt: skip
    K_block = tl.make_block_ptr(
        base=K + of_keys, shape=(HEAD_DIM, N_CTX), strides=(stride_kk, stride_kn), offsets=(0, 0),
        block_shape=(HEAD_DIM, BLOCK_N), order=(0, 1),
    )  # fmt: skip
    O_block = tl.make_block_ptr(
        base=Out + offset, shape=(N_CTX, HEAD_DIM), strides=(stride_om, stride_ok), offsets=(row * BLOCK_M, 0),
        block_shape=(BLOCK_M, HEAD_DIM), order=(1, 0),
    )  # fmt: skip
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    steps = tl.arange(0, BLOCK_N)
    largest = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    sums = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    qk_scale = sm_scale
    qk_scale *= 1.44269504
    q = tl.load(Q_block, boundary_check=(0,), padding_option="zero")
    sums, total, largest = over_pointers(
        sums, total, largest, q, K_block, V_block, row, qk_scale, BLOCK_M, BLOCK_N, CAUSAL, rows, steps, N_CTX,
        V.dtype.element_ty == tl.float8e5,
    )  # fmt: skip
    largest += tl.math.log2(total)
    sums = sums / total[:, None]
    tl.store(M + head * N_CTX + rows, largest, mask=rows < N_CTX)
    tl.store(O_block, sums.to(Out.type.element_ty), boundary_check=(0,))


# ---- descriptors ---------------------------------------------------------------------------------------------------


@triton.jit
def described(array, shape, strides, block_shape):
    """A descriptor, which the host has made or which is made here."""
    if isinstance(array, tl.tensor_descriptor):
        return array
    else:
        return tl.make_tensor_descriptor(array, shape, strides, block_shape)


@triton.jit
def over_descriptors(
    sums, total, largest, q, K_desc, V_desc, offset, dtype: tl.constexpr, row, qk_scale, BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr, rows: tl.constexpr, steps: tl.constexpr,
    N_CTX: tl.constexpr, warp_specialize: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """The keys before the diagonal (1), those on it (2), or all (3)."""
    if STAGE == 1:
        lo, hi = 0, row * BLOCK_M
    elif STAGE == 2:
        lo, hi = row * BLOCK_M, (row + 1) * BLOCK_M
        lo = tl.multiple_of(lo, BLOCK_M)
    else:
        lo, hi = 0, N_CTX
    place = offset + lo
    for start in tl.range(lo, hi, BLOCK_N, warp_specialize=warp_specialize):
        start = tl.multiple_of(start, BLOCK_N)
        k = K_desc.load([place, 0]).T
        qk = tl.dot(q, k) * qk_scale
        if STAGE == 2:
            qk = tl.where(rows[:, None] >= (start + steps[None, :]), qk, MASKED)
        p, rate, largest = weighed(qk, largest)
        added = tl.sum(p, 1)
        if HALVES:
            M: tl.constexpr = sums.shape[0]
            N: tl.constexpr = sums.shape[1]
            left, right = sums.reshape([M, 2, N // 2]).permute(0, 2, 1).split()
            left = left * rate[:, None]
            right = right * rate[:, None]
            sums = tl.join(left, right).permute(0, 2, 1).reshape([M, N])
        else:
            sums = sums * rate[:, None]
        v = V_desc.load([place, 0])
        p = p.to(dtype)
        sums = tl.dot(p, v, sums)
        total = total * rate + added
        place += BLOCK_N
    return sums, total, largest


def _set_blocks(nargs):
    if not isinstance(nargs["desc_q"], TensorDescriptor):
        return
    nargs["desc_q"].block_shape = [nargs["BLOCK_M"], nargs["HEAD_DIM"]]


def _fitting(configs, named_args, **kwargs):
    return [c for c in configs if c.kwargs["BLOCK_M"] <= kwargs["N_CTX"]]


@triton.autotune(
    configs=[triton.Config({"BLOCK_M": 64, "BLOCK_N": 32}, num_stages=3, num_warps=4, pre_hook=_set_blocks)],
    key=["N_CTX", "HEAD_DIM", "FP8_OUTPUT", "warp_specialize"], prune_configs_by={"early_config_prune": _fitting},
)  # fmt: skip
@triton.jit
def descriptors_forward(
    sm_scale, M, Z, H, desc_q, desc_k, desc_v, desc_o, N_CTX, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, DTYPE: tl.constexpr, STAGE: tl.constexpr, warp_specialize: tl.constexpr,
    HALVES: tl.constexpr,
):  # fmt: skip
    dtype = DTYPE
    tl.static_assert(BLOCK_N <= HEAD_DIM)
    row = tl.program_id(0)
    head = tl.program_id(1)
    y_dim = Z * H * N_CTX
    desc_q = described(desc_q, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_M, HEAD_DIM])
    desc_k = described(desc_k, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_N, HEAD_DIM])
    desc_v = described(desc_v, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_N, HEAD_DIM])
    desc_o = described(desc_o, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_M, HEAD_DIM])
    offset = (head // H) * (N_CTX * H) + (head % H) * N_CTX
    place = offset + row * BLOCK_M
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    steps = tl.arange(0, BLOCK_N)
    largest = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    sums = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    qk_scale = sm_scale
    qk_scale *= 1.44269504
    q = desc_q.load([place, 0])
    if STAGE & 1:
        sums, total, largest = over_descriptors(
            sums, total, largest, q, desc_k, desc_v, offset, dtype, row, qk_scale, BLOCK_M, HEAD_DIM, BLOCK_N,
            4 - STAGE, rows, steps, N_CTX, warp_specialize, HALVES,
        )  # fmt: skip
    if STAGE & 2:
        sums, total, largest = over_descriptors(
            sums, total, largest, q, desc_k, desc_v, offset, dtype, row, qk_scale, BLOCK_M, HEAD_DIM, BLOCK_N,
            2, rows, steps, N_CTX, warp_specialize, HALVES,
        )  # fmt: skip
    largest += tl.math.log2(total)
    sums = sums / total[:, None]
    tl.store(M + head * N_CTX + rows, largest)
    desc_o.store([place, 0], sums.to(dtype))


# ---- gradients -----------------------------------------------------------------------------------------------------


@triton.jit
def over_rows(
    dk, dv, Q, k, v, DO, M, D, stride_tok, stride_d, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr, start_n, start_m, num_steps, MASK: tl.constexpr,
):  # fmt: skip
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, HEAD_DIM)
    qT_ptrs = Q + offs_m[None, :] * stride_tok + offs_k[:, None] * stride_d
    do_ptrs = DO + offs_m[:, None] * stride_tok + offs_k[None, :] * stride_d
    tl.static_assert(BLOCK_N % BLOCK_M == 0)
    at = start_m
    for _ in range(num_steps):
        qT = tl.load(qT_ptrs)
        offs_m = at + tl.arange(0, BLOCK_M)
        m = tl.load(M + offs_m)
        pT = tl.math.exp2(tl.dot(k, qT) - m[None, :])
        if MASK:
            pT = tl.where(offs_m[None, :] >= offs_n[:, None], pT, 0.0)
        do = tl.load(do_ptrs)
        dv += tl.dot(pT.to(do.dtype), do)
        Di = tl.load(D + offs_m)
        dpT = tl.dot(v, tl.trans(do)).to(tl.float32)
        dsT = (pT * (dpT - Di[None, :])).to(qT.dtype)
        dk += tl.dot(dsT, tl.trans(qT))
        at += BLOCK_M
        qT_ptrs += BLOCK_M * stride_tok
        do_ptrs += BLOCK_M * stride_tok
    return dk, dv


@triton.jit
def over_keys(
    dq, q, K, V, do, m, D, stride_tok, stride_d, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr, start_m, start_n, num_steps, MASK: tl.constexpr,
):  # fmt: skip
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, HEAD_DIM)
    kT_ptrs = K + offs_n[None, :] * stride_tok + offs_k[:, None] * stride_d
    vT_ptrs = V + offs_n[None, :] * stride_tok + offs_k[:, None] * stride_d
    Di = tl.load(D + offs_m)
    at = start_n
    for _ in range(num_steps):
        kT, vT = tl.load(kT_ptrs), tl.load(vT_ptrs)
        p = tl.math.exp2(tl.dot(q, kT) - m)
        if MASK:
            offs_n = at + tl.arange(0, BLOCK_N)
            p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)
        ds = (p * (tl.dot(do, vT).to(tl.float32) - Di[:, None])).to(kT.dtype)
        dq += tl.dot(ds, tl.trans(kT))
        at += BLOCK_N
        kT_ptrs += BLOCK_N * stride_tok
        vT_ptrs += BLOCK_N * stride_tok
    return dq


@triton.jit
def gradient_of_rows(
    Q, K, V, DO, DQ, M, D, stride_tok, stride_d, start_m, N_CTX, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Of one block of rows: first, in blocks of MASKED, the keys on the diagonal, then those before it."""
    LN2: tl.constexpr = 0.6931471824645996
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, HEAD_DIM)
    start_n = 0
    num_steps = N_CTX // BLOCK_N
    q = tl.load(Q + offs_m[:, None] * stride_tok + offs_k[None, :] * stride_d)
    do = tl.load(DO + offs_m[:, None] * stride_tok + offs_k[None, :] * stride_d)
    dq = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    m = tl.load(M + offs_m)
    m = m[:, None]
    if CAUSAL:
        end_n = start_m + BLOCK_M
        num_steps = BLOCK_M // MASKED
        dq = over_keys(
            dq, q, K, V, do, m, D, stride_tok, stride_d, BLOCK_M, MASKED, HEAD_DIM, start_m,
            end_n - num_steps * MASKED, num_steps, MASK=True,
        )  # fmt: skip
        end_n -= num_steps * MASKED
        num_steps = end_n // BLOCK_N
        start_n = end_n - num_steps * BLOCK_N
    dq = over_keys(
        dq, q, K, V, do, m, D, stride_tok, stride_d, BLOCK_M, BLOCK_N, HEAD_DIM, start_m, start_n, num_steps,
        MASK=False,
    )  # fmt: skip
    dq *= LN2
    tl.store(DQ + offs_m[:, None] * stride_tok + offs_k[None, :] * stride_d, dq)


@triton.jit
def backward(
    Q, K, V, sm_scale, DO, DQ, DK, DV, M, D, stride_z, stride_h, stride_tok, stride_d, H, N_CTX,
    BLOCK_M1: tl.constexpr, BLOCK_N1: tl.constexpr, BLOCK_M2: tl.constexpr, BLOCK_N2: tl.constexpr,
    BLK_SLICE_FACTOR: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys, then of one block of rows; keys are multiplied by the scale and log2(e)."""
    head = tl.program_id(2)
    of_head = (head * N_CTX).to(tl.int64)
    adj = (stride_h * (head % H) + stride_z * (head // H)).to(tl.int64)
    Q, K, V, DO = Q + adj, K + adj, V + adj, DO + adj
    DQ += adj
    DK += adj
    DV += adj
    M += of_head
    D += of_head
    offs_k = tl.arange(0, HEAD_DIM)
    start_n = tl.program_id(0) * BLOCK_N1
    start_m = 0
    MASKED: tl.constexpr = BLOCK_M1 // BLK_SLICE_FACTOR
    offs_n = start_n + tl.arange(0, BLOCK_N1)
    dv = tl.zeros([BLOCK_N1, HEAD_DIM], dtype=tl.float32)
    dk = tl.zeros([BLOCK_N1, HEAD_DIM], dtype=tl.float32)
    k = tl.load(K + offs_n[:, None] * stride_tok + offs_k[None, :] * stride_d)
    v = tl.load(V + offs_n[:, None] * stride_tok + offs_k[None, :] * stride_d)
    if CAUSAL:
        start_m = start_n
        num_steps = BLOCK_N1 // MASKED
        dk, dv = over_rows(
            dk, dv, Q, k, v, DO, M, D, stride_tok, stride_d, MASKED, BLOCK_N1, HEAD_DIM, start_n, start_m, num_steps,
            MASK=True,
        )  # fmt: skip
        start_m += num_steps * MASKED
    num_steps = (N_CTX - start_m) // BLOCK_M1
    dk, dv = over_rows(
        dk, dv, Q, k, v, DO, M, D, stride_tok, stride_d, BLOCK_M1, BLOCK_N1, HEAD_DIM, start_n, start_m, num_steps,
        MASK=False,
    )  # fmt: skip
    tl.store(DV + offs_n[:, None] * stride_tok + offs_k[None, :] * stride_d, dv)
    dk *= sm_scale
    tl.store(DK + offs_n[:, None] * stride_tok + offs_k[None, :] * stride_d, dk)
    gradient_of_rows(
        Q, K, V, DO, DQ, M, D, stride_tok, stride_d, tl.program_id(0) * BLOCK_M2, N_CTX, BLOCK_M2, BLOCK_N2,
        BLOCK_N2 // BLK_SLICE_FACTOR, HEAD_DIM, CAUSAL,
    )  # fmt: skip


# ---- sequences one after another -----------------------------------------------------------------------------------


@triton.heuristics({
    "USE_G": lambda args: args["g"] is not None,
    "USE_WINDOW": lambda args: args["W"] is not None,
    "IS_VARLEN": lambda args: args["cu_seqlens"] is not None,
})  # fmt: skip
@triton.jit(do_not_specialize=["T"])
def sequences_forward(
    q, k, v, o, g, lse, scale, cu_seqlens, indices, T, W: tl.constexpr, H: tl.constexpr, HQ: tl.constexpr,
    G: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, USE_G: tl.constexpr, USE_WINDOW: tl.constexpr, IS_VARLEN: tl.constexpr,
):  # fmt: skip
    """Arrays [tokens, heads, elements], of sequences of one length or of those that `cu_seqlens` tells apart."""
    i_v, i_t, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_hq = i_bh // HQ, i_bh % HQ
    i_h = i_hq // G
    if IS_VARLEN:
        i_n, i_t = tl.load(indices + i_t * 2).to(tl.int32), tl.load(indices + i_t * 2 + 1).to(tl.int32)
        bos, eos = tl.load(cu_seqlens + i_n).to(tl.int64), tl.load(cu_seqlens + i_n + 1).to(tl.int64)
        T = (eos - bos).to(tl.int32)
    else:
        i_n = i_b
        bos, eos = (i_n * T).to(tl.int64), (i_n * T + T).to(tl.int64)
    LOG2_E: tl.constexpr = 1.4426950408889634
    p_q = tl.make_block_ptr(q + (bos * HQ + i_hq) * K, (T, K), (HQ * K, 1), (i_t * BT, 0), (BT, BK), (1, 0))
    p_o = tl.make_block_ptr(o + (bos * HQ + i_hq) * V, (T, V), (HQ * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
    p_lse = tl.make_block_ptr(lse + bos * HQ + i_hq, (T,), (HQ,), (i_t * BT,), (BT,), (0,))
    b_q = tl.load(p_q, boundary_check=(0, 1))
    b_o = tl.zeros([BT, BV], dtype=tl.float32)
    b_m = tl.full([BT], float("-inf"), dtype=tl.float32)
    b_acc = tl.zeros([BT], dtype=tl.float32)
    if USE_G:
        p_g = tl.make_block_ptr(g + bos * HQ + i_hq, (T,), (HQ,), (i_t * BT,), (BT,), (0,))
        b_gq = tl.load(p_g, boundary_check=(0,)).to(tl.float32)
    else:
        b_gq = None
    o_q = i_t * BT + tl.arange(0, BT)
    start = tl.maximum((i_t * BT - W + 1) // BS * BS, 0) if USE_WINDOW else 0
    for i_s in range(start, min((i_t + 1) * BT, T), BS):
        p_k = tl.make_block_ptr(k + (bos * H + i_h) * K, (K, T), (1, H * K), (0, i_s), (BK, BS), (0, 1))
        p_v = tl.make_block_ptr(v + (bos * H + i_h) * V, (T, V), (H * V, 1), (i_s, i_v * BV), (BS, BV), (1, 0))
        o_k = i_s + tl.arange(0, BS)
        m_k = o_k < T
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_v = tl.load(p_v, boundary_check=(0, 1))
        b_s = tl.dot(b_q, b_k) * scale * LOG2_E
        if USE_G:
            b_gk = tl.load(g + (bos + o_k) * HQ + i_hq, mask=m_k, other=0).to(tl.float32)
            b_s += b_gq[:, None] - b_gk[None, :]
        m_s = (o_q[:, None] >= o_k[None, :]) & m_k[None, :]
        if USE_WINDOW:
            m_s = m_s & (o_q[:, None] - o_k[None, :] < W)
        b_s = tl.where(m_s, b_s, float("-inf"))
        b_m, b_mp = tl.maximum(b_m, tl.max(b_s, 1)), b_m
        b_mw = tl.where(b_m == float("-inf"), 0.0, b_m)
        b_r = tl.exp2(b_mp - b_mw)
        b_p = tl.exp2(b_s - b_mw[:, None])
        b_acc = b_acc * b_r + tl.sum(b_p, 1)
        b_o = b_o * b_r[:, None] + tl.dot(b_p.to(b_q.dtype), b_v)
        b_mp = b_m
    b_o = b_o / b_acc[:, None]
    b_m += tl.log2(b_acc)
    tl.store(p_o, b_o.to(p_o.dtype.element_ty), boundary_check=(0, 1))
    tl.store(p_lse, b_m.to(p_lse.dtype.element_ty), boundary_check=(0,))
