"""Matrix products of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Tile, Value
from gristmill.compiler.op import emit, op
from gristmill.dtypes import Dtype
from gristmill.errors import KernelError
from gristmill.language.types import as_value, cast_to, constant, describe, need_dtype

PRECISIONS = (None, "ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
OPERANDS = (dt.i8, dt.u8, dt.f8e4m3, dt.f8e5m2, dt.f16, dt.bf16, dt.f32, dt.f64)


@op("matrix", kind="tile", is_product=True)
def dot(
    input: Any,
    other: Any,
    acc: Any = None,
    input_precision: Any = None,
    allow_tf32: Any = None,
    max_num_imprecise_acc: Any = None,
    out_dtype: Any = dt.f32,
) -> Value:
    """The matrix product of blocks [M, K] and [K, N] (or [B, M, K] and [B, K, N]), added to `acc` if there is one.

    Both operands have one dtype: f16, bf16, f8e4m3, f8e5m2, f32, f64, i8 or u8. Products are exact or rounded once, and
    summed in f32 (f64 for f64, i32 for integers); `out_dtype` f16 rounds the sum. `input_precision` is for f32
    operands: "tf32x3", the default, sums three products of their parts, within 1e-6 of the sum of magnitudes; "tf32"
    (or `allow_tf32=True`) takes 11 bits of each on tensor cores; "ieee" multiplies in f32.
    """
    a, b = (_operand(x) for x in (input, other))
    _check_shapes(a, b)
    if a.type.dtype != b.type.dtype:
        fix = "cast one of them, as in `y.to(x.dtype)`"
        raise KernelError(f"dot(): the operands differ in dtype: {a.type.dtype} and {b.type.dtype}", fix=fix)
    if input_precision not in PRECISIONS:
        known = ", ".join(repr(p) for p in PRECISIONS[1:])
        raise KernelError(f"dot(): unknown precision {describe(input_precision)}", fix=f"use one of {known}")
    assert isinstance(a.type.dtype, Dtype)
    summed, result = _result_dtypes(a.type.dtype, need_dtype(out_dtype, "dot()"))
    shape = (*a.type.shape[:-1], b.type.shape[-1])
    start = _start(acc, shape, summed, result)
    precision = {"precision": _precision(input_precision, allow_tf32)} if a.type.dtype == dt.f32 else {}
    return cast_to(emit("dot", Tile(summed, shape), a, b, start, **precision), result)


def _precision(asked: Any, allow_tf32: Any) -> str:
    """Which of three ways f32 operands are multiplied."""
    if asked is None:
        return "tf32x3" if allow_tf32 is None else "tf32" if allow_tf32 else "ieee"
    return asked if asked in ("ieee", "tf32") else "tf32x3"


def _operand(x: Any) -> Value:
    value = as_value(x, "dot()")
    if len(value.type.shape) not in (2, 3):
        fix = "use blocks of two axes, as in `tl.dot(a, b)` with a [M, K] and b [K, N]"
        raise KernelError(f"dot(): needs two or three axes, got {value.type}", fix=fix)
    if value.type.dtype not in OPERANDS:
        fix = "cast it to one of " + ", ".join(d.name for d in OPERANDS)
        raise KernelError(f"dot(): cannot multiply {value.type.dtype.name}", fix=fix)
    return value


def _check_shapes(a: Value, b: Value) -> None:
    left, right = a.type.shape, b.type.shape
    if len(left) != len(right) or left[:-2] != right[:-2] or left[-1] != right[-2]:
        fix = "the first block's columns are as many as the second's rows"
        raise KernelError(f"dot(): {list(left)} and {list(right)} do not multiply", fix=fix)


def _result_dtypes(operand: Dtype, asked: Dtype) -> tuple[Dtype, Dtype]:
    """The dtype of the sum, and of what is returned."""
    if operand.is_int:
        return dt.i32, dt.i32
    if operand == dt.f64:
        return dt.f64, dt.f64
    if asked not in (dt.f32, dt.f16, dt.bf16):
        raise KernelError(f"dot(): cannot return {asked}", fix="use `out_dtype=tl.float32` and cast the result")
    return dt.f32, asked


def _start(acc: Any, shape: tuple[int, ...], summed: Dtype, result: Dtype) -> Value:
    if acc is None:
        return constant(0, summed, shape)
    start = as_value(acc, "dot()")
    if start.type.shape != shape:
        raise KernelError(f"dot(): acc is {start.type}, the product {list(shape)}", fix=f"use `tl.zeros({shape}, ...)`")
    if start.type.dtype not in (summed, result):
        fix = f"start with `tl.zeros({shape}, tl.{'int32' if summed.is_int else 'float32'})`"
        raise KernelError(f"dot(): acc is {start.type.dtype}, the sum {summed}", fix=fix)
    return cast_to(start, summed)


@dot.reference
def _(a: Any, b: Any, acc: Any, precision: str = "") -> Any:
    if acc.dtype == np.int32:
        return (a.astype(np.int64) @ b.astype(np.int64) + acc).astype(np.int32)
    return (a.astype(np.float64) @ b.astype(np.float64) + acc).astype(acc.dtype)


@dot.lower
def _(m: Any, op: Any, a: Any, b: Any, acc: Any) -> Any:
    return m.dot(op.results[0], a, b, acc)
