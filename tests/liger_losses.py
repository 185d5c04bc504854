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


# ---- losses over logits, fused -------------------------------------------------------------------------------------


def log_softmax(x):
    return x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))


def of_tokens(*names, dtype=gm.f32):
    return {f"{name}_ptr": gm.ptr[dtype] for name in names}


def some(names, count=ROWS):
    return {f"{name}_ptr": np.full(count, 77, np.float32) for name in names}


@case(
    "fused_linear_kl_div", "_kl_div_kernel", grid=lambda rows: rows, ulps=8,
    signature=strided(X_ptr="X_stride", Q_ptr="Q_stride") | {
        "loss_ptr": gm.ptr[gm.f32], "loss_stride": row_stride("loss_ptr"), **LABELS, "n_cols": gm.shape["X_ptr", -1],
        "temperature": gm.f32, "eps": gm.f32, "scale": gm.f32, "rows": by_row("X_ptr"),
    },
    constants={"ignore_index": IGNORED, "BLOCK_SIZE": 16, "HAS_LABEL": [True, False]},
)  # fmt: skip
def _(draw, constants):
    x, labels = draw.normal(ROWS, COLS), one_ignored()
    q = np.exp(wide(draw.log_softmax(ROWS, COLS))).astype(draw.dtype)
    kept = ((labels != IGNORED) | (not constants["HAS_LABEL"])) * 0.5
    divergence = lambda v: (wide(q) * (np.log(wide(q)) - log_softmax(v / 2))).sum(-1) * kept  # noqa: E731
    wanted = {"loss_ptr": divergence(wide(x)), "X_ptr": gradient(lambda v: divergence(v).sum(), x)}
    arguments = {"X_ptr": x, "Q_ptr": q, "loss_ptr": np.zeros(ROWS, np.float32), "label_ptr": labels}
    return arguments | {"temperature": 2.0, "eps": 1e-10, "scale": 0.5}, wanted


FIRST = 100  # of the vocabulary that a rank has
RANKS = {"vocab_start": gm.i32, "ignore_index": gm.i32}
SLICE = {"vocab_start": FIRST, "ignore_index": IGNORED}


@case(
    "vocab_parallel_cross_entropy", "liger_vocab_parallel_ce_forward_kernel", grid=lambda rows: rows,
    signature={
        **strided(X_ptr="X_stride"), "EXP_ptr": gm.ptr[gm.f32], "EXP_stride": row_stride("EXP_ptr"),
        **of_tokens("logits_max", "pred", "sum_exp"), "Y_ptr": gm.ptr[gm.i64], "n_cols": gm.shape["X_ptr", -1], **RANKS,
        "rows": by_row("X_ptr"),
    },
    constants={"BLOCK_SIZE": 16},
)  # fmt: skip
def _(draw, constants):
    x, labels = draw.normal(5, COLS), np.array([FIRST, IGNORED, FIRST + COLS - 1, FIRST + COLS, FIRST - 1])
    highest = (wide(x).max(-1) + 0.5).astype(np.float32)
    shifted = wide(x) - highest[:, None]
    wanted = {"EXP_ptr": np.exp(shifted), "sum_exp_ptr": np.exp(shifted).sum(-1)}
    wanted["pred_ptr"] = np.array([shifted[0, 0], 0, shifted[2, -1], 0, 0])
    arguments = {"X_ptr": x, "EXP_ptr": draw.empty(5, COLS, dtype=np.float32), "Y_ptr": labels, **SLICE}
    return arguments | some(("pred", "sum_exp"), 5) | {"logits_max_ptr": highest}, wanted


@case(
    "vocab_parallel_cross_entropy", "liger_vocab_parallel_ce_backward_kernel", grid=lambda rows: rows,
    signature={
        "EXP_ptr": gm.ptr[gm.f32], "EXP_stride": row_stride("EXP_ptr"), "sum_exp_ptr": gm.ptr[gm.f32],
        "Y_ptr": gm.ptr[gm.i64], "grad_out_ptr": gm.ptr[D], "n_cols": gm.shape["EXP_ptr", -1], **RANKS,
        "alpha_eff": gm.f32, "eps_eff": gm.f32, "rows": by_row("EXP_ptr"),
    },
    constants={"HAS_LABEL_SMOOTHING": [True, False], "BLOCK_SIZE": 16},
)  # fmt: skip
def _(draw, constants):
    labels = np.array([FIRST, IGNORED, FIRST + COLS - 1, FIRST + COLS])
    powers, upstream = np.exp(draw.normal(4, COLS, dtype=np.float32)), draw.normal(4)
    total = (powers.sum(-1) * 1.5).astype(np.float32)
    alpha, share = (0.125, 0.125 / COLS) if constants["HAS_LABEL_SMOOTHING"] else (0.0, 0.0)
    slope = wide(powers) / wide(total)[:, None] - share
    slope[0, 0] -= 1 - alpha
    slope[2, -1] -= 1 - alpha
    slope[1] = 0
    arguments = {"EXP_ptr": powers, "sum_exp_ptr": total, "Y_ptr": labels, "grad_out_ptr": upstream, **SLICE}
    return arguments | {"alpha_eff": alpha, "eps_eff": share}, {"EXP_ptr": slope * wide(upstream)[:, None]}


DISTILLED = {
    **strided(student_ptr="student_stride", teacher_ptr="teacher_stride"), "target_ptr": gm.ptr[gm.i64],
    "n_cols": gm.shape["student_ptr", -1], "rows": by_row("student_ptr"),
}  # fmt: skip
DISTILLED_CONSTANTS = {"ignore_index": IGNORED, "BLOCK_SIZE": 16}
SCALARS = ("ce", "tvd", "student_lse", "teacher_lse", "sigma")


def distances(student, teacher, labels):
    """Cross entropy and total variation of each row; 0 where the label is ignored."""
    kept, rows = labels != IGNORED, np.arange(len(labels))
    logs = log_softmax(student)
    variation = np.abs(np.exp(logs) - np.exp(log_softmax(teacher))).sum(-1) / 2
    return -logs[rows, np.where(kept, labels, 0)] * kept, variation * kept


def log_sum(x):
    return np.log(np.exp(x).sum(-1))


def leaning(student, teacher):
    p, q = np.exp(log_softmax(student)), np.exp(log_softmax(teacher))
    return (p * np.sign(p - q)).sum(-1)


@case(
    "fused_ce_tvd", "_fused_ce_tvd_forward_kernel", grid=lambda rows: rows, constants=DISTILLED_CONSTANTS,
    signature=DISTILLED | of_tokens(*SCALARS),
)  # fmt: skip
def _(draw, constants):
    student, teacher, labels = draw.normal(ROWS, COLS), draw.normal(ROWS, COLS), one_ignored()
    kept = labels != IGNORED
    entropy, variation = distances(wide(student), wide(teacher), labels)
    sums = [log_sum(wide(student)) * kept, log_sum(wide(teacher)) * kept]
    wanted = [entropy, variation, *sums, leaning(wide(student), wide(teacher)) * kept]
    arguments = {"student_ptr": student, "teacher_ptr": teacher, "target_ptr": labels, **some(SCALARS)}
    return arguments, {f"{name}_ptr": numbers for name, numbers in zip(SCALARS, wanted, strict=True)}


@case(
    "fused_ce_tvd", "_fused_ce_tvd_backward_kernel", grid=lambda rows: rows, constants=DISTILLED_CONSTANTS, ulps=8,
    signature=DISTILLED | strided(grad_student_ptr="grad_student_stride")
    | of_tokens("grad_ce", "grad_tvd", *SCALARS[2:]),
)  # fmt: skip
def _(draw, constants):
    student, teacher, labels = draw.normal(ROWS, COLS), draw.normal(ROWS, COLS), one_ignored()
    weights = [draw.normal(ROWS, dtype=np.float32) for _ in range(2)]
    losses = lambda v: distances(v, wide(teacher), labels)  # noqa: E731
    slope = gradient(lambda v: sum((w * d).sum() for w, d in zip(weights, losses(v), strict=True)), student)
    sums = (log_sum(wide(student)), log_sum(wide(teacher)), leaning(wide(student), wide(teacher)))
    arguments = {"student_ptr": student, "teacher_ptr": teacher, "target_ptr": labels}
    arguments |= {"grad_ce_ptr": weights[0], "grad_tvd_ptr": weights[1], "grad_student_ptr": draw.empty(ROWS, COLS)}
    arguments |= {f"{name}_ptr": s.astype(np.float32) for name, s in zip(SCALARS[2:], sums, strict=True)}
    return arguments, {"grad_student_ptr": slope}
