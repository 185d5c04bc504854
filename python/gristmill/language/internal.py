"""Ops that passes insert; authors never write them."""

from __future__ import annotations

from typing import Any

from gristmill.compiler.facts import Facts
from gristmill.compiler.ir import Value
from gristmill.compiler.op import emit, op
from gristmill.language.types import as_value


@op("internal", kind="tile")
def relayout(input: Any) -> Value:
    """The same tile in another layout; inserted by the compiler, never written by authors."""
    x = as_value(input)
    return emit("relayout", x.type, x)


@relayout.reference
def _(x: Any) -> Any:
    return x


@relayout.facts
def _(op: Any, x: Facts) -> Facts:
    return x


@relayout.lower(on="threads")
def _(m: Any, op: Any, x: Any) -> Any:
    return m.relayout(op.results[0], x)


@op("internal", kind="tile", is_kept=True)
def hold(input: Any) -> Value:
    """A copy of the tile in shared memory, for `held`."""
    x = as_value(input)
    return emit("hold", x.type, x)


@hold.reference
def _(x: Any) -> Any:
    return x


@hold.lower(on="threads")
def _(m: Any, op: Any, x: Any) -> Any:
    return m.hold(x)


@op("internal", kind="tile", goes_by_register=True)
def held(input: Any) -> Value:
    """The tile that `hold` copied, in registers."""
    x = as_value(input)
    return emit("held", x.type, x)


@held.reference
def _(x: Any) -> Any:
    return x


@held.lower(on="threads")
def _(m: Any, op: Any, x: Any) -> Any:
    return m.held(op, x)
