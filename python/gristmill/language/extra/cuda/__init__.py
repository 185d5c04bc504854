"""`tl.extra.cuda`, for the kernels that spell `libdevice` so."""

from __future__ import annotations

from gristmill.language.extra import libdevice

__all__ = ["libdevice"]
