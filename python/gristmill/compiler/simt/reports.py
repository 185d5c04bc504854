"""What reports say: threads, programs and statements in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill.compiler.simt.races import Clock, Race

COMPILER_FIX = "this is a mistake of the compiler: report it together with the kernel"


class Reports:
    """Puts threads, programs and statements into words."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.program: Sequence[int] = (0, 0, 0)
        self.sites: list[str] = ["the kernel's start"]

    def thread(self, thread: int) -> str:
        """Name a thread by its block of the cluster and its program."""
        block, own = divmod(int(thread), self.clock.threads_of_block)
        rank = f" of block {block}" if block else ""
        return f"thread {own}{rank}, program {', '.join(map(str, self.program))}"

    def race(self, race: Race, place: str) -> str:
        """Say what two threads did to a place."""
        return (
            f"race: {self.thread(race.thread)} {race.second} {place}, which another thread {race.first} "
            f"at {self.sites[race.site]} with no barrier between"
        )


def spread(each: Any, threads: Any) -> Any:
    """Return a number for each thread, where there may be one for all."""
    each = np.asarray(each)
    return each if each.shape == threads.shape else np.broadcast_to(each, threads.shape)
