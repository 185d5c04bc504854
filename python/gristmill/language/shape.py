"""Changes of shape that move no element in row-major order, repeat elements, or permute axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gristmill.compiler.facts import Facts
from gristmill.compiler.ir import Value
from gristmill.compiler.op import emit, op
from gristmill.errors import KernelError
from gristmill.language.types import as_value, broadcast_value, check_axis, check_shape, common_shape, describe


@op("shape", kind="tile", is_cheap=True, is_view=True)
def expand_dims(input: Any, axis: Any) -> Value:
    """Insert an axis of size 1 before `axis`; also written `x[:, None]`."""
    x = as_value(input, "expand_dims()")
    axis = check_axis(axis, len(x.type.shape) + 1, "expand_dims()")
    shape = x.type.shape[:axis] + (1,) + x.type.shape[axis:]
    return (
        emit("splat", x.type.with_shape(shape), x)
        if x.type.is_scalar
        else emit("expand_dims", x.type.with_shape(shape), x, axis=axis)
    )


@expand_dims.reference
def _(x: Any, *, axis: int) -> Any:
    return np.expand_dims(x, axis) if isinstance(x, np.ndarray) else x.expanded(axis)


@expand_dims.facts
def _(op: Any, x: Facts) -> Facts:
    is_last = op.attributes["axis"] == len(op.results[0].type.shape) - 1
    return Facts(x.each, 1, 1, x.constant) if is_last else x


def _expand_dims_operand(op: Any, layout: Any) -> Any:
    return layout.slice(op.attributes["axis"])


expand_dims.operand_layout = _expand_dims_operand
expand_dims.forward_layout = lambda op, layout: layout.expand(op.attributes["axis"])


@expand_dims.lower
def _(m: Any, op: Any, x: Any) -> Any:
    return m.reshape(op.results[0], x)


@op("shape", kind="tile", is_cheap=True, is_view=True)
def broadcast(input: Any, other: Any) -> Value:
    """Repeat `input` along its axes of size 1 to the shape that it and `other` broadcast to."""
    x, y = as_value(input, "broadcast()"), as_value(other, "broadcast()")
    return broadcast_value(x, common_shape(x.type.shape, y.type.shape, "broadcast()"))


@broadcast.reference
def _(x: Any, *, result: Any) -> Any:
    return np.broadcast_to(x, result.shape) if isinstance(x, np.ndarray) else x.broadcast(result.shape)


@broadcast.facts
def _(op: Any, x: Facts) -> Facts:
    source, target = op.operands[0].type.shape, op.results[0].type.shape
    return Facts(x.divisibility, 1, target[-1], x.constant) if source[-1] != target[-1] else x


def _broadcast_operand(op: Any, layout: Any) -> Any:
    source = op.operands[0].type.shape
    return layout.map_coordinates(
        source, lambda b: tuple(0 if s == 1 else c for c, s in zip(b, source, strict=True))
    ).compact()


broadcast.operand_layout = _broadcast_operand


@broadcast.lower
def _(m: Any, op: Any, x: Any) -> Any:
    return m.broadcast(op.results[0], x)


@op("shape")
def broadcast_to(input: Any, *shape: Any) -> Value:
    """Repeat `input` to `shape`, to which it must broadcast."""
    x, dims = as_value(input, "broadcast_to()"), _shape_arguments(shape, "broadcast_to()")
    if common_shape(x.type.shape, dims, "broadcast_to()") != dims:
        raise KernelError(
            f"broadcast_to(): {x.type} does not broadcast to {list(dims)}", fix="give a shape that it fits"
        )
    return broadcast_value(x, dims)


@broadcast_to.reference
def _(x: Any, *shape: Any) -> Any:
    return np.broadcast_to(x, shape)


def _shape_arguments(shape: tuple[Any, ...], what: str) -> tuple[int, ...]:
    return check_shape(shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape, what)


@op("shape", kind="tile", is_view=True)
def reshape(input: Any, *shape: Any) -> Value:
    """The same elements in row-major order as a block of another shape."""
    x, dims = as_value(input, "reshape()"), _shape_arguments(shape, "reshape()")
    if math.prod(dims) != x.type.elements:
        fix = f"use a shape of {x.type.elements} elements"
        raise KernelError(
            f"reshape(): {describe(x)} has {x.type.elements} elements, {list(dims)} has {math.prod(dims)}", fix=fix
        )
    return x if dims == x.type.shape else emit("reshape", x.type.with_shape(dims), x)


@reshape.reference
def _(x: Any, *, result: Any) -> Any:
    return x.reshape(result.shape)


def _reshape_operand(op: Any, layout: Any) -> Any:
    return layout.reshape(op.operands[0].type.shape)


reshape.operand_layout = _reshape_operand
reshape.forward_layout = lambda op, layout: layout.reshape(op.results[0].type.shape)


@reshape.lower
def _(m: Any, op: Any, x: Any) -> Any:
    return m.reshape(op.results[0], x)


@op("shape", kind="tile", is_view=True)
def permute(input: Any, *dims: Any) -> Value:
    """Reorder the axes: axis i of the result is axis `dims[i]` of the input."""
    x = as_value(input, "permute()")
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    order = tuple(check_axis(d, len(x.type.shape), "permute()") for d in order)
    if sorted(order) != list(range(len(x.type.shape))):
        raise KernelError(
            f"permute(): {list(order)} does not name each axis of {x.type} once", fix="list every axis once"
        )
    return emit("permute", x.type.with_shape(tuple(x.type.shape[i] for i in order)), x, order=order)


@permute.reference
def _(x: Any, *, order: tuple[int, ...]) -> Any:
    return np.transpose(x, order)


def _permute_operand(op: Any, layout: Any) -> Any:
    order = op.attributes["order"]
    return layout.permute([order.index(i) for i in range(len(order))])


permute.operand_layout = _permute_operand
permute.forward_layout = lambda op, layout: layout.permute(op.attributes["order"])


@permute.lower
def _(m: Any, op: Any, x: Any) -> Any:
    return m.permute(op.results[0], x, op.attributes["order"])


@op("shape")
def trans(input: Any, *dims: Any) -> Value:
    """Swap the last two axes, or reorder all as `permute` does."""
    x = as_value(input, "trans()")
    rank = len(x.type.shape)
    if rank < 2:
        raise KernelError(f"trans(): needs two axes or more, got {x.type}", fix="add one, as in `x[:, None]`")
    return permute(x, *(dims or (*range(rank - 2), rank - 1, rank - 2)))


@trans.reference
def _(x: Any, *dims: Any) -> Any:
    return np.swapaxes(x, -1, -2) if not dims else np.transpose(x, dims)
