"""Attention on the CPU, f32, beside torch's scaled_dot_product_attention, on as many threads."""

from __future__ import annotations

import argparse
import os
import statistics

from benchlib import machine, report, timing
from benchlib.attention_cases import FORWARD, Problem, arrays_of
from benchlib.attention_sides import TORCH, Call, our_forward, torch_forward
from benchlib.contest import OURS
from benchlib.work import Result

SIZES = ((1, 8, 1024), (2, 8, 512), (1, 4, 4096))
QUICK_SIZES = ((1, 2, 256),)
ROUNDS, QUICK_ROUNDS = 41, 3
MOST_ERROR = 2e-6  # |got - float64| / |float64|


def main(options: argparse.Namespace) -> int:
    """Measure the forward kernel; return 1 if its result is wrong."""
    if set(options.what) != {FORWARD}:
        raise SystemExit(f"of attention, {FORWARD} is measured on the CPU\n  fix: tools/bench {FORWARD} --device cpu")
    os.environ["GRISTMILL_NUM_THREADS"] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    facts = machine.describe("cpu")
    print(machine.text(facts), f"{options.threads} threads, f32", sep="\n", flush=True)
    heads = [int(head) for head in options.columns.split(",")] if options.columns else [64, 128]
    sizes, rounds = (QUICK_SIZES, QUICK_ROUNDS) if options.quick else (SIZES, ROUNDS)
    problems = [
        Problem(FORWARD, "f32", *size, head, mask) for head in heads for size in sizes for mask in (False, True)
    ]
    ratios, results, is_right = list[float](), list[Result](), True
    for problem in problems:
        row = measure(problem, rounds)
        ours, torchs = (next(r for r in row if r.contestant == name) for name in (OURS, TORCH))
        error = ours.extra["error"]
        ratios.append(torchs.median_us / ours.median_us)
        is_right &= error <= MOST_ERROR
        results += row
        speeds = "  ".join(f"{r.contestant} {r.flops / 1e3 / r.median_us:.0f} GFLOP/s" for r in row)
        print(f"{problem.title}: {speeds}, {ratios[-1]:.3f} of torch, error {error:.1e}", flush=True)
    report.save(options.json, report.as_json(facts, results))
    print(f"{FORWARD}: {statistics.geometric_mean(ratios):.3f} of torch, the geometric mean of {len(ratios)} rows")
    return int(not is_right)


def measure(problem: Problem, rounds: int) -> list[Result]:
    """Time both sides in turn, and compare ours with float64."""
    arrays = arrays_of(problem, "cpu")
    calls: dict[str, Call] = {
        OURS: our_forward(problem, arrays),
        TORCH: torch_forward(TORCH, problem, arrays),
    }
    out = calls[OURS]()["out"].clone()
    exact = torch_forward(TORCH, problem, {name: arrays[name].double() for name in ("q", "k", "v")})()["out"]
    error = float((out - exact).norm() / exact.norm())
    times = timing.shuffled_rounds(
        timing.cpu_batch, {name: [call] for name, call in calls.items()}, timing.Effort(rounds=rounds)
    )
    return [_result(problem, name, times[name], {"error": error} if name == OURS else {}) for name in calls]


def _result(problem: Problem, name: str, times: list[float], extra: dict[str, float]) -> Result:
    size, median = 2 * problem.bytes, statistics.median(times)
    how = {"median_us": median, "flops": problem.flops, "extra": extra}
    return Result(problem.kernel, problem.dtype, problem.case, "cpu", name, size, **how)
