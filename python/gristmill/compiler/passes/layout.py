"""Give every tile a layout: one natural layout for each shape, relayouts where an op needs another.

Memory access decides: tiles that are loaded or stored are blocked for wide coalesced access, with the warps along the
axis that is not reduced where there is one. Smaller shapes follow from larger ones by reductions and broadcasts.
"""

from __future__ import annotations

from gristmill.compiler.ir import Block, For, Function, If, Op, Value, walk
from gristmill.compiler.layout import Layout, blocked, default_vector
from gristmill.compiler.op import ROWS

Shape = tuple[int, ...]


def run(function: Function) -> None:
    """Fill `function.layouts` and insert relayouts."""
    natural = _natural_layouts(function)
    for value in _values(function.body):
        if value.type.shape:
            function.layouts[value] = natural[value.type.shape]
    _insert_relayouts(function.body, function)


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


def _insert_relayouts(block: Block, function: Function) -> None:
    statements = []
    for statement in block.statements:
        if isinstance(statement, (For, If)) or statement.blocks:
            for inner in statement.blocks:
                _insert_relayouts(inner, function)
            statements.append(statement)
        else:
            assert isinstance(statement, Op)
            statements += _fitted(statement, function)
    block.statements[:] = statements


def _fitted(op: Op, function: Function) -> list[Op]:
    layouts = function.layouts
    before: list[Op] = []
    if op.row.operand_layout:
        for i, operand in enumerate(op.operands):
            if operand not in layouts:
                continue
            needed = op.row.operand_layout(op, layouts[op.results[0]])
            if needed != layouts[operand]:
                before.append(_relayout(operand, needed, op, layouts))
                op.operands[i] = before[-1].results[0]
    after: list[Op] = []
    if op.row.result_layout:
        given = op.row.result_layout(op, layouts[op.operands[0]])
        for i, result in enumerate(op.results):
            if result in layouts and given != layouts[result]:
                op.results[i] = Value(result.type, result.name)
                after.append(_relayout(op.results[i], layouts[result], op, layouts, result))
                layouts[op.results[i]] = given
    return [*before, op, *after]


def _relayout(source: Value, layout: Layout, near: Op, layouts: dict[Value, Layout], result: Value | None = None) -> Op:
    result = result or Value(source.type, source.name)
    layouts[result] = layout
    return Op(ROWS["relayout"], [source], {}, [result], near.position)
