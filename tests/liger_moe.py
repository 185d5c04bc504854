"""The mixture of experts of liger-kernel: declarations, arguments and results as in liger_cases.

Rows are pairs of a token and one of its experts, sorted by expert; tiles of rows belong to one expert each.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import gristmill as gm
from liger_cases import D, case, silu, wide

FILE = "fused_moe_kernels"
TOKENS, EXPERTS, WIDTH, INNER = 17, 4, 40, 24
TILE = 16
INDEX = gm.ptr[gm.i32]


def routing(draw, each):
    """Route every token to `each` of the experts: all to the first, which has two tiles, and none to the second."""
    others = [draw.rng.permutation(range(2, EXPERTS))[: each - 1] for _ in range(TOKENS)]
    chosen = np.stack([draw.rng.permutation([0, *some]) for some in others]).astype(np.int32)
    order = np.argsort(chosen.ravel(), kind="stable").astype(np.int32)
    counts = np.bincount(chosen.ravel(), minlength=EXPERTS)
    start = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    tiles = [(start[e] + row, e) for e in range(EXPERTS) for row in range(0, counts[e], TILE)]
    reverse = np.empty_like(order)
    reverse[order] = np.arange(len(order))
    rows, experts = np.array(tiles, np.int32).T
    tiles_before = np.concatenate([[0], (-(-counts // TILE)).cumsum()]).astype(np.int32)
    return SimpleNamespace(
        chosen=chosen, order=order, token=order // each, reverse=reverse, start=start, counts=counts.astype(np.int32),
        expert=np.repeat(np.arange(EXPERTS), counts), tile_row=rows.copy(), tile_expert=experts.copy(),
        tiles_before=tiles_before, rows=len(order),
    )  # fmt: skip


# ---- routing -------------------------------------------------------------------------------------------------------

PER_BLOCK = 8


def counts_by_block(route):
    """How many rows of each expert there are in each block of tokens."""
    blocks = range(0, TOKENS, PER_BLOCK)
    found = [np.bincount(route.chosen[at : at + PER_BLOCK].ravel(), minlength=EXPERTS) for at in blocks]
    return np.stack(found, 1).astype(np.int32)


def integers(*names):
    return dict.fromkeys(names, gm.ptr[gm.dtype_var("D", gm.Int)])


@case(
    FILE, "_moe_router_histogram_kernel", dtypes=[gm.i32], grid=lambda n_tiles: n_tiles,
    signature=integers("topk_indices_ptr", "partial_sum_ptr")
    | {"T": gm.shape["topk_indices_ptr", 0], "n_tiles": gm.shape["partial_sum_ptr", 1]},
    constants={"E": [EXPERTS], "TOKENS_PER_TILE": [PER_BLOCK], "K_POW2": [4], "K": [3], "E_POW2": [8]},
)  # fmt: skip
def _(draw, constants):
    route = routing(draw, 3)
    counts = counts_by_block(route)
    arguments = {"topk_indices_ptr": route.chosen, "partial_sum_ptr": np.full_like(counts, -77)}
    return arguments, {"partial_sum_ptr": counts}


@case(
    FILE, "_moe_router_prefix_sum_kernel", dtypes=[gm.i32], grid=EXPERTS + 2,
    signature=integers("expert_freq_ptr", "expert_freq_offs_ptr", "expert_tile_offset_ptr", "partial_sum_ptr")
    | {"n_tiles": gm.shape["partial_sum_ptr", 1], "TK": gm.i32},
    constants={"E": [EXPERTS], "BLOCK_M": [2, 128], "BLOCK_N": [8], "BLOCK_M_TOKEN": [TILE]},
)  # fmt: skip
def _(draw, constants):
    route = routing(draw, 3)
    counts, offsets = counts_by_block(route), draw.empty(EXPERTS + 1)
    arguments = {"expert_freq_ptr": route.counts, "expert_freq_offs_ptr": offsets, "partial_sum_ptr": counts}
    arguments |= {"expert_tile_offset_ptr": draw.empty(EXPERTS + 1), "TK": route.rows}
    wanted = {"expert_freq_offs_ptr": route.start, "expert_tile_offset_ptr": route.tiles_before}
    return arguments, wanted | {"partial_sum_ptr": counts.cumsum(1) - counts}


@case(
    FILE, "_moe_router_scatter_kernel", dtypes=[gm.i32], grid=lambda n_tiles: n_tiles,
    signature=integers(
        "s_scatter_idx_ptr", "s_reverse_scatter_idx_ptr", "x_gather_idx_ptr", "tile_row_start_ptr", "tile_expert_ptr",
        "topk_indices_ptr", "partial_sum_ptr", "expert_offs_ptr", "expert_tile_offset_ptr",
    ) | {"T": gm.shape["topk_indices_ptr", 0], "n_tiles": gm.shape["partial_sum_ptr", 1]},
    constants={"K_POW2": [2, 4], "K": [2, 3], "TOKENS_PER_BLOCK": [PER_BLOCK], "BLOCK_M_TOKEN": [TILE]},
    where=lambda K_POW2, K: (K_POW2 == 2) == (K == 2),
)  # fmt: skip
def _(draw, constants):
    route = routing(draw, constants["K"])
    counts = counts_by_block(route)
    wanted = {"s_scatter_idx_ptr": route.order, "s_reverse_scatter_idx_ptr": route.reverse}
    wanted |= {"x_gather_idx_ptr": route.token, "tile_row_start_ptr": route.tile_row}
    wanted |= {"tile_expert_ptr": route.tile_expert}
    arguments = {name: np.full_like(values, -77) for name, values in wanted.items()}
    arguments |= {"topk_indices_ptr": route.chosen, "partial_sum_ptr": (counts.cumsum(1) - counts).astype(np.int32)}
    return arguments | {"expert_offs_ptr": route.start, "expert_tile_offset_ptr": route.tiles_before}, wanted


# ---- products by expert --------------------------------------------------------------------------------------------

SIZES = {"H_dim": [WIDTH], "I_dim": [INNER]}
TILED = {"BLOCK_M": [TILE], "BLOCK_N": [32], "BLOCK_K": [16]}
CONFIG = {"configs": [gm.Config(num_warps=4, num_stages=3)], "ulps": 8}
BY_TILE = {"expert_start_ptr": INDEX, "tile_row_start_ptr": INDEX, "tile_expert_ptr": INDEX}
TILES = {"tiles": gm.shape["tile_expert_ptr", 0]}
UP, DOWN = (EXPERTS, 2 * INNER, WIDTH), (EXPERTS, WIDTH, INNER)


def rows_of(name, prefix, ends):
    """An array of rows of D, with the names of its strides: that of a row is found, that of an element is 1."""
    return {name: gm.ptr[D], f"stride_{prefix}_{ends[0]}": gm.stride[name, 0]}


def dense(*names):
    return {f"stride_{name}": [1] for name in names}


def weights(name, prefix, ends):
    """An array by expert, of D."""
    return {name: gm.ptr[D]} | {f"stride_{prefix}_{end}": gm.stride[name, i] for i, end in enumerate(ends)}


def tiles_of(route):
    return {
        "expert_start_ptr": route.start, "tile_row_start_ptr": route.tile_row, "tile_expert_ptr": route.tile_expert,
    }  # fmt: skip


@case(
    FILE, "_fused_up_proj_swiglu_kernel", **CONFIG, grid=lambda tiles, BLOCK_N: (tiles, gm.cdiv(INNER, BLOCK_N)),
    signature=rows_of("x_ptr", "x", "T") | weights("gate_up_proj_ptr", "w", "EN") | BY_TILE | TILES
    | {"x_gather_idx_ptr": INDEX} | rows_of("pre_act_ptr", "pre", ("TK",)) | rows_of("post_act_ptr", "post", ("TK",)),
    constants=SIZES | TILED | dense("x_H", "w_K", "pre_N", "post_N"),
)  # fmt: skip
def _(draw, constants):
    route, x, w = routing(draw, 2), draw.normal(TOKENS, WIDTH), draw.normal(*UP, scale=0.3)
    arguments = {"x_ptr": x, "gate_up_proj_ptr": w, "x_gather_idx_ptr": route.token} | tiles_of(route)
    arguments |= {"pre_act_ptr": draw.empty(route.rows, 2 * INNER), "post_act_ptr": draw.empty(route.rows, INNER)}
    pre = np.einsum("rh,rnh->rn", wide(x)[route.token], wide(w)[route.expert])
    return arguments, {"pre_act_ptr": pre, "post_act_ptr": silu(pre[:, :INNER]) * pre[:, INNER:]}


@case(
    FILE, "_fused_down_proj_kernel", **CONFIG, grid=lambda tiles, BLOCK_N: (tiles, gm.cdiv(WIDTH, BLOCK_N)),
    signature=rows_of("post_act_ptr", "post", ("TK",)) | weights("down_proj_ptr", "w", "EH") | BY_TILE | TILES
    | rows_of("Y_ptr", "Y", ("TK",)),
    constants=SIZES | TILED | dense("post_I", "w_I", "Y_H"),
)  # fmt: skip
def _(draw, constants):
    route, w = routing(draw, 2), draw.normal(*DOWN)
    post = draw.normal(route.rows, INNER)
    arguments = {"post_act_ptr": post, "down_proj_ptr": w, "Y_ptr": draw.empty(route.rows, WIDTH)} | tiles_of(route)
    return arguments, {"Y_ptr": np.einsum("ri,rhi->rh", wide(post), wide(w)[route.expert])}


@case(
    FILE, "_token_gather_weighted_sum_kernel", configs=[gm.Config(num_warps=4)], grid=TOKENS, dtypes=[gm.f32, gm.bf16],
    signature=rows_of("Y_ptr", "Y", ("TK",)) | {"w_ptr": gm.ptr[D], "s_rev_ptr": INDEX}
    | rows_of("out_ptr", "out", "T"),
    constants={"H_dim": [WIDTH], "K_dim": [3], "BLOCK_H": [32], "BLOCK_K": [1, 4], "w_is_None": [False, True]}
    | dense("Y_H", "out_H"),
)  # fmt: skip
def _(draw, constants):
    route, w = routing(draw, 3), draw.normal(TOKENS * 3)
    y = draw.normal(route.rows, WIDTH)
    arguments = {"Y_ptr": y, "w_ptr": w, "s_rev_ptr": route.reverse, "out_ptr": draw.empty(TOKENS, WIDTH)}
    scale = np.ones(TOKENS * 3) if constants["w_is_None"] else wide(w)
    return arguments, {"out_ptr": (wide(y)[route.reverse] * scale[:, None]).reshape(TOKENS, 3, WIDTH).sum(1)}


@case(
    FILE, "_moe_bwd_down_proj_kernel", **CONFIG, grid=lambda tiles, BLOCK_N: (tiles, gm.cdiv(INNER, BLOCK_N)),
    signature=rows_of("dO_ptr", "dO", "T") | {"x_gather_idx_ptr": INDEX, "s_scatter_idx_ptr": INDEX} | BY_TILE | TILES
    | {"topk_weights_ptr": gm.ptr[D], "dS_ptr": gm.ptr[D]} | weights("down_proj_ptr", "w", "EH")
    | rows_of("pre_act_ptr", "pre", ("TK",)) | rows_of("d_pre_act_ptr", "d_pre", ("TK",))
    | rows_of("weighted_act_ptr", "wact", ("TK",)),
    constants=SIZES | TILED | {"BLOCK_N": [16]} | dense("dO_H", "w_I", "pre_N", "d_pre_N", "wact_I"),
)  # fmt: skip
def _(draw, constants):
    route, up, w = routing(draw, 2), draw.normal(TOKENS, WIDTH), draw.normal(*DOWN, scale=0.3)
    pre, weight = draw.normal(route.rows, 2 * INNER), draw.normal(route.rows)
    arguments = {"dO_ptr": up, "x_gather_idx_ptr": route.token, "s_scatter_idx_ptr": route.order}
    arguments |= {"topk_weights_ptr": weight, "down_proj_ptr": w, "pre_act_ptr": pre} | tiles_of(route)
    arguments |= {"d_pre_act_ptr": draw.empty(*pre.shape), "weighted_act_ptr": draw.empty(route.rows, INNER)}
    gate, other, scale = wide(pre)[:, :INNER], wide(pre)[:, INNER:], wide(weight)[route.order][:, None]
    back = np.einsum("rh,rhi->ri", wide(up)[route.token], wide(w)[route.expert])
    slope = 1 / (1 + np.exp(-gate))
    slope = slope * (1 + gate * (1 - slope))
    sums = np.empty(route.rows)
    sums[route.order] = (back * silu(gate) * other).sum(1)
    return arguments | {"dS_ptr": np.zeros(route.rows).astype(draw.dtype)}, {
        "d_pre_act_ptr": np.concatenate([back * scale * slope * other, back * scale * silu(gate)], 1),
        "weighted_act_ptr": scale * silu(gate) * other,
        "dS_ptr": sums,
    }


def by_expert(route, left, right):
    """The sums of outer products of the rows of each expert."""
    rows = [slice(*route.start[e : e + 2]) for e in range(EXPERTS)]
    return np.stack([left[at].T @ right[at] for at in rows])


@case(
    FILE, "_moe_bwd_dW2_kernel", **CONFIG,
    grid=lambda BLOCK_M, BLOCK_N: (EXPERTS * gm.cdiv(INNER, BLOCK_M), gm.cdiv(WIDTH, BLOCK_N)),
    signature=rows_of("weighted_act_ptr", "wact", ("TK",)) | rows_of("dout_ptr", "dout", "T")
    | {"x_gather_idx_ptr": INDEX, "expert_start_ptr": INDEX} | weights("dW2_ptr", "dW2", "EH"),
    constants=SIZES | TILED | dense("wact_I", "dout_H", "dW2_I"),
)  # fmt: skip
def _(draw, constants):
    route, up = routing(draw, 2), draw.normal(TOKENS, WIDTH)
    act = draw.normal(route.rows, INNER)
    arguments = {"weighted_act_ptr": act, "dout_ptr": up, "x_gather_idx_ptr": route.token}
    arguments |= {"expert_start_ptr": route.start, "dW2_ptr": np.zeros(DOWN).astype(draw.dtype)}
    return arguments, {"dW2_ptr": by_expert(route, wide(up)[route.token], wide(act))}


@case(
    FILE, "_moe_bwd_dX_expanded_kernel", **CONFIG, grid=lambda tiles, BLOCK_N: (tiles, gm.cdiv(WIDTH, BLOCK_N)),
    signature=rows_of("d_pre_act_ptr", "d_pre", ("TK",)) | weights("gate_up_proj_ptr", "w", "EN") | BY_TILE | TILES
    | rows_of("dx_expanded_ptr", "dxe", ("TK",)),
    constants=SIZES | TILED | dense("d_pre_N", "w_K", "dxe_H"),
)  # fmt: skip
def _(draw, constants):
    route, w = routing(draw, 2), draw.normal(*UP)
    pre = draw.normal(route.rows, 2 * INNER)
    arguments = {"d_pre_act_ptr": pre, "gate_up_proj_ptr": w, "dx_expanded_ptr": draw.empty(route.rows, WIDTH)}
    wanted = {"dx_expanded_ptr": np.einsum("rn,rnh->rh", wide(pre), wide(w)[route.expert])}
    return arguments | tiles_of(route), wanted


@case(
    FILE, "_moe_bwd_dW1_kernel", **CONFIG,
    grid=lambda BLOCK_M, BLOCK_N: (EXPERTS * gm.cdiv(WIDTH, BLOCK_M), gm.cdiv(2 * INNER, BLOCK_N)),
    signature=rows_of("x_ptr", "x", "T") | rows_of("d_pre_act_ptr", "d_pre", ("TK",))
    | {"x_gather_idx_ptr": INDEX, "expert_start_ptr": INDEX} | weights("dW1_ptr", "dW1", "EN"),
    constants=SIZES | TILED | dense("x_H", "d_pre_N", "dW1_H"),
)  # fmt: skip
def _(draw, constants):
    route, x = routing(draw, 2), draw.normal(TOKENS, WIDTH)
    pre = draw.normal(route.rows, 2 * INNER)
    arguments = {"x_ptr": x, "d_pre_act_ptr": pre, "x_gather_idx_ptr": route.token}
    arguments |= {"expert_start_ptr": route.start, "dW1_ptr": np.zeros(UP).astype(draw.dtype)}
    return arguments, {"dW1_ptr": by_expert(route, wide(pre), wide(x)[route.token])}
