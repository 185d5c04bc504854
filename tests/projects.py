"""Projects of kernels in scratch folders: a Gristmill to build them with, wheels, and what their modules say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gristmill

PACKAGE = Path(gristmill.__file__).resolve().parent
CSRC = next((path for path in (PACKAGE / "csrc", PACKAGE.parents[1] / "csrc") if path.exists()), PACKAGE / "csrc")
STUB = Path(__file__).parent.parent / "csrc" / "stub" / "libcuda_stub.cpp"
TOOLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
CMAKE, NINJA, CXX = (shutil.which(name, path=TOOLS) for name in ("cmake", "ninja", "c++"))
needs_tools = pytest.mark.skipif(not (CMAKE and NINJA and CXX), reason="needs cmake, ninja and a C++ compiler")

SMALL_LAUNCHER = """\
#include <nanobind/nanobind.h>
#include "tables.hpp"
NB_MODULE(GRISTMILL_MODULE, m) {
    for (const auto& kernel : gristmill::tables.kernels) m.attr(kernel.name) = kernel.source;
}
"""


def make_site(folder: Path, *, version: str = gristmill.__version__, small: bool = False) -> Path:
    """Make a folder for PYTHONPATH with an installed Gristmill of some version.

    With `small` its launcher compiles in a second, and its modules only hold the source of each kernel by name.
    """
    shutil.copytree(PACKAGE, folder / "gristmill", ignore=shutil.ignore_patterns("__pycache__", "csrc", "_native*"))
    launcher = folder / "gristmill" / "csrc"
    if small:
        launcher.mkdir()
        for name in ("tables.hpp", "exports.map"):
            shutil.copy(CSRC / name, launcher)
        (launcher / "bindings.cpp").write_text(SMALL_LAUNCHER)
    else:
        shutil.copytree(CSRC, launcher, ignore=shutil.ignore_patterns("stub"))
    licences = folder / "gristmill" / "licenses"
    licences.mkdir(exist_ok=True)
    for path in (PACKAGE.parents[1] / "LICENSES").glob("*.txt"):
        shutil.copy(path, licences)
    for file in ("__init__.py", "cmake/gristmillConfigVersion.cmake"):
        path = folder / "gristmill" / file
        path.write_text(path.read_text().replace(f'"{gristmill.__version__}"', f'"{version}"'))
    metadata = folder / f"gristmill-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: gristmill\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text("[cmake.root]\ngristmill = gristmill.cmake\n")
    return folder


def run(*command: object, cwd: Path, site: Path | None = None, fails: bool = False, **variables: str) -> str:
    """Run a command with Gristmill from `site`; return what it prints. Fails unless it ends as expected."""
    environment = {**os.environ, "PATH": TOOLS, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
    if site:
        environment["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = list(map(str, command))
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def build_wheel(project: Path, site: Path, **variables: str) -> Path:
    """Return the wheel that `pip wheel .` makes in a project, with the tools of this environment."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "-w",
        "dist",
    ]
    run(*command, cwd=project, site=site, **variables)
    (wheel,) = (project / "dist").glob("*.whl")
    return wheel


def build_stub(folder: Path) -> Path:
    """Compile the fake CUDA driver; return the library."""
    run(CXX, "-std=c++20", "-shared", "-fPIC", STUB, "-o", "libcuda_stub.so", cwd=folder)
    return folder / "libcuda_stub.so"


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel as pip would install it; return the folder."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_bare(code: str, *folders: Path, **variables: str) -> str:
    """Run Python code without any installed package but those in `folders`; return what it prints."""
    head = f"import sys; sys.path[:0] = {list(map(str, folders))!r}\n"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    command = [sys.executable, "-S", "-c", head + code]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metadata_of(wheel: Path) -> str:
    """Return the METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if re.search(r"\.dist-info/METADATA$", name))
        return archive.read(name).decode()
