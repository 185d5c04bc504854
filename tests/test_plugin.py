"""Packages of kernels as strangers build them: from `init` to a wheel that runs, by every build system."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from pathlib import Path

import pytest

import gristmill
from gristmill.build.settings import default_targets
from gristmill.project import module_name, write_project
from projects import build_stub, build_wheel, make_site, metadata_of, needs_tools, run, run_bare, unpack

pytestmark = needs_tools

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "plugin.md").read_text()
CALL = """\
from array import array
from {package} import squared_relu
for code in "fd":
    x, y = array(code, [-1, 0, 3, 0.5]), array(code, [9] * 4)
    squared_relu(x, y)
    print(list(y))
"""
ANSWER = "[0.0, 0.0, 9.0, 0.25]\n" * 2


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def small_site(tmp_path_factory) -> Path:
    return make_site(tmp_path_factory.mktemp("small"), small=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory, site) -> Path:
    """A project as `init` writes it, with its wheel in dist/."""
    folder = tmp_path_factory.mktemp("projects")
    run(sys.executable, "-m", "gristmill", "init", "my-kernels", cwd=folder, site=site)
    build_wheel(folder / "my-kernels", site)
    return folder / "my-kernels"


@pytest.fixture(scope="module")
def installed(project, tmp_path_factory) -> Path:
    (wheel,) = (project / "dist").glob("*.whl")
    return unpack(wheel, tmp_path_factory.mktemp("installed"))


# ---- init ----------------------------------------------------------------------------------------------------------


def test_a_new_project_is_complete(tmp_path):
    files = {path.relative_to(tmp_path / "my-kernels").as_posix() for path in write_project("my-kernels", tmp_path)}
    assert files == {
        ".github/workflows/wheels.yml",
        ".gitignore",
        "CMakeLists.txt",
        "LICENSE",
        "README.md",
        "kernels/squared_relu.py",
        "pyproject.toml",
        "src/my_kernels/__init__.py",
        "src/my_kernels/__main__.py",
        "src/my_kernels/py.typed",
        "tests/test_kernels.py",
    }
    texts = [(tmp_path / "my-kernels" / name).read_text() for name in files]
    assert [text for text in texts if "@MODULE@" in text or "@NAME@" in text or "@GRISTMILL" in text] == []


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "one" / "kernels").mkdir(parents=True)
    (tmp_path / "one" / "CMakeLists.txt").write_text("mine")
    with pytest.raises(gristmill.GristmillError, match=r"^one/CMakeLists\.txt would be overwritten\n  fix: ") as _:
        write_project("one", tmp_path)
    assert [path.name for path in (tmp_path / "one").rglob("*") if path.is_file()] == ["CMakeLists.txt"]
    assert (tmp_path / "one" / "CMakeLists.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "1a", "a b", "-a", "a-", "a--b", "a.b", "ä", "class", "match"]
)
def test_names_that_no_package_can_have_are_errors(tmp_path, name):
    with pytest.raises(gristmill.GristmillError, match="fix: use letters and digits"):
        write_project(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "gristmill", "Gristmill", "tests", "kernels"])
def test_names_that_would_hide_other_modules_are_errors(name):
    with pytest.raises(gristmill.GristmillError, match=f"^`{name}` would hide another module"):
        module_name(name)


def test_a_package_is_named_as_its_distribution():
    assert [module_name(name) for name in ("fast", "My-Kernels", "a_b-c2")] == ["fast", "my_kernels", "a_b_c2"]


# ---- the wheel -----------------------------------------------------------------------------------------------------


def test_a_new_projects_kernels_run_without_any_other_package(installed):
    assert run_bare(CALL.format(package="my_kernels"), installed) == ANSWER


def test_a_new_projects_own_tests_pass(project, installed, site):
    pytest.importorskip("ml_dtypes")
    path = f"{installed}:{site}"
    assert "8 passed" in run(sys.executable, "-m", "pytest", "-q", "tests", cwd=project, site=Path(path))


def test_a_package_has_commands_of_its_own(installed):
    code = "import runpy; sys.argv[1:] = ['{}']; runpy.run_module('my_kernels', run_name='__main__')"
    ended = "try:\n  " + code + "\nexcept SystemExit as end: print(end.code)"
    listed, shown, checked = (run_bare(ended.format(name), installed) for name in ("list", "info", "doctor"))
    assert listed.startswith("squared_relu(x, y, n=None, *, BLOCK=None, stream=None)\n    f16, bf16, f32, f64")
    assert shown.startswith(f"my_kernels 0.1.0: 1 kernels, built by gristmill {gristmill.__version__}\nCPU: ")
    assert listed.endswith("\n0\n")
    assert shown.endswith("\n0\n")
    assert "package    my_kernels 0.1.0, 1 kernels" in checked


def test_a_wheel_depends_on_nothing_and_has_a_stub(project):
    (wheel,) = (project / "dist").glob("*.whl")
    needs = [line for line in metadata_of(wheel).splitlines() if line.startswith("Requires-Dist: ")]
    assert [need for need in needs if not need.endswith('; extra == "test"')] == []
    names = zipfile.ZipFile(wheel).namelist()
    assert {"my_kernels/_kernels.pyi", "my_kernels/_kernels_report.py", "my_kernels/__init__.py"} <= set(names)
    assert not [name for name in names if name.startswith(("gristmill", "kernels"))]
    licences = {Path(name).name for name in names if "/licenses/" in name}
    assert licences >= {"LICENSE", "nanobind-BSD-3-Clause.txt", "robin_map-MIT.txt"}


# ---- other build systems -------------------------------------------------------------------------------------------

SOURCE = """\
import gristmill as gm


@gm.kernel(grid=1)
def touch(x: gm.ptr[gm.f32]):
    pass
"""
TOML = r"```toml\n(# pyproject.toml, with {}\n.*?)```"
LISTS = """\
cmake_minimum_required(VERSION 3.26)
project(demo LANGUAGES CXX)
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
find_package(gristmill CONFIG REQUIRED)
gristmill_add_kernels(kernels MODULE {package}._kernels SOURCES k.py TARGETS {targets})
"""
PYPROJECT = """\
[build-system]
requires = ["scikit-build-core>=1.1", "gristmill[build]"]
build-backend = "scikit_build_core.build"

[project]
name = "{package}"
version = "1.2"

[tool.scikit-build]
build-dir = "build"
wheel.packages = ["src/{package}"]
"""


def write_small(folder: Path, package: str, *, pyproject: str = PYPROJECT, targets: str = "sm_80 CUBINS OFF") -> Path:
    """Write a project with one kernel that does nothing."""
    (folder / "src" / package).mkdir(parents=True)
    (folder / "src" / package / "__init__.py").write_text(f"from {package}._kernels import *\n")
    (folder / "CMakeLists.txt").write_text(LISTS.format(package=package, targets=targets))
    (folder / "pyproject.toml").write_text(pyproject.replace("{package}", package))
    (folder / "k.py").write_text(SOURCE)
    return folder


@pytest.mark.parametrize("backend", ["scikit-build-core", "setuptools"])
def test_the_guides_project_builds(tmp_path, small_site, backend):
    pytest.importorskip(backend.replace("-", "_"))
    (pyproject,) = re.findall(TOML.format(backend), GUIDE, re.S)
    project = write_small(tmp_path / "p", "my_kernels", pyproject=pyproject)
    (lists,) = re.findall(r"```cmake\n(# CMakeLists.txt\n.*?)```", GUIDE, re.S)
    (project / "CMakeLists.txt").write_text(lists)
    (project / "kernels").mkdir()
    (project / "k.py").rename(project / "kernels" / "k.py")
    wheel = build_wheel(project, small_site)
    assert re.search(r"my_kernels-0\.1\.0-cp3\d+-(cp3\d+|abi3)-linux_", wheel.name)
    installed = unpack(wheel, tmp_path / "installed")
    assert (installed / "my_kernels" / "_kernels.pyi").exists()
    assert list(installed.rglob("nanobind-BSD-3-Clause.txt"))
    assert run_bare("import my_kernels._kernels as k; print(k.touch)", installed).startswith("@gm.kernel(grid=1)")


def test_an_editable_install_follows_the_kernels(tmp_path, small_site):
    project = write_small(tmp_path / "p", "my_kernels")
    options = ["--no-build-isolation", "--no-deps", "--no-index", "-C", "editable.rebuild=true"]
    command = [sys.executable, "-m", "pip", "install", "--target", tmp_path / "site", *options, "-e", "."]
    run(*command, cwd=project, site=small_site)
    site = f"{tmp_path / 'site'}{os.pathsep}{small_site}"
    show = ["-c", "import site, sys; site.addsitedir(sys.argv[1]); import my_kernels._kernels as k; print(k.touch)"]
    seen = run(sys.executable, *show, tmp_path / "site", cwd=tmp_path, site=Path(site))
    assert "def touch(x: gm.ptr[gm.f32]):\n    pass\n" in seen
    (project / "k.py").write_text(SOURCE.replace("pass", "return"))
    seen = run(sys.executable, *show, tmp_path / "site", cwd=tmp_path, site=Path(site))
    assert "def touch(x: gm.ptr[gm.f32]):\n    return\n" in seen


# ---- several in one process ----------------------------------------------------------------------------------------

TWICE = """\
import gristmill as gm
import gristmill.language as tl


@gm.kernel(grid=1)
def twice(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32]):
    offsets = tl.arange(0, 128)
    tl.store(y + offsets, 2 * tl.load(x + offsets))
"""
TOGETHER = """\
from array import array
import ctypes, os
import newer, older, my_kernels
from fakes import CudaArray, Stub

x, y = array("f", range(128)), array("f", range(128))
for package in (newer, older, newer):
    package.twice(x, y)
    assert list(y) == [2 * value for value in x]
    x, y = y, x
assert type(newer.twice.instances[0]) is not type(older.twice.instances[0])
print(newer._kernels.info()["gristmill_version"], older._kernels.info()["gristmill_version"])
stub = Stub(ctypes.CDLL(os.environ["GRISTMILL_LIBCUDA"]))
stub.reset()
older.twice(CudaArray((128,)), CudaArray((128,)))
my_kernels.squared_relu(CudaArray((5,)), CudaArray((5,)))
print(*(launch.entry for launch in stub.launches))
print(older.twice.info(CudaArray((128,)), CudaArray((128,)))["image"])
print(my_kernels.squared_relu.info(CudaArray((5,)), CudaArray((5,)))["image"])
try:
    newer.twice(CudaArray((128,)), CudaArray((128,)))
except RuntimeError as error:
    print(error)
"""


def build_twice(folder: Path, package: str, site: Path, targets: str) -> Path:
    """Return the unpacked wheel of a package with the kernel `twice`."""
    project = write_small(folder / package, package, targets=targets)
    (project / "k.py").write_text(TWICE)
    return unpack(build_wheel(project, site), folder / f"{package}-installed")


@pytest.mark.end_to_end
def test_wheels_of_several_versions_run_in_one_process(tmp_path, site, installed):
    """One for CPUs only, one without cubins and by another version, and one with everything."""
    other = make_site(tmp_path / "other", version="0.1.99")
    host = default_targets()[-1]
    newer = build_twice(tmp_path, "newer", other, host)
    older = build_twice(tmp_path, "older", site, f"sm_80 {host} CUBINS OFF")
    stub = build_stub(tmp_path)
    fakes = Path(__file__).parent / "runtime"
    versions, entries, *rest = run_bare(
        TOGETHER, newer, older, installed, fakes, GRISTMILL_LIBCUDA=str(stub)
    ).splitlines()
    assert versions == f"0.1.99 {gristmill.__version__}"
    assert entries.split() == ["twice__a32", "squared_relu__f32__2048__a32"]
    assert rest[:2] == ["PTX 7.0 sm_80", "cubin sm_90a"]
    assert "twice: no image fits this device" in rest[2]
    assert "fix: add `sm_90` to TARGETS" in "\n".join(rest)
