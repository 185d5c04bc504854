"""Read large tiles late: a few registers at a time, when the stores at the end of a block ask for them.

A thread that has 64 elements of a row, its weight and its bias to combine would load all of them before it stores the
first, and hold them in so many registers that few blocks fit a multiprocessor. What only the closing stores need is
marked `late`; the machine then emits it store by store, each loads little, and other warps work while it waits. Only
where there are several warps, whose loads and stores have no order among them; and never past a store through the same
argument.
"""

from __future__ import annotations

from gristmill.compiler.ir import Block, Function, Op, Value, addressed, sources, walk
from gristmill.compiler.passes.hold import is_repeatable

ROOM = 192  # bytes of registers that a thread may fill with what the closing stores need


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
        if sum(_bytes(op.results[0]) for op in late if op.operands[0].type.is_pointer) > ROOM * function.threads:
            for op in late:
                op.attributes["late"] = True


def _bytes(value: Value) -> int:
    return value.type.elements * value.type.dtype.bits // 8


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
