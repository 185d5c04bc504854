"""Clocks: batches of calls in shuffled rounds, on the CPU by the monotonic clock, on CUDA by events."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Batch = Callable[[Sequence[Callable[[], Any]], int], float]
"""Runs so many calls, in turn over the buffer sets; returns microseconds a call."""

LONGEST_BATCH = 400


@dataclass(frozen=True)
class Effort:
    """How long is measured: `rounds` batches of about `batch_us` each, for each contestant."""

    rounds: int = 15
    batch_us: float = 5000.0


GRAPH_US = 1000.0
QUICK = Effort(rounds=5, batch_us=1500.0)
IDLE_S = 0.15


def cpu_batch(calls: Sequence[Callable[[], Any]], count: int) -> float:
    """Return microseconds a call by the monotonic clock."""
    begun = time.perf_counter()
    for i in range(count):
        calls[i % len(calls)]()
    return 1e6 * (time.perf_counter() - begun) / count


def cuda_batch(calls: Sequence[Callable[[], Any]], count: int) -> float:
    """Return microseconds a call by events on the current stream.

    The stream first waits while the calls are put into its queue, so that the time is the device's, not the host's.
    """
    import torch

    torch.cuda.synchronize()
    torch.cuda._sleep(50_000 * min(count, 200))  # 25 us a call at 2 GHz
    return _cuda_time(calls, 0, count)


def sustained_batch(calls: Sequence[Callable[[], Any]], count: int) -> float:
    """Return microseconds a call on a device that has been busy with them for twice as long: clocks have settled."""
    return _cuda_time(calls, 2 * count, count)


def burst_batch(calls: Sequence[Callable[[], Any]], count: int) -> float:
    """Return microseconds a call of the first few after a pause, at full clocks; one goes ahead."""
    import torch

    torch.cuda.synchronize()
    time.sleep(IDLE_S)
    return _cuda_time(calls, 1, count)


def _cuda_time(calls: Sequence[Callable[[], Any]], ahead: int, count: int) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(ahead):
        calls[i % len(calls)]()
    begin.record()
    for i in range(count):
        calls[i % len(calls)]()
    end.record()
    end.synchronize()
    return 1000 * begin.elapsed_time(end) / count


def in_graph(calls: Sequence[Callable[[], Any]], launches: int) -> Callable[[], Any]:
    """Return the replay of a CUDA graph of so many calls, in turn over the buffer sets."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            calls[i % len(calls)]()
    return graph.replay


def sustained_rounds(contestants: dict[str, Sequence[Callable[[], Any]]], effort: Effort) -> dict[str, list[float]]:
    """As `shuffled_rounds` by `sustained_batch`, of graphs of about a millisecond, each of as many calls as others'."""
    shortest = min((cuda_batch(calls, len(calls)) for calls in contestants.values()), default=GRAPH_US)
    sets = max(len(calls) for calls in contestants.values())
    launches = sets * max(1, round(GRAPH_US / shortest / sets))
    graphs = {name: [in_graph(calls, launches)] for name, calls in contestants.items()}
    times = shuffled_rounds(sustained_batch, graphs, effort, seed=1)
    return {name: [t / launches for t in of_graph] for name, of_graph in times.items()}


def count_for(batch: Batch, calls: Sequence[Callable[[], Any]], batch_us: float) -> int:
    """Return how many calls make a batch of that length; a multiple of the buffer sets."""
    batch(calls, len(calls))
    once = batch(calls, len(calls))
    sets = max(1, round(batch_us / max(once, 0.1) / len(calls)))
    return len(calls) * min(sets, max(1, LONGEST_BATCH // len(calls)))


def shuffled_rounds(
    batch: Batch,
    contestants: dict[str, Sequence[Callable[[], Any]]],
    effort: Effort,
    seed: int = 0,
    count: int | None = None,
) -> dict[str, list[float]]:
    """Return microseconds a call, one number a round, for each contestant; every round in another order.

    A batch has as many calls as `effort` asks for, or `count`.
    """
    counts = {name: count or count_for(batch, calls, effort.batch_us) for name, calls in contestants.items()}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    shuffle = random.Random(seed).shuffle
    for _ in range(effort.rounds):
        shuffle(order)
        for name in order:
            times[name].append(batch(contestants[name], counts[name]))
    return times


def spread(times: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the 10th and 90th percentile."""
    ordered = sorted(times)
    last = len(ordered) - 1
    return statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)]
