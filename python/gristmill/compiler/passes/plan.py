"""Which loops can be pipelined: those whose tiles go from global memory straight to shared memory, for products.

What is copied ahead must be there ahead: nothing that the loop writes, nor what others may write until they say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gristmill.compiler.ir import (
    Block,
    For,
    Function,
    If,
    Op,
    Statement,
    Value,
    addressed,
    is_zero,
    made_in,
    products_in,
    replace_below,
    sources,
    used_below,
    uses,
    walk,
)
from gristmill.compiler.op import ROWS
from gristmill.compiler.tensor import panel_bytes

COPY_BYTES = (4, 8, 16)
MOST_WARPS = 32


Load = tuple[Op, Op]  # and the op that shares it


@dataclass
class Plan:
    """A loop, its loads that go to shared memory, and what leads to their addresses: ops, and places carried round."""

    loop: For
    loads: list[Load]
    ahead: list[Op]
    carried: list[int]
    stages: int

    @property
    def stage_bytes(self) -> int:
        """Of the loads of a step."""
        return sum(slot_elements(load) * load.results[0].type.dtype.itemsize for load, _ in self.loads)

    @property
    def groups(self) -> list[list[Load]]:
        """The loads by the slots that they fill together: products that follow from each other have slots of their own.

        The next step's first product then begins before this step's last one ends.
        """
        products = products_in(self.loop.body)
        if not any(op.attributes["is_held"] for op in products):
            return [self.loads]
        groups: list[list[Load]] = []
        fetched = [load for load in self.loads if is_fetched(load)]
        for load in self.loads:
            own = self._readers(load, products)
            met = [g for g in groups if any(own & self._readers(other, products) for other in g)]
            if load not in fetched:
                groups = [g for g in groups if g not in met] + [[*(x for g in met for x in g), load]]
        return [*groups, fetched] if fetched else groups

    def _readers(self, load: Load, products: list[Op]) -> set[Op]:
        read = views_of({load[1].results[0]}, self.loop.body)
        return {op for op in products if read & set(op.operands)}

    @property
    def windows(self) -> int:
        """How many of the loads the hardware copies."""
        return sum(load.row.is_window for load, _ in self.loads)

    def rings(self) -> list[Value]:
        """Emit the room for each load."""
        return [
            ROWS["ring"](self.stages, load.results[0].type, share.attributes["is_turned"], *room_of(load))
            for load, share in self.loads
        ]

    def views(self, rings: list[Value], slot: Value) -> dict[Value, Value]:
        """What stands in a slot for each tile that the loop has shared."""
        return {s.results[0]: ROWS["slot"](ring, slot) for (_, s), ring in zip(self.loads, rings, strict=True)}

    def reading(self, views: dict[Value, Value]) -> list[Statement]:
        """The loop's statements without the loads, reading what stands for them."""
        gone = {op for pair in self.loads for op in pair}
        rest = [s for s in self.loop.body.statements if s not in gone]
        for statement in rest:
            statement.operands[:] = [views.get(v, v) for v in statement.operands]
        return rest

    def open_sums(self) -> list[int]:
        """Places in what the loop carries of sums to which warpgroups' products are added in each step, and no more.

        None are found if there are other products beside them, or operands in a place, or registers, that the next step
        writes again.
        """
        body = self.loop.body
        kept = [s for s in body.statements if isinstance(s, Op) and (s.row.is_kept or kept_bytes(s))]
        if len(kept) != len(self.loads):
            return []
        counts = uses(body)
        products = [s for s in body.statements if isinstance(s, Op) and s.attributes.get("by_groups")]
        found = []
        for op in products:
            own = op.operands[-1]
            place = body.yields.index(op.results[0]) if op.results[0] in body.yields else -1
            is_alone = (
                not any(op.attributes[how] for how in ("is_promoted", "is_held", "is_taken"))
                and place >= 0
                and body.arguments[1 + place] is own
                and counts[own] == counts[op.results[0]] == 1
            )
            found += [place] if is_alone else []
        return found if len(found) == len(products) else []


def is_fetched(load: Load) -> bool:
    """Whether threads read it from its slot, each what it needs."""
    return len(load[0].results[0].type.shape) == 1


def fetch_small(plan: Plan, function: Function) -> None:
    """Let small tiles that a step of products loads come by slots too: threads read them there when they need them."""
    body, made = plan.loop.body, made_in(plan.loop.body)
    written, links = written_arguments(function.body, function), sources(function.body)
    for op in [s for s in body.statements if isinstance(s, Op) and _is_small(s, function)]:
        ahead = _ahead(op.operands[:2], plan.loop, made)
        if (
            ahead is None
            or not _can_copy(op, made)
            or not _is_apart(addressed(op.operands[0], links, function), written)
        ):
            continue
        kind, position = op.results[0].type, op.position
        shared, fetched = Value(kind, op.results[0].name), Value(kind, op.results[0].name)
        share = Op(ROWS["share"], [op.results[0]], {"is_turned": False}, [shared], position)
        for statement in body.statements:
            replace_below(statement, {op.results[0]: fetched})
        share.operands[:] = op.results
        place = body.statements.index(op) + 1
        body.statements[place:place] = [share, Op(ROWS["fetch"], [shared], {}, [fetched], position)]
        plan.loads.append((op, share))
        plan.ahead += [s for s in body.statements if isinstance(s, Op) and ahead & set(s.results)]


def _is_small(op: Op, function: Function) -> bool:
    is_read = op.row.effect == "read" and op.row.goes_by_register and len(op.operands[0].type.shape) == 1
    return is_read and op.results[0].type.elements <= function.threads


def sink_small(block: Block, function: Function) -> None:
    """Compute what is small where it is needed first: it takes no registers before."""
    for statement in block.statements[::-1]:
        if not isinstance(statement, Op) or not _is_sunk(statement, function):
            continue
        place = block.statements.index(statement)
        results = set(statement.results)
        users = [i for i, s in enumerate(block.statements) if i > place and results & used_below(s)]
        if users and not results & set(block.yields):
            block.statements.insert(users[0], statement)
            del block.statements[place]


def _is_sunk(op: Op, function: Function) -> bool:
    small = op.results and op.operands and max(v.type.elements for v in op.operands) <= function.threads
    is_moved = op.row.is_elementwise or op.row.is_view or op.row.reads_shared
    return bool(small) and is_moved and not op.results[0].type.is_scalar


def views_of(shared: set[Value], block: Block) -> set[Value]:
    """Tiles in shared memory, and their transposes below `block`."""
    turned = [s for s in walk(block) if isinstance(s, Op) and s.row.is_shared_view]
    return shared | {s.results[0] for s in turned if s.operands[0] in shared}


def slot_elements(load: Op) -> int:
    """The room of a tile that is loaded, in elements: of what pads a window at the end there is none."""
    return int(load.attributes.get("elements", load.results[0].type.elements))


def room_of(load: Op) -> tuple[int, int]:
    """The width of the panels in which a tile lies, in bytes, and its room in elements."""
    kind = load.results[0].type
    panel = panel_bytes(kind.shape[-1] * kind.dtype.itemsize)
    return load.attributes.get("panel", panel), slot_elements(load)


def plan_of(loop: For, function: Function) -> Plan | None:
    """How a loop can be pipelined; None if it cannot."""
    if not all(_is_plain(s) for s in loop.body.statements):
        return None
    made = made_in(loop.body)
    counts = uses(function.body)
    loads: list[tuple[Op, Op]] = []
    for op in loop.body.statements:
        if isinstance(op, Op) and "is_turned" in op.attributes:
            source = made.get(op.operands[0])
            is_copied = isinstance(source, Op) and _can_copy(source, made)
            if isinstance(source, Op) and is_copied and counts[source.results[0]] == 1:
                loads.append((source, op))
    if not loads:
        return None
    slices = {load: _ahead(load.operands if load.row.is_window else load.operands[:2], loop, made) for load, _ in loads}
    written, links = written_arguments(loop.body, function), sources(function.body)
    is_apart = {load: _is_apart(addressed(load.operands[0], links, function), written) for load, _ in loads}
    loads = [(load, share) for load, share in loads if slices[load] is not None and is_apart[load]]
    stages = _stages(loop, loads, function)
    if stages < 2:
        return None
    needed = set().union(*(slices[load] for load, _ in loads))  # type: ignore[arg-type]
    ahead = [s for s in loop.body.statements if isinstance(s, Op) and needed & set(s.results)]
    carried = [i for i, v in enumerate(loop.body.arguments[1:]) if v in needed]
    return Plan(loop, loads, ahead, carried, stages)


def _is_plain(statement: Statement) -> bool:
    """Whether a loop may have it: an op, or a choice between values."""
    if isinstance(statement, If):
        inner = list(walk(Block(statements=[statement])))
        return all(isinstance(s, If) or (isinstance(s, Op) and not s.row.effect) for s in inner)
    return isinstance(statement, Op)


@dataclass
class Fixed:
    """A window that stands before the loops whose products take it from one slot."""

    block: Block
    load: Op
    share: Op

    @property
    def bytes(self) -> int:
        """Of its room."""
        return slot_elements(self.load) * self.load.results[0].type.dtype.itemsize


def fixed_loads(function: Function) -> list[Fixed]:
    """The windows that products in loops inside of their own block take, and nothing else."""
    counts, found = uses(function.body), list[Fixed]()
    for block in [function.body, *(b for s in walk(function.body) for b in s.blocks)]:
        made = {v: s for s in block.statements if isinstance(s, Op) for v in s.results}
        for op in block.statements:
            load = made.get(op.operands[0]) if isinstance(op, Op) and "is_turned" in op.attributes else None
            if load is None or not load.row.is_window or counts[load.results[0]] != 1:
                continue
            assert isinstance(op, Op)
            if not any(op.results[0] in s.operands for s in block.statements):
                found.append(Fixed(block, load, op))
    return found


def written_arguments(block: Block, function: Function) -> set[Value] | None:
    """The arguments stored to below `block`; None if that is not known, or if other programs are waited for."""
    links, found = sources(function.body), set[Value]()
    for op in (s for s in walk(block) if isinstance(s, Op) and s.row.touches_memory):
        if op.attributes.get("volatile") or (op.row.effect == "update" and not _is_added(op)):
            return None
        if op.row.effect in ("write", "update"):
            stored = addressed(op.operands[0], links, function)
            if not stored:
                return None
            found |= stored
    return found


def _is_added(update: Op) -> bool:
    """Whether an update only adds: it is not looked at, and nothing is ordered by it."""
    return update.row.is_window or (update.attributes.get("sem") == "relaxed" and not update.attributes["is_used"])


def _is_apart(read: set[Value], written: set[Value] | None) -> bool:
    """Whether arguments that are read are not written meanwhile."""
    return written is not None and bool(read) and not read & written


def _stages(loop: For, loads: list[tuple[Op, Op]], function: Function) -> int:
    """As many as the loop or the kernel asks for, fewer where they do not fit beside what else a step takes."""
    size = sum(slot_elements(load) * load.results[0].type.dtype.itemsize for load, _ in loads)
    asked = loop.attributes.get("num_stages") or function.num_stages
    gone = {op for pair in loads for op in pair}
    others = [s for s in loop.body.statements if isinstance(s, Op) and s not in gone]
    read = {v for s in loop.body.statements for v in s.operands}
    others_outside = (s for s in walk(function.body) if isinstance(s, Op) and s.row.is_kept and s.results[0] in read)
    kept = sum(kept_bytes(op) for op in {*others, *others_outside} - gone)
    if any(op.attributes["has_rows"] or op.attributes["is_held"] for op in products_in(loop.body)):
        others = [op for op in others if not _stays_in_warp(op)]
    moved = max(map(exchanged_bytes, others), default=0)
    return min(asked, (function.shared_bytes - kept - moved) // size) if size else 0


def _stays_in_warp(op: Op) -> bool:
    """Whether an op exchanges nothing where warps have whole rows of products, and of what follows from them."""
    is_added = op.row.effect == "update" and op.attributes.get("is_used") is False
    return op.row.goes_along_axis or op.row.is_for_held or op.row.is_shared_view or is_added


def kept_bytes(op: Op) -> int:
    """What an op keeps in shared memory."""
    if op.row.is_kept:
        return op.results[0].type.bytes * int(op.attributes.get("buffers", 1))
    return int(op.attributes.get("room", 0))


def exchanged_bytes(op: Op) -> int:
    """About as many as threads exchange at once for an op: of what it is given, or of a reduction's results."""
    row = op.row
    if row.is_window and op.results == []:
        return int(op.attributes["buffers"]) * math.prod(op.attributes["chunk"])
    if row.is_own or row.goes_by_register or row.effect == "read" or row.anchor_layout or kept_bytes(op):
        return 0
    if row.result_layout:
        return MOST_WARPS * sum(v.type.bytes for v in op.results)
    return max((v.type.bytes for v in op.operands), default=0)


def _can_copy(load: Op, made: dict[Value, Statement]) -> bool:
    """Whether a load is one of words side by side that come as they are, or as 0."""
    if load.row.is_window:
        return True
    if load.row.effect != "read" or load.attributes.get("volatile") or not load.operands[0].type.shape:
        return False
    dtype = load.results[0].type.dtype
    size = load.attributes.get("width", 1) * dtype.itemsize
    return size in COPY_BYTES and all(is_zero(value, made) for value in load.operands[2:])


def _ahead(values: list[Value], loop: For, made: dict[Value, Statement]) -> set[Value] | None:
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
            if not isinstance(op, Op) or op.row.effect or op.blocks or not op.row.is_own:
                return None
            pending += op.operands
        else:
            continue
        found.add(value)
    return found


def settled(loop: For, place: int) -> Op:
    """Leave the sums at a place open in the loop; returns the op that waits for them behind it."""
    product = next(s for s in loop.body.statements if loop.body.yields[place] in s.results)
    assert isinstance(product, Op)
    product.attributes["pending"] = 1
    result = loop.results[place]
    loop.results[place] = Value(result.type, result.name)
    how = {"columns": product.attributes["columns"], "pending": 0}
    return Op(ROWS["settle"], [loop.results[place]], how, [result], loop.position)
