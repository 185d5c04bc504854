"""Doors for kernels written for other packages: `from gristmill.compat import triton`."""

from __future__ import annotations

from gristmill.compat.recording import record

__all__ = ["record"]
