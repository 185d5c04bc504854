"""What printing needs on every emitting machine: texts as constants, and numbers as C's printf takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Pointer
from gristmill.compiler.machine import V


def constant_text(m: Any, text: str, space: str = "") -> str:
    """Declare a text that ends with 0 and return its name."""
    data = text.encode() + b"\0"
    literal = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
    body = f'{space}constant [{len(data)} x i8] c"{literal}", align 1'
    known = {line.partition(" = internal ")[2]: line.partition(" = ")[0] for line in m.declarations}
    if body not in known:
        count = sum("__text" in line for line in m.declarations)
        known[body] = f"@{m.function.name}__text{count}"
        m.declarations.add(f"{known[body]} = internal {body}")
    return known[body]


def line_format(texts: Sequence[str], numbers: Sequence[tuple[V, str]]) -> str:
    """A line as printf's first argument."""
    parts = [texts[0].replace("%", "%%")]
    for (_, specification), text in zip(numbers, texts[1:], strict=True):
        parts += [specification, text.replace("%", "%%")]
    return "".join(parts) + "\n"


def as_argument(m: Any, x: V, specification: str) -> V:
    """A number as f64, or as i64 by its sign, or by its bits for hexadecimal digits."""
    if isinstance(x.dtype, Pointer):
        return m.emit(f"ptrtoint {m.typed(x)} to i64", dt.u64)
    if x.dtype == dt.bool_:
        return m.cast(m.cast(x, dt.u8), dt.u64)
    if specification.endswith("g"):
        return m.cast(x, dt.f64)
    if specification.endswith("x"):
        unsigned = {8: dt.u8, 16: dt.u16, 32: dt.u32, 64: dt.u64}[x.dtype.bits]
        return m.cast(m.bitcast(x, unsigned), dt.u64)
    return m.cast(x, dt.i64 if x.dtype.is_signed else dt.u64)
