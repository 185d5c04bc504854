"""Finds what is declared about the kernels of an installed wheel: their sources lie beside them, and are executed."""

from __future__ import annotations

from pathlib import Path

import gristmill
from gristmill.cases import Spec, spec_of
from gristmill.errors import GristmillError
from gristmill.load import load_kernels


def source_folder() -> Path:
    """Return the folder of kernel sources: installed with the wheel, or a checkout's own."""
    package = Path(gristmill.__file__).resolve().parent
    installed, checkout = package / "kernels" / "source", package.parents[1] / "kernels"
    for folder in (installed, checkout):
        if any(folder.glob("*.py")):
            return folder
    raise GristmillError(f"there are no kernel sources in {installed}", fix="install the wheel again")


def load_specs() -> list[Spec]:
    """Return the reference, cases and cost of every kernel, in the order of the files. Needs numpy."""
    folder = source_folder()
    return [spec_of(k) for file in sorted(folder.glob("*.py")) for k in load_kernels(file, folder.parent)]
