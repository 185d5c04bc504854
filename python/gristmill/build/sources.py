"""Which files the code of a kernel depends on: its own file, what that imports, and the compiler's."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

PACKAGE_DIR = Path(__file__).resolve().parent.parent
COMPILER_PARTS = ("*.py", "language/**/*.py", "compat/**/*.py", "compiler/**/*.py", "build/code.py", "build/ptxas.py")
FRONT_ENDS = ("cli.py", "__main__.py", "tuning.py")


def compiler_files() -> tuple[Path, ...]:
    """Return Gristmill's own files that the code of a kernel depends on, sorted."""
    found = {path for pattern in COMPILER_PARTS for path in PACKAGE_DIR.glob(pattern)}
    return tuple(sorted(path for path in found if path.name not in FRONT_ENDS))


def generator_files() -> tuple[Path, ...]:
    """Return Gristmill's own files that the generated tables depend on, sorted."""
    return tuple(sorted({*compiler_files(), *PACKAGE_DIR.glob("build/*.py"), PACKAGE_DIR / "tuning.py"}))


@cache
def compiler_digest() -> str:
    """Hash the compiler's files, llvmlite's version and Python's."""
    digest = hashlib.sha256(repr((sys.version_info[:2], llvmlite_version())).encode())
    for path in compiler_files():
        digest.update(path.relative_to(PACKAGE_DIR).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def llvmlite_version() -> str:
    """Return the installed version, or "" where there is none."""
    try:
        return importlib.metadata.version("llvmlite")
    except importlib.metadata.PackageNotFoundError:
        return ""


def source_closure(file: Path) -> tuple[Path, ...]:
    """Return `file` and the project's files that it imports, directly or not, sorted."""
    folder = file.resolve().parent
    found: set[Path] = set()
    waiting = [file.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imports(path, folder)
    return tuple(sorted(found))


def source_digest(file: Path, project_dir: Path) -> str:
    """Hash the closure of `file`, by path relative to the project and content."""
    digest = hashlib.sha256()
    for path in source_closure(file):
        name = path.relative_to(project_dir).as_posix() if path.is_relative_to(project_dir) else path.name
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def fingerprint(sources: Iterable[str | Path], project_dir: str | Path) -> str:
    """Hash all that a build reads, to notice a file that changes while it runs."""
    digests = [source_digest(Path(source), Path(project_dir)) for source in sources]
    return hashlib.sha256(repr([compiler_digest(), *digests]).encode()).hexdigest()


def _imports(path: Path, folder: Path) -> Iterator[Path]:
    """The files that import statements in `path` name, without those of installed packages and Gristmill."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        for name in _imported_names(node):
            if (file := _find_module(name, folder)) and _is_of_project(file):
                yield file


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [part for alias in node.names for part in _prefixes(alias.name)]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [*_prefixes(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _find_module(name: str, folder: Path) -> Path | None:
    """The file of a module that is loaded, or that lies in the folder of the kernel file."""
    if file := getattr(sys.modules.get(name), "__file__", None):
        return Path(file).resolve()
    base = folder.joinpath(*name.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


@cache
def _installed_dirs() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return (PACKAGE_DIR, *(Path(sysconfig.get_paths()[name]).resolve() for name in names))


def _is_of_project(path: Path) -> bool:
    installed = any(path.is_relative_to(folder) for folder in _installed_dirs())
    return path.suffix == ".py" and not installed and "site-packages" not in path.parts
