"""Where paths meet in code for 64-bit offsets: a number that one of them made of indices is i64 on all of them.

In code for 32-bit offsets indices are i32, as literals are, so that `best = 0` before a loop and an index after a step
have one type. In code for 64-bit offsets the literal follows; the types were checked when indices were i32.
"""

from __future__ import annotations

from collections.abc import Sequence

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, Tile, Value
from gristmill.compiler.scope import Scope
from gristmill.language.index import index_dtype
from gristmill.language.types import cast_to


def is_wider(new: Tile, old: Tile) -> bool:
    """Whether `new` is what `old` becomes when indices are i64."""
    is_literal = (old.dtype, new.dtype) == (dt.i32, dt.i64)
    return index_dtype() == dt.i64 and new.shape == old.shape and is_literal


def meet(scope: Scope, blocks: Sequence[Block], values: Sequence[Value]) -> tuple[Value, Value]:
    """Return the values that two blocks end with, that of i32 widened where the other has i64."""
    first, second = values
    if is_wider(second.type, first.type):
        with scope.builder.inside(blocks[0]):
            first = cast_to(first, dt.i64)
    elif is_wider(first.type, second.type):
        with scope.builder.inside(blocks[1]):
            second = cast_to(second, dt.i64)
    return first, second
