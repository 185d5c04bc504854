"""Values made of several tiles: tuples, and objects such as block pointers. Only the frontend knows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gristmill.compiler.ir import Pointer, Value
from gristmill.language.types import describe, is_number


class Structure:
    """An object that holds tiles; `METHODS` are what kernels may call on it, `FIELDS` what they may read."""

    METHODS: tuple[str, ...] = ()
    FIELDS: tuple[str, ...] = ()
    word = "structure"

    def parts(self) -> tuple[Any, ...]:
        """Its parts: tiles, which may change from step to step, and what is known at build time."""
        raise NotImplementedError

    def with_parts(self, parts: tuple[Any, ...]) -> Structure:
        """The same with other tiles."""
        raise NotImplementedError


class PointerType:
    """What `pointer.dtype` is: its `element_ty` is what is pointed to."""

    def __init__(self, pointer: Pointer):
        self.element_ty = pointer.element
        self.pointer = pointer

    @property
    def scalar(self) -> PointerType:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PointerType) and other.pointer == self.pointer

    def __hash__(self) -> int:
        return hash(self.pointer)

    def __repr__(self) -> str:
        return self.pointer.name


def _children(value: Any) -> tuple[Any, ...] | None:
    if isinstance(value, tuple):
        return value
    return value.parts() if isinstance(value, Structure) else None


def _made_like(value: Any, children: list[Any]) -> Any:
    if isinstance(value, Structure):
        return value.with_parts(tuple(children))
    return type(value)(*children) if hasattr(value, "_fields") else tuple(children)


def leaves(value: Any, *, is_fixed: bool = False) -> list[Any]:
    """The tiles in a value, in order; numbers among them, but for those in an object, which stay as they are."""
    if isinstance(value, Value) or (is_number(value) and not is_fixed):
        return [value]
    children = _children(value) or ()
    inside = is_fixed or isinstance(value, Structure)
    return [leaf for child in children for leaf in leaves(child, is_fixed=inside)]


def rebuilt(value: Any, new: Iterator[Any], *, is_fixed: bool = False) -> Any:
    """The value with the next of `new` in place of each leaf."""
    if isinstance(value, Value) or (is_number(value) and not is_fixed):
        return next(new)
    children = _children(value)
    if children is None:
        return value
    inside = is_fixed or isinstance(value, Structure)
    return _made_like(value, [rebuilt(child, new, is_fixed=inside) for child in children])


def skeleton(value: Any, *, is_fixed: bool = False) -> Any:
    """What is left of a value without its leaves: two values with equal skeletons differ in tiles only."""
    if isinstance(value, Value) or (is_number(value) and not is_fixed):
        return "tile"
    children = _children(value)
    if children is None:
        return ("constant", type(value).__name__, value)
    inside = is_fixed or isinstance(value, Structure)
    return (type(value), *(skeleton(child, is_fixed=inside) for child in children))


def describe_structure(value: Any) -> str:
    """Name a value as an author would: `(i32, f32[128])`."""
    if isinstance(value, tuple):
        return f"({', '.join(map(describe_structure, value))})"
    return f"a {value.word}" if isinstance(value, Structure) else describe(value)
