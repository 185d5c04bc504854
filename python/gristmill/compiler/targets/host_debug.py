"""Printing and checks on the CPU, by the C library; a check that fails ends the process: calls report no errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.machine import V
from gristmill.compiler.targets.exchange import where
from gristmill.compiler.targets.printing import as_argument, constant_text, line_format
from gristmill.errors import Position

STANDARD_ERROR = 2


def print_line(m: Any, texts: Sequence[str], numbers: Sequence[tuple[V, str]], mask: V | None) -> None:
    """Call printf, and flush, since Python keeps a buffer of its own."""
    m.declarations |= {"declare i32 @printf(ptr, ...)", "declare i32 @fflush(ptr)"}
    with where(m, mask):
        arguments = [m.typed(as_argument(m, x, specification)) for x, specification in numbers]
        text = f"ptr {constant_text(m, line_format(texts, numbers))}"
        m.emit(f"call i32 (ptr, ...) @printf({', '.join([text, *arguments])})", dt.i32)
        m.emit("call i32 @fflush(ptr null)", dt.i32)


def fail(m: Any, message: str, position: Position | None, failed: V) -> None:
    """Print the message with its place to standard error, and abort."""
    m.declarations |= {"declare i32 @dprintf(i32, ptr, ...)", "declare void @abort()"}
    place = f"{position.file}:{position.line}: " if position else ""
    numbers = [(axis, "%lld") for axis in range(3)]
    texts = [f"{place}device_assert of program (", ", ", ", ", f") failed{': ' + message if message else ''}"]
    with where(m, failed):
        programs = [(m.cast(m.program_id(axis), dt.i64), specification) for axis, specification in numbers]
        arguments = [m.typed(x) for x, _ in programs]
        text = f"ptr {constant_text(m, line_format(texts, programs))}"
        m.emit(f"call i32 (i32, ptr, ...) @dprintf(i32 {STANDARD_ERROR}, {', '.join([text, *arguments])})", dt.i32)
        m.say("call void @abort()")
