"""Calls the decorator's functions: `grid=`, `pick=` and the like with symbols, `where=`, `num_warps=` with values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gristmill import symbolic
from gristmill.dtypes import Dtype
from gristmill.errors import DeclarationError, GristmillError
from gristmill.positions import Site, raised_position
from gristmill.signature import Parameter, PointerType, Signature, at, closest
from gristmill.symbolic import Code, Expr

_FIXES = {
    "grid": "write a function of index parameters and constants, as in `grid=lambda n, BLOCK: gm.cdiv(n, BLOCK)`",
    "pick": "write a condition on index parameters and constants, as in `pick=lambda n, BLOCK: n <= BLOCK`",
    "prefer": "write a condition or a number of index parameters, as in "
    "`prefer=lambda n, BLOCK: -gm.cdiv(n, BLOCK) * BLOCK`",
    "key": 'write index parameters and integer scalars, or expressions of them, as in `key=["m", "n // 16"]`',
    "padded": "write a condition on index parameters, as in `padded=lambda m, n: m * n >= 1000000`",
    "where": "write a condition on dtypes and constants, as in `where=lambda D, BLOCK: BLOCK * D.itemsize <= 65536`",
    "num_warps": "write a power of two from 1 to 32, or a function of constants, as in `lambda BLOCK: BLOCK // 256`",
}


_ABSENT = dict.fromkeys(("grid", "pick", "prefer", "padded"), "the kernel does not have")
_ABSENT |= dict.fromkeys(("where", "num_warps"), "is no dtype variable or constant of the kernel")


MOST_KEYS = 8  # for which the launcher has room (`csrc/tables.hpp`)


@dataclass(frozen=True)
class Unusable:
    """A name that an expression cannot read, and why."""

    why: str


def symbols(signature: Signature, constants: Mapping[str, tuple[object, ...]]) -> dict[str, Expr | Unusable]:
    """Return what each name in an expression stands for; `constants` holds the values of each."""
    found: dict[str, Expr | Unusable] = {p.name: _symbol(i, p) for i, p in enumerate(signature.parameters)}
    for index, name in enumerate(signature.constant_names):
        value = constants[name][0]
        if isinstance(value, int):
            found[name] = symbolic.constant(index, isinstance(value, bool))
        else:
            found[name] = Unusable("is a float" if isinstance(value, float) else "is a text")
    return found | {v.name: Unusable("is a dtype") for v in signature.dtype_vars}


def without_constants(names: Mapping[str, Expr | Unusable], constants: tuple[str, ...]) -> dict[str, Expr | Unusable]:
    """Return the names for an expression that is read before constants are chosen."""
    return {**names, **dict.fromkeys(constants, Unusable("is a constant, which is chosen later"))}


def _symbol(index: int, parameter: Parameter) -> Expr | Unusable:
    if parameter.kind == "pointer":
        return Unusable("is an array")
    if parameter.is_index:
        return symbolic.parameter(index)
    if isinstance(parameter.dtype, Dtype) and not parameter.dtype.is_float:
        return symbolic.parameter(index, parameter.dtype.kind == "bool")
    return Unusable(f"is {parameter.dtype}")


def call_by_name(function: object, values: Mapping[str, object], what: str, site: Site) -> object:
    """Call the decorator's argument `what` with values for the names of its parameters.

    Raises DeclarationError at a parameter that names nothing or something unusable, and for an exception at the
    author's line that raised it.
    """
    if not callable(function):
        raise at(site.of_value(what), f"`{what}` must be a function, found `{function!r}`", _FIXES[what])
    chosen: dict[str, object] = {}
    for name, argument in _parameters(function, what, site).items():
        if name in values:
            chosen[name] = _usable(name, values, what, site)
        elif argument.default is argument.empty:
            position = site.of_lambda_argument(what, name)
            raise at(
                position,
                f"`{what}` asks for `{name}`, which {_ABSENT[what]}",
                _offer(name, values, what),
            )
    try:
        return function(**chosen)
    except GristmillError:
        raise
    except Exception as error:
        position = raised_position(error) or site.of_value(what)
        raise at(position, f"`{what}` raises {type(error).__name__}: {error}", _FIXES[what]) from error


def _parameters(function: Callable[..., object], what: str, site: Site) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:
        message = f"the parameters of `{function!r}` cannot be read"
        raise at(site.of_value(what), message, _FIXES[what]) from None


def _offer(name: str, values: Mapping[str, object], what: str) -> str:
    usable = [n for n, v in values.items() if not isinstance(v, Unusable)]
    return closest(name, usable) if usable else _FIXES[what]


def _usable(name: str, values: Mapping[str, object], what: str, site: Site) -> object:
    value = values[name]
    if not isinstance(value, Unusable):
        return value
    readable = ", ".join(n for n, v in values.items() if not isinstance(v, Unusable)) or "this kernel has none"
    message = f"`{name}` {value.why}; `{what}` reads integers and conditions"
    raise at(
        site.of_lambda_argument(what, name), message, f"use index parameters, integer scalars and constants: {readable}"
    )


def trace_grid(grid: object, names: Mapping[str, object], site: Site) -> tuple[Code, ...]:
    """Return code for one to three numbers of programs; `grid` is a function, a number or a tuple. None gives ()."""
    if grid is None:
        return ()
    result = call_by_name(grid, names, "grid", site) if callable(grid) else grid
    sizes = result if isinstance(result, tuple) else (result,)
    if not 1 <= len(sizes) <= 3:
        raise at(site.of_value("grid"), f"a grid has 1 to 3 sizes, found {len(sizes)}", _FIXES["grid"])
    for size in sizes:
        if isinstance(size, bool) or (isinstance(size, Expr) and size.is_condition):
            raise at(site.of_value("grid"), "a grid is a number of programs, found a condition", _FIXES["grid"])
        if isinstance(size, int) and size < 1:
            raise at(site.of_value("grid"), f"a grid of {size} runs no program", _FIXES["grid"])
    return tuple(_lifted(size, "grid", site) for size in sizes)


def trace_condition(what: str, condition: object, names: Mapping[str, object], site: Site) -> Code:
    """Return code that is 1 where the decorator's function `what` holds for a call; () for none."""
    if condition is None:
        return ()
    result = call_by_name(condition, names, what, site)
    if not isinstance(result, bool) and not (isinstance(result, Expr) and result.is_condition):
        found = "a number" if isinstance(result, Expr) else f"`{result!r}`"
        raise at(site.of_value(what), f"`{what}` must give a condition, found {found}", _FIXES[what])
    return _lifted(result, what, site)


def trace_preference(preference: object, names: Mapping[str, object], site: Site) -> Code:
    """Return code that is the larger the more a specialisation is to be preferred for a call; () for none."""
    if preference is None:
        return ()
    result = call_by_name(preference, names, "prefer", site)
    if not isinstance(result, (bool, int, Expr)):
        found = f"found `{result!r}`"
        raise at(site.of_value("prefer"), f"`prefer` must give a condition or an integer, {found}", _FIXES["prefer"])
    return _lifted(result, "prefer", site)


def trace_key(key: object, names: Mapping[str, object], site: Site) -> tuple[tuple[str, Code], ...]:
    """Return the expressions that tell tuned calls apart, each with its text; () for none."""
    if key is None:
        return ()
    if not isinstance(key, (list, tuple)) or not all(isinstance(text, str) for text in key):
        raise at(site.of_value("key"), "`key` must be a list of texts", _FIXES["key"])
    if not 1 <= len(key) <= MOST_KEYS:
        raise at(site.of_value("key"), f"`key` lists 1 to {MOST_KEYS} expressions, found {len(key)}", _FIXES["key"])
    usable = {name: value for name, value in names.items() if isinstance(value, Expr)}
    return tuple((" ".join(text.split()), _key_code(i, text, usable, site)) for i, text in enumerate(key))


def _key_code(index: int, text: str, usable: Mapping[str, Expr], site: Site) -> Code:
    try:
        return symbolic.compile_code(symbolic.parse(text, usable))
    except DeclarationError as error:
        raise at(site.of_item("key", index), f"`key`: {error.message}", error.fix) from None


def _lifted(value: object, what: str, site: Site) -> Code:
    try:
        return symbolic.compile_code(value)
    except DeclarationError as error:
        raise at(site.of_value(what), error.message, error.fix) from None


def with_extents(
    signature: Signature, annotations: Mapping[str, object], names: Mapping[str, object], site: Site
) -> tuple[Parameter, ...]:
    """Return the parameters with the extent of each array as code.

    An array without an extent of its own must have as many elements as its own `gm.size` parameters say; without one,
    as the largest `gm.size` parameter of the kernel.
    """
    found = []
    for parameter in signature.parameters:
        annotation = annotations[parameter.name]
        if isinstance(annotation, PointerType):
            text = annotation.extent
            extent = _read_extent(text, parameter, names, site) if text else _implied_extent(parameter, signature)
            parameter = replace(parameter, extent=extent)
        found.append(parameter)
    return tuple(found)


def _read_extent(text: str, parameter: Parameter, names: Mapping[str, object], site: Site) -> Code:
    usable = {name: value for name, value in names.items() if isinstance(value, Expr)}
    try:
        extent = symbolic.parse(text, usable)
        if extent.is_condition:
            raise DeclarationError(
                "an extent is a number of elements, found a condition", fix="write an integer expression"
            )
        return symbolic.compile_code(extent)
    except DeclarationError as error:
        message = f"extent of `{parameter.name}`: {error.message}"
        raise at(site.of_subscript(parameter.name, 1), message, error.fix) from None


def _implied_extent(parameter: Parameter, signature: Signature) -> Code | None:
    sizes = {i: p for i, p in enumerate(signature.parameters) if p.kind == "size"}
    chosen = [i for i, p in sizes.items() if p.tensor == parameter.name] or list(sizes)
    if not chosen:
        return None
    largest: Expr | int = symbolic.parameter(chosen[0])
    for index in chosen[1:]:
        largest = symbolic.maximum(largest, symbolic.parameter(index))
    return symbolic.compile_code(largest)
