"""`triton.runtime.jit`."""

from __future__ import annotations

from gristmill.compat.triton.decorators import JITFunction, jit

KernelInterface = JITFunction

__all__ = ["JITFunction", "KernelInterface", "jit"]
