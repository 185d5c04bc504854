"""`triton.runtime.autotuner`."""

from __future__ import annotations

from gristmill.compat.triton.decorators import Autotuner, Config, Heuristics, autotune, heuristics
from gristmill.compat.triton.errors import OutOfResources

__all__ = ["Autotuner", "Config", "Heuristics", "OutOfResources", "autotune", "heuristics"]
