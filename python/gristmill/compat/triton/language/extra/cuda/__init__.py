"""`triton.language.extra.cuda`."""

from __future__ import annotations

from typing import Any

from gristmill import language
from gristmill.compat.triton.language.extra import libdevice

__all__ = ["libdevice"]


def __getattr__(name: str) -> Any:
    extra = getattr(language, "extra", None)
    cuda = getattr(extra, "cuda", None)
    if hasattr(cuda, name):
        return getattr(cuda, name)
    raise AttributeError(f"module 'triton.language.extra.cuda' has no attribute '{name}' here")
