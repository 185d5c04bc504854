"""Tail versioning: where a whole block lies inside its bound, run a copy without masks.

A mask `offsets < bound` whose offsets are a scalar plus an arange holds for the whole block if its largest offset is
below the bound, which one scalar comparison tells. Straight code becomes `if inside: copy without masks else: as
written`; a loop over blocks becomes a loop over the full ones, without masks, and one over the rest. Only masks that
cost something are worth the second copy: those that make an access narrower, where the machine has predicated access,
and those of tiles that fill several blocks of a cluster, whose threads have more elements than predicates.
"""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.compiler.facts import Span
from gristmill.compiler.ir import Block, For, Function, If, Op, Statement, Value, clone_block, definitions, walk
from gristmill.compiler.op import Builder, building
from gristmill.compiler.passes import spread, tensor
from gristmill.dtypes import bool_, i64
from gristmill.language import bits
from gristmill.language import elementwise as ew
from gristmill.language.casts import cast
from gristmill.language.types import constant


@dataclass(frozen=True)
class Bound:
    """The mask is true everywhere if the sum of `terms` plus `high` is less than that of `limit` plus `shift`."""

    terms: tuple[Value, ...]
    high: int
    limit: tuple[Value, ...]
    shift: int


def run(function: Function) -> None:
    """Version every loop and block of the kernel that has such masks."""
    _mark_operands(function)
    _mark_spread(function)
    _version_block(function.body, function, set(function.body.arguments))


def _mark_operands(function: Function) -> None:
    """Set `is_operand` of the loads whose tiles a tensor core may multiply, as they are or turned."""
    if function.sm < tensor.LOWEST_SM:
        return
    made = definitions(function.body)
    for op in (s for s in walk(function.body) if isinstance(s, Op) and s.row.is_product):
        for value in op.operands[:2]:
            source = made.get(value)
            while isinstance(source, Op) and source.row.is_view:
                source = made.get(source.operands[0])
            if isinstance(source, Op) and source.row.effect == "read":
                source.attributes["is_operand"] = True


def _mark_spread(function: Function) -> None:
    """Set `is_spread` of the loads whose tiles the blocks of a cluster will share, or a block will hold."""
    elements, _ = spread.largest(function)
    if spread.is_much(function, elements):
        for op in (s for s in walk(function.body) if isinstance(s, Op) and s.row.effect == "read"):
            if op.results[0].type.elements == elements:
                op.attributes["is_spread"] = True


class Masks:
    """The masks of a function and what makes them true everywhere."""

    def __init__(self, function: Function):
        self.made = definitions(function.body)

    def source(self, value: Value) -> Value:
        """What the value repeats or regroups."""
        statement = self.made.get(value)
        is_view = isinstance(statement, Op) and statement.row.is_view
        return self.source(statement.operands[0]) if is_view and statement else value

    def span(self, value: Value) -> Span | None:
        """The range of an integer tile or scalar; a scalar that is no sum stands for itself."""
        statement, found = self.made.get(value), None
        if isinstance(statement, Op) and statement.row.is_view:
            found = self.span(statement.operands[0])
        elif isinstance(statement, Op) and statement.row.span_function is not None:
            spans = [self.span(v) for v in statement.operands]
            found = None if None in spans else statement.row.span_function(statement, *spans)
        is_leaf = found is None and value.type.is_scalar and not value.type.is_pointer
        return Span((value,), 0, 0) if is_leaf else found

    def bounds(self, mask: Value) -> list[Bound] | None:
        statement = self.made.get(mask)
        if not isinstance(statement, Op):
            return None
        if statement.row.is_view:
            return self.bounds(statement.operands[0])
        if statement.row.is_conjunction:
            parts = [self.bounds(v) for v in statement.operands]
            return None if None in parts else [b for part in parts for b in part or []]
        if statement.row.predicate not in ("<", ">="):
            return None
        left, right = (self.span(v) for v in statement.operands)
        if left is None or right is None or right.low != right.high:
            return None
        if statement.row.predicate == ">=":
            return [Bound(right.terms, right.high - 1, left.terms, left.low)]
        return [Bound(left.terms, left.high, right.terms, right.low)]


def _costly(statement: Statement) -> bool:
    """Whether a mask makes an access narrower, or has many parts; true where widths are not known yet."""
    attributes = statement.attributes
    is_narrower = attributes.get("width", 0) < attributes.get("unmasked", 1)
    return bool(is_narrower or attributes.get("is_operand") or attributes.get("is_spread"))


def _masked(statement: Statement) -> Value | None:
    """The mask operand of a memory op, if it has one: the only bool block beside its pointers."""
    if isinstance(statement, Op) and statement.row.touches_memory and statement.operands[0].type.is_pointer:
        place = 1 if statement.row.effect == "read" else 2
        if len(statement.operands) > place and statement.operands[place].type.shape:
            mask = statement.operands[place]
            return mask if mask.type.dtype == bool_ else None
    return None


def _version_block(block: Block, function: Function, outer: set[Value]) -> None:
    known = set(outer) | set(block.arguments)
    statements: list[Statement] = []
    for statement in block.statements:
        if isinstance(statement, For):
            statements += _split_loop(statement, function, known)
        else:
            for inner in statement.blocks:
                _version_block(inner, function, known)
            statements.append(statement)
        known |= set(statement.results)
    block.statements[:] = statements
    if not block.yields:
        _version_straight(block, function, outer)


def _split_loop(loop: For, function: Function, known: set[Value]) -> list[Statement]:
    masks = Masks(function)
    induction = loop.body.arguments[0]
    free: dict[Value, list[Bound]] = {}
    for statement in loop.body.statements:
        mask = _masked(statement) if _costly(statement) else None
        bounds = masks.bounds(mask) if mask is not None else None
        if mask is not None and bounds and all(_splits(b, induction, known) for b in bounds):
            free[mask] = bounds
    if not free:
        _version_block(loop.body, function, known)
        return [loop]
    return _two_loops(loop, free, masks)


def _splits(bound: Bound, induction: Value, known: set[Value]) -> bool:
    others = [v for v in bound.terms if v is not induction]
    return len(others) >= len(bound.terms) - 1 and all(v in known for v in (*others, *bound.limit))


def _two_loops(loop: For, free: dict[Value, list[Bound]], masks: Masks) -> list[Statement]:
    lower, upper, step = loop.operands[:3]
    block = Block()
    with building(Builder(block)):
        stop, induction = _wide(upper), loop.body.arguments[0]
        every = dict.fromkeys(b for bounds in free.values() for b in bounds)
        for bound in (b for b in every if induction in b.terms):
            stop = ew.minimum(stop, _last_start(bound, induction))
        stop = cast(ew.maximum(stop, _wide(lower)), upper.type.dtype)
        fixed = dict.fromkeys(b for b in every if induction not in b.terms)
        if fixed:  # one that fails leaves no step to the copy without masks
            stop = ew.where(_all_inside(fixed), stop, lower)
        full = ew.maximum(ew.sub(stop, lower), 0)
        steps = ew.floordiv(ew.add(full, ew.sub(step, 1)), step)
        middle = ew.add(lower, ew.mul(steps, step))
    body = _without_masks(loop.body, set(free), masks)
    results = [Value(v.type, v.name) for v in loop.results]
    inside = For([lower, stop, step, *loop.operands[3:]], body, results, dict(loop.attributes), loop.position)
    rest = For([middle, upper, step, *results], loop.body, loop.results, dict(loop.attributes), loop.position)
    return [*block.statements, inside, rest]


def _last_start(bound: Bound, induction: Value) -> Value:
    """The first induction value that is not inside: limit + shift - high - the other terms."""
    result = constant(bound.shift - bound.high, i64)
    for value in bound.limit:
        result = ew.add(result, _wide(value))
    for value in bound.terms:
        if value is not induction:
            result = ew.sub(result, _wide(value))
    return result


def _wide(value: Value) -> Value:
    """The number in 64 bits, whose sums do not wrap round."""
    return cast(value, i64)


def _without_masks(block: Block, free: set[Value], masks: Masks) -> Block:
    """A copy in which the masks hold: accesses go without them, and what is chosen by them needs no choice."""

    def chosen(op: Op, operands: list[Value]) -> Value | None:
        return operands[1] if op.row.is_choice and masks.source(op.operands[0]) in free else None

    copy = clone_block(block, {}, chosen)
    olds = (old for old in walk(block) if not (isinstance(old, Op) and chosen(old, old.operands)))
    for old, new in zip(olds, walk(copy), strict=True):
        mask = _masked(old)
        if mask is not None and mask in free:
            place = old.operands.index(mask)
            del new.operands[place:]
    return copy


def _version_straight(block: Block, function: Function, outer: set[Value]) -> None:
    """Put what follows the first such mask's use under `if inside`, in two copies."""
    masks = Masks(function)
    known = outer | set(block.arguments)
    free: dict[Value, list[Bound]] = {}
    start = None
    for i, statement in enumerate(block.statements):
        for inner in (statement, *(s for b in statement.blocks for s in walk(b))):
            mask = _masked(inner) if _costly(inner) else None
            bounds = masks.bounds(mask) if mask is not None else None
            if mask is not None and bounds and all(v in known for b in bounds for v in (*b.terms, *b.limit)):
                free[mask] = bounds
                start = i if start is None else start
        if start is None:
            known |= set(statement.results)
    if start is None:
        return
    rest = Block(statements=block.statements[start:])
    del block.statements[start:]
    with building(Builder(block)):
        inside = _all_inside(dict.fromkeys(b for bounds in free.values() for b in bounds))
    block.statements.append(If([inside], _without_masks(rest, set(free), masks), rest, []))


def _all_inside(bounds: dict[Bound, None]) -> Value:
    inside: Value | None = None
    for bound in bounds:
        one = ew.lt(_sum(bound.terms, bound.high), _sum(bound.limit, bound.shift))
        inside = one if inside is None else bits.and_(inside, one)
    assert inside is not None
    return inside


def _sum(terms: tuple[Value, ...], shift: int) -> Value:
    result = constant(shift, i64)
    for value in terms:
        result = ew.add(result, _wide(value))
    return result
