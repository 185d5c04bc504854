"""The files of liger-kernel, which are written for Triton; GRISTMILL_LIGER names its wheel or folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

from published import Anything, execute, folder_of

VERSION = "0.8.5"
PRODUCTS = {
    "experimental/mm_int8int2": {"K": [512]},
    "fused_moe_kernels": {},
    "fused_neighborhood_attention": {"BLOCK_SIZE_M": [64], "BLOCK_SIZE_N": [64], "BLOCK_SIZE_K": [32]},
    "mlp": {},
    "mhc": {"BLOCK_N": [32], "BLOCK_K": [256], "BLOCK_M": [32]},
}
"""The files with products of matrices; beside what `triton.autotune` chooses, what their callers take."""


def folder() -> Path | None:
    """Return the folder that holds `liger_kernel`, or None where there is none to be had."""
    return folder_of("liger-kernel", VERSION)


def _utilities() -> dict[str, ModuleType]:
    """What the files import from their own package."""
    ops, general = Anything("liger_kernel.ops.utils"), Anything("liger_kernel.utils")
    ops.ensure_contiguous = lambda function: function
    ops.compare_version = lambda package, compare, version: True
    ops.is_hip = general.is_npu_available = lambda: False
    general.infer_device = ops.infer_device = lambda: "cuda"
    names = ("liger_kernel", "liger_kernel.ops", "liger_kernel.backends", "liger_kernel.functional")
    names += ("liger_kernel.ops.softmax", "liger_kernel.ops.sparsemax")
    return {name: Anything(name) for name in names} | {ops.__name__: ops, general.__name__: general}


@cache
def load(name: str) -> ModuleType:
    """Execute one file of `liger_kernel/ops` as it is shipped; `triton` in it is Gristmill's."""
    root = folder()
    assert root is not None
    return execute(root / "liger_kernel" / "ops" / f"{name}.py", f"liger_{name}", _utilities())
