"""Operands of products whose elements lie side by side along their columns, read as the transpose of what is loaded.

What is known of addresses is known along the last axis, along which threads lie, too. So such a block is loaded turned,
from addresses that are computed turned, and turned back for the product, which takes it either way.
"""

from __future__ import annotations

from dataclasses import replace

from gristmill.compiler.ir import Block, For, Function, Op, Statement, Value, definitions, walk
from gristmill.compiler.op import ROWS
from gristmill.compiler.passes.windows import promised_facts, source_of

SWAPPED = (1, 0)


def run(function: Function) -> None:
    """Turn the loads of products that are wider for it."""
    loads = _loads(function)
    if not loads:
        return
    promised_facts(function)
    turner = _Turner(function)
    for load in [op for op in loads if op.attributes["contiguous"] == 1]:
        turner.turn(load)


def _loads(function: Function) -> list[Op]:
    """What is read for products, of two axes, by addresses that are computed."""
    made = definitions(function.body)
    products = [s for s in walk(function.body) if isinstance(s, Op) and s.row.is_product]
    sources = [source_of(v, made) for op in products for v in op.operands[:2]]
    found = [s for s in sources if isinstance(s, Op) and s.row.effect == "read" and not s.row.is_window]
    return [op for op in dict.fromkeys(found) if len(op.operands[0].type.shape) == 2]


def homes(block: Block) -> dict[Statement, Block]:
    """The block of each statement below `block`."""
    found = dict.fromkeys(block.statements, block)
    for statement in block.statements:
        for inner in statement.blocks:
            found |= homes(inner)
    return found


class _Turner:
    """Makes of values that vary along two axes their transposes, each behind what it is made like."""

    def __init__(self, function: Function):
        self.function = function
        self.made = definitions(function.body)
        self.home = homes(function.body)
        loops = [s for s in self.home if isinstance(s, For)]
        self.carried = {a: (loop, i) for loop in loops for i, a in enumerate(loop.body.arguments[1:])}
        self.twins: dict[Value, Value] = {}

    def turn(self, load: Op) -> None:
        """Read a load's transpose, and turn it, if its elements then follow each other."""
        if not all(self.can_turn(v, set()) for v in load.operands) or not self.counts_down(load.operands[0], set()):
            return
        operands = [self.twin(v) for v in load.operands]
        read = Op(load.row, operands, dict(load.attributes), [_turned(load.results[0])], load.position)
        statements = self.home[load].statements
        place = statements.index(load)
        statements.insert(place, read)
        promised_facts(self.function)
        if read.attributes["contiguous"] == 1:
            statements.remove(read)
            return
        back = Op(ROWS["permute"], list(read.results), {"order": SWAPPED}, load.results, load.position)
        statements[place + 1] = back

    def can_turn(self, value: Value, met: set[Value]) -> bool:
        """Whether the transpose can be computed like the value."""
        if value.type.is_scalar or value in met:
            return True
        met.add(value)
        if value in self.carried:
            loop, i = self.carried[value]
            return all(self.can_turn(v, met) for v in (loop.operands[3 + i], loop.body.yields[i]))
        op = self.made.get(value)
        if not isinstance(op, Op) or len(value.type.shape) != 2:
            return False
        if _is_swap(op) or _is_line(op):
            return True
        return (op.row.is_elementwise or _repeats(op)) and all(self.can_turn(v, met) for v in op.operands)

    def counts_down(self, value: Value, met: set[Value]) -> bool:
        """Whether something counts up along the columns."""
        op = self.made.get(value)
        if value in met:
            return False
        met.add(value)
        if value in self.carried:
            loop, i = self.carried[value]
            return self.counts_down(loop.operands[3 + i], met)
        if not isinstance(op, Op) or value.type.is_scalar:
            return False
        if _is_line(op):
            return bool(op.attributes["axis"] == 1)
        return any(self.counts_down(v, met) for v in op.operands)

    def twin(self, value: Value) -> Value:
        """The transpose of a value that can be turned."""
        if value.type.is_scalar:
            return value
        if value not in self.twins:
            op = self.made.get(value)
            self.twins[value] = self._carried(value) if value in self.carried else self._like(op, value)  # type: ignore
        return self.twins[value]

    def _like(self, op: Op, value: Value) -> Value:
        if _is_swap(op):
            return op.operands[0]
        if op.row.is_promise:  # of the last axis
            return self.twin(op.operands[0])
        operands = op.operands if _is_line(op) else [self.twin(v) for v in op.operands]
        attributes = op.attributes | ({"axis": 1 - op.attributes["axis"]} if _is_line(op) else {})
        result = _turned(value)
        statements = self.home[op].statements
        same = Op(op.row, list(operands), attributes, [result], op.position)
        statements.insert(statements.index(op) + 1, same)
        self.made[result], self.home[same] = same, self.home[op]
        return result

    def _carried(self, value: Value) -> Value:
        """What a loop hands on beside `value`."""
        loop, i = self.carried[value]
        argument, result = _turned(value), _turned(value)
        self.twins[value] = argument
        loop.operands.append(self.twin(loop.operands[3 + i]))
        loop.body.arguments.append(argument)
        loop.results.append(result)
        loop.body.yields.append(self.twin(loop.body.yields[i]))
        self.twins[loop.results[i]] = result
        return argument


def _is_swap(op: Op) -> bool:
    return bool(op.row.is_view) and op.attributes.get("order") == SWAPPED


def _is_line(op: Op) -> bool:
    """Whether it makes a row or a column of a tile of one axis."""
    return bool(op.row.is_view) and "axis" in op.attributes and len(op.operands[0].type.shape) == 1


def _repeats(op: Op) -> bool:
    """Whether it is a scalar everywhere, or a row or column repeated, or the same."""
    shape, result = op.operands[0].type.shape, op.results[0].type.shape
    is_alike = len(shape) == len(result) and all(a in (1, b) for a, b in zip(shape, result, strict=True))
    return bool(op.row.is_view) and "order" not in op.attributes and (not shape or is_alike)


def _turned(value: Value) -> Value:
    rows, columns = value.type.shape
    return Value(replace(value.type, shape=(columns, rows)), value.name)
