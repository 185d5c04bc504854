"""The losses of liger-kernel: declarations, arguments and results as in liger_cases."""

from __future__ import annotations

import numpy as np

import gristmill as gm
from liger_cases import COLS, ROWS, D, by_row, case, gradient, row_stride, strided, wide

IGNORED = -100
LABELS = {"label_ptr": gm.ptr[gm.i64]}


def one_ignored():
    return np.array([5, IGNORED, COLS - 1], np.int64)


# ---- divergences ---------------------------------------------------------------------------------------------------


@case(
    "tvd", "_tv_distance_kernel", grid=lambda rows: rows,
    signature=strided(p_ptr="p_stride", q_ptr="q_stride", grads_ptr="grads_stride") | {
        "loss_ptr": gm.ptr[gm.f32], "loss_stride": row_stride("loss_ptr"), **LABELS, "n_cols": gm.shape["p_ptr", -1],
        "scale": gm.f32, "rows": by_row("p_ptr"),
    },
    constants={"ignore_index": IGNORED, "BLOCK_SIZE": 16, "HAS_LABEL": [True, False], "reduction": [0, 2]},
)  # fmt: skip
def _(draw, constants):
    p, q, labels = np.abs(draw.normal(ROWS, COLS)), np.abs(draw.normal(ROWS, COLS)), one_ignored()
    q[0, :4] = p[0, :4]
    kept = ((labels != IGNORED) | (not constants["HAS_LABEL"]))[:, None]
    loss, sign = np.abs(wide(p) - wide(q)) / 2 * kept, np.sign(wide(p) - wide(q)) * kept
    by_element = constants["reduction"] == 0
    held = np.zeros((ROWS, COLS if by_element else 1), np.float32)
    wanted = {"grads_ptr": sign * 0.125, "loss_ptr": loss if by_element else loss.sum(-1, keepdims=True) * 0.25}
    arguments = {"p_ptr": p, "q_ptr": q, "grads_ptr": draw.empty(ROWS, COLS), "loss_ptr": held, "label_ptr": labels}
    return arguments | {"scale": 0.25}, wanted


@case(
    "kl_div", "_kldiv_kernel_forward", grid=lambda rows: rows,
    signature=strided(y_ptr="y_stride", gt_ptr="gt_stride") | {
        "loss_ptr": gm.ptr[gm.f32], "loss_stride": row_stride("loss_ptr"), "n_cols": gm.shape["y_ptr", -1],
        "eps": gm.f32, "rows": by_row("y_ptr"),
    },
    constants={"BLOCK_SIZE": 16, "reduction": [0, 1], "log_target": [False, True]},
)  # fmt: skip
def _(draw, constants):
    y, target = draw.log_softmax(ROWS, COLS), draw.log_softmax(ROWS, COLS)
    if not constants["log_target"]:
        target = np.exp(wide(target)).astype(draw.dtype)
        target[0, :3] = 0
    t = wide(target)
    loss = np.exp(t) * (t - wide(y)) if constants["log_target"] else t * (np.log(np.maximum(t, 1e-10)) - wide(y))
    by_element = constants["reduction"] == 0
    held = draw.empty(ROWS, COLS if by_element else 1, dtype=np.float32)
    wanted = {"loss_ptr": loss if by_element else loss.sum(-1, keepdims=True)}
    return {"y_ptr": y, "gt_ptr": target, "loss_ptr": held, "eps": 1e-10}, wanted


@case(
    "kl_div", "_kldiv_kernel_backward", grid=lambda rows: rows,
    signature=strided(target_ptr="target_stride", new_grads_ptr="new_grads_stride") | {
        "n_cols": gm.shape["target_ptr", -1], "rows": by_row("target_ptr"),
    },
    constants={"BLOCK_SIZE": 16, "log_target": [False, True]},
)  # fmt: skip
def _(draw, constants):
    target = draw.log_softmax(ROWS, COLS)
    wanted = {"new_grads_ptr": -np.exp(wide(target)) if constants["log_target"] else -wide(target)}
    return {"target_ptr": target, "new_grads_ptr": draw.empty(ROWS, COLS)}, wanted


def jensen_shannon(x, y, beta):
    """The divergence of distributions given by their logarithms, element by element."""
    p, q = np.exp(y), np.exp(x)
    if beta in (0.0, 1.0):
        return p * (y - x) if beta == 0.0 else q * (x - y)
    mixed = np.log(beta * p + (1 - beta) * q)
    return beta * p * (y - mixed) + (1 - beta) * q * (x - mixed)


@case(
    "jsd", "_jsd_kernel", grid=lambda rows: rows, ulps=8,
    signature=strided(X_ptr="X_stride", Y_ptr="Y_stride", dX_ptr="dX_stride") | {
        "loss_ptr": gm.ptr[gm.f32], "loss_stride": row_stride("loss_ptr"), **LABELS, "n_non_ignore": gm.i32,
        "n_cols": gm.shape["X_ptr", -1], "rows": by_row("X_ptr"),
    },
    constants={"beta": [0.0, 0.25, 1.0], "ignore_index": IGNORED, "BLOCK_SIZE": 16, "HAS_LABEL": [True, False]},
)  # fmt: skip
def _(draw, constants):
    x, y, labels = draw.log_softmax(ROWS, COLS), draw.log_softmax(ROWS, COLS), one_ignored()
    kept = ((labels != IGNORED) | (not constants["HAS_LABEL"]))[:, None]
    total = lambda v: (jensen_shannon(v, wide(y), constants["beta"]) * kept).sum() / 2  # noqa: E731
    arguments = {"X_ptr": x, "Y_ptr": y, "dX_ptr": draw.empty(ROWS, COLS), "label_ptr": labels, "n_non_ignore": 2}
    held = np.zeros((ROWS, COLS), np.float32)
    wanted = {"loss_ptr": jensen_shannon(wide(x), wide(y), constants["beta"]) * kept / 2, "dX_ptr": gradient(total, x)}
    return arguments | {"loss_ptr": held}, wanted


# ---- cross entropy -------------------------------------------------------------------------------------------------

PLAIN = {
    "lse_square_scale": 0.0, "label_smoothing": 0.0, "reduction": "mean", "RETURN_Z_LOSS": 0, "HAS_WEIGHT": False,
    "RETURN_TOKEN_ACCURACY": 0, "RETURN_PREDICTED_TOKENS": 0, "HAS_SOFTCAPPING": False, "HAS_GRADIENTS": True,
}  # fmt: skip
CONFIGS = [
    PLAIN,
    PLAIN | {"label_smoothing": 0.1, "reduction": "sum"},
    PLAIN | {"lse_square_scale": 0.001, "RETURN_Z_LOSS": 1, "HAS_SOFTCAPPING": True},
    PLAIN | {"label_smoothing": 0.1, "HAS_WEIGHT": True, "HAS_SOFTCAPPING": True},
    PLAIN | {"lse_square_scale": 0.01, "label_smoothing": 0.2, "HAS_WEIGHT": True, "reduction": "none"},
    PLAIN | {"RETURN_TOKEN_ACCURACY": 1, "RETURN_PREDICTED_TOKENS": 1, "HAS_GRADIENTS": False},
]
CAP = 3.0


def cross_entropy(x, labels, weight, c):
    """The loss of each row, and the share of it that is the square of the logarithm of the sum."""
    x = CAP * np.tanh(x / CAP) if c["HAS_SOFTCAPPING"] else x
    rows, kept = np.arange(len(x)), labels != IGNORED
    y = np.where(kept, labels, 0)
    w = weight if c["HAS_WEIGHT"] else np.ones_like(weight)
    logs = np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1)) + x.max(-1)
    smooth = (w * (logs[:, None] - x)).sum(-1) * c["label_smoothing"] / x.shape[-1]
    loss = (1 - c["label_smoothing"]) * w[y] * (logs - x[rows, y]) + smooth
    squared = c["lse_square_scale"] * logs**2
    if c["reduction"] == "mean":
        loss, squared = loss / w[y][kept].sum(), squared / kept.sum()
    return (loss + squared) * kept, squared * kept


@case(
    "cross_entropy", "liger_cross_entropy_kernel", ulps=8, grid=lambda rows: rows,
    configs=[gm.Config(BLOCK_SIZE=16, **c) for c in CONFIGS],
    signature={
        "X_ptr": gm.ptr[D], "X_stride": row_stride("X_ptr"), "Y_ptr": gm.ptr[gm.i64], "Y_stride": row_stride("Y_ptr"),
        **{f"{name}_ptr": gm.ptr[gm.f32] for name in ("weight", "loss", "z_loss", "token_accuracy")},
        "predicted_tokens_ptr": gm.ptr[gm.i64], "loss_stride": row_stride("loss_ptr"),
        "token_accuracy_stride": row_stride("token_accuracy_ptr"),
        "predicted_tokens_stride": row_stride("predicted_tokens_ptr"), "n_cols": gm.shape["X_ptr", -1],
        "n_non_ignore": gm.i32, "sum_non_ignore_weight": gm.f32, "weight_sum": gm.f32, "ignore_index": gm.i32,
        "softcap": gm.f32, "rows": by_row("X_ptr"),
    },
)  # fmt: skip
def _(draw, constants):
    x, labels = draw.normal(ROWS, COLS, scale=2), one_ignored()
    weight = np.abs(draw.normal(COLS, dtype=np.float32))
    labels[0] = wide(x)[0].argmax()
    losses, squares = cross_entropy(wide(x), labels, wide(weight), constants)
    slope = gradient(lambda v: cross_entropy(v, labels, wide(weight), constants)[0].sum(), x)
    kept = labels != IGNORED
    floats = ("loss_ptr", "z_loss_ptr", "token_accuracy_ptr")
    arguments = {"X_ptr": x, "Y_ptr": labels, "weight_ptr": weight, "predicted_tokens_ptr": np.full(ROWS, -7)}
    arguments |= {name: np.zeros(ROWS, np.float32) for name in floats}
    arguments |= {"n_non_ignore": 2, "sum_non_ignore_weight": float(weight[labels[kept]].sum())}
    arguments |= {"weight_sum": float(weight.sum()), "ignore_index": IGNORED, "softcap": CAP}
    predicted = np.where(kept, wide(x).argmax(-1), -1)
    wanted = {"loss_ptr": losses} | ({"X_ptr": slope} if constants["HAS_GRADIENTS"] else {})
    if constants["RETURN_Z_LOSS"]:
        wanted["z_loss_ptr"] = squares
    if constants["RETURN_TOKEN_ACCURACY"]:
        wanted |= {"token_accuracy_ptr": (predicted == labels) * 1.0, "predicted_tokens_ptr": predicted}
    return arguments, wanted


@case(
    "utils", "element_mul_kernel", grid=lambda rows: rows, constants={"BLOCK_SIZE": 16, "X_col_stride": [1]},
    signature={"X_ptr": gm.ptr[D], "X_stride": row_stride("X_ptr"), "grad_output_ptr": gm.ptr[gm.f32],
               "n_cols": gm.shape["X_ptr", -1], "rows": by_row("X_ptr")},
)  # fmt: skip
def _(draw, constants):
    x, factor = draw.normal(ROWS, COLS), np.array([0.75], np.float32)
    return {"X_ptr": x, "grad_output_ptr": factor}, {"X_ptr": wide(x) * 0.75}
