"""The normalisations and rotary embeddings of liger-kernel: declarations, arguments and results as in liger_cases."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

import gristmill as gm
from liger_cases import COLS, ROWS, D, by_row, case, gradient, row_stride, strided, wide

EPS = 1e-5
SCALAR = {"eps": gm.f32, "offset": gm.f32}
LLAMA, GEMMA, NONE = 0, 1, -1
MODES = {"casting_mode": [LLAMA, GEMMA]}


def summed(partial):
    """What several programs left of one sum."""
    return wide(partial).sum(0)


def size_of(array):
    return {"n_cols": gm.shape[array, -1], "n_rows": by_row(array)}


# ---- RMS norm ------------------------------------------------------------------------------------------------------


def rms(x):
    return np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def rms_norm(x, w, offset):
    return x / rms(x) * (offset + w)


RMS_FORWARD = strided(Y_ptr="Y_row_stride", X_ptr="X_row_stride", W_ptr="W_row_stride") | {
    "RSTD_ptr": gm.ptr[gm.f32], "RSTD_row_stride": row_stride("RSTD_ptr"), **SCALAR, **size_of("X_ptr"),
}  # fmt: skip
RMS_CHOICES = {"elementwise_affine": [True, False], "BLOCK_SIZE": [64]}


def _rms_forward(draw, constants):
    x, w = draw.normal(ROWS, COLS), draw.normal(COLS)
    arguments = {"Y_ptr": draw.empty(ROWS, COLS), "X_ptr": x, "W_ptr": w}
    arguments |= {"RSTD_ptr": draw.empty(ROWS, dtype=np.float32), "eps": EPS, "offset": 0.5}
    normed = rms_norm(wide(x), wide(w), 0.5) if constants["elementwise_affine"] else wide(x) / rms(wide(x))
    return arguments, {"Y_ptr": normed, "RSTD_ptr": 1 / rms(wide(x))[:, 0]}


case(
    "rms_norm", "_rms_norm_forward_kernel", grid=lambda n_rows: n_rows,
    signature=RMS_FORWARD, constants={**MODES, **RMS_CHOICES},
)(_rms_forward)  # fmt: skip
case(
    "rms_norm", "_block_rms_norm_forward_kernel", grid=lambda n_rows, BLOCK_ROW: gm.cdiv(n_rows, BLOCK_ROW),
    signature=RMS_FORWARD, constants={**MODES, **RMS_CHOICES, "BLOCK_ROW": [2, 4]},
)(_rms_forward)  # fmt: skip


@case(
    "rms_norm", "_rms_norm_forward_kernel", title="rms_norm_without_casts", grid=lambda n_rows: n_rows,
    signature=RMS_FORWARD | {"RSTD_ptr": gm.ptr[D]}, constants={"casting_mode": NONE, **RMS_CHOICES},
)  # fmt: skip
def _(draw, constants):
    arguments, wanted = _rms_forward(draw, constants)
    return arguments | {"RSTD_ptr": draw.empty(ROWS)}, wanted


RMS_BACKWARD = strided(dY_ptr="dY_row_stride", dX_ptr="dX_row_stride", X_ptr="X_row_stride", W_ptr="W_row_stride") | {
    "RSTD_ptr": gm.ptr[gm.f32], "RSTD_row_stride": row_stride("RSTD_ptr"), "dW_ptr": gm.ptr[gm.f32],
    "dW_row_stride": row_stride("dW_ptr"), "offset": gm.f32, **size_of("X_ptr"),
}  # fmt: skip
PROGRAMS = 2


def _rms_backward(draw, constants):
    dy, x, w = draw.normal(ROWS, COLS), draw.normal(ROWS, COLS), draw.normal(COLS)
    scale = wide(w) + 0.5 if constants.get("elementwise_affine", True) else np.ones(COLS)
    arguments = {"dY_ptr": dy, "dX_ptr": draw.empty(ROWS, COLS), "X_ptr": x, "W_ptr": w, "offset": 0.5}
    arguments |= {"RSTD_ptr": (1 / rms(wide(x))[:, 0]).astype(np.float32)}
    arguments |= {"dW_ptr": draw.empty(PROGRAMS, COLS, dtype=np.float32)}
    wanted = {"dX_ptr": gradient(lambda v: (wide(dy) * v / rms(v) * scale).sum(), x)}
    if constants.get("elementwise_affine", True) and constants["COMPUTE_DW"]:
        wanted["dW_ptr"] = (summed, (wide(dy) * wide(x) / rms(wide(x))).sum(0))
    return arguments, wanted


@case(
    "rms_norm", "_rms_norm_backward_kernel", signature=RMS_BACKWARD | {"rows_per_program": gm.i32}, ulps=8,
    constants={"X_dtype": D, **MODES, **RMS_CHOICES, "COMPUTE_DW": [True, False]}, grid=PROGRAMS,
)  # fmt: skip
def _(draw, constants):
    arguments, wanted = _rms_backward(draw, constants)
    return arguments | {"rows_per_program": 2}, wanted


case(
    "rms_norm", "_block_rms_norm_backward_kernel", signature=RMS_BACKWARD, grid=PROGRAMS, ulps=8,
    constants={"X_dtype": D, **MODES, **RMS_CHOICES, "BLOCK_ROW": [1, 4], "COMPUTE_DW": [True]},
)(_rms_backward)  # fmt: skip


@case(
    "fused_add_rms_norm", "_fused_add_rms_norm_forward_kernel", grid=lambda n_rows: n_rows, ulps=8,
    signature=RMS_FORWARD | strided(S_ptr="S_row_stride", R_ptr="R_row_stride"),
    constants={**MODES, "BLOCK_SIZE": [64]},
)  # fmt: skip
def _(draw, constants):
    arguments, _ = _rms_forward(draw, {"elementwise_affine": True})
    residual = draw.normal(ROWS, COLS)
    total = wide((arguments["X_ptr"] + residual).astype(draw.dtype))
    wanted = {"S_ptr": total, "Y_ptr": rms_norm(total, wide(arguments["W_ptr"]), 0.5), "RSTD_ptr": 1 / rms(total)[:, 0]}
    return arguments | {"S_ptr": draw.empty(ROWS, COLS), "R_ptr": residual}, wanted


@case(
    "fused_add_rms_norm", "_fused_add_rms_norm_backward_kernel", grid=PROGRAMS, ulps=8,
    signature=RMS_BACKWARD | strided(dS_out_ptr="dS_out_row_stride"),
    constants={"X_dtype": D, "rows_per_program": 2, **MODES, "BLOCK_SIZE": [64], "has_dS_out": [True, False],
               "COMPUTE_DW": [True]},
)  # fmt: skip
def _(draw, constants):
    arguments, wanted = _rms_backward(draw, constants)
    ahead = draw.normal(ROWS, COLS)
    wanted["dX_ptr"] = wanted["dX_ptr"] + wide(ahead) * constants["has_dS_out"]
    return arguments | {"dS_out_ptr": ahead}, wanted


MODULATED = {"has_shift": [True, False], "rows_per_modulation": [1, 2]}


def modulation(draw, constants):
    """Rows of scales and shifts, and the row that each row of x takes."""
    each = constants["rows_per_modulation"]
    return draw.normal(-(-ROWS // each), COLS), draw.normal(-(-ROWS // each), COLS), np.arange(ROWS) // each


@case(
    "modulated_rms_norm", "_modulated_rms_norm_forward_kernel", grid=lambda n_rows: n_rows, ulps=8,
    signature=RMS_FORWARD | strided(Scale_ptr="Scale_row_stride", Shift_ptr="Shift_row_stride"),
    constants={**MODES, **RMS_CHOICES, **MODULATED},
)  # fmt: skip
def _(draw, constants):
    arguments, wanted = _rms_forward(draw, constants)
    scale, shift, row = modulation(draw, constants)
    wanted["Y_ptr"] = wanted["Y_ptr"] * (1 + wide(scale)[row]) + wide(shift)[row] * constants["has_shift"]
    return arguments | {"Scale_ptr": scale, "Shift_ptr": shift}, wanted


@case(
    "modulated_rms_norm", "_modulated_rms_norm_backward_kernel", ulps=8, grid=PROGRAMS,
    signature={k: v for k, v in RMS_BACKWARD.items() if k != "offset"} | {
        "rows_per_program": gm.i32, **strided(Scale_ptr="Scale_row_stride"), "dScale_ptr": gm.ptr[gm.f32],
        "dScale_row_stride": row_stride("dScale_ptr"), "dShift_ptr": gm.ptr[gm.f32],
        "dShift_row_stride": row_stride("dShift_ptr"),
    },
    constants={"X_dtype": D, "offset": 0.5, **MODES, **RMS_CHOICES, **MODULATED},
)  # fmt: skip
def _(draw, constants):
    arguments, _ = _rms_backward(draw, constants | {"COMPUTE_DW": True})
    del arguments["offset"]
    dy, x = wide(arguments["dY_ptr"]), wide(arguments["X_ptr"])
    weight = wide(arguments["W_ptr"]) + 0.5 if constants["elementwise_affine"] else np.ones(COLS)
    scale, _, row = modulation(draw, constants)
    total = lambda v, w, s: (dy * v / rms(v) * w * (1 + s[row])).sum()  # noqa: E731
    zeros = {name: np.zeros(scale.shape, np.float32) for name in ("dScale_ptr", "dShift_ptr")}
    wanted = {"dX_ptr": gradient(lambda v: total(v, weight, wide(scale)), x)}
    wanted["dScale_ptr"] = gradient(lambda s: total(x, weight, s), scale)
    if constants["elementwise_affine"]:
        wanted["dW_ptr"] = (summed, gradient(lambda w: total(x, w, wide(scale)), weight))
    if constants["has_shift"]:
        wanted["dShift_ptr"] = np.stack([dy[row == r].sum(0) for r in range(len(scale))])
    return arguments | {"rows_per_program": 2, "Scale_ptr": scale, **zeros}, wanted


# ---- layer norm, group norm, and others ----------------------------------------------------------------------------


def layer_norm(x, w, b):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS) * w + b


def moments(x):
    return x.mean(-1), 1 / np.sqrt(x.var(-1) + EPS)


@case(
    "layer_norm", "_layer_norm_forward_kernel", grid=lambda n_rows: n_rows, constants={"BLOCK_SIZE": [64]},
    signature=strided(
        Y_ptr="Y_row_stride", X_ptr="X_row_stride", W_ptr="W_row_stride", B_ptr="B_row_stride",
        Mean_ptr="Mean_row_stride", RSTD_ptr="RSTD_row_stride",
    ) | {"eps": gm.f32, **size_of("X_ptr")},
)  # fmt: skip
def _(draw, constants):
    x, w, b = draw.normal(ROWS, COLS), draw.normal(COLS), draw.normal(COLS)
    mean, rstd = moments(wide(x))
    arguments = {"Y_ptr": draw.empty(ROWS, COLS), "X_ptr": x, "W_ptr": w, "B_ptr": b, "eps": EPS}
    arguments |= {"Mean_ptr": draw.empty(ROWS), "RSTD_ptr": draw.empty(ROWS)}
    return arguments, {"Y_ptr": layer_norm(wide(x), wide(w), wide(b)), "Mean_ptr": mean, "RSTD_ptr": rstd}


FLOATS = dict.fromkeys(("Mean_ptr", "RSTD_ptr", "DW_ptr", "DB_ptr"), gm.ptr[gm.f32])


@case(
    "layer_norm", "_layer_norm_backward_kernel",
    grid=lambda n_rows, rows_per_program: gm.cdiv(n_rows, rows_per_program),
    constants={"rows_per_program": [1, 2], "BLOCK_SIZE": [64]}, ulps=8,
    signature=strided(X_ptr="stride_x", DX_ptr="stride_dx", DY_ptr="stride_dy") | {
        "W_ptr": gm.ptr[D], **FLOATS, "stride_mean": row_stride("Mean_ptr"), "stride_rstd": row_stride("RSTD_ptr"),
        "stride_dw": row_stride("DW_ptr"), "stride_db": row_stride("DB_ptr"), **size_of("X_ptr"),
    },
)  # fmt: skip
def _(draw, constants):
    x, w, dy = draw.normal(ROWS, COLS), draw.normal(COLS), draw.normal(ROWS, COLS)
    mean, rstd = (m.astype(np.float32) for m in moments(wide(x)))
    programs = -(-ROWS // constants["rows_per_program"])
    arguments = {"X_ptr": x, "W_ptr": w, "Mean_ptr": mean, "RSTD_ptr": rstd, "DX_ptr": draw.empty(ROWS, COLS)}
    arguments |= {name: draw.empty(programs, COLS, dtype=np.float32) for name in ("DW_ptr", "DB_ptr")} | {"DY_ptr": dy}
    total = lambda v, scale: (wide(dy) * layer_norm(v, scale, 0)).sum()  # noqa: E731
    return arguments, {
        "DX_ptr": gradient(lambda v: total(v, wide(w)), x),
        "DW_ptr": (summed, gradient(lambda v: total(wide(x), v), w)),
        "DB_ptr": (summed, wide(dy).sum(0)),
    }


GROUPS, CHANNELS, WIDTH = 2, 3, 10


@case(
    "group_norm", "_group_norm_forward_kernel", constants={"BLOCK_SIZE": [16]}, ulps=8,
    grid=lambda rows, groups: (rows, groups),
    signature={
        **dict.fromkeys(("Y_ptr", "X_ptr", "W_ptr", "B_ptr"), gm.ptr[D]), "Mean_ptr": gm.ptr[gm.f32],
        "RSTD_ptr": gm.ptr[gm.f32], "hidden_size": gm.i32, "channels_per_group": gm.i32, "eps": gm.f32,
        **{f"{name}_row_stride": gm.stride[f"{name}_ptr", 0] for name in ("Y", "X", "Mean", "RSTD")},
        **{f"{name}_col_stride": gm.stride[f"{name}_ptr", 1] for name in ("Y", "X", "Mean", "RSTD")},
        "rows": gm.shape["X_ptr", 0], "groups": gm.shape["X_ptr", 1],
    },
)  # fmt: skip
def _(draw, constants):
    x = draw.normal(ROWS, GROUPS, CHANNELS * WIDTH)
    w, b = draw.normal(GROUPS * CHANNELS), draw.normal(GROUPS * CHANNELS)
    mean, rstd = moments(wide(x))
    normed = (wide(x) - mean[..., None]) * rstd[..., None]
    by_channel = [np.repeat(wide(v), WIDTH).reshape(GROUPS, -1) for v in (w, b)]
    arguments = {"Y_ptr": draw.empty(*x.shape), "X_ptr": x, "W_ptr": w, "B_ptr": b, "hidden_size": CHANNELS * WIDTH}
    arguments |= {name: draw.empty(ROWS, GROUPS, dtype=np.float32) for name in ("Mean_ptr", "RSTD_ptr")}
    wanted = {"Y_ptr": normed * by_channel[0] + by_channel[1], "Mean_ptr": mean, "RSTD_ptr": rstd}
    return arguments | {"channels_per_group": CHANNELS, "eps": EPS}, wanted


@case(
    "group_norm", "_group_norm_backward_kernel", ulps=16, grid=lambda rows: (rows, GROUPS), dtypes=[gm.f32],
    constants={"hidden_size": WIDTH, "channels_per_group": CHANNELS, "BLOCK_SIZE": 16, "dtype": D},
    signature={
        **dict.fromkeys(("X_ptr", "W_ptr", "DX_ptr", "DW_ptr", "DB_ptr", "UPSTREAM_ptr"), gm.ptr[D]),
        "Mean_ptr": gm.ptr[gm.f32], "RSTD_ptr": gm.ptr[gm.f32], "X_row_stride": gm.stride["X_ptr", 0],
        "X_col_stride": gm.stride["X_ptr", 1], "Mean_ptr_row_stride": gm.stride["Mean_ptr", 0],
        "Mean_ptr_col_stride": gm.stride["Mean_ptr", 1], "rows": gm.shape["X_ptr", 0],
    },
)  # fmt: skip
def _(draw, constants):
    x, up = (draw.normal(ROWS, GROUPS * CHANNELS, WIDTH) for _ in range(2))
    w, zeros = draw.normal(GROUPS * CHANNELS), np.zeros(GROUPS * CHANNELS)
    mean, rstd = (m.astype(np.float32) for m in moments(wide(x).reshape(ROWS, GROUPS, -1)))

    def total(v, scale):
        centre, spread = moments(v.reshape(ROWS, GROUPS, -1))
        normed = (v.reshape(ROWS, GROUPS, -1) - centre[..., None]) * spread[..., None]
        return (wide(up) * normed.reshape(v.shape) * scale[:, None]).sum()

    arguments = {"X_ptr": x, "W_ptr": w, "Mean_ptr": mean, "RSTD_ptr": rstd, "DX_ptr": draw.empty(*x.shape)}
    arguments |= {"DW_ptr": zeros.astype(draw.dtype), "DB_ptr": zeros.astype(draw.dtype), "UPSTREAM_ptr": up}
    return arguments, {
        "DX_ptr": gradient(lambda v: total(v, wide(w)), x), "DW_ptr": gradient(lambda v: total(wide(x), v), w),
        "DB_ptr": wide(up).sum((0, 2)),
    }  # fmt: skip


def poly_norm(x, w, b):
    return sum(w[3 - p] * x**p / np.sqrt((x ** (2 * p)).mean(-1, keepdims=True) + EPS) for p in (3, 2, 1)) + b


def powers_rstd(x):
    return np.stack([1 / np.sqrt((x ** (2 * p)).mean(-1) + EPS) for p in (3, 2, 1)], -1)


@case(
    "poly_norm", "_poly_norm_forward_kernel", constants={"BLOCK_SIZE": [64]}, grid=lambda n_rows: n_rows, ulps=8,
    signature=strided(Y_ptr="Y_row_stride", X_ptr="X_row_stride") | {
        "W_ptr": gm.ptr[D], "B_ptr": gm.ptr[D], "RSTD_ptr": gm.ptr[gm.f32], "RSTD_row_stride": row_stride("RSTD_ptr"),
        "eps": gm.f32, **size_of("X_ptr"),
    },
)  # fmt: skip
def _(draw, constants):
    x, w, b = draw.normal(ROWS, COLS), draw.normal(3), draw.normal(1)
    arguments = {"Y_ptr": draw.empty(ROWS, COLS), "X_ptr": x, "W_ptr": w, "B_ptr": b, "eps": EPS}
    arguments |= {"RSTD_ptr": draw.empty(ROWS, 3, dtype=np.float32)}
    exact = {"RSTD_ptr": powers_rstd(wide(x))} if draw.dtype == np.float32 else {}
    return arguments, {"Y_ptr": poly_norm(wide(x), wide(w), wide(b)), **exact}


@case(
    "poly_norm", "_poly_norm_backward_kernel", ulps=8,
    constants={"rows_per_program": [1, 2], "BLOCK_SIZE": [64]},
    grid=lambda n_rows, rows_per_program: gm.cdiv(n_rows, rows_per_program),
    signature=strided(dY_ptr="dY_row_stride", dX_ptr="dX_row_stride", X_ptr="X_row_stride") | {
        "W_ptr": gm.ptr[D], "RSTD_ptr": gm.ptr[gm.f32], "RSTD_row_stride": row_stride("RSTD_ptr"),
        "dW_ptr": gm.ptr[gm.f32], "dW_row_stride": row_stride("dW_ptr"), "dB_ptr": gm.ptr[gm.f32], **size_of("X_ptr"),
    },
)  # fmt: skip
def _(draw, constants):
    dy, x, w = draw.normal(ROWS, COLS), draw.normal(ROWS, COLS), draw.normal(3)
    programs = -(-ROWS // constants["rows_per_program"])
    arguments = {"dY_ptr": dy, "dX_ptr": draw.empty(ROWS, COLS), "X_ptr": x, "W_ptr": w}
    arguments |= {"RSTD_ptr": powers_rstd(wide(x)).astype(np.float32)}
    arguments |= {"dW_ptr": draw.empty(programs, 3, dtype=np.float32), "dB_ptr": draw.empty(programs, dtype=np.float32)}
    total = lambda v, scale: (wide(dy) * poly_norm(v, scale, 0)).sum()  # noqa: E731
    return arguments, {
        "dX_ptr": gradient(lambda v: total(v, wide(w)), x),
        "dW_ptr": (summed, gradient(lambda v: total(wide(x), v), w)), "dB_ptr": (summed, wide(dy).sum()),
    }  # fmt: skip


TANH = dict.fromkeys(("X", "Alpha", "Gamma"), gm.ptr[D])


@case(
    "dyt", "_dyt_fwd_kernel", signature={**TANH, "Y": gm.ptr[D], "Beta": gm.ptr[D], "rows": by_row("X")},
    constants={"HAVE_BETA": [True, False], "N": COLS}, where=lambda BLOCK_N: BLOCK_N == 1024,
    grid=lambda rows, N, BLOCK_N: (gm.cdiv(N, BLOCK_N), rows),
)  # fmt: skip
def _(draw, constants):
    x, alpha, gamma, beta = draw.normal(ROWS, COLS), draw.normal(1), draw.normal(COLS), draw.normal(COLS)
    want = np.tanh(wide(alpha) * wide(x)) * wide(gamma) + wide(beta) * constants["HAVE_BETA"]
    return {"X": x, "Y": draw.empty(ROWS, COLS), "Alpha": alpha, "Gamma": gamma, "Beta": beta}, {"Y": want}


@case(
    "dyt", "_dyt_bwd_kernel", constants={"HAVE_BETA": [True, False], "N": COLS}, ulps=8,
    configs=[gm.Config(BLOCK_N=64, num_warps=2)], grid=lambda N, BLOCK_N: (gm.cdiv(N, BLOCK_N), PROGRAMS),
    signature={**TANH, "DY": gm.ptr[D], "DX": gm.ptr[D], **dict.fromkeys(("DA", "DG", "DB"), gm.ptr[gm.f32]),
               "M": by_row("X")},
)  # fmt: skip
def _(draw, constants):
    x, dy, alpha, gamma = draw.normal(ROWS, COLS), draw.normal(ROWS, COLS), draw.normal(1), draw.normal(COLS)
    arguments = {"DY": dy, "DX": draw.empty(ROWS, COLS), "X": x, "Alpha": alpha, "Gamma": gamma}
    arguments |= {name: draw.empty(PROGRAMS, size, dtype=np.float32) for name, size in _PARTIAL.items()}
    slope = (1 - np.tanh(wide(alpha) * wide(x)) ** 2) * wide(dy) * wide(gamma)
    wanted = {"DX": wide(alpha) * slope, "DG": (summed, (wide(dy) * np.tanh(wide(alpha) * wide(x))).sum(0))}
    wanted["DA"] = (summed, np.array([(wide(x) * slope).sum()]))
    return arguments, wanted | ({"DB": (summed, wide(dy).sum(0))} if constants["HAVE_BETA"] else {})


_PARTIAL = {"DA": 1, "DG": COLS, "DB": COLS}

# ---- rotary embeddings ---------------------------------------------------------------------------------------------

BATCH, LENGTH, Q_HEADS, K_HEADS, HEAD = 2, 3, 3, 1, 12
HEADS = {"n_qh": Q_HEADS, "n_kh": K_HEADS, "hd": HEAD, "pad_n_qh": 4, "pad_n_kh": 1, "pad_hd": 16, "BLOCK_SIZE": 4}


def rotated(x, heads, cos, sin, width, sign):
    """x with the two halves of the first `width` numbers of each head turned by the angles of its row."""
    split = wide(x).reshape(len(x), heads, HEAD).copy()
    half = width // 2
    first, second = split[..., :half].copy(), split[..., half:width].copy()
    split[..., :half] = first * cos[:, None] - sign * second * sin[:, None]
    split[..., half:width] = second * cos[:, None] + sign * first * sin[:, None]
    return split.reshape(x.shape)


def angles(draw, rows, width):
    turn = draw.normal(rows, width // 2, dtype=np.float64)
    return np.cos(turn).astype(draw.dtype), np.sin(turn).astype(draw.dtype)


@case(
    "rope", "_triton_rope", grid=lambda rows: rows,
    signature=strided(q_ptr="q_row_stride", k_ptr="k_row_stride", cos="cos_row_stride", sin="sin_row_stride") | {
        "sl": gm.i32, "rows": by_row("q_ptr"),
    },
    constants={**HEADS, "bs": BATCH, "cos_bs": [1, BATCH], "rd": [HEAD, 8], "pad_rd": [16],
               "BACKWARD_PASS": [False, True]},
)  # fmt: skip
def _(draw, constants):
    q, k = draw.normal(BATCH * LENGTH, Q_HEADS * HEAD), draw.normal(BATCH * LENGTH, K_HEADS * HEAD)
    cos, sin = angles(draw, constants["cos_bs"] * LENGTH, constants["rd"])
    row = np.arange(BATCH * LENGTH) % len(cos)
    sign = -1 if constants["BACKWARD_PASS"] else 1
    turn = (wide(cos)[row], wide(sin)[row], constants["rd"], sign)
    wanted = {"q_ptr": rotated(q, Q_HEADS, *turn), "k_ptr": rotated(k, K_HEADS, *turn)}
    return {"q_ptr": q, "k_ptr": k, "cos": cos, "sin": sin, "sl": LENGTH}, wanted


@case(
    "qwen2vl_mrope", "_triton_qwen2vl_mrope", grid=lambda rows: rows,
    signature={**dict.fromkeys(("q_ptr", "k_ptr", "cos", "sin"), gm.ptr[D]), "sl": gm.i32, "rows": by_row("q_ptr")},
    constants={**HEADS, "bs": BATCH, "mrope_section_t": 2, "mrope_section_h": 3, "BACKWARD_PASS": [False, True]},
)  # fmt: skip
def _(draw, constants):
    q, k = draw.normal(BATCH * LENGTH, Q_HEADS * HEAD), draw.normal(BATCH * LENGTH, K_HEADS * HEAD)
    tables = [draw.normal(3, BATCH * LENGTH, HEAD) for _ in range(2)]
    ends = pairwise((0, 2, 5, HEAD // 2))
    sections = [(part, slice(start, stop)) for part, (start, stop) in enumerate(ends)]
    cos, sin = (np.concatenate([wide(t)[part][:, at] for part, at in sections], -1) for t in tables)
    turn = (cos, sin, HEAD, -1 if constants["BACKWARD_PASS"] else 1)
    wanted = {"q_ptr": rotated(q, Q_HEADS, *turn), "k_ptr": rotated(k, K_HEADS, *turn)}
    return {"q_ptr": q, "k_ptr": k, "cos": tables[0], "sin": tables[1], "sl": LENGTH}, wanted


@case(
    "llama4_rope", "_llama4_rope_kernel", grid=lambda rows: (rows, Q_HEADS), dtypes=[gm.f32],
    signature={
        "q_ptr": gm.ptr[D], "k_ptr": gm.ptr[D], "freqs_complex_ptr": gm.ptr[D], "q_row_stride": row_stride("q_ptr"),
        "k_row_stride": row_stride("k_ptr"), "q_head_stride": gm.i32, "k_head_stride": gm.i32,
        "freqs_row_stride": row_stride("freqs_complex_ptr"), "seq_len": gm.i32, "batch_size": gm.i32,
        "imag_sign": gm.f32, "rows": by_row("q_ptr"),
    },
    constants={"head_dim_half": HEAD // 2, "n_q_heads": Q_HEADS, "n_k_heads": K_HEADS, "BLOCK_SIZE": 4},
)  # fmt: skip
def _(draw, constants):
    q, k = draw.normal(BATCH * LENGTH, Q_HEADS * HEAD), draw.normal(BATCH * LENGTH, K_HEADS * HEAD)
    turn = np.exp(1j * draw.normal(LENGTH, HEAD // 2, dtype=np.float64))
    table = np.stack([turn.real, turn.imag], -1).reshape(LENGTH, HEAD).astype(draw.dtype)
    row = np.arange(BATCH * LENGTH) % LENGTH

    def turned(x, heads):
        pairs = wide(x).reshape(len(x), heads, HEAD // 2, 2)
        result = (pairs[..., 0] + 1j * pairs[..., 1]) * turn.conj()[row][:, None]
        return np.stack([result.real, result.imag], -1).reshape(x.shape)

    arguments = {"q_ptr": q, "k_ptr": k, "freqs_complex_ptr": table, "q_head_stride": HEAD, "k_head_stride": HEAD}
    arguments |= {"seq_len": LENGTH, "batch_size": BATCH, "imag_sign": -1.0}
    return arguments, {"q_ptr": turned(q, Q_HEADS), "k_ptr": turned(k, K_HEADS)}
