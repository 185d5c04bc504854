"""Results as lines while they come, as JSON, as a Markdown table, and against what the project promises."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchlib import machine
from benchlib.contest import COPY, OURS
from benchlib.work import Result

STREAMING = ("vector_add", "gelu_forward", "silu_forward")
ROWS = ("softmax_forward", "layer_norm_forward", "rms_norm_forward")
STREAMING_SHARE = 0.95
ROW_SHARE = 0.88
CPU_SPEEDUP = 2.0


def lines(results: Sequence[Result]) -> str:
    """Return what one row of a benchmark gave, the fastest first."""
    first = results[0]
    head = f"{first.kernel} {first.dtype} {first.case} ({first.device})"
    ordered = sorted(results, key=lambda r: (math.isnan(r.median_us), r.median_us / r.bytes))
    return "\n".join([head, *(f"    {_line(result)}" for result in ordered)])


def _line(result: Result) -> str:
    if math.isnan(result.median_us):
        return f"{result.contestant:<32} {result.note}"
    wobble = 50 * (result.p90_us - result.p10_us) / result.median_us
    error = "" if result.error is None else f"  error {result.error:.2f}"
    return (
        f"{result.contestant:<32} {result.median_us:>10.1f} us ±{wobble:>4.1f}% {result.gb_s:>8.1f} GB/s "
        f"{result.copy_share:>6.3f} of copy{error}  {result.note}".rstrip()
    )


def as_json(facts: dict[str, Any], results: Sequence[Result]) -> str:
    """Return machine and results as JSON."""
    rows = [{k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(r).items()} for r in results]
    return json.dumps({"machine": facts, "results": rows}, indent=1, allow_nan=True) + "\n"


def as_markdown(facts: dict[str, Any], results: Sequence[Result]) -> str:
    """Return machine and results as a page for docs/benchmarks/."""
    names = [n for n in dict.fromkeys(r.contestant for r in results) if n != COPY]
    header = ["kernel", "dtype", "case", *(f"{name}, GB/s (of copy)" for name in names), "copy", "error"]
    page = ["# Benchmark", "", *(f"{line}  " for line in machine.text(facts).splitlines()), ""]
    page += ["Medians; bytes read once and written once; error as a share of the tolerance.", ""]
    page += [_row(header), _row(["---"] * len(header))]
    for row in _grouped(results):
        by_name = {r.contestant: r for r in row}
        error = next((f"{r.error:.2f}" for r in row if r.error is not None), "")
        cells = [_cell(by_name.get(name)) for name in names]
        copy = by_name.get(COPY)
        page.append(_row([row[0].kernel, row[0].dtype, row[0].case, *cells, f"{copy.gb_s:.0f}" if copy else "", error]))
    page += ["", *(f"- {line}" for line in verdicts(results))]
    return "\n".join(page) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    if math.isnan(result.median_us):
        return "fails"
    return f"{result.gb_s:.0f} ({result.copy_share:.3f})"


def _grouped(results: Sequence[Result]) -> Iterator[list[Result]]:
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault((result.kernel, result.dtype, result.case, result.device), []).append(result)
    yield from groups.values()


def verdicts(results: Sequence[Result]) -> list[str]:
    """Return a line for each promise that these results bear on: kept, or by how much not."""
    found = [line for row in _grouped(results) for line in _row_verdicts(row)]
    return found + list(_odd_verdicts(results))


def _row_verdicts(row: Sequence[Result]) -> Iterator[str]:
    timed = {r.contestant: r for r in row if not math.isnan(r.median_us)}
    ours = timed.get(OURS)
    if ours is None:
        return
    title = f"{ours.kernel} {ours.dtype} {ours.case}"
    if ours.error is not None and not ours.error <= 1:
        yield f"{title}: WRONG, {ours.error:.2f} of the tolerance"
    peers = {name: r for name, r in timed.items() if name not in (OURS, COPY) and "else" not in r.note}
    if ours.device == "cpu":
        yield from _cpu_verdicts(title, ours, timed.get("numpy"))
    elif ours.kernel in STREAMING:
        yield _verdict(title, "of copy", ours.copy_share, STREAMING_SHARE)
    elif ours.kernel in ROWS:
        yield _verdict(title, "of copy", ours.copy_share, ROW_SHARE)
        if peers:
            best = max(peers.values(), key=lambda r: r.gb_s)
            yield _verdict(title, f"of the best peer, {best.contestant}", ours.gb_s / best.gb_s, 1.0)


def _cpu_verdicts(title: str, ours: Result, numpy: Result | None) -> Iterator[str]:
    if numpy is not None:
        bar = 1.0 if ours.kernel == "vector_add" else CPU_SPEEDUP
        yield _verdict(title, "times numpy's speed", ours.gb_s / numpy.gb_s, bar)


def _odd_verdicts(results: Sequence[Result]) -> Iterator[str]:
    ours = {
        (r.kernel, r.dtype, int(r.case)): r
        for r in results
        if r.contestant == OURS and r.case.isdigit() and r.device == "cuda"
    }
    for (kernel, dtype, n), odd in ours.items():
        even = ours.get((kernel, dtype, n + 1))
        if n % 2 and even:
            yield _verdict(f"{kernel} {dtype} n odd", "of n even", odd.gb_s / even.gb_s, STREAMING_SHARE)


def _verdict(title: str, what: str, value: float, bar: float) -> str:
    return f"{'ok  ' if value >= bar else 'LOW '} {title}: {value:.3f} {what} (bar {bar})"


def save(path: str | None, content: str) -> None:
    """Write a report, if a file was asked for."""
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content)
