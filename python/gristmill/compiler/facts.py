"""What is known of a tile's values along its last axis: the ground on which wide memory access is proved."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gristmill.compiler.ir import Value

UNKNOWN_LIMIT = 1 << 30


@dataclass(frozen=True)
class Facts:
    """All powers of two, over aligned groups of elements along the last axis.

    Within groups of `contiguity` elements values rise by one, and the first of each is a multiple of `divisibility`
    (pointers: in bytes). Within groups of `constancy` elements values are equal. `constant` is the value, if known.
    Rules of what divides are told whether the value is never negative.
    """

    divisibility: int = 1
    contiguity: int = 1
    constancy: int = 1
    constant: int | None = None
    never_negative: bool = False

    @property
    def each(self) -> int:
        """What every element, not only the first of its group, is a multiple of."""
        return self.divisibility if self.contiguity == 1 else 1

    def first(self, group: int) -> int:
        """What the first of each group of `group` <= contiguity elements is a multiple of."""
        return self.divisibility if group >= self.contiguity else min(self.divisibility, group)

    def meet(self, other: Facts) -> Facts:
        """Return what holds of both."""
        contiguity = min(self.contiguity, other.contiguity)
        return Facts(
            min(self.first(contiguity), other.first(contiguity)),
            contiguity,
            min(self.constancy, other.constancy),
            self.constant if self.constant == other.constant else None,
        )


def power_of_two_in(number: int) -> int:
    """Return the largest power of two that divides `number`, at most 2**30 (which is the answer for 0)."""
    return min(number & -number, UNKNOWN_LIMIT) if number else UNKNOWN_LIMIT


def constant_facts(number: int, last: int) -> Facts:
    """Facts of a tile whose elements all are `number`."""
    return Facts(power_of_two_in(number), 1, last, number)


def add_facts(x: Facts, y: Facts, scale: int = 1) -> Facts:
    """Facts of x + scale * y; `scale` is an element's bytes where x is a pointer."""
    contiguity = max(min(x.contiguity, y.constancy), min(x.constancy, y.contiguity))
    known = x.constant is not None and y.constant is not None
    return Facts(
        min(x.first(contiguity), min(y.first(contiguity) * scale, UNKNOWN_LIMIT)),
        contiguity,
        min(x.constancy, y.constancy),
        x.constant + scale * y.constant if known else None,  # type: ignore[operator]
    )


def subtract_facts(x: Facts, y: Facts) -> Facts:
    """Facts of x - y."""
    contiguity = min(x.contiguity, y.constancy)
    known = x.constant is not None and y.constant is not None
    return Facts(
        min(x.first(contiguity), y.each),
        contiguity,
        min(x.constancy, y.constancy),
        x.constant - y.constant if known else None,  # type: ignore[operator]
    )


def multiply_facts(x: Facts, y: Facts) -> Facts:
    """Facts of x * y."""
    for a, b in ((x, y), (y, x)):
        if b.constant == 1:
            return replace(a, constancy=min(a.constancy, b.constancy))
    known = x.constant is not None and y.constant is not None
    product = x.constant * y.constant if known else None  # type: ignore[operator]
    return Facts(min(x.each * y.each, UNKNOWN_LIMIT), 1, min(x.constancy, y.constancy), product)


def remainder_facts(x: Facts, y: Facts) -> Facts:
    """Facts of x % y, which has the sign of x: groups between two multiples of y stay whole, if none is below 0."""
    group = min(x.contiguity, x.divisibility, y.constancy, y.each) if x.never_negative else 1
    return Facts(min(x.first(group), y.each), group, min(x.constancy, y.constancy))


def compare_facts(predicate: str, x: Facts, y: Facts) -> Facts:
    """Facts of the bools of a comparison: a rising group against a fixed bound flips only between groups."""
    constancy = min(x.constancy, y.constancy)
    if predicate in ("<", ">="):
        constancy = max(constancy, _flip_group(x, y))
    if predicate in (">", "<="):
        constancy = max(constancy, _flip_group(y, x))
    return Facts(constancy=constancy)


def _flip_group(rising: Facts, bound: Facts) -> int:
    return min(rising.contiguity, bound.constancy, rising.divisibility, bound.divisibility)


@dataclass(frozen=True)
class Span:
    """The values of an integer tile: the sum of scalars (`terms`) plus something from `low` to `high`, both reached."""

    terms: tuple[Value, ...]
    low: int
    high: int
