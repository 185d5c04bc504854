"""Tell all blocks of a cluster at once what each has reduced of its part.

`sum` of a tile of four parts, which four blocks have, is an exchange between them; so is the next one, of what follows
from the first. Where the values of all parts are known before, one exchange brings them all to every block, which then
computes with the few numbers by itself: mean and variance of a row, from the means and spreads of its parts, wait once
for other blocks.
"""

from __future__ import annotations

from gristmill.compiler.ir import Block, Function, Op, Statement, Value, walk
from gristmill.compiler.op import Builder, building
from gristmill.compiler.passes.hold import is_repeatable
from gristmill.language.internal import gathered


def run(function: Function) -> None:
    """Gather small tiles that several reductions of a block follow from."""
    if function.num_blocks > 1:
        for block in [function.body, *(b for s in walk(function.body) for b in s.blocks)]:
            _Parts(function, block).run()


class _Parts:
    """The tiles of a block that have an element for each part, and the reductions of all parts."""

    def __init__(self, function: Function, block: Block):
        self.block, self.most = block, function.num_blocks
        self.made = {v: s for s in block.statements for v in s.results}
        self.users: dict[Value, list[Statement]] = {}
        for statement in block.statements:
            for value in [*statement.operands, *(v for s in _below(statement) for v in s.operands)]:
                self.users.setdefault(value, []).append(statement)
        self.reductions = [s for s in block.statements if isinstance(s, Op) and self._is_of_parts(s)]
        self.known: dict[Value, Value] = {}

    def run(self) -> None:
        """Rewrite the reductions if there are several."""
        if len(self.reductions) < 2:
            return
        wanted: dict[Value, None] = {}
        for op in self.reductions:
            for value in op.operands:
                self._find(value, wanted)
        statements, self.block.statements = self.block.statements, []
        for statement in statements:
            if statement in self.reductions and isinstance(statement, Op):
                self._gather(wanted, statement)
                statement.operands[:] = [self._again(v) for v in statement.operands]
                statement.attributes["is_local"] = True
            self.block.statements.append(statement)

    def _is_of_parts(self, op: Op) -> bool:
        is_small = bool(op.operands) and all(self._is_small(v) for v in op.operands)
        return is_small and op.row.goes_along_axis and all(v.type.is_scalar for v in op.results)

    def _is_small(self, value: Value) -> bool:
        return len(value.type.shape) == 1 and value.type.elements <= self.most

    def _follows(self, value: Value) -> bool:
        """Whether the tile is reduced from parts of a larger one, or computed from such tiles."""
        op = self.made.get(value)
        if not isinstance(op, Op) or not self._is_small(value):
            return False
        return op.row.goes_along_axis or (is_repeatable(op) and any(map(self._follows, op.operands)))

    def _is_inner(self, value: Value) -> bool:
        """Whether only the reductions need it, so that it may be computed behind the exchange."""
        op = self.made[value]
        is_own = isinstance(op, Op) and not op.row.goes_along_axis
        return is_own and all(
            user in self.reductions
            or (isinstance(user, Op) and is_repeatable(user) and self._is_inner(user.results[0]))
            for user in self.users[value]
        )

    def _find(self, value: Value, wanted: dict[Value, None]) -> None:
        """Add the tiles to gather of which `value` can be computed anew."""
        if not self._follows(value):
            return
        if not self._is_inner(value):
            wanted[value] = None
            return
        for operand in self.made[value].operands:
            self._find(operand, wanted)

    def _gather(self, wanted: dict[Value, None], near: Op) -> None:
        """Bring what is there already of `wanted` to all blocks."""
        there = {v for s in self.block.statements for v in s.results}
        values = [v for v in wanted if v in there and v not in self.known]
        if not values:
            return
        with building(Builder(self.block)) as builder:
            builder.position = near.position
            self.known |= zip(values, gathered(values), strict=True)

    def _again(self, value: Value) -> Value:
        """The same tile, computed from what has been gathered."""
        if value in self.known or not self._follows(value):
            return self.known.get(value, value)
        made = self.made[value]
        assert isinstance(made, Op)
        result = Value(value.type, value.name)
        operands = [self._again(v) for v in made.operands]
        self.block.statements.append(Op(made.row, operands, dict(made.attributes), [result], made.position))
        self.known[value] = result
        return result


def _below(statement: Statement) -> list[Statement]:
    return [s for block in statement.blocks for s in walk(block)]
