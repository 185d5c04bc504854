"""What a build says while it runs: a bar on a terminal, plain lines elsewhere and in a log, and tables at the end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gristmill.build.summary import Summary, plain_lines

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Progress:
    """Counts finished jobs of `total`. On a terminal, where rich is installed, a bar stands for the lines."""

    def __init__(self, total: int, log: Path | None = None, stream: TextIO | None = None):
        self.total = total
        self.done = 0
        self.cached = 0
        self.seconds: dict[str, float] = defaultdict(float)
        self._begun = time.monotonic()
        self._stream = stream or sys.stdout
        self._log = log.open("w", encoding="utf-8") if log else None
        self._bar = _start_bar(self._stream, total)

    def say(self, line: str) -> None:
        """Write one line to the terminal and the log."""
        self._write_log(line)
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def finish(self, label: str, kernel: str, *, seconds: float, is_cached: bool = False) -> None:
        """Count one job; `seconds` are of one process."""
        self.done += 1
        self.cached += is_cached
        self.seconds[kernel] += seconds
        line = f"[{self.done}/{self.total}] {label}"
        if not self._bar:
            return self.say(line)
        self._bar.update(self._bar.task_ids[0], completed=self.done, description=label)
        return self._write_log(line)

    def finish_all(self, summary: Summary) -> None:
        """Say what was built."""
        line = (
            f"{summary.images} images, {summary.image_bytes:,} bytes compressed; "
            f"code for CPUs {summary.host_bytes:,} bytes; "
            f"{self.done} jobs ({self.cached} cached) in {time.monotonic() - self._begun:.1f} s"
        )
        if not self._bar:
            for text in (*plain_lines(summary), line):
                self.say(text)
            return
        for text in plain_lines(summary):
            self._write_log(text)
        self._bar.stop()
        for table in _tables(summary):
            self._bar.console.print(table)
        self.say(line)

    def close(self) -> None:
        """Close the bar and the log."""
        if self._bar:
            self._bar.stop()
        if self._log:
            self._log.close()

    def _write_log(self, line: str) -> None:
        if self._log:
            print(line, file=self._log, flush=True)


def _start_bar(stream: TextIO, total: int) -> Bar | None:
    """Return a running bar on a terminal; None elsewhere, or without rich."""
    with contextlib.suppress(ImportError):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        console = Console(file=stream)
        if console.is_terminal and not console.is_dumb_terminal:
            columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            bar = Bar(*columns, console=console)
            bar.add_task("", total=total)
            bar.start()
            return bar
    return None


def _tables(summary: Summary) -> list[Any]:
    from rich.table import Table

    head, rows = summary.table()
    kernels = Table(title="kernels")
    for i, name in enumerate(head):
        kernels.add_column(name, justify="right" if i else "left")
    for row in rows[:-1]:
        kernels.add_row(*row)
    kernels.add_section()
    kernels.add_row(*rows[-1])
    largest = Table("image", title="largest images")
    largest.add_column("bytes", justify="right")
    for image in summary.largest:
        largest.add_row(image.name, f"{image.size:,}")
    return [kernels, largest]
