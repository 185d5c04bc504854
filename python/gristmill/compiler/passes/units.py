"""Loads of blocks with axes of one element that are then dropped, as loads of what is left.

A block of an array of matrices is `[1, 1, rows, columns]`, of which a product takes `[rows, columns]`. Read so at once,
from addresses that are computed so, it can be copied straight to shared memory.
"""

from __future__ import annotations

from typing import Any

from gristmill.compiler.ir import Function, Op, Statement, Value, definitions, uses, walk
from gristmill.compiler.op import ROWS, OpRow
from gristmill.compiler.passes.turned import homes

Axes = tuple[int, ...]


def run(function: Function) -> None:
    """Drop axes of one element before loads instead of behind them."""
    made, counts = definitions(function.body), uses(function.body)
    views = [s for s in walk(function.body) if isinstance(s, Op) and _regroups(s)]
    found = [(view, load) for view in views if _is_load(load := made.get(view.operands[0]))]
    dropper = _Dropper(function, made)
    for view, load in found:
        axes = _dropped(load.operands[0].type.shape, view.results[0].type.shape)  # type: ignore[union-attr]
        if axes and counts[view.operands[0]] == 1:
            dropper.drop(load, view, axes)  # type: ignore[arg-type]


def _regroups(op: Op) -> bool:
    """Whether it is a view of the same elements in another shape."""
    is_plain = op.row.is_view and not {"axis", "order"} & set(op.attributes)
    return (
        is_plain and not op.operands[0].type.is_scalar and op.operands[0].type.elements == op.results[0].type.elements
    )


def _is_load(statement: Statement | None) -> bool:
    is_read = isinstance(statement, Op) and statement.row.effect == "read" and not statement.row.is_window
    return is_read and bool(statement.operands[0].type.shape)  # type: ignore[union-attr]


def _dropped(shape: Axes, left: Axes) -> Axes:
    """The axes of one element without which the shape is what is left; none if there are no such axes."""
    axes = tuple(i for i in range(len(shape) - len(left)) if shape[i] == 1)
    return axes if axes and _without(shape, axes) == left else ()


def _without(shape: Axes, axes: Axes) -> Axes:
    return tuple(size for i, size in enumerate(shape) if i not in axes)


class _Dropper:
    """Makes values without some axes, each behind what it is made like."""

    def __init__(self, function: Function, made: dict[Value, Statement]):
        self.made = made
        self.twins: dict[tuple[Value, Axes], Value] = {}
        self.home = homes(function.body)

    def drop(self, load: Op, view: Op, axes: Axes) -> None:
        """Load what is left, and drop the view, if all that leads to the load can be computed so."""
        if not all(self._is_known(v, axes) for v in load.operands):
            return
        operands = [self._twin(v, axes) for v in load.operands]
        statements = self.home[load].statements
        same = Op(load.row, operands, dict(load.attributes), view.results, load.position)
        statements[statements.index(load)] = same
        self.home[same] = self.home[load]
        self.home[view].statements.remove(view)
        self.made[view.results[0]] = same

    def _is_known(self, value: Value, axes: Axes) -> bool:
        op = self.made.get(value)
        if value.type.is_scalar:
            return True
        if not isinstance(op, Op) or op.row.effect:
            return False
        operands = [(v, _below(op, axes)) for v in op.operands]
        return _is_followed(op) and all(not own or self._is_known(v, own) for v, own in operands)

    def _twin(self, value: Value, axes: Axes) -> Value:
        """The value without axes."""
        if value.type.is_scalar or not axes:
            return value
        if (value, axes) not in self.twins:
            op = self.made[value]
            assert isinstance(op, Op)
            self.twins[value, axes] = self._like(op, value, axes)
        return self.twins[value, axes]

    def _like(self, op: Op, value: Value, axes: Axes) -> Value:
        operands = [self._twin(v, _below(op, axes)) for v in op.operands]
        shape = _without(value.type.shape, axes)
        if _is_first(op):
            return self._behind(op, ROWS["constant"], [], {"value": op.attributes["start"]}, value, shape)
        if op.row.is_view and operands[0].type.shape == shape:
            return operands[0]
        attributes = dict(op.attributes)
        if "axis" in attributes:
            attributes["axis"] -= sum(axis < attributes["axis"] for axis in axes)
        return self._behind(op, op.row, operands, attributes, value, shape)

    def _behind(
        self, op: Op, row: OpRow, operands: list[Value], attributes: dict[str, Any], value: Value, shape: Axes
    ) -> Value:
        """What an op of such a row makes, behind another."""
        result = Value(value.type.with_shape(shape), value.name)
        same = Op(row, operands, attributes, [result], op.position)
        statements = self.home[op].statements
        statements.insert(statements.index(op) + 1, same)
        self.home[same], self.made[result] = self.home[op], same
        return result


def _is_followed(op: Op) -> bool:
    """Whether it does with elements, rows and columns the same where an axis of one element is missing."""
    if _is_first(op):
        return True
    if op.row.is_elementwise or "axis" in op.attributes:
        return bool(op.row.is_elementwise or op.row.is_view)
    is_repeated = op.operands and len(op.operands[0].type.shape) in (0, len(op.results[0].type.shape))
    return bool(op.row.is_view and is_repeated and "order" not in op.attributes)


def _is_first(op: Op) -> bool:
    """Whether it counts up, one number from the start on."""
    return not op.operands and "start" in op.attributes and op.results[0].type.elements == 1


def _below(op: Op, axes: Axes) -> Axes:
    """The axes of the operands of an op that are missing if these of its result are."""
    if not op.row.is_view or "axis" not in op.attributes:
        return axes
    own = op.attributes["axis"]
    return tuple(axis - (axis > own) for axis in axes if axis != own)
