"""What NVVM's intrinsics mean, for lowerings that call one by name: the exact value where a device approximates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gristmill.errors import KernelError


def _exactly(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An f32 function computed in f64."""
    return lambda x: function(np.asarray(x, np.float64)).astype(np.float32)[()]


def _permuted(x: Any, y: Any, digits: Any) -> Any:
    """Byte i is the one of y:x that digit i names; with the digit's upper bit set its sign, eight times."""
    both = np.asarray(x).astype(np.uint64) | np.asarray(y).astype(np.uint64) << np.uint64(32)
    result = np.zeros(np.broadcast_shapes(np.shape(both), np.shape(digits)), np.uint64)
    for i in range(4):
        digit = np.asarray(digits).astype(np.uint64) >> np.uint64(4 * i)
        byte = both >> (digit & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
        signs = (byte >> np.uint64(7)) * np.uint64(0xFF)
        result |= np.where(digit & np.uint64(8), signs, byte) << np.uint64(8 * i)
    return result.astype(np.asarray(x).dtype)[()]


MEANINGS: dict[str, Callable[..., Any]] = {
    "llvm.nvvm.prmt": _permuted,
    "llvm.nvvm.ex2.approx.f": _exactly(np.exp2),
    "llvm.nvvm.lg2.approx.f": _exactly(np.log2),
    "llvm.nvvm.sin.approx.f": _exactly(np.sin),
    "llvm.nvvm.cos.approx.f": _exactly(np.cos),
    "llvm.nvvm.rsqrt.approx.f": _exactly(lambda x: 1 / np.sqrt(x)),
    "llvm.nvvm.sqrt.approx.f": _exactly(np.sqrt),
    "llvm.nvvm.rcp.approx.f": _exactly(lambda x: 1 / x),
}


def meaning(name: str) -> Callable[..., Any]:
    """Return what an intrinsic computes of numpy arrays."""
    if name in MEANINGS:
        return MEANINGS[name]
    raise KernelError(f"the simulated device does not know `{name}`", fix="run the kernel on the interpreter instead")
