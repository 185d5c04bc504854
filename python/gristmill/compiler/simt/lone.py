"""In which threads it matters what they load: those whose registers reach a store, or decide where the program goes.

Several threads have copies of a scalar, and of a tile smaller than the block. `tl.store(p, tl.load(p) + 1)` is right
without a barrier: only an element's first holder stores, so that what the others load goes nowhere.
"""

from __future__ import annotations

from gristmill.compiler.ir import For, Function, If, Op, Statement, Value, While, sources, walk
from gristmill.compiler.layout import owner_bits

Spare = frozenset[tuple[str, int]]
"""Bits of the thread's index: threads in which one of them is set do not matter."""

EVERYBODY: Spare = frozenset()


def needed_by(function: Function) -> dict[Value, Spare]:
    """For each value that matters, the bits that are 0 in all threads in which it does."""
    found: dict[Value, Spare] = {}
    statements, links = list(walk(function.body)), sources(function.body)
    changed = True
    while changed:
        changed = False
        for statement in reversed(statements):
            for value, spare in _asked(statement, function, found, links):
                known = found.get(value)
                met = spare if known is None else known & spare
                if met != known:
                    found[value], changed = met, True
    return found


def _asked(
    statement: Statement, function: Function, found: dict[Value, Spare], links: dict[Value, list[Value]]
) -> list[tuple[Value, Spare]]:
    """What a statement needs, by what is needed of its results."""
    if not isinstance(statement, Op):
        inner = [argument for block in statement.blocks for argument in block.arguments]
        passed = [(v, found[value]) for value in (*statement.results, *inner) if value in found for v in links[value]]
        return [(value, EVERYBODY) for value in _decides(statement)] + passed
    needs = [found[value] for value in statement.results if value in found]
    if statement.row.effect == "write":
        needs.append(_stored_by(statement, function) if statement.row.goes_by_register else EVERYBODY)
    return [(value, _passed_on(statement, function, spare)) for spare in needs for value in statement.operands]


def _decides(statement: For | If | While) -> list[Value]:
    """The scalars by which threads take their way."""
    if isinstance(statement, While):
        return statement.condition.yields[:1]
    return statement.operands[: 3 if isinstance(statement, For) else 1]


def _stored_by(op: Op, function: Function) -> Spare:
    if op.operands[0].type.is_scalar:
        warps, blocks = (range(count.bit_length() - 1) for count in (function.num_warps, function.num_blocks))
        parts = (range(5), warps, blocks)
    else:
        parts = owner_bits(function.layouts[op.operands[0]])  # type: ignore[assignment]
    return frozenset((part, bit) for part, bits in zip(("lane", "warp", "block"), parts, strict=True) for bit in bits)


def _passed_on(op: Op, function: Function, spare: Spare) -> Spare:
    """The threads whose operands matter where the result does in others: the same, or their partners too."""
    row = op.row
    if row.is_own or row.goes_by_register:
        return spare
    if not row.goes_along_axis:
        return EVERYBODY
    _, lanes, warps, blocks = function.layouts[op.operands[0]].split(op.attributes["axis"])
    partners = zip(("lane", "warp", "block"), (lanes, warps, blocks), strict=True)
    return spare - {(part, bit) for part, bits in partners for bit in bits}
