"""How wide each memory access may be, from what is known of its addresses and its mask."""

from __future__ import annotations

import math
from dataclasses import replace

from gristmill.compiler.facts import Facts
from gristmill.compiler.ir import (
    Block,
    For,
    Function,
    If,
    Op,
    Pointer,
    Statement,
    Value,
    While,
    definitions,
    reached,
    sources,
    uses,
    walk,
)
from gristmill.compiler.passes.signs import never_negative
from gristmill.dtypes import Dtype
from gristmill.language.windows import parts_of

MAX_ACCESS_BYTES = 16
MAX_UPDATE_BYTES = 4
Known = dict[Value, Facts]


def run(function: Function) -> None:
    """Set attributes of every memory op: `width`, the elements side by side that one access may take with all its
    promises, `unmasked`, those that it could take without its mask, and `contiguous`, those whose addresses follow
    each other, aligned or not. Of updates also whether their result `is_used`, and whether there is another access that
    it `orders`."""
    known = facts_of(function, {})
    _relate_updates(function)
    function.constancy = {value: facts.constancy for value, facts in known.items() if facts.constancy > 1}


def facts_of(function: Function, promised: dict[Value, int]) -> Known:
    """Return what is known of values if parameters are multiples of the numbers that are promised of them."""
    known: Known = {v: Facts(divisibility=d, constancy=1) for v, d in (function.facts | promised).items()}
    # What a kernel divides indices by are numbers of tiles, rows or columns: it need not say that they are positive.
    _block(function.body, known, never_negative(function, counts_divide=True))
    return known


def _relate_updates(function: Function) -> None:
    """Set what updates are for."""
    touching = [s for s in walk(function.body) if isinstance(s, Op) and s.row.touches_memory]
    counts = uses(function.body)
    for op in touching:
        if op.row.effect == "update" and op.results:
            op.attributes["is_used"] = counts.get(op.results[0], 0) > 0
            op.attributes["orders"] = len(touching) > 1


def _widths(op: Op, known: Known) -> dict[str, int]:
    pointer, *others = op.operands
    assert isinstance(pointer.type.dtype, Pointer)
    size = pointer.type.dtype.element.itemsize
    facts = known.get(pointer, Facts())
    largest = MAX_UPDATE_BYTES if op.row.effect == "update" else MAX_ACCESS_BYTES
    unmasked = min(facts.contiguity, max(1, facts.divisibility // size), max(1, largest // size))
    width = unmasked
    for mask in others[0 if op.row.effect == "read" else 1 :][:1]:
        width = min(width, known.get(mask, Facts()).constancy)
    return {"width": width, "unmasked": unmasked, "contiguous": facts.contiguity}


def _block(block: Block, known: Known, counts: set[Value]) -> None:
    """Fill in what is known below `block`; what is promised of a value holds to the block's end.

    `counts` are never negative.
    """
    outside: Known = {}
    for statement in block.statements:
        _statement(statement, known, counts)
        if isinstance(statement, Op) and statement.row.is_promise:
            value = statement.operands[0]
            outside.setdefault(value, known.get(value, Facts()))
            known[value] = known[statement.results[0]]
    known.update(outside)


def _statement(statement: Statement, known: Known, counts: set[Value]) -> None:
    if isinstance(statement, Op):
        rule = statement.row.facts_function
        if rule is not None and statement.results:
            facts = [known.get(v, Facts()) for v in statement.operands]
            if statement.row.divides:
                facts = [replace(f, never_negative=v in counts) for v, f in zip(statement.operands, facts, strict=True)]
            known[statement.results[0]] = rule(statement, *facts)
        if statement.row.touches_memory and statement.operands[0].type.is_pointer:
            statement.attributes |= _widths(statement, known)
    elif isinstance(statement, For):
        lower, _, step = (known.get(v, Facts()) for v in statement.operands[:3])
        known[statement.body.arguments[0]] = Facts(min(lower.each, step.each))
        _loop(statement, statement.body, statement.body.arguments[1:], statement.operands[3:], known, counts)
    elif isinstance(statement, While):
        _loop(statement, statement.body, statement.body.arguments, statement.operands, known, counts)
        _block(statement.condition, known, counts)
    elif isinstance(statement, If):
        for inner in statement.blocks:
            _block(inner, known, counts)
        for result, *sides in zip(statement.results, *(b.yields for b in statement.blocks), strict=True):
            known[result] = known.get(sides[0], Facts()).meet(known.get(sides[1], Facts()))


def _loop(
    loop: For | While, body: Block, arguments: list[Value], initial: list[Value], known: Known, counts: set[Value]
) -> None:
    """Assume what holds at the start, and weaken it until a step keeps it."""
    for argument, value in zip(arguments, initial, strict=True):
        known[argument] = known.get(value, Facts())
    while True:
        _block(body, known, counts)
        met = [known[a].meet(known.get(y, Facts())) for a, y in zip(arguments, body.yields, strict=True)]
        if met == [known[a] for a in arguments]:
            break
        known.update(zip(arguments, met, strict=True))
    known.update((r, known[a]) for r, a in zip(loop.results, arguments, strict=True))


SMALL_SHARE = 32  # of a window: whether a tile so small is read wide does not matter beside it


def promise(function: Function) -> dict[Value, int]:
    """Return what index parameters should be multiples of so that rows of arrays start on 16 bytes.

    Only those matter that offsets of addresses are computed from, or that windows cannot do without; what addresses
    are divided by, and where arrays end that a loop reads for products, where access is wider for it.
    """
    elements = [v.type.dtype.element for v in function.parameters if isinstance(v.type.dtype, Pointer)]
    if not elements:
        return {}
    ops = [s for s in walk(function.body) if isinstance(s, Op)]
    divisor = MAX_ACCESS_BYTES // min(e.itemsize for e in elements)
    offsets = _offsets(ops, function)
    found = dict.fromkeys(_reached(function, offsets), divisor)
    reads = [op for op in _read_for_products(function) if op.operands[0].type.elements >= _least(ops)]
    masks = [op.operands[1] for op in reads if len(op.operands) > 1]
    others = [v for v in _reached(function, [*offsets, *masks], in_any_way=True) if v not in found]
    widths = _widths_with(function, found, reads) if others else []
    for value in others:
        more = found | {value: divisor}
        if (wider := _widths_with(function, more, reads)) != widths:
            found, widths = more, wider
    needed = _needed([place for op in ops if op.row.is_window for place in aligned_places(op)], function)
    promised = found | {v: max(number, found.get(v, 1)) for v, number in needed.items()}
    return {v: number for v, number in promised.items() if number > 1}


def _offsets(ops: list[Op], function: Function) -> list[Value]:
    """What addresses are offset by; beside windows, only those of tiles that are not much smaller."""
    least = _least(ops)
    if least == 0:
        return [op.operands[-1] for op in ops if op.row.is_address]
    large = [op.operands[0] for op in ops if op.row.touches_memory and op.operands[0].type.elements >= least]
    links = sources(function.body)
    pointers = reached(large, lambda value: [v for v in links.get(value, []) if v.type.is_pointer])
    return [op.operands[-1] for op in ops if op.row.is_address and op.results[0] in pointers]


def _least(ops: list[Op]) -> int:
    """How many elements a tile has at least that matters beside windows; 0 where there are none."""
    return max((math.prod(op.attributes["block"]) for op in ops if op.row.is_window), default=0) // SMALL_SHARE


def aligned_places(window: Op) -> list[tuple[Value, int]]:
    """Numbers of a window that the hardware wants to be multiples of 16 bytes, in elements: strides, and its column."""
    base, _, strides, offsets = parts_of(window)
    assert isinstance(base.type.dtype, Pointer)
    count = MAX_ACCESS_BYTES // base.type.dtype.element.itemsize
    return [(value, count) for value in (*strides[:-1], offsets[-1])]


def _needed(places: list[tuple[Value, int]], function: Function) -> dict[Value, int]:
    """The least that must be promised of parameters for all of these numbers to be multiples."""
    most = max((count for _, count in places), default=1)
    promised = dict.fromkeys(_reached(function, [value for value, _ in places]), most)
    for parameter in list(promised):
        fewer = {v: number for v, number in promised.items() if v != parameter}
        known = facts_of(function, fewer)
        if all(known.get(value, Facts()).each % count == 0 for value, count in places):
            promised = fewer
    return promised


def _read_for_products(function: Function) -> list[Op]:
    """The reads in loops of products, whose masks no copy of the loop goes without."""
    loops = [s for s in walk(function.body) if isinstance(s, For)]
    bodies = [[s for s in loop.body.statements if isinstance(s, Op)] for loop in loops]
    of_products = [ops for ops in bodies if any(op.row.is_product for op in ops)]
    return [op for ops in of_products for op in ops if op.row.effect == "read" and not op.row.is_window]


def _widths_with(function: Function, promised: dict[Value, int], masked: list[Op]) -> list[tuple[int, ...]]:
    """How wide each access may be with what is promised; the masks of `masked` count, too."""
    facts_of(function, promised)
    accesses = [s for s in walk(function.body) if isinstance(s, Op) and "unmasked" in s.attributes]
    values = [(op, op.attributes) for op in accesses]
    return [(a["unmasked"], a["contiguous"], a["width"] if op in masked else 0) for op, a in values]


def _reached(function: Function, values: list[Value], *, in_any_way: bool = False) -> list[Value]:
    """The index parameters from which values are computed by what keeps multiples, or `in_any_way`."""
    made = definitions(function.body)
    inductions = {loop.body.arguments[0] for loop in walk(function.body) if isinstance(loop, For)}
    carried = {v: before for v, before in sources(function.body).items() if v not in inductions}
    met = reached(values, lambda value: _computed_from(value, made, carried, in_any_way))
    return [v for v in function.parameters if v in met and is_index(v)]


def is_index(value: Value) -> bool:
    """Whether a value is an integer."""
    dtype = value.type.dtype
    return value.type.is_scalar and isinstance(dtype, Dtype) and dtype.is_int


def _computed_from(
    value: Value, made: dict[Value, Statement], carried: dict[Value, list[Value]], in_any_way: bool
) -> list[Value]:
    """What arithmetic made `value` of, or loops and branches hand on: by ops that keep multiples, or `in_any_way`."""
    statement = made.get(value)
    if not isinstance(statement, Op):
        return carried.get(value, [])
    keeps_multiples = not statement.row.predicate and not statement.row.divides
    return statement.operands if statement.row.facts_function and (in_any_way or keeps_multiples) else []
