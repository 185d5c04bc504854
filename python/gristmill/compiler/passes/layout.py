"""Give every tile a layout: one natural layout for each shape, relayouts where an op needs another.

Memory access decides: tiles that are loaded or stored are blocked for wide coalesced access, with the warps along the
axis that is not reduced where there is one. Smaller shapes follow from larger ones by reductions and broadcasts.
"""

from __future__ import annotations

from gristmill.compiler.ir import Block, Function, Op, Statement, Value, definitions, walk
from gristmill.compiler.layout import Layout, blocked, default_vector
from gristmill.compiler.op import ROWS

Shape = tuple[int, ...]


def run(function: Function) -> None:
    """Fill `function.layouts` and insert relayouts."""
    natural = _natural_layouts(function)
    for value in _values(function.body):
        if value.type.shape:
            function.layouts[value] = natural[value.type.shape]
    _Fitter(function).block(function.body)


def _values(block: Block) -> list[Value]:
    found = list(block.arguments)
    for statement in block.statements:
        found += statement.results
        for inner in statement.blocks:
            found += _values(inner)
    return found


def _natural_layouts(function: Function) -> dict[Shape, Layout]:
    """Settle shapes one by one: those that follow from settled ones first, then the largest that memory decides."""
    ops = [s for s in walk(function.body) if isinstance(s, Op)]
    accessed = {op.operands[0].type.shape for op in ops if "width" in op.attributes}
    shapes = {v.type.shape for v in _values(function.body) if v.type.shape}
    waiting = sorted(shapes, key=lambda s: (s not in accessed, -len(s), -_count(s), s))
    natural: dict[Shape, Layout] = {}
    while waiting:
        found = next(((s, d) for s in waiting if (d := _derived(s, ops, natural)) is not None), None)
        shape, layout = found or (waiting[0], _anchored(waiting[0], ops, function.num_warps, function.num_blocks))
        natural[shape] = layout
        waiting.remove(shape)
    return natural


def _derived(shape: Shape, ops: list[Op], natural: dict[Shape, Layout]) -> Layout | None:
    """The layout that a shape has by an op that relates it to a settled one."""
    for op in ops:
        if not op.results or not op.operands or op.operands[0].type.shape == op.results[0].type.shape:
            continue
        source, result = op.operands[0].type.shape, op.results[0].type.shape
        forward = op.row.result_layout or op.row.forward_layout
        if forward and result == shape and source in natural:
            return forward(op, natural[source])
        if op.row.operand_layout and source == shape and result in natural:
            return op.row.operand_layout(op, natural[result])
    return None


def _anchored(shape: Shape, ops: list[Op], num_warps: int, num_blocks: int) -> Layout:
    elements, threads = _count(shape), 32 * num_warps * num_blocks
    widths = [op.attributes["width"] for op in ops if "width" in op.attributes and op.operands[0].type.shape == shape]
    vector = default_vector(elements, threads, max(widths, default=1))
    axis = _unreduced_axis(shape, ops, num_warps)
    return blocked(shape, vector, num_warps, num_blocks=num_blocks, warp_axis=axis)


def _count(shape: Shape) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements


def _unreduced_axis(shape: Shape, ops: list[Op], num_warps: int) -> int | None:
    reduced = {op.attributes["axis"] for op in ops if op.row.result_layout and op.operands[0].type.shape == shape}
    free = [a for a in range(len(shape)) if a not in reduced and shape[a] >= num_warps]
    return free[0] if reduced and free else None


class _Fitter:
    """Gives each op its operands in the layout that it needs: moved, or computed again where that is cheap."""

    def __init__(self, function: Function):
        self.layouts = function.layouts
        self.made = definitions(function.body)

    def block(self, block: Block) -> None:
        statements: list[Statement] = []
        for statement in block.statements:
            if isinstance(statement, Op):
                statements += self._op(statement)
                continue
            for inner in statement.blocks:
                self.block(inner)
            statements.append(statement)
        block.statements[:] = statements

    def _op(self, op: Op) -> list[Op]:
        before: list[Op] = []
        if op.row.operand_layout:
            for i, operand in enumerate(op.operands):
                if operand in self.layouts:
                    needed = op.row.operand_layout(op, self.layouts[op.results[0]])
                    op.operands[i] = self._in(needed, operand, op, before)
        after: list[Op] = []
        if op.row.result_layout:
            given = op.row.result_layout(op, self.layouts[op.operands[0]])
            for i, result in enumerate(op.results):
                if result in self.layouts and given != self.layouts[result]:
                    op.results[i] = Value(result.type, result.name)
                    self.layouts[op.results[i]] = given
                    after.append(Op(ROWS["relayout"], [op.results[i]], {}, [result], op.position))
        return [*before, op, *after]

    def _in(self, layout: Layout, value: Value, near: Op, before: list[Op]) -> Value:
        """The same tile in `layout`, by ops appended to `before`."""
        if value not in self.layouts or self.layouts[value] == layout:
            return value
        made = self.made.get(value)
        result = Value(value.type, value.name)
        self.layouts[result] = layout
        if isinstance(made, Op) and (self._is_free(value) or (value.type.is_pointer and made.row.is_cheap)):
            needed = made.row.operand_layout(made, layout) if made.row.operand_layout else layout
            operands = [self._in(needed, operand, near, before) for operand in made.operands]
            before.append(Op(made.row, operands, dict(made.attributes), [result], near.position))
        else:
            before.append(Op(ROWS["relayout"], [value], {}, [result], near.position))
        return result

    def _is_free(self, value: Value) -> bool:
        """Whether computing the tile again costs less than moving it: it follows from scalars by cheap ops."""
        made = self.made.get(value)
        if not value.type.shape:
            return True
        is_cheap = isinstance(made, Op) and made.row.is_cheap and not made.row.effect
        return is_cheap and all(self._is_free(operand) for operand in made.operands)  # type: ignore[union-attr]
