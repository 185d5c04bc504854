"""The CMake function that other projects use: what it says of wrong use, and an incremental build of a project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gristmill

PACKAGE = Path(gristmill.__file__).parent
CMAKE = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
NINJA = shutil.which("ninja", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
pytestmark = pytest.mark.skipif(not (CMAKE and NINJA), reason="needs cmake and ninja")

PYTHON = "find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)"
LISTS = """\
cmake_minimum_required(VERSION 3.26)
project(demo VERSION 1.2 LANGUAGES {languages})
{python}
find_package(gristmill {version} CONFIG REQUIRED)
{call}
"""
KERNEL = """\
import gristmill as gm


@gm.kernel(grid=1)
def touch(x: gm.ptr[gm.f32]):
    pass
"""
LAUNCHER = """\
#include <nanobind/nanobind.h>
#include "tables.hpp"
NB_MODULE(GRISTMILL_MODULE, m) {
    for (const auto& kernel : gristmill::tables.kernels) m.attr(kernel.name) = kernel.source;
}
"""


def configure(folder: Path, call: str, *, python: str = "", version: str = "", root: Path = PACKAGE) -> str:
    """Configure a project that makes this call; return what CMake says, its lines joined."""
    languages = "CXX" if python else "NONE"
    folder.mkdir(exist_ok=True)
    lists = LISTS.format(languages=languages, python=python, version=version, call=call)
    (folder / "CMakeLists.txt").write_text(lists)
    (folder / "k.py").write_text(KERNEL)
    command = [CMAKE, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={NINJA}", "-S", folder, "-B", folder / "build"]
    command += [f"-Dgristmill_ROOT={root / 'cmake'}", f"-DPython_EXECUTABLE={sys.executable}"]
    command += ["-DCMAKE_BUILD_TYPE=Release"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("gristmill_add_kernels(k)", "MODULE is the full name of a module in a package, found ``"),
        (
            "gristmill_add_kernels(k MODULE k SOURCES k.py)",
            "MODULE is the full name of a module in a package, found `k`",
        ),
        ("gristmill_add_kernels(k MODULE p.k)", "no kernel files in SOURCES"),
        ("gristmill_add_kernels(k MODULE p.k SOURCES no.py)", "there is no file `no.py`"),
        ("gristmill_add_kernels(k k.py MODULE p.k)", "unknown argument `k.py`"),
        ("gristmill_add_kernels(k MODULE p.k SOURCES k.py)", "Python was not looked for"),
    ],
)
def test_wrong_use_says_what_to_write(tmp_path, call, message):
    said = configure(tmp_path, call)
    assert f"gristmill_add_kernels: {message}" in said
    assert "fix: " in said


def test_another_minor_version_is_not_accepted(tmp_path):
    assert "Configuring done" in configure(tmp_path / "same", "", version="0.1")
    assert "0.1.0" in configure(tmp_path / "other", "", version="0.2")


def test_the_versions_agree():
    version = (PACKAGE / "cmake" / "gristmillConfigVersion.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{gristmill.__version__}")' in version


@pytest.fixture(scope="module")
def package_with_small_launcher(tmp_path_factory) -> Path:
    """A Gristmill whose launcher compiles in a second."""
    root = tmp_path_factory.mktemp("site") / "gristmill"
    root.mkdir()
    for entry in PACKAGE.iterdir():
        if entry.name not in ("csrc", "kernels", "__pycache__"):
            (root / entry.name).symlink_to(entry)
    launcher = next(path for path in (PACKAGE / "csrc", PACKAGE.parent.parent / "csrc") if path.exists())
    (root / "csrc").mkdir()
    for name in ("tables.hpp", "exports.map"):
        (root / "csrc" / name).symlink_to(launcher / name)
    (root / "csrc" / "bindings.cpp").write_text(LAUNCHER)
    return root


def test_a_project_is_built_installed_and_rebuilt_only_for_changes(tmp_path, package_with_small_launcher, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tmp_path / "cache"))
    project = tmp_path / "a pröject ☃"
    call = "gristmill_add_kernels(demo_kernels MODULE demo._kernels SOURCES k.py TARGETS sm_80 CUBINS OFF)"
    said = configure(project, call, python=PYTHON, root=package_with_small_launcher)
    assert "Generating done" in said, said
    assert "[1/1] touch sm_80" in ninja(project)
    assert "no work to do" in ninja(project)
    os.utime(project / "k.py")
    said = ninja(project)
    assert "[1/1] touch sm_80" in said
    assert "Linking" not in said
    assert "no work to do" in ninja(project)
    (project / "k.py").write_text(KERNEL.replace("pass", "return"))
    assert "Linking" in ninja(project)
    assert "no work to do" in ninja(project)
    assert installed_source(project) == KERNEL[KERNEL.index("@") :].replace("pass", "return")


def test_a_module_over_the_limit_fails_with_the_table(tmp_path, package_with_small_launcher, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tmp_path / "cache"))
    call = "gristmill_add_kernels(k MODULE demo._kernels SOURCES k.py TARGETS sm_80 CUBINS OFF)"
    limited = f"set(GRISTMILL_MAX_WHEEL_MB 0.1)\n{call}"
    configure(tmp_path, limited, python=PYTHON, root=package_with_small_launcher)
    said = ninja(tmp_path, "k/tables.cpp", fails=True)
    assert re.search(r"^  touch +2 ", said, re.MULTILINE)
    assert "0.1 MB are allowed\n  fix: declare fewer dtypes, constants or configurations of `touch`" in said
    assert not (tmp_path / "build" / "k" / "tables.cpp").exists()


def ninja(project: Path, *targets: str, fails: bool = False) -> str:
    command = [NINJA, "-C", str(project / "build"), *targets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def installed_source(project: Path) -> str:
    command = [CMAKE, "--install", str(project / "build"), "--prefix", str(project / "site")]
    subprocess.run(command, check=True, capture_output=True)
    assert (project / "site" / "demo" / "_kernels.pyi").exists()
    script = "import demo._kernels as k; print(k.touch, end='')"
    environment = {**os.environ, "PYTHONPATH": str(project / "site")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout
