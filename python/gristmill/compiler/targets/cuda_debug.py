"""Printing and checks on CUDA: functions that the driver links to every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Pointer
from gristmill.compiler.machine import V
from gristmill.compiler.targets.exchange import where
from gristmill.compiler.targets.printing import as_argument, constant_text, line_format
from gristmill.errors import Position


def _generic(m: Any, text: str) -> str:
    name = constant_text(m, text, "addrspace(1) ")
    return f"ptr addrspacecast (ptr addrspace(1) {name} to ptr)"


def print_line(m: Any, texts: Sequence[str], numbers: Sequence[tuple[V, str]], mask: V | None) -> None:
    """Call vprintf, whose arguments lie in memory one after the other, eight bytes each."""
    m.declarations.add("declare i32 @vprintf(ptr, ptr)")
    with m.in_prologue():
        buffer = m.emit(f"alloca [{max(1, len(numbers))} x i64], align 8", Pointer(dt.i64))
    with where(m, mask):
        for i, (x, specification) in enumerate(numbers):
            place = m.emit(f"getelementptr i64, ptr {buffer.text}, i32 {i}", Pointer(dt.i64))
            m.say(f"store {m.typed(as_argument(m, x, specification))}, ptr {place.text}, align 8")
        m.emit(f"call i32 @vprintf({_generic(m, line_format(texts, numbers))}, ptr {buffer.text})", dt.i32)


def fail(m: Any, message: str, position: Position | None, failed: V) -> None:
    """Call what C's assert calls on a device: it prints, and ends the grid with an error that the driver reports."""
    m.declarations.add("declare void @__assertfail(ptr, ptr, i32, ptr, i64)")
    file, line = (position.file, position.line) if position else ("", 0)
    name = m.function.name.partition("__")[0]
    texts = [_generic(m, text) for text in (message or "device_assert", file, name)]
    with where(m, failed):
        m.say(f"call void @__assertfail({texts[0]}, {texts[1]}, i32 {line}, {texts[2]}, i64 1)")
