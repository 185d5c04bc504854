"""Fill shared memory ahead of the loops that multiply from it: what a step needs is copied while earlier ones compute.

A loop whose tiles go from global memory straight to shared memory gets a ring of slots for each. The ops that lead to
the addresses make a loop of their own, which runs some steps ahead: once before the loop for each of the first slots,
and then one step of it for each step of the loop. A copy past the loop's end does not take place.

Where warpgroups multiply, other warps do the copies instead (`roles`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, For, Function, Op, Statement, Value, definitions, made_in, products_in
from gristmill.compiler.op import ROWS, Builder, building, current
from gristmill.compiler.passes import roles
from gristmill.compiler.passes.offsets import rebased
from gristmill.compiler.passes.plan import Plan, plan_of, settled
from gristmill.compiler.passes.simplify import drop_unused
from gristmill.compiler.passes.windows import windows_of
from gristmill.language import elementwise as ew
from gristmill.language.types import constant


def run(function: Function) -> None:
    """Pipeline every innermost loop that can be: by warps for copies alone where all are fit for it."""
    if not roles.split(function) and not windows_of(function):
        _block(function.body, function)
    drop_unused(function)


def _block(block: Block, function: Function) -> None:
    statements: list[Statement] = []
    for statement in block.statements:
        for inner in statement.blocks:
            _block(inner, function)
        plan = plan_of(statement, function) if isinstance(statement, For) else None
        statements += _Pipeline(plan, function).statements() if plan else [statement]
    block.statements[:] = statements


@dataclass
class _State:
    """Where the copies are: the step's index, and what they carry."""

    index: Value
    carried: list[Value]


class _Pipeline:
    def __init__(self, plan: Plan, function: Function):
        self.plan, self.loop = plan, plan.loop
        self.is_chain = any(op.attributes["is_held"] for op in products_in(plan.loop.body))
        self.made = definitions(function.body) if self.is_chain else {}
        self.open = plan.open_sums() if plan.stages > 2 else []
        self.ahead = plan.stages - (2 if self.open else 1)  # steps that copies are: one slot more is read while open
        self.rings: list[Value] = []

    def statements(self) -> list[Statement]:
        block, loop = Block(), self.loop
        with building(Builder(block)) as builder:
            builder.position = loop.position
            self.rings = self.plan.rings()
            state = _State(loop.operands[0], [loop.operands[3 + i] for i in self.plan.carried])
            for slot in range(self.ahead):
                state = self._copies(state, constant(slot, dt.i32))
            read = constant(0, dt.i32)
        pipelined = self._loop([state.index, read, *state.carried])
        return [*block.statements, pipelined, *(settled(pipelined, place) for place in self.open)]

    def _copies(self, state: _State, slot: Value) -> _State:
        """Begin the copies of a step; returns what the next one starts from."""
        loop = self.loop
        induction, *carried = loop.body.arguments
        mapping = {induction: state.index} | {
            carried[i]: value for i, value in zip(self.plan.carried, state.carried, strict=True)
        }
        guard = ew.lt(state.index, loop.operands[1])
        for op in self.plan.ahead:
            _repeat(op, mapping)
        made = self.made | made_in(current().block)
        for (load, _), ring in zip(self.plan.loads, self.rings, strict=True):
            pointers, *mask = (mapping.get(v, v) for v in load.operands[:2])
            if self.is_chain:  # its sums and words leave few registers for addresses
                pointers = rebased(pointers, made)
            ROWS["copy"](pointers, ring, slot, guard, *mask, **load.attributes)
        ROWS["commit"]()
        following = [loop.body.yields[i] for i in self.plan.carried]
        return _State(ew.add(state.index, loop.operands[2]), [mapping.get(v, v) for v in following])

    def _loop(self, initial: list[Value]) -> For:
        """The loop with the copies' state carried behind its own."""
        loop, body = self.loop, Block(list(self.loop.body.arguments))
        arguments = [Value(v.type, v.name) for v in initial]
        body.arguments += arguments
        index, read, *carried = arguments
        with building(Builder(body)) as builder:
            builder.position = loop.position
            ROWS["arrive"](self.ahead - 1)
            views = self.plan.views(self.rings, read)
            last = self.plan.stages - 1
            behind = self.plan.stages - self.ahead
            write = ew.where(ew.lt(read, behind), ew.add(read, self.ahead), ew.sub(read, behind))
            state = self._copies(_State(index, carried), write)
            following = ew.where(ew.eq(read, last), 0, ew.add(read, 1))
        body.statements += self.plan.reading(views)
        body.yields = [*loop.body.yields, state.index, following, *state.carried]
        results = [*loop.results, *(Value(v.type) for v in initial)]
        return For([*loop.operands, *initial], body, results, dict(loop.attributes), loop.position)


def _repeat(op: Op, mapping: dict[Value, Value]) -> None:
    """The op once more, of what its operands stand for."""
    results = [Value(v.type, v.name) for v in op.results]
    operands = [mapping.get(v, v) for v in op.operands]
    current().block.statements.append(Op(op.row, operands, dict(op.attributes), results, op.position))
    mapping.update(zip(op.results, results, strict=True))
