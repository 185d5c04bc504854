"""Reductions along one axis or all, by built-in functions or an author's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Value
from gristmill.compiler.layout import Layout
from gristmill.compiler.op import OpRow, emit, emit_several, op
from gristmill.errors import KernelError
from gristmill.language.elementwise import where
from gristmill.language.index import arange
from gristmill.language.regions import as_given, combine_by, combining_block, inputs_of
from gristmill.language.shape import broadcast_to, expand_dims
from gristmill.language.types import as_value, cast_to, check_axis, describe, need_dtype

Combine = Callable[[Any, Any, Any], Any]


def _flat(x: Value) -> Value:
    return x if len(x.type.shape) == 1 else emit("reshape", x.type.with_shape((x.type.elements,)), x)


def _reduced(name: str, x: Value, axis: Any, keep_dims: Any) -> Value:
    if x.type.is_scalar:
        raise KernelError(f"{name}(): needs a block, got {x.type}", fix="a scalar is its own reduction: drop the call")
    rank = len(x.type.shape)
    if axis is None:
        result = emit(name, x.type.with_shape(()), _flat(x), axis=0)
        kept: tuple[int, ...] = (1,) * rank
    else:
        axis = check_axis(axis, rank, f"{name}()")
        result = emit(name, x.type.with_shape(x.type.shape[:axis] + x.type.shape[axis + 1 :]), x, axis=axis)
        kept = x.type.shape[:axis] + (1,) + x.type.shape[axis + 1 :]
    return _with_shape(result, kept) if keep_dims else result


def _with_shape(x: Value, shape: tuple[int, ...]) -> Value:
    return emit("splat" if x.type.is_scalar else "reshape", x.type.with_shape(shape), x)


def _result_layout(op: Any, layout: Layout) -> Layout:
    return layout.slice(op.attributes["axis"])


def _neutral(op: Any, identity: Callable[[dt.Dtype], Any]) -> tuple[dt.Dtype, Any]:
    dtype = op.operands[0].type.dtype
    return dtype, identity(dtype)


def _declare(
    name: str,
    infer: Callable[..., Value],
    reference: Callable[..., Any],
    combine: Combine,
    identity: Callable[[dt.Dtype], Any],
) -> OpRow:
    infer.__name__ = name
    row = op("reduction", kind="tile", goes_along_axis=True)(infer)
    row.reference(lambda x, *, axis: reference(x, axis))
    row.result_layout = _result_layout

    def lower(m: Any, op: Any, x: Any) -> Any:
        neutral = [_neutral(op, identity)]
        return m.reduce(op, [x], op.attributes["axis"], lambda a, b: [combine(m, a[0], b[0])], neutral)

    row.lower(lower)
    return row


def _sum(input: Any, axis: Any = None, keep_dims: Any = False, dtype: Any = None) -> Value:
    """The sum along `axis` (None: of all elements).

    f16 and bf16 are summed in f32 and rounded once at the end; integers narrower than 32 bits and bools are summed,
    and returned, as i32 or u32. `dtype` converts the elements first.
    """
    x = as_value(input, "sum()")
    if dtype is not None:
        x = cast_to(x, need_dtype(dtype, "sum()"))
    own = x.type.dtype
    if own.is_float:
        return cast_to(_reduced("sum", cast_to(x, dt.f32 if own.bits < 32 else own), axis, keep_dims), own)
    wide = own if own.bits >= 32 else dt.i32 if own.is_signed else dt.u32
    return _reduced("sum", cast_to(x, wide), axis, keep_dims)


def _numpy_sum(x: Any, axis: int) -> Any:
    return x.sum(axis=axis, dtype=x.dtype)


sum_ = _declare("sum", _sum, _numpy_sum, lambda m, a, b: m.add(a, b), lambda d: -0.0 if d.is_float else 0)
sum_.is_sum = True


def _lowest(dtype: dt.Dtype) -> float | int:
    """What `maximum` never prefers: NaN for floats."""
    return float("nan") if dtype.is_float else -(1 << (dtype.bits - 1)) if dtype.is_signed else 0


def _highest(dtype: dt.Dtype) -> float | int:
    return float("nan") if dtype.is_float else (1 << (dtype.bits - dtype.is_signed)) - 1


def _extreme(name: str, numpy_function: Any, word: str, extreme: Callable[[dt.Dtype], Any]) -> OpRow:
    def infer(
        input: Any,
        axis: Any = None,
        return_indices: Any = False,
        return_indices_tie_break_left: Any = True,
        keep_dims: Any = False,
    ) -> Any:
        x = as_value(input, f"{name}()")
        own = x.type.dtype
        if not (own.is_float or own.is_int or own == dt.bool_):
            raise KernelError(f"{name}(): needs numbers, got {describe(x)}", fix="load the elements first")
        if return_indices:
            return _with_index(f"{name}()", BETTER[name], x, axis, keep_dims)
        if own.is_float:
            x = cast_to(x, dt.f32) if own.bits < 32 else x
        elif own.bits < 32:
            x = cast_to(x, dt.i32 if own.is_signed else dt.u32)
        return _reduced(name, x, axis, keep_dims)

    infer.__doc__ = f"""The {name} along `axis` (None: of all elements), ignoring NaN beside numbers; halves return f32.

    With `return_indices` also where it is, as i32: the first such place along the axis; halves stay as they are.
    """
    return _declare(
        name,
        infer,
        lambda x, axis: numpy_function.reduce(x, axis=axis),
        lambda m, a, b: getattr(m, word)(a, b),
        extreme,
    )


max_ = _extreme("max", np.fmax, "maximum", _lowest)
min_ = _extreme("min", np.fmin, "minimum", _highest)


def _xor_sum(input: Any, axis: Any = None, keep_dims: Any = False) -> Value:
    """The exclusive or of integers or bools along `axis` (None: of all elements)."""
    x = as_value(input, "xor_sum()")
    if not (x.type.dtype.is_int or x.type.dtype == dt.bool_):
        raise KernelError(f"xor_sum(): needs integers, got {describe(x)}", fix="convert them, as in `x.to(tl.int32)`")
    return _reduced("xor_sum", x, axis, keep_dims)


xor_sum = _declare(
    "xor_sum", _xor_sum, lambda x, axis: np.bitwise_xor.reduce(x, axis), lambda m, a, b: m.bit_xor(a, b), lambda d: 0
)


def _reduce_or(input: Any, axis: Any, keep_dims: Any = False) -> Value:
    """The inclusive or of integers or bools along `axis` (None: of all elements)."""
    x = as_value(input, "reduce_or()")
    if not (x.type.dtype.is_int or x.type.dtype == dt.bool_):
        raise KernelError(f"reduce_or(): needs integers, got {describe(x)}", fix="compare first, as in `x != 0`")
    return _reduced("reduce_or", x, axis, keep_dims)


reduce_or = _declare(
    "reduce_or",
    _reduce_or,
    lambda x, axis: np.bitwise_or.reduce(x, axis),
    lambda m, a, b: m.bit_or(a, b),
    lambda d: 0,
)


# -- by an author's function


@op("reduction", kind="tile", goes_along_axis=True)
def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False) -> Any:
    """Combine the elements along `axis` (None: all) by `combine_fn(a, b)`, which is associative and commutative.

    `input` may be a tuple of n blocks of one shape: `combine_fn` then takes the n values of one element and the n of
    another, and returns n. It may only compute: no branches, no memory.
    """
    tiles = inputs_of(input, "reduce()")
    rank = len(tiles[0].type.shape)
    if axis is None:
        tiles, kept, axis = [_flat(x) for x in tiles], (1,) * rank, 0
    else:
        axis = check_axis(axis, rank, "reduce()")
        kept = tiles[0].type.shape[:axis] + (1,) + tiles[0].type.shape[axis + 1 :]
    shape = tiles[0].type.shape
    types = [x.type.with_shape(shape[:axis] + shape[axis + 1 :]) for x in tiles]
    block = combining_block(combine_fn, tiles, "reduce()")
    results = emit_several("reduce", types, tiles, block, axis=axis)
    return as_given(input, [_with_shape(x, kept) for x in results] if keep_dims else results)


@reduce.reference
def _(*tiles: Any, axis: int, op: Any, machine: Any) -> Any:
    elements = [np.moveaxis(x, axis, -1) for x in tiles]
    while elements[0].shape[-1] > 1:
        first, second = ([x[..., start::2] for x in elements] for start in (0, 1))
        elements = machine.combine(op.blocks[0], first, second)
    return tuple(x[..., 0] for x in elements)


reduce.result_layout = _result_layout


@reduce.lower
def _(m: Any, op: Any, *tiles: Any) -> Any:
    return m.reduce(op, list(tiles), op.attributes["axis"], combine_by(m, op))


def _places(x: Value, axis: int) -> Value:
    """Each element's own coordinate along an axis, as a block of the shape of `x`."""
    shape = x.type.shape
    places = arange(0, shape[axis])
    for other in range(len(shape)):
        places = places if other == axis else expand_dims(places, other)
    return broadcast_to(places, shape)


def _with_index(what: str, better: Any, x: Value, axis: Any, keep_dims: Any) -> Any:
    if x.type.is_scalar:
        raise KernelError(f"{what}: needs a block, got {x.type}", fix="a scalar is its own reduction: drop the call")
    if axis is None:
        rank = len(x.type.shape)
        value, place = reduce((_flat(x), arange(0, x.type.elements)), 0, better)
        return (_with_shape(value, (1,) * rank), _with_shape(place, (1,) * rank)) if keep_dims else (value, place)
    axis = check_axis(axis, len(x.type.shape), what)
    return reduce((x, _places(x, axis)), axis, better, keep_dims)


def _larger(a: Any, i: Any, b: Any, j: Any) -> Any:
    """The larger of two elements, the one before where they are equal; a number rather than NaN."""
    takes_first = (a > b) | ((a == b) & (i < j)) | ((b != b) & ((a == a) | (i < j)))
    return where(takes_first, a, b), where(takes_first, i, j)


def _smaller(a: Any, i: Any, b: Any, j: Any) -> Any:
    """The smaller of two elements, the one before where they are equal; a number rather than NaN."""
    takes_first = (a < b) | ((a == b) & (i < j)) | ((b != b) & ((a == a) | (i < j)))
    return where(takes_first, a, b), where(takes_first, i, j)


BETTER = {"max": _larger, "min": _smaller}


@op("reduction")
def argmax(input: Any, axis: Any, tie_break_left: Any = True, keep_dims: Any = False) -> Value:
    """Where the maximum along `axis` (None: of all elements) is, as i32: the first such place; NaN only among NaN."""
    place: Value = _with_index("argmax()", _larger, as_value(input, "argmax()"), axis, keep_dims)[1]
    return place


@op("reduction")
def argmin(input: Any, axis: Any, tie_break_left: Any = True, keep_dims: Any = False) -> Value:
    """Where the minimum along `axis` (None: of all elements) is, as i32: the first such place; NaN only among NaN."""
    place: Value = _with_index("argmin()", _smaller, as_value(input, "argmin()"), axis, keep_dims)[1]
    return place
