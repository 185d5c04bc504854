"""What the frontend knows while it reads one function: names, source positions and the builder."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from gristmill.compiler.op import Builder
from gristmill.errors import KernelError, Position
from gristmill.positions import show_path

MAX_CALL_DEPTH = 64
DIFFERENT_CONSTANTS = "the branches of an `if` assign different things that are not both tiles"
CHANGED_CONSTANT = "a loop changes it, and it is no tile"
_REMEDIES = {
    DIFFERENT_CONSTANTS: "use a `gm.constexpr` condition, which chooses the branch at build time",
    CHANGED_CONSTANT: "use `tl.static_range`, or another name inside the loop",
}


@dataclass(frozen=True)
class Source:
    """A function's text and where it stands; `tree` has lines and columns of the dedented text."""

    file: str
    first_line: int
    indent: int
    lines: tuple[str, ...]
    tree: ast.FunctionDef

    def position(self, node: ast.AST) -> Position:
        """Return the file position of a node (its first line only, where it has several)."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        same_line = getattr(node, "end_lineno", line) == line
        text = self.lines[line - 1]
        column = len(text.encode()[:column].decode(errors="ignore"))
        end = len(text.encode()[: node.end_col_offset].decode(errors="ignore")) if same_line else len(text)  # type: ignore[attr-defined]
        shift = self.indent + 1
        return Position(self.file, self.first_line + line - 1, column + shift, end + shift, " " * self.indent + text)


_sources: WeakKeyDictionary[Callable[..., Any], Source] = WeakKeyDictionary()  # code objects are equal across files


def source_of(function: Callable[..., Any]) -> Source:
    """Parse a function's source."""
    code = function.__code__
    if function not in _sources:
        lines, first = inspect.getsourcelines(function)
        dedented = textwrap.dedent("".join(lines))
        tree = ast.parse(dedented).body[0]
        if not isinstance(tree, ast.FunctionDef):
            raise KernelError(f"`{function.__name__}` is not a function with a body of its own", fix="use `def`")
        indent = len(lines[0]) - len(lines[0].lstrip())
        _sources[function] = Source(show_path(code.co_filename), first, indent, tuple(dedented.splitlines()), tree)
    return _sources[function]


@dataclass(eq=False)
class Scope:
    """One function while it is compiled; `names` maps locals to tiles or compile-time objects."""

    source: Source
    function: Callable[..., Any]
    builder: Builder
    names: dict[str, Any]
    inline: Callable[..., Any]
    depth: int = 0
    removed: dict[str, str] = field(default_factory=dict)
    in_loop: bool = False

    @contextmanager
    def at(self, node: ast.AST) -> Iterator[None]:
        """Give ops and errors below the position of `node`; errors that already have one keep it."""
        outer = self.builder.position
        self.builder.position = self.source.position(node)
        try:
            yield
        except KernelError as error:
            error.position = error.position or self.source.position(node)
            raise
        finally:
            self.builder.position = outer

    def lookup(self, name: str) -> Any:
        """Return what a name means: a local, a closure variable, a global or a builtin."""
        if name in self.names:
            return self.names[name]
        if name in self.removed:
            fix = _REMEDIES.get(self.removed[name], "assign `{name}` before, or in both branches").format(name=name)
            raise KernelError(f"`{name}` is not defined here: {self.removed[name]}", fix=fix)
        outer = inspect.getclosurevars(self.function)
        for space in (outer.nonlocals, self.function.__globals__, outer.builtins):
            if name in space:
                return space[name]
        import builtins

        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise KernelError(
            f"`{name}` is not defined", fix=f"assign it first, or make it a parameter{_suggest(name, self.names)}"
        )


def _suggest(name: str, names: dict[str, Any]) -> str:
    import difflib

    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean `{close[0]}`?" if close else ""
