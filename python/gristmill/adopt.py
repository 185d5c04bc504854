"""Declares a kernel that was written elsewhere: what its function does not say of itself is said beside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from gristmill import dtypes as dt
from gristmill.choices import read_constants
from gristmill.declare import Declared, Kernel, assemble
from gristmill.described import DescriptorType, where_dense
from gristmill.dtypes import Dtype
from gristmill.errors import DeclarationError
from gristmill.positions import Site, caller_position, caller_span, find_call, find_site
from gristmill.signature import (
    DtypeVar,
    IndexType,
    Parameter,
    PointerType,
    Signature,
    at,
    closest,
    complete,
    read_parameter,
)
from gristmill.specialisation import Config, LaunchOption

_ELEMENTS = {
    "fp16": dt.f16, "bf16": dt.bf16, "fp32": dt.f32, "fp64": dt.f64, "i1": dt.bool_, "i8": dt.i8, "i16": dt.i16,
    "i32": dt.i32, "i64": dt.i64, "u8": dt.u8, "u16": dt.u16, "u32": dt.u32, "u64": dt.u64, "u1": dt.bool_,
    "f16": dt.f16, "f32": dt.f32, "f64": dt.f64, "fp8e4nv": dt.f8e4m3, "fp8e5": dt.f8e5m2,
}  # fmt: skip
_TYPE_FIX = 'write `gm.ptr[D]`, a dtype such as `gm.i32`, `gm.shape["x", 0]`, or a text such as "*fp32" or "i32"'
_OPTIONS = ("dtypes", "where", "grid", "pick", "prefer", "key", "padded", "num_warps", "num_stages", "backward")
_LAUNCH_OPTIONS = ("num_warps", "num_stages")


@dataclass
class Jitted:
    """A function without its decorators; what `autotune` and `heuristics` said of it."""

    function: FunctionType
    configs: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    heuristics: dict[str, Callable[..., Any]] = field(default_factory=dict)


def specialise(
    kernel: object,
    *,
    signature: Mapping[str, object],
    constants: Mapping[str, object] | None = None,
    configs: object = None,
    name: str | None = None,
    **given: object,
) -> Kernel:
    """Declare a kernel from a function that says nothing of its dtypes, such as one written for Triton.

    `signature` gives each array and scalar a type: `gm.ptr[D]`, `gm.i32`, `gm.shape["x", -1]`, or Triton's "*bf16",
    "i32"; `gm.descriptor[D, "BLOCK_M", "BLOCK_K"]` is an array that the function takes as a tensor descriptor. An index
    type under a name that the function does not have is there for `grid` and `pick` to read.
    `constants` lists the values of the others; a dtype, a dtype variable or None is given as it is. Constants that have
    a default need none. `configs` and `key` are by default those of `triton.autotune`; what `triton.heuristics`
    computes is computed here. The other arguments are those of `gm.kernel`. At a call arrays and scalars come first, in
    the function's order, then what follows from them.
    Raises DeclarationError at the author's line for everything that does not fit together.
    """
    jitted = unwrap(kernel)
    site = _find_call_site(jitted.function)
    if configs is None and jitted.hooks:
        message = f"`triton.autotune` cannot run `{jitted.hooks[0]}`: nothing is tuned when the program runs"
        fix = "list those to compile: `configs=[gm.Config(...)]`; `where=` and `pick=` say which suit"
        raise at(site.of_name(), message, fix)
    reader = _Reader(jitted, site, dict(signature), dict(constants or {}), configs)
    sets = {key: value for key, value in given.items() if key not in _OPTIONS}
    for option in _OPTIONS[1:]:
        _check_filled(option, given.get(option), site)
    read = reader.signature()
    unknown = [key for key in sets if key not in {v.name for v in read.dtype_vars}]
    if unknown:
        known = [*_OPTIONS, "signature", "constants", "configs", "name", *(v.name for v in read.dtype_vars)]
        raise at(
            site.of_keyword(unknown[0]), f"unknown `gm.specialise` argument `{unknown[0]}`", closest(unknown[0], known)
        )
    choices = read_constants(read, reader.lists, reader.configs, site, reader.derived())
    title = _checked_name(name if name is not None else jitted.function.__name__, site)
    reader.check_blocks(choices.values())
    fixed = (*reader.fixed.items(), *reader.described.items())
    declared = Declared(title, jitted.function, read, reader.types, sets, choices, site, fixed)
    own = {"key": _known_keys(jitted, read) if choices.configs else None}
    return assemble(declared, own | given | {"pick": where_dense(given.get("pick"), reader.described)})


def _known_keys(jitted: Jitted, read: Signature) -> list[str] | None:
    """The integers among what `autotune` tells calls apart by."""
    integers = {p.name for p in read.parameters if p.is_index or getattr(p.dtype, "kind", "") in ("int", "uint")}
    return [name for name in jitted.keys if name in integers] or None


def unwrap(kernel: object) -> Jitted:
    """Return the function under `triton.jit`, `autotune` and `heuristics`, and what they say.

    Raises DeclarationError for what is no function, or what would run Python at each launch.
    """
    configs: list[Any] = []
    keys: list[str] = []
    hooks: list[str] = []
    heuristics: dict[str, Callable[..., Any]] = {}
    inner: Any = kernel
    while not inspect.isfunction(inner):
        following = getattr(inner, "fn", None) or getattr(inner, "function", None)
        if following is None or isinstance(inner, Kernel):
            message = f"found {type(inner).__name__} where a function is needed"
            raise _here(message, "pass a function, or one under `triton.jit`")
        configs = configs or list(getattr(inner, "configs", ()))
        keys = keys or list(getattr(inner, "keys", None) or ())
        hooks += getattr(inner, "hooks", ())
        heuristics |= dict(getattr(inner, "values", {}) or {})
        inner = following
    return Jitted(inner, configs, keys, hooks, heuristics)


def _read_config(config: Any) -> Config:
    if isinstance(config, Config):
        return config
    if getattr(config, "pre_hook", None) is not None:
        raise _here(
            "a configuration's `pre_hook` runs Python at each launch, and a wheel runs none",
            "do its work before the call, and pass `configs=[gm.Config(...)]`",
        )
    stages = getattr(config, "num_stages", None)
    return Config(num_warps=config.num_warps, num_stages=max(1, stages) if stages else None, **config.kwargs)


def _here(message: str, fix: str) -> DeclarationError:
    return DeclarationError(message, fix=fix, position=caller_position())


def _find_call_site(function: FunctionType) -> Site:
    home = find_site(function)
    found = caller_span()
    call = find_call(*found) if found else None
    if found is None or call is None:
        return home
    return Site(found[0], home.node, call, home.path)


def _checked_name(name: object, site: Site) -> str:
    if isinstance(name, str) and name.isidentifier() and name.isascii():
        return name
    raise at(site.of_keyword("name"), f"`{name}` cannot be a symbol", "use ASCII letters, digits and _")


def _check_filled(name: str, value: object, site: Site) -> None:
    if value is ...:
        raise at(site.of_value(name), f"`{name}` is still to be chosen", "write what the comment beside it says")


class Array:
    """An array, of which at build time only that there is one is known."""


class _Reader:
    """Sorts the parameters of a function into arrays and scalars, constants, and what is fixed."""

    def __init__(
        self, jitted: Jitted, site: Site, types: dict[str, object], constants: dict[str, object], configs: Any
    ):
        self.jitted = jitted
        self.site = site
        self.types = {name: _read_type(name, value, site) for name, value in types.items() if value != "constexpr"}
        self.described = {name: t for name, t in self.types.items() if isinstance(t, DescriptorType)}
        for name, described in self.described.items():
            self.types |= {name: PointerType(described.dtype), **described.index_types(name)}
        self.constants = {name: _plain(name, value, site) for name, value in constants.items()}
        self.arguments = dict(inspect.signature(jitted.function).parameters)
        self.configs = configs if configs is not None else [_read_config(c) for c in jitted.configs] or None
        self.lists: dict[str, object] = {}
        self.fixed: dict[str, object] = {}
        self._check_names()

    def _check_names(self) -> None:
        extra = [n for n, t in self.types.items() if n not in self.arguments and not isinstance(t, IndexType)]
        unknown = [*extra, *(n for n in self.constants if n not in self.arguments)]
        for name in unknown:
            message = f"`{self.jitted.function.__name__}` has no parameter `{name}`"
            raise at(self.site.of_parameter(name), message, closest(name, self.arguments))
        for name in self.types.keys() & self.constants.keys():
            message = f"`{name}` has a type and is a constant"
            raise at(self.site.of_parameter(name), message, "give it in `signature` or in `constants`")

    def signature(self) -> Signature:
        """Return the parameters, those that follow from arrays last."""
        names: list[str] = []
        parameters: list[Parameter] = []
        for argument in self.arguments.values():
            if argument.name in self.types:
                parameters.append(self._parameter(argument))
            elif self._is_constant(argument):
                names.append(argument.name)
        parameters += [
            Parameter(name, t.kind, tensor=t.tensor, axis=t.axis)
            for name, t in self.types.items()
            if name not in self.arguments and isinstance(t, IndexType)
        ]
        parameters.sort(key=lambda p: p.is_index)
        return complete(self.jitted.function, parameters, names, self.site)

    def _parameter(self, argument: inspect.Parameter) -> Parameter:
        annotation = self.types[argument.name]
        is_scalar = isinstance(annotation, (Dtype, DtypeVar)) and type(argument.default) in (bool, int, float)
        plain = argument if is_scalar else argument.replace(default=argument.empty)
        return read_parameter(plain, annotation, self.site)

    def _is_constant(self, argument: inspect.Parameter) -> bool:
        """Put the argument's values where they belong; False if it is fixed."""
        name = argument.name
        if name in self.jitted.heuristics and name not in self.constants:
            return True
        if name in self.constants:
            value = self.constants[name]
        elif any(name in config.constants for config in self.configs or () if isinstance(config, Config)):
            return True
        elif name in _LAUNCH_OPTIONS:
            value = LaunchOption(name)
        elif _is_constexpr(argument.annotation) and argument.default is not argument.empty:
            value = _plain(name, argument.default, self.site)
        else:
            raise self._missing(argument)
        if isinstance(value, (list, tuple, range)):
            self.lists[name] = value
            return True
        self.fixed[name] = value
        return False

    def _missing(self, argument: inspect.Parameter) -> DeclarationError:
        name = argument.name
        if _is_constexpr(argument.annotation):
            position, fix = self.site.of_keyword("constants"), f'list its values: `constants={{"{name}": [128]}}`'
            return at(position, f"constant `{name}` has no values", fix)
        fix = f'add `"{name}": gm.ptr[D]` or another type, or list its values in `constants`'
        return at(self.site.of_keyword("signature"), f"`{name}` has no type", fix)

    def check_blocks(self, constants: Mapping[str, tuple[object, ...]]) -> None:
        """Check that the blocks of descriptors have sizes."""
        for name, described in self.described.items():
            try:
                described.block_shape({name: values[0] for name, values in constants.items()})
            except DeclarationError as error:
                raise at(self.site.of_annotation(name), f"the block of `{name}`: {error.message}", error.fix) from None

    def derived(self) -> dict[str, Callable[[Mapping[str, object]], object]]:
        """Return the heuristics that are not overridden, as functions of the constants."""
        found = {n: f for n, f in self.jitted.heuristics.items() if n not in self.constants}
        for name in found:
            if name not in self.arguments:
                message = f"the heuristic for `{name}` chooses no parameter of the kernel"
                raise at(self.site.of_name(), message, f"pass `{name}=` to `gm.specialise`")
        return {name: self._heuristic(name, function) for name, function in found.items()}

    def _known(self) -> dict[str, object]:
        """What heuristics may read beside constants: which arrays there are, what is None, and dtypes."""
        arrays = {name: Array() for name, t in self.types.items() if isinstance(t, PointerType)}
        return arrays | {name: value for name, value in self.fixed.items() if value is None or isinstance(value, Dtype)}

    def _heuristic(self, name: str, function: Callable[..., Any]) -> Callable[[Mapping[str, object]], object]:
        known = self._known()

        def compute(values: Mapping[str, object]) -> object:
            try:
                value = function(known | dict(values))
            except KeyError as error:
                message = f"the heuristic for `{name}` reads `{error.args[0]}`, which is not known at build time"
            except Exception as error:
                message = f"the heuristic for `{name}` raises {type(error).__name__}: {error}"
            else:
                if type(value) in (bool, int, float, str):
                    return value
                message = f"the heuristic for `{name}` gives `{value!r}`, which is no constant"
            fix = f'list its values, `constants={{"{name}": [True, False]}}`, and say in `pick=` when each suits a call'
            raise at(self.site.of_name(), message, fix)

        return compute


def _is_constexpr(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == "constexpr"
    return getattr(annotation, "__name__", repr(annotation).rpartition(".")[2]) == "constexpr"


def _plain(name: str, value: object, site: Site) -> object:
    """Return a list of values, or what fixes a parameter: None, a dtype or a dtype variable."""
    _check_filled(name, value, site)
    if type(value).__name__ == "constexpr" and hasattr(value, "value"):
        value = value.value
    is_fixed = value is None or isinstance(value, (Dtype, DtypeVar))
    if is_fixed or not isinstance(value, (list, tuple, range)):
        return value if is_fixed else [value]
    for index, item in enumerate(value):
        if item is None or isinstance(item, (Dtype, DtypeVar)):
            fix = f"give it alone, as in `{name!r}: D` with a dtype variable, or declare a kernel for each"
            raise at(site.of_item(name, index), f"`{item}` cannot be one of several values of `{name}`", fix)
    return value


def _read_type(name: str, value: object, site: Site) -> object:
    """Return a type of the signature as annotations spell it."""
    _check_filled(name, value, site)
    if not isinstance(value, str):
        if isinstance(value, (PointerType, IndexType, DescriptorType, Dtype, DtypeVar)):
            return value
        raise at(site.of_annotation(name), f"`{value!r}` is not the type of a parameter", _TYPE_FIX)
    text, _, hint = value.replace(" ", "").partition(":")
    element = _ELEMENTS.get(text.removeprefix("*").removeprefix("k"))
    if hint == "1":
        fix = f'write `constants={{"{name}": 1}}`'
        raise at(site.of_annotation(name), f"`{value}` makes `{name}` a constant", fix)
    if element is None or (hint and not hint.isdigit()):
        known = ", ".join(f"*{spelled}" for spelled in ("fp16", "bf16", "fp32", "fp64", "i32", "i64"))
        raise at(
            site.of_annotation(name), f"`{value}` is not a type of Triton's", f"use one such as {known}, i32, fp32"
        )
    return PointerType(element) if text.startswith("*") else element
