"""What runs a public case on a machine: found by the case's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from machines import Run

RUNNERS: dict[str, Callable[[Run, dict[str, Any]], dict[str, Any]]] = {}


def runs(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RUNNERS[name] = function
        return function

    return register


OTHERWISE_ON_CUDA = {"R38": "exp2 is 0 where its result is denormal, as it says"}


def padded(values: Any, dtype: Any = None) -> np.ndarray:
    """Return the values followed by ones up to a power of two."""
    values = np.asarray(values, dtype)
    size = 1 << (len(values) - 1).bit_length()
    return np.concatenate([values, np.ones(size - len(values), values.dtype)])
