"""One row of a benchmark: contestants are made, warmed up, checked, and timed against each other."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchlib import buffers, check, timing
from benchlib.work import Arrays, Contestant, Result, Work

OURS = "gristmill"
COPY = "copy"
Peers = Callable[[Work, Arrays], dict[str, Callable[[], Any]]]


class Arena:
    """A device with its clock, buffers, peers and copy."""

    def __init__(
        self,
        device: str,
        batch: timing.Batch,
        cache_bytes: int,
        arrays: Callable[[Work, int], Arrays],
        peers: Sequence[Peers],
        copy: Callable[[Work], Contestant],
        is_sustained: bool = False,
    ):
        self.device = device
        self.batch = batch
        self.cache_bytes = cache_bytes
        self.arrays = arrays
        self.peers = peers
        self.copy = copy
        self.is_sustained = is_sustained

    def measure(self, work: Work, effort: timing.Effort, is_sweep: bool = False) -> list[Result]:
        """Time everyone who can do the work; those who cannot are in the results with a note that says why."""
        sets = [self.arrays(work, seed) for seed in range(buffers.set_count(work, self.cache_bytes))]
        contestants = self._contestants(work, sets, is_sweep)
        failures = {c.name: text for c in contestants if (text := self._warm_up(c))}
        contestants = [c for c in contestants if c.name not in failures]
        errors, notes = self._check(work, sets[0], contestants)
        times, bursts = self._times(work, contestants, effort)
        results = [self._result(work, c, times[c.name], errors.get(c.name), notes.get(c.name, "")) for c in contestants]
        for result in results:
            result.extra |= {"burst_us": bursts[result.contestant]} if bursts else {}
        set_copy_shares(results)
        del sets, contestants
        gc.collect()
        return results + [self._failed(work, name, text) for name, text in failures.items()]

    def _times(
        self, work: Work, contestants: Sequence[Contestant], effort: timing.Effort
    ) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Return microseconds a call, one number a round; of arithmetic on a device sustained, and medians of bursts.

        Arithmetic takes what power a device has: it is fast while it has been idle.
        """
        calls = {c.name: c.calls for c in contestants}
        times = timing.shuffled_rounds(self.batch, calls, effort)
        if not (self.is_sustained and work.is_arithmetic):
            return times, {}
        return timing.sustained_rounds(calls, effort), {name: timing.spread(each)[0] for name, each in times.items()}

    def _contestants(self, work: Work, sets: Sequence[Arrays], is_sweep: bool) -> list[Contestant]:
        ours = our_instances(work, sets[0]) if is_sweep else {OURS: dispatcher(work)}
        found = [
            Contestant(name, [partial(function, *work.positional(a), **work.case.scalars) for a in sets])
            for name, function in ours.items()
        ]
        for peers in () if is_sweep else self.peers:
            by_set = [peers(work, a) for a in sets]
            found += [Contestant(name, [calls[name] for calls in by_set]) for name in by_set[0]]
        return found if work.is_arithmetic else [*found, self.copy(work)]

    def _warm_up(self, contestant: Contestant) -> str:
        """Call each once; return what went wrong."""
        try:
            for call in contestant.calls:
                call()
            self.batch(contestant.calls, len(contestant.calls))
        except Exception as error:  # whatever a peer raises
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150] if str(error).strip() else ''}"
        return ""

    def _check(
        self, work: Work, arrays: Arrays, contestants: Sequence[Contestant]
    ) -> tuple[dict[str, float], dict[str, str]]:
        errors: dict[str, float] = {}
        notes: dict[str, str] = {}
        output = arrays[work.spec.outputs[0]]
        expected = None
        for contestant in contestants:
            if contestant.name.startswith(OURS):
                errors[contestant.name] = check.largest_error(work, arrays, contestant.calls[0])
                if not errors[contestant.name] <= 1:
                    notes[contestant.name] = "WRONG"
                expected = output.clone() if hasattr(output, "clone") else output.copy()
            elif contestant.name != COPY and expected is not None:
                buffers.poison(output)
                got = contestant.calls[0]()
                apart = check.distance(expected, got if hasattr(got, "shape") else output)
                if not apart <= check.PEER_DISTANCE.get(work.dtype_of(work.spec.outputs[0]), 0):
                    notes[contestant.name] = f"computes something else: {apart:.1e} apart"
        return errors, notes

    def _result(
        self, work: Work, contestant: Contestant, times: Sequence[float], error: float | None, note: str
    ) -> Result:
        median, low, high = timing.spread(times)
        size = contestant.bytes or work.bytes
        return Result(
            work.kernel,
            work.dtype,
            work.case.name,
            self.device,
            contestant.name,
            size,
            median,
            low,
            high,
            size / median / 1e3,
            error=error,
            note=note,
            flops=work.flops if work.is_arithmetic else 0,
        )

    def _failed(self, work: Work, name: str, text: str) -> Result:
        return Result(work.kernel, work.dtype, work.case.name, self.device, name, work.bytes, note=text)


def dispatcher(work: Work) -> Any:
    """Return the installed kernel."""
    from gristmill import kernels

    return getattr(kernels, work.kernel)


def is_built(work: Work) -> bool:
    """Return whether the installed wheel has the kernel."""
    from gristmill import kernels

    return hasattr(kernels, work.kernel)


def set_copy_shares(results: Sequence[Result]) -> None:
    """Give each result its bandwidth as a share of the copy's in the same rounds."""
    copy = next((r.gb_s for r in results if r.contestant == COPY), math.nan)
    for result in results:
        result.copy_share = result.gb_s / copy


def our_instances(work: Work, arrays: Arrays) -> dict[str, Callable[..., Any]]:
    """Return every specialisation of the work's dtypes by what tells it from the others; not all fit these arrays."""
    wanted = {name: dtype.name for name, dtype in work.specialisation.dtypes}
    picked = dispatcher(work).info(*work.positional(arrays), **work.case.scalars)["specialisation"]
    rows = [row for row in dispatcher(work).instances if row.dtypes == wanted]
    head = len("__".join([work.kernel, *wanted.values(), ""]))
    marks = {row.id: " (picked)" if row.id == picked else "" for row in rows}
    return {f"{OURS} {row.id[head:]}{marks[row.id]}": row.launch for row in rows}
