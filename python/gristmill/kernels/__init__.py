"""The kernels that this wheel holds, ready to call, each by its name."""

from gristmill.kernels import _native
from gristmill.kernels._native import *  # noqa: F403

__all__ = _native.__all__
