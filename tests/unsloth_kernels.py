"""The files of unsloth, which are written for Triton; GRISTMILL_UNSLOTH names its wheel or folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

from published import Anything, execute, folder_of

VERSION = "2026.10.9"
GROUPED = "moe/grouped_gemm/kernels"


def folder() -> Path | None:
    """Return the folder that holds `unsloth`, or None where there is none to be had."""
    return folder_of("unsloth", VERSION)


def _utilities(package: str) -> dict[str, ModuleType]:
    """What the files import from their own packages."""
    names = ("unsloth_zoo", "unsloth_zoo.utils", "unsloth_zoo.log", "unsloth_zoo.temporary_patches")
    found = {name: Anything(name) for name in (*names, "unsloth_zoo.temporary_patches.common")}
    found |= {f"{package}.{name}": Anything(name) for name in ("fp8", "indexing", "utils")}
    if package.endswith("kernels.moe.grouped_gemm.kernels"):
        found[f"{package}.autotuning"] = load(f"{GROUPED}/autotuning")
    return found


@cache
def load(name: str) -> ModuleType:
    """Execute one file of `unsloth/kernels` as it is shipped; `triton` in it is Gristmill's."""
    root = folder()
    assert root is not None
    title = f"unsloth.kernels.{name.replace('/', '.')}"
    is_tuning = name.endswith("autotuning")
    utilities = {} if is_tuning else _utilities(title.rpartition(".")[0])
    return execute(root / "unsloth" / "kernels" / f"{name}.py", title, utilities)
