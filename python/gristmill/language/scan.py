"""Scans: each element combined with all that come before it along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Value
from gristmill.compiler.op import emit_several, op
from gristmill.errors import KernelError
from gristmill.language.regions import as_given, combine_by, combining_block, inputs_of
from gristmill.language.types import as_value, cast_to, check_axis, describe, need_dtype


@op("scan", kind="tile", goes_along_axis=True)
def associative_scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False) -> Any:
    """Element i of the result combines elements 0 to i along `axis`, in order, by `combine_fn(before, element)`.

    `combine_fn` is associative. `reverse` begins at the other end: element i combines the last one to i. `input` may be
    a tuple of n blocks of one shape, and `combine_fn` then takes and returns n values, as for `reduce`.
    """
    tiles = inputs_of(input, "associative_scan()")
    axis = check_axis(axis, len(tiles[0].type.shape), "associative_scan()")
    block = combining_block(combine_fn, tiles, "associative_scan()")
    types = [x.type for x in tiles]
    results = emit_several("associative_scan", types, tiles, block, axis=axis, reverse=bool(reverse))
    return as_given(input, results)


@associative_scan.reference
def _(*tiles: Any, axis: int, reverse: bool, op: Any, machine: Any) -> Any:
    elements = [np.moveaxis(x, axis, -1)[..., :: -1 if reverse else 1] for x in tiles]
    distance = 1
    while distance < elements[0].shape[-1]:
        before, after = [x[..., :-distance] for x in elements], [x[..., distance:] for x in elements]
        later = machine.combine(op.blocks[0], before, after)
        elements = [np.concatenate([x[..., :distance], y], -1) for x, y in zip(elements, later, strict=True)]
        distance *= 2
    return tuple(np.moveaxis(x[..., :: -1 if reverse else 1], -1, axis) for x in elements)


@associative_scan.lower
def _(m: Any, op: Any, *tiles: Any) -> Any:
    return m.scan(op, list(tiles), op.attributes["axis"], combine_by(m, op), reverse=op.attributes["reverse"])


def _sum_of(a: Any, b: Any) -> Any:
    return a + b


def _product_of(a: Any, b: Any) -> Any:
    return a * b


def _cumulated(what: str, combine: Any, input: Any, axis: Any, reverse: Any, dtype: Any) -> Value:
    x = as_value(input, what)
    if x.type.is_pointer:
        raise KernelError(f"{what}: needs numbers, got {describe(x)}", fix="load the elements first")
    if dtype is not None:
        x = cast_to(x, need_dtype(dtype, what))
    own = x.type.dtype
    if own.is_float:
        scanned = associative_scan(cast_to(x, dt.f32 if own.bits < 32 else own), axis, combine, reverse)
        return cast_to(scanned, own)
    wide = own if own.bits >= 32 else dt.i32 if own.is_signed else dt.u32
    result: Value = associative_scan(cast_to(x, wide), axis, combine, reverse)
    return result


@op("scan")
def cumsum(input: Any, axis: Any = 0, reverse: Any = False, dtype: Any = None) -> Value:
    """Running sums along `axis`, from the last element on with `reverse`; dtypes as for `sum`."""
    return _cumulated("cumsum()", _sum_of, input, axis, reverse, dtype)


@op("scan")
def cumprod(input: Any, axis: Any = 0, reverse: Any = False, dtype: Any = None) -> Value:
    """Running products along `axis`, from the last element on with `reverse`; dtypes as for `sum`."""
    return _cumulated("cumprod()", _product_of, input, axis, reverse, dtype)
