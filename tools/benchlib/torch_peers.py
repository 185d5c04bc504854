"""The same work done by torch's own operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchlib.work import Arrays, Work

Call = Callable[[], Any]
aten = torch.ops.aten


def _row(a: Arrays) -> tuple[int]:
    return (a["x"].shape[-1],)


def _scaled(a: Arrays) -> Call:
    scales = (a["a_scale"], a["b_scale"])
    return lambda: torch._scaled_mm(a["a"], a["b"], *scales, out_dtype=a["out"].dtype)


OPERATIONS: dict[str, Callable[[Arrays], Call]] = {
    "vector_add": lambda a: lambda: torch.add(a["a"], a["b"], out=a["out"]),
    "relu_forward": lambda a: lambda: torch.relu(a["x"]),
    "relu_backward": lambda a: lambda: aten.threshold_backward(a["dy"], a["x"], 0),
    "gelu_forward": lambda a: lambda: F.gelu(a["x"], approximate="tanh"),
    "gelu_backward": lambda a: lambda: aten.gelu_backward(a["dy"], a["x"], approximate="tanh"),
    "silu_forward": lambda a: lambda: F.silu(a["x"]),
    "silu_backward": lambda a: lambda: aten.silu_backward(a["dy"], a["x"]),
    "tanh_forward": lambda a: lambda: torch.tanh(a["x"], out=a["y"]),
    "tanh_backward": lambda a: lambda: aten.tanh_backward(a["dy"], a["y"]),
    "sigmoid_forward": lambda a: lambda: torch.sigmoid(a["x"], out=a["y"]),
    "sigmoid_backward": lambda a: lambda: aten.sigmoid_backward(a["dy"], a["y"]),
    "softmax_forward": lambda a: lambda: torch.softmax(a["x"], -1),
    "softmax_backward": lambda a: lambda: aten._softmax_backward_data(a["dy"], a["y"], -1, a["y"].dtype),
    "layer_norm_forward": lambda a: lambda: F.layer_norm(a["x"], _row(a), a["weight"], a["bias"], 1e-5),
    "rms_norm_forward": lambda a: lambda: F.rms_norm(a["x"], _row(a), a["weight"], 1e-5),
    "matmul": lambda a: lambda: torch.mm(a["a"], a["b"], out=a["out"]),
    "scaled_matmul": _scaled,
    "linear": lambda a: lambda: F.linear(a["x"], a["w"], a["bias"]),
    "row_sum": lambda a: lambda: torch.sum(a["x"], -1, out=a["out"]),
}


def torch_peers(work: Work, arrays: Arrays) -> dict[str, Call]:
    """Return torch's call for the work on these tensors, if it has one."""
    make = OPERATIONS.get(work.kernel)
    return {"torch": make(arrays)} if make else {}
