"""`triton.runtime`, as far as files of kernels touch it when they are imported."""

from __future__ import annotations

from gristmill.compat.triton.decorators import Autotuner, Config, Heuristics, JITFunction
from gristmill.compat.triton.errors import OutOfResources
from gristmill.compat.triton.runtime import driver

KernelInterface = JITFunction

__all__ = ["Autotuner", "Config", "Heuristics", "JITFunction", "KernelInterface", "OutOfResources", "driver"]
