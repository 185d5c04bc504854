"""`triton.language.core`: the same names as `triton.language`."""

from __future__ import annotations

from typing import Any

from gristmill import language
from gristmill.compat.triton.language import types


def __getattr__(name: str) -> Any:
    for module in (language, types):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module 'triton.language.core' has no attribute '{name}' here")
