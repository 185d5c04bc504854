"""What stands after a dot: properties and methods of tiles, of objects made of tiles, and of compile-time things."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from gristmill.compiler.functions import NOT_FOUND, dtype_of, type_attribute, type_of
from gristmill.compiler.ir import Value
from gristmill.compiler.op import COMPOSITES, ROWS, Composite, OpRow
from gristmill.errors import KernelError
from gristmill.language import shape
from gristmill.language.structure import Structure
from gristmill.language.types import is_number

ALIASES = {"to": "cast", "view": "reshape"}
PROPERTIES: dict[str, Callable[[Value], Any]] = {
    "dtype": dtype_of,
    "shape": lambda x: x.type.shape,
    "type": type_of,
    "numel": lambda x: x.type.elements,
    "ndim": lambda x: len(x.type.shape),
    "T": lambda x: shape.trans(x),
}
NOT_METHODS = ("creation", "debug", "internal", "random")
"""Families whose ops take no tile first."""
NO_TILES = ("axis", "start", "value", "asm", "prefix", "base")
"""First parameters that are no tile."""


class BoundRow:
    """An op called as a method of a tile or number: `x.to(dtype)`."""

    def __init__(self, row: OpRow | Composite, first: Any):
        self.row = row
        self.first = first


class BoundMethod:
    """A method of an object made of tiles: `descriptor.load(offsets)`."""

    def __init__(self, structure: Structure, name: str):
        self.function = getattr(structure, name)
        self.name = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        signature = inspect.signature(self.function)
        try:
            bound = signature.bind(*arguments, **named)
        except TypeError as error:
            plain = signature.replace(
                parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
                return_annotation=signature.empty,
            )
            raise KernelError(f"{self.name}(): {error}", fix=f"call it as `{self.name}{plain}`") from None
        return self.function(*bound.args, **bound.kwargs)


def attribute_of(base: Any, name: str, spelled: str) -> Any:
    """Return what `base.name` means; `spelled` is the author's text for `base`."""
    if isinstance(base, Value) or (is_number(base) and name == "to"):
        return _tile_attribute(base, name)
    if isinstance(base, Structure):
        return _structure_attribute(base, name)
    found = type_attribute(base, name)
    if found is not NOT_FOUND:
        return found
    try:
        return getattr(base, name)
    except AttributeError:
        where = f"see `{getattr(base, '__name__', spelled)}` for what it has"
        fix = _closest(name, dir(base), f"{spelled}.") or where
        raise KernelError(f"`{spelled}` has no `{name}`", fix=fix) from None


def _closest(name: str, names: Iterable[str], before: str) -> str | None:
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean `{before}{close[0]}`?" if close else None


def _tile_attribute(base: Any, name: str) -> Any:
    if name in PROPERTIES:
        return PROPERTIES[name](base)
    if name == "element_ty" and base.type.is_pointer:
        return base.type.dtype.element
    own = ALIASES.get(name, name)
    row = ROWS.get(own) or COMPOSITES.get(own)
    if row is None or not _takes_tile(row):
        fix = _closest(name, [*methods(), *PROPERTIES], ".")
        fix = fix or "see `gristmill.language` for what there is"
        raise KernelError(f"tiles have no `{name}`", fix=fix)
    return BoundRow(row, base)


def methods() -> dict[str, OpRow | Composite]:
    """The ops that are methods of tiles, by name: those whose first parameter is a tile."""
    every: dict[str, OpRow | Composite] = {**COMPOSITES, **ROWS}
    found = {name: row for name, row in every.items() if _takes_tile(row)}
    return found | {alias: found[name] for alias, name in ALIASES.items()}


def _takes_tile(row: OpRow | Composite) -> bool:
    first = next(iter(row.signature.parameters), None)
    return first is not None and row.family not in NOT_METHODS and first not in NO_TILES


def _structure_attribute(base: Structure, name: str) -> Any:
    if name in base.METHODS:
        return BoundMethod(base, name)
    if name in base.FIELDS:
        return getattr(base, name)
    known = [*base.METHODS, *base.FIELDS]
    fix = _closest(name, known, ".") or "it has " + ", ".join(f"`{n}`" for n in known)
    raise KernelError(f"a {base.word} has no `{name}`", fix=fix)
