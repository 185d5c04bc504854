"""Files of packages that are written for Triton, executed as they are shipped on Gristmill's `triton`.

The packages are not installed: they would bring torch and Triton along. A wheel is taken from an environment variable
(GRISTMILL_LIGER for liger-kernel; the wheel, or a folder that it is unpacked to), or downloaded by pip without what it
depends on.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import gristmill.compat.triton as triton
from gristmill.compat.triton.language.extra import cuda, libdevice
from gristmill.compat.triton.language.extra.cuda import libdevice as cuda_libdevice

DECORATED = ("JITFunction", "Autotuner", "Heuristics")
_numbers = itertools.count()


@cache
def folder_of(package: str, version: str) -> Path | None:
    """Return the folder that holds the package, or None where there is none to be had."""
    given = os.environ.get(f"GRISTMILL_{package.partition('-')[0].upper()}")
    if given and Path(given).is_dir():
        return Path(given)
    wheel = Path(given) if given else _download(package, version)
    return _unpacked(wheel) if wheel is not None and wheel.is_file() else None


def _download(package: str, version: str) -> Path | None:
    where = Path(tempfile.gettempdir()) / f"gristmill-{package.partition('-')[0]}-{version}"
    if not (found := list(where.glob("*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        try:
            subprocess.run(
                [*command, "--dest", str(where), f"{package}=={version}"],
                check=True, capture_output=True, timeout=60,
            )  # fmt: skip
        except (subprocess.SubprocessError, OSError):
            return None
        found = list(where.glob("*.whl"))
    return found[0] if found else None


def _unpacked(wheel: Path) -> Path:
    """Unpack the wheel's Python files once, for all processes."""
    where = Path(tempfile.gettempdir()) / f"gristmill-{wheel.stem}"
    if not where.is_dir():
        part = tempfile.mkdtemp(prefix="gristmill-wheel-")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(part, [name for name in archive.namelist() if name.endswith(".py")])
        try:
            os.rename(part, where)
        except OSError:
            assert where.is_dir()
    return where


class Anything(ModuleType):
    """Stands for a module whose attributes are looked at while a file is imported, and never used."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else Anything(f"{self.__name__}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self


def _torch() -> dict[str, ModuleType]:
    names = ("torch", "torch.distributed", "torch.distributed.tensor", "torch.nn", "torch.nn.functional")
    names += ("torch.nn.modules", "torch.nn.modules.utils")
    found = {name: Anything(name) for name in names}
    found["torch"].__version__ = "2.8.0"
    for device in ("cuda", "xpu"):
        setattr(found["torch"], device, Anything(f"torch.{device}"))
        getattr(found["torch"], device).is_available = lambda: False
    return found


def execute(path: Path, name: str, stand_ins: Mapping[str, ModuleType]) -> ModuleType:
    """Execute a file; `triton` in it is Gristmill's, and `stand_ins` what else it imports."""
    language = triton.language
    modules = {
        "triton": triton, "triton.language": language, "triton.language.math": language.math,
        "triton.language.extra": language.extra, "triton.language.extra.libdevice": libdevice,
        "triton.tools": triton.tools, "triton.tools.tensor_descriptor": triton.tools.tensor_descriptor,
        "triton.language.extra.cuda": cuda, "triton.language.extra.cuda.libdevice": cuda_libdevice,
    }  # fmt: skip
    module = ModuleType(f"{name}_{next(_numbers)}")
    module.__package__ = name.rpartition(".")[0]
    with mock.patch.dict(sys.modules, _torch() | modules | stand_ins):
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    return module
