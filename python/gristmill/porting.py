"""Writes `gm.specialise` declarations for the Triton kernels of a file, from their source alone.

What the source tells is written; what it cannot tell is `...`, with a comment that says what to write, and
`gm.specialise` refuses `...` at its line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gristmill.errors import DeclarationError
from gristmill.uses import Uses, read_uses


@dataclass
class Entry:
    """One line of a declaration: what is said of a name, and a comment."""

    name: str
    value: str
    note: str = ""

    def line(self, template: str) -> str:
        text = template.format(name=self.name, value=self.value)
        return f"{text},  # {self.note}" if self.note else f"{text},"


@dataclass
class Declaration:
    """What `gm.specialise` is told about one kernel; `options` are further arguments, such as lists of dtypes."""

    function: str
    signature: list[Entry] = field(default_factory=list)
    constants: list[Entry] = field(default_factory=list)
    options: list[Entry] = field(default_factory=list)
    configs: list[str] = field(default_factory=list)
    grid: Entry = field(default_factory=lambda: Entry("grid", "..."))

    @property
    def title(self) -> str:
        """The name of the dispatcher: the function's, without what only tells it from Python functions."""
        short = self.function.strip("_").removesuffix("_kernel").removeprefix("kernel_") or "kernel"
        return short if short != self.function else f"{short}_ahead"

    def text(self) -> str:
        lines = [f"{self.title} = gm.specialise(", f"    {self.function},", f'    name="{self.title}",']
        lines += _dictionary("signature", self.signature) + _dictionary("constants", self.constants)
        if self.configs:
            lines += ["    configs=[", *(f"        {config}," for config in self.configs), "    ],"]
        lines += ["    " + entry.line("{name}={value}") for entry in (*self.options, self.grid)]
        return "\n".join([*lines, ")"]) + "\n"


def _dictionary(name: str, entries: Sequence[Entry]) -> list[str]:
    if not entries:
        return []
    return [f"    {name}={{", *("        " + e.line('"{name}": {value}') for e in entries), "    },"]


def port(path: str | Path) -> str:
    """Return declarations for the jitted kernels of a file that have none yet, with the lines that they need.

    Raises DeclarationError if the file cannot be read or has no such kernel.
    """
    tree = _parse(Path(path))
    kernels = [function for function in _kernels(tree) if not _is_declared(tree, function.name)]
    if not kernels:
        message = f"{Path(path).name} has no kernel under `triton.jit` that is not declared yet"
        raise DeclarationError(message, fix="name a file that defines kernels with `@triton.jit`")
    taken = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    variable = next(name for name in ("D", "DTYPE", "ELEMENT_DTYPE") if name not in taken)
    uses = read_uses(_jitted(tree))
    parts = [declare(function, uses[function.name], tree, variable).text() for function in kernels]
    return "\n\n".join([_head(tree, variable), *parts])


def port_into(path: str | Path) -> None:
    """Add the declarations to the file and let it import Gristmill's `triton`."""
    file = Path(path)
    added = port(file)
    file.write_text(_with_imports(file.read_text()).rstrip("\n") + "\n\n\n" + added)


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text())
    except OSError as error:
        raise DeclarationError(f"cannot read {path}: {error.strerror}", fix="name a file of Triton kernels") from None
    except SyntaxError as error:
        raise DeclarationError(f"{path}:{error.lineno}: {error.msg}", fix="correct the syntax first") from None


def _jitted(tree: ast.Module) -> list[ast.FunctionDef]:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [f for f in functions if any(_called(d).endswith("jit") for d in f.decorator_list)]


def _called(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def _kernels(tree: ast.Module) -> list[ast.FunctionDef]:
    """The jitted functions that are launched: they return nothing, and no other jitted function calls them."""
    jitted = _jitted(tree)
    called = {_called(n) for f in jitted for n in ast.walk(f) if isinstance(n, ast.Call)}
    gives = {f.name for f in jitted if any(isinstance(n, ast.Return) and n.value for n in ast.walk(f))}
    return [f for f in jitted if f.name not in called | gives]


def _is_declared(tree: ast.Module, name: str) -> bool:
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and _called(n).endswith("specialise")]
    return any(c.args and ast.unparse(c.args[0]) == name for c in calls)


def _head(tree: ast.Module, variable: str) -> str:
    imported = any(isinstance(n, ast.Import) and any(a.asname == "gm" for a in n.names) for n in tree.body)
    lines = [] if imported else ["import gristmill as gm", ""]
    dtypes = "[gm.f16, gm.bf16, gm.f32]"
    return "\n".join(
        [*lines, f'{variable} = gm.dtype_var("{variable}", {dtypes})  # list what the kernels are for', ""]
    )


def _with_imports(source: str) -> str:
    """Return the text with imports of Triton replaced by those of its door."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(_is_triton(a.name) for a in node.names):
            names = "; ".join(_import(alias) for alias in node.names)
            lines[node.lineno - 1] = " " * node.col_offset + names + "\n"
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_triton(node.module or ""):
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(f"from {node.module}", f"from gristmill.compat.{node.module}", 1)
    return "".join(lines)


def _is_triton(module: str) -> bool:
    return module.split(".")[0] == "triton"


def _import(alias: ast.alias) -> str:
    if not _is_triton(alias.name):
        return f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
    if alias.asname:
        return f"import gristmill.compat.{alias.name} as {alias.asname}"
    return "import gristmill.compat.triton as triton"


# ---- one kernel ----------------------------------------------------------------------------------------------------


def declare(function: ast.FunctionDef, uses: Uses, tree: ast.Module, variable: str) -> Declaration:
    """Return what the source of one kernel tells of it."""
    found = Declaration(function.name)
    set_elsewhere, are_known = _chosen_by_decorators(function, tree)
    for argument, default in _arguments(function):
        if _is_constexpr(argument):
            if (
                argument.arg not in set_elsewhere
                and default is None
                and argument.arg not in ("num_warps", "num_stages")
            ):
                found.constants.append(_constant(argument.arg, variable, are_known))
        else:
            found.signature.append(_typed(argument, default, uses, variable))
    found.grid = _grid(function, uses, tree)
    return found


def _arguments(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    positional = [*function.args.posonlyargs, *function.args.args]
    missing = len(positional) - len(function.args.defaults)
    defaults: list[ast.expr | None] = [None] * missing
    yield from zip(positional, defaults + list(function.args.defaults), strict=True)
    yield from zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)


def _is_constexpr(argument: ast.arg) -> bool:
    return argument.annotation is not None and ast.unparse(argument.annotation).strip("'\"").endswith("constexpr")


def _chosen_by_decorators(function: ast.FunctionDef, tree: ast.Module) -> tuple[set[str], bool]:
    """The constants that `autotune` and `heuristics` set, and whether they are written out there."""
    names: set[str] = set()
    known = True
    for decorator in function.decorator_list:
        kind = _called(decorator).rpartition(".")[2]
        if kind not in ("autotune", "heuristics"):
            continue
        keys = {
            key.value
            for node in _with_definitions(decorator, tree)
            if isinstance(node, ast.Dict)
            for key in node.keys
            if isinstance(key, ast.Constant)
        }
        names |= {str(key) for key in keys}
        known = known and bool(keys)
    return names, known


def _with_definitions(node: ast.expr, tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of an expression and of what the file defines under the names in it."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    yield from ast.walk(node)
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        defined = {getattr(statement, "name", "")} | {t.id for t in targets if isinstance(t, ast.Name)}
        if defined & names:
            yield from ast.walk(statement)


def _constant(name: str, variable: str, are_known: bool) -> Entry:
    if "dtype" in name.lower():
        return Entry(name, "...", f"choose: a dtype, or a dtype variable as in {variable}")
    rest = "" if are_known else "; remove it if `autotune` or `heuristics` sets it"
    return Entry(name, "...", f"choose: the values to compile, as in [1024]{rest}")


_ANNOTATIONS = {"int": "gm.i32", "float": "gm.f32", "bool": "gm.bool_"}
_LANGUAGE = {
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32",
    "uint64": "u64", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int1": "bool_",
}  # fmt: skip


def _typed(argument: ast.arg, default: ast.expr | None, uses: Uses, variable: str) -> Entry:
    name = argument.arg
    if name in uses.descriptors:
        example = f'gm.descriptor[{variable}, "BLOCK_M", 64]'
        return Entry(name, "...", f"choose: the sizes of a block, as in {example}")
    if name in uses.indices:
        return Entry(name, "...", "choose: gm.ptr[gm.i64] or gm.ptr[gm.i32], since its elements are indices")
    if name in uses.pointers:
        return Entry(name, f"gm.ptr[{variable}]")
    if name in uses.maybe_pointers:
        return Entry(name, "...", f"choose: gm.ptr[{variable}] or gm.i32")
    annotated = ast.unparse(argument.annotation).strip("'\"") if argument.annotation else ""
    if annotated in _ANNOTATIONS:
        return Entry(name, _ANNOTATIONS[annotated])
    if annotated.rpartition(".")[2] in _LANGUAGE:
        return Entry(name, f"gm.{_LANGUAGE[annotated.rpartition('.')[2]]}")
    if isinstance(default, ast.Constant) and type(default.value).__name__ in _ANNOTATIONS:
        return Entry(name, _ANNOTATIONS[type(default.value).__name__])
    if name in uses.integers or "stride" in name.lower():
        return Entry(name, "gm.i32", _alternative(name, uses))
    if name in uses.floats:
        return Entry(name, "gm.f32", "choose: another dtype, if it is no f32")
    return Entry(name, "...", "choose: gm.f32, gm.i32 or another dtype")


def _alternative(name: str, uses: Uses) -> str:
    if name in uses.strides:
        axis = int("col" in name.lower())
        return f'or gm.stride["{uses.strides[name]}", {axis}], which calls leave out'
    if "stride" in name.lower():
        return ""
    first = next(iter(uses.pointers), "x")
    return f'or gm.shape["{first}", -1], which calls leave out, if it is that'


def _grid(function: ast.FunctionDef, uses: Uses, tree: ast.Module) -> Entry:
    integer = next((n for n in uses.integers if "stride" not in n.lower()), "n")
    block = next((a.arg for a, _ in _arguments(function) if _is_constexpr(a) and "BLOCK" in a.arg.upper()), "BLOCK")
    sizes = [f"gm.cdiv({integer}, {block})", *("1",) * uses.last_axis]
    shown = f"({', '.join(sizes)})" if uses.last_axis else sizes[0]
    launched = sorted(set(_launches(tree, function.name)))
    seen = f"; launched here with {' and '.join(launched)}" if launched else ""
    return Entry("grid", "...", f"choose: the programs, as in lambda {integer}, {block}: {shown}{seen}")


def _launches(tree: ast.Module, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == name:
            yield " ".join(ast.unparse(node.slice).split())
