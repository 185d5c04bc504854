"""Gradients of attention: fused, with sums that are added in memory, or ordered; and what both take of the output."""

import math

import numpy as np
from attention import CASES as FORWARD
from attention import FIRST, HEADS, LAST, LOG2_E, blocks_of, case, is_laid, limits, np_seen, place_of, seen, together
from attention import cost as forward_cost
from tiles import CUDA, GROUPS, WARPS, next_turn

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, Tolerance, spec, streaming

D = gm.dtype_var("D", [gm.f16, gm.bf16, gm.f32])

# A program sums gradients of a block of keys, or of queries, by steps of so many rows of the others.
LARGE = {"ROWS": 128, "num_warps": 8, "num_stages": 2, "aligned": True, **GROUPS}
MEDIUM = LARGE | {"STEP": 32, **WARPS}  # where warps multiply, each whole rows
HALF = MEDIUM | {"ROWS": 64, "STEP": 16}
GENERAL = {"num_warps": 8, "num_stages": 1, "narrow": False, **CUDA}
ON_CPU = {"ROWS": 64, "STEP": 32, "narrow": False, "device": "cpu"}
# Rows and steps of those for all calls, by the bytes of a head's row: sums and addresses just stay in registers.
TILES = {64: (64, 32), 128: (64, 32), 256: (32, 32), 512: (16, 16)}
TILES_IN_ORDER = {128: (64, 16), 256: (16, 32), 512: (16, 16)}


def configurations(large, tiles):
    """Of rows and steps where warpgroups multiply, of others for aligned calls, for all calls, and for CPUs."""
    chosen = [LARGE | {"ROWS": rows, "STEP": step} for rows, step in large]
    chosen += [MEDIUM, HALF, *(GENERAL | {"ROWS": rows, "STEP": step} for rows, step in dict.fromkeys(tiles.values()))]
    return [gm.Config(**tile) for tile in (*chosen, ON_CPU)]


def fits(D, HEAD, ROWS, STEP, num_stages=None):
    """Wide elements and wide heads have the tile for all calls; the steps of narrow heads are longer."""
    large = (128, 128) if HEAD <= 64 else (128, 64)
    return suits_head(D, HEAD, (ROWS, STEP), num_stages, large, TILES)


def fits_in_order(D, HEAD, ROWS, STEP, num_stages=None):
    """As `fits`: products of both loops take more registers."""
    large = (128, 64) if HEAD <= 64 else (64, 64)
    return suits_head(D, HEAD, (ROWS, STEP), num_stages, large, TILES_IN_ORDER)


def suits_head(D, HEAD, tile, stages, large, tiles):
    """Whether a tile is in use; CPUs have one for all heads."""
    if stages == 2:
        medium = (128, 32) if HEAD <= 64 else (64, 16)
        return D.itemsize == 2 and HEAD <= 128 and tile in (large, medium)
    size = D.itemsize * HEAD
    return size in tiles and (stages is None or tile == tiles[size])


def is_fastest(keys, ROWS):
    """Whether a block of keys is full enough."""
    return (ROWS <= 64) | (keys >= 64)


def programs(batch, groups, keys, ROWS):
    """The grid: programs go from block to block of keys, as many as the device runs at once."""
    return gm.minimum(batch * groups * gm.cdiv(keys, ROWS), gm.sm_count)


def programs_in_order(batch, heads, queries, groups, keys, ROWS):
    """As `programs`, for all blocks of keys and then all of queries."""
    return gm.minimum(batch * (groups * gm.cdiv(keys, ROWS) + heads * gm.cdiv(queries, ROWS)), gm.sm_count)


def suits(
    batch, q_size, heads, queries, q_width, q_column, k_size, groups, keys, k_width, k_column, v_size, v_groups,
    v_keys, v_width, v_column, dout_size, dout_heads, dout_queries, dout_width, dout_column, dq_size, dq_heads,
    dq_queries, dq_width, dq_column, dk_size, dk_groups, dk_keys, dk_width, dk_column, dv_size, dv_groups,
    dv_keys, dv_width, dv_column, lse_size, delta_size, HEAD,
):  # fmt: skip
    """Whether shapes go together, and elements of a head are side by side."""
    of_queries, of_keys = (heads, queries, HEAD), (groups, keys, HEAD)
    is_right = (
        is_laid(q_size, (heads, queries, q_width), q_column, batch, of_queries)
        & is_laid(k_size, (groups, keys, k_width), k_column, batch, of_keys)
        & is_laid(v_size, (v_groups, v_keys, v_width), v_column, batch, of_keys)
        & is_laid(dout_size, (dout_heads, dout_queries, dout_width), dout_column, batch, of_queries)
        & is_laid(dq_size, (dq_heads, dq_queries, dq_width), dq_column, batch, of_queries)
        & is_laid(dk_size, (dk_groups, dk_keys, dk_width), dk_column, batch, of_keys)
        & is_laid(dv_size, (dv_groups, dv_keys, dv_width), dv_column, batch, of_keys)
    )
    is_shared = (heads % gm.maximum(groups, 1) == 0) & ((groups > 0) | (heads == 0))
    return is_right & is_shared & (lse_size * HEAD == q_size) & (delta_size == lse_size)


def suits_delta(
    batch, heads, queries, width, out_size, out_column, dout_size, dout_heads, dout_queries, dout_width, dout_column,
    delta_size, HEAD,
):  # fmt: skip
    """As `suits`."""
    wanted = (heads, queries, HEAD)
    is_right = is_laid(out_size, (heads, queries, width), out_column, batch, wanted)
    is_right &= is_laid(dout_size, (dout_heads, dout_queries, dout_width), dout_column, batch, wanted)
    return is_right & (delta_size * HEAD == out_size)


@gm.kernel(
    HEAD=HEADS,
    ROWS=[8, 32],
    where=lambda HEAD, ROWS: (ROWS == 8) == (HEAD == 256),
    grid=lambda batch, heads, queries, ROWS: batch * heads * gm.cdiv(queries, ROWS),
    pick=suits_delta,
)
def attention_delta(
    out: gm.ptr[D],
    dout: gm.ptr[D],
    delta: gm.ptr[gm.f32],
    batch: gm.shape["out", 0],
    heads: gm.shape["out", 1],
    queries: gm.shape["out", 2],
    width: gm.shape["out", 3],
    out_size: gm.size["out"],
    out_batch: gm.stride["out", 0],
    out_head: gm.stride["out", 1],
    out_row: gm.stride["out", 2],
    out_column: gm.stride["out", 3],
    dout_size: gm.size["dout"],
    dout_heads: gm.shape["dout", 1],
    dout_queries: gm.shape["dout", 2],
    dout_width: gm.shape["dout", 3],
    dout_batch: gm.stride["dout", 0],
    dout_head: gm.stride["dout", 1],
    dout_row: gm.stride["dout", 2],
    dout_column: gm.stride["dout", 3],
    delta_size: gm.size["delta"],
    HEAD: gm.constexpr,
    ROWS: gm.constexpr,
):
    """delta = the sum over a head's elements of out * dout, which gradients of attention take from those of weights.

    The shapes are [batch, heads, queries, HEAD] of out and dout, laid as for `attention_forward`, and contiguous
    [batch, heads, queries] of delta. Sums are f32.
    """
    height = tl.cdiv(queries, ROWS)
    head, row = tl.program_id(0) // height, tl.program_id(0) % height * ROWS
    i, j = head // heads, head % heads
    rows, columns = row + tl.arange(0, ROWS)[:, None], tl.arange(0, HEAD)[None, :]
    x = tl.load(out + i * out_batch + j * out_head + rows * out_row + columns, mask=rows < queries)
    y = tl.load(dout + i * dout_batch + j * dout_head + rows * dout_row + columns, mask=rows < queries)
    sums = tl.sum(x.to(tl.float32) * y.to(tl.float32), 1)
    lines = row + tl.arange(0, ROWS)
    tl.store(delta + head * queries + lines, sums, mask=lines < queries)


@gm.kernel(
    configs=configurations([(128, 64), (128, 128)], TILES),
    HEAD=HEADS,
    where=fits,
    grid=programs,
    pick=suits,
    prefer=is_fastest,
)
def attention_backward(
    q: gm.ptr[D], k: gm.ptr[D], v: gm.ptr[D], dout: gm.ptr[D], lse: gm.ptr[gm.f32], delta: gm.ptr[gm.f32],
    dq: gm.ptr[gm.f32], dk: gm.ptr[D], dv: gm.ptr[D], scale: gm.f32, causal: gm.i32 = 0, window: gm.i32 = 0,
    q_size: gm.size["q"] = None, batch: gm.shape["q", 0] = None, heads: gm.shape["q", 1] = None,
    queries: gm.shape["q", 2] = None, q_width: gm.shape["q", 3] = None, q_batch: gm.stride["q", 0] = None,
    q_head: gm.stride["q", 1] = None, q_row: gm.stride["q", 2] = None, q_column: gm.stride["q", 3] = None,
    k_size: gm.size["k"] = None, groups: gm.shape["k", 1] = None, keys: gm.shape["k", 2] = None,
    k_width: gm.shape["k", 3] = None, k_batch: gm.stride["k", 0] = None, k_head: gm.stride["k", 1] = None,
    k_row: gm.stride["k", 2] = None, k_column: gm.stride["k", 3] = None, v_size: gm.size["v"] = None,
    v_groups: gm.shape["v", 1] = None, v_keys: gm.shape["v", 2] = None, v_width: gm.shape["v", 3] = None,
    v_batch: gm.stride["v", 0] = None, v_head: gm.stride["v", 1] = None, v_row: gm.stride["v", 2] = None,
    v_column: gm.stride["v", 3] = None, dout_size: gm.size["dout"] = None, dout_heads: gm.shape["dout", 1] = None,
    dout_queries: gm.shape["dout", 2] = None, dout_width: gm.shape["dout", 3] = None,
    dout_batch: gm.stride["dout", 0] = None, dout_head: gm.stride["dout", 1] = None,
    dout_row: gm.stride["dout", 2] = None, dout_column: gm.stride["dout", 3] = None, dq_size: gm.size["dq"] = None,
    dq_heads: gm.shape["dq", 1] = None, dq_queries: gm.shape["dq", 2] = None, dq_width: gm.shape["dq", 3] = None,
    dq_batch: gm.stride["dq", 0] = None, dq_head: gm.stride["dq", 1] = None, dq_row: gm.stride["dq", 2] = None,
    dq_column: gm.stride["dq", 3] = None, dk_size: gm.size["dk"] = None, dk_groups: gm.shape["dk", 1] = None,
    dk_keys: gm.shape["dk", 2] = None, dk_width: gm.shape["dk", 3] = None, dk_batch: gm.stride["dk", 0] = None,
    dk_head: gm.stride["dk", 1] = None, dk_row: gm.stride["dk", 2] = None, dk_column: gm.stride["dk", 3] = None,
    dv_size: gm.size["dv"] = None, dv_groups: gm.shape["dv", 1] = None, dv_keys: gm.shape["dv", 2] = None,
    dv_width: gm.shape["dv", 3] = None, dv_batch: gm.stride["dv", 0] = None, dv_head: gm.stride["dv", 1] = None,
    dv_row: gm.stride["dv", 2] = None, dv_column: gm.stride["dv", 3] = None,
    lse_size: gm.size["lse"] = None, delta_size: gm.size["delta"] = None, HEAD: gm.constexpr = None,
    ROWS: gm.constexpr = None, STEP: gm.constexpr = None,
):  # fmt: skip
    """dq, dk and dv, the gradients of `attention_forward`: dq is added to, so that the caller sets it to zeros before.

    The shapes are [batch, heads, queries, HEAD] of q, dout and dq, [batch, groups, keys, HEAD] of k, v, dk and dv, laid
    as for `attention_forward`, whose scalars these are, too; and contiguous [batch, heads, queries] of lse, which it
    gives, and of delta, which `attention_delta` does. dk and dv are sums over the heads that share keys and values.

    dq is f32, and programs add to it in an order that is not told: its last bits differ from run to run. Where they
    must not there is `attention_backward_ordered`. Sums are f32; weights and their gradients are rounded to D.
    """
    shift = tl.where(causal == 2, keys - queries, 0)
    q_steps = blocks_of(q, batch, heads, queries, q_batch, q_head, q_row, STEP, HEAD)
    dout_steps = blocks_of(dout, batch, heads, queries, dout_batch, dout_head, dout_row, STEP, HEAD)
    k_blocks = blocks_of(k, batch, groups, keys, k_batch, k_head, k_row, ROWS, HEAD)
    v_blocks = blocks_of(v, batch, groups, keys, v_batch, v_head, v_row, ROWS, HEAD)
    dq_steps = blocks_of(dq, batch, heads, queries, dq_batch, dq_head, dq_row, STEP, HEAD)
    dk_blocks = blocks_of(dk, batch, groups, keys, dk_batch, dk_head, dk_row, ROWS, HEAD)
    dv_blocks = blocks_of(dv, batch, groups, keys, dv_batch, dv_head, dv_row, ROWS, HEAD)
    gradients_of_keys(
        q_steps, dout_steps, k_blocks, v_blocks, dq_steps, dk_blocks, dv_blocks, lse, delta, scale, batch, heads,
        groups, queries, keys, shift, causal, window, ROWS, STEP, HEAD, D, True
    )  # fmt: skip


@gm.kernel(
    configs=configurations([(128, 64), (64, 64)], TILES_IN_ORDER),
    HEAD=HEADS[1:3],
    where=fits_in_order,
    grid=programs_in_order,
    pick=suits,
    prefer=is_fastest,
)
def attention_backward_ordered(
    q: gm.ptr[D], k: gm.ptr[D], v: gm.ptr[D], dout: gm.ptr[D], lse: gm.ptr[gm.f32], delta: gm.ptr[gm.f32],
    dq: gm.ptr[D], dk: gm.ptr[D], dv: gm.ptr[D], scale: gm.f32, causal: gm.i32 = 0, window: gm.i32 = 0,
    q_size: gm.size["q"] = None, batch: gm.shape["q", 0] = None, heads: gm.shape["q", 1] = None,
    queries: gm.shape["q", 2] = None, q_width: gm.shape["q", 3] = None, q_batch: gm.stride["q", 0] = None,
    q_head: gm.stride["q", 1] = None, q_row: gm.stride["q", 2] = None, q_column: gm.stride["q", 3] = None,
    k_size: gm.size["k"] = None, groups: gm.shape["k", 1] = None, keys: gm.shape["k", 2] = None,
    k_width: gm.shape["k", 3] = None, k_batch: gm.stride["k", 0] = None, k_head: gm.stride["k", 1] = None,
    k_row: gm.stride["k", 2] = None, k_column: gm.stride["k", 3] = None, v_size: gm.size["v"] = None,
    v_groups: gm.shape["v", 1] = None, v_keys: gm.shape["v", 2] = None, v_width: gm.shape["v", 3] = None,
    v_batch: gm.stride["v", 0] = None, v_head: gm.stride["v", 1] = None, v_row: gm.stride["v", 2] = None,
    v_column: gm.stride["v", 3] = None, dout_size: gm.size["dout"] = None, dout_heads: gm.shape["dout", 1] = None,
    dout_queries: gm.shape["dout", 2] = None, dout_width: gm.shape["dout", 3] = None,
    dout_batch: gm.stride["dout", 0] = None, dout_head: gm.stride["dout", 1] = None,
    dout_row: gm.stride["dout", 2] = None, dout_column: gm.stride["dout", 3] = None, dq_size: gm.size["dq"] = None,
    dq_heads: gm.shape["dq", 1] = None, dq_queries: gm.shape["dq", 2] = None, dq_width: gm.shape["dq", 3] = None,
    dq_batch: gm.stride["dq", 0] = None, dq_head: gm.stride["dq", 1] = None, dq_row: gm.stride["dq", 2] = None,
    dq_column: gm.stride["dq", 3] = None, dk_size: gm.size["dk"] = None, dk_groups: gm.shape["dk", 1] = None,
    dk_keys: gm.shape["dk", 2] = None, dk_width: gm.shape["dk", 3] = None, dk_batch: gm.stride["dk", 0] = None,
    dk_head: gm.stride["dk", 1] = None, dk_row: gm.stride["dk", 2] = None, dk_column: gm.stride["dk", 3] = None,
    dv_size: gm.size["dv"] = None, dv_groups: gm.shape["dv", 1] = None, dv_keys: gm.shape["dv", 2] = None,
    dv_width: gm.shape["dv", 3] = None, dv_batch: gm.stride["dv", 0] = None, dv_head: gm.stride["dv", 1] = None,
    dv_row: gm.stride["dv", 2] = None, dv_column: gm.stride["dv", 3] = None,
    lse_size: gm.size["lse"] = None, delta_size: gm.size["delta"] = None, HEAD: gm.constexpr = None,
    ROWS: gm.constexpr = None, STEP: gm.constexpr = None,
):  # fmt: skip
    """dq, dk and dv, the gradients of `attention_forward`: the same bits on every run.

    The shapes are those of `attention_backward`. dq is of dtype D, and written: weights are computed twice, and nothing
    is added in memory. One launch does first the sums over queries, then those over keys: no output may be an input.
    """
    shift = tl.where(causal == 2, keys - queries, 0)
    q_steps = blocks_of(q, batch, heads, queries, q_batch, q_head, q_row, STEP, HEAD)
    dout_steps = blocks_of(dout, batch, heads, queries, dout_batch, dout_head, dout_row, STEP, HEAD)
    k_blocks = blocks_of(k, batch, groups, keys, k_batch, k_head, k_row, ROWS, HEAD)
    v_blocks = blocks_of(v, batch, groups, keys, v_batch, v_head, v_row, ROWS, HEAD)
    dq_steps = blocks_of(dq, batch, heads, queries, dq_batch, dq_head, dq_row, STEP, HEAD)
    dk_blocks = blocks_of(dk, batch, groups, keys, dk_batch, dk_head, dk_row, ROWS, HEAD)
    dv_blocks = blocks_of(dv, batch, groups, keys, dv_batch, dv_head, dv_row, ROWS, HEAD)
    gradients_of_keys(
        q_steps, dout_steps, k_blocks, v_blocks, dq_steps, dk_blocks, dv_blocks, lse, delta, scale, batch, heads,
        groups, queries, keys, shift, causal, window, ROWS, STEP, HEAD, D, False
    )  # fmt: skip
    q_blocks = blocks_of(q, batch, heads, queries, q_batch, q_head, q_row, ROWS, HEAD)
    dout_blocks = blocks_of(dout, batch, heads, queries, dout_batch, dout_head, dout_row, ROWS, HEAD)
    k_steps = blocks_of(k, batch, groups, keys, k_batch, k_head, k_row, STEP, HEAD)
    v_steps = blocks_of(v, batch, groups, keys, v_batch, v_head, v_row, STEP, HEAD)
    dq_blocks = blocks_of(dq, batch, heads, queries, dq_batch, dq_head, dq_row, ROWS, HEAD)
    gradients_of_queries(
        q_blocks, dout_blocks, k_steps, v_steps, dq_blocks, lse, delta, scale, batch * groups * tl.cdiv(keys, ROWS),
        batch, heads, groups, queries, keys, shift, causal, window, ROWS, STEP, HEAD, D
    )  # fmt: skip


def gradients_of_keys(
    q_steps, dout_steps, k_blocks, v_blocks, dq_steps, dk_blocks, dv_blocks, lse, delta, scale, batch, heads, groups,
    queries, keys, shift, causal, window, ROWS, STEP, HEAD, dtype, IS_ADDED
):  # fmt: skip
    """Store dk and dv; and add to dq what follows from the same weights, if it `IS_ADDED`."""
    share = heads // tl.maximum(groups, 1)
    height = tl.cdiv(keys, ROWS)
    near = together(batch * groups, share * queries * HEAD * dtype.itemsize * 2, causal)
    for tile in range(tl.program_id(0), batch * groups * height, tl.num_programs(0)):
        pair, row = place_of(tile, batch * groups, height, near, 0)
        row *= ROWS
        i, group = pair // groups, pair % groups
        low, high = seeing(row, ROWS, STEP, queries, keys, shift, causal, window)
        x = k_blocks.load([i, group, row, 0]).reshape(ROWS, HEAD)
        y = v_blocks.load([i, group, row, 0]).reshape(ROWS, HEAD)
        k_sums = tl.zeros((ROWS, HEAD), tl.float32)
        v_sums = tl.zeros((ROWS, HEAD), tl.float32)
        for member in range(share):
            j, line = group * share + member, (pair * share + member) * queries
            for start in range(low, high, STEP):
                rows = start + tl.arange(0, STEP)
                a = q_steps.load([i, j, start, 0]).reshape(STEP, HEAD)
                b = dout_steps.load([i, j, start, 0]).reshape(STEP, HEAD)
                keep = seen_by(row, rows, ROWS, queries, keys, shift, causal, window)
                top, mean = of_rows(lse + line, delta + line, rows, queries)
                ds, k_sums, v_sums = added(x, y, a, b, keep, top, mean, scale, k_sums, v_sums, dtype)
                if IS_ADDED:
                    sums = scale * tl.dot(ds.T, x)
                    dq_steps.atomic_add([i, j, start, 0], sums.reshape(1, 1, STEP, HEAD))
        dk_blocks.store([i, group, row, 0], (k_sums * scale).to(dtype).reshape(1, 1, ROWS, HEAD))
        dv_blocks.store([i, group, row, 0], v_sums.to(dtype).reshape(1, 1, ROWS, HEAD))


def gradients_of_queries(
    q_blocks, dout_blocks, k_steps, v_steps, dq_blocks, lse, delta, scale, before, batch, heads, groups, queries, keys,
    shift, causal, window, ROWS, STEP, HEAD, dtype
):  # fmt: skip
    """Store dq: tiles that programs take in turn after `before` others."""
    height = tl.cdiv(queries, ROWS)
    near = together(batch * heads, keys * HEAD * dtype.itemsize * 2, causal)
    for tile in range(next_turn(before), batch * heads * height, tl.num_programs(0)):
        head, row = place_of(tile, batch * heads, height, near, causal)
        row *= ROWS
        i, j = head // heads, head % heads
        group = j // (heads // tl.maximum(groups, 1))
        rows = row + tl.arange(0, ROWS)
        low, high = seen(row, ROWS, STEP, keys, shift, causal, window)
        first, last = limits(rows, keys, shift, causal, window)
        x = q_blocks.load([i, j, row, 0]).reshape(ROWS, HEAD)
        y = dout_blocks.load([i, j, row, 0]).reshape(ROWS, HEAD)
        top, mean = of_rows(lse + head * queries, delta + head * queries, rows, queries)
        sums = tl.zeros((ROWS, HEAD), tl.float32)
        for start in range(low, high, STEP):
            columns = start + tl.arange(0, STEP)
            a = k_steps.load([i, group, start, 0]).reshape(STEP, HEAD)
            b = v_steps.load([i, group, start, 0]).reshape(STEP, HEAD)
            keep = (columns[None, :] >= first[:, None]) & (columns[None, :] < last[:, None])
            p = weights(x, a, keep, top[:, None], scale)
            ds = p * (tl.dot(y, b.T) - mean[:, None])
            sums = tl.dot(ds.to(dtype), a, sums)
        dq_blocks.store([i, j, row, 0], (sums * scale).to(dtype).reshape(1, 1, ROWS, HEAD))


def seeing(row, ROWS, STEP, queries, keys, shift, causal, window):
    """From where to where queries see some key of a block of them; the first is that of a step."""
    last = tl.minimum(row + ROWS, keys) - 1
    low = tl.where(causal > 0, row - shift, tl.where(window > 0, row - shift - window + 1, 0))
    high = tl.where(window > 0, last - shift + window, queries)
    return tl.maximum(low, 0) // STEP * STEP, tl.minimum(high, queries)


def seen_by(row, rows, ROWS, queries, keys, shift, causal, window):
    """Which keys of a block each query sees; keys go down, queries across."""
    columns = row + tl.arange(0, ROWS)[:, None]
    first, last = limits(rows, keys, shift, causal, window)
    return (columns >= first[None, :]) & (columns < last[None, :]) & (rows < queries)[None, :]


def of_rows(lse, delta, rows, queries):
    """What queries take from their weights' exponents, and what from their gradients; 0 behind the last one."""
    top = tl.load(lse + rows, mask=rows < queries, other=0.0) * LOG2_E
    return top, tl.load(delta + rows, mask=rows < queries, other=0.0)


def added(x, y, a, b, keep, top, mean, scale, k_sums, v_sums, dtype):
    """Add a step's queries to the gradients of a block; returns those of weights, of which keys go down, too."""
    p = weights(x, a, keep, top[None, :], scale)
    v_sums = tl.dot(p.to(dtype), b, v_sums)
    ds = (p * (tl.dot(y, b.T) - mean[None, :])).to(dtype)
    return ds, tl.dot(ds, a, k_sums), v_sums


def weights(x, y, keep, top, scale):
    """The weights by which values were summed, of keys and queries either way round; 0 for what is not seen."""
    p = tl.exp2(tl.dot(x, y.T) * (scale * LOG2_E) - top)
    return tl.where(keep, p, 0.0)


# ---- reference and cases -------------------------------------------------------------------------------------------


def reference(q, k, v, dout, lse, delta, scale, causal, window):
    """By the definition, in float64."""
    groups, share = k.shape[1], q.shape[1] // max(1, k.shape[1])
    k, v = (np.repeat(x, share, axis=1) for x in (k, v))
    keep = np.isfinite(lse)[..., None] & np_seen(q.shape[2], k.shape[2], causal, window)
    p = np.exp(np.where(keep, scale * q @ k.swapaxes(2, 3) - lse[..., None], -np.inf))
    ds = scale * p * (dout @ v.swapaxes(2, 3) - delta[..., None])
    dk, dv = ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout
    return ds @ k, *(x.reshape(len(x), groups, share, *x.shape[2:]).sum(2) for x in (dk, dv))


def of_gradients(call):
    """The case of a forward's gradients."""
    shapes = call.shapes
    arrays = {"dout": shapes["q"], "delta": shapes["lse"], "dq": shapes["q"], "dk": shapes["k"], "dv": shapes["v"]}
    names = ("q", "k", "v", "dout", "lse", "delta", "dq", "dk", "dv")
    return Case(call.name, {name: (shapes | arrays)[name] for name in names}, call.use, scalars=call.scalars)


def of_delta(call):
    rows = call.shapes["q"]
    return Case(call.name, {"out": rows, "dout": rows, "delta": rows[:3]}, call.use)


def cost(shapes, itemsize):
    """What is read and written once, and five products instead of the forward's two."""
    size = sum(math.prod(shape) * itemsize(name) for name, shape in shapes.items())
    return Cost(size, forward_cost({name: shapes[name] for name in "qk"}, itemsize).flops * 5 // 2)


ACCURACY = Tolerance(f32=4e-6, half_ulps=1.0, absolute=8e-3)
FORWARD_CASES = [
    case(2, 1, 1, 64),
    case(1, 4, 24, 64, groups=2, keys=40),
    case(1, 1, 70, 64, causal=FIRST),
    case(1, 2, 30, 64, groups=1, keys=77, causal=LAST),
    case(1, 1, 77, 64, keys=30, causal=LAST),
    case(1, 1, 90, 64, causal=FIRST, window=20),
    case(1, 1, 72, 64, window=30),
    case(1, 1, 129, 64, keys=5),
    case(1, 1, 3, 64, keys=0),
    case(1, 1, 0, 64, keys=3),
    case(0, 1, 3, 64),
    *(each for each in FORWARD if each.use != "test"),
]
CASES = [of_gradients(each) for each in FORWARD_CASES]

spec(
    attention_delta,
    reference=lambda out, dout: (out * dout).sum(-1),
    cases=[of_delta(each) for each in FORWARD_CASES],
    cost=streaming(flops=2),
    tolerance=Tolerance(f32=1e-6, absolute=1e-6),
)
spec(attention_backward, reference=reference, cases=CASES, cost=cost, tolerance=ACCURACY, added=["dq"])
spec(attention_backward_ordered, reference=reference, cases=CASES, cost=cost, tolerance=ACCURACY)
