"""Calls of inline PTX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.compiler.ir import Pointer
from gristmill.compiler.machine import V
from gristmill.dtypes import Dtype


def call(m: Any, code: str, dtype: Dtype | Pointer, count: int, operands: Sequence[V], attributes: str = "") -> list[V]:
    """Call `code`, from the word `asm` to its constraints; returns its `count` results, all of one dtype."""
    kind = m.element_type(dtype)
    result = kind if count == 1 else "{" + ", ".join([kind] * count) + "}"
    name = m.fresh()
    m.lines.append(f"  {name} = call {result} {code}({', '.join(map(m.typed, operands))}) {attributes}".rstrip())
    if count == 1:
        return [V(name, dtype)]
    return [m.emit(f"extractvalue {result} {name}, {i}", dtype) for i in range(count)]
