"""`triton.language`: Gristmill's language, which has Triton's spelling, and the names of Triton's types."""

from __future__ import annotations

from typing import Any

from gristmill import language
from gristmill.compat.triton.language import core, extra, math, types

__all__ = ["core", "extra", "math"]
__all__ += [name for name in (*language.__all__, *types.__all__) if name not in __all__]


def __getattr__(name: str) -> Any:
    for module in (language, types):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module 'triton.language' has no attribute '{name}' here")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
