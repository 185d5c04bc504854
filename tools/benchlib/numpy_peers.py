"""The same work as one writes it in NumPy, which computes it in one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchlib.work import Arrays, Work

Call = Callable[[], Any]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)))


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-5)) * weight + bias


def rms_norm(x: Any, weight: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)) * weight


OPERATIONS: dict[str, Callable[[Arrays], Call]] = {
    "vector_add": lambda a: lambda: np.add(a["a"], a["b"], out=a["out"]),
    "relu_forward": lambda a: lambda: np.maximum(a["x"], 0, out=a["y"]),
    "gelu_forward": lambda a: lambda: gelu(a["x"]),
    "silu_forward": lambda a: lambda: a["x"] * sigmoid(a["x"]),
    "tanh_forward": lambda a: lambda: np.tanh(a["x"], out=a["y"]),
    "sigmoid_forward": lambda a: lambda: sigmoid(a["x"]),
    "softmax_forward": lambda a: lambda: softmax(a["x"]),
    "layer_norm_forward": lambda a: lambda: layer_norm(a["x"], a["weight"], a["bias"]),
    "rms_norm_forward": lambda a: lambda: rms_norm(a["x"], a["weight"]),
    "matmul": lambda a: lambda: np.matmul(a["a"], a["b"], out=a["out"]),
    "linear": lambda a: lambda: a["x"] @ a["w"].T + a["bias"],
    "row_sum": lambda a: lambda: np.sum(a["x"], -1, out=a["out"]),
}


def numpy_peers(work: Work, arrays: Arrays) -> dict[str, Call]:
    """Return the call in NumPy for the work on these arrays, if there is one."""
    make = OPERATIONS.get(work.kernel)
    return {"numpy": make(arrays)} if make else {}
