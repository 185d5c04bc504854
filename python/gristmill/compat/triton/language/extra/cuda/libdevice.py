"""`triton.language.extra.cuda.libdevice`."""

from __future__ import annotations

from gristmill.compat.triton.language.math import __getattr__ as __getattr__
