"""Two programs of one block in turn, each until it has to wait for the other: producers and consumers.

Both run in the same machine, which remembers for each where it was. Whether a slot is read before it is full, or filled
while it is read, shows in shared memory: what copies are going to write is poisoned from when they begin.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gristmill.compiler.simt.reports import COMPILER_FIX
from gristmill.errors import SimulationError

CONSUMERS, PRODUCERS = "consumers", "producers"
KEPT = ("op", "places", "statement", "loop_depth")


@dataclass
class PipeState:
    """How many slots each role has passed, how often each was released, and the copies that fill those not taken yet;
    and the bytes that the next slot waits for, less those that the hardware copies to it."""

    taken: int = 0
    filled: int = 0
    released: Counter[int] = field(default_factory=Counter)
    missing: int = 0
    groups: list[Any] = field(default_factory=list)


class Abandoned(Exception):
    """The other role has failed."""


class Roles:
    """Runs both programs; `wait` is called by the one whose turn it is."""

    def __init__(self, machine: Any):
        self.machine = machine
        self.turn = {CONSUMERS: threading.Semaphore(0), PRODUCERS: threading.Semaphore(0)}
        self.is_done = dict.fromkeys(self.turn, False)
        self.failure: BaseException | None = None
        self.role = CONSUMERS
        self.has_turn = False  # the consumers, to begin products
        self.vain = 0  # waits since the last one that ended

    def run(self, consume: Callable[[], object], produce: Callable[[], object]) -> None:
        """Run both to their ends; raises what either raises."""
        thread = threading.Thread(target=self._produce, args=(produce,), daemon=True)
        thread.start()
        try:
            consume()
            self.is_done[CONSUMERS] = True
            if self.has_turn:
                raise SimulationError("a turn is never passed", fix=COMPILER_FIX)
            while not self.is_done[PRODUCERS]:
                self._switch()
        except BaseException as error:
            self.failure = self.failure or error
            if not self.is_done[PRODUCERS]:
                self.turn[PRODUCERS].release()
            raise
        finally:
            thread.join()

    def _produce(self, produce: Callable[[], object]) -> None:
        self.turn[PRODUCERS].acquire()
        try:
            if self.failure is None:
                with np.errstate(all="ignore"):
                    produce()
        except Abandoned:
            pass
        except BaseException as error:
            self.failure = error
        self.is_done[PRODUCERS] = True
        self.role = CONSUMERS
        self.turn[CONSUMERS].release()

    def wait(self, is_ready: Callable[[], bool], what: str) -> None:
        """Let the other role go on until `is_ready`."""
        while not is_ready():
            other = PRODUCERS if self.role == CONSUMERS else CONSUMERS
            self.vain += 1
            if self.is_done[other] or self.vain > len(self.turn):
                raise SimulationError(f"{self.role} wait for {what} that never comes", fix=COMPILER_FIX)
            self._switch()
        self.vain = 0

    def let_go_on(self) -> None:
        """Let producers run ahead as far as they can, as they may at any time."""
        self.vain = 0
        if not self.is_done[PRODUCERS]:
            self._switch()

    def _switch(self) -> None:
        own = self.role
        other = PRODUCERS if own == CONSUMERS else CONSUMERS
        kept = {name: getattr(self.machine, name) for name in KEPT}
        site = self.machine.clock.site
        self.role = other
        self.turn[other].release()
        self.turn[own].acquire()
        self.role = own
        if self.failure is not None:
            raise self.failure if own == CONSUMERS else Abandoned
        for name, value in kept.items():
            setattr(self.machine, name, value)
        self.machine.clock.site = site
