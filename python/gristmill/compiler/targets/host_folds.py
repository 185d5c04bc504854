"""Reductions and scans on the CPU: vector accumulators along rows, whole runs across columns, running totals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op
from gristmill.compiler.machine import Combine, V
from gristmill.compiler.targets import host_memory
from gristmill.compiler.targets.host_loops import mark, passed_by
from gristmill.compiler.targets.host_tiles import Buffer, Index

ACCUMULATORS = 4
Element = list[V]
Place = Callable[[V], V]


class _Fold:
    """What a reduction or scan works on: its tiles, which are read together, and how two elements combine."""

    def __init__(self, m: Any, tiles: Sequence[Any], combine: Combine):
        self.m, self.tiles, self.combine = m, tiles, combine

    def at(self, index: Index) -> Element:
        return [self.m.widen(self.m.at(tile, index), index.lanes) for tile in self.tiles]

    def two(self, a: Element, b: Element) -> Element:
        lanes = max(x.lanes for x in (*a, *b))
        return [self.m.widen(x, lanes) for x in self.combine(a, b)]

    def write(self, buffers: Sequence[Buffer], index: Index, element: Element) -> None:
        for buffer, x in zip(buffers, element, strict=True):
            host_memory.write(self.m, buffer, index, x)


def _extents(op: Op, axis: int) -> tuple[int, int, int]:
    shape = op.operands[0].type.shape
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def reduce(m: Any, op: Op, tiles: Sequence[Any], axis: int, combine: Combine, identities: Any) -> list[Any]:
    """Reduce along an axis: vector accumulators, then their lanes; or whole runs where the axis is not the last."""
    outer, size, inner = _extents(op, axis)
    fold, passed = _Fold(m, tiles, combine), passed_by(tiles)
    if op.results[0].type.is_scalar:
        result: list[Any] = _row(fold, m.constant(dt.i64, 0), size, identities)
    else:
        result = [m.buffer(value) for value in op.results]
        if inner == 1:
            _rows(fold, result, outer, size, identities)
        else:
            _columns(fold, result, (outer, size, inner))
    mark(passed)
    return result


def _row(fold: _Fold, start: V, size: int, identities: Any) -> Element:
    m = fold.m
    lanes = min(m.target.lanes, size)
    chains = max(1, min(ACCUMULATORS, size // lanes))
    step = lanes * chains

    def chunk(position: V) -> list[Element]:
        places = [m.add(start, m.add(position, m.constant(dt.i64, i * lanes))) for i in range(chains)]
        return [fold.at(Index("run", at, lanes)) for at in places]

    def body(position: V, carried: list[V]) -> list[V]:
        totals = _elements(carried, len(fold.tiles))
        return [x for total, new in zip(totals, chunk(position), strict=True) for x in fold.two(total, new)]

    if identities is not None:
        initial = [m.widen(m.constant(*identity), lanes) for identity in identities] * chains
        totals = _elements(m.repeat(size, step, initial, body), len(fold.tiles))
    else:
        first = [x for element in chunk(m.constant(dt.i64, 0)) for x in element]
        rest = _later(m, step, body)
        totals = _elements(m.repeat(size - step, step, first, rest) if size > step else first, len(fold.tiles))
    while len(totals) > 1:
        totals = [fold.two(a, b) for a, b in zip(totals[::2], totals[1::2], strict=True)]
    return _across(fold, totals[0])


def _later(m: Any, step: int, body: Callable[[V, list[V]], list[V]]) -> Callable[[V, list[V]], list[V]]:
    return lambda position, carried: body(m.add(position, m.constant(dt.i64, step)), carried)


def _elements(flat: Sequence[V], width: int) -> list[Element]:
    return [list(flat[i : i + width]) for i in range(0, len(flat), width)]


def _across(fold: _Fold, element: Element) -> Element:
    """Combine a vector's lanes: the lower half with the upper, until one is left."""
    m = fold.m
    while element[0].lanes > 1:
        half = element[0].lanes // 2
        element = fold.two(*([_part(m, x, first, half) for x in element] for first in (0, half)))
    return [m.emit(f"extractelement {m.typed(x)}, i64 0", x.dtype) for x in element]


def _part(m: Any, x: V, first: int, lanes: int) -> V:
    order = ", ".join(f"i32 {first + i}" for i in range(lanes))
    vector = m.type_of(x.dtype, x.lanes)
    return m.emit(f"shufflevector {m.typed(x)}, {vector} poison, <{lanes} x i32> <{order}>", x.dtype, lanes)


def _rows(fold: _Fold, results: Sequence[Buffer], rows: int, size: int, identities: Any) -> None:
    m = fold.m

    def body(row: V, carried: list[V]) -> list[V]:
        total = _row(fold, m.multiply(row, m.constant(dt.i64, size)), size, identities)
        fold.write(results, Index("one", row, 0), total)
        return carried

    m.repeat(rows, 1, [], body)


def _columns(fold: _Fold, results: Sequence[Buffer], extents: tuple[int, int, int]) -> None:
    m, (outer, size, inner) = fold.m, extents

    def finish(a: V, b: V, lanes: int, row_at: Callable[[V], Index]) -> None:
        def step(k: V, total: list[V]) -> list[V]:
            return fold.two(total, fold.at(row_at(m.add(k, m.constant(dt.i64, 1)))))

        first = fold.at(row_at(m.constant(dt.i64, 0)))
        total = m.repeat(size - 1, 1, first, step) if size > 1 else first
        place = m.add(m.multiply(a, m.constant(dt.i64, inner)), b)
        fold.write(results, Index("run", place, lanes), total)

    _each_column(m, (outer, size, inner), finish)


def _each_column(
    m: Any, extents: tuple[int, int, int], visit: Callable[[V, V, int, Callable[[V], Index]], None]
) -> None:
    """Visit runs of neighbouring columns: (outer position, column, lanes, index of the run in a row of the axis)."""
    outer, size, inner = extents
    lanes = min(m.target.lanes, inner)

    def block(a: V, carried: list[V]) -> list[V]:
        def column(b: V, carried: list[V]) -> list[V]:
            def row_at(k: V) -> Index:
                row = m.add(m.multiply(a, m.constant(dt.i64, size)), k)
                at = m.add(m.multiply(row, m.constant(dt.i64, inner)), b)
                return Index("run", at, lanes) if lanes > 1 else Index("one", at, 0)

            visit(a, b, lanes, row_at)
            return carried

        m.repeat(inner, lanes, [], column)
        return carried

    m.repeat(outer, 1, [], block)


def scan(m: Any, op: Op, tiles: Sequence[Any], axis: int, combine: Combine, reverse: bool) -> list[Any]:
    """Running totals along an axis, for runs of neighbouring columns at a time."""
    outer, size, inner = _extents(op, axis)
    fold, passed = _Fold(m, tiles, combine), passed_by(tiles)
    results = [m.buffer(value) for value in op.results]

    def turned(k: V) -> V:
        return m.subtract(m.constant(dt.i64, size - 1), k) if reverse else k

    def visit(a: V, b: V, lanes: int, row_at: Callable[[V], Index]) -> None:
        def step(k: V, total: list[V]) -> list[V]:
            index = row_at(turned(m.add(k, m.constant(dt.i64, 1))))
            total = fold.two(total, fold.at(index))
            fold.write(results, index, total)
            return total

        index = row_at(turned(m.constant(dt.i64, 0)))
        first = fold.at(index)
        fold.write(results, index, first)
        if size > 1:
            m.repeat(size - 1, 1, first, step)

    _each_column(m, (outer, size, inner), visit)
    mark(passed)
    return results
