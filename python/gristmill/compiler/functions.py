"""The functions of Python that kernels may call, on tiles and at build time."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from gristmill.compiler.ir import Pointer, Value
from gristmill.compiler.op import ROWS, OpRow
from gristmill.dtypes import Dtype, parse_dtype
from gristmill.errors import KernelError
from gristmill.language import elementwise as ew
from gristmill.language.casts import cast
from gristmill.language.iterate import constexpr, tensor
from gristmill.language.structure import PointerType, leaves
from gristmill.language.types import is_number


def holds_tiles(x: Any) -> bool:
    """Whether a value is, or has among its items, a tile."""
    return any(isinstance(leaf, Value) for leaf in leaves(x))


def _fold(row: OpRow, python: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*operands: Any) -> Any:
        if not holds_tiles(operands):
            return python(*operands)
        items = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple) else operands
        return reduce(row, items)

    return apply


def _length(x: Any) -> int:
    if isinstance(x, Value) and x.type.is_scalar:
        raise KernelError(f"len(): needs a block, got {x.type}", fix="use the number of elements itself")
    return x.type.shape[0] if isinstance(x, Value) else len(x)


def _convert(dtype_name: str, python: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def apply(x: Any) -> Any:
        return cast(x, parse_dtype(dtype_name)) if isinstance(x, Value) else python(x)

    return apply


def _sum(items: Any, start: Any = 0) -> Any:
    if isinstance(items, Value):
        raise KernelError(f"sum(): needs a tuple, got {items.type}", fix="use `tl.sum` to add a tile's elements")
    if not holds_tiles((items, start)):
        return builtins.sum(items, start)
    return reduce(ew.add, items, start)


def _is_instance(x: Any, kinds: Any) -> bool:
    """Whether x is of a kind; a tile is a `tl.tensor`, what is known at build time a `tl.constexpr`."""
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if kind is tensor:
            found = isinstance(x, Value)
        elif getattr(kind, "__name__", "") == constexpr.__name__:
            found = not holds_tiles(x)
        elif not isinstance(kind, type):
            raise KernelError(f"isinstance(): `{kind}` is no type", fix="use `tl.tensor`, `tl.constexpr`, `int` ...")
        else:
            found = isinstance(x, kind) and not isinstance(x, Value)
        if found:
            return True
    return False


def _items(python: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*arguments: Any, **named: Any) -> tuple[Any, ...]:
        for x in arguments:
            if isinstance(x, Value):
                what = f"{python.__name__}(): needs tuples, got {x.type}"
                raise KernelError(what, fix="a tile's elements have no names: use operations on the whole tile")
        return tuple(python(*arguments, **named))

    return apply


def _static_math(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `math`: at build time, or the op of the same name on tiles."""

    def apply(*arguments: Any) -> Any:
        if not holds_tiles(arguments):
            return function(*arguments)
        row = ROWS.get(function.__name__)
        if row is None:
            what = f"`math.{function.__name__}` takes numbers that are known at build time"
            raise KernelError(what, fix="use an operation of `gristmill.language`")
        return row(*arguments)

    return apply


def _print(*arguments: Any, **named: Any) -> Any:
    if "device_print" in ROWS:
        return ROWS["device_print"](*arguments, **named)
    raise KernelError("`print` is not supported in kernels", fix="store the value to a pointer and look at it there")


BUILTINS: dict[Any, Callable[..., Any]] = {
    min: _fold(ew.minimum, min),
    max: _fold(ew.maximum, max),
    abs: lambda x: ew.abs_(x) if isinstance(x, Value) else abs(x),
    len: _length,
    float: _convert("f32", float),
    int: _convert("i32", int),
    bool: _convert("bool", bool),
    builtins.sum: _sum,
    isinstance: _is_instance,
    print: _print,
    **{f: _items(f) for f in (zip, enumerate, reversed, tuple, list)},
    **{f: _static_math(f) for f in vars(math).values() if callable(f)},
}


def is_builtin(callee: Any) -> bool:
    """Whether `BUILTINS` says what a call means."""
    try:
        return callee in BUILTINS
    except TypeError:
        return False


# ---- what dtypes and types have -------------------------------------------------------------------------------------


class BlockType:
    """What `x.type` is of a block: its shape and the type of its elements."""

    def __init__(self, value: Value):
        self.shape = value.type.shape
        self.numel = value.type.elements
        self.element_ty = self.scalar = dtype_of(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockType) and (self.shape, self.scalar) == (other.shape, other.scalar)

    def __hash__(self) -> int:
        return hash((self.shape, self.scalar))

    def __repr__(self) -> str:
        return f"<{list(self.shape)}, {self.scalar}>"


def dtype_of(value: Value) -> Any:
    """A tile's dtype as authors see it."""
    return PointerType(value.type.dtype) if isinstance(value.type.dtype, Pointer) else value.type.dtype


def type_of(value: Value) -> Any:
    """What `x.type` is."""
    return BlockType(value) if value.type.shape else dtype_of(value)


_IS_DTYPE = {
    "is_fp16": "f16", "is_bf16": "bf16", "is_fp32": "f32", "is_fp64": "f64", "is_fp8e4nv": "f8e4m3",
    "is_fp8e5": "f8e5m2", "is_int1": "bool", "is_bool": "bool", "is_int8": "i8", "is_int16": "i16", "is_int32": "i32",
    "is_int64": "i64", "is_uint8": "u8", "is_uint16": "u16", "is_uint32": "u32", "is_uint64": "u64",
}  # fmt: skip
_KINDS: dict[str, Callable[[Any], bool]] = {
    "is_ptr": lambda t: isinstance(t, PointerType),
    "is_block": lambda t: isinstance(t, BlockType),
    "is_floating": lambda t: isinstance(t, Dtype) and t.is_float,
    "is_fp8": lambda t: isinstance(t, Dtype) and t.is_float and t.bits == 8,
    "is_standard_floating": lambda t: isinstance(t, Dtype) and t.is_float and t.bits > 8,
    "is_int": lambda t: isinstance(t, Dtype) and not t.is_float,
    "is_int_signed": lambda t: isinstance(t, Dtype) and t.is_signed,
    "is_int_unsigned": lambda t: isinstance(t, Dtype) and not t.is_float and not t.is_signed,
}
_DTYPE_PROPERTIES: dict[str, Callable[[Dtype], Any]] = {
    "scalar": lambda t: t,
    "element_ty": lambda t: t,
    "primitive_bitwidth": lambda t: 1 if t.name == "bool" else t.bits,
    "int_bitwidth": lambda t: 1 if t.name == "bool" else t.bits,
}
NOT_FOUND = object()


def type_attribute(base: Any, name: str) -> Any:
    """What `.name` is of a dtype or type in a kernel beyond its own attributes, or NOT_FOUND.

    The questions that kernels ask, such as `is_fp16()`, are about the elements of a block.
    """
    if isinstance(base, Dtype) and name in _DTYPE_PROPERTIES:
        return _DTYPE_PROPERTIES[name](base)
    if not isinstance(base, (Dtype, PointerType, BlockType)):
        return base if name == "value" and (is_number(base) or isinstance(base, (str, tuple))) else NOT_FOUND
    kind: Any = base
    if isinstance(base, BlockType) and name != "is_block":
        kind = base.scalar
    if name in _IS_DTYPE:
        return partial(_is_named, kind, _IS_DTYPE[name])
    return partial(_KINDS[name], kind) if name in _KINDS else NOT_FOUND


def _is_named(kind: Any, name: str) -> bool:
    return isinstance(kind, Dtype) and kind.name == name
