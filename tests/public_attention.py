"""Public cases of attention: heads padded with zeros to the elements that kernels take."""

from __future__ import annotations

from typing import Any

import numpy as np

from machines import Run, shipped_kernels
from public_runs import runs

HEAD = 64


def widened(x: np.ndarray) -> np.ndarray:
    """Return [heads, rows, elements] as a batch of one, with as many elements as a kernel's heads have."""
    return np.pad(x, ((0, 0), (0, 0), (0, HEAD - x.shape[-1])))[None]


def attention(run: Run, d: dict[str, Any]) -> dict[str, np.ndarray]:
    """Run the forward kernel, and with `do` the gradients that are the same on every run."""
    kernels, causal = shipped_kernels(), 2 * d.get("causal", False)
    q, k, v = (widened(d[name]) for name in "qkv")
    out, lse = np.full_like(q, np.nan), np.full(q.shape[:3], np.nan, np.float32)
    run(kernels["attention_forward"], None, q, k, v, out, lse, scale=d["scale"], causal=causal)
    found = {"o": out[0, ..., : d["v"].shape[-1]], "lse": lse[0]}
    if "do" in d:
        dout, delta = widened(d["do"]), np.full_like(lse, np.nan)
        gradients = [np.full_like(x, np.nan) for x in (q, k, v)]
        run(kernels["attention_delta"], None, out, dout, delta)
        arrays = (q, k, v, dout, lse, delta, *gradients)
        run(kernels["attention_backward_ordered"], None, *arrays, scale=d["scale"], causal=causal)
        found |= {f"d{name}": x[0, ..., : d[name].shape[-1]] for name, x in zip("qkv", gradients, strict=True)}
    return found


for name in ("R03", "R05", "R101", "R103"):
    runs(name)(attention)
