"""The build as a whole, with a fake compiler: progress, failures, determinism, the cache and the depfile."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from build_fakes import KERNELS, PTX, write_project
from gristmill.build.cache import Cache
from gristmill.build.ptxas import AssemblyError, assemble, find_ptxas, join_entries, strip_comments
from gristmill.build.run import build_module
from gristmill.build.settings import Settings
from gristmill.build.sources import kernel_digests
from gristmill.errors import BuildError
from gristmill.load import load_kernels

TARGETS = ("sm_80", "sm_90a", "x86-64-v2", "x86-64-v3")
OUTPUTS = ("tables.cpp", "images.cpp", "images.bin", "libhost.a", "_kernels.pyi", "pkg._kernels.cdx.json")
needs_ptxas = pytest.mark.skipif(not find_ptxas(), reason="the package nvidia-cuda-nvcc-cu12 is not installed")


def settings_for(folder: Path, **changes) -> Settings:
    values = {"module": "pkg._kernels", "out": folder / "out", "project_dir": folder, "targets": TARGETS, "workers": 2}
    return Settings(**{**values, "sources": (write_project(folder),), "depfile": folder / "out" / "d", **changes})


def build(folder: Path, compiler: str = "compile_fake", *, cache: Path | None = None, **changes) -> Path:
    settings = settings_for(folder, **changes)
    build_module(settings, compiler=f"build_fakes:{compiler}", cache=Cache(cache))
    return settings.out


def contents(out: Path, names: Sequence[str] = OUTPUTS) -> list[bytes]:
    return [(out / name).read_bytes() for name in names]


def test_materials_of_a_library_for_c_are_listed(tmp_path):
    out = build(tmp_path, has_library=True)
    document = json.loads((out / "pkg._kernels.cdx.json").read_text())
    digests = {part["name"]: part["hashes"][0]["content"] for part in document["components"] if "hashes" in part}
    for name, file in (("images", "images.bin"), ("plain images", "plain_images.bin"), ("host code", "libhost.a")):
        assert digests[name] == hashlib.sha256((out / file).read_bytes()).hexdigest()


def test_every_job_has_a_progress_line(tmp_path, capsys):
    out = build(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(int(line[1 : line.index("/")]) for line in lines if line.startswith("[")) == list(range(1, 33))
    assert any(re.fullmatch(r"\[\d+/32\] gelu_forward f32 1024 sm_90a", line) for line in lines)
    assert (out / "build.log").read_text().splitlines() == lines
    assert any("32 jobs (0 cached)" in line for line in lines)


def test_a_build_without_cubins_says_so_and_embeds_all_ptx(tmp_path, capsys):
    out = build(tmp_path)
    assert "no cubins: the driver compiles the PTX" in capsys.readouterr().out
    assert "ImageKind::ptx,90,'a',80" in (out / "tables.cpp").read_text()


@needs_ptxas
def test_cubins_leave_one_ptx_fallback(tmp_path, capsys):
    out = build(tmp_path, ptxas=find_ptxas())
    tables = (out / "tables.cpp").read_text()
    assert set(re.findall(r"ImageKind::(\w+,\d+,[^,]+),", tables)) == {
        "cubin,80,0",
        "cubin,90,'a'",
        "cubin,100,0",
        "cubin,120,0",
        "ptx,80,0",
    }
    assert "gelu_backward cubin sm_120" in capsys.readouterr().out


def test_a_crash_names_kernel_specialisation_target_and_line(tmp_path):
    with pytest.raises(BuildError) as caught:
        build(tmp_path, "compile_aborting")
    text = str(caught.value)
    assert text.startswith("kernels/gelu.py:13:5: error: `gelu_backward__f16__256` for sm_90a: ")
    assert "ended with SIGABRT" in text
    assert "   13 | def gelu_backward(" in text
    assert "LLVM ERROR: Cannot select" in text


def test_a_bug_of_the_compiler_names_the_job(tmp_path):
    with pytest.raises(BuildError, match=r"gelu.py:13:5: error: `gelu_backward__f16__256` for sm_90a: a bug.*ZeroDiv"):
        build(tmp_path, "compile_raising")


def test_an_error_in_a_kernel_keeps_its_own_position(tmp_path):
    with pytest.raises(BuildError) as caught:
        build(tmp_path, "compile_refusing")
    text = str(caught.value)
    assert text.startswith("kernels/gelu.py:13:5: error: no such op\n   13 |     pass\n")
    assert text.endswith("  fix: use another\n  while compiling `gelu_backward__f16__256` for sm_90a")


def test_more_tensor_maps_than_a_launch_has_room_for_are_an_error(tmp_path):
    with pytest.raises(BuildError) as caught:
        build(tmp_path, "compile_mapped")
    text = str(caught.value)
    assert text.startswith("kernels/gelu.py:13:5: error: `gelu_backward__f16__256` for sm_90a: its code takes 9 tensor")
    assert "a launch has room for 8" in text
    assert text.endswith("  fix: split the kernel, so that each part copies tiles of at most 8 arrays")


@pytest.mark.parametrize("count", [65, 96, 97])
def test_more_parameters_than_a_launch_has_room_for_are_an_error(tmp_path, count):
    settings = settings_for(tmp_path)
    parameters = "".join(f", p{i}: gm.f32" for i in range(count - 2))
    text = "import gristmill as gm\n\n@gm.kernel(B=[64], grid=1)\ndef long("
    text += f"x: gm.ptr[gm.f32], y: gm.ptr[gm.f32]{parameters}, B: gm.constexpr):\n    pass\n"
    settings.sources[0].write_text(text)
    if count <= 96:
        build_module(settings, compiler="build_fakes:compile_fake", cache=Cache(None))
        assert f'"p{count - 3}"' in (settings.out / "tables.cpp").read_text()
        return
    with pytest.raises(BuildError) as caught:
        build_module(settings, compiler="build_fakes:compile_fake", cache=Cache(None))
    text = str(caught.value)
    assert text.startswith("kernels/gelu.py:4:5: error: `long` has 97 parameters, a launch has room for 96\n")
    assert "  fix: split the kernel, or pass several numbers in one array" in text
    assert not list(settings.out.glob("tables.cpp"))


@needs_ptxas
def test_an_error_of_ptxas_names_the_specialisation_of_the_line(tmp_path):
    with pytest.raises(BuildError) as caught:
        build(tmp_path, "compile_bad_ptx", ptxas=find_ptxas())
    text = str(caught.value)
    assert text.startswith("kernels/gelu.py:13:5: error: `gelu_backward__f16__256` for sm_90a: ptxas: ")
    assert "`bogus.op;`" in text


def test_what_a_kernel_prints_does_not_disturb_the_workers(tmp_path):
    assert contents(build(tmp_path / "a", "compile_chatty")) == contents(build(tmp_path / "b"))


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import test_build
ptxas = test_build.find_ptxas()
test_build.build(Path(sys.argv[1]), workers=int(sys.argv[2]), ptxas=ptxas)
"""


def test_builds_with_other_hash_seeds_orders_and_folders_are_equal(tmp_path):
    for name, seed, workers in (("one", "1", "1"), ("other place", "2", "3")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / name), workers, str(Path(__file__).parent)]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert contents(tmp_path / "one" / "out") == contents(tmp_path / "other place" / "out")


def test_a_second_build_comes_from_the_cache_and_changes_no_file(tmp_path, capsys):
    out = build(tmp_path, cache=tmp_path / "cache")
    before = [(out / name).stat().st_mtime_ns for name in OUTPUTS]
    capsys.readouterr()
    build(tmp_path, cache=tmp_path / "cache")
    assert "32 jobs (32 cached)" in capsys.readouterr().out
    assert [(out / name).stat().st_mtime_ns for name in OUTPUTS] == before


def test_a_changed_kernel_file_rebuilds_only_itself(tmp_path, capsys):
    other = tmp_path / "kernels" / "other.py"
    write_project(tmp_path)
    declaration = "@gm.kernel(grid=1)\ndef other(x: gm.ptr[gm.f32]):\n    pass\n"
    other.write_text(f"import gristmill as gm\n\n\n{declaration}")
    sources = (tmp_path / "kernels" / "gelu.py", other)
    build(tmp_path, cache=tmp_path / "cache", sources=sources)
    other.write_text(f"import gristmill as gm\n\n{declaration.replace('pass', 'return')}")
    capsys.readouterr()
    build(tmp_path, cache=tmp_path / "cache", sources=sources)
    assert "36 jobs (32 cached)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "cached"),
    [
        ("    pass\n", "    return\n", 16),  # of gelu_backward
        ("@gm.kernel", "# a comment\n@gm.kernel", 32),
        ('"gelu"', '"GELU"', 16),  # of gelu_forward
        ("SCALE\n", "SCALE\n\nOTHER = 1\n", 0),
        ("SCALE\n", "SCALE\n\nOTHER = lambda: gelu_forward\n", 0),
    ],
)
def test_of_several_kernels_in_a_file_those_that_changed_are_rebuilt(tmp_path, capsys, old, new, cached):
    settings = settings_for(tmp_path)
    file = tmp_path / "kernels" / "gelu.py"
    for text in (KERNELS, KERNELS.replace(old, new)):
        file.write_text(text)
        capsys.readouterr()
        build_module(settings, compiler="build_fakes:compile_fake", cache=Cache(tmp_path / "cache"))
    assert f"32 jobs ({cached} cached)" in capsys.readouterr().out


def test_a_kernel_depends_on_another_that_it_names(tmp_path):
    declaration = "@gm.kernel(grid=1)\ndef {}(x: gm.ptr[gm.f32]):\n    {}\n\n\n"
    file = tmp_path / "k.py"
    digests = []
    for body in ("pass", "return"):
        kernels = [("one", body), ("two", "one"), ("three", "pass")]
        file.write_text("import gristmill as gm\n\n\n" + "".join(declaration.format(*kernel) for kernel in kernels))
        digests.append(kernel_digests(load_kernels(file, tmp_path), tmp_path))
    assert [digests[0][name] == digests[1][name] for name in ("one", "two", "three")] == [False, False, True]


def test_a_changed_import_rebuilds_its_kernels(tmp_path, capsys):
    settings = settings_for(tmp_path)
    for text in ("SCALE = 2\n", "SCALE = 3\n"):
        (tmp_path / "kernels" / "helper.py").write_text(text)
        capsys.readouterr()
        build_module(settings, compiler="build_fakes:compile_fake", cache=Cache(tmp_path / "cache"))
    assert "(0 cached)" in capsys.readouterr().out


def test_code_of_a_file_that_changes_meanwhile_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("gristmill.build.run.fingerprint", lambda *paths: "what was there before")
    build(tmp_path, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*"))


def test_the_depfile_lists_sources_imports_and_the_compiler(tmp_path):
    folder = tmp_path / "a b"
    build(folder)
    rule = (folder / "out" / "d").read_text().replace("\\\n", "").replace("\\ ", "\0").split()
    target, *inputs = (word.replace("\0", " ") for word in rule)
    assert target == f"{folder / 'out' / 'tables.cpp'}:"
    assert {str(folder / "kernels" / name) for name in ("gelu.py", "helper.py")} <= set(inputs)
    assert {"embed.py", "declare.py", "ir.py"} <= {Path(path).name for path in inputs}
    assert str(Path(sys.executable).resolve()) in inputs
    assert [path for path in inputs if re.search(r"llvmlite-[^/]*\.dist-info/METADATA$", path)]


def test_stripped_ptx_has_only_code():
    text = b"//\n// Generated by LLVM\n\n.version 7.0\n\tmov.b32 %r1, 0; // begin\n\n"
    assert strip_comments(text) == b".version 7.0\nmov.b32 %r1, 0;\n"


def test_joined_entries_have_one_header_and_known_lines():
    texts = [PTX.format(version=v, target="sm_80", symbol=s, body="").encode() for v, s in (("7.0", "a"), ("7.1", "b"))]
    joined, starts = join_entries([strip_comments(text) for text in texts])
    lines = joined.split(b"\n")
    assert lines[:3] == [b".version 7.1", b".target sm_80", b".address_size 64"]
    assert joined.count(b".target") == 1
    assert [lines[start - 1].split(b"(")[0] for start in starts] == [b".visible .entry a", b".visible .entry b"]


@needs_ptxas
def test_what_several_entries_define_alike_is_kept_once():
    function = ".func (.param .b32 out) twice(\n.param .b32 x\n)\n{\n.reg .b32 %r<2>;\nret;\n}\n"
    variable = ".global .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6, 7, 8};\n"
    texts = []
    for symbol in ("a", "b"):
        header, entry = PTX.format(version="7.0", target="sm_80", symbol=symbol, body="").split(".visible")
        texts.append(f"{header}{variable}{function}.visible{entry}".encode())
    joined, starts = join_entries(texts)
    assert (joined.count(b"twice"), joined.count(b"table")) == (1, 1)
    assert joined.split(b"\n")[starts[1] - 1].startswith(b".visible .entry b(")
    assert assemble(find_ptxas(), joined, "sm_80").code.startswith(b"\x7fELF")


@needs_ptxas
def test_joined_entries_assemble_for_every_planned_device():
    texts = [PTX.format(version="7.0", target="sm_80", symbol=s, body="").encode() for s in ("a", "b")]
    joined, _ = join_entries(texts)
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"):
        assert assemble(find_ptxas(), joined, arch).code.startswith(b"\x7fELF")


@needs_ptxas
def test_ptxas_says_which_line_it_refuses():
    text = PTX.format(version="7.0", target="sm_80", symbol="a", body="bogus;").encode()
    with pytest.raises(AssemblyError, match="`bogus;`") as caught:
        assemble(find_ptxas(), text, "sm_80")
    assert text.split(b"\n")[caught.value.line - 1].strip() == b"bogus;"
