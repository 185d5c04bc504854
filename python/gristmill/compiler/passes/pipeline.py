"""Fill shared memory ahead of the loops that multiply from it: what a step needs is copied while earlier ones compute.

A loop whose tiles go from global memory straight to shared memory gets a ring of slots for each. The ops that lead to
the addresses make a loop of their own, which runs some steps ahead: once before the loop for each of the first slots,
and then one step of it for each step of the loop. A copy past the loop's end does not take place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, For, Function, Op, Statement, Tile, Value, uses
from gristmill.compiler.op import ROWS, Builder, building, current
from gristmill.compiler.passes.simplify import drop_unused
from gristmill.language import elementwise as ew
from gristmill.language.types import constant

COPY_BYTES = (4, 8, 16)


def run(function: Function) -> None:
    """Pipeline every innermost loop that can be."""
    _block(function.body, function)
    drop_unused(function)


def _block(block: Block, function: Function) -> None:
    statements: list[Statement] = []
    for statement in block.statements:
        for inner in statement.blocks:
            _block(inner, function)
        plan = _plan(statement, function) if isinstance(statement, For) else None
        statements += _Pipeline(plan, function).statements() if plan else [statement]
    block.statements[:] = statements


@dataclass
class Plan:
    """A loop, its loads that go to shared memory, and what leads to their addresses: ops, and places carried round."""

    loop: For
    loads: list[tuple[Op, Op]]  # and the ops that share them
    ahead: list[Op]
    carried: list[int]
    stages: int


def _plan(loop: For, function: Function) -> Plan | None:
    if not all(isinstance(s, Op) for s in loop.body.statements):
        return None
    made = {v: s for s in loop.body.statements if isinstance(s, Op) for v in s.results}
    counts = uses(function.body)
    loads: list[tuple[Op, Op]] = []
    for op in loop.body.statements:
        if isinstance(op, Op) and "is_turned" in op.attributes:
            source = made.get(op.operands[0])
            if source is not None and _can_copy(source, made) and counts[source.results[0]] == 1:
                loads.append((source, op))
    slices = {load: _ahead(load.operands[:2], loop, made) for load, _ in loads}
    loads = [(load, share) for load, share in loads if slices[load] is not None]
    stages = _stages(loop, loads, function)
    if not loads or stages < 2:
        return None
    needed = set().union(*(slices[load] for load, _ in loads))  # type: ignore[arg-type]
    ahead = [s for s in loop.body.statements if isinstance(s, Op) and needed & set(s.results)]
    carried = [i for i, v in enumerate(loop.body.arguments[1:]) if v in needed]
    return Plan(loop, loads, ahead, carried, stages)


def _stages(loop: For, loads: list[tuple[Op, Op]], function: Function) -> int:
    """As many as the loop or the kernel asks for, fewer where they do not fit."""
    size = sum(load.results[0].type.elements * load.results[0].type.dtype.itemsize for load, _ in loads)
    asked = loop.attributes.get("num_stages") or function.num_stages
    return min(asked, function.shared_bytes // size) if size else 0


def _can_copy(load: Op, made: dict[Value, Op]) -> bool:
    """Whether a load is one of words side by side that come as they are, or as 0."""
    if load.row.effect != "read" or load.attributes.get("volatile") or not load.operands[0].type.shape:
        return False
    dtype = load.results[0].type.dtype
    size = load.attributes.get("width", 1) * dtype.itemsize
    return size in COPY_BYTES and all(_is_zero(value, made) for value in load.operands[2:])


def _is_zero(value: Value, made: dict[Value, Op]) -> bool:
    op = made.get(value)
    if op is not None and op.row.is_view:
        return _is_zero(op.operands[0], made)
    return op is not None and op.attributes.get("value") == 0


def _ahead(values: list[Value], loop: For, made: dict[Value, Op]) -> set[Value] | None:
    """What the values follow from inside the loop, round it too; None where that is more than arithmetic."""
    found: set[Value] = set()
    pending, carried = list(values), loop.body.arguments[1:]
    while pending:
        value = pending.pop()
        if value in found:
            continue
        if value in carried:
            pending.append(loop.body.yields[carried.index(value)])
        elif value in made:
            op = made[value]
            if op.row.effect or op.blocks or not (op.row.is_elementwise or op.row.is_view or op.row.is_cheap):
                return None
            pending += op.operands
        else:
            continue
        found.add(value)
    return found


@dataclass
class _State:
    """Where the copies are: the step's index, what they carry, and the slot that comes next."""

    index: Value
    carried: list[Value]
    mapping: dict[Value, Value] = field(default_factory=dict)


class _Pipeline:
    def __init__(self, plan: Plan, function: Function):
        self.plan, self.function = plan, function
        self.loop = plan.loop
        self.open = self._open() if plan.stages > 2 else []
        self.ahead = plan.stages - (2 if self.open else 1)  # steps that copies are: one slot more is read while open
        self.rings: list[Value] = []

    def statements(self) -> list[Statement]:
        block, loop = Block(), self.loop
        with building(Builder(block)) as builder:
            builder.position = loop.position
            for load, share in self.plan.loads:
                tile = Tile(load.results[0].type.dtype, load.results[0].type.shape)
                self.rings.append(ROWS["ring"](self.plan.stages, tile, share.attributes["is_turned"]))
            state = _State(loop.operands[0], [loop.operands[3 + i] for i in self.plan.carried])
            for slot in range(self.ahead):
                state = self._copies(state, constant(slot, dt.i32))
            read = constant(0, dt.i32)
        pipelined = self._loop([state.index, read, *state.carried])
        settled = [self._settled(pipelined, place) for place in self.open]
        return [*block.statements, pipelined, *settled]

    def _open(self) -> list[int]:
        """Places in what the loop carries of sums to which a warpgroup's product of each step is added, and no more."""
        body = self.loop.body
        counts = uses(body)
        ops = [s for s in body.statements if isinstance(s, Op)]
        products = [op for op in ops if op.attributes.get("by_groups")]
        found = []
        for op in products:
            own = op.operands[-1]
            place = body.yields.index(op.results[0]) if op.results[0] in body.yields else -1
            is_alone = place >= 0 and body.arguments[1 + place] is own and counts[own] == counts[op.results[0]] == 1
            found += [place] if is_alone else []
        return found if len(found) == len(products) else []

    def _settled(self, loop: For, place: int) -> Op:
        """Behind the loop its sums are waited for."""
        product = next(s for s in loop.body.statements if loop.body.yields[place] in s.results)
        assert isinstance(product, Op)
        product.attributes["is_open"] = True
        result = loop.results[place]
        loop.results[place] = Value(result.type, result.name)
        return Op(ROWS["settle"], [loop.results[place]], {}, [result], loop.position)

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
        for (load, _), ring in zip(self.plan.loads, self.rings, strict=True):
            pointers, *mask = (mapping.get(v, v) for v in load.operands[:2])
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
            views = {s.results[0]: ROWS["slot"](r, read) for (_, s), r in zip(self.plan.loads, self.rings, strict=True)}
            last = self.plan.stages - 1
            behind = self.plan.stages - self.ahead
            write = ew.where(ew.lt(read, behind), ew.add(read, self.ahead), ew.sub(read, behind))
            state = self._copies(_State(index, carried), write)
            following = ew.where(ew.eq(read, last), 0, ew.add(read, 1))
        gone = {op for pair in self.plan.loads for op in pair}
        for statement in loop.body.statements:
            if statement not in gone:
                statement.operands[:] = [views.get(v, v) for v in statement.operands]
                body.statements.append(statement)
        body.yields = [*loop.body.yields, state.index, following, *state.carried]
        results = [*loop.results, *(Value(v.type) for v in initial)]
        return For([*loop.operands, *initial], body, results, dict(loop.attributes), loop.position)


def _repeat(op: Op, mapping: dict[Value, Value]) -> None:
    """The op once more, of what its operands stand for."""
    results = [Value(v.type, v.name) for v in op.results]
    operands = [mapping.get(v, v) for v in op.operands]
    current().block.statements.append(Op(op.row, operands, dict(op.attributes), results, op.position))
    mapping.update(zip(op.results, results, strict=True))
