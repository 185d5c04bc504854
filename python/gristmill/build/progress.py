"""What a build says while it runs: one plain line for each job, and a summary, on the terminal and in a log."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

LARGEST = 10


class Progress:
    """Counts finished jobs of `total`."""

    def __init__(self, total: int, log: Path | None = None, stream: TextIO | None = None):
        self.total = total
        self.done = 0
        self.cached = 0
        self.seconds: dict[str, float] = defaultdict(float)
        self._begun = time.monotonic()
        self._stream = stream or sys.stdout
        self._log = log.open("w", encoding="utf-8") if log else None

    def say(self, line: str) -> None:
        """Write one line to the terminal and the log."""
        for stream in (self._stream, self._log):
            if stream:
                print(line, file=stream, flush=True)

    def finish(self, label: str, kernel: str, *, seconds: float, is_cached: bool = False) -> None:
        """Count one job; `seconds` are of one process."""
        self.done += 1
        self.cached += is_cached
        self.seconds[kernel] += seconds
        self.say(f"[{self.done}/{self.total}] {label}")

    def summarise(self, images: Iterable[tuple[str, int]], host_bytes: int) -> None:
        """Say what was built: `images` are (name, embedded bytes)."""
        rows = sorted(images, key=lambda row: (-row[1], row[0]))
        total = sum(size for _, size in rows)
        self.say(
            f"{len(rows)} images, {total:,} bytes compressed; host code {host_bytes:,} bytes; "
            f"{self.done} jobs ({self.cached} cached) in {time.monotonic() - self._begun:.1f} s"
        )
        for kernel, seconds in sorted(self.seconds.items()):
            self.say(f"  {kernel:<32} {seconds:8.1f} s")
        self.say("largest images:")
        for name, size in rows[:LARGEST]:
            self.say(f"  {name:<60} {size:>10,} bytes")

    def close(self) -> None:
        """Close the log."""
        if self._log:
            self._log.close()
