"""A file imports only downwards, passes ask an op's row instead of its name, and files and functions stay short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gristmill
import gristmill.compiler.frontend  # declares all ops
import gristmill.language
from gristmill.compiler.op import ROWS

PACKAGE = Path(gristmill.__file__).parent
# Lowest first; a module belongs to the entry with the longest name that it begins with.
LAYERS = (
    ("__init__", "errors"),
    ("dtypes", "positions", "symbolic", "tensor_map", "tuning"),
    ("signature", "specialisation", "tracing", "choices", "load", "declare", "described", "adopt"),
    ("compiler.ir", "compiler.op", "compiler.facts", "compiler.layout", "compiler.banks", "compiler.tensor"),
    ("compiler.machine",),
    ("language",),
    ("cases", "compiler.targets"),
    ("compiler",),
    ("compiler.compile", "compiler.explain"),
    ("compat", "porting", "uses"),
    ("build", "project"),
    ("runtime", "kernels", "cmake"),
    ("cli", "__main__"),
)
RUNTIME_MAY_IMPORT = ("__init__", "dtypes", "errors", "tuning", "runtime", "kernels")
# References and cases are declared beside the kernels, so what compares with them reads declarations.
MAY_READ_DECLARATIONS = {"runtime.specs": ("cases", "load")}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


def modules() -> dict[str, Path]:
    paths = (path for path in PACKAGE.rglob("*.py") if "csrc" not in path.parts)
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


MODULES = modules()


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules of Gristmill that a file imports when it runs, also inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gristmill"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("gristmill"))
        else:
            yield from imports(node)


def module_of(name: str) -> str:
    name = name.removeprefix("gristmill").removeprefix(".")
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or "__init__"


def layer_of(module: str) -> int:
    matches = [
        (len(prefix), level)
        for level, layer in enumerate(LAYERS)
        for prefix in layer
        if module == prefix or module.startswith(prefix + ".")
    ]
    assert matches, f"{module} is in no layer: add it to LAYERS"
    return max(matches)[1]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_file_imports_only_downwards(module):
    used = {module_of(name) for name in imports(ast.parse(MODULES[module].read_text()))}
    assert [name for name in sorted(used) if layer_of(name) > layer_of(module)] == []


@pytest.mark.parametrize("module", [name for name in sorted(MODULES) if name.split(".")[0] == "runtime"])
def test_the_runtime_imports_no_compiler(module):
    used = {module_of(name).split(".")[0] for name in imports(ast.parse(MODULES[module].read_text()))}
    allowed = {*RUNTIME_MAY_IMPORT, *MAY_READ_DECLARATIONS.get(module, ())}
    assert sorted(used - allowed) == []


@pytest.mark.parametrize("module", [name for name in sorted(MODULES) if name.startswith("compiler.passes")])
def test_passes_compare_no_op_names(module):
    tree = ast.parse(MODULES[module].read_text())
    compared = [node for node in ast.walk(tree) if isinstance(node, (ast.Compare, ast.MatchValue))]
    strings = [part.value for node in compared for part in ast.walk(node) if isinstance(part, ast.Constant)]
    assert [value for value in strings if value in ROWS] == []


def source_files() -> list[Path]:
    root = PACKAGE.parent.parent
    folders = [PACKAGE, *(root / name for name in ("csrc", "kernels", "tests", "tools") if (root / "csrc").exists())]
    found = {path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".cpp", ".hpp")}
    return sorted(path for path in found if not {"__pycache__", "data"} & set(path.parts))


def test_files_are_short():
    lengths = {path: len(path.read_text().splitlines()) for path in source_files()}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_functions_are_short():
    """Without their signatures: that of a kernel says where each number comes from."""
    too_long = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in source_files()
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.body[0].lineno >= MAX_FUNCTION_LINES
    ]
    assert too_long == []
