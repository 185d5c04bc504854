"""Whether a build asks for checks at run time: apart, since the build's cache must know it without the compiler."""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "GRISTMILL_DEBUG"


def asks_for_checks(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether GRISTMILL_DEBUG is set: `tl.device_assert` is compiled only then; the interpreter always checks."""
    return environment.get(VARIABLE, "") not in ("", "0")
