"""Where a program is in the grid, and tiles made from nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.facts import Facts, Span, constant_facts, power_of_two_in
from gristmill.compiler.ir import Tile, Value
from gristmill.compiler.op import composite, emit, op
from gristmill.dtypes import dt_numpy
from gristmill.errors import KernelError
from gristmill.language.arrays import filled
from gristmill.language.types import (
    as_value,
    broadcast_value,
    cast_to,
    check_power_of_two,
    check_shape,
    describe,
    is_number,
    need_dtype,
)
from gristmill.language.types import constant as make_constant

_index_dtype = [dt.i32]


def set_index_dtype(dtype: dt.Dtype) -> None:
    """Choose what `program_id`, `num_programs` and `arange` are made of: i32, or i64 where offsets need it."""
    _index_dtype[0] = dtype


def index_dtype() -> dt.Dtype:
    """What indices are made of."""
    return _index_dtype[0]


def _grid_axis(axis: Any, what: str) -> int:
    if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis <= 2:
        raise KernelError(f"{what}(): axis must be 0, 1 or 2, got {describe(axis)}", fix=f"use `tl.{what}(0)`")
    return axis


@op("index", kind="tile", is_cheap=True, of_grid="program")
def program_id(axis: int) -> Value:
    """The program's own index along `axis` (0, 1 or 2) of the grid; i32, or i64 in images for large arrays."""
    return emit("program_id", Tile(_index_dtype[0]), axis=_grid_axis(axis, "program_id"))


@program_id.reference
def _(*, axis: int, machine: Any, result: Tile) -> Any:
    return np.asarray(machine.program_id(axis), dt_numpy(result.dtype))


program_id.sign_function = lambda op: True


@program_id.lower
def _(m: Any, op: Any) -> Any:
    return m.cast(m.program_id(op.attributes["axis"]), op.results[0].type.dtype)


@op("index", kind="tile", is_cheap=True, of_grid="programs")
def num_programs(axis: int) -> Value:
    """The number of programs along `axis` (0, 1 or 2) of the grid."""
    return emit("num_programs", Tile(_index_dtype[0]), axis=_grid_axis(axis, "num_programs"))


@num_programs.reference
def _(*, axis: int, machine: Any, result: Tile) -> Any:
    return np.asarray(machine.num_programs(axis), dt_numpy(result.dtype))


num_programs.sign_function = lambda op: True


@num_programs.lower
def _(m: Any, op: Any) -> Any:
    return m.cast(m.num_programs(op.attributes["axis"]), op.results[0].type.dtype)


@op("index", kind="tile", is_cheap=True, name="constant")
def constant_(value: Any, dtype: Any = None) -> Value:
    """A scalar known at build time."""
    return make_constant(value, dtype)


@constant_.reference
def _(*, value: Any, result: Tile) -> Any:
    assert isinstance(result.dtype, dt.Dtype)
    return filled(result.shape, value, result.dtype)


@constant_.facts
def _(op: Any) -> Facts:
    tile, value = op.results[0].type, op.attributes["value"]
    return constant_facts(int(value), last_size(tile)) if tile.dtype.is_int else Facts(constancy=last_size(tile))


@constant_.span
def _(op: Any) -> Span | None:
    value = op.attributes["value"]
    return Span((), value, value) if op.results[0].type.dtype.is_int else None


@constant_.ends
def _(op: Any) -> Any:
    return (make_constant(op.attributes["value"], op.results[0].type.dtype),) * 2


constant_.sign_function = lambda op: op.results[0].type.dtype.is_int and op.attributes["value"] >= 0


@constant_.lower
def _(m: Any, op: Any) -> Any:
    return m.uniform(op.results[0], m.constant(op.results[0].type.dtype, op.attributes["value"]))


@op("index", kind="tile", is_cheap=True, is_view=True)
def splat(x: Any, shape: Any) -> Value:
    """A block of `shape` filled with the scalar x."""
    return broadcast_value(as_value(x), check_shape(shape, "splat"))


@splat.reference
def _(x: Any, *, result: Tile) -> Any:
    return np.broadcast_to(x, result.shape)


@splat.facts
def _(op: Any, x: Facts) -> Facts:
    return Facts(x.divisibility, 1, last_size(op.results[0].type), x.constant)


@splat.lower
def _(m: Any, op: Any, x: Any) -> Any:
    return m.uniform(op.results[0], x)


@op("index", kind="tile", is_cheap=True)
def arange(start: Any, end: Any) -> Value:
    """The integers start, start + 1, ..., end - 1 as an i32 block; both constant, end - start a power of two."""
    for bound in (start, end):
        if isinstance(bound, (Value, bool)) or not isinstance(bound, int):
            fix = "use literals or `gm.constexpr` parameters, and add the rest, as in `start + tl.arange(0, BLOCK)`"
            raise KernelError(f"arange(): bounds must be known at build time, got {describe(bound)}", fix=fix)
    if end <= start:
        raise KernelError(
            f"arange(): end must be greater than start, got {start}, {end}", fix="use `tl.arange(0, BLOCK)`"
        )
    check_power_of_two(end - start, "arange()")
    return emit("arange", Tile(_index_dtype[0], (end - start,)), start=start)


@arange.reference
def _(*, start: int, result: Tile) -> Any:
    return np.arange(start, start + result.shape[0], dtype=dt_numpy(result.dtype))


@arange.facts
def _(op: Any) -> Facts:
    return Facts(power_of_two_in(op.attributes["start"]), last_size(op.results[0].type), 1)


@arange.span
def _(op: Any) -> Span:
    return Span((), op.attributes["start"], op.attributes["start"] + op.results[0].type.shape[0] - 1)


@arange.ends
def _(op: Any) -> Any:
    first, count = op.attributes["start"], op.results[0].type.shape[0]
    return tuple(make_constant(number, op.results[0].type.dtype) for number in (first, first + count - 1))


arange.sign_function = lambda op: op.attributes["start"] >= 0


@arange.lower
def _(m: Any, op: Any) -> Any:
    result, start = op.results[0], op.attributes["start"]
    tile = m.coordinates(result, 0)
    return tile if not start else m.map(lambda x: m.add(x, m.constant(x.dtype, start)), result, [tile])


@op("creation", name="full")
def full(shape: Any, value: Any, dtype: Any) -> Value:
    """A block of `shape` whose elements are all `value`, a number or a scalar, as `dtype`."""
    dims, dtype = check_shape(shape, "full()"), need_dtype(dtype, "full()")
    if is_number(value):
        return make_constant(value, dtype, dims)
    return broadcast_value(cast_to(as_value(value), dtype), dims)


@full.reference
def _(*, shape: Any, value: Any, dtype: dt.Dtype) -> Any:
    return filled(shape, value, dtype)


@op("creation")
def zeros(shape: Any, dtype: Any) -> Value:
    """A block of `shape` filled with zeros."""
    return make_constant(0, need_dtype(dtype, "zeros()"), check_shape(shape, "zeros()"))


@zeros.reference
def _(*, shape: Any, dtype: dt.Dtype) -> Any:
    return np.zeros(shape, dt_numpy(dtype))


@op("creation")
def zeros_like(x: Any) -> Value:
    """Zeros of x's shape and dtype."""
    x = as_value(x)
    return make_constant(0, x.type.dtype, x.type.shape)


@zeros_like.reference
def _(x: Any) -> Any:
    return np.zeros_like(x)


@composite("index")
def cdiv(x, div):  # type: ignore[no-untyped-def]
    """x / div rounded up, for x >= 0 and div > 0."""
    return (x + (div - 1)) // div


@cdiv.reference
def _(x: Any, div: Any) -> Any:
    return (x + div - 1) // div


def last_size(tile: Tile) -> int:
    """The size of the last axis; 1 for a scalar."""
    return tile.shape[-1] if tile.shape else 1
