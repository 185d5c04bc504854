"""Which files the code of a kernel depends on: its own file, what that imports, and the compiler's."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.compiler.checks import asks_for_checks

if TYPE_CHECKING:
    from gristmill.declare import Kernel

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


def tool_files() -> tuple[Path, ...]:
    """Return files that change, or are no more, when another version of a tool is installed: Python's and LLVM's."""
    found = [Path(sys.executable).resolve()]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.distribution("llvmlite").files or ()
        found += [Path(str(file.locate())).resolve() for file in files if file.name == "METADATA"]
    return tuple(path for path in found if path.is_file())


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
        digest.update(_name_in(path, project_dir).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _name_in(path: Path, project_dir: Path) -> str:
    return path.relative_to(project_dir).as_posix() if path.is_relative_to(project_dir) else path.name


def kernel_digests(kernels: Sequence[Kernel], project_dir: Path) -> dict[str, str]:
    """Hash, by each kernel's name, what its code depends on: of its file, not the kernels that it does not name."""
    closures = {file: source_closure(Path(file)) for file in {f for kernel in kernels for f in kernel.site.files}}
    whole = {path: path.read_bytes() for closure in closures.values() for path in closure}
    return {kernel.name: _kernel_digest(kernel, kernels, closures, whole, project_dir) for kernel in kernels}


def _kernel_digest(
    kernel: Kernel,
    kernels: Sequence[Kernel],
    closures: Mapping[str, Sequence[Path]],
    whole: Mapping[Path, bytes],
    project_dir: Path,
) -> str:
    own = Path(kernel.site.path).resolve()
    digest = hashlib.sha256()
    for path in sorted({path for file in kernel.site.files for path in closures[file]}):
        is_shared = path == own and not asks_for_checks()  # the text of a check says its line
        data = without_others(whole[path], kernel, kernels) if is_shared else whole[path]
        digest.update(_name_in(path, project_dir).encode() + b"\0" + data + b"\0")
    return digest.hexdigest()


def without_others(data: bytes, kernel: Kernel, kernels: Iterable[Kernel]) -> bytes:
    """Return the statements of the kernel's file, less other kernels whose names are not in what is left."""
    others = {
        (other.site.node.name, other.site.node.lineno)
        for other in kernels
        if other is not kernel and other.site.path == kernel.site.path and not other.site.call
    }
    left: list[ast.FunctionDef] = []
    kept: list[ast.stmt] = []
    for node in ast.parse(data).body:
        if isinstance(node, ast.FunctionDef) and (node.name, node.lineno) in others:
            left.append(node)
        else:
            kept.append(node)
    while named := [node for node in left if node.name in _names(kept)]:
        kept += named
        left = [node for node in left if node not in named]
    lines = data.splitlines(keepends=True)
    spans = sorted((_first_line(node), node.end_lineno or node.lineno) for node in kept)
    return b"".join(line for first, last in spans for line in lines[first - 1 : last])


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])


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
