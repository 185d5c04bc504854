"""Give every tile a layout: one natural layout for each shape, relayouts where an op needs another.

Memory access decides: tiles that are loaded or stored are blocked for wide coalesced access, with the warps along the
axis that is not reduced where there is one. Smaller shapes follow from larger ones by reductions and broadcasts.

What tensor cores compute comes in a layout of its own, and what is computed from it element by element, or reduced from
it, stays there: it is brought to the natural layout where it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

from gristmill.compiler.ir import Block, For, Function, If, Op, Pointer, Statement, Value, While, definitions, walk
from gristmill.compiler.layout import Layout, beside, blocked, common, default_vector
from gristmill.compiler.op import ROWS
from gristmill.compiler.passes.simplify import drop_unused
from gristmill.compiler.tensor import in_words, sums_of
from gristmill.dtypes import Dtype

Shape = tuple[int, ...]


def run(function: Function) -> None:
    """Fill `function.layouts` and insert relayouts."""
    natural, anchored = _natural_layouts(function), _anchored_values(function)
    stored = {v for s in walk(function.body) if isinstance(s, Op) and s.row.lies_in_shared for v in s.results}
    for value in _values(function.body):
        if value.type.shape and value not in stored:
            function.layouts[value] = anchored.get(value) or natural[value.type.shape]
    _Fitter(function, anchored).block(function.body)
    drop_unused(function)


def _anchored_values(function: Function) -> dict[Value, Layout]:
    """The layouts of results of tensor cores, and of what follows from them."""
    found: dict[Value, Layout] = {}
    statements = list(walk(function.body))
    known = -1
    while known != len(found):
        known = len(found)
        for statement in statements:
            if isinstance(statement, Op):
                found |= _anchored_results(statement, function, found)
            else:
                _pass_on(statement, found)
    _Pulled(function, found).run(statements)
    return found


class _Pulled:
    """Gives small tiles that are loaded the layout of what is computed with them, and all between."""

    def __init__(self, function: Function, found: dict[Value, Layout]):
        self.function, self.found = function, found
        self.made = definitions(function.body)
        self.seen: set[tuple[Value, Layout]] = set()  # what has been looked at

    def run(self, statements: list[Statement]) -> None:
        """Begin where an op has operands of which one is laid out by a product and others are not."""
        for op in statements:
            if isinstance(op, Op) and op.row.is_elementwise and op.results[0] in self.found:
                for value in op.operands:
                    if value not in self.found:
                        self._pull(value, self.found[op.results[0]])

    def _pull(self, value: Value, layout: Layout) -> bool:
        """Lay out what the tile follows from, if some of it is loaded; whether it is so."""
        op = self.made.get(value)
        if not isinstance(op, Op) or not value.type.shape or value in self.found or (value, layout) in self.seen:
            return False
        self.seen.add((value, layout))
        is_pulled = self._is_small_load(op)
        if op.row.is_view and op.row.operand_layout:
            is_pulled = self._pull(op.operands[0], op.row.operand_layout(op, layout))
        elif op.row.is_elementwise:
            is_pulled = sum(self._pull(v, layout) for v in op.operands) > 0
        if is_pulled:
            self.found[value] = layout
        return is_pulled

    def _is_small_load(self, op: Op) -> bool:
        is_plain = op.row.goes_by_register and op.row.effect == "read" and not op.attributes.get("volatile")
        return (is_plain or op.row.reads_shared) and op.results[0].type.elements <= self.function.threads


def _anchored_results(op: Op, function: Function, found: dict[Value, Layout]) -> dict[Value, Layout]:
    if op.row.anchor_layout:
        return {op.results[0]: op.row.anchor_layout(op, function.num_warps)}
    if op.row.is_common:
        return {v: common(v.type.shape, function.num_warps, function.num_blocks) for v in op.results}
    source = next((found[v] for v in op.operands if v in found), None)
    if source is None or not op.results or not op.results[0].type.shape:
        return {}
    if op.row.result_layout:
        return dict.fromkeys(op.results, op.row.result_layout(op, source))
    if op.row.forward_layout:
        return dict.fromkeys(op.results, op.row.forward_layout(op, source))
    return dict.fromkeys(op.results, source) if op.row.is_elementwise else {}


def _pass_on(statement: Statement, found: dict[Value, Layout]) -> None:
    """What goes round a loop, or comes out of a branch, has one layout, to which what is given to it is brought."""
    for given, same in _flows(statement):
        layout = next((found[v] for v in (*same, *given) if v in found), None)
        if layout is not None:
            found.update(dict.fromkeys(same, layout))


Values = tuple[Value, ...]


def _flows(statement: Statement) -> list[tuple[Values, Values]]:
    """What a loop or branch carries: for each the values that are given to it, and those that stand for it."""
    given: list[list[Value]]
    inside: list[list[Value]]
    match statement:
        case For():
            given, inside = [statement.operands[3:], statement.body.yields], [statement.body.arguments[1:]]
        case While():
            given = [statement.operands, statement.condition.yields[1:], statement.body.yields]
            inside = [statement.condition.arguments, statement.body.arguments]
        case If():
            given, inside = [statement.then.yields, statement.otherwise.yields], []
        case _:
            return []
    return list(zip(zip(*given, strict=True), zip(*inside, statement.results, strict=True), strict=True))


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
    stored = {v for op in ops if op.row.lies_in_shared for v in op.results}
    shapes = {v.type.shape for v in _values(function.body) if v.type.shape and v not in stored}
    waiting = sorted(shapes, key=lambda s: (s not in accessed, -len(s), -math.prod(s), s))
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
        if op.row.is_for_held:  # halves of products lie side by side, those of other layouts may not
            continue
        source, result = op.operands[0].type.shape, op.results[0].type.shape
        forward = op.row.result_layout or op.row.forward_layout
        if forward and result == shape and source in natural:
            return forward(op, natural[source])
        if op.row.operand_layout and source == shape and result in natural:
            return op.row.operand_layout(op, natural[result])
    return None


def _anchored(shape: Shape, ops: list[Op], num_warps: int, num_blocks: int) -> Layout:
    elements, threads = math.prod(shape), 32 * num_warps * num_blocks
    accesses = [op for op in ops if "width" in op.attributes and op.operands[0].type.shape == shape]
    widths = [op.attributes["width"] for op in accesses]
    vector = default_vector(elements, threads, max(widths, default=1))
    products = [op for op in ops if op.row.anchor_layout and op.results[0].type.shape == shape]
    if products:
        sums = products[0].row.anchor_layout(products[0], num_warps)
        sizes = [t.element.itemsize for op in accesses if isinstance(t := op.operands[0].type.dtype, Pointer)]
        return beside(sums, vector, max(sizes, default=4))
    axis = _unreduced_axis(shape, ops, num_warps)
    return blocked(shape, vector, num_warps, num_blocks=num_blocks, warp_axis=axis)


def _unreduced_axis(shape: Shape, ops: list[Op], num_warps: int) -> int | None:
    reduced = {op.attributes["axis"] for op in ops if op.row.result_layout and op.operands[0].type.shape == shape}
    free = [a for a in range(len(shape)) if a not in reduced and shape[a] >= num_warps]
    return free[0] if reduced and free else None


MOST_AGAIN = 8  # ops behind each other that are made again


class _Fitter:
    """Gives each op its operands in the layout that it needs: moved, or computed again where that is cheap."""

    def __init__(self, function: Function, anchored: Container[Value]):
        self.layouts, self.anchored = function.layouts, anchored
        self.num_warps = function.num_warps
        self.made = definitions(function.body)
        self.again: dict[tuple[Value, Layout, int], Value] = {}  # what one op has been given

    def block(self, block: Block) -> None:
        statements: list[Statement] = []
        for statement in block.statements:
            if isinstance(statement, Op):
                statements += self._op(statement)
                continue
            for inner in statement.blocks:
                self.block(inner)
            statements += self._fit_flows(statement)
            statements.append(statement)
        block.statements[:] = statements

    def _fit_flows(self, statement: Statement) -> list[Op]:
        """Bring what a loop begins with and what blocks yield to the layout of what they become."""
        self.again.clear()
        before: list[Op] = []
        lists: list[tuple[list[Value], list[Value], list[Any]]] = []
        match statement:
            case For():
                lists.append((statement.operands, [*statement.operands[:3], *statement.body.arguments[1:]], before))
                lists.append((statement.body.yields, statement.results, statement.body.statements))
            case While():
                lists.append((statement.operands, statement.condition.arguments, before))
                carried = [statement.condition.yields[0], *statement.body.arguments]
                lists.append((statement.condition.yields, carried, statement.condition.statements))
                lists.append((statement.body.yields, statement.condition.arguments, statement.body.statements))
            case If():
                lists += [(block.yields, statement.results, block.statements) for block in statement.blocks]
        for given, needed, where in lists:
            for i, (value, like) in enumerate(zip(given, needed, strict=True)):
                if value in self.layouts:
                    given[i] = self._in(self.layouts[like], value, statement, where)
        return before

    def _op(self, op: Op) -> list[Op]:
        self.again.clear()
        before: list[Op] = []
        for i, layout in enumerate(self._needed(op)):
            if layout is not None:
                op.operands[i] = self._in(layout, op.operands[i], op, before)
        after: list[Op] = []
        if op.row.result_layout:
            given = op.row.result_layout(op, self.layouts[op.operands[0]])
            for i, result in enumerate(op.results):
                if result in self.layouts and given != self.layouts[result]:
                    op.results[i] = Value(result.type, result.name)
                    self.layouts[op.results[i]] = given
                    after.append(Op(ROWS["relayout"], [op.results[i]], {}, [result], op.position))
        return [*before, op, *after]

    def _needed(self, op: Op) -> list[Layout | None]:
        """The layout in which an op needs each operand; None where any will do."""
        result = next((v for v in op.results if v in self.layouts), None)
        if op.row.anchor_layout:
            return [self._held(op), *[None] * (len(op.operands) - 2), self.layouts[op.results[0]]]
        if op.row.is_common:
            return [None] * len(op.operands)
        if op.row.forward_layout and not op.row.operand_layout and result is not None:  # others go along with the first
            return [self.layouts[result], *[None] * (len(op.operands) - 1)]
        if op.row.operand_layout and result is not None:
            return [op.row.operand_layout(op, self.layouts[result])] * len(op.operands)
        like = op.operands[0] if op.operands and (op.row.result_layout or result is None) else result
        if self._is_small_store(op) or self._is_added(op):
            like = op.operands[1]
        if like not in self.layouts:
            like = next((v for v in op.operands if v in self.layouts), None)
        if like is None or op.row.lies_in_shared:
            return [None] * len(op.operands)
        layout = self.layouts[like]
        if op.row.fills_shared and layout.vector_width() < op.attributes["width"]:
            layout = blocked(like.type.shape, op.attributes["width"], self.num_warps)
        return [layout if v.type.shape == like.type.shape else None for v in op.operands]

    def _held(self, product: Op) -> Layout | None:
        """The layout of the words that a product holds, which is that of sums of such a shape."""
        if not product.attributes.get("is_held"):
            return None
        (rows, words), dtype = product.operands[0].type.shape, product.operands[1].type.dtype
        assert isinstance(dtype, Dtype)
        return in_words(sums_of(product.attributes, dtype, (rows, 2 * words), self.num_warps))

    def _is_added(self, op: Op) -> bool:
        """Whether elements are added in memory one by one, of a tile that lies as a product's sums do."""
        is_alone = op.row.effect == "update" and op.attributes.get("is_used") is False and op.attributes["width"] == 1
        return is_alone and op.operands[1] in self.anchored

    def _is_small_store(self, op: Op) -> bool:
        """Whether a tile is so small that addresses go to where it lies."""
        if not op.row.goes_by_register or op.row.effect != "write" or op.operands[1] not in self.layouts:
            return False
        return op.operands[1].type.elements <= 32 * self.num_warps

    def _in(self, layout: Layout, value: Value, near: Statement, before: list[Any]) -> Value:
        """The same tile in `layout`, by ops appended to `before`."""
        while value in self.layouts and self.layouts[value] != layout and self._is_moved(value):
            value = self.made[value].operands[0]
        if value not in self.layouts or self.layouts[value] == layout:
            return value
        key = value, layout, id(before)
        if key in self.again:
            return self.again[key]
        made = self.made.get(value)
        assert not (isinstance(made, Op) and made.attributes.get("is_apart")), (
            "lanes hold parts: they lie where they are"
        )
        result = Value(value.type, value.name)
        self.layouts[result] = layout
        if isinstance(made, Op) and self._is_made_again(layout, value, made):
            needed = made.row.operand_layout(made, layout) if made.row.operand_layout else layout
            operands = [self._in(needed, operand, near, before) for operand in made.operands]
            before.append(Op(made.row, operands, dict(made.attributes), [result], near.position, made.blocks))
        else:
            before.append(Op(ROWS["relayout"], [value], {}, [result], near.position))
        self.made[result] = before[-1]
        self.again[key] = result
        return result

    def _is_moved(self, value: Value) -> bool:
        made = self.made.get(value)
        return isinstance(made, Op) and made.row.is_relayout

    def _is_made_again(self, layout: Layout, value: Value, made: Op) -> bool:
        """Whether moving what the tile is made of costs less: addresses, and what follows from smaller tiles."""
        if self._is_free(value) or (value.type.is_pointer and made.row.is_cheap):
            return True
        return self._moved(layout, value) < value.type.elements

    def _moved(self, layout: Layout, value: Value, depth: int = 0) -> int:
        """How many elements have to be moved to have the tile in `layout`, if it is made again where that is fewer."""
        while self.layouts.get(value) != layout and self._is_moved(value):
            value = self.made[value].operands[0]
        made = self.made.get(value)
        if not value.type.shape or self.layouts.get(value) == layout or self._is_free(value):
            return 0
        if not isinstance(made, Op) or made.row.effect or depth == MOST_AGAIN:
            return value.type.elements
        is_seen_through = (made.row.is_view or made.row.branches) and made.row.operand_layout
        if not (is_seen_through or made.row.is_elementwise):
            return value.type.elements
        needed = made.row.operand_layout(made, layout) if made.row.operand_layout else layout
        return min(value.type.elements, sum(self._moved(needed, v, depth + 1) for v in set(made.operands)))

    def _is_free(self, value: Value) -> bool:
        """Whether computing the tile again costs less than moving it: it follows from scalars by cheap ops."""
        made = self.made.get(value)
        if not value.type.shape:
            return True
        is_cheap = isinstance(made, Op) and made.row.is_cheap and not made.row.effect
        return is_cheap and all(self._is_free(operand) for operand in made.operands)  # type: ignore[union-attr]
