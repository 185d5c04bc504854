"""Results as lines while they come, as JSON, as a Markdown table, and against what the project promises."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
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
PRODUCTS = {
    "matmul": {
        "1024 cubed": 1.04,
        "2048 cubed": 0.99,
        "4096 cubed": 0.99,
        "8192 cubed": 1.00,
        "1536 cubed": 0.98,
        "3072 cubed": 0.98,
        "2432 x 1792 x 4096": 0.98,
        "8192 x 8192 x 512": 1.03,
        "4096 x 4096 x 1024": 1.03,
        "16 x 8192 x 8192": 0.98,
        "64 x 8192 x 8192": 0.98,
        "128 x 4096 x 4096": 0.98,
        "1000 cubed": 0.90,
        "1000 x 3000 x 777": 0.90,
        "4095 cubed": 1.5,
    },
    "scaled_matmul": {"8192 cubed": 0.95},
}
"""By kernel and case, in halves and 8-bit floats: the share of the best peer's speed that is promised."""
PRODUCT_DTYPES = ("f16", "bf16", "f8e4m3-bf16")


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
    speed = f"{result.gb_s:>8.1f} GB/s {result.copy_share:>6.3f} of copy"
    if result.flops:
        speed = f"{result.tflop_s:>8.1f}{_in_bursts(result, '.1f')} TFLOP/s"
    time = f"{result.median_us:>10.1f} us ±{wobble:>4.1f}%"
    return f"{result.contestant:<32} {time} {speed}{error}  {result.note}".rstrip()


def _in_bursts(result: Result, form: str) -> str:
    """The speed behind a pause, in brackets, where that was measured too."""
    burst = result.extra.get("burst_us")
    return f" ({result.flops / burst / 1e6:{form}})" if burst else ""


def as_json(facts: dict[str, Any], results: Sequence[Result]) -> str:
    """Return machine and results as JSON."""
    rows = [_without_nan(asdict(result)) for result in results]
    return json.dumps({"machine": facts, "results": rows}, indent=1, allow_nan=True) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def as_markdown(facts: dict[str, Any], results: Sequence[Result]) -> str:
    """Return machine and results as a page for docs/benchmarks/."""
    page = ["# Benchmark", "", *(f"{line}  " for line in machine.text(facts).splitlines())]
    page += _streaming_table([r for r in results if not r.flops])
    page += _arithmetic_table([r for r in results if r.flops])
    page += ["", *(f"- {line}" for line in verdicts(results))]
    return "\n".join(page) + "\n"


def _streaming_table(results: Sequence[Result]) -> list[str]:
    caption = "Medians; bytes read once and written once; error as a share of the tolerance."
    names = [n for n in dict.fromkeys(r.contestant for r in results) if n != COPY]
    return _table(results, caption, {name: f"{name}, GB/s (of copy)" for name in names}, _cell, "copy", _copy)


def _arithmetic_table(results: Sequence[Result]) -> list[str]:
    caption = (
        "Medians of shuffled rounds: sustained, graphs of about a millisecond behind twice as much of the same; in"
        " brackets bursts of 5 ms behind a pause. Error as a share of the tolerance."
    )
    names = dict.fromkeys(r.contestant for r in results)
    titles = {name: f"{name}, TFLOP/s" for name in names}
    return _table(results, caption, titles, _speed, "of the best peer", _share_of_peer)


def _table(
    results: Sequence[Result],
    caption: str,
    titles: dict[str, str],
    cell: Callable[[Result | None], str],
    last: str,
    last_cell: Callable[[Sequence[Result]], str],
) -> list[str]:
    """A row for each case: a cell for each contestant, one for all of them, and our error; nothing without results."""
    if not results:
        return []
    header = ["kernel", "dtype", "case", *titles.values(), last, "error"]
    table = ["", caption, "", table_row(header), table_row(["---"] * len(header))]
    for row in grouped(results):
        by_name = {r.contestant: r for r in row}
        cells = [cell(by_name.get(name)) for name in titles]
        table.append(table_row([*_title(row), *cells, last_cell(row), _error(row)]))
    return table


def _copy(row: Sequence[Result]) -> str:
    return next((f"{r.gb_s:.0f}" for r in row if r.contestant == COPY), "")


def _share_of_peer(row: Sequence[Result]) -> str:
    _, ratio = _best_peer(row)
    _, burst = _best_peer(row, lambda r: r.extra.get("burst_us", math.nan))
    return (f"{ratio:.3f}" + (f" ({burst:.3f})" if burst > 0 else "")) if ratio else ""


def _title(row: Sequence[Result]) -> list[str]:
    return [row[0].kernel, row[0].dtype, row[0].case]


def _error(row: Sequence[Result]) -> str:
    return next((f"{r.error:.2f}" for r in row if r.error is not None), "")


def _speed(result: Result | None) -> str:
    if result is None:
        return ""
    return "fails" if math.isnan(result.median_us) else f"{result.tflop_s:.0f}{_in_bursts(result, '.0f')}"


def _best_peer(row: Sequence[Result], time: Callable[[Result], float] = lambda r: r.median_us) -> tuple[str, float]:
    """Return the fastest of those who compute the same, and our speed as a share of its; 0 where there is none."""
    timed = {r.contestant: r for r in row if not math.isnan(time(r))}
    peers = [r for name, r in timed.items() if name not in (OURS, COPY) and "else" not in r.note]
    if OURS not in timed or not peers:
        return "", 0.0
    best = min(peers, key=time)
    return best.contestant, time(best) / time(timed[OURS])


def table_row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    if math.isnan(result.median_us):
        return "fails"
    return f"{result.gb_s:.0f} ({result.copy_share:.3f})"


def grouped(results: Sequence[Result]) -> Iterator[list[Result]]:
    """Return what all contestants gave for the same work, together."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault((result.kernel, result.dtype, result.case, result.device), []).append(result)
    yield from groups.values()


def verdicts(results: Sequence[Result]) -> list[str]:
    """Return a line for each promise that these results bear on: kept, or by how much not."""
    found = [line for row in grouped(results) for line in _row_verdicts(row)]
    return found + list(_odd_verdicts(results))


def _row_verdicts(row: Sequence[Result]) -> Iterator[str]:
    timed = {r.contestant: r for r in row if not math.isnan(r.median_us)}
    ours = timed.get(OURS)
    if ours is None:
        return
    title = f"{ours.kernel} {ours.dtype} {ours.case}"
    if ours.error is not None and not ours.error <= 1:
        yield f"{title}: WRONG, {ours.error:.2f} of the tolerance"
    best, ratio = _best_peer(row)
    if ours.device == "cpu":
        yield from _cpu_verdicts(title, ours, timed.get("numpy"))
    elif ours.kernel in STREAMING:
        yield _verdict(title, "of copy", ours.copy_share, STREAMING_SHARE)
    elif ours.kernel in ROWS:
        yield _verdict(title, "of copy", ours.copy_share, ROW_SHARE)
        if ratio:
            yield _verdict(title, f"of the best peer, {best}", ratio, 1.0)
    elif ratio and (bar := _product_bar(ours)):
        yield _verdict(title, f"of the best peer, {best}", ratio, bar)


def _product_bar(ours: Result) -> float | None:
    sizes = ours.case.removesuffix(" b.T")
    return PRODUCTS.get(ours.kernel, {}).get(sizes) if ours.dtype in PRODUCT_DTYPES else None


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
