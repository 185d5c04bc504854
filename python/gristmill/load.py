"""Executes files of kernels and checks that the kernels of a package fit together."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gristmill.errors import DeclarationError, GristmillError, Position
from gristmill.positions import raised_position, show_path, shown_from
from gristmill.signature import at
from gristmill.specialisation import VARIANTS, show

if TYPE_CHECKING:
    from gristmill.declare import Kernel

_loaded: ContextVar[list[Kernel] | None] = ContextVar("loaded", default=None)
_numbers = itertools.count()


def register(kernel: Kernel) -> Kernel:
    """Add a kernel to the loading session, if there is one."""
    if (loaded := _loaded.get()) is not None:
        loaded.append(kernel)
    return kernel


def load_kernels(path: str | Path, root: str | Path | None = None) -> list[Kernel]:
    """Execute a file and return the kernels that it defines, in order.

    Modules beside the file can be imported by it. Positions and `Kernel.file` are relative to `root`.
    Raises DeclarationError for what is wrong in the file, wherever it comes from.
    """
    source = Path(path)
    if not source.is_file():
        raise DeclarationError(f"there is no file {source.as_posix()}", fix="name a Python file that defines kernels")
    source = source.resolve()
    linecache.checkcache(str(source))
    token = _loaded.set([])
    try:
        with shown_from(Path(root) if root is not None else None), _importable(source.parent):
            _execute(source)
            kernels = [k for k in _loaded.get() or [] if k.site.path == str(source)]
            _check_loaded(kernels)
    finally:
        _loaded.reset(token)
    return kernels


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules in `folder` be imported, after all others so that they hide none, and forget them again."""
    before = set(sys.modules)
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]


def _execute(source: Path) -> None:
    module = ModuleType(f"_gristmill_{source.stem}_{next(_numbers)}")
    module.__file__ = str(source)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source.read_bytes(), str(source), "exec", dont_inherit=True), module.__dict__)
    except GristmillError:
        raise
    except SyntaxError as error:
        raise _syntax_error(error, source) from None
    except ModuleNotFoundError as error:
        fix = f"install `{error.name}` where kernels are built, or put `{error.name}.py` beside the file"
        raise DeclarationError(str(error), fix=fix, position=raised_position(error)) from error
    except NameError as error:
        message = f"`{error.name}` is not defined"
        raise DeclarationError(message, fix="define or import it before", position=raised_position(error)) from error
    except Exception as error:
        message = f"{type(error).__name__}: {error}".partition(" (/")[0]
        fix = "kernels are read by executing their file; it must run without errors"
        raise DeclarationError(message, fix=fix, position=raised_position(error)) from error


RESERVED_NAMES = ("Dispatcher", "GridLauncher", "KernelInstance", "Trial", "doctor", "info", "load_tuning", "preload")
_DEFAULTS = ("non-default argument follows default", "parameter without a default follows")


def _syntax_error(error: SyntaxError, source: Path) -> DeclarationError:
    file, line, column = error.filename or str(source), error.lineno or 1, error.offset or 1
    text = (error.text or linecache.getline(file, line)).rstrip("\n")
    end = error.end_offset if error.end_lineno == line and error.end_offset else column + 1
    fix = "correct the syntax; the file is read as Python " + ".".join(map(str, sys.version_info[:2]))
    if any(part in error.msg for part in _DEFAULTS):
        fix = "write `= None` after index parameters and constants that follow a parameter with a default"
    if re.match(r"\s*def \w+\[", text) and sys.version_info < (3, 12):
        fix = 'type parameters need Python 3.12; for 3.11 write `D = gm.dtype_var("D", gm.Float)` above'
    position = Position(show_path(file), line, column, max(end, column + 1), text)
    return at(position, f"syntax error: {error.msg}", fix)


def _check_loaded(kernels: Sequence[Kernel]) -> None:
    check_names(kernels)
    for kernel in kernels:
        if kernel.name in RESERVED_NAMES:
            message = f"`{kernel.name}` is a name of every built module"
            raise at(kernel.site.of_name(), message, f"rename the kernel, as in `{kernel.name}_kernel`")
        if not kernel.grid:
            fix = "add `grid=lambda n, BLOCK: gm.cdiv(n, BLOCK)` to the decorator, or `grid=1`"
            message = f"`{kernel.name}` declares no grid, so a call cannot tell how many programs to run"
            raise at(kernel.site.of(kernel.site.decorator()), message, fix)


def check_names(kernels: Sequence[Kernel]) -> None:
    """Raise DeclarationError if two kernels have one name."""
    seen: dict[str, Kernel] = {}
    for kernel in kernels:
        if (other := seen.setdefault(kernel.name, kernel)) is not kernel:
            message = f"kernel `{kernel.name}` is already defined at {other.file}:{other.site.node.lineno}"
            raise at(kernel.site.of_name(), message, "rename one of the two")


def check_symbols(kernels: Sequence[Kernel]) -> None:
    """Raise DeclarationError if two kernels have a specialisation of one symbol."""
    seen: dict[str, Kernel] = {}
    for kernel in kernels:
        for specialisation in kernel.expanded:
            symbol = specialisation.symbol(VARIANTS[0])
            if (other := seen.setdefault(symbol, kernel)) is not kernel:
                message = (
                    f"`{specialisation.id}` and a specialisation of `{other.name}` would have one symbol, {symbol}"
                )
                raise at(kernel.site.of_name(), message, "rename one of the kernels")


def check_pairs(kernels: Sequence[Kernel]) -> None:
    """Check the kernels of a package together: their names and symbols, and each `backward` with the kernel it names.

    A pair must come in the same dtypes and constants; where configurations set constants, in the same dtypes. Raises
    DeclarationError, at `backward`, that says what differs.
    """
    check_names(kernels)
    check_symbols(kernels)
    by_name = {k.name: k for k in kernels}
    for kernel in kernels:
        if kernel.backward is None:
            continue
        position = kernel.site.of_value("backward")
        if kernel.backward not in by_name:
            fix = f"define it, or name one of {', '.join(n for n in by_name if n != kernel.name)}"
            raise at(position, f"there is no kernel `{kernel.backward}`", fix)
        if difference := _difference(kernel, by_name[kernel.backward]):
            message = f"`{kernel.name}` and its backward `{kernel.backward}` differ: {difference}"
            raise at(position, message, "declare both with the same dtypes and constants")


def _difference(forward: Kernel, backward: Kernel) -> str | None:
    """Return what differs between the choices of two kernels; None if they are the same."""
    choices: list[tuple[str, dict[str, Any], dict[str, Any]]]
    choices = [("dtypes", dict(forward.dtype_vars), dict(backward.dtype_vars))]
    has_own = bool(forward.configured or backward.configured) and forward.constant_names != backward.constant_names
    if not has_own:
        choices.append(("constants", dict(forward.constants), dict(backward.constants)))
    for what, ours, theirs in choices:
        if list(ours) != list(theirs):
            return f"{what} {_listed(ours)} and {_listed(theirs)}"
        for name in ours:
            if set(map(repr, ours[name])) != set(map(repr, theirs[name])):
                return f"{name} is {_listed(ours[name])} and {_listed(theirs[name])}"
    missing = set() if has_own else _combinations(forward) ^ _combinations(backward)
    return f"only one of them has {min(missing)}" if missing else None


def _listed(values: object) -> str:
    shown = [show(v) for v in values]  # type: ignore[attr-defined]
    return ", ".join(shown) or "none"


def _combinations(kernel: Kernel) -> set[str]:
    return {"__".join(s.base.split("__")[1:]) for s in kernel.expanded}
