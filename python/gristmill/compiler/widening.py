"""Where paths meet in code for 64-bit offsets: a number that one of them made of indices is i64 on all of them.

In code for 32-bit offsets indices are i32, as literals are, so that `best = 0` before a loop and an index after a step
have one type. In code for 64-bit offsets the literal follows; the types were checked when indices were i32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, Tile, Value
from gristmill.compiler.scope import Scope
from gristmill.language.index import index_dtype
from gristmill.language.types import cast_to

Result = TypeVar("Result")


class Wider(Exception):
    """A name that a loop carries must start as i64."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


def is_wider(new: Tile, old: Tile) -> bool:
    """Whether `new` is what `old` becomes when indices are i64."""
    return (
        index_dtype() == dt.i64 and new.shape == old.shape and (old.dtype, new.dtype) == (dt.i32, dt.i64)
    )  # fmt: skip


def next_value(name: str, new: Value, old: Tile) -> Value:
    """Return `new` as the next value of a carried name of type `old`, if that is all they differ in.

    Raises Wider where it is the first value that must change.
    """
    if is_wider(new.type, old):
        raise Wider(name)
    return cast_to(new, dt.i64) if is_wider(old, new.type) else new


def build_loop(scope: Scope, carried: Sequence[str], initial: list[Value], build: Callable[[], Result]) -> Result:
    """Return what `build` makes of a loop whose names start as `initial`; it is called again for each that widens."""
    while True:
        names, was_in_loop = dict(scope.names), scope.in_loop
        scope.names.update(zip(carried, initial, strict=True))
        try:
            return build()
        except Wider as found:
            if found.name not in carried:
                raise
            scope.names, scope.in_loop = names, was_in_loop
            place = carried.index(found.name)
            initial[place] = cast_to(initial[place], dt.i64)


def meet(scope: Scope, blocks: Sequence[Block], values: list[Any]) -> list[Any]:
    """Return the values that two blocks end with, those of i32 widened where the other has i64."""
    wide = [any(is_wider(other.type, value.type) for other in values) for value in values]
    for place, block in enumerate(blocks):
        if wide[place]:
            with scope.builder.inside(block):
                values[place] = cast_to(values[place], dt.i64)
    return values
