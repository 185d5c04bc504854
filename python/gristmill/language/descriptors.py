"""Windows on arrays: block pointers and tensor descriptors, which the frontend turns into pointers and masks.

They are no values of the tile IR: each is an object that holds tiles, so every target has them, and an access is as
wide as pointers written by hand would make it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Pointer, Value
from gristmill.compiler.op import ROWS, OpRow, active_builder, op
from gristmill.errors import KernelError
from gristmill.language import bits, memory
from gristmill.language import elementwise as ew
from gristmill.language.index import arange, index_dtype
from gristmill.language.shape import expand_dims
from gristmill.language.structure import PointerType, Structure
from gristmill.language.types import (
    as_value,
    broadcast_value,
    cast_to,
    check_axis,
    check_shape,
    describe,
    is_number,
    promote_integers,
)
from gristmill.language.windows import add_window, padded_shape, store_window, window

PADDINGS = ("", "zero", "nan")
MAX_RANK = 5
ADDED = (dt.f32, dt.i32)  # what the hardware adds as threads do
Scalar = Value | int


@dataclass(frozen=True)
class Axis:
    """The indices of a tile along one axis: a scalar `start`, if there is one, plus `steps`, which is a 1-d tile.

    Of the steps only the first `size` count.
    """

    start: Value | None
    steps: Value
    size: int


def _axes(offsets: Sequence[Value], block_shape: Sequence[int]) -> list[Axis]:
    active_builder().is_padded |= padded_shape(block_shape) != tuple(block_shape)
    sizes = zip(offsets, block_shape, padded_shape(block_shape), strict=True)
    return [Axis(offset, arange(0, padded), size) for offset, size, padded in sizes]


def _times(index: Value, stride: Scalar) -> Value:
    return index if is_number(stride) and stride == 1 else ew.mul(index, stride)


def _across(steps: Value, axis: int, rank: int) -> Value:
    """Give a 1-d tile axes of size 1 before and after."""
    for _ in range(axis):
        steps = expand_dims(steps, 0)
    for i in range(axis + 1, rank):
        steps = expand_dims(steps, i)
    return steps


def _addresses(base: Value, strides: Sequence[Scalar], axes: Sequence[Axis]) -> Value:
    pointers = base
    for stride, axis in zip(strides, axes, strict=True):
        if axis.start is not None:
            pointers = ew.add(pointers, _times(axis.start, stride))
    for i, (stride, axis) in enumerate(zip(strides, axes, strict=True)):
        pointers = ew.add(pointers, _across(_times(axis.steps, stride), i, len(axes)))
    return pointers


def _inside(shape: Sequence[Scalar], axes: Sequence[Axis], checked: Sequence[int]) -> Value | None:
    """Where the checked axes' indices are from 0 to less than the array's shape; None where nothing is checked."""
    mask = None
    for i in checked:
        axis = axes[i]
        index = axis.steps if axis.start is None else ew.add(axis.start, axis.steps)
        index = _across(index, i, len(axes))
        part = bits.and_(ew.ge(index, 0), ew.lt(index, shape[i]))
        if axis.size < axis.steps.type.shape[0]:
            part = bits.and_(part, _across(ew.lt(axis.steps, axis.size), i, len(axes)))
        mask = part if mask is None else bits.and_(mask, part)
    return mask


def _filler(padding: str, element: dt.Dtype, what: str) -> float | None:
    if padding not in PADDINGS:
        raise KernelError(f"{what}(): padding {describe(padding)} is not 'zero' or 'nan'", fix="use 'zero' or 'nan'")
    if padding == "nan" and not element.is_float:
        raise KernelError(f"{what}(): {element} has no NaN to pad with", fix="use `padding_option='zero'`")
    return float("nan") if padding == "nan" else None


def _base(base: Any, what: str) -> Value:
    if isinstance(base, Value) and base.type.is_pointer and base.type.is_scalar:
        return base
    raise KernelError(
        f"{what}(): base must be one pointer, got {describe(base)}", fix="pass a pointer parameter, offset at most"
    )


def _integers(items: Any, name: str, what: str) -> tuple[Scalar, ...]:
    if not isinstance(items, (tuple, list)):
        raise KernelError(f"{what}(): {name} must be a tuple, got {describe(items)}", fix=f"use `{name}=(...)`")
    for item in items:
        is_scalar = isinstance(item, Value) and item.type.is_scalar and not item.type.is_pointer
        is_integer = (isinstance(item, int) and not isinstance(item, bool)) or (is_scalar and item.type.dtype.is_int)
        if not is_integer:
            fix = "use scalar integers, one for each axis"
            raise KernelError(f"{what}(): {name} must be integers, got {describe(item)}", fix=fix)
    return tuple(items)


def _offsets(items: Any, rank: int, what: str) -> tuple[Value, ...]:
    """Offsets as tiles, at least as wide as indices are."""
    offsets = _integers(items, "offsets", what)
    _same_rank(rank, what, offsets=offsets)
    return tuple(_as_index(as_value(offset)) for offset in offsets)


def _as_index(offset: Value) -> Value:
    assert isinstance(offset.type.dtype, dt.Dtype)
    return cast_to(offset, promote_integers(offset.type.dtype, index_dtype()))


def _same_rank(rank: int, what: str, **lists: Sequence[Any]) -> None:
    for name, items in lists.items():
        if len(items) != rank:
            fix = f"give {rank}, one for each axis"
            raise KernelError(f"{what}(): {len(items)} {name} for {rank} axes", fix=fix)


def _block_shape(shape: Any, rank: int, what: str, is_padded: bool = False) -> tuple[int, ...]:
    """The sizes of a block, powers of two unless it is padded to such."""
    if not isinstance(shape, (tuple, list)):
        raise KernelError(
            f"{what}(): block_shape must be a tuple, got {describe(shape)}", fix="use `block_shape=[...]`"
        )
    _same_rank(rank, what, block_shape=shape)
    if not is_padded or not all(isinstance(size, int) and size > 0 for size in shape):
        return check_shape(shape, f"{what}()")
    check_shape(padded_shape(shape), f"{what}()")
    return tuple(shape)


@dataclass(frozen=True, eq=False)
class BlockPointer(Structure):
    """A tile of an array at `offsets`; `tl.advance` moves it."""

    base: Value
    shape: tuple[Scalar, ...]
    strides: tuple[Scalar, ...]
    offsets: tuple[Value, ...]
    block_shape: tuple[int, ...]

    METHODS = ("advance",)
    FIELDS = ("dtype", "type", "shape", "strides", "offsets", "block_shape")
    word = "block pointer"

    def parts(self) -> tuple[Any, ...]:
        return (self.base, self.shape, self.strides, self.offsets, self.block_shape)

    def with_parts(self, parts: tuple[Any, ...]) -> BlockPointer:
        return BlockPointer(*parts)

    @property
    def dtype(self) -> PointerType:
        assert isinstance(self.base.type.dtype, Pointer)
        return PointerType(self.base.type.dtype)

    type = dtype

    def advance(self, offsets: Any) -> BlockPointer:
        """The same window `offsets` elements further along each axis."""
        steps = _integers(offsets, "offsets", "advance")
        _same_rank(len(self.shape), "advance", offsets=steps)
        moved = (self._moved(old, step) for old, step in zip(self.offsets, steps, strict=True))
        return replace(self, offsets=tuple(moved))

    def _moved(self, offset: Value, step: Scalar) -> Value:
        if is_number(step) and step == 0:
            return offset
        return cast_to(ew.add(offset, step), offset.type.dtype)

    def resolved(self, what: str, boundary_check: Any, padding: Any) -> tuple[Value, Value | None, float | None]:
        """The pointers, the mask and what stands where it is false, for a `load` or `store`."""
        checked = _checked_axes(boundary_check, len(self.shape), what)
        axes = _axes(self.offsets, self.block_shape)
        mask = _inside(self.shape, axes, checked)
        filler = _filler(padding or "", self.dtype.element_ty, what)
        return _addresses(self.base, self.strides, axes), mask, filler if checked else None


def _checked_axes(boundary_check: Any, rank: int, what: str) -> list[int]:
    axes = boundary_check if isinstance(boundary_check, (tuple, list)) else (boundary_check,)
    return sorted({check_axis(axis, rank, f"{what}(): boundary_check") for axis in axes})


@op("descriptor")
def make_block_ptr(base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any = None) -> Any:
    """A pointer to the block of `block_shape` at `offsets` in the array of `shape` and `strides` at `base`.

    `tl.load` and `tl.store` take it, with the axes to check in `boundary_check=`; `tl.advance` moves it. `order`, the
    axes from the fastest on, is checked, and has no other effect: strides that are 1 say the same.
    """
    base = _base(base, "make_block_ptr")
    extents, steps = _integers(shape, "shape", "make_block_ptr"), _integers(strides, "strides", "make_block_ptr")
    rank = len(extents)
    _same_rank(rank, "make_block_ptr", strides=steps)
    block = _block_shape(block_shape, rank, "make_block_ptr")
    _check_order(order, rank)
    return BlockPointer(base, extents, steps, _offsets(offsets, rank, "make_block_ptr"), block)


def _check_order(order: Any, rank: int) -> None:
    if order is None:
        return
    is_constant = isinstance(order, (tuple, list)) and not any(isinstance(axis, Value) for axis in order)
    if not is_constant or sorted(order) != list(range(rank)):
        fix = f"use `order={tuple(reversed(range(rank)))}`"
        raise KernelError("make_block_ptr(): order must name each axis once, by constants", fix=fix)


@op("descriptor")
def advance(base: Any, offsets: Any) -> Any:
    """The block pointer `offsets` elements further along each axis."""
    if not isinstance(base, BlockPointer):
        fix = "make one with `tl.make_block_ptr`; to a pointer add the offset"
        raise KernelError(f"advance(): needs a block pointer, got {describe(base)}", fix=fix)
    return base.advance(offsets)


@dataclass(frozen=True, eq=False)
class TensorDescriptor(Structure):
    """An array in memory, of which blocks of `block_shape` are loaded and stored at any offsets."""

    base: Value
    shape: tuple[Scalar, ...]
    strides: tuple[Scalar, ...]
    block_shape: tuple[int, ...]
    padding: str

    METHODS = (
        "load",
        "store",
        "gather",
        "scatter",
        "atomic_add",
        "atomic_min",
        "atomic_max",
        "atomic_and",
        "atomic_or",
        "atomic_xor",
    )
    FIELDS = ("dtype", "shape", "strides", "block_shape")
    word = "tensor descriptor"

    def parts(self) -> tuple[Any, ...]:
        return (self.base, self.shape, self.strides, self.block_shape, self.padding)

    def with_parts(self, parts: tuple[Any, ...]) -> TensorDescriptor:
        return TensorDescriptor(*parts)

    @property
    def dtype(self) -> dt.Dtype:
        assert isinstance(self.base.type.dtype, Pointer)
        return self.base.type.dtype.element

    def load(self, offsets: Any) -> Value:
        """The block at `offsets`; elements outside of the array are the padding."""
        if active_builder().has_windows and self.padding != "nan":
            places = _offsets(offsets, len(self.shape), "load")
            return window(self.base, self.shape, self.strides, places, self.block_shape)
        return self._read(self._at(offsets, "load"), "load")

    def store(self, offsets: Any, value: Any) -> None:
        """Write the elements of `value`, a block of `block_shape`, that lie inside of the array."""
        if active_builder().has_windows:
            self._to_window(store_window, offsets, value, "store")
        else:
            self._write(self._at(offsets, "store"), value, padded_shape(self.block_shape), "store")

    def gather(self, x_offsets: Any, y_offset: Any) -> Value:
        """Rows `x_offsets` from column `y_offset` on, of a descriptor whose block is one row."""
        return self._read(self._rows(x_offsets, y_offset, "gather"), "gather")

    def scatter(self, value: Any, x_offsets: Any, y_offset: Any) -> None:
        """Write rows `x_offsets` from column `y_offset` on, of a descriptor whose block is one row."""
        axes = self._rows(x_offsets, y_offset, "scatter")
        self._write(axes, value, tuple(axis.steps.type.shape[0] for axis in axes), "scatter")

    def atomic_add(self, offsets: Any, value: Any) -> None:
        """Add to the elements inside of the array."""
        if active_builder().has_windows and self.dtype in ADDED:
            self._to_window(add_window, offsets, value, "atomic_add")
        else:
            self._atomic("atomic_add", offsets, value)

    def atomic_min(self, offsets: Any, value: Any) -> None:
        """Lower the elements inside of the array."""
        self._atomic("atomic_min", offsets, value)

    def atomic_max(self, offsets: Any, value: Any) -> None:
        """Raise the elements inside of the array."""
        self._atomic("atomic_max", offsets, value)

    def atomic_and(self, offsets: Any, value: Any) -> None:
        """Keep the bits of the elements inside of the array that `value` has."""
        self._atomic("atomic_and", offsets, value)

    def atomic_or(self, offsets: Any, value: Any) -> None:
        """Set bits of the elements inside of the array."""
        self._atomic("atomic_or", offsets, value)

    def atomic_xor(self, offsets: Any, value: Any) -> None:
        """Flip bits of the elements inside of the array."""
        self._atomic("atomic_xor", offsets, value)

    def _to_window(self, row: OpRow, offsets: Any, value: Any, what: str) -> None:
        padded = padded_shape(self.block_shape)
        places = _offsets(offsets, len(self.shape), what)
        tile = cast_to(broadcast_value(as_value(_fitting(value, padded, what)), padded), self.dtype)
        row(self.base, self.shape, self.strides, places, self.block_shape, tile)

    def _at(self, offsets: Any, what: str) -> list[Axis]:
        return _axes(_offsets(offsets, len(self.shape), what), self.block_shape)

    def _rows(self, x_offsets: Any, y_offset: Any, what: str) -> list[Axis]:
        if len(self.shape) != 2 or self.block_shape[0] != 1:
            fix = "make one with `block_shape=[1, COLUMNS]`"
            raise KernelError(f"{what}(): needs a descriptor of rows, not of {list(self.block_shape)}", fix=fix)
        is_tile = isinstance(x_offsets, Value) and len(x_offsets.type.shape) == 1 and not x_offsets.type.is_pointer
        if not (is_tile and x_offsets.type.dtype.is_int):
            fix = "give the rows' numbers as a 1-d block"
            raise KernelError(f"{what}(): rows must be a 1-d block of integers, got {describe(x_offsets)}", fix=fix)
        (column,) = _offsets((y_offset,), 1, what)
        rows = Axis(None, _as_index(x_offsets), x_offsets.type.shape[0])
        return [rows, *_axes([column], self.block_shape[1:])]

    def _places(self, axes: list[Axis]) -> tuple[Value, Value | None]:
        return _addresses(self.base, self.strides, axes), _inside(self.shape, axes, range(len(axes)))

    def _read(self, axes: list[Axis], what: str) -> Value:
        pointers, mask = self._places(axes)
        return memory.load(pointers, mask, _filler(self.padding, self.dtype, what))

    def _write(self, axes: list[Axis], value: Any, shape: tuple[int, ...], what: str) -> None:
        pointers, mask = self._places(axes)
        memory.store(pointers, _fitting(value, shape, what), mask)

    def _atomic(self, name: str, offsets: Any, value: Any) -> None:
        if name not in ROWS:
            raise KernelError(f"{name}() is not supported", fix="load, change and store in one program")
        pointers, mask = self._places(self._at(offsets, name))
        tile = cast_to(as_value(_fitting(value, padded_shape(self.block_shape), name)), self.dtype)
        ROWS[name](pointers, tile, mask=mask, sem="relaxed")


def store_block(
    base: Value,
    shape: Sequence[Scalar],
    strides: Sequence[Scalar],
    offsets: Sequence[Value],
    block_shape: Sequence[int],
    value: Value,
    is_added: bool = False,
) -> None:
    """Write, or add, a block through pointers, as methods of a descriptor do where nothing else can."""
    axes = _axes(offsets, block_shape)
    pointers, mask = _addresses(base, strides, axes), _inside(shape, axes, range(len(axes)))
    if is_added:
        ROWS["atomic_add"](pointers, value, mask=mask, sem="relaxed")
    else:
        memory.store(pointers, value, mask)


def _fitting(value: Any, shape: tuple[int, ...], what: str) -> Any:
    tile = as_value(value, f"{what}(): the value")
    if tile.type.shape not in ((), shape):
        fix = "give it the shape of the descriptor's block"
        raise KernelError(f"{what}(): the value is {tile.type}, the block {list(shape)}", fix=fix)
    return value if is_number(value) else broadcast_value(tile, shape)


@op("descriptor")
def make_tensor_descriptor(base: Any, shape: Any, strides: Any, block_shape: Any, padding_option: Any = "zero") -> Any:
    """A descriptor of the array of `shape` and `strides` at `base`, of which `block_shape` is one access.

    `d.load(offsets)` pads with zeros, or with `padding_option="nan"` NaN; `d.store(offsets, value)` leaves out what is
    outside. The last stride is 1. A size of the block that is no power of two is padded to the next one: what is loaded
    has padding behind, which a store leaves out.
    """
    what = "make_tensor_descriptor"
    base = _base(base, what)
    extents, steps = _integers(shape, "shape", what), _integers(strides, "strides", what)
    rank = len(extents)
    if not 1 <= rank <= MAX_RANK:
        raise KernelError(f"{what}(): {rank} axes, not 1 to {MAX_RANK}", fix="join axes, or use pointers")
    _same_rank(rank, what, strides=steps)
    if not (is_number(steps[-1]) and steps[-1] == 1):
        fix = "use `tl.make_block_ptr` or pointers for other strides"
        raise KernelError(f"{what}(): the last stride must be the constant 1, got {describe(steps[-1])}", fix=fix)
    descriptor = TensorDescriptor(
        base, extents, steps, _block_shape(block_shape, rank, what, is_padded=True), padding_option or "zero"
    )
    _filler(descriptor.padding, descriptor.dtype, what)
    return descriptor


def _descriptor(desc: Any, what: str) -> TensorDescriptor:
    if isinstance(desc, TensorDescriptor):
        return desc
    fix = "make one with `tl.make_tensor_descriptor`"
    raise KernelError(f"{what}(): needs a tensor descriptor, got {describe(desc)}", fix=fix)


@op("descriptor")
def load_tensor_descriptor(desc: Any, offsets: Any) -> Value:
    """The block of a descriptor at `offsets`; also written `desc.load(offsets)`."""
    return _descriptor(desc, "load_tensor_descriptor").load(offsets)


@op("descriptor")
def store_tensor_descriptor(desc: Any, offsets: Any, value: Any) -> None:
    """Write a block of a descriptor at `offsets`; also written `desc.store(offsets, value)`."""
    _descriptor(desc, "store_tensor_descriptor").store(offsets, value)
