"""The kernels that this wheel holds, ready to call, each by its name."""

from gristmill.kernels import _native
from gristmill.kernels._native import *  # noqa: F403
from gristmill.kernels._native import doctor as doctor
from gristmill.kernels._native import info as info
from gristmill.kernels._native import load_tuning as load_tuning
from gristmill.kernels._native import preload as preload

__all__ = _native.__all__
