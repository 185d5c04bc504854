"""Read large tiles late: a few registers at a time, when the stores at the end of a block ask for them.

A thread that has 64 elements of a row, its weight and its bias to combine would load all of them before it stores the
first, and hold them in so many registers that few blocks fit a multiprocessor. What only the closing stores need is
marked `late`; the machine then emits it store by store, each loads little, and other warps work while it waits. Only
where there are several warps, whose loads and stores have no order among them; and never past a store through the same
argument.

Before the last exchange between the blocks of a cluster, threads whose elements wait in shared memory hold little:
there they begin to read what they will need behind it, as much as fits the registers that are free until then.
"""

from __future__ import annotations

from gristmill.compiler.ir import Block, Function, Op, Statement, Value, addressed, sources, walk
from gristmill.compiler.passes.hold import is_repeatable, is_wide

ROOM = 192  # bytes of registers that a thread may fill with what the closing stores need
EARLY = 128  # of which it reads so many before the last exchange


def run(function: Function) -> None:
    """Mark loads and held tiles of each block's end."""
    if function.threads == 32:
        return
    made = sources(function.body)
    for block in [function.body, *(b for s in walk(function.body) for b in s.blocks)]:
        if block.yields:
            continue
        closing = _closing(block)
        stored = {a for op in closing if op.row.effect == "write" for a in addressed(op.operands[0], made, function)}
        late = [op for op in closing if _is_read(op) and not stored & addressed(op.operands[0], made, function)]
        loads = [op for op in late if op.operands[0].type.is_pointer]
        if sum(op.results[0].type.bytes for op in loads) > ROOM * function.threads:
            for op in late:
                op.attributes["late"] = True
        if len(loads) < len(late):
            _begin_early(block, closing, [op for op in loads if is_wide(op)])


def _begin_early(block: Block, closing: list[Op], loads: list[Op]) -> None:
    """Move loads, and what their addresses follow from, before the last exchange, and say how much to read there."""
    places = [i for i, s in enumerate(block.statements) if _is_exchange(s)]
    if not places:
        return
    # What the blocks exchange may be what the op before has reduced: that one waits, too.
    place = places[-2] if len(places) > 1 and _is_common(block.statements[places[-1]]) else places[-1]
    behind = block.statements[place:]
    if not all(isinstance(s, Op) and (s in closing or not s.row.is_lasting) for s in behind):
        return  # loops, and what is done once and in order, are not overtaken
    made = {v: s for s in behind for v in s.results}
    moved: dict[Statement, None] = {}
    begun = [op for op in loads if op in behind and _collect(op, behind[0], made, moved)]
    rest = [s for s in behind if s not in moved]
    block.statements[place:] = [*(s for s in behind if s in moved), *rest]
    for op in begun:
        element = op.results[0].type.dtype.bits // 8
        op.attributes |= {"late": True, "early": EARLY // len(begun) // element}


def _is_exchange(statement: Statement) -> bool:
    is_reduction = (
        isinstance(statement, Op) and statement.row.result_layout and not statement.attributes.get("is_local")
    )
    return bool(is_reduction) or _is_common(statement)


def _is_common(statement: Statement) -> bool:
    return isinstance(statement, Op) and statement.row.is_common


def _collect(op: Op, exchange: Statement, made: dict[Value, Statement], moved: dict[Statement, None]) -> bool:
    """Add `op` to what is moved, after what it follows from, unless that waits for the exchange."""
    needed: list[Op] = [op]
    for one in needed:
        for value in one.operands:
            source = made.get(value)
            if source is not None and source not in needed:
                if not isinstance(source, Op) or source is exchange or not is_repeatable(source):
                    return False
                needed.append(source)
    moved.update(dict.fromkeys(needed))
    return True


def _closing(block: Block) -> list[Op]:
    """The ops at the block's end that no thread waits in: reads, elementwise steps and stores."""
    closing: list[Op] = []
    for statement in reversed(block.statements):
        if not isinstance(statement, Op) or not (
            _is_read(statement) or _is_store(statement) or is_repeatable(statement)
        ):
            break
        closing.append(statement)
    return closing


def _is_read(statement: Op) -> bool:
    return statement.row.goes_by_register and bool(statement.results) and not statement.attributes.get("volatile")


def _is_store(statement: Op) -> bool:
    return statement.row.goes_by_register and not statement.results
