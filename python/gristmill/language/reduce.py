"""Reductions along one axis or all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Value
from gristmill.compiler.layout import Layout
from gristmill.compiler.op import OpRow, emit, op
from gristmill.errors import KernelError
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
    row = op("reduction", kind="tile")(infer)
    row.reference(lambda x, *, axis: reference(x, axis))
    row.result_layout = _result_layout
    row.lower(
        lambda m, op, x: m.reduce(op, x, op.attributes["axis"], lambda a, b: combine(m, a, b), _neutral(op, identity))
    )
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


def _lowest(dtype: dt.Dtype) -> float | int:
    """What `maximum` never prefers: NaN for floats."""
    return float("nan") if dtype.is_float else -(1 << (dtype.bits - 1)) if dtype.is_signed else 0


def _highest(dtype: dt.Dtype) -> float | int:
    return float("nan") if dtype.is_float else (1 << (dtype.bits - dtype.is_signed)) - 1


def _extreme(name: str, numpy_function: Any, word: str, extreme: Callable[[dt.Dtype], Any]) -> OpRow:
    def infer(input: Any, axis: Any = None, return_indices: Any = False, keep_dims: Any = False) -> Value:
        if return_indices:
            raise KernelError(f"{name}(): return_indices is not supported", fix=f"use `tl.{name}(x)` alone")
        x = as_value(input, f"{name}()")
        own = x.type.dtype
        if not (own.is_float or own.is_int or own == dt.bool_):
            raise KernelError(f"{name}(): needs numbers, got {describe(x)}", fix="load the elements first")
        if own.is_float:
            x = cast_to(x, dt.f32) if own.bits < 32 else x
        elif own.bits < 32:
            x = cast_to(x, dt.i32 if own.is_signed else dt.u32)
        return _reduced(name, x, axis, keep_dims)

    infer.__doc__ = f"The {name} along `axis` (None: of all elements), ignoring NaN beside numbers; halves return f32."
    return _declare(
        name,
        infer,
        lambda x, axis: numpy_function.reduce(x, axis=axis),
        lambda m, a, b: getattr(m, word)(a, b),
        extreme,
    )


max_ = _extreme("max", np.fmax, "maximum", _lowest)
min_ = _extreme("min", np.fmin, "minimum", _highest)
