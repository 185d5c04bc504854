"""tools/bench --plot: what is drawn where, and what is said where nothing can be."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parent.parent / "tools"
if not TOOLS.exists():
    pytest.skip("needs a checkout", allow_module_level=True)
sys.path.append(str(TOOLS))

from benchlib import cli, plot  # noqa: E402
from benchlib.work import Result  # noqa: E402


def product(case, contestant, tflop_s, dtype="f16", kernel="matmul"):
    sizes = [int(n) for n in re.findall(r"\d+", case)]
    m, n, k = sizes * 3 if "cubed" in case else sizes
    flops = 2 * m * n * k
    return Result(kernel, dtype, case, "cuda", contestant, 1, median_us=flops / tflop_s / 1e6, flops=flops)


def row(case, contestant, gb_s, device="cuda"):
    return Result("softmax_forward", "bf16", case, device, contestant, 2**29, median_us=2**29 / gb_s / 1e3, gb_s=gb_s)


PRODUCTS = [
    product(case + layout, name, speed, dtype)
    for dtype in ("f16", "bf16")
    for layout in ("", " b.T")
    for case in ("4096 cubed", "1024 cubed", "4096 x 4096 x 512", "1000 cubed")
    for name, speed in (("gristmill", 700.0), ("torch", 650.0))
]


# ---- what is drawn -------------------------------------------------------------------------------------------------


def test_each_dtype_and_layout_has_a_panel():
    assert [p.title for p in plot.panels_of(PRODUCTS)] == [
        "matmul f16",
        "matmul f16 b.T",
        "matmul bf16",
        "matmul bf16 b.T",
    ]
    assert {p.unit for p in plot.panels_of(PRODUCTS)} == {"TFLOP/s"}


def test_cubes_are_joined_in_order_of_size_and_others_stand_alone():
    line = plot.panels_of(PRODUCTS)[0].lines[0]
    assert line.name == "gristmill"
    assert line.regular == [(1024, pytest.approx(700)), (4096, pytest.approx(700))]
    assert line.others == [(2048, pytest.approx(700)), (1000, pytest.approx(700))]


def test_what_moves_more_than_it_computes_is_drawn_by_bandwidth_over_columns():
    results = [row(f"{2**27 // n} x {n}", "gristmill", 4000.0 + n) for n in (65536, 1000, 1024)]
    (panel,) = plot.panels_of(results)
    assert (panel.title, panel.unit) == ("softmax_forward bf16", "GB/s")
    assert panel.lines[0].regular == [(1024, 5024), (65536, 69536)]
    assert panel.lines[0].others == [(1000, 5000)]


def test_who_failed_is_not_drawn():
    failed = Result("matmul", "f16", "4096 cubed", "cuda", "triton", 1, note="OutOfMemory")
    assert math.isnan(failed.median_us)
    assert [line.name for line in plot.panels_of([*PRODUCTS[:2], failed])[0].lines] == ["gristmill", "torch"]


def test_labels_are_moved_apart_as_little_as_need_be():
    spread = plot.spread_out({"a": 100.0, "b": 99.0, "c": 98.0, "d": 10.0}, 11.0)
    assert spread == {"d": 10.0, "c": 88.0, "b": 99.0, "a": 110.0}
    assert plot.spread_out({"a": 50.0, "b": 20.0}, 11.0) == {"a": 50.0, "b": 20.0}


def test_contestants_keep_their_colours():
    panel = plot.Panel("t", "s", "u", [plot.Line(name) for name in ("x", "gristmill", "y", "torch")])
    colours = [plot.colour_of(line.name, panel) for line in panel.lines]
    assert colours == [plot.OTHERS[0], plot.COLOURS["gristmill"], plot.OTHERS[1], plot.COLOURS["torch"]]


# ---- the file ------------------------------------------------------------------------------------------------------


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


def test_a_drawing_names_its_lines_and_sizes(tmp_path, matplotlib):
    path = tmp_path / "plots" / "matmul.svg"
    plot.save(str(path), PRODUCTS, "a card")
    text = re.findall(r"<text[^>]*>\s*([^<]+?)\s*</text>", path.read_text())
    assert {"a card", "matmul f16", "matmul bf16 b.T", "gristmill", "torch", "TFLOP/s", "1024", "4096"} <= set(text)
    assert text.count("gristmill") == 4
    again = tmp_path / "again.svg"
    plot.save(str(again), PRODUCTS, "a card")
    assert again.read_bytes() == path.read_bytes()


def test_axes_begin_at_zero_and_double_along_x(matplotlib):
    figure = plot.draw(plot.panels_of(PRODUCTS))
    for axes in figure.axes:
        assert axes.get_ylim()[0] == 0
        assert (axes.get_xscale(), axes.xaxis.get_transform().base) == ("log", 2)


def test_a_png_has_a_clear_background(tmp_path, matplotlib):
    plot.save(str(tmp_path / "a.png"), PRODUCTS[:2])
    image = pytest.importorskip("PIL.Image").open(tmp_path / "a.png")
    assert image.mode == "RGBA"
    assert image.getpixel((0, 0))[3] == 0


def test_without_results_nothing_is_written(tmp_path):
    plot.save(str(tmp_path / "a.svg"), [])
    plot.save(None, PRODUCTS)
    assert not list(tmp_path.iterdir())


# ---- what cannot be drawn is said before anything is measured ------------------------------------------------------


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match=r"(?s)--plot needs matplotlib.*fix: pip install matplotlib"):
        cli.main(["vector_add", "--device", "cpu", "--plot", "a.svg"])


def test_an_unknown_format_is_named():
    with pytest.raises(SystemExit, match=r"(?s)--plot a.gif: cannot write that format.*fix: name a file that ends in"):
        cli.main(["vector_add", "--device", "cpu", "--plot", "a.gif"])
