"""Typing rules that ops share: constants to tiles, promotion, broadcasting and implicit casts (Triton's)."""

from __future__ import annotations

import math
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import MAX_TILE_ELEMENTS, Pointer, Tile, Value
from gristmill.compiler.op import emit
from gristmill.dtypes import Dtype
from gristmill.errors import KernelError

_KIND_RANK = {"bool": 0, "int": 1, "uint": 1, "float": 2}


def is_number(x: object) -> bool:
    """Whether `x` is a compile-time scalar, which takes the other operand's dtype where it can."""
    return isinstance(x, (bool, int, float))


_SPELLINGS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "bool": "int1"}


def spell(dtype: Dtype) -> str:
    """Return a dtype as a kernel's author writes it: `tl.int32`."""
    return "tl." + _SPELLINGS.get(dtype.name, f"{dtype.kind}{dtype.bits}")


def literal_dtype(number: bool | int | float) -> Dtype:
    """Return the dtype that a literal has by itself (bool, i32 or the first wider one that holds it, f32 or f64)."""
    if isinstance(number, bool):
        return dt.bool_
    if isinstance(number, int):
        return _integer_dtype(number)
    magnitude = abs(number)
    fits = magnitude == 0 or not math.isfinite(magnitude) or 2.0**-126 <= magnitude <= 3.4028234663852886e38
    return dt.f32 if fits else dt.f64


def _integer_dtype(number: int) -> Dtype:
    for dtype in (dt.i32, dt.u32, dt.i64, dt.u64):
        if fits_dtype(number, dtype):
            return dtype
    raise KernelError(f"{number} does not fit in 64 bits", fix="use a smaller constant")


def fits_dtype(number: int, dtype: Dtype) -> bool:
    """Whether an integer is representable in an integer dtype."""
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return low <= number < low + (1 << dtype.bits)


def constant(number: bool | int | float, dtype: Dtype | None = None, shape: tuple[int, ...] = ()) -> Value:
    """Emit a constant tile."""
    dtype = dtype or literal_dtype(number)
    if dtype.is_int and not math.isfinite(number):
        raise KernelError(f"{number} is no integer", fix="use a number, or a floating dtype")
    if dtype.is_int and not fits_dtype(int(number), dtype):
        raise KernelError(
            f"{number} is out of range for {dtype}", fix="use a value that fits, or cast the other operand"
        )
    value = float(number) if dtype.is_float else bool(number) if dtype == dt.bool_ else int(number)
    return emit("constant", Tile(dtype, shape), value=value)


def as_value(x: Any, what: str = "an operand") -> Value:
    """Return `x` as a tile; numbers get the dtype of their literal."""
    if isinstance(x, Value):
        return x
    if is_number(x):
        return constant(x)
    raise KernelError(f"{what} must be a tile or a number, got {describe(x)}", fix="pass a tile or a number")


def describe(x: Any) -> str:
    """Name an argument as an author would: its type for tiles, the value otherwise."""
    if isinstance(x, Value):
        return str(x.type)
    return "None" if x is None else f"`{x}`" if isinstance(x, (str, Dtype)) or is_number(x) else type(x).__name__


def promoted(x: Any, y: Any, *, what: str, is_division: bool = False) -> tuple[Value, Value]:
    """Bring two operands to one dtype and shape by the rules for binary operators."""
    dtype = _common_dtype(x, y, what, is_division)
    return broadcast_pair(_to_dtype(x, dtype, what), _to_dtype(y, dtype, what), what)


def promoted_all(*operands: Any, what: str) -> list[Value]:
    """Bring several operands to one dtype and shape: that of the tiles together, which numbers take if they can."""
    tiles = [x for x in operands if not is_number(x)]
    numbers = [x for x in operands if is_number(x)]
    first, *rest = [*tiles, *numbers]
    dtype = _common_dtype(first, rest[0], what, False)
    for x in rest[1:]:
        dtype = _common_dtype(Value(Tile(dtype)), x, what, False)
    values = [_to_dtype(x, dtype, what) for x in operands]
    shape: tuple[int, ...] = ()
    for value in values:
        shape = common_shape(shape, value.type.shape, what)
    return [broadcast_value(value, shape) for value in values]


def _to_dtype(x: Any, dtype: Dtype, what: str) -> Value:
    if not is_number(x):
        return cast_to(as_value(x, f"an operand of {what}"), dtype)
    if isinstance(x, int) and not isinstance(x, bool) and dtype.is_int and not fits_dtype(x, dtype):
        fix = f"cast the tile to a wider dtype first, as in `x.to({spell(literal_dtype(x))})`"
        raise KernelError(f"{what}: {x} is out of range for {dtype}", fix=fix)
    return constant(x, dtype)


def _common_dtype(x: Any, y: Any, what: str, is_division: bool) -> Dtype:
    for operand in (x, y):
        if isinstance(operand, Value) and operand.type.is_pointer:
            raise KernelError(
                f"{what}: got a pointer, {operand.type}", fix="pointers take only `+` and `-` of integers"
            )
    if is_number(x) and is_number(y):
        return _promote(literal_dtype(x), literal_dtype(y), is_division, what)
    if is_number(x) or is_number(y):
        number, tile = (x, y) if is_number(x) else (y, x)
        own, other = literal_dtype(number), as_value(tile, f"an operand of {what}").type.dtype
        assert isinstance(other, Dtype)
        if _KIND_RANK[own.kind] <= _KIND_RANK[other.kind]:
            return _divided(other, is_division)
        return _promote(own, other, is_division, what)
    a, b = as_value(x, f"an operand of {what}").type.dtype, as_value(y, f"an operand of {what}").type.dtype
    assert isinstance(a, Dtype) and isinstance(b, Dtype)
    return _promote(a, b, is_division, what)


def _divided(dtype: Dtype, is_division: bool) -> Dtype:
    return dt.f32 if is_division and dtype.is_float and dtype != dt.f64 else dtype


def _promote(a: Dtype, b: Dtype, is_division: bool, what: str) -> Dtype:
    if dt.f64 in (a, b):
        return dt.f64
    if is_division and (a.is_float or b.is_float):
        return dt.f32
    if a.is_float or b.is_float:
        return _promote_floats(a, b)
    if is_division and a.is_signed != b.is_signed and dt.bool_ not in (a, b):
        raise KernelError(
            f"{what}: {a} and {b} differ in signedness", fix=f"cast one of them, as in `x.to({spell(a)})`"
        )
    return promote_integers(a, b)


def _promote_floats(a: Dtype, b: Dtype) -> Dtype:
    if dt.f32 in (a, b):
        return dt.f32
    if dt.f16 in (a, b):
        return dt.f16
    if dt.bf16 in (a, b):
        return dt.bf16 if a == b else dt.f32
    return a if a == b else dt.f16


def promote_integers(a: Dtype, b: Dtype) -> Dtype:
    """Return the common dtype of two integers or bools, as C does it but without promotion to int."""
    rank_a, rank_b = (1 if d == dt.bool_ else d.bits for d in (a, b))
    if a.is_signed == b.is_signed:
        return a if rank_a >= rank_b else b
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    rank_signed, rank_unsigned = (rank_a, rank_b) if a.is_signed else (rank_b, rank_a)
    return unsigned if rank_unsigned >= rank_signed else signed


def cast_to(x: Value, dtype: Dtype | Pointer) -> Value:
    """Convert the elements of `x`; nothing if they have that dtype."""
    return x if x.type.dtype == dtype else emit("cast", x.type.with_dtype(dtype), x, to=dtype)


def broadcast_pair(x: Value, y: Value, what: str) -> tuple[Value, Value]:
    """Broadcast two tiles against each other."""
    shape = common_shape(x.type.shape, y.type.shape, what)
    return broadcast_value(x, shape), broadcast_value(y, shape)


def common_shape(a: tuple[int, ...], b: tuple[int, ...], what: str) -> tuple[int, ...]:
    """Return the shape that both broadcast to: missing leading dimensions and those of size 1 grow."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(m != n and 1 not in (m, n) for m, n in zip(left, right, strict=True)):
        fix = "give them equal shapes, or size 1 where one repeats, as in `x[:, None]`"
        raise KernelError(f"{what}: shapes {list(a)} and {list(b)} do not broadcast", fix=fix)
    return tuple(max(m, n) for m, n in zip(left, right, strict=True))


def broadcast_value(x: Value, shape: tuple[int, ...]) -> Value:
    """Grow `x` to `shape`, to which it must broadcast."""
    if x.type.shape == shape:
        return x
    if x.type.is_scalar:
        return emit("splat", x.type.with_shape(shape), x)
    for _ in range(len(shape) - len(x.type.shape)):
        x = emit("expand_dims", x.type.with_shape((1, *x.type.shape)), x, axis=0)
    return x if x.type.shape == shape else emit("broadcast", x.type.with_shape(shape), x)


def check_shape(shape: Any, what: str) -> tuple[int, ...]:
    """Return `shape` as a tuple of powers of two."""
    dims = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    for size in dims:
        check_power_of_two(size, what)
    if math.prod(dims) > MAX_TILE_ELEMENTS:
        raise KernelError(
            f"{what}: {math.prod(dims)} elements, more than {MAX_TILE_ELEMENTS}", fix="use a smaller block"
        )
    return dims


def check_power_of_two(size: Any, what: str) -> None:
    """Raise KernelError unless `size` is a compile-time power of two."""
    if isinstance(size, Value) or not isinstance(size, int):
        fix = "use a `gm.constexpr` parameter or a literal"
        raise KernelError(f"{what}: a block's size must be known at build time, got {describe(size)}", fix=fix)
    if size < 1 or size & (size - 1):
        above = 1 << max(0, size - 1).bit_length()
        fix = f"use {above} and mask the rest, as in `mask=offsets < n`"
        raise KernelError(f"{what}: a block's size must be a power of two, got {size}", fix=fix)


def need_float(x: Value, what: str) -> Value:
    """Raise KernelError unless `x` is a floating tile."""
    if not x.type.dtype.is_float:
        fix = "convert first, as in `x.to(tl.float32)`"
        raise KernelError(f"{what}(): needs a floating tile, got {x.type}", fix=fix)
    return x


def need_dtype(dtype: Any, what: str) -> Dtype:
    """Return a dtype given as one, or raise KernelError."""
    if isinstance(dtype, Dtype):
        return dtype
    raise KernelError(f"{what}: needs a dtype, got {describe(dtype)}", fix="use one such as `tl.float32`")


def check_axis(axis: Any, rank: int, what: str) -> int:
    """Return `axis` counted from the front."""
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise KernelError(f"{what}: axis must be a constant integer, got {describe(axis)}", fix="use a literal axis")
    if not -rank <= axis < rank:
        raise KernelError(
            f"{what}: axis {axis} is out of range for {rank} dimensions", fix=f"use {-rank} to {rank - 1}"
        )
    return axis % rank
