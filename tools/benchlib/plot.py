"""A plot of speed over size: TFLOP/s, or GB/s of work that is more moving than computing; a panel for each dtype.

Backgrounds are transparent and colours of medium lightness, so that a plot is readable on light pages and on dark ones.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchlib.contest import COPY, OURS
from benchlib.work import Result

FORMATS = (".svg", ".png")
GREY = "#868e96"
COLOURS = {
    OURS: "#e8590c",
    f"{OURS} lazy": "#ffa94d",
    "torch": "#1c7ed6",
    "cuDNN": "#1c7ed6",
    "FlashAttention-2": "#ae3ec9",
    "triton": "#37b24d",
    "numpy": "#ae3ec9",
    COPY: GREY,
}
OTHERS = ("#0ca678", "#d6336c", "#7048e8", "#f08c00", "#1098ad")
PANEL_INCHES = (5.2, 3.4)
LABEL_POINTS = 11.0  # from one label to the next, at least


@dataclass
class Line:
    """The points of one contestant: (size, speed) of `regular` cases, which are joined, and of the others, hollow."""

    name: str
    regular: list[tuple[float, float]] = field(default_factory=list)
    others: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Panel:
    """What is drawn in one pair of axes."""

    title: str
    size: str
    unit: str
    lines: list[Line]


def check(path: str | None) -> None:
    """Raise SystemExit, before anything is measured, if a plot is asked for that cannot be written."""
    if path is None:
        return
    if Path(path).suffix not in FORMATS:
        raise SystemExit(f"--plot {path}: cannot write that format\n  fix: name a file that ends in .svg or .png")
    if not _is_installed("matplotlib"):
        raise SystemExit("--plot needs matplotlib, which is not installed here\n  fix: pip install matplotlib")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:
        return False


def panels_of(results: Sequence[Result]) -> list[Panel]:
    """Return a panel for each kernel, dtype and way its operands lie, or what a result calls its panel, in order."""
    found: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        if not math.isnan(result.median_us):
            layout = result.extra.get("panel") or _layout(result.case)
            found.setdefault((result.kernel, result.dtype, layout, result.device), []).append(result)
    return [_panel(list(key), rows) for key, rows in found.items()]


def _panel(key: list[str], rows: Sequence[Result]) -> Panel:
    kernel, dtype, layout, device = key
    is_arithmetic = any(row.flops for row in rows)
    lines = {name: Line(name) for name in dict.fromkeys(row.contestant for row in rows)}
    for row in rows:
        line = lines[row.contestant]
        speed = row.tflop_s if is_arithmetic else row.gb_s
        (line.regular if _is_regular(row, is_arithmetic) else line.others).append((_size(row, is_arithmetic), speed))
    for line in lines.values():
        line.regular.sort()
    title = " ".join(filter(None, [kernel, dtype, layout, "on the CPU" if device == "cpu" else ""]))
    return Panel(title, _axis(rows[0], is_arithmetic), "TFLOP/s" if is_arithmetic else "GB/s", list(lines.values()))


def _axis(row: Result, is_arithmetic: bool) -> str:
    """What the size along a panel is."""
    if "size" in row.extra:
        return "length of the sequences"
    return (
        "M = N = K; hollow: cube root of M N K" if is_arithmetic else "columns, or elements; hollow: no multiple of 64"
    )


def _layout(case: str) -> str:
    return " ".join(word for word in case.split() if word.endswith(".T"))


def _is_regular(row: Result, is_arithmetic: bool) -> bool:
    """Whether its size is like those of its neighbours: a cube, and a multiple of what tiles are made of."""
    return ("cubed" in row.case or "size" in row.extra or not is_arithmetic) and _size(row, is_arithmetic) % 64 == 0


def _size(row: Result, is_arithmetic: bool) -> float:
    if "size" in row.extra:
        return float(row.extra["size"])
    if is_arithmetic:
        return round((row.flops / 2) ** (1 / 3), 3)
    numbers = re.findall(r"\d+", row.case)
    return float(numbers[-1]) if numbers else float(row.bytes)


def save(path: str | None, results: Sequence[Result], caption: str = "") -> None:
    """Draw the results into a file, if one was asked for; without results there is nothing to draw."""
    panels = panels_of(results)
    if path is None or not panels:
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure = draw(panels, caption)
    metadata = {"Date": None} if path.endswith(".svg") else {}
    figure.savefig(path, transparent=True, dpi=160, metadata=metadata)


def draw(panels: Sequence[Panel], caption: str = "") -> Any:
    """Return a figure of the panels, up to three beside each other."""
    import matplotlib

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gristmill", "font.size": 9})
    from matplotlib.figure import Figure

    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure((PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel, place in zip(panels, axes.flat, strict=False):
        _draw_panel(panel, place)
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    figure.suptitle(caption, color=GREY, fontsize=8)
    figure.draw_without_rendering()
    for panel, place in zip(panels, axes.flat, strict=False):
        _label(panel, place)
    return figure


def _draw_panel(panel: Panel, axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    for line in panel.lines:
        colour = colour_of(line.name, panel)
        style = "--" if line.name == COPY else "-"
        width, order = (2.2, 3) if line.name == OURS else (1.4, 2)
        if line.regular:
            axes.plot(*zip(*line.regular, strict=True), style, color=colour, lw=width, marker="o", ms=3.5, zorder=order)
        if line.others:
            axes.plot(*zip(*line.others, strict=True), "o", color=colour, mfc="none", ms=5, zorder=order)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.margins(x=0.05)
    axes.set_title(panel.title, color=GREY, loc="left", fontsize=10)
    axes.set_xlabel(panel.size, color=GREY)
    axes.set_ylabel(panel.unit, color=GREY)
    axes.tick_params(colors=GREY)
    axes.grid(color=GREY, alpha=0.25, lw=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GREY)


def _label(panel: Panel, axes: Any) -> None:
    """Write each name at the end of its line, in its colour; names that would meet are moved apart."""
    ends = {line.name: max(line.regular or line.others) for line in panel.lines}
    to_pixels, points = axes.transData.transform, axes.figure.dpi / 72
    wanted = {name: to_pixels(end)[1] / points for name, end in ends.items()}
    for name, height in spread_out(wanted, LABEL_POINTS).items():
        offset = (6, height - wanted[name])
        weight = "bold" if name == OURS else "normal"
        axes.annotate(
            name, ends[name], offset, textcoords="offset points", va="center", fontsize=8, fontweight=weight,
            color=colour_of(name, panel), annotation_clip=False,
        )  # fmt: skip


def spread_out(heights: dict[str, float], least: float) -> dict[str, float]:
    """Return heights that are at least so far apart, in the same order and about the same middle."""
    order = sorted(heights, key=lambda name: heights[name])
    groups = [[heights[name] - i * least] for i, name in enumerate(order)]  # what must not fall from one to the next
    merged: list[list[float]] = []
    for group in groups:
        merged.append(group)
        while len(merged) > 1 and _mean(merged[-2]) > _mean(merged[-1]):
            last = merged.pop()
            merged[-1] = merged[-1] + last
    level = [_mean(group) for group in merged for _ in group]
    return {name: level[i] + i * least for i, name in enumerate(order)}


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def colour_of(name: str, panel: Panel) -> str:
    """Return the colour of a contestant, by its name or by its place among those without one."""
    if name in COLOURS:
        return COLOURS[name]
    unknown = [line.name for line in panel.lines if line.name not in COLOURS]
    return OTHERS[unknown.index(name) % len(OTHERS)]


def _short(value: float) -> str:
    """131072 as "128 Ki", 4096 as it is."""
    for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if value >= 16 * size and value % size == 0:
            return f"{value / size:g} {unit}"
    return f"{value:g}"
