"""The installed wheel: what comes with it, its size, what it links to and how long its import takes."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

MAX_WHEEL_BYTES = 17_000_000  # a third of it for products of matrices, half for attention
MAX_IMPORT_MS = 30
LIBRARIES = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libpthread.so.0", "libdl.so.2"}
HEAVY = ("numpy", "torch", "llvmlite", "gristmill.compiler", "gristmill.declare", "gristmill.build")

try:
    DISTRIBUTION = importlib.metadata.distribution("gristmill")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("gristmill is not installed", allow_module_level=True)
FILES = [Path(str(DISTRIBUTION.locate_file(file))) for file in DISTRIBUTION.files or () if ".pyc" not in file.name]
NATIVE = [path for path in FILES if re.match(r"_native\..*so$", path.name)]


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout


def test_nothing_is_installed_with_it():
    assert [need for need in DISTRIBUTION.requires or () if "extra ==" not in need] == []


def test_it_stays_small():
    assert sum(len(zlib.compress(path.read_bytes())) for path in FILES if path.exists()) <= MAX_WHEEL_BYTES


def test_it_carries_the_licences_of_what_is_compiled_in():
    names = {path.name for path in FILES if "licenses" in path.parts}
    assert names >= {"LICENSE", "nanobind-BSD-3-Clause.txt", "robin_map-MIT.txt"}


def test_it_says_what_is_compiled_in():
    (file,) = (path for path in FILES if path.parent.name == "sboms")
    document = json.loads(file.read_text())
    assert file.name == "gristmill.kernels._native.cdx.json"
    assert document["metadata"]["component"]["purl"] == f"pkg:pypi/gristmill@{DISTRIBUTION.version}"
    assert {part["name"] for part in document["components"]} >= {
        "nanobind",
        "robin-map",
        "images",
        "kernels/softmax.py",
    }


def test_other_projects_find_cmake_and_launcher():
    names = {path.name for path in FILES}
    assert names >= {"gristmillConfig.cmake", "gristmillConfigVersion.cmake", "tables.hpp", "_native.pyi"}
    (entry,) = importlib.metadata.entry_points(group="cmake.root", name="gristmill")
    assert entry.value == "gristmill.cmake"


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf")
def test_it_links_to_neither_cuda_nor_torch():
    (module,) = NATIVE
    listing = subprocess.run(["readelf", "-d", str(module)], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", listing))
    assert {name for name in needed if not name.startswith("ld-linux")} <= LIBRARIES


def test_no_folder_of_the_build_machine_is_in_it():
    (module,) = NATIVE
    data = module.read_bytes()
    assert [place for place in (b"/tmp/", b"/home/", b"/site-packages/", b"kernels/../") if place in data] == []


def test_importing_the_kernels_imports_nothing_heavy():
    code = f"import sys, gristmill.kernels; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert run(code).strip() == "[]"


def test_importing_the_kernels_is_fast():
    code = "import time; t = time.perf_counter(); import gristmill.kernels; print(1000 * (time.perf_counter() - t))"
    assert min(float(run(code)) for _ in range(7)) <= MAX_IMPORT_MS  # other work on the machine only adds to it


def test_info_needs_no_compiler():
    code = "import sys; from gristmill.cli import main; main(['info']); assert 'llvmlite' not in sys.modules"
    assert run(code)
