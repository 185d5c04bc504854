"""The hyper-connections of liger-kernel (`mhc.py`): declarations, arguments and results as in liger_cases."""

from __future__ import annotations

import math

import numpy as np

import gristmill as gm
from liger_cases import D, case, gradient, wide

N, HC, C = 20, 4, 18
K, M = HC * C, HC * HC + 2 * HC
EPS, POST = 1e-5, 2.0
FLOATS = gm.ptr[gm.f32]


def steps(shape, *names):
    """Constants for the strides of a contiguous array, by the names of its axes."""
    return {name: [math.prod(shape[i + 1 :])] for i, name in enumerate(names)}


# ---- product and norm ----------------------------------------------------------------------------------------------

SIZES = {"N": [N], "K": [K], "M": [M], "BLOCK_N": [16], "BLOCK_K": [64], "BLOCK_M": [32], "CAST_FP32": [True, False]}
SIZES |= steps((N, K), "stride_xn", "stride_xk") | steps((K, M), "stride_phik", "stride_phim")
SIZES |= steps((N, M), "stride_mn", "stride_mm")
IN_F32 = {"where": lambda D, CAST_FP32: (D.itemsize == 4) == CAST_FP32}


def mixed(x, phi):
    return x @ phi / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


@case(
    "mhc", "_mhc_mm_norm_fwd_kernel", **IN_F32, constants=SIZES | {"eps": [EPS]}, num_warps=4,
    signature={"x_ptr": gm.ptr[D], "phi_ptr": gm.ptr[D], "mix_ptr": FLOATS, "invr_ptr": FLOATS},
    grid=lambda BLOCK_N, BLOCK_M: (gm.cdiv(N, BLOCK_N), gm.cdiv(M, BLOCK_M)),
)  # fmt: skip
def _(draw, constants):
    x, phi = draw.normal(N, K), draw.normal(K, M)
    arguments = {"x_ptr": x, "phi_ptr": phi, "mix_ptr": draw.empty(N, M, dtype="f4")}
    arguments |= {"invr_ptr": draw.empty(N, dtype="f4")}
    return arguments, {
        "mix_ptr": mixed(wide(x), wide(phi)),
        "invr_ptr": 1 / np.sqrt((wide(x) ** 2).mean(-1) + EPS),
    }


@case(
    "mhc", "_mhc_mm_norm_bwd_fused_kernel", **IN_F32, num_warps=4, ulps=8,
    constants=SIZES | steps((N,), "stride_invr") | steps((N, M), "stride_gmn", "stride_gmm")
    | steps((N, K), "stride_gxn", "stride_gxk") | steps((K, M), "stride_gpk", "stride_gpm"),
    signature={
        "x_ptr": gm.ptr[D], "phi_ptr": gm.ptr[D], "mix_ptr": FLOATS, "invr_ptr": FLOATS, "grad_mix_ptr": FLOATS,
        "grad_x_ptr": gm.ptr[D], "grad_phi_ptr": FLOATS,
    },
    grid=lambda BLOCK_N, BLOCK_K: (gm.cdiv(N, BLOCK_N), gm.cdiv(K, BLOCK_K)),
)  # fmt: skip
def _(draw, constants):
    x, phi, up = draw.normal(N, K), draw.normal(K, M), draw.normal(N, M, dtype=np.float32)
    total = lambda x, phi: (wide(up) * mixed(x, phi)).sum()  # noqa: E731
    mix, invr = mixed(wide(x), wide(phi)), 1 / np.sqrt((wide(x) ** 2).mean(-1) + EPS)
    arguments = {"x_ptr": x, "phi_ptr": phi, "mix_ptr": mix.astype("f4"), "invr_ptr": invr.astype("f4")}
    arguments |= {"grad_mix_ptr": up, "grad_x_ptr": draw.empty(N, K), "grad_phi_ptr": np.zeros((K, M), "f4")}
    return arguments, {
        "grad_x_ptr": gradient(lambda x: total(x, wide(phi)), x),
        "grad_phi_ptr": gradient(lambda phi: total(wide(x), phi), phi),
    }


# ---- Sinkhorn's normalisation --------------------------------------------------------------------------------------

ROUNDS = 3
ALPHAS = {"alpha_pre_ptr": 0.5, "alpha_post_ptr": 0.75, "alpha_res_ptr": 1.25}
LOGITS = {"N": [N], "HC": [HC], "sinkhorn_eps": [EPS], "TMAX": [ROUNDS]} | steps((N, M), "stride_mn", "stride_mm")
HISTORY = steps((N, ROUNDS, HC, HC), "stride_hn", "stride_ht", "stride_hi", "stride_hj")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def sinkhorn(logits):
    """The matrices after each round, of logits [..., HC, HC]."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    found = [powers / powers.sum(-1, keepdims=True) + EPS]
    found[0] = found[0] / (found[0].sum(-2, keepdims=True) + EPS)
    for _ in range(ROUNDS - 1):
        rows = found[-1] / (found[-1].sum(-1, keepdims=True) + EPS)
        found.append(rows / (rows.sum(-2, keepdims=True) + EPS))
    return found


def logits_of(mix, b):
    return (wide(mix)[:, 2 * HC :] * ALPHAS["alpha_res_ptr"] + wide(b)[2 * HC :]).reshape(N, HC, HC)


@case(
    "mhc", "_mhc_split_sinkhorn_fwd_kernel", num_warps=1, grid=N, ulps=8,
    signature=dict.fromkeys(("mix_ptr", "b_ptr", "hpre_ptr", "hpost_ptr", "hres_ptr", "hist_ptr", *ALPHAS), gm.ptr[D]),
    constants=LOGITS | HISTORY | {"M": [M], "pre_eps": [EPS], "post_mult": [POST], "STORE_HIST": [True, False]}
    | steps((N, HC), "stride_hp_n", "stride_hp_h") | steps((N, HC), "stride_hq_n", "stride_hq_h")
    | steps((N, HC, HC), "stride_hr_n", "stride_hr_i", "stride_hr_j"),
    dtypes=[gm.f32],
)  # fmt: skip
def _(draw, constants):
    mix, b = draw.normal(N, M), draw.normal(M)
    arguments = {"mix_ptr": mix, "b_ptr": b, "hpre_ptr": draw.empty(N, HC), "hpost_ptr": draw.empty(N, HC)}
    arguments |= {"hres_ptr": draw.empty(N, HC, HC), "hist_ptr": draw.empty(N, ROUNDS, HC, HC)}
    arguments |= {name: np.array([value], draw.dtype) for name, value in ALPHAS.items()}
    gates = [wide(mix)[:, at] * a + wide(b)[at] for at, a in ((slice(HC), 0.5), (slice(HC, 2 * HC), 0.75))]
    history = sinkhorn(logits_of(mix, b))
    wanted = {"hpre_ptr": sigmoid(gates[0]) + EPS, "hpost_ptr": sigmoid(gates[1]) * POST, "hres_ptr": history[-1]}
    return arguments, wanted | ({"hist_ptr": np.stack(history, 1)} if constants["STORE_HIST"] else {})


def _sinkhorn_backward(draw, constants):
    mix, b, up = draw.normal(N, M), draw.normal(M), draw.normal(N, HC, HC)
    logits = logits_of(mix, b)
    arguments = {"mix_ptr": mix, "b_ptr": b, "grad_out_ptr": up, "grad_logits_ptr": draw.empty(N, HC, HC)}
    arguments |= {"alpha_res_ptr": np.array([ALPHAS["alpha_res_ptr"]], draw.dtype)}
    if "stride_hn" in constants:
        arguments["hist_ptr"] = np.stack(sinkhorn(logits), 1).astype(draw.dtype)
    return arguments, {"grad_logits_ptr": gradient(lambda x: (wide(up) * sinkhorn(x)[-1]).sum(), logits)}


BACKWARD = dict.fromkeys(("mix_ptr", "b_ptr", "grad_out_ptr", "grad_logits_ptr", "alpha_res_ptr"), gm.ptr[D])
GRADIENTS = LOGITS | steps((N, HC, HC), "stride_go_n", "stride_go_i", "stride_go_j")
GRADIENTS |= steps((N, HC, HC), "stride_gl_n", "stride_gl_i", "stride_gl_j")
# What is divided by sums of probabilities errs by more than the roundings of the last step.
case(
    "mhc", "_mhc_sinkhorn_bwd_kernel", signature=BACKWARD, constants=GRADIENTS, num_warps=1, grid=N, ulps=16,
    dtypes=[gm.f32],
)(_sinkhorn_backward)  # fmt: skip
case(
    "mhc", "_mhc_sinkhorn_bwd_hist_kernel", signature=BACKWARD | {"hist_ptr": gm.ptr[D]}, num_warps=1, grid=N,
    constants=GRADIENTS | HISTORY, ulps=16, dtypes=[gm.f32],
)(_sinkhorn_backward)  # fmt: skip


# ---- streams in and out --------------------------------------------------------------------------------------------

STREAMS = {"N": [N], "HC": [HC], "C": [C], "BLOCK_N": [8], "BLOCK_C": [16]}
STREAMS |= steps((N, HC, C), "stride_xn", "stride_xh", "stride_xc")
GRID = {"grid": lambda BLOCK_N, BLOCK_C: (gm.cdiv(N, BLOCK_N), gm.cdiv(C, BLOCK_C)), "num_warps": 2}


@case(
    "mhc", "_mhc_pre_fwd_kernel", **GRID, signature={"x_ptr": gm.ptr[D], "hpre_ptr": FLOATS, "out_ptr": FLOATS},
    constants=STREAMS | steps((N, HC), "stride_hn", "stride_hh") | steps((N, C), "stride_on", "stride_oc"),
)  # fmt: skip
def _(draw, constants):
    x, h = draw.normal(N, HC, C), draw.normal(N, HC, dtype="f4")
    arguments = {"x_ptr": x, "hpre_ptr": h, "out_ptr": draw.empty(N, C, dtype="f4")}
    return arguments, {"out_ptr": np.einsum("nhc,nh->nc", wide(x), wide(h))}


@case(
    "mhc", "_mhc_pre_bwd_kernel", **GRID,
    signature={"x_ptr": gm.ptr[D]} | dict.fromkeys(("hpre_ptr", "grad_out_ptr", "grad_x_ptr", "grad_h_ptr"), FLOATS),
    constants=STREAMS | steps((N, HC), "stride_hn", "stride_hh") | steps((N, C), "stride_gon", "stride_goc")
    | steps((N, HC, C), "stride_gxn", "stride_gxh", "stride_gxc") | steps((N, HC), "stride_ghn", "stride_ghh"),
)  # fmt: skip
def _(draw, constants):
    x, h, up = draw.normal(N, HC, C), draw.normal(N, HC, dtype="f4"), draw.normal(N, C, dtype="f4")
    arguments = {"x_ptr": x, "hpre_ptr": h, "grad_out_ptr": up, "grad_x_ptr": draw.empty(N, HC, C, dtype="f4")}
    arguments |= {"grad_h_ptr": np.zeros((N, HC), "f4")}
    wanted = {"grad_x_ptr": np.einsum("nc,nh->nhc", wide(up), wide(h))}
    return arguments, wanted | {"grad_h_ptr": np.einsum("nc,nhc->nh", wide(up), wide(x))}


RESIDUAL = {"x_ptr": gm.ptr[D], "f_ptr": gm.ptr[D], "hpost_ptr": FLOATS, "hres_ptr": FLOATS}
MIXED = STREAMS | steps((N, C), "stride_fn", "stride_fc") | steps((N, HC), "stride_hpn", "stride_hph")
MIXED |= steps((N, HC, HC), "stride_hrn", "stride_hri", "stride_hrj")


def residual(draw):
    arguments = {"x_ptr": draw.normal(N, HC, C), "f_ptr": draw.normal(N, C)}
    return arguments | {"hpost_ptr": draw.normal(N, HC, dtype="f4"), "hres_ptr": draw.normal(N, HC, HC, dtype="f4")}


@case(
    "mhc", "_mhc_post_res_fwd_kernel", **GRID, signature=RESIDUAL | {"out_ptr": FLOATS},
    constants=MIXED | steps((N, HC, C), "stride_on", "stride_oh", "stride_oc"),
)  # fmt: skip
def _(draw, constants):
    arguments = residual(draw)
    x, f, post, res = (wide(a) for a in arguments.values())
    wanted = np.einsum("nc,no->noc", f, post) + np.einsum("noi,nic->noc", res, x)
    return arguments | {"out_ptr": draw.empty(N, HC, C, dtype="f4")}, {"out_ptr": wanted}


RESULTS = {"grad_x_ptr": (N, HC, C), "grad_f_ptr": (N, C), "grad_hpost_ptr": (N, HC), "grad_hres_ptr": (N, HC, HC)}


@case(
    "mhc", "_mhc_post_res_bwd_kernel", **GRID,
    signature=RESIDUAL | dict.fromkeys(("grad_out_ptr", *RESULTS), FLOATS),
    constants=MIXED | steps((N, HC, C), "stride_gon", "stride_goh", "stride_goc")
    | steps((N, HC, C), "stride_gxn", "stride_gxh", "stride_gxc") | steps((N, C), "stride_gfn", "stride_gfc")
    | steps((N, HC), "stride_ghpn", "stride_ghph")
    | steps((N, HC, HC), "stride_ghrn", "stride_ghri", "stride_ghrj"),
)  # fmt: skip
def _(draw, constants):
    arguments = residual(draw)
    x, f, post, res = (wide(a) for a in arguments.values())
    up = draw.normal(N, HC, C, dtype="f4")
    arguments |= {"grad_out_ptr": up} | {name: np.zeros(shape, "f4") for name, shape in RESULTS.items()}
    up = wide(up)
    return arguments, {
        "grad_x_ptr": np.einsum("noc,noi->nic", up, res), "grad_f_ptr": np.einsum("noc,no->nc", up, post),
        "grad_hpost_ptr": np.einsum("noc,nc->no", up, f), "grad_hres_ptr": np.einsum("noc,nic->noi", up, x),
    }  # fmt: skip
