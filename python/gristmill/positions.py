"""Where things stand in the author's files: every diagnostic of a declaration takes its line and columns from here."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from gristmill.errors import DeclarationError, Position

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_root: ContextVar[Path | None] = ContextVar("root", default=None)


@contextmanager
def shown_from(root: Path | None) -> Iterator[None]:
    """Show the paths of files under `root` relative to it."""
    token = _root.set(root)
    try:
        yield
    finally:
        _root.reset(token)


def show_path(path: str) -> str:
    """Return `path` as users read it: relative to the project or the working directory, else the file's name."""
    for root in (_root.get(), Path.cwd()):
        if root is not None and Path(path).resolve().is_relative_to(root.resolve()):
            return Path(path).resolve().relative_to(root.resolve()).as_posix()
    return path if path.startswith("<") else Path(path).name


@dataclass(frozen=True)
class Span:
    """Lines from 1 and columns from 0 in UTF-8 bytes, as `ast` and `co_positions` count them; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int

    def covers(self, other: Span) -> bool:
        starts = (self.line, self.column) <= (other.line, other.column)
        return starts and (self.end_line, self.end_column) >= (other.end_line, other.end_column)


def node_span(node: Any) -> Span:
    """Return the span of an expression, statement, argument or keyword."""
    return Span(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


def place(path: str, span: Span) -> Position:
    """Return the position of `span`; one of several lines ends with its first."""
    text = linecache.getline(path, span.line).rstrip("\n")
    raw = text.encode()
    end_column = span.end_column if span.end_line == span.line else len(raw)
    column, end = (len(raw[:at].decode(errors="replace")) + 1 for at in (span.column, end_column))
    return Position(show_path(path), span.line, column, end, text)


@lru_cache(maxsize=16)
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


def tree_of(path: str) -> ast.Module | None:
    """Return the syntax tree of a file; None where its source cannot be read."""
    text = "".join(linecache.getlines(path))
    try:
        return _parse(text) if text else None
    except SyntaxError:
        return None


def _code_span(code: CodeType, instruction: int) -> Span | None:
    for index, (line, end_line, column, end_column) in enumerate(code.co_positions()):
        if index == instruction // 2:
            if line is None or column is None or end_line is None or end_column is None:
                return None
            return Span(line, column, end_line, end_column)
    return None


def _is_authors(path: str) -> bool:
    installed = path.startswith((_PACKAGE, _LIBRARY)) or "site-packages" in path
    return not installed and bool(linecache.getline(path, 1))


def caller_span() -> tuple[str, Span] | None:
    """Return file and span of what the innermost frame outside this package is evaluating."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_authors(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    span = _code_span(frame.f_code, frame.f_lasti)
    return (frame.f_code.co_filename, span) if span else None


def caller_position() -> Position | None:
    found = caller_span()
    return place(*found) if found else None


def raised_position(error: BaseException) -> Position | None:
    """Return where the author's innermost line was when `error` came through it."""
    found, trace = None, error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if _is_authors(code.co_filename) and (span := _code_span(code, trace.tb_lasti)):
            found = (code.co_filename, span)
        trace = trace.tb_next
    return place(*found) if found else None


@dataclass(frozen=True)
class Site:
    """A kernel's function in its file, from which the parts of decorator and signature are located.

    Where a call declares a function that stands elsewhere, `call` is that call, in the file `path`, and `home` the file
    of the function; what the call says of a parameter is then located in its dictionaries.
    """

    path: str
    node: ast.FunctionDef
    call: ast.Call | None = None
    home: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that declaration and function stand in."""
        return (self.path, self.home) if self.home and self.home != self.path else (self.path,)

    @property
    def first_line(self) -> int:
        return min([self.node.lineno, *(d.lineno for d in self.node.decorator_list)])

    @property
    def source(self) -> str:
        """The author's text from the first decorator on, dedented."""
        lines = linecache.getlines(self.home or self.path)[self.first_line - 1 : self.node.end_lineno]
        return textwrap.dedent("".join(lines))

    def of(self, node: ast.AST | None) -> Position:
        """Return the position of a node; that of the function's name for none."""
        return place(self._file_of(node), node_span(node)) if node is not None else self.of_name()

    def _file_of(self, node: ast.AST) -> str:
        is_in_call = self.call is None or covers(self.call, node)
        return self.path if is_in_call else self.home or self.path

    def of_name(self) -> Position:
        if self.call is not None:
            named = self.keyword("name")
            return self.of(named.value if named else self.call.args[0] if self.call.args else self.call)
        line = linecache.getline(self.path, self.node.lineno).encode()
        column = line.find(self.node.name.encode(), self.node.col_offset + len("def "))
        end = column + len(self.node.name.encode())
        return place(self.path, Span(self.node.lineno, column, self.node.lineno, end))

    def decorator(self) -> ast.expr | None:
        if self.call is not None:
            return self.call
        for node in self.node.decorator_list:
            called = node.func if isinstance(node, ast.Call) else node
            if getattr(called, "attr", getattr(called, "id", None)) == "kernel":
                return node
        return self.node.decorator_list[0] if self.node.decorator_list else None

    def keyword(self, name: str) -> ast.keyword | None:
        """Return the decorator's argument `name`, written out as `name=value`."""
        call = self.decorator()
        if not isinstance(call, ast.Call):
            return None
        return next((k for k in call.keywords if k.arg == name), None) or self._entry(name)

    def _entry(self, name: str) -> ast.keyword | None:
        """Return what the call's dictionaries say of a parameter, as if it were an argument."""
        for keyword in self.call.keywords if self.call is not None else ():
            if isinstance(keyword.value, ast.Dict):
                for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        return _spanning(ast.keyword(name, value), key, value)
        return None

    def of_keyword(self, name: str) -> Position:
        return self.of(self.keyword(name) or self.decorator())

    def of_value(self, name: str) -> Position:
        """Return the position of the value given for the decorator's argument `name`."""
        keyword = self.keyword(name)
        return self.of(keyword.value if keyword else self.decorator())

    def of_item(self, name: str, index: int) -> Position:
        """Return the position of one item of a list given for the decorator's argument `name`."""
        keyword = self.keyword(name)
        if keyword and isinstance(keyword.value, (ast.List, ast.Tuple)) and index < len(keyword.value.elts):
            return self.of(keyword.value.elts[index])
        return self.of_value(name)

    def of_config(self, index: int, name: str) -> Position:
        """Return the position of the argument `name` of the configuration at `index`, or of the configuration."""
        keyword = self.keyword("configs")
        if keyword and isinstance(keyword.value, (ast.List, ast.Tuple)) and index < len(keyword.value.elts):
            call = keyword.value.elts[index]
            found = [k for k in call.keywords if k.arg == name] if isinstance(call, ast.Call) else []
            return self.of(found[0] if found else call)
        return self.of_value("configs")

    def of_lambda_argument(self, keyword_name: str, argument: str) -> Position:
        """Return the position of an argument of the lambda given for the decorator's argument `keyword_name`."""
        keyword = self.keyword(keyword_name)
        if keyword and isinstance(keyword.value, ast.Lambda):
            for node in all_arguments(keyword.value.args):
                if node.arg == argument:
                    return self.of(node)
        return self.of_value(keyword_name)

    def argument(self, name: str) -> ast.arg | None:
        return next((a for a in all_arguments(self.node.args) if a.arg == name), None)

    def of_parameter(self, name: str) -> Position:
        """Return the position of a parameter's name in the signature."""
        if self.call is not None:
            return self.of(self._entry(name) or self.call)
        node = self.argument(name)
        if node is None:
            return self.of_name()
        span = node_span(node)
        return place(self.path, Span(span.line, span.column, span.line, span.column + len(name.encode())))

    def of_annotation(self, name: str) -> Position:
        return self.of(self._annotation(name) or self.argument(name))

    def _annotation(self, name: str) -> ast.expr | None:
        if self.call is not None:
            entry = self._entry(name)
            return entry.value if entry else self.call
        node = self.argument(name)
        return node.annotation if node is not None else None

    def of_default(self, name: str) -> Position:
        arguments = self.node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs: list[tuple[ast.arg, ast.expr | None]] = list(
            zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        )
        pairs += zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)
        return next((self.of(d) for a, d in pairs if a.arg == name and d is not None), self.of_parameter(name))

    def of_subscript(self, name: str, index: int) -> Position:
        """Return the position of item `index` between the brackets of a parameter's annotation."""
        annotation = self._annotation(name)
        if isinstance(annotation, ast.Subscript):
            inside = annotation.slice
            items = inside.elts if isinstance(inside, ast.Tuple) else [inside]
            if index < len(items):
                return self.of(items[index])
        return self.of_annotation(name)

    def of_type_parameter(self, name: str) -> Position:
        for node in getattr(self.node, "type_params", []):
            if node.name == name:
                return self.of(node)
        return self.of_name()


def covers(outer: ast.AST, inner: ast.AST) -> bool:
    """Whether `inner` is a part of `outer`, or was made from its parts."""
    return any(node is inner or node is getattr(inner, "value", inner) for node in ast.walk(outer))


def _spanning(made: ast.keyword, first: ast.expr, last: ast.expr) -> ast.keyword:
    made.lineno, made.col_offset = first.lineno, first.col_offset
    made.end_lineno, made.end_col_offset = last.end_lineno, last.end_col_offset
    return made


def find_call(path: str, span: Span) -> ast.Call | None:
    """Return the innermost call that stands at `span`."""
    tree = tree_of(path)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree else []
    return next((node for node in reversed(calls) if node_span(node).covers(span)), None)


def all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return found + [a for a in (arguments.vararg, arguments.kwarg) if a is not None]


def find_site(function: FunctionType) -> Site:
    """Find a function in its file.

    Raises DeclarationError if the source cannot be read, as for one made by `exec`.
    """
    code = function.__code__
    linecache.checkcache(code.co_filename)
    tree = tree_of(code.co_filename)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            site = Site(code.co_filename, node)
            if code.co_firstlineno in (site.first_line, node.lineno):
                return site
    raise DeclarationError(f"the source of `{code.co_name}` cannot be read", fix="put the kernel in a file of its own")
