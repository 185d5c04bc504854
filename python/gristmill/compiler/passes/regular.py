"""Blocks that are read through pointers, as windows: where addresses are those of a block of a matrix.

The address of an element is taken apart into terms: products of scalars, of which one, along each axis, is counted up.
One axis goes element by element; the other's step is the stride, and what else has it as a factor is an offset along
it. A mask `index < bound` says how long an axis is. What is no such block is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from gristmill import symbolic
from gristmill.compiler.ir import Block, For, Function, Op, Pointer, Statement, Value, definitions, uses, walk
from gristmill.compiler.op import ROWS, Builder, building
from gristmill.compiler.passes.signs import never_negative
from gristmill.compiler.passes.windows import is_known, promised_facts, source_of
from gristmill.language import elementwise as ew
from gristmill.language.index import index_dtype
from gristmill.language.types import constant
from gristmill.language.windows import window

UNBOUNDED = (1 << 31) - 1  # elements of an axis whose length no mask tells
MOST_TERMS = 8
LEAST_BITS = 32
SIGNS = {symbolic.Op.ADD: 1, symbolic.Op.SUB: -1}
Axes = Sequence[int]


@dataclass(frozen=True)
class Term:
    """`number` times the product of `factors`, times the index along `axis` if there is one."""

    number: int
    factors: tuple[Value, ...] = ()
    axis: int | None = None

    def times(self, other: Term) -> Term:
        """The product; at most one of them is counted up."""
        axis = self.axis if other.axis is None else other.axis
        return Term(self.number * other.number, (*self.factors, *other.factors), axis)


def run(function: Function) -> None:
    """Let loads in innermost loops that are operands of products be windows, if they are matrices of regular blocks."""
    made, counts = definitions(function.body), uses(function.body)
    products = [s for s in walk(function.body) if isinstance(s, Op) and s.row.is_product]
    operands = {source_of(v, made): source_of(v, made) is made.get(v) for op in products for v in op.operands[:2]}
    reader = _Reader(function, made)
    for loop in (s for s in walk(function.body) if isinstance(s, For)):
        is_innermost = all(isinstance(s, Op) for s in loop.body.statements)
        statements: list[Statement] = []
        for statement in loop.body.statements:
            is_candidate = is_innermost and isinstance(statement, Op) and statement.row.effect == "read"
            found = None
            if is_candidate and statement in operands and counts[statement.results[0]] == 1:
                found = reader.window(statement, operands[statement])  # type: ignore[arg-type]
            statements += [statement] if found is None else found
        loop.body.statements[:] = statements


class _Reader:
    """Takes addresses and masks apart."""

    def __init__(self, function: Function, made: dict[Value, Statement]):
        self.function, self.made = function, made
        self.never_negative, self.facts = never_negative(function), promised_facts(function)

    def window(self, load: Op, can_be_turned: bool) -> list[Statement] | None:
        """The ops that read the same as a window; None if it is none, or no map could be made of it."""
        pointers, *others = load.operands
        if load.row.is_window or load.attributes.get("volatile") or len(pointers.type.shape) != 2 or len(others) > 1:
            return None
        found = self.address(pointers, (0, 1))
        bounds = self.bounds(others[0], (0, 1)) if others else []
        if found is None or bounds is None:
            return None
        base, terms = found
        along = {term.axis: term for term in terms if term.axis is not None}
        steps = [term for term in terms if term.axis is not None]
        inner = next((axis for axis, term in along.items() if term.number == 1 and not term.factors), None)
        if len(steps) != 2 or len(along) != 2 or inner is None or (inner == 0 and not can_be_turned):
            return None
        stride = along[1 - inner]
        places: list[list[Term]] = [[], []]
        for term in (t for t in terms if t.axis is None):
            rest = _without(term, stride)
            places[inner if rest is None else 1 - inner].append(term if rest is None else rest)
        lengths = _lengths([b.difference for b in bounds if not b.is_from_zero], places)
        if lengths is None or stride.number < 1 or not self._begin_inside(bounds, places):
            return None
        return self._known(_emitted(load, base, stride, places, lengths, inner))

    def _begin_inside(self, bounds: list[Bound], places: list[list[Term]]) -> bool:
        """Whether no index is below 0 but where a mask forbids it; such masks must compare just these indices."""
        masked = set()
        for bound in (b for b in bounds if b.is_from_zero):
            axes = [term.axis for term in bound.difference if term.axis is not None]
            if len(axes) != 1 or axes[0] is None:
                return False
            rest = [Term(-t.number, t.factors) for t in bound.difference if t.axis is None]
            if _added(rest, places[axes[0]]) or Term(1, (), axes[0]) not in bound.difference:
                return False
            masked.add(axes[0])
        return all(axis in masked or all(map(self._is_never_negative, places[axis])) for axis in (0, 1))

    def _is_never_negative(self, term: Term) -> bool:
        return term.number >= 0 and all(factor in self.never_negative for factor in term.factors)

    def _known(self, statements: list[Statement]) -> list[Statement] | None:
        """The same if a map can be made of the window."""
        made = self.made | {v: s for s in statements for v in s.results}
        window = next(s for s in statements if isinstance(s, Op) and s.row.is_window)
        return statements if is_known(window, self.function, made, self.facts) else None

    def address(self, value: Value, axes: Axes) -> tuple[Value, list[Term]] | None:
        """The argument that an address lies in, and what is added to it."""
        if value in self.function.parameters:
            return value, []
        op = self.made.get(value)
        if not isinstance(op, Op):
            return None
        if op.row.is_address:
            found, added = self.address(op.operands[0], axes), self.terms(op.operands[-1], axes)
            return None if found is None or added is None else (found[0], _added(found[1], added))
        inner = _view_axes(op, axes)
        return None if inner is None else self.address(op.operands[0], inner)

    def terms(self, value: Value, axes: Axes) -> list[Term] | None:
        """A number, or a tile of them, as a sum; what wraps round, or has no sign, is not taken apart."""
        op, dtype = self.made.get(value), value.type.dtype
        if not isinstance(op, Op) or value in self.function.parameters or not _is_plain(dtype):
            return self._leaf(value)
        if not op.operands and "value" in op.attributes:
            return [Term(op.attributes["value"])]
        if not op.operands and "start" in op.attributes:
            return _added([Term(1, (), axes[0])], [Term(op.attributes["start"])])
        if op.row.is_view:
            inner = _view_axes(op, axes)
            return None if inner is None else self.terms(op.operands[0], inner)
        if op.row.is_cast:
            return self.terms(op.operands[0], axes) if _is_wider(op) else self._leaf(value)
        if op.row.expression in (*SIGNS, symbolic.Op.MUL):
            return _combined(op.row.expression, *(self.terms(v, axes) for v in op.operands))
        return self._leaf(value)

    def _leaf(self, value: Value) -> list[Term] | None:
        return [Term(1, (value,))] if value.type.is_scalar else None

    def bounds(self, mask: Value, axes: Axes) -> list[Bound] | None:
        """What the comparisons of a mask say of indices."""
        op = self.made.get(mask)
        if not isinstance(op, Op):
            return None
        if op.row.is_view:
            inner = _view_axes(op, axes)
            return None if inner is None else self.bounds(op.operands[0], inner)
        if op.row.is_conjunction:
            parts = [self.bounds(v, axes) for v in op.operands]
            return None if None in parts else [bound for part in parts for bound in part or []]
        if op.row.predicate not in ("<", ">=") or not all(_is_plain(v.type.dtype) for v in op.operands):
            return None
        difference = _combined(symbolic.Op.SUB, *(self.terms(v, axes) for v in op.operands))
        return None if difference is None else [Bound(difference, op.row.predicate == ">=")]


@dataclass(frozen=True)
class Bound:
    """A difference that is below 0, or `is_from_zero`."""

    difference: list[Term]
    is_from_zero: bool


def _view_axes(op: Op, axes: Axes) -> Axes | None:
    """Which of the tile's axes those of a view's operand are; None of what is no such view."""
    if not op.row.is_view or len(op.operands) != 1:
        return None
    shape = op.operands[0].type.shape
    if not shape:
        return ()
    if "axis" in op.attributes:
        axis = op.attributes["axis"] % len(axes)
        return (*axes[:axis], *axes[axis + 1 :])
    if "order" in op.attributes:
        return tuple(axes[op.attributes["order"].index(i)] for i in range(len(shape)))
    result = op.results[0].type.shape
    is_repeated = len(shape) == len(result) and all(a in (1, b) for a, b in zip(shape, result, strict=True))
    return axes if is_repeated and len(shape) == len(axes) else None


def _is_plain(dtype: Any) -> bool:
    """Whether numbers have a sign, and room enough not to wrap round."""
    return not isinstance(dtype, Pointer) and dtype.is_int and dtype.is_signed and dtype.bits >= LEAST_BITS


def _is_wider(op: Op) -> bool:
    given, made = op.operands[0].type.dtype, op.results[0].type.dtype
    return _is_plain(given) and _is_plain(made) and given.bits <= made.bits


def _added(*sums: Sequence[Term]) -> list[Term]:
    """Terms together, equal ones as one."""
    found: dict[Any, Term] = {}
    for term in (t for terms in sums for t in terms):
        key = (frozenset((f, term.factors.count(f)) for f in term.factors), term.axis)
        before = found.get(key)
        found[key] = term if before is None else Term(before.number + term.number, term.factors, term.axis)
    return [term for term in found.values() if term.number]


def _combined(how: Any, left: Sequence[Term] | None, right: Sequence[Term] | None) -> list[Term] | None:
    """What a sum, difference or product is made of; None where that is too much, or indices are multiplied."""
    if left is None or right is None:
        return None
    if how in SIGNS:
        return _added(left, [Term(SIGNS[how] * t.number, t.factors, t.axis) for t in right])
    products = [x.times(y) for x in left for y in right if x.axis is None or y.axis is None]
    return _added(products) if len(products) == len(left) * len(right) <= MOST_TERMS else None


def _without(term: Term, stride: Term) -> Term | None:
    """The term divided by a stride; None if that is no factor of it."""
    factors = list(term.factors)
    for factor in stride.factors:
        if factor not in factors:
            return None
        factors.remove(factor)
    return Term(term.number // stride.number, tuple(factors)) if term.number % stride.number == 0 else None


def _lengths(ends: Sequence[list[Term]], places: Sequence[list[Term]]) -> list[list[Term]] | None:
    """How long each axis is: the index at which the mask ends, counted from the start of the array."""
    lengths: list[list[Term] | None] = [None, None]
    for difference in ends:
        steps = [term for term in difference if term.axis is not None]
        if len(steps) != 1 or steps[0].number != 1 or steps[0].factors:
            return None
        axis = steps[0].axis
        assert axis is not None
        rest = [Term(-t.number, t.factors) for t in difference if t.axis is None]
        if lengths[axis] is not None:
            return None
        lengths[axis] = _added(rest, places[axis])
    return [length if length is not None else [Term(UNBOUNDED)] for length in lengths]


def _emitted(
    load: Op, base: Value, stride: Term, places: list[list[Term]], lengths: list[list[Term]], inner: int
) -> list[Statement]:
    """The window, and what turns it where its rows are the load's columns."""
    outer, dtype = 1 - inner, index_dtype()
    block, result, shape = Block(), load.results[0], load.results[0].type.shape
    with building(Builder(block)) as builder:
        builder.position = load.position
        sizes = [_value(lengths[axis], dtype) for axis in (outer, inner)]
        offsets = [_value(places[axis], dtype) for axis in (outer, inner)]
        steps = [_value([stride], dtype, has_axis=True), constant(1, dtype)]
        read = window(base, sizes, steps, offsets, (shape[outer], shape[inner]))
        if inner == 0:
            read = ROWS["permute"](read, (1, 0))
    last = block.statements[-1]
    last.results[:] = [result]
    return block.statements


def _value(terms: Sequence[Term], dtype: Any, has_axis: bool = False) -> Value:
    """The sum as a number."""
    numbers = [_product(term, dtype) for term in terms if has_axis or term.axis is None]
    return reduce(ew.add, numbers) if numbers else constant(0, dtype)


def _product(term: Term, dtype: Any) -> Value:
    parts: list[Any] = [*term.factors]
    if term.number != 1 or not parts:
        parts.append(constant(term.number, dtype))
    return reduce(ew.mul, parts)
