"""`triton.runtime.driver`: a build has no device, so nothing can be asked of one."""

from __future__ import annotations

from typing import NoReturn

from gristmill.errors import DeclarationError
from gristmill.positions import caller_position


class _Driver:
    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        message = f"`triton.runtime.driver.active.{name}` asks a device, and kernels are built without one"
        fix = "say it in the declaration: `where=` and `pick=` choose configurations, `gm.sm_count` is for grids"
        raise DeclarationError(message, fix=fix, position=caller_position())


active = _Driver()
