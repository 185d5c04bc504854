"""`triton.language.math` and libdevice: functions of the language under their older names."""

from __future__ import annotations

import importlib
from typing import Any

from gristmill import language

_HOMES = ("gristmill.language.extra.libdevice", "gristmill.language.libdevice", "gristmill.language.math")


def __getattr__(name: str) -> Any:
    for home in _HOMES:
        try:
            return getattr(importlib.import_module(home), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    if hasattr(language, name):
        return getattr(language, name)
    raise AttributeError(f"there is no function `{name}` here: see `gristmill.language` for what there is")
