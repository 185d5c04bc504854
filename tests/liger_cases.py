"""Kernels of liger-kernel: how each is declared, what it is called with and, in numpy, what comes out of it."""

from __future__ import annotations

from typing import Any

import numpy as np

import gristmill as gm
import liger
from published_cases import Cases, D, Numbers, gradient, wide

__all__ = ["CASES", "COLS", "ROWS", "D", "by_row", "case", "gradient", "row_stride", "strided", "wide"]

CASES = Cases(liger.load)
case = CASES.case
ROWS, COLS = 3, 37


def by_row(array: str) -> Any:
    """An index parameter for grids: the number of rows."""
    return gm.shape[array, 0]


def row_stride(array: str) -> Any:
    return gm.stride[array, 0]


def strided(**arrays: str) -> dict[str, Any]:
    """Arrays of D, and by the name of each its row stride."""
    found: dict[str, Any] = {}
    for array, stride in arrays.items():
        found |= {array: gm.ptr[D], stride: row_stride(array)}
    return found


# ---- gated activations ---------------------------------------------------------------------------------------------

GATED = {"n_cols": [COLS, 64], "BLOCK_SIZE": [64]}


def gelu(x: Numbers) -> Numbers:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x: Numbers) -> Numbers:
    return x / (1 + np.exp(-x))


@case(
    "geglu", "_geglu_tanh_forward_kernel", constants=GATED, grid=lambda rows: rows,
    signature={**dict.fromkeys("abc", gm.ptr[D]), "stride": row_stride("c"), "rows": by_row("a")},
)  # fmt: skip
def _(draw, constants):
    a, b, c = draw.normal(ROWS, constants["n_cols"]), draw.normal(ROWS, constants["n_cols"]), None
    c = draw.empty(*a.shape)
    return {"a": a, "b": b, "c": c}, {"c": gelu(wide(a)) * wide(b)}


@case(
    "geglu", "_geglu_tanh_backward_kernel", constants=GATED, grid=lambda rows: rows,
    signature={**dict.fromkeys(["dc", "a", "b"], gm.ptr[D]), "stride": row_stride("dc"), "rows": by_row("a")},
)  # fmt: skip
def _(draw, constants):
    dc, a, b = (draw.normal(ROWS, constants["n_cols"]) for _ in range(3))
    slope = gradient(lambda x: (wide(dc) * gelu(x) * wide(b)).sum(), a)
    return {"dc": dc, "a": a, "b": b}, {"a": slope, "b": wide(dc) * gelu(wide(a))}


GATE = {"gate_multiplier": gm.f32}


@case(
    "swiglu", "_swiglu_forward_kernel", constants=GATED, grid=lambda rows: rows,
    signature={**dict.fromkeys(["a_ptr", "b_ptr", "c_ptr"], gm.ptr[D]), "stride": row_stride("c_ptr"), **GATE,
               "rows": by_row("a_ptr")},
)  # fmt: skip
def _(draw, constants):
    a, b = draw.normal(ROWS, constants["n_cols"]), draw.normal(ROWS, constants["n_cols"])
    c = draw.empty(*a.shape)
    return {"a_ptr": a, "b_ptr": b, "c_ptr": c, "gate_multiplier": 0.75}, {"c_ptr": silu(wide(a) * 0.75) * wide(b)}


def _swiglu_gradients(draw, columns):
    dc, a, b = (draw.normal(ROWS, columns) for _ in range(3))
    slope = gradient(lambda x: (wide(dc) * silu(x * 0.75) * wide(b)).sum(), a)
    arguments = {"dc_ptr": dc, "a_ptr": a, "b_ptr": b, "gate_multiplier": 0.75}
    return arguments, {"a_ptr": slope, "b_ptr": wide(dc) * silu(wide(a) * 0.75)}


@case(
    "swiglu", "_swiglu_backward_kernel", constants=GATED, grid=lambda rows: rows,
    signature={**dict.fromkeys(["dc_ptr", "a_ptr", "b_ptr"], gm.ptr[D]), "stride": row_stride("dc_ptr"), **GATE,
               "rows": by_row("a_ptr")},
)  # fmt: skip
def _(draw, constants):
    return _swiglu_gradients(draw, constants["n_cols"])


TILED = {
    "constants": {"BLOCK_SIZE": [16]},
    "grid": lambda rows, n_cols, BLOCK_SIZE: (rows, gm.cdiv(n_cols, BLOCK_SIZE)),
}


@case(
    "swiglu", "_swiglu_forward_kernel_tiled", **TILED,
    signature={**dict.fromkeys(["a_ptr", "b_ptr", "c_ptr"], gm.ptr[D]), "stride": row_stride("c_ptr"), **GATE,
               "n_cols": gm.shape["a_ptr", -1], "rows": by_row("a_ptr")},
)  # fmt: skip
def _(draw, constants):
    a, b, c = draw.normal(ROWS, COLS), draw.normal(ROWS, COLS), draw.empty(ROWS, COLS)
    return {"a_ptr": a, "b_ptr": b, "c_ptr": c, "gate_multiplier": 1.5}, {"c_ptr": silu(wide(a) * 1.5) * wide(b)}


@case(
    "swiglu", "_swiglu_backward_kernel_tiled", **TILED,
    signature={**dict.fromkeys(["dc_ptr", "a_ptr", "b_ptr"], gm.ptr[D]), "stride": row_stride("dc_ptr"), **GATE,
               "n_cols": gm.shape["a_ptr", -1], "rows": by_row("a_ptr")},
)  # fmt: skip
def _(draw, constants):
    return _swiglu_gradients(draw, COLS)


FUSED = {"constants": {"ffn_size": [COLS], "BLOCK_SIZE": [64]}, "grid": lambda rows: rows}


@case(
    "swiglu", "_swiglu_fused_gate_up_forward_kernel", **FUSED,
    signature={"y_ptr": gm.ptr[D], "c_ptr": gm.ptr[D], "in_stride": row_stride("y_ptr"),
               "out_stride": row_stride("c_ptr"), "rows": by_row("y_ptr")},
)  # fmt: skip
def _(draw, constants):
    y, c = draw.normal(ROWS, 2 * COLS), draw.empty(ROWS, COLS)
    return {"y_ptr": y, "c_ptr": c}, {"c_ptr": silu(wide(y[:, :COLS])) * wide(y[:, COLS:])}


@case(
    "swiglu", "_swiglu_fused_gate_up_backward_kernel", **FUSED,
    signature={"dc_ptr": gm.ptr[D], "y_ptr": gm.ptr[D], "dy_ptr": gm.ptr[D], "in_stride": row_stride("y_ptr"),
               "out_stride": row_stride("dc_ptr"), "rows": by_row("y_ptr")},
)  # fmt: skip
def _(draw, constants):
    dc, y, dy = draw.normal(ROWS, COLS), draw.normal(ROWS, 2 * COLS), draw.empty(ROWS, 2 * COLS)
    slope = gradient(lambda x: (wide(dc) * silu(x[:, :COLS]) * x[:, COLS:]).sum(), y)
    return {"dc_ptr": dc, "y_ptr": y, "dy_ptr": dy}, {"dy_ptr": slope}


@case(
    "relu_squared", "_relu_squared_forward_kernel", constants=GATED, grid=lambda rows: rows,
    signature={**strided(Y_ptr="Y_stride", X_ptr="X_stride"), "rows": by_row("X_ptr")},
)  # fmt: skip
def _(draw, constants):
    x = draw.normal(ROWS, constants["n_cols"])
    return {"Y_ptr": draw.empty(*x.shape), "X_ptr": x}, {"Y_ptr": np.maximum(wide(x), 0) ** 2}


@case(
    "relu_squared", "_relu_squared_backward_kernel", constants=GATED, grid=lambda rows: rows,
    signature={**strided(dX_ptr="dX_stride", dY_ptr="dY_stride", X_ptr="X_stride"), "rows": by_row("X_ptr")},
)  # fmt: skip
def _(draw, constants):
    x, dy = draw.normal(ROWS, constants["n_cols"]), draw.normal(ROWS, constants["n_cols"])
    arguments = {"dX_ptr": draw.empty(*x.shape), "dY_ptr": dy, "X_ptr": x}
    return arguments, {"dX_ptr": 2 * wide(dy) * np.maximum(wide(x), 0)}


# ---- softmax -------------------------------------------------------------------------------------------------------


def softmax(x: Numbers) -> Numbers:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


ROWWISE = {"constants": {"BLOCK_SIZE": [64]}, "grid": lambda rows: rows}
SOFTMAX_FORWARD = {
    **strided(Y_ptr="Y_row_stride", X_ptr="X_row_stride"), "n_cols": gm.shape["X_ptr", -1], "rows": by_row("X_ptr"),
}  # fmt: skip
SOFTMAX_BACKWARD = {
    **strided(dy_ptr="dy_stride", y_ptr="y_stride", dx_ptr="dx_stride"), "n_cols": gm.shape["y_ptr", -1],
    "rows": by_row("y_ptr"),
}  # fmt: skip
BLOCKWISE = {"constants": {"BLOCK_SIZE": [16]}, "grid": lambda rows: rows}


@case("softmax", "_softmax_single_block_forward_kernel", signature=SOFTMAX_FORWARD, **ROWWISE)
@case("softmax", "_softmax_multi_block_forward_kernel", signature=SOFTMAX_FORWARD, **BLOCKWISE)
def _(draw, constants):
    x = draw.normal(ROWS, COLS, scale=4)
    x[0, :5] = -np.inf
    return {"Y_ptr": draw.empty(ROWS, COLS), "X_ptr": x}, {"Y_ptr": softmax(wide(x))}


@case("softmax", "_softmax_single_block_backward_kernel", signature=SOFTMAX_BACKWARD, **ROWWISE)
@case("softmax", "_softmax_multi_block_backward_kernel", signature=SOFTMAX_BACKWARD, **BLOCKWISE)
def _(draw, constants):
    y, dy = softmax(wide(draw.normal(ROWS, COLS, scale=2))).astype(draw.dtype), draw.normal(ROWS, COLS)
    slope = wide(y) * (wide(dy) - (wide(dy) * wide(y)).sum(-1, keepdims=True))
    return {"dy_ptr": dy, "y_ptr": y, "dx_ptr": draw.empty(ROWS, COLS)}, {"dx_ptr": slope}


SPARSEMAX = {
    **strided(x_ptr="x_stride_row", sorted_x_ptr="sorted_x_stride_row", o_ptr="o_stride_row"),
    "n_cols": gm.shape["x_ptr", -1], "rows": by_row("x_ptr"),
}  # fmt: skip


@case("sparsemax", "_sparsemax_forward_kernel", signature=SPARSEMAX, **ROWWISE)
def _(draw, constants):
    x = draw.normal(ROWS, COLS)
    ordered = -np.sort(-wide(x), axis=-1)
    sums = ordered.cumsum(-1) - 1
    support = (ordered > sums / np.arange(1, COLS + 1)).sum(-1)
    tau = sums[np.arange(ROWS), support - 1] / support
    arguments = {"x_ptr": x, "sorted_x_ptr": ordered.astype(draw.dtype), "o_ptr": draw.empty(ROWS, COLS)}
    return arguments, {"o_ptr": np.maximum(wide(x) - tau[:, None], 0)}


@case(
    "sparsemax", "_sparsemax_backward_kernel", **BLOCKWISE,
    signature={**dict.fromkeys(["o_ptr", "go_ptr", "gi_ptr"], gm.ptr[D]), "stride": row_stride("o_ptr"),
               "n_cols": gm.shape["o_ptr", -1], "rows": by_row("o_ptr")},
)  # fmt: skip
def _(draw, constants):
    o, go = draw.normal(ROWS, COLS), draw.normal(ROWS, COLS)
    o[1] = -1
    support = wide(o) > 0
    mean = np.where(support, wide(go), 0).sum(-1, keepdims=True) / np.maximum(support.sum(-1, keepdims=True), 1e-6)
    arguments = {"o_ptr": o, "go_ptr": go, "gi_ptr": draw.empty(ROWS, COLS)}
    return arguments, {"gi_ptr": np.where(support, wide(go) - mean, 0)}
