"""Where a mask holds for a whole tile, a step of a loop goes without it.

`where(columns < n, x, y)` in a loop over blocks costs a comparison and a choice for each element, though only the last
block, or those on a diagonal, need them. The ends of what is compared are scalars, which tell whether the comparison
holds everywhere: the choice goes under a branch that all threads take together. What is reduced from the chosen tile is
reduced in the branches, each of which is then one run of instructions with what it reads.
"""

from __future__ import annotations

import functools

from gristmill import symbolic
from gristmill.compiler.ir import Block, For, Function, If, Op, Statement, Value, definitions, uses
from gristmill.compiler.op import Builder, building
from gristmill.language import bits
from gristmill.language import elementwise as ew

LEAST = 8  # elements of a thread that a branch is worth
SUMS = (symbolic.Op.ADD, symbolic.Op.SUB)
Ends = tuple[Value, Value]


def run(function: Function) -> None:
    """Put the choices in loops under branches, with all that only they need."""
    _block(function.body, definitions(function.body), function, False)


def _block(block: Block, made: dict[Value, Statement], function: Function, is_loop: bool) -> None:
    statements: list[Statement] = []
    branches: dict[Value, If] = {}
    for statement in block.statements:
        for inner in statement.blocks:
            _block(inner, made, function, isinstance(statement, For))
        found = _branch(statement, made, function) if is_loop and isinstance(statement, Op) else None
        if found:
            branches[statement.results[0]] = found[-1]  # type: ignore[assignment]
        elif isinstance(statement, Op) and _is_reduced(statement) and statement.operands[0] in branches:
            _reduce_inside(branches[statement.operands[0]], statement)
            continue
        statements += found or [statement]
    block.statements[:] = statements
    if is_loop:
        _sink(block)


def _branch(op: Op, made: dict[Value, Statement], function: Function) -> list[Statement] | None:
    """The branches that stand for a choice, one for each part of its mask; None if it is not worth them."""
    if not op.row.is_choice or op.results[0].type.elements < LEAST * function.threads:
        return None
    mask = made.get(op.operands[0])
    if isinstance(mask, Op) and mask.row.is_conjunction:
        between = Value(op.results[0].type, op.results[0].name)
        first = Op(op.row, [mask.operands[0], *op.operands[1:]], {}, [between], op.position)
        second = Op(op.row, [mask.operands[1], between, op.operands[2]], {}, op.results, op.position)
        parts = [_branch(part, made, function) for part in (first, second)]
        return None if None in parts else [s for part in parts for s in part or ()]
    scalars = Block()
    with building(Builder(scalars)) as builder:
        builder.position = op.position
        holds = _Ends(made).holds(op.operands[0])
    if holds is None:
        return None
    result = Value(op.results[0].type, op.results[0].name)
    chosen = Op(op.row, list(op.operands), dict(op.attributes), [result], op.position)
    then, otherwise = Block(yields=[op.operands[1]]), Block(statements=[chosen], yields=[result])
    return [*scalars.statements, If([holds], then, otherwise, op.results, {"is_whole": True}, op.position)]


def _is_reduced(op: Op) -> bool:
    """Whether it goes along an axis of one tile, by a function of its own."""
    return op.row.goes_along_axis and len(op.operands) == 1 and not op.blocks


def _reduce_inside(branch: If, op: Op) -> None:
    place = branch.results.index(op.operands[0])
    for block in branch.blocks:
        results = [Value(v.type, v.name) for v in op.results]
        block.statements.append(Op(op.row, [block.yields[place]], dict(op.attributes), results, op.position))
        block.yields += results
    branch.results += op.results


class _Ends:
    """Emits the least and the greatest element of integer tiles, as far as ops have rules for them.

    Sums wrap. Elements are fewer than a dtype has numbers, so that ends are those of a tile that wraps in part if, and
    only if, they are out of order.
    """

    def __init__(self, made: dict[Value, Statement]):
        self.made = made
        self.ordered: list[Value] = []  # whether ends are in order

    def of(self, value: Value) -> Ends | None:
        op = self.made.get(value)
        if value.type.is_scalar:
            return value, value
        if not isinstance(op, Op):
            return None
        if op.row.is_view:
            return self.of(op.operands[0])
        if op.row.ends_function is None:
            return None
        found = [self.of(v) if op.row.expression in SUMS else self.in_order(v) for v in op.operands]
        return None if None in found else op.row.ends_function(op, *found)

    def in_order(self, value: Value) -> Ends | None:
        """The ends of a tile that does not wrap in part."""
        ends = self.of(value)
        if ends is not None and ends[0] is not ends[1]:
            self.ordered.append(ew.le(*ends))
        return ends

    def holds(self, mask: Value) -> Value | None:
        """Whether the mask does everywhere, as far as that is seen from the ends of what it compares."""
        op = self.made.get(mask)
        if mask.type.is_scalar:
            return mask
        if not isinstance(op, Op):
            return None
        if op.row.is_view:
            return self.holds(op.operands[0])
        if op.row.is_conjunction:
            parts = [self.holds(v) for v in op.operands]
            return None if None in parts else bits.and_(*parts)
        if op.row.predicate not in ("<", "<=", ">", ">=") or not op.operands[0].type.dtype.is_int:
            return None
        left, right = (self.in_order(v) for v in op.operands)
        if left is None or right is None:
            return None
        is_less = op.row.predicate in ("<", "<=")
        return functools.reduce(bits.and_, self.ordered, op.row(left[is_less], right[not is_less]))


def _sink(block: Block) -> None:
    """Move what only one branch needs into it, if it is there for choices."""
    for statement in block.statements[::-1]:
        if isinstance(statement, If) and statement.attributes.get("is_whole"):
            _sink_into(block, block.statements.index(statement), statement)


def _sink_into(block: Block, place: int, branch: If) -> None:
    inner, counts = branch.otherwise, uses(block)
    for i in range(place - 1, -1, -1):
        op = block.statements[i]
        if isinstance(op, Op) and not op.row.effect and op.results and not op.results[0].type.is_scalar:
            own = uses(inner)
            if all(own.get(v, 0) == counts.get(v, 0) > 0 for v in op.results):
                del block.statements[i]
                inner.statements.insert(0, op)
