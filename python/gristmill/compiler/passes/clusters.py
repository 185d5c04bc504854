"""Share a program over the blocks of a cluster: each computes its part of the rows of all products.

The rows of a product's sums are those of its left operand. What has them has a part of them in each block: the blocks
of arrays that are read and written begin as many rows further as the block's rank says. All else is the same in all
blocks. A block of an array that all of them read is cut, too: each lets the hardware copy one part of it, to all.

That pays where reading is slow: four multiprocessors with 64 rows each, and the same 128 columns, read half as much.
"""

from __future__ import annotations

import itertools

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, For, Function, If, Op, Statement, Tile, Value, walk
from gristmill.compiler.op import ROWS, Builder, building
from gristmill.compiler.passes import windows
from gristmill.language import elementwise as ew
from gristmill.language.types import constant
from gristmill.language.windows import tile_of


class Unfit(Exception):
    """The program cannot be shared."""


def run(function: Function) -> None:
    """Share the program if its configuration asks for it, and all that has rows of products can be cut."""
    if function.num_ctas == 1:
        return
    try:
        axes = _Axes(function.body).axes
        _check(function, axes)
    except Unfit:
        function.num_ctas = 1
        return
    for value, axis in axes.items():
        shape = list(value.type.shape)
        shape[axis] //= function.num_ctas
        value.type = Tile(value.type.dtype, tuple(shape))
    _cut(function.body, axes, function.num_ctas)


class _Axes:
    """The axis of each value along which products have rows."""

    def __init__(self, body: Block):
        self.axes: dict[Value, int] = {}
        self.links: dict[Value, list[tuple[Value, dict[int, int]]]] = {}
        self.whole: set[Value] = set()
        for statement in walk(body):
            self._link(statement)
        for op in walk(body):
            if isinstance(op, Op) and op.row.is_product:
                self._mark(op.results[0], 0)
        if not self.axes or self.whole & self.axes.keys():
            raise Unfit

    def _mark(self, value: Value, axis: int) -> None:
        waiting = [(value, axis)]
        while waiting:
            value, axis = waiting.pop()
            if self.axes.get(value, axis) != axis:
                raise Unfit
            if value not in self.axes:
                self.axes[value] = axis
                for other, of_axis in self.links.get(value, []):
                    if axis not in of_axis:
                        raise Unfit
                    waiting.append((other, of_axis[axis]))

    def _link(self, statement: Statement) -> None:
        """Say which values have rows together, and which can have none."""
        if isinstance(statement, For):
            body = statement.body
            for parts in zip(statement.operands[3:], body.arguments[1:], body.yields, statement.results, strict=True):
                self._same(parts)
        elif isinstance(statement, If):
            for result in statement.results:
                self._same([result, *statement.yields_of(result)])
        elif isinstance(statement, Op):
            self._link_op(statement)
        else:
            self.whole |= {*statement.operands, *statement.results}

    def _link_op(self, op: Op) -> None:
        values = [v for v in (*op.operands, *op.results) if not v.type.is_scalar]
        if op.row.is_product and len(op.results[0].type.shape) == 2:
            self._same([op.operands[0], *op.operands[2:], op.results[0]])
            self.whole.add(op.operands[1])
        elif "order" in op.attributes and op.row.is_view:
            (x,), (result,) = op.operands, op.results
            of_axis = {axis: place for place, axis in enumerate(op.attributes["order"])}
            self._pair(x, result, of_axis)
        elif op.row.kind == "elementwise" and len({v.type.shape for v in values}) <= 1:
            self._same(values)
        elif not (_is_even(op) or op.row.is_window):
            self.whole |= set(values)

    def _same(self, values: list[Value] | tuple[Value, ...]) -> None:
        for x, y in itertools.pairwise(values):
            self._pair(x, y, {axis: axis for axis in range(len(x.type.shape))})

    def _pair(self, x: Value, y: Value, of_axis: dict[int, int]) -> None:
        self.links.setdefault(x, []).append((y, of_axis))
        self.links.setdefault(y, []).append((x, {v: k for k, v in of_axis.items()}))


def _is_even(op: Op) -> bool:
    """Whether all elements are one number."""
    return "value" in op.attributes or (op.row.is_view and op.operands[0].type.is_scalar)


def _check(function: Function, axes: dict[Value, int]) -> None:
    """Every part has whole rows, and what is written is written in parts: each by one block."""
    for value, axis in axes.items():
        if value.type.shape[axis] % (windows.ROWS * function.num_ctas):  # parts begin where chunks change places
            raise Unfit
    for op in windows.windows_of(function):
        is_narrow = op.operands[1].type.dtype == dt.i32
        if tile_of(op) in axes and not (is_narrow and op.attributes["block"] == tile_of(op).type.shape):
            raise Unfit
    lasting = [s for s in walk(function.body) if isinstance(s, Op) and s.row.is_lasting]
    if not all(op.row.is_window and op.operands[-1] in axes for op in lasting):
        raise Unfit


def _cut(block: Block, axes: dict[Value, int], ctas: int) -> None:
    """Let blocks of arrays begin at the block's own rows; what has none of them is copied in parts."""
    statements: list[Statement] = []
    for statement in block.statements:
        for inner in statement.blocks:
            _cut(inner, axes, ctas)
        if isinstance(statement, Op) and statement.row.is_window:
            tile = tile_of(statement)
            if tile in axes:
                statements += _moved(statement, axes[tile], ctas)
            elif statement.attributes["block"][-2] % (windows.ROWS * ctas) == 0:
                statement.attributes["parts"] = ctas
        statements.append(statement)
    block.statements[:] = statements


def _moved(op: Op, axis: int, ctas: int) -> list[Statement]:
    """Give a block of an array the rows of this block of the cluster; returns what leads there."""
    shape = list(op.attributes["block"])
    shape[axis] //= ctas
    op.attributes["block"] = tuple(shape)
    place = 1 + 2 * len(shape) + axis
    before = Block()
    with building(Builder(before)) as builder:
        builder.position = op.position
        own = ew.mul(ROWS["cluster_rank"](), constant(shape[axis], dt.i32))
        op.operands[place] = ew.add(op.operands[place], own)
    return before.statements
