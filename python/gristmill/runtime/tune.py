"""Measures every configuration of a kernel for a call, on this device, and makes rows of a tuned table of it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.errors import GristmillError
from gristmill.tuning import Row, TunedDevice, content_of, save

Tick = Callable[[int, int], None]  # samples taken so far, and in all

NOISE = 0.01  # the share by which another one must be faster than the formula's choice to be taken


@dataclass(frozen=True)
class Effort:
    """At most `rounds` rounds and about `seconds`.

    Who is `hopeless` times slower than the fastest is left after the `first` ones. `is_warm`: calls find their arrays
    in the cache, as far as they fit.
    """

    rounds: int = 60
    first: int = 5
    seconds: float = 5.0
    hopeless: float = 1.3
    is_warm: bool = False


@dataclass(frozen=True)
class Measured:
    """One configuration: the median in microseconds, or a note that says why there is none."""

    id: str
    variant: str
    us: float | None
    samples: int = 0
    note: str = ""


@dataclass(frozen=True)
class Tuned:
    """What was measured for one call; `rows` in the order of speed, the formula's choice is `formula`."""

    row: Row
    rows: tuple[Measured, ...]
    formula: Measured

    def save(self, path: str | Path) -> None:
        """Add it to a tuned table, in place of a row for the same calls."""
        save(Path(path), [self.row])

    def __str__(self) -> str:
        return "\n".join([title_of(self.row), *(f"    {_line(row, self)}" for row in self.rows)])

    __repr__ = __str__


def tune(kernel: Any, *arguments: Any, **named: Any) -> Tuned:
    """Measure a kernel for a call like this one; such calls take the fastest from then on, in this process.

    The arrays are copied, and stay as they are. Raises GristmillError if no configuration gives a result.
    """
    tuned = measure(kernel.trial(*arguments, **named))
    kernel.load_tuning(content_of([tuned.row]))
    return tuned


def measure(trial: Any, effort: Effort | None = None, tick: Tick | None = None) -> Tuned:
    """Return what all candidates of a trial take: medians of rounds, each in another order."""
    effort = effort or Effort()
    notes = {i: _check(trial, i) for i in range(len(trial.candidates))}
    running = [i for i, note in notes.items() if not note]
    if 0 not in running:
        raise GristmillError(f"{trial.kernel} cannot be tuned: {notes[0]}", fix="make the call itself work first")
    times = _rounds(trial, running, effort, tick or (lambda done, total: None))
    found = [_measured(trial, i, times.get(i, []), notes[i]) for i in notes]
    ordered = sorted(found, key=lambda m: (m.us is None, m.us or 0.0))
    fastest = ordered[0]
    best = fastest if (fastest.us or 0.0) < (1 - NOISE) * (found[0].us or 0.0) else found[0]
    return Tuned(_row(trial, best, found[0]), tuple(ordered), found[0])


def _check(trial: Any, candidate: int) -> str:
    """Run once; return what is wrong with it."""
    try:
        apart = trial.check(candidate)
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error).strip().splitlines()[0]
    return "" if apart <= 1 else f"computes something else: {apart:.2g} times what rounding may make"


def _rounds(trial: Any, running: Sequence[int], effort: Effort, tick: Tick) -> dict[int, list[float]]:
    times: dict[int, list[float]] = {i: [] for i in running}
    order = list(running)
    shuffle = random.Random(0).shuffle
    end = time.perf_counter() + effort.seconds
    for done in range(effort.rounds):
        if done >= effort.first and time.perf_counter() > end:
            break
        if done == effort.first:
            order = _hopeful(times, effort.hopeless)
        shuffle(order)
        for i in order:
            times[i].append(trial.time(i, effort.is_warm))
        tick(done + 1, effort.rounds)
    tick(effort.rounds, effort.rounds)
    return times


def _hopeful(times: dict[int, list[float]], hopeless: float) -> list[int]:
    """Those near the fastest, and the formula's choice."""
    medians = {i: statistics.median(samples) for i, samples in times.items()}
    return [i for i, median in medians.items() if i == 0 or median <= hopeless * min(medians.values())]


def _measured(trial: Any, candidate: int, times: Sequence[float], note: str) -> Measured:
    identity, variant = trial.candidates[candidate]
    return Measured(identity, variant, statistics.median(times) if times else None, len(times), note)


def _row(trial: Any, best: Measured, formula: Measured) -> Row:
    constants = tuple(sorted(trial.constants.items()))
    times = (round(best.us or 0.0, 3), round(formula.us or 0.0, 3))
    head = (trial.kernel, TunedDevice(**trial.place), tuple(trial.key_names), tuple(trial.dtypes), constants)
    return Row(*head, tuple(trial.key), best.variant, best.id, *times)


def title_of(row: Row) -> str:
    """Return the calls of a row in words: "matmul f16, m=4096, (b_column == 1)=0 on NVIDIA H200"."""
    key = (f"{_shown(name)}={value}" for name, value in zip(row.names, row.key, strict=True))
    constants = (f"{name}={value}" for name, value in row.constants)
    return f"{row.kernel} {'/'.join(row.dtypes)}, {', '.join([*key, *constants])} on {row.place.device}"


def _shown(name: str) -> str:
    return name if name.isidentifier() else f"({name})"


def _line(row: Measured, tuned: Tuned) -> str:
    mark = "  taken" if row.id == tuned.row.take else ""
    mark += "  (the formula's choice)" if row.id == tuned.formula.id else ""
    shown = row.note if row.us is None else f"{row.us:>11.2f} us, median of {row.samples:>3}"
    return f"{row.id:<48} {row.variant} {shown}{mark}"
