"""Attention beside cuDNN, FlashAttention-2 and Triton: checked against float64, and timed sustained and in bursts."""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchlib import attention_check, attention_cpu, attention_report, attention_sides, machine, plot, report, timing
from benchlib.attention_cases import DTYPES, HEADS, KERNELS, Problem, arrays_of, plan, with_wide_scores
from benchlib.attention_sides import Call
from benchlib.contest import OURS
from benchlib.work import Result

GRAPH_BELOW_US = 400.0
GRAPH_LAUNCHES = 10
BURST_CALLS = 3
NAME = "attention"


@dataclass(frozen=True)
class Effort:
    """How many rounds of each kind; sustained ones are timed for `sustained.batch_us`, after twice as long."""

    sustained: timing.Effort
    burst_rounds: int


FULL = Effort(timing.Effort(rounds=9, batch_us=20_000.0), burst_rounds=2)
QUICK = Effort(timing.Effort(rounds=2, batch_us=20_000.0), burst_rounds=1)


def is_asked(names: Sequence[str]) -> bool:
    """Return whether the command asks for attention; raises SystemExit where it asks for other kernels, too."""
    own = [name for name in names if name in (NAME, *KERNELS)]
    if own and len(own) < len(names):
        raise SystemExit("attention is measured by itself\n  fix: name its kernels, or others, in one command")
    return bool(own)


def main(options: argparse.Namespace) -> int:
    """Measure the kernels that are asked for and there; return 1 if a result of ours is wrong."""
    if options.device == "cpu":
        return attention_cpu.main(options)
    _check(options)
    facts = machine.describe("cuda")
    print(machine.text(facts), flush=True)
    print(attention_report.HOW, flush=True)
    results: list[Result] = []
    for kernel in KERNELS if NAME in options.what else dict.fromkeys(options.what):
        begun = time.monotonic()
        results += measure_kernel(kernel, options)
        report.save(options.json, report.as_json(facts, results))
        print(f"{kernel}: {time.monotonic() - begun:.0f} s", flush=True)
    report.save(options.markdown, attention_report.as_markdown(facts, results, options.plot))
    plot.save(options.plot, [r for r in results if r.flops], machine.text(facts).splitlines()[0])
    print("\n".join(attention_report.summary(results)), flush=True)
    return int(any(r.contestant.startswith(OURS) and r.note for r in results))


def _check(options: argparse.Namespace) -> None:
    from benchlib.cli import default_device

    plot.check(options.plot)
    if options.sweep:
        raise SystemExit("attention has no --sweep")
    if default_device() != "cuda":
        raise SystemExit("torch sees no CUDA device here\n  fix: tools/bench attention_forward --device cpu")


def measure_kernel(kernel: str, options: argparse.Namespace) -> list[Result]:
    """Return the results of a kernel's rows; none, and a line that says so, where the wheel lacks it."""
    if lacking := attention_sides.missing(kernel):
        print(f"{kernel}: skipped, the installed wheel has no {', '.join(lacking)}", flush=True)
        return []
    dtypes = options.dtypes.split(",") if options.dtypes else list(DTYPES)
    if unknown := set(dtypes) - set(DTYPES):
        raise SystemExit(f"attention is measured in f16 and bf16, not {', '.join(sorted(unknown))}")
    heads = [int(head) for head in options.columns.split(",")] if options.columns else list(HEADS)
    results: list[Result] = []
    for problem in plan(kernel, dtypes, heads, options.quick):
        measured = measure(problem, QUICK if options.quick else FULL)
        print(attention_report.lines(problem, measured), flush=True)
        results += measured
    return results


def measure(problem: Problem, effort: Effort, device: str = "cuda") -> list[Result]:
    """Check and time every side on one row; those that fail are in the results with a note that says why."""
    arrays = arrays_of(problem, device)
    calls, failures = start(problem, arrays)
    errors, notes = check(problem, arrays, calls)
    times = time_all(calls, effort, failures)
    results = [_result(problem, name, *times[name], errors.get(name, {}), notes.get(name, "")) for name in times]
    del arrays, calls
    release()
    return results + [_without_time(problem, name, text) for name, text in failures.items()]


def start(problem: Problem, arrays: dict[str, Any]) -> tuple[dict[str, Call], dict[str, str]]:
    """Make every side's call and run it once; return the calls, and why others have none."""
    calls, failures = {}, {}
    for name, make in attention_sides.sides_of(problem, arrays).items():
        try:
            calls[name] = make()
            calls[name]()
        except Exception as error:  # whatever a peer raises
            calls.pop(name, None)
            failures[name] = reason(error)
    return calls, failures


def reason(error: Exception) -> str:
    """Return an error in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:150] if text else ''}"


def check(
    problem: Problem, arrays: dict[str, Any], calls: dict[str, Call]
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Return errors by side, on N(0, 1) and with large scores, and what is wrong with whom."""
    places = attention_check.places_of(problem)
    wide = with_wide_scores(problem, arrays, places)
    wide_calls, failures = start(problem, wide)
    errors, notes = compare(problem, arrays, calls, places)
    wide_errors, wide_notes = compare(problem, wide, wide_calls, places)
    for name, found in wide_errors.items():
        errors.setdefault(name, {}).update({f"{kind}_wide": value for kind, value in found.items()})
    for name, note in (failures | wide_notes).items():
        if name in calls:
            notes.setdefault(name, f"{note} (large scores)")
    return errors, notes


def compare(
    problem: Problem, arrays: dict[str, Any], calls: dict[str, Call], places: Sequence[tuple[int, int]]
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Return errors by side on some inputs, and what is wrong with whom."""
    expected = attention_check.references(problem, arrays, places)
    judged = {name: call for name, call in calls.items() if attention_sides.computes(name)}
    found = {name: attention_check.errors(problem, arrays, call, places, expected) for name, call in judged.items()}
    errors, notes = {}, {}
    for name, own in found.items():
        largest, times = attention_check.worst(problem, found, name)
        errors[name] = {"error": largest, "times_cudnn": times}
        errors[name] |= {"lse": own["lse"]} if "lse" in own else {}
        if text := attention_check.verdict(problem, found, name):
            notes[name] = f"WRONG: {text}"
    return errors, notes


def time_all(
    calls: dict[str, Call], effort: Effort, failures: dict[str, str]
) -> dict[str, tuple[list[float], list[float]]]:
    """Return microseconds of each side, sustained and in bursts; short work goes in graphs, everyone's alike."""
    shortest = min((timing.cuda_batch([call], 3) for call in calls.values()), default=math.inf)
    launches = GRAPH_LAUNCHES if shortest < GRAPH_BELOW_US else 1
    timed = graphs_of(calls, failures) if launches > 1 else {name: [call] for name, call in calls.items()}
    bursts = timing.Effort(rounds=effort.burst_rounds)
    sustained = timing.shuffled_rounds(timing.sustained_batch, timed, effort.sustained)
    burst = timing.shuffled_rounds(timing.burst_batch, timed, bursts, seed=1, count=BURST_CALLS)
    return {name: tuple([t / launches for t in kind[name]] for kind in (sustained, burst)) for name in timed}


def graphs_of(calls: dict[str, Call], failures: dict[str, str]) -> dict[str, list[Callable[[], Any]]]:
    """Return each call's graph; one that cannot be captured is a failure."""
    graphs = {}
    for name, call in calls.items():
        try:
            graphs[name] = [timing.in_graph([call], GRAPH_LAUNCHES)]
        except Exception as error:  # whatever a peer raises
            failures[name] = f"in a graph, {reason(error)}"
    return graphs


def release() -> None:
    """Give memory back, that of graphs, too."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def _result(
    problem: Problem,
    name: str,
    sustained: Sequence[float],
    burst: Sequence[float],
    errors: dict[str, float],
    note: str,
) -> Result:
    result = _without_time(problem, name, note)
    result.median_us, result.p10_us, result.p90_us = timing.spread(sustained)
    result.gb_s = problem.bytes / result.median_us / 1e3
    result.extra |= {"burst_us": timing.spread(burst)[0], **errors}
    return result


def _without_time(problem: Problem, name: str, note: str) -> Result:
    return Result(
        problem.kernel,
        problem.dtype,
        problem.case,
        "cuda",
        name,
        problem.bytes,
        note=note,
        flops=problem.flops,
        extra={"panel": f"d{problem.head} {problem.mask}", "size": problem.length},
    )
