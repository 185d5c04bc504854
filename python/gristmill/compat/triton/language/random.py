"""`triton.language.random`: the same names as `triton.language`."""

from __future__ import annotations

from gristmill.compat.triton.language.core import __getattr__ as __getattr__
