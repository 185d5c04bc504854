"""The compiler launcher: objects out of the cache are those of the compiler, and what is not plain is not kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gristmill.build import cxx

COMPILER = shutil.which("g++") or shutil.which("c++")
pytestmark = pytest.mark.skipif(not COMPILER, reason="needs a C++ compiler")


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tmp_path / "cache"))
    write(tmp_path / "one", value=1)
    return tmp_path / "one"


def write(folder: Path, *, value: int, text: str = "int twice() { return 2 * VALUE; }\n") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "a.cpp").write_text(f'#include "a.hpp"\n{text}')
    (folder / "a.hpp").write_text(f"#define VALUE {value}\n")


def command(folder: Path, *options: str) -> list[str]:
    output = folder / "a.o"
    depfile = ["-MD", "-MT", "a.o", "-MF", str(folder / "a.d")]
    return [COMPILER or "", *options, *depfile, "-o", str(output), "-c", str(folder / "a.cpp")]


def compile_in(folder: Path, *options: str) -> bytes:
    output = folder / "a.o"
    output.unlink(missing_ok=True)
    (folder / "a.d").unlink(missing_ok=True)
    assert cxx.main(command(folder, *options)) == 0
    assert "a.hpp" in (folder / "a.d").read_text()
    return output.read_bytes()


def entries(folder: Path) -> int:
    return len([path for path in (folder.parent / "cache").rglob("*") if path.is_file()])


def test_an_object_comes_back_in_another_folder(project):
    first = compile_in(project, "-O2")
    write(project.parent / "other", value=1)
    assert compile_in(project.parent / "other", "-O2") == first
    assert entries(project) == 1


def test_a_changed_header_option_or_source_is_compiled_again(project):
    objects = {compile_in(project, "-O2")}
    write(project, value=2)
    objects.add(compile_in(project, "-O2"))
    objects.add(compile_in(project, "-O0"))
    write(project, value=2, text="int thrice() { return 3 * VALUE; }\n")
    objects.add(compile_in(project, "-O2"))
    assert len(objects) == entries(project) == 4


@pytest.mark.parametrize("option", ["-g", "-march=native"])
def test_objects_that_say_where_they_were_made_are_not_kept(project, option):
    compile_in(project, option)
    assert entries(project) == 0


def test_files_that_the_assembler_reads_are_not_kept(project):
    (project / "data.bin").write_bytes(b"data")
    write(project, value=1, text='__asm__(".incbin \\"data.bin\\"");\n')
    compile_in(project, f"-Wa,-I{project}")
    assert entries(project) == 0


def test_warnings_are_said_each_time_and_errors_are_the_compilers(project, capfd):
    write(project, value=1, text="int f(int unused) { return 1; }\n")
    for _ in range(2):
        compile_in(project, "-Wextra", "-Wall")
        assert "unused" in capfd.readouterr().err
    write(project, value=1, text="int f( { }\n")
    assert cxx.main(command(project)) != 0
    assert "error" in capfd.readouterr().err
    assert entries(project) == 0
