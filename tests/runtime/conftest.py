"""The launcher compiled with hand-written tables, and the fake driver under it: built once, kept by content."""

import ctypes
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from fakes import Stub

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "tests" / "native"


def _key() -> str:
    digest = hashlib.sha256(f"{sys.version} {sys.executable}".encode())
    for path in sorted([*(ROOT / "csrc").rglob("*.*"), *NATIVE.iterdir()]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def _build(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}"]
    configure = [_tool("cmake"), "-S", str(NATIVE), "-B", str(folder), *generator]
    configure += ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (configure, [_tool("cmake"), "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    (folder / "done").touch()


@pytest.fixture(scope="session")
def native_folder(request: pytest.FixtureRequest) -> Path:
    """The folder with the built module, the fake driver and the exchange library."""
    folder = Path(request.config.cache.mkdir("gristmill_native")) / _key()
    with open(f"{folder}.lock", "w") as lock:  # workers of one run want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _build(folder)
    return folder


@pytest.fixture(scope="session")
def stub_path(native_folder: Path) -> Path:
    return native_folder / "libcuda_stub.so"


@pytest.fixture(scope="session")
def native(native_folder: Path, stub_path: Path) -> ModuleType:
    """The module `fixture_native`, whose CUDA driver is the fake one."""
    os.environ["GRISTMILL_LIBCUDA"] = str(stub_path)
    os.environ["GRISTMILL_NUM_THREADS"] = "4"
    path = next(native_folder.glob("fixture_native*.so"))
    spec = importlib.util.spec_from_file_location("fixture_native", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def stub(native: ModuleType, stub_path: Path) -> Iterator[Stub]:
    """The fake driver, with an empty log and its usual devices."""
    stub = Stub(ctypes.CDLL(str(stub_path)))
    stub.reset()
    yield stub
    stub.reset()


@pytest.fixture
def run_python(native_folder: Path, stub_path: Path):
    """Run a script in a new process: with the fake driver, or with `libcuda`; returns what it prints."""

    def run(script: str, libcuda: str | None = None, **environment: str) -> str:
        variables = (
            os.environ
            | {"PYTHONPATH": str(native_folder), "GRISTMILL_LIBCUDA": libcuda or str(stub_path)}
            | environment
        )
        prelude = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        prelude += "from fakes import *\nimport fixture_native as native\n"
        done = subprocess.run(
            [sys.executable, "-c", prelude + script], env=variables, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
