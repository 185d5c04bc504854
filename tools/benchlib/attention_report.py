"""What was measured of attention, as lines while it comes, as a page, and in one line for each kernel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchlib import machine
from benchlib.attention_cases import DECODE, Problem
from benchlib.attention_sides import CUDNN, READ
from benchlib.contest import OURS
from benchlib.report import grouped, table_row
from benchlib.work import Result

HOW = """\
Medians of shuffled rounds: sustained, timed for 20 ms after 40 ms of the same; and in brackets burst, the first calls
after a pause of 0.15 s. Calls under 0.4 ms go by tens in a CUDA graph, everyone's. Causal counts half the operations.
Errors are |got - float64| / |float64| of two heads, as multiples of cuDNN's: on N(0, 1), and with scores up to 50."""
UNITS = {True: "GB/s", False: "TFLOP/s"}


def lines(problem: Problem, results: Sequence[Result]) -> str:
    """Return what one row gave, the fastest first."""
    ordered = sorted(results, key=lambda r: (math.isnan(r.median_us), r.median_us))
    return "\n".join([problem.title, *(f"    {_line(result, results)}" for result in ordered)])


def _line(result: Result, row: Sequence[Result]) -> str:
    if math.isnan(result.median_us):
        return f"{result.contestant:<16} {result.note}"
    sustained, burst = speeds(result)
    time = f"{result.median_us:>9.1f} us {sustained:>7.1f} ({burst:.1f}) {UNITS[not result.flops]}"
    ratio = "{:.3f} ({:.3f})".format(*ratios(result, row))
    return f"{result.contestant:<16} {time}  {ratio} of {base_of(result)}  {_errors(result)}  {result.note}".rstrip()


def _errors(result: Result) -> str:
    if "error" not in result.extra:
        return ""
    extra = {"times_cudnn": math.nan, "error_wide": math.nan, "times_cudnn_wide": math.nan} | result.extra
    text = "error {error:.1e} x{times_cudnn:.2f}, large scores {error_wide:.1e} x{times_cudnn_wide:.2f}".format(**extra)
    return text + ("" if "lse" not in extra else f", lse {max(extra['lse'], extra.get('lse_wide', 0.0)):.0e}")


def speeds(result: Result) -> tuple[float, float]:
    """Return TFLOP/s, or GB/s of what is only read, sustained and in bursts."""
    amount = result.flops / 1e6 if result.flops else result.bytes / 1e3
    return amount / result.median_us, amount / result.extra["burst_us"]


def base_of(result: Result) -> str:
    """Return whose speed others' are a share of."""
    return READ if result.kernel == DECODE else CUDNN


def ratios(result: Result, row: Sequence[Result]) -> tuple[float, float]:
    """Return the speed as a share of cuDNN's, or of reading; NaN where that has no time."""
    base = next((r for r in row if r.contestant == base_of(result) and not math.isnan(r.median_us)), None)
    if base is None or math.isnan(result.median_us):
        return math.nan, math.nan
    return base.median_us / result.median_us, base.extra["burst_us"] / result.extra["burst_us"]


def as_markdown(facts: dict[str, Any], results: Sequence[Result], picture: str | None = None) -> str:
    """Return machine and results as a page for docs/benchmarks/; a plot beside it is shown."""
    title = f"# Attention on {facts.get('card', 'this machine')}"
    page = [title, "", *(f"{line}  " for line in machine.text(facts).splitlines()), "", HOW]
    page += ["", f"![TFLOP/s over the length]({Path(picture).name})"] if picture else []
    for kernel in dict.fromkeys(result.kernel for result in results):
        page += _table(kernel, [result for result in results if result.kernel == kernel])
    return "\n".join([*page, "", *(f"- {line}" for line in summary(results))]) + "\n"


def _table(kernel: str, results: Sequence[Result]) -> list[str]:
    names = list(dict.fromkeys(result.contestant for result in results))
    unit, base = UNITS[kernel == DECODE], base_of(results[0])
    header = ["dtype", "case", *(f"{name}, {unit}" for name in names), f"of {base}", "error", "large scores"]
    table = ["", f"## {kernel}", "", table_row(header), table_row(["---"] * len(header))]
    for row in grouped(results):
        by_name = {result.contestant: result for result in row}
        cells = [_cell(by_name.get(name)) for name in names]
        table.append(table_row([row[0].dtype, row[0].case, *cells, *_own(by_name.get(OURS), row)]))
    return table


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    return "fails" if math.isnan(result.median_us) else "{:.0f} ({:.0f})".format(*speeds(result))


def _own(ours: Result | None, row: Sequence[Result]) -> list[str]:
    if ours is None or math.isnan(ours.median_us):
        return ["", "", ""]
    errors = [ours.extra.get(f"times_cudnn{kind}", math.nan) for kind in ("", "_wide")]
    cells = [f"{error:.2f}" for error in errors] if not ours.note else [ours.note, ""]
    return ["{:.2f} ({:.2f})".format(*ratios(ours, row)), *cells]


def summary(results: Sequence[Result]) -> list[str]:
    """Return a line for each kernel, how fast it is and where the least; and one for each wrong result."""
    rows = list(grouped(results))
    noted = [r for row in rows for r in row if r.note and (r.contestant == OURS or not math.isnan(r.median_us))]
    wrong = [f"{r.kernel} {r.dtype} {r.case}: {r.contestant}: {r.note}" for r in noted]
    kernels = dict.fromkeys(result.kernel for result in results)
    return [line for kernel in kernels for line in _summary([row for row in rows if row[0].kernel == kernel])] + wrong


def _summary(rows: Sequence[Sequence[Result]]) -> Iterator[str]:
    found = [(*ratios(r, row), r) for row in rows for r in row if r.contestant == OURS]
    found = [entry for entry in found if not math.isnan(entry[0])]
    if found:
        mean, burst = (statistics.geometric_mean(entry[kind] for entry in found) for kind in (0, 1))
        least, _, row = min(found, key=lambda entry: entry[0])
        yield (
            f"{row.kernel}: {mean:.3f} of {base_of(row)} ({burst:.3f} in bursts), the geometric mean of {len(found)} "
            f"rows; least {least:.3f}, {row.dtype} {row.case}"
        )
