"""What Triton keeps apart as its extras: `tl.extra.libdevice`, and the same under `tl.extra.cuda`."""

from __future__ import annotations

from gristmill.language.extra import cuda, libdevice

__all__ = ["cuda", "libdevice"]
