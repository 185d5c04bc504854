"""Printing and checks of threads: lines to standard output in the order of the threads, failures as reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Pointer
from gristmill.compiler.simt.numbers import Numbers, to_bits
from gristmill.compiler.simt.reports import Reports, spread
from gristmill.errors import Position, SimulationError


def print_lines(threads: Any, texts: Sequence[str], numbers: Sequence[tuple[Numbers, str]], guard: Any | None) -> None:
    """Print a line of each thread whose guard holds: texts with a number between each two, formatted as C does."""
    columns = [[_formatted(x, how) for x in spread(_plain(x, how), threads)] for x, how in numbers]
    for thread in np.flatnonzero(spread(True if guard is None else guard, threads)):
        parts = [texts[0]]
        for column, text in zip(columns, texts[1:], strict=True):
            parts += [column[thread], text]
        print("".join(parts), flush=True)


def _plain(x: Numbers, how: str) -> Any:
    is_bits = how.endswith("x") and x.dtype != dt.bool_
    return to_bits(x.each, x.dtype) if is_bits or isinstance(x.dtype, Pointer) else x.each


def _formatted(number: Any, how: str) -> str:
    """A number by C's specification, whose length of integers Python has no need of."""
    value = float(number) if how.endswith("g") else int(number)
    return how.replace("ll", "") % value


def check(reports: Reports, message: str, position: Position | None, failed: Any, threads: Any) -> None:
    """Raise at `position` if any thread has failed."""
    wrong = np.flatnonzero(spread(failed, threads))
    if len(wrong):
        text = f"the check failed{': ' + message if message else ''} ({reports.thread(wrong[0])})"
        raise SimulationError(text, fix="find out which input breaks what the kernel relies on", position=position)
