"""Tuned tables as files: written, merged, read; and what a build makes of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import gristmill
from gristmill.build.cache import Cache
from gristmill.build.run import build_module
from gristmill.build.settings import Settings
from gristmill.build.tuned import TunedRow, read_tables
from gristmill.declare import Kernel, load_kernels
from gristmill.errors import GristmillError
from gristmill.tuning import Row, TunedDevice, content_of, merge, read, save, text_of

CXX = shutil.which("c++") or shutil.which("g++")
PACKAGE = Path(gristmill.__file__).parent
LAUNCHER = next(path for path in (PACKAGE / "csrc", PACKAGE.parent.parent / "csrc") if path.exists())
H200, A100 = TunedDevice("NVIDIA H200", "sm_90", 132), TunedDevice("NVIDIA A100-SXM4-80GB", "sm_80", 108)
KERNELS = """\
import gristmill as gm

D = gm.dtype_var("D", [gm.f32, gm.f16])
CONFIGS = [gm.Config(TILE=256, num_warps=8, aligned=True), gm.Config(TILE=64, num_warps=2)]


@gm.kernel(
    configs=CONFIGS,
    FLIP=[False, True],
    grid=lambda n, TILE: gm.cdiv(n, TILE),
    prefer=lambda n, TILE: n > TILE * gm.sm_count,
    key=["n", "n % 16 == 0"],
)
def twice(x: gm.ptr[D], y: gm.ptr[D], n: gm.size["x"], TILE: gm.constexpr, FLIP: gm.constexpr):
    pass


@gm.kernel(BLOCK=[256], grid=lambda n, BLOCK: gm.cdiv(n, BLOCK))
def once(x: gm.ptr[D], y: gm.ptr[D], n: gm.size["x"], BLOCK: gm.constexpr):
    pass
"""
READER = r"""
#include <cstdio>
#include "tables.hpp"
using namespace gristmill;
static void print(Code code) { for (auto word : code) std::printf(" %lld", static_cast<long long>(word)); }
int main() {
    for (const auto& d : tables.tuned_devices)
        std::printf("device %s, %s, %lld\n", d.name, d.architecture, static_cast<long long>(d.units));
    for (const auto& k : tables.kernels) {
        std::printf("%s configured %d prefer", k.name, k.configured);
        print(k.prefer);
        for (std::size_t i = 0; i < k.key.size(); ++i) { std::printf("; key %s", k.key_names[i]); print(k.key[i]); }
        std::printf("\n");
        for (const auto& r : k.tuned) {
            const auto variant = static_cast<int>(r.variant);
            std::printf("row %d %s %d %d", r.device, k.specialisations[r.specialisation].id, variant, r.named);
            print(r.key);
            std::printf("\n");
        }
    }
}
"""


docs = pytest.mark.skipif(not (PACKAGE.parent.parent / "docs").exists(), reason="needs a checkout")


def row(n=1024, take="twice__f32__64__false__w2", place=H200, **more) -> Row:
    usual = {
        "dtypes": ("f32",),
        "constants": (),
        "key": (n, n % 16 == 0),
        "variant": "a32",
        "us": 2.5,
        "formula_us": 3.0,
    }
    usual["key"] = (n, int(n % 16 == 0))
    return Row("twice", place, ("n", "n % 16 == 0"), **{**usual, "take": take, **more})


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "k.py").write_text(KERNELS)
    return folder


@pytest.fixture(scope="module")
def kernels(project) -> list[Kernel]:
    return load_kernels(project / "k.py", project)


# ---- files ---------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path):
    odd = TunedDevice('A "GPU" \\ with\tmarks é', "sm_90", 1)
    rows = [row(), row(constants=(("FLIP", True),), variant="g64"), row(place=odd, us=0.125), row(key=(-(2**63), 1))]
    save(tmp_path / "a folder" / "t.toml", rows)
    assert sorted(read(tmp_path / "a folder" / "t.toml"), key=repr) == sorted(rows, key=repr)


def test_a_file_is_sorted_and_has_a_line_for_each_row(tmp_path):
    rows = [row(64), row(16), row(32, place=A100), row(16, dtypes=("f16",), take="twice__f16__64__false__w2")]
    save(tmp_path / "t.toml", rows)
    lines = (tmp_path / "t.toml").read_text().splitlines()
    assert [line for line in lines if line.startswith("device")] == [
        f'device = "{A100.device}"',
        f'device = "{H200.device}"',
    ]
    found = [re.search(r'dtypes = \["(\w+)"\], key = \[(\d+)', line) for line in lines]
    assert [m.groups() for m in found if m] == [("f32", "32"), ("f16", "16"), ("f32", "16"), ("f32", "64")]
    save(tmp_path / "t.toml", list(reversed(rows)))
    assert (tmp_path / "t.toml").read_text().splitlines() == lines


def test_a_new_row_replaces_that_for_the_same_calls_alone():
    old = [row(16), row(32), row(16, variant="g32"), row(16, constants=(("FLIP", False),)), row(16, place=A100)]
    new = row(16, us=1.0)
    assert merge(old, [new]) == sorted([*old[1:], new], key=lambda r: r.calls)


def test_rows_of_another_key_of_the_kernel_go():
    old = [row(16), replace(row(16), kernel="once")]
    new = replace(row(32), names=("n",), key=(32,))
    assert merge(old, [new]) == [old[1], new]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows = [", "is no tuned table: "),
        ('[[table]]\ndevice = "x"', "`architecture` is missing"),
        (text_of([row()]).replace('"a32"', '"b32"'), "`b32` is no variant: there are a32, g32, g64"),
        (text_of([row()]).replace("key = [1024, 1]", "key = [1024]"), "a row of twice has 1 numbers for the key"),
        (text_of([row()]).replace('"twice__f32__64__false__w2"', "3"), "found `3` where a text is needed"),
        ("table = [3]", "is no tuned table"),
    ],
)
def test_a_file_that_is_no_table_is_named(tmp_path, text, message):
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(GristmillError, match=r"(?s)t\.toml` is no tuned table.*fix: ") as caught:
        read(tmp_path / "t.toml")
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(GristmillError, match=r"none.toml` cannot be read: No such file"):
        read(tmp_path / "none.toml")


def test_the_content_is_what_the_file_holds(tmp_path):
    save(tmp_path / "t.toml", [row()])
    import tomllib

    assert tomllib.loads((tmp_path / "t.toml").read_text()) == content_of([row()])


@docs
def test_the_page_about_tuning_shows_a_kernel_and_its_table(tmp_path):
    page = (PACKAGE.parent.parent / "docs" / "tuning.md").read_text()
    (source,) = re.findall(r"```python\n(# kernels/scale\.py\n.*?)```", page, re.S)
    (table,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    (tmp_path / "scale.py").write_text(source)
    (tmp_path / "t.toml").write_text(table)
    assert text_of(read(tmp_path / "t.toml")).endswith(table)
    tables = read_tables([tmp_path / "t.toml"], load_kernels(tmp_path / "scale.py", tmp_path))
    assert tables.warnings == []
    assert [r.key for r in tables.rows["scale"]] == [(1_000_000,)]


# ---- the build -----------------------------------------------------------------------------------------------------


def tables_of(tmp_path, kernels, *rows):
    save(tmp_path / "t.toml", rows)
    return read_tables([tmp_path / "t.toml"], kernels)


def place_of(kernels, name: str) -> int:
    return next(i for k in kernels for i, each in enumerate(k.specialisations()) if each.id == name)


def test_rows_become_indices_in_order_of_device_and_key(tmp_path, kernels):
    flipped = row(16, take="twice__f32__256__true__w8", constants=(("FLIP", True),))
    tables = tables_of(tmp_path, kernels, row(64), row(32, place=A100, variant="g32"), flipped)
    assert tables.warnings == []
    assert tables.devices == (A100, H200)
    plain = place_of(kernels, "twice__f32__64__false__w2")
    assert tables.rows["twice"] == (
        TunedRow(0, (32, 1), plain, 1, 0),
        TunedRow(1, (16, 1), place_of(kernels, "twice__f32__256__true__w8"), 0, 2),
        TunedRow(1, (64, 1), plain, 0, 0),
    )
    assert tables.rows["once"] == ()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(take="twice__f32__128__false__w4"), "takes `twice__f32__128__false__w4`, which is not built any more"),
        (replace(row(), kernel="thrice"), "there is no kernel `thrice`, and its tuned rows are left out"),
        (replace(row(), names=("m", "k")), "`twice` was tuned for the key ['m', 'k'], and has ['n', 'n % 16 == 0']"),
        (row(dtypes=("f16",)), "which has other dtypes or constants"),
        (row(constants=(("FLIP", True),)), "which has other dtypes or constants"),
        (row(constants=(("FLAP", True),)), "which has other dtypes or constants"),
        (row(take="twice__f32__256__false__w8", variant="g32"), "is compiled for aligned calls only, not `g32`"),
    ],
)
def test_a_stale_row_is_left_out_with_a_warning(tmp_path, kernels, bad, message):
    tables = tables_of(tmp_path, kernels, bad, row(48))
    (warning,) = tables.warnings
    assert message in warning
    assert "t.toml: " in warning
    assert "\n  fix: " in warning
    assert [r.key for r in tables.rows["twice"]] == [(48, 1)]


def test_later_files_come_before_earlier_ones(tmp_path, kernels):
    save(tmp_path / "a.toml", [row(16), row(32)])
    later = row(16, take="twice__f32__256__false__w8")
    save(tmp_path / "b.toml", [later])
    tables = read_tables([tmp_path / "a.toml", tmp_path / "b.toml"], kernels)
    places = [place_of(kernels, later.take), place_of(kernels, row().take)]
    assert [(r.key[0], r.specialisation) for r in tables.rows["twice"]] == [(16, places[0]), (32, places[1])]


@pytest.mark.skipif(not CXX, reason="no C++ compiler")
def test_the_launcher_reads_what_the_build_writes(tmp_path, project, capsys):
    save(tmp_path / "t.toml", [row(16), row(64, take="gone"), row(32, place=A100)])
    settings = Settings(
        sources=(project / "k.py",), module="pkg._kernels", out=tmp_path / "out", project_dir=project,
        targets=("sm_80", "x86-64-v3"), tuning=(tmp_path / "t.toml",), depfile=tmp_path / "k.d", workers=2,
    )  # fmt: skip
    build_module(settings, compiler="build_fakes:compile_fake", cache=Cache(None))
    assert "warning: t.toml: a tuned row takes `gone`" in (tmp_path / "out" / "build.log").read_text()
    assert str(tmp_path / "t.toml") in (tmp_path / "k.d").read_text()
    assert '"tuned table"' in (tmp_path / "out" / "pkg._kernels.cdx.json").read_text()
    (tmp_path / "read.cpp").write_text(READER)
    sources = [tmp_path / "read.cpp", *(tmp_path / "out" / name for name in ("tables.cpp", "images.cpp", "libhost.a"))]
    command = [CXX, "-std=c++20", "-Wall", "-Werror", f"-I{LAUNCHER}", f"-I{tmp_path / 'out'}", *sources]
    subprocess.run([*map(str, command), "-o", str(tmp_path / "read")], check=True, cwd=tmp_path / "out")
    lines = subprocess.run([tmp_path / "read"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == [
        "device NVIDIA A100-SXM4-80GB, sm_80, 108",
        "device NVIDIA H200, sm_90, 132",
        "twice configured 1 prefer 2 0 20 5 1 2 11; key n 1 2; key n % 16 == 0 1 2 0 16 7 0 0 13",
        "row 0 twice__f32__64__false__w2 0 0 32 1",
        "row 1 twice__f32__64__false__w2 0 0 16 1",
        "once configured 0 prefer",
    ]
