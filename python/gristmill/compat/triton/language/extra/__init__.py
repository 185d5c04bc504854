"""`triton.language.extra`: what belongs to one vendor, as far as the language has it."""

from __future__ import annotations

from gristmill.compat.triton.language.extra import cuda, libdevice

__all__ = ["cuda", "libdevice"]
