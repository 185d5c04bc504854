"""Ops that move elements: joins, splits, flips, gathers, sorts and histograms."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Tile, Value
from gristmill.compiler.layout import Layout
from gristmill.compiler.op import emit, emit_several, op
from gristmill.errors import KernelError
from gristmill.language import bits
from gristmill.language import elementwise as ew
from gristmill.language.index import arange
from gristmill.language.reduce import reduce
from gristmill.language.shape import broadcast_to, expand_dims, permute, reshape
from gristmill.language.types import (
    as_value,
    broadcast_pair,
    broadcast_value,
    check_axis,
    check_power_of_two,
    describe,
    promoted,
)


def _block(x: Any, what: str) -> Value:
    value = as_value(x, what)
    if value.type.is_scalar:
        raise KernelError(f"{what}: needs a block, got {value.type}", fix="make one, as in `tl.full((1,), x, x.dtype)`")
    return value


# -- pairs along a new last axis


def is_pointer(x: Any) -> bool:
    """Whether `x` is a tile of addresses."""
    return isinstance(x, Value) and x.type.is_pointer


def _with_pairs(layout: Layout) -> Layout:
    """Each thread holds both halves of its pairs, in neighbouring registers."""
    wide = layout.expand(len(layout.shape))
    shape = (*layout.shape, 2)
    return Layout(shape, ((0,) * len(layout.shape) + (1,), *wide.reg), wide.lane, wide.warp, wide.block)


@op("shape", kind="tile")
def join(a: Any, b: Any) -> Value:
    """A block with a new last axis of size 2: `a` at 0, `b` at 1; they are promoted and broadcast to each other."""
    x, y = broadcast_pair(a, b, "join()") if is_pointer(a) and is_pointer(b) else promoted(a, b, what="join()")
    if x.type.is_scalar:
        return reshape(join(broadcast_value(x, (1,)), broadcast_value(y, (1,))), (2,))
    return emit("join", Tile(x.type.dtype, (*x.type.shape, 2)), x, y)


@join.reference
def _(x: Any, y: Any) -> Any:
    return np.stack([x, y], -1)


join.operand_layout = lambda op, layout: layout.slice(len(layout.shape) - 1)
join.forward_layout = lambda op, layout: _with_pairs(layout)


@join.lower
def _(m: Any, op: Any, x: Any, y: Any) -> Any:
    return m.join(op.results[0], x, y)


@op("shape", kind="tile")
def split(a: Any) -> Any:
    """The two blocks that lie at 0 and at 1 of the last axis, whose size is 2."""
    x = _block(a, "split()")
    if x.type.shape[-1] != 2:
        fix = "reshape it, as in `tl.reshape(x, (n, 2))`"
        raise KernelError(f"split(): the last axis must have size 2, got {x.type}", fix=fix)
    if len(x.type.shape) == 1:
        return tuple(reduce(half, 0, _first) for half in split(reshape(x, (1, 2))))
    half = x.type.with_shape(x.type.shape[:-1])
    return tuple(emit_several("split", [half, half], [x]))


def _first(a: Any, b: Any) -> Any:
    return a


@split.reference
def _(x: Any) -> Any:
    return x[..., 0], x[..., 1]


split.operand_layout = lambda op, layout: _with_pairs(layout)
split.forward_layout = lambda op, layout: layout.slice(len(layout.shape) - 1)


@split.lower
def _(m: Any, op: Any, x: Any) -> Any:
    return m.split(op.results, x)


@op("shape")
def interleave(a: Any, b: Any) -> Value:
    """Alternate the elements of two blocks along their last axis: a[0], b[0], a[1], b[1], ..."""
    pairs = join(a, b)
    shape = pairs.type.shape
    return pairs if len(shape) == 1 else reshape(pairs, (*shape[:-2], 2 * shape[-2]))


@op("shape")
def cat(input: Any, other: Any, can_reorder: Any = False, dim: Any = 0) -> Value:
    """One block after the other along `dim`; elements keep their order whatever `can_reorder` says."""
    x, y = _block(input, "cat()"), _block(other, "cat()")
    if x.type.shape != y.type.shape:
        raise KernelError(f"cat(): the blocks differ in shape: {x.type} and {y.type}", fix="make them equal")
    rank, axis = len(x.type.shape), check_axis(dim, len(x.type.shape), "cat()")
    pairs = permute(join(x, y), *range(axis), rank, *range(axis, rank))
    shape = x.type.shape
    return reshape(pairs, (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]))


# -- the same axis in another order


@op("internal", kind="tile")
def exchange(input: Any, axis: Any, mask: Any) -> Value:
    """Element i along `axis` is element i ^ mask of the input."""
    x = _block(input, "exchange()")
    return emit("exchange", x.type, x, axis=axis, mask=mask)


@exchange.reference
def _(x: Any, *, axis: int, mask: int) -> Any:
    return np.take(x, np.arange(x.shape[axis]) ^ mask, axis)


@exchange.lower
def _(m: Any, op: Any, x: Any) -> Any:
    return m.exchange(op.results[0], x, op.attributes["axis"], op.attributes["mask"])


@op("shape")
def flip(x: Any, dim: Any = None) -> Value:
    """The elements along `dim` in reverse; None: along all axes."""
    value = _block(x, "flip()")
    rank = len(value.type.shape)
    for axis in range(rank) if dim is None else [check_axis(dim, rank, "flip()")]:
        value = exchange(value, axis, value.type.shape[axis] - 1)
    return value


@op("shape", kind="tile")
def gather(src: Any, index: Any, axis: Any) -> Value:
    """The elements of `src` at `index` along `axis`: as numpy's take_along_axis; other axes agree. No bounds check."""
    x, places = _block(src, "gather()"), _block(index, "gather()")
    axis = check_axis(axis, len(x.type.shape), "gather()")
    if not places.type.dtype.is_int:
        raise KernelError(f"gather(): the index must be integers, got {places.type}", fix="use `.to(tl.int32)`")
    rest = [s[:axis] + s[axis + 1 :] for s in (x.type.shape, places.type.shape)]
    if rest[0] != rest[1] or len(x.type.shape) != len(places.type.shape):
        fix = "broadcast the index along the other axes"
        raise KernelError(f"gather(): {x.type} and {places.type} differ beside axis {axis}", fix=fix)
    return emit("gather", x.type.with_shape(places.type.shape), x, places, axis=axis)


@gather.reference
def _(x: Any, index: Any, *, axis: int) -> Any:
    return np.take_along_axis(x, index.astype(np.int64), axis)


@gather.lower
def _(m: Any, op: Any, x: Any, index: Any) -> Any:
    return m.gather(op.results[0], x, index, op.attributes["axis"])


def _less(a: Value, b: Value) -> Value:
    """a comes before b: NaN after all numbers."""
    smaller = ew.lt(a, b)
    if not a.type.dtype.is_float:
        return smaller
    return bits.or_(smaller, bits.and_(ew.ne(b, b), ew.eq(a, a)))


def _last_axis(x: Value, dim: Any, what: str) -> int:
    last = len(x.type.shape) - 1
    axis = last if dim is None else check_axis(dim, last + 1, what)
    if axis != last:
        raise KernelError(f"{what}: sorts along the last axis, got {axis}", fix="use `tl.trans` before and after")
    return axis


def _along(size: int, shape: tuple[int, ...]) -> Value:
    """Each element's coordinate along the last axis."""
    places = arange(0, size)
    for _ in shape[1:]:
        places = expand_dims(places, 0)
    return broadcast_to(places, shape)


@op("sort")
def sort(x: Any, dim: Any = None, descending: Any = False) -> Value:
    """The elements along the last axis in ascending (or descending) order; NaN come last when ascending."""
    value = _block(x, "sort()")
    axis = _last_axis(value, dim, "sort()")
    size = value.type.shape[axis]
    places = _along(size, value.type.shape)
    length = 2
    while length <= size:
        is_up = ew.eq(bits.and_(places, length if length < size else 0), 0)
        is_up = bits.invert(is_up) if descending else is_up
        distance = length // 2
        while distance:
            value = _compare_and_swap(value, places, axis, distance, is_up)
            distance //= 2
        length *= 2
    return value


def _compare_and_swap(x: Value, places: Value, axis: int, distance: int, is_up: Value) -> Value:
    other = exchange(x, axis, distance)
    wants_smaller = ew.eq(ew.eq(bits.and_(places, distance), 0), is_up)
    takes_other = ew.where(wants_smaller, _less(other, x), _less(x, other))
    return ew.where(takes_other, other, x)


@op("sort")
def topk(x: Any, k: Any, dim: Any = None, descending: Any = True) -> Value:
    """The `k` largest elements along the last axis, largest first (the smallest, ascending, if not `descending`)."""
    value = _block(x, "topk()")
    axis = _last_axis(value, dim, "topk()")
    check_power_of_two(k, "topk()")
    if k > value.type.shape[axis]:
        raise KernelError(f"topk(): {k} of {value.type.shape[axis]} elements", fix="use a smaller `k`")
    ordered = sort(value, dim, descending)
    shape = (*value.type.shape[:-1], k)
    return gather(ordered, _along(k, shape), axis)


@op("sort", kind="tile")
def histogram(input: Any, num_bins: Any, mask: Any = None) -> Value:
    """How many elements equal 0, 1, ..., num_bins - 1, as i32; others, and those whose mask is false, count nowhere."""
    x = _block(input, "histogram()")
    if not x.type.dtype.is_int or len(x.type.shape) != 1:
        raise KernelError(f"histogram(): needs one axis of integers, got {x.type}", fix="use `.to(tl.int32)`")
    check_power_of_two(num_bins, "histogram()")
    operands = [x]
    if mask is not None:
        keep = as_value(mask, "histogram()")
        if keep.type.dtype != dt.bool_:
            raise KernelError(
                f"histogram(): the mask must be bools, got {describe(keep)}", fix="compare, as in `x < n`"
            )
        operands.append(broadcast_to(keep, x.type.shape))
    return emit("histogram", Tile(dt.i32, (num_bins,)), *operands)


@histogram.reference
def _(x: Any, mask: Any = None, *, result: Any) -> Any:
    kept = x if mask is None else x[mask]
    wide = kept.astype(object)
    return np.bincount([v for v in wide if 0 <= v < result.shape[0]], minlength=result.shape[0]).astype(np.int32)


@histogram.lower
def _(m: Any, op: Any, x: Any, mask: Any = None) -> Any:
    return m.histogram(op.results[0], x, mask)


@op("index")
def swizzle2d(i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any) -> Any:
    """Where (i, j) of a size_i x size_j grid goes if rows are walked in groups of `size_g`, column by column."""
    place = ew.add(ew.mul(i, size_j), j)
    per_group = ew.mul(size_g, size_j)
    group = ew.floordiv(place, per_group)
    first = ew.mul(group, size_g)
    rows = ew.minimum(ew.sub(size_i, first), size_g)
    within = ew.mod(place, per_group)
    return ew.add(first, ew.mod(within, rows)), ew.floordiv(within, rows)


@op("shape")
def ravel(x: Any, can_reorder: Any = False) -> Value:
    """All elements along one axis, in row-major order."""
    value = _block(x, "ravel()")
    return reshape(value, (value.type.elements,))
