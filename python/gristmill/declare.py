"""The decorator that turns a function into a Kernel: everything that is declared about it is checked here, once."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn, TypeVar, overload

from gristmill.choices import ConstantChoices, DtypeSets, Launch, expand, read_constants, read_dtype_sets
from gristmill.dtypes import Dtype
from gristmill.errors import DeclarationError
from gristmill.load import check_pairs, load_kernels, register
from gristmill.positions import Site, caller_position, find_site, show_path
from gristmill.signature import (
    DtypeVar,
    IndexType,
    Parameter,
    PointerType,
    Signature,
    at,
    closest,
    constexpr,
    dtype_var,
    ptr,
    read_signature,
    shape,
    size,
    stride,
)
from gristmill.specialisation import VARIANTS, Config, Specialisation, Variant
from gristmill.symbolic import Code
from gristmill.tracing import (
    symbols,
    trace_condition,
    trace_grid,
    trace_key,
    trace_preference,
    with_extents,
    without_constants,
)

__all__ = [
    "VARIANTS",
    "Config",
    "DtypeVar",
    "IndexType",
    "Kernel",
    "Parameter",
    "PointerType",
    "Specialisation",
    "Variant",
    "check_pairs",
    "constexpr",
    "dtype_var",
    "jit",
    "kernel",
    "load_kernels",
    "ptr",
    "shape",
    "size",
    "stride",
]

Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True, eq=False)
class Kernel:
    """What an author declared.

    `file` is relative to the project; `line` is that of the first line of `source`, the function with its decorators,
    dedented. `parameters` are those passed at a call, without the constants. `dtype_vars` and `constants` hold the
    values that occur in some specialisation; `configured` names the constants that configurations set, or that follow
    from others. `grid` is code for one to three sizes, or () if none was declared; `pick` and `prefer` are code, or ()
    for always, and `padded`, or () for never; `key` is code by its text. `fixed` are parameters of the function that
    every specialisation knows at build time and that are no constants: None, a dtype, a dtype variable or a
    LaunchOption.
    """

    name: str
    function: Callable[..., object]
    file: str
    line: int
    source: str
    doc: str
    parameters: tuple[Parameter, ...]
    constant_names: tuple[str, ...]
    constants: tuple[tuple[str, tuple[object, ...]], ...]
    dtype_vars: tuple[tuple[str, tuple[Dtype, ...]], ...]
    grid: tuple[Code, ...]
    pick: Code
    prefer: Code
    key: tuple[tuple[str, Code], ...]
    padded: Code
    backward: str | None
    site: Site = field(repr=False)
    expanded: tuple[Specialisation, ...] = field(repr=False)
    fixed: tuple[tuple[str, object], ...] = ()
    configured: tuple[str, ...] = ()

    def specialisations(self) -> list[Specialisation]:
        """Return what is compiled, in declared order."""
        return list(self.expanded)

    @property
    def num_warps(self) -> int:
        """The warps of the first specialisation; others may differ."""
        return self.expanded[0].num_warps

    def parameter(self, name: str) -> Parameter:
        """Return a parameter by name; KeyError if there is none."""
        return {p.name: p for p in self.parameters}[name]

    def __call__(self, *arguments: object, **keywords: object) -> NoReturn:
        message = f"`{self.name}` is a declaration; what can be called is its dispatcher in the built package"
        fix = f"build the package and call what it exports, as in `from gristmill.kernels import {self.name}`"
        raise DeclarationError(message, fix=fix, position=caller_position())


def jit(function: Function) -> Function:
    """Mark a helper function that kernels call; functions without the mark are accepted as well."""
    return function


_OPTIONS = (
    "dtypes", "configs", "where", "grid", "pick", "prefer", "key", "padded", "num_warps", "num_stages", "backward",
)  # fmt: skip


@overload
def kernel(function: Callable[..., object], /) -> Kernel: ...
@overload
def kernel(
    *,
    dtypes: object = None,
    configs: object = None,
    where: object = None,
    grid: object = None,
    pick: object = None,
    prefer: object = None,
    key: object = None,
    padded: object = None,
    num_warps: object = None,
    num_stages: object = None,
    backward: str | None = None,
    **lists: object,
) -> Callable[[Callable[..., object]], Kernel]: ...
def kernel(function: object = None, /, **given: object) -> Kernel | Callable[[Callable[..., object]], Kernel]:
    """Declare a kernel; used as `@gm.kernel(...)`.

    `NAME=[...]` lists the values of a constant, or the dtypes of a dtype variable (`dtypes=[...]` if there is one);
    the first is preferred. `configs` sets constants together, with `num_warps` and `num_stages`. `where` says at build
    time which combinations to keep. `grid` gives the number of programs, `pick` tells at a call whether a combination
    can serve it, `prefer` which of those to take: that for which it is largest (a condition that holds is 1), the first
    of equals; and `padded` whether matrices that are not aligned are worth a copy that is (`docs/padding.md`): all are
    traced once with symbols. `key` lists what a tuned table tells calls apart by: index parameters, or expressions of
    them, as in `key=["m", "n"]`. `backward` names the gradient kernel.
    Raises DeclarationError at the author's line for everything that does not fit together.
    """
    scope = _names_in(sys._getframe(1))
    if function is not None:
        return _declare(function, {}, scope)
    return lambda decorated: _declare(decorated, given, scope)


def _names_in(frame: FrameType) -> Mapping[str, object]:
    """Return the local names of the defining frame, for annotations that are text; a module's are globals anyway."""
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _declare(function: object, given: Mapping[str, object], scope: Mapping[str, object]) -> Kernel:
    function = inspect.unwrap(function) if callable(function) else function
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        message = f"`gm.kernel` decorates a function, found `{getattr(function, '__name__', function)}`"
        raise DeclarationError(
            message, fix="put `@gm.kernel(...)` above a `def`, with its arguments by name", position=caller_position()
        )
    site = find_site(function)
    if not function.__name__.isascii():
        raise at(site.of_name(), f"`{function.__name__}` cannot be a symbol", "use ASCII letters, digits and _")
    signature, annotations = read_signature(function, site, scope)
    lists, sets = _sort_arguments(given, signature, site)
    choices = read_constants(signature, lists, given.get("configs"), site)
    return assemble(Declared(function.__name__, function, signature, annotations, sets, choices, site), given)


@dataclass(frozen=True)
class Declared:
    """What is known of a kernel once its signature and constants are read; `fixed` as in Kernel."""

    name: str
    function: Callable[..., object]
    signature: Signature
    annotations: Mapping[str, object]
    dtype_lists: Mapping[str, object]
    choices: ConstantChoices
    site: Site
    fixed: tuple[tuple[str, object], ...] = ()


def assemble(declared: Declared, given: Mapping[str, object]) -> Kernel:
    """Return the kernel, with all its specialisations; `given` are the other arguments of the declaration."""
    function, signature, choices, site = declared.function, declared.signature, declared.choices, declared.site
    dtype_sets = read_dtype_sets(signature, given.get("dtypes"), declared.dtype_lists, site)
    launch = Launch(given.get("where"), given.get("num_warps"), given.get("num_stages"))
    expanded = expand(declared.name, dtype_sets, choices, launch, site)
    names = symbols(signature, choices.values())
    key = trace_key(given.get("key"), {p.name: names[p.name] for p in signature.parameters}, site)
    if key and not choices.configs:
        message = "`key` is given, but there are no configurations to tune"
        raise at(site.of_keyword("key"), message, "list them, `configs=[gm.Config(...), ...]`, or remove `key=`")
    return register(
        Kernel(
            name=declared.name,
            function=function,
            file=show_path(site.home or site.path),
            line=site.first_line,
            source=site.source,
            doc=inspect.getdoc(function) or "",
            parameters=with_extents(signature, declared.annotations, names, site),
            constant_names=signature.constant_names,
            constants=_occurring(choices, expanded),
            dtype_vars=_occurring_dtypes(dtype_sets, expanded),
            grid=trace_grid(given.get("grid"), names, site),
            pick=trace_condition("pick", given.get("pick"), names, site),
            prefer=trace_preference(given.get("prefer"), names, site),
            key=key,
            padded=trace_condition(
                "padded", given.get("padded"), without_constants(names, signature.constant_names), site
            ),
            backward=_read_backward(given.get("backward"), site),
            site=site,
            expanded=expanded,
            fixed=declared.fixed,
            configured=tuple(name for name in signature.constant_names if name not in choices.lists),
        )
    )


def _sort_arguments(
    given: Mapping[str, object], signature: Signature, site: Site
) -> tuple[dict[str, object], dict[str, object]]:
    """Split the decorator's lists into those of constants and those of dtype variables; refuse other arguments."""
    variables = {v.name for v in signature.dtype_vars}
    lists: dict[str, object] = {}
    sets: dict[str, object] = {}
    for name, value in given.items():
        if name in signature.constant_names and name not in _OPTIONS:
            lists[name] = value
        elif name in variables and name not in _OPTIONS:
            sets[name] = value
        elif name not in _OPTIONS:
            raise _unknown_argument(name, signature, site)
    for name in (*signature.constant_names, *variables):
        if name in _OPTIONS:
            position = site.of_name() if name in variables else site.of_parameter(name)
            raise at(position, f"`{name}` is an argument of the decorator", f"rename it, as in `{name.upper()}_`")
    return lists, sets


def _unknown_argument(name: str, signature: Signature, site: Site) -> DeclarationError:
    known = [*_OPTIONS, *signature.constant_names, *(v.name for v in signature.dtype_vars)]
    fix = closest(name, known)
    if name in {p.name for p in signature.parameters}:
        fix = f"annotate it as a constant, `{name}: gm.constexpr`, or remove the list"
    return at(site.of_keyword(name), f"unknown `gm.kernel` argument `{name}`", fix)


def _read_backward(backward: object, site: Site) -> str | None:
    if backward is None or (isinstance(backward, str) and backward.isidentifier()):
        return backward
    shown = backward.name if isinstance(backward, Kernel) else "gelu_backward"
    raise at(
        site.of_value("backward"), "`backward` must be the name of a kernel, as text", f'write `backward="{shown}"`'
    )


def _occurring(
    choices: ConstantChoices, expanded: tuple[Specialisation, ...]
) -> tuple[tuple[str, tuple[object, ...]], ...]:
    kept = {(name, repr(value)) for s in expanded for name, value in s.constants}
    return tuple((name, tuple(v for v in vs if (name, repr(v)) in kept)) for name, vs in choices.values().items())


def _occurring_dtypes(
    sets: DtypeSets, expanded: tuple[Specialisation, ...]
) -> tuple[tuple[str, tuple[Dtype, ...]], ...]:
    kept = {pair for s in expanded for pair in s.dtypes}
    return tuple((name, tuple(d for d in members if (name, d) in kept)) for name, members in sets.items())
