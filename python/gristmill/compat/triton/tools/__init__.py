"""`triton.tools`, as far as files of kernels touch it when they are imported."""

from __future__ import annotations

from gristmill.compat.triton.tools import tensor_descriptor

__all__ = ["tensor_descriptor"]
