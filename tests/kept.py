"""Files that are kept from one test run to the next, named by the contents that they are made from."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

_folder: Path | None = None


def keep_in(folder: Path) -> None:
    """Use `folder` from now on; without it, one for this process."""
    global _folder
    _folder = folder


def kept(suffix: str, contents: tuple[str, ...], make: Callable[[Path], object]) -> Path:
    """Return the file that `make(path)` writes for these contents; it is made only if it is not there yet."""
    digest = hashlib.sha256("\0".join(contents).encode()).hexdigest()[:24]
    folder = _folder or _scratch()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest}{suffix}"
    if not path.exists():
        part = folder / f"{digest}.{os.getpid()}{suffix}"
        make(part)
        part.rename(path)
    return path


@cache
def compiler_version() -> str:
    """Return what decides how LLVM IR becomes code: LLVM's version and our options."""
    import llvmlite

    from gristmill.compiler import emit

    return llvmlite.__version__ + Path(str(emit.__file__)).read_text()


@cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="gristmill-tests-"))
