"""Finds the files of liger-kernel, which are written for Triton, and executes them on Gristmill's `triton`.

The package itself is not installed: it would bring torch and Triton along. Its wheel is taken from GRISTMILL_LIGER (the
wheel, or a folder that it is unpacked to), or downloaded by pip without what it depends on.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import gristmill.compat.triton as triton
from gristmill.compat.triton.language.extra import cuda, libdevice
from gristmill.compat.triton.language.extra.cuda import libdevice as cuda_libdevice

VERSION = "0.8.5"
PRODUCTS = {
    "experimental/mm_int8int2": {"K": [512]},
    "fused_moe_kernels": {},
    "fused_neighborhood_attention": {"BLOCK_SIZE_M": [64], "BLOCK_SIZE_N": [64], "BLOCK_SIZE_K": [32]},
    "mlp": {},
    "mhc": {"BLOCK_N": [32], "BLOCK_K": [256], "BLOCK_M": [32]},
}
"""The files with products of matrices; beside what `triton.autotune` chooses, what their callers take."""
DECORATED = ("JITFunction", "Autotuner", "Heuristics")
_numbers = itertools.count()


@cache
def folder() -> Path | None:
    """Return the folder that holds `liger_kernel`, or None where there is none to be had."""
    given = os.environ.get("GRISTMILL_LIGER")
    if given and Path(given).is_dir():
        return Path(given)
    wheel = Path(given) if given else _download()
    if wheel is None or not wheel.is_file():
        return None
    where = Path(tempfile.mkdtemp(prefix="gristmill-liger-"))
    zipfile.ZipFile(wheel).extractall(where)
    return where


def _download() -> Path | None:
    where = Path(tempfile.gettempdir()) / f"gristmill-liger-{VERSION}"
    if not (found := list(where.glob("*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        try:
            subprocess.run(
                [*command, "--dest", str(where), f"liger-kernel=={VERSION}"],
                check=True, capture_output=True, timeout=60,
            )  # fmt: skip
        except (subprocess.SubprocessError, OSError):
            return None
        found = list(where.glob("*.whl"))
    return found[0] if found else None


class Anything(ModuleType):
    """Stands for a module whose attributes are looked at while a file is imported, and never used."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else Anything(f"{self.__name__}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self


def _utilities() -> dict[str, ModuleType]:
    """What the files import from their own package."""
    ops, general = Anything("liger_kernel.ops.utils"), Anything("liger_kernel.utils")
    ops.ensure_contiguous = lambda function: function
    ops.compare_version = lambda package, compare, version: True
    ops.is_hip = general.is_npu_available = lambda: False
    general.infer_device = ops.infer_device = lambda: "cuda"
    names = ("liger_kernel", "liger_kernel.ops", "liger_kernel.backends", "liger_kernel.functional")
    names += ("liger_kernel.ops.softmax",)
    return {name: Anything(name) for name in names} | {ops.__name__: ops, general.__name__: general}


@cache
def load(name: str) -> ModuleType:
    """Execute one file of `liger_kernel/ops` as it is shipped; `triton` in it is Gristmill's."""
    root = folder()
    assert root is not None
    path = root / "liger_kernel" / "ops" / f"{name}.py"
    torch = ("torch", "torch.distributed", "torch.distributed.tensor", "torch.nn", "torch.nn.functional")
    language = triton.language
    stand_ins = {module: Anything(module) for module in torch} | _utilities()
    stand_ins["torch"].__version__ = "2.8.0"
    stand_ins |= {
        "triton": triton, "triton.language": language, "triton.language.math": language.math,
        "triton.language.extra": language.extra, "triton.language.extra.libdevice": libdevice,
        "triton.language.extra.cuda": cuda, "triton.language.extra.cuda.libdevice": cuda_libdevice,
    }  # fmt: skip
    module = ModuleType(f"liger_{name}_{next(_numbers)}")
    with mock.patch.dict(sys.modules, stand_ins):
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    return module
