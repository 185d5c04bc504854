"""Who touched what, and when: the ground on which races between threads are found.

Time is counted in intervals: a barrier, or the next program of the grid, starts a new one. Threads of one block that
touch a place in different intervals are in order; threads of different blocks of a cluster never are. Barriers of warps
cut intervals into steps, which only threads of one warp count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

WARP = 32
SEVERAL = -2
OF_ONE_WARP = -3  # and below, by the number of the warp: several of its threads


@dataclass
class Clock:
    """The current interval, the first one of the program, and the statement that runs, by number."""

    threads_of_block: int
    now: int = 1
    start: int = 1
    site: int = 0
    step: int = 0

    def warp_barrier(self) -> None:
        self.step += 1

    def barrier(self) -> None:
        self.now += 1

    def next_program(self) -> None:
        self.now += 1
        self.start = self.now


class Log:
    """For each place the thread that touched it last, in which interval, and at which statement."""

    def __init__(self, places: int, clock: Clock):
        self.clock = clock
        self.thread = np.zeros(places, np.int32)
        self.interval = np.zeros(places, np.int32)
        self.site = np.zeros(places, np.int32)
        self.step = np.zeros(places, np.int32)

    def note(self, places: Any, threads: Any) -> None:
        """Remember that each of `threads` touched its place."""
        before = self.thread[places]
        is_shared = (self.interval[places] == self.clock.now) & (before != threads)
        after = np.where(is_shared, _together(before, threads), threads)
        self.thread[places] = after
        stored = self.thread[places]
        for is_one_warp in (True, False):
            met = (stored != after) & ((_warp(stored) == threads // WARP) == is_one_warp)
            self.thread[places[met]] = _together(stored[met], threads[met])
        self.interval[places] = self.clock.now
        self.site[places] = self.clock.site
        self.step[places] = self.clock.step

    def conflicts(self, places: Any, threads: Any) -> Any:
        """Return where another thread touched the place, and no barrier lies between."""
        before, interval = self.thread[places], self.interval[places]
        block = self.clock.threads_of_block
        is_other_block = (before != SEVERAL) & (_warp(before) * WARP // block != threads // block)
        is_unordered = (interval == self.clock.now) | (is_other_block & (interval >= self.clock.start))
        is_earlier_step = (_warp(before) == threads // WARP) & (self.step[places] != self.clock.step)
        return (before != threads) & is_unordered & ~is_earlier_step


def _warp(touched: Any) -> Any:
    """The warp of the thread, or of the threads; -1 if they are of several."""
    return np.where(touched >= 0, touched // WARP, OF_ONE_WARP - touched)


def _together(touched: Any, threads: Any) -> Any:
    """What stands for a thread and those before it."""
    return np.where(_warp(touched) == threads // WARP, OF_ONE_WARP - threads // WARP, SEVERAL)


@dataclass(frozen=True)
class Race:
    """Two threads at one place: what each did, the second thread, and the statement of the first."""

    place: int
    thread: int
    first: str
    second: str
    site: int


class Watched:
    """The logs of one memory; `are_values_enough` accepts reads of what was written but not changed."""

    def __init__(self, places: int, clock: Clock, *, are_values_enough: bool):
        self.written = Log(places, clock)
        self.read = Log(places, clock)
        self.updated = Log(places, clock)
        self.changed = Log(places, clock) if are_values_enough else self.written

    def reading(self, places: Any, threads: Any) -> Race | None:
        """Note a read; return a race with a write before."""
        race = _first(self.changed, True, places, threads, "stored", "loads")
        race = race or _first(self.updated, True, places, threads, "updated", "loads")
        if race is None:
            self.read.note(places, threads)
        return race

    def updating(self, places: Any, threads: Any) -> Race | None:
        """Note an atomic update, with which others are in order; return a race with a plain access before."""
        race = _first(self.written, True, places, threads, "stored", "updates")
        race = race or _first(self.read, True, places, threads, "loaded", "updates")
        if race is None:
            self.updated.note(places, threads)
        return race

    def writing(self, places: Any, threads: Any, differs: Any) -> Race | None:
        """Note a write; return a race with a read or another write before. `differs`: where it changes the number."""
        matters = differs if self.changed is not self.written else True
        race = _first(self.written, differs, places, threads, "stored another number", "stores")
        race = race or _first(self.read, matters, places, threads, "loaded", "stores")
        race = race or _first(self.updated, True, places, threads, "updated", "stores")
        if race is None:
            self.written.note(places, threads)
            if self.changed is not self.written:
                self.changed.note(places[differs], threads[differs])
        return race


def _first(log: Log, matters: Any, places: Any, threads: Any, first: str, second: str) -> Race | None:
    """The first conflict with what a log knows, if there is one."""
    found = log.conflicts(places, threads) & matters
    if not found.any():
        return None
    i = int(np.argmax(found))
    place = int(places[i])
    return Race(place, int(threads[i]), first, second, int(log.site[place]))
