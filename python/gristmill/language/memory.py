"""Loads and stores through tiles of pointers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Pointer, Value
from gristmill.compiler.op import emit, emit_effect, op
from gristmill.errors import KernelError
from gristmill.language.types import as_value, broadcast_value, cast_to, common_shape, constant, describe, is_number

LOAD_CACHES = ("", ".ca", ".cg", ".cs", ".cv")
STORE_CACHES = ("", ".wb", ".cg", ".cs", ".wt")
EVICTIONS = ("", "evict_first", "evict_last", "evict_normal")


def _element(pointers: Value) -> dt.Dtype:
    assert isinstance(pointers.type.dtype, Pointer)
    return pointers.type.dtype.element


def _pointers(pointer: Any, what: str) -> Value:
    if isinstance(pointer, Value) and pointer.type.is_pointer:
        return pointer
    fix = "add offsets to a pointer parameter, as in `x + offsets`"
    raise KernelError(f"{what}(): needs pointers, got {describe(pointer)}", fix=fix)


def _mask(mask: Any, pointers: Value, what: str) -> Value | None:
    if mask is None or mask is True:
        return None
    mask = as_value(mask, f"{what}()")
    if mask.type.dtype != dt.bool_:
        fix = "compare, as in `mask=offsets < n`"
        raise KernelError(f"{what}(): mask must be bools, got {mask.type}", fix=fix)
    return _fit(mask, pointers, "mask", what)


def _fit(tile: Value, pointers: Value, name: str, what: str) -> Value:
    shape = common_shape(tile.type.shape, pointers.type.shape, f"{what}()")
    if shape != pointers.type.shape:
        fix = "give the pointers the full shape"
        raise KernelError(
            f"{what}(): {name} {list(tile.type.shape)} is larger than the pointers {list(pointers.type.shape)}", fix=fix
        )
    return broadcast_value(tile, shape)


def _hint(value: Any, choices: tuple[str, ...], name: str, what: str) -> str:
    value = value or ""
    if value not in choices:
        raise KernelError(
            f"{what}(): {name} {describe(value)} is not one of {', '.join(c or 'none' for c in choices)}",
            fix="leave it out",
        )
    return str(value)


@op("memory", kind="tile", effect="read", goes_by_register=True)
def load(
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    *,
    cache_modifier: Any = "",
    eviction_policy: Any = "",
    volatile: Any = False,
) -> Value:
    """The elements that `pointer` (a scalar or a block of addresses) points to.

    Where `mask` is false the address is not touched and the result is `other`, or 0 without one. `other` needs a mask.
    """
    pointers = _pointers(pointer, "load")
    guard = _mask(mask, pointers, "load")
    if isinstance(volatile, Value):
        raise KernelError("load(): volatile is known at build time", fix="write `volatile=True` or leave it out")
    if other is not None and mask is None:
        raise KernelError("load(): `other` without `mask` has no meaning", fix="add `mask=` or drop `other=`")
    element = _element(pointers)
    operands = [pointers]
    if guard is not None:
        operands.append(guard)
        if other is not None and not (is_number(other) and other == 0 and np.copysign(1, other) > 0):
            filler = (
                constant(other, None if element.is_int or element == dt.bool_ else element)
                if is_number(other)
                else as_value(other)
            )
            operands.append(_fit(cast_to(filler, element), pointers, "other", "load"))
    return emit(
        "load",
        pointers.type.with_dtype(element),
        *operands,
        cache_modifier=_hint(cache_modifier, LOAD_CACHES, "cache_modifier", "load"),
        eviction_policy=_hint(eviction_policy, EVICTIONS, "eviction_policy", "load"),
        volatile=bool(volatile),
    )


@load.reference
def _(pointers: Any, mask: Any = None, other: Any = None, **hints: Any) -> Any:
    return pointers.load(mask, other)


@load.lower
def _(m: Any, op: Any, pointers: Any, mask: Any = None, other: Any = None) -> Any:
    return m.load(op, pointers, mask, other)


@op("memory", kind="tile", effect="write", goes_by_register=True)
def store(pointer: Any, value: Any, mask: Any = None, *, cache_modifier: Any = "", eviction_policy: Any = "") -> None:
    """Write `value`, cast to the pointed-to dtype, where `mask` holds; nothing else is touched."""
    pointers = _pointers(pointer, "store")
    element = _element(pointers)
    guard = _mask(mask, pointers, "store")
    tile = (
        constant(value, None if element.is_int or element == dt.bool_ else element)
        if is_number(value)
        else as_value(value, "store()")
    )
    operands = [pointers, _fit(cast_to(tile, element), pointers, "value", "store")]
    emit_effect(
        "store",
        *operands,
        *([guard] if guard is not None else []),
        cache_modifier=_hint(cache_modifier, STORE_CACHES, "cache_modifier", "store"),
        eviction_policy=_hint(eviction_policy, EVICTIONS, "eviction_policy", "store"),
    )


@store.reference
def _(pointers: Any, value: Any, mask: Any = None, **hints: Any) -> None:
    pointers.store(value, mask)


@store.lower
def _(m: Any, op: Any, pointers: Any, value: Any, mask: Any = None) -> None:
    m.store(op, pointers, value, mask)
