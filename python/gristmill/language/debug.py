"""Checks made while a kernel is compiled."""

from __future__ import annotations

from typing import Any

from gristmill.compiler.ir import Value
from gristmill.compiler.op import op
from gristmill.errors import KernelError


@op("debug")
def static_assert(cond: Any, msg: Any = "") -> None:
    """Fail the build, at the author's line, unless the compile-time condition holds."""
    if isinstance(cond, Value):
        raise KernelError(
            "static_assert(): the condition must be known at build time", fix="use `gm.constexpr` parameters"
        )
    if not cond:
        raise KernelError(
            f"static assertion failed{': ' + str(msg) if msg else ''}", fix="change the constants or the `where=`"
        )


@static_assert.reference
def _(cond: Any, msg: Any = "") -> None:
    assert cond, msg
