"""`triton.language`: Gristmill's language, which has Triton's spelling, and the names of Triton's types."""

from __future__ import annotations

from typing import Any

from gristmill import language
from gristmill.compat.triton.language import core, extra, math
from gristmill.compat.triton.language.types import block_type, const, dtype, pointer_type, tensor, void

__all__ = ["block_type", "const", "core", "dtype", "extra", "math", "pointer_type", "tensor", "void"]
__all__ += [name for name in language.__all__ if name not in __all__]


def __getattr__(name: str) -> Any:
    try:
        return getattr(language, name)
    except AttributeError:
        raise AttributeError(f"module 'triton.language' has no attribute '{name}' here") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
