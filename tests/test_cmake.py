"""The CMake function that other projects use: what it says of wrong use, and an incremental build of a project."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gristmill
from gristmill.cli import main
from projects import CMAKE, NINJA, PACKAGE, make_site, needs_tools

pytestmark = needs_tools

FOREIGN = "x86-64-v3" if platform.machine().lower() in ("aarch64", "arm64") else "aarch64"
PYTHON = "find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)"
LISTS = """\
cmake_minimum_required(VERSION 3.26)
project(demo VERSION 1.2 LANGUAGES {languages})
{python}
find_package(gristmill {version} CONFIG REQUIRED)
{call}
"""
DEMO = "gristmill_add_kernels(demo_kernels MODULE demo._kernels SOURCES k.py TARGETS sm_80 CUBINS OFF)"
KERNEL = """\
import gristmill as gm


@gm.kernel(grid=1)
def touch(x: gm.ptr[gm.f32]):
    pass
"""
TABLE = """\
[[table]]
kernel = "gone"
device = "d"
architecture = "sm_90"
units = 1
key = ["n"]
rows = [{ dtypes = ["f32"], key = [1], variant = "a32", take = "gone__f32" }]
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
        ("gristmill_add_kernels(k MODULE p.k SOURCES k.py TUNING no.toml)", "there is no tuned table `no.toml`"),
        ("gristmill_add_kernels(k MODULE p.k SOURCES k.py CUBINS)", "CUBINS has no value"),
        ("gristmill_add_kernels(k MODULE p.k SOURCES k.py)", "C++ is not a language of this project"),
        ("add_custom_target(k)\ngristmill_add_kernels(k MODULE p.k SOURCES k.py)", "there is a target `k` already"),
    ],
)
def test_wrong_use_says_what_to_write(tmp_path, call, message):
    said = configure(tmp_path, call)
    assert f"gristmill_add_kernels: {message}" in said
    assert said.count("fix: ") == 1


@pytest.mark.parametrize(
    ("python", "options", "message"),
    [
        ("# none", "", "Python was not looked for"),
        (PYTHON, "TARGETS sm_81", "unknown target `sm_81` fix: use one of sm_75, sm_80,"),
        (PYTHON, "TARGETS ptx", "unknown target `ptx` fix: use one of sm_75, sm_80,"),
        (PYTHON, f"TARGETS {FOREIGN}", f"`{FOREIGN}` is not code for {platform.machine().lower()} fix: name"),
        (PYTHON, "CUBINS 2", "CUBINS is AUTO, ON or OFF, found `2` fix: write CUBINS AUTO"),
        (PYTHON, "SPILLS no", "SPILLS is a number of bytes or WARN, found `NO` fix: write SPILLS 100"),
        (PYTHON, "CUBINS OFF SPILLS 0", "spills were to be errors, but only ptxas tells of them"),
    ],
)
def test_wrong_options_are_errors_before_anything_is_compiled(tmp_path, python, options, message):
    said = configure(tmp_path, f"gristmill_add_kernels(k MODULE p.k SOURCES k.py {options})", python=python)
    assert f"gristmill_add_kernels: {message}" in said
    assert said.count("fix: ") == 1
    assert "Traceback" not in said
    assert not (tmp_path / "build" / "build.ninja").exists()


def test_a_python_without_the_compiler_says_what_to_require(tmp_path, monkeypatch):
    (tmp_path / "llvmlite.py").write_text("raise ImportError")
    (tmp_path / "gristmill").symlink_to(PACKAGE)  # installed, it may stand beside the real one
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    call = "gristmill_add_kernels(k MODULE p.k SOURCES k.py)"
    said = configure(tmp_path / "p", call, python=PYTHON, root=tmp_path / "gristmill")
    assert "compiling kernels needs llvmlite, which is not installed here fix: pip install" in said


def test_another_minor_version_is_not_accepted(tmp_path):
    assert "Configuring done" in configure(tmp_path / "same", "", version="0.1")
    assert "0.1.0" in configure(tmp_path / "other", "", version="0.2")


def test_the_command_line_says_where_cmake_finds_it(capsys):
    assert main(["cmake-dir"]) == 0
    assert Path(capsys.readouterr().out.strip(), "gristmillConfig.cmake").is_file()


def test_the_versions_agree():
    version = (PACKAGE / "cmake" / "gristmillConfigVersion.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{gristmill.__version__}")' in version


@pytest.fixture(scope="module")
def package_with_small_launcher(tmp_path_factory) -> Path:
    """A Gristmill whose launcher compiles in a second."""
    return make_site(tmp_path_factory.mktemp("site"), small=True) / "gristmill"


def test_a_project_is_built_installed_and_rebuilt_only_for_changes(tmp_path, package_with_small_launcher, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tmp_path / "cache"))
    project = tmp_path / "a pröject ☃"
    call = DEMO.replace(")", " TUNING tuning/*.toml)")
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
    (project / "tuning").mkdir()
    (project / "tuning" / "a.toml").write_text(TABLE)
    assert "warning: a.toml: there is no kernel `gone`" in ninja(project)
    assert "no work to do" in ninja(project)
    (project / "tuning" / "a.toml").write_text(TABLE.replace("gone", "away"))
    assert "warning: a.toml: there is no kernel `away`" in ninja(project)
    good = KERNEL.replace("pass", "return")
    assert installed_source(project) == good[good.index("@") :]
    (project / "k.py").write_text(good.replace("return", "x + gm"))
    assert "k.py:6:5: error: " in ninja(project, fails=True)
    assert installed_source(project) == good[good.index("@") :]  # what is there is whole
    (project / "k.py").write_text(good)
    assert "Compiling the kernels" in ninja(project)


def test_a_module_over_the_limit_fails_with_the_table(tmp_path, package_with_small_launcher, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tmp_path / "cache"))
    limited = f"set(GRISTMILL_MAX_WHEEL_MB 0.1)\n{DEMO}"
    configure(tmp_path, limited, python=PYTHON, root=package_with_small_launcher)
    said = ninja(tmp_path, "demo_kernels/tables.cpp", fails=True)
    assert re.search(r"^  touch +2 ", said, re.MULTILINE)
    assert "0.1 MB are allowed\n  fix: declare fewer dtypes, constants or configurations of `touch`" in said
    assert not (tmp_path / "build" / "demo_kernels" / "tables.cpp").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (KERNEL.replace("pass", "gm.load(x)"), "k.py:6:5: error: `gristmill.load` cannot be called"),
        (KERNEL.replace("gm.f32", "gm.f33"), "k.py:5:21: error: AttributeError: "),
        (KERNEL.replace("(x", "x"), "k.py:5:27: error: syntax error: "),
        ("import gristmill as gm\n", "no kernels in k.py\n  fix: declare one with `@gm.kernel(...)`"),
    ],
    ids=["body", "declaration", "syntax", "none"],
)
def test_a_wrong_kernel_is_one_error_and_leaves_nothing(tmp_path, package_with_small_launcher, text, message):
    configure(tmp_path, DEMO, python=PYTHON, root=package_with_small_launcher)
    (tmp_path / "k.py").write_text(text)
    command = [NINJA, "-C", str(tmp_path / "build"), "demo_kernels/tables.cpp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith(message)
    assert done.stderr.count("fix: ") == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert {path.name for path in (tmp_path / "build" / "demo_kernels").glob("*")} <= {"build.log"}


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
