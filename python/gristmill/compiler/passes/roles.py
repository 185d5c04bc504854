"""Give copies to warps of their own: they run ahead of those that multiply, as far as the ring has free slots.

The program is there twice. The producers' copy keeps what leads to the addresses: loops, branches and arithmetic. The
consumers' copy waits for each slot instead of loading. A pipe counts: a slot is full when all producers' copies have
come, and empty again when every consumer warp has read it. Slots go on from loop to loop, so that producers fetch what
the next tile needs while consumers store the last one.
"""

from __future__ import annotations

from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import (
    Block,
    For,
    Function,
    If,
    Op,
    Statement,
    Value,
    While,
    addressed,
    clone_block,
    products_in,
    replace_below,
    sources,
    used_below,
    walk,
)
from gristmill.compiler.op import ROWS, Builder, building
from gristmill.compiler.passes import carried, layout, tickets
from gristmill.compiler.passes.offsets import rebased
from gristmill.compiler.passes.plan import (
    Fixed,
    Load,
    Plan,
    exchanged_bytes,
    fetch_small,
    fixed_loads,
    is_fetched,
    kept_bytes,
    plan_of,
    room_of,
    settled,
    sink_small,
    slot_elements,
    views_of,
    written_arguments,
)
from gristmill.compiler.passes.simplify import drop_unused
from gristmill.compiler.tensor import STORE_BUFFERS
from gristmill.language import elementwise as ew
from gristmill.language.types import constant

PRODUCER_WARPS = 4  # one where the hardware copies: a thread of it tells what
MOST_HELD = 96  # sums and words of chained products
MOST_PROMOTED = 64  # sums of a thread beside which others have room
# Registers of a thread where two warpgroups consume: those that producers leave of their 168 are for sums. More for
# consumers than that would wait for ever; fewer for producers that copy, and addresses spill.
ALL_COPY, ALL_TELL = (104, 200), {8: (24, 240), 12: (32, 160)}
CONSUMER_WARPS = (4, 8, 12)
LEFT_BYTES = 20480  # for what consumers exchange
LEAST_LEFT = 2048  # for what each warp has, and pipes
BARRIER_BYTES = 256  # of pipes
MOST_BUFFERS = 8
LEAST_STAGES = 3  # two where the hardware copies


def split(function: Function) -> bool:
    """Split the function if all its pipelined loops multiply by warpgroups; whether it was done."""
    plans = _plans(function)
    if not plans or not function.has_groups or function.present_warps not in CONSUMER_WARPS:
        return False
    written = written_arguments(function.body, function)
    if written is None or written & _read_arguments(function):
        return False  # what producers read is not there before consumers, or other programs, have written it
    fixed = fixed_loads(function)
    for plan in (plan for plan in plans if _is_chain(plan)):
        fetch_small(plan, function)
        sink_small(plan.loop.body, function)
    asked = [plan.stages for plan in plans]
    for shares in (_shares_of_steps(plans), []):
        for plan, stages in zip(plans, asked, strict=True):
            plan.stages = stages
        _set_stages(plans, fixed, function, shares)
        if not any(plan.stages < _least(plan) for plan in plans):
            break
    if any(plan.stages < _least(plan) for plan in plans):
        return False
    common = Block()
    rings = _all_rings(plans, common)
    slots = _fixed_slots(plans, fixed, function)
    single = [_ring([(f.load, f.share)], slots, common) for f in fixed]
    # Others' loops are split by masks, whose bounds say nothing of how long they are.
    if all(map(_is_told, plans)) and function.num_ctas == 1:
        tickets.draw_tiles(function, common)
    producer = _producer(function, [*zip(plans, rings, strict=True)], [*zip(fixed, single, strict=True)])
    if producer is None:
        function.tickets = None
        return False
    for plan, own in zip(plans, rings, strict=True):
        _consume(function.body, plan, own)
    for one, ring in zip(fixed, single, strict=True):
        _consume_fixed(one, ring)
    function.common, function.producer = common, producer.body
    function.producer_warps = producer.num_warps
    if producer.num_warps == PRODUCER_WARPS and function.present_warps in ALL_TELL and _has_groups(plans):
        function.counts_blocks = not all(map(_is_told, plans))
        function.registers = ALL_COPY if function.counts_blocks else ALL_TELL[function.present_warps]
    function.layouts |= producer.layouts
    return True


def _has_groups(plans: list[Plan]) -> bool:
    """Whether warpgroups multiply: without, ptxas ignores how many registers each role asks for (C7508)."""
    return any(op.attributes["by_groups"] for plan in plans for op in products_in(plan.loop.body))


def _shares_of_steps(plans: list[Plan]) -> list[Op]:
    """What steps share that follows from other products: two buffers take it in turn, and nobody waits for readers."""
    chains = [plan for plan in plans if _is_chain(plan)]
    copied = {share for plan in chains for _, share in plan.loads}
    statements = [s for plan in chains for s in plan.loop.body.statements if s not in copied]
    return [s for s in statements if isinstance(s, Op) and "is_turned" in s.attributes]


def _set_stages(plans: list[Plan], fixed: list[Fixed], function: Function, shares: list[Op]) -> None:
    """As many as there is room for beside what else is in shared memory, of which `shares` have two buffers.

    What the hardware stores has a buffer for each of its chunks if that leaves enough stages: then none waits.
    """
    needed = sum({_room(plan): plan.stage_bytes for plan in plans}.values())
    stores = [s for s in walk(function.body) if isinstance(s, Op) and s.row.is_window and not s.results]

    least = max(LEFT_BYTES // function.blocks_per_sm, _turned_bytes(function))

    brought = LEFT_BYTES if _brings_tiles(stores, function) else 0

    def stages() -> int:
        others = [s for s in walk(function.body) if isinstance(s, Op) and s not in stores]
        exchanged = max(max(map(exchanged_bytes, others)), sum(map(exchanged_bytes, stores)) + brought)
        room = function.shared_bytes - max(least, exchanged) - kept - BARRIER_BYTES
        return min(*(p.stages for p in plans), room // needed)

    for op in _shares_of_steps(plans):
        op.attributes["buffers"] = 2 if op in shares else 1
    copied = {share for plan in plans for _, share in plan.loads} | {f.share for f in fixed}
    kept = sum(kept_bytes(s) for s in walk(function.body) if isinstance(s, Op) and s not in copied)
    kept += sum(f.bytes for f in fixed)
    for most in (1, STORE_BUFFERS, MOST_BUFFERS):
        before, wanted = [op.attributes["buffers"] for op in stores], stages()
        for op in stores:
            (rows, width), (down, across) = op.attributes["chunk"], op.attributes["block"][-2:]
            chunks = -(-across * op.operands[-1].type.dtype.itemsize // width) * -(-down // rows)
            op.attributes["buffers"] = min(chunks, most)
        if stages() < min(wanted, LEAST_STAGES):
            for op, buffers in zip(stores, before, strict=True):
                op.attributes["buffers"] = buffers
            break
    for plan in plans:
        plan.stages = stages()


def _brings_tiles(stores: list[Op], function: Function) -> bool:
    """Whether tiles are loaded and moved to where sums lie, while the hardware stores the ones before."""
    shapes = {op.operands[-1].type.shape for op in stores}
    loads = [s for s in walk(function.body) if isinstance(s, Op) and s.row.effect == "read" and not s.row.is_window]
    return any(op.results[0].type.shape in shapes for op in loads)


def _turned_bytes(function: Function) -> int:
    """What threads exchange to store tiles through pointers where rows of sums lie as the left operand is taken."""
    ops = [s for s in walk(function.body) if isinstance(s, Op)]
    is_taken = any(op.attributes.get("is_taken") for op in ops)
    stored = [op.operands[1] for op in ops if op.row.effect == "write" and not op.row.is_window]
    return max((v.type.bytes for v in stored), default=0) if is_taken else 0


def _fixed_slots(plans: list[Plan], fixed: list[Fixed], function: Function) -> int:
    """Two if there is room: then producers fetch what the next round of loops needs while this one goes on."""
    stores = [s for s in walk(function.body) if isinstance(s, Op) and s.row.is_window and not s.results]
    stored = sum(exchanged_bytes(op) for op in stores)
    filled = sum({_room(plan): plan.stages * plan.stage_bytes for plan in plans}.values())
    exchanged = 0 if all(_is_chain(plan) for plan in plans) else LEFT_BYTES
    kept = sum(map(kept_bytes, _shares_of_steps(plans)))
    taken = filled + stored + kept + 2 * sum(f.bytes for f in fixed) + exchanged + LEAST_LEFT
    return 2 if taken <= function.shared_bytes else 1


def _is_chain(plan: Plan) -> bool:
    """Whether products follow from others: a warp has whole rows then, and exchanges nothing to reduce them."""
    return len(plan.groups) > 1


def _holds_much(plan: Plan, function: Function) -> bool:
    """Whether consumers need more registers than an equal share: for sums, those that are not added yet, operands, and
    tiles that they turn."""
    ops = [s for s in plan.loop.body.statements if isinstance(s, Op)]
    products = products_in(plan.loop.body)
    turned = any(op.attributes.get("is_across") for op in ops)
    sums = {op: op.results[0].type.elements // (32 * function.num_warps) for op in products}
    promoted = sum(count for op, count in sums.items() if op.attributes["is_promoted"])
    words = sum(_words(op) for op in products) // (32 * function.num_warps)
    if words and words + sum(sums.values()) + promoted > MOST_HELD:
        return True
    return promoted > MOST_PROMOTED or (turned and sum(sums.values()) + promoted > MOST_PROMOTED)


def _words(product: Op) -> int:
    """What threads have in registers of its left operand, in words: of one that they take there, each part."""
    is_there = product.attributes["is_held"] or product.attributes["is_taken"]
    copies = 1 + (product.attributes["is_taken"] and product.attributes["is_promoted"])
    return product.operands[0].type.elements * copies if is_there else 0


def _least(plan: Plan) -> int:
    return 2 if _is_told(plan) else LEAST_STAGES


def _is_told(plan: Plan) -> bool:
    """Whether the hardware copies all large tiles."""
    return plan.windows == sum(not is_fetched(load) for load in plan.loads)


def _read_arguments(function: Function) -> set[Value]:
    links = sources(function.body)
    reads = [s for s in walk(function.body) if isinstance(s, Op) and s.row.effect == "read"]
    return set().union(*(addressed(op.operands[0], links, function) for op in reads))


def _plans(function: Function) -> list[Plan]:
    loops = [s for s in walk(function.body) if isinstance(s, For)]
    return [plan for loop in loops if (plan := plan_of(loop, function)) is not None]


def _room(plan: Plan) -> tuple[Any, ...]:
    """What loops must have in common to share a pipe and the room of rings."""
    return tuple(
        tuple((x[0].results[0].type.dtype, slot_elements(x[0]), x[0].row.is_window, is_fetched(x)) for x in group)
        for group in plan.groups
    )


def _shape(plan: Plan) -> tuple[Any, ...]:
    """And what to share the rings themselves."""
    return tuple(tuple((x.results[0].type, s.attributes["is_turned"]) for x, s in group) for group in plan.groups)


Ring = tuple[Value, list[Value]]  # a pipe, and the slots of each load


def _all_rings(plans: list[Plan], common: Block) -> list[list[Ring]]:
    """The rings of each loop."""
    first: dict[Any, list[Ring]] = {}
    known: dict[Any, list[Ring]] = {}
    for plan in plans:
        room, shape = _room(plan), (_room(plan), _shape(plan))
        if room not in first:
            first[room] = known[shape] = [_ring(group, plan.stages, common) for group in plan.groups]
        if shape not in known:
            known[shape] = [_ring_in(g, ring, common) for g, ring in zip(plan.groups, first[room], strict=True)]
    return [known[_room(plan), _shape(plan)] for plan in plans]


def _ring_in(loads: list[Load], ring: Ring, common: Block) -> Ring:
    pipe, slots = ring
    with building(Builder(common)):
        rings = zip(slots, loads, strict=True)
        return pipe, [
            ROWS["ring_in"](slot, x.results[0].type, s.attributes["is_turned"], *room_of(x)) for slot, (x, s) in rings
        ]


def _ring(loads: list[Load], stages: int, common: Block) -> Ring:
    with building(Builder(common)):
        slots = [ROWS["ring"](stages, x.results[0].type, s.attributes["is_turned"], *room_of(x)) for x, s in loads]
        windows = sum(load.row.is_window for load, _ in loads)
        how = {"is_fetched": all(map(is_fetched, loads)), "ctas": max(x.attributes.get("parts", 1) for x, _ in loads)}
        return ROWS["pipe"](stages, windows < len(loads), windows > 0, **how), slots


# ---- consumers -----------------------------------------------------------------------------------------------------


def _consume(body: Block, plan: Plan, rings: list[Ring]) -> None:
    """Let the loop take its tiles from the ring; the slot before is free when the next product is on its way.

    Where products are not left open, a slot is free at the end of its own step.
    """
    if len(rings) > 1:
        return _consume_each(plan, rings)
    loop, block, sums = plan.loop, Block(plan.loop.body.arguments, yields=plan.loop.body.yields), plan.open_sums()
    ((pipe, slots),) = rings
    with building(Builder(block)) as builder:
        builder.position = loop.position
        views = plan.views(slots, ROWS["take"](pipe))
        block.statements += plan.reading(views)
        if not sums:
            ROWS["next_slot"](pipe)
        ROWS["release"](pipe, ew.ne(loop.body.arguments[0], loop.operands[0]) if sums else constant(True, dt.bool_))
        if sums:
            ROWS["next_slot"](pipe)
    loop.body = block
    if not sums:
        return
    behind = Block(statements=[settled(loop, place) for place in sums])
    with building(Builder(behind)) as builder:
        builder.position = loop.position
        ROWS["release"](pipe, ew.lt(loop.operands[0], loop.operands[1]))
    _insert_behind(body, loop, behind.statements)


def _consume_each(plan: Plan, rings: list[Ring]) -> None:
    """Let the loop take each group's tiles before the first product that reads them; they are free behind the last."""
    block, given = plan.loop.body, zip(plan.groups, rings, strict=True)
    groups = [
        ({share.results[0]: slot for (_, share), slot in zip(g, slots, strict=True)}, p) for g, (p, slots) in given
    ]
    block.statements[:] = plan.reading({})
    for slots, pipe in groups:
        _take_between(block, slots, pipe)


def _consume_fixed(fixed: Fixed, ring: Ring) -> None:
    pipe, (slot,) = ring
    statements = fixed.block.statements
    statements[:] = [s for s in statements if s not in (fixed.load, fixed.share)]
    _take_between(fixed.block, {fixed.share.results[0]: slot}, pipe)


def _take_between(block: Block, slots: dict[Value, Value], pipe: Value) -> None:
    """Wait for a slot before the first statement that reads what was in `slots`, and free it behind the last."""
    read = views_of(set(slots), block)
    users = [i for i, s in enumerate(block.statements) if used_below(s) & read]
    before, behind = Block(), Block()
    with building(Builder(before)) as builder:
        builder.position = block.statements[users[0]].position
        index = ROWS["take"](pipe)
        views = {value: ROWS["slot"](ring, index) for value, ring in slots.items()}
    with building(Builder(behind)) as builder:
        builder.position = block.statements[users[-1]].position
        ROWS["next_slot"](pipe)
        ROWS["release"](pipe, constant(True, dt.bool_))
    for i in users:
        replace_below(block.statements[i], views)
    block.statements[users[-1] + 1 : users[-1] + 1] = behind.statements
    block.statements[users[0] : users[0]] = before.statements


def _insert_behind(block: Block, loop: For, statements: list[Statement]) -> None:
    if loop in block.statements:
        place = block.statements.index(loop) + 1
        block.statements[place:place] = statements
        return
    for statement in block.statements:
        for inner in statement.blocks:
            _insert_behind(inner, loop, statements)


# ---- producers -----------------------------------------------------------------------------------------------------


def _producer(
    function: Function, plans: list[tuple[Plan, list[Ring]]], fixed: list[tuple[Fixed, Ring]]
) -> Function | None:
    """The producers' program; None if it would need what only consumers know, or threads to exchange numbers."""
    body = clone_block(Block(statements=function.body.statements), {})
    body.arguments = function.body.arguments
    copies = dict(zip(walk(function.body), walk(body), strict=True))
    blocks = [copied for f, _ in fixed for copied in _copies_of(f.block, function.body, body)]
    for plan, rings in plans:
        _produce(plan, copies, rings)
    for (one, ring), block in zip(fixed, blocks, strict=True):
        _produce_fixed(one, block, copies, ring)
    _drop_effects(body)
    is_whole_group = any(plan.windows < len(plan.loads) or _holds_much(plan, function) for plan, _ in plans)
    num_warps = PRODUCER_WARPS if is_whole_group else 1
    producer = Function(function.name, body, num_warps, facts=function.facts, constancy=function.constancy)
    drop_unused(producer)
    carried.run(producer)
    drop_unused(producer)
    if not all(_is_simple(s) for s in walk(body)):
        return None
    layout.run(producer)
    return producer if all(_is_simple(s) for s in walk(body)) else None


def _copies_of(block: Block, body: Block, copy: Block) -> list[Block]:
    """The block that stands in `copy` for the one in `body`."""
    pairs = [(body, copy)]
    for old, new in zip(walk(body), walk(copy), strict=True):
        pairs += zip(old.blocks, new.blocks, strict=True)
    return [new for old, new in pairs if old is block]


def _produce(plan: Plan, copies: dict[Statement, Statement], rings: list[Ring]) -> None:
    """Turn the copied loop into one that fills slots, whose sums stay what they are."""
    loop = copies[plan.loop]
    made = {value: statement for statement in copies.values() for value in statement.results}
    assert isinstance(loop, For)
    block = Block(loop.body.arguments)
    fillings = [_Filling(group, ring, copies) for group, ring in zip(plan.groups, rings, strict=True)]
    of_share = {share: filling for filling in fillings for share in filling.loads}
    same: dict[Value, Value] = {}
    with building(Builder(block)) as builder:
        builder.position = loop.position
        if len(fillings) == 1:  # then addresses are computed when there is a slot
            fillings[0].begin()
        for statement in loop.body.statements:
            statement.operands[:] = [same.get(v, v) for v in statement.operands]
            if statement in of_share:
                of_share[statement].copy(statement, made, is_alone=len(fillings) == 1)
            elif isinstance(statement, Op) and statement.row.anchor_layout:
                same[statement.results[0]] = statement.operands[-1]
            else:
                block.statements.append(statement)
        if len(fillings) == 1:
            fillings[0].end()
    block.yields = [same.get(v, v) for v in loop.body.yields]
    loop.body = block


def _produce_fixed(fixed: Fixed, block: Block, copies: dict[Statement, Statement], ring: Ring) -> None:
    """Fill the one slot where the window is shared in the copied block."""
    filling = _Filling([(fixed.load, fixed.share)], ring, copies)
    (share,) = filling.loads
    around = Block()
    with building(Builder(around)) as builder:
        builder.position = fixed.load.position
        filling.copy(share, {}, is_alone=False)
    place = block.statements.index(share)
    block.statements[place : place + 1] = around.statements
    block.statements.remove(copies[fixed.load])


class _Filling:
    """Fills a slot with what a group of loads brings, each where it was shared."""

    def __init__(self, group: list[Load], ring: Ring, copies: dict[Statement, Statement]):
        self.pipe, slots = ring
        self.loads = {copies[share]: (copies[load], slot) for (load, share), slot in zip(group, slots, strict=True)}
        self.bytes = sum(load.attributes["bytes"] for load, _ in group if load.row.is_window)
        self.left = len(group)
        self.index: Value | None = None

    def begin(self) -> None:
        """Wait until the slot is free."""
        self.index = ROWS["acquire"](self.pipe)
        self.always = constant(True, dt.bool_)
        if self.bytes:
            ROWS["expect"](self.pipe, self.bytes)

    def copy(self, share: Statement, made: dict[Value, Statement], is_alone: bool) -> None:
        """Begin the copy of what is shared there; others of the group may follow."""
        if self.index is None:
            self.begin()
        load, slot = self.loads[share]
        assert isinstance(load, Op)
        if load.row.is_window:
            ROWS["copy_window"](self.pipe, slot, self.index, load)
        else:
            pointers, *mask = load.operands[:2]
            ROWS["copy"](rebased(pointers, made), slot, self.index, self.always, *mask, **load.attributes)
        self.left -= 1
        if self.left == 0 and not is_alone:
            self.end()

    def end(self) -> None:
        """All copies have begun."""
        ROWS["publish"](self.pipe)


def _drop_effects(block: Block) -> None:
    """Leave what the program does beside filling slots to the consumers."""
    kept = [s for s in block.statements if not (isinstance(s, Op) and s.row.is_lasting and not s.row.fills_shared)]
    block.statements[:] = kept
    for statement in block.statements:
        for inner in statement.blocks:
            _drop_effects(inner)


def _is_simple(statement: Statement) -> bool:
    """Whether threads can compute it each by itself."""
    if isinstance(statement, (For, If, While)):
        return True
    row = statement.row
    is_read = row.effect == "read" and not (row.fills_shared or row.is_window) and statement.operands[0].type.is_scalar
    return row.is_own or row.fills_shared or is_read
