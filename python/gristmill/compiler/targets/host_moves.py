"""Ops that move elements on the CPU: each fills a buffer, reading its operands wherever the elements come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Tile, Value
from gristmill.compiler.machine import V
from gristmill.compiler.targets import host_loops, host_memory
from gristmill.compiler.targets.host_tiles import Buffer, Index, Lazy


def _filled(m: Any, result: Value, tiles: Sequence[Any], element: Callable[[Index], V]) -> Buffer:
    """Fill a buffer with `element`, which reads `tiles` at other positions."""
    made = Lazy(result.type.shape, element, [(tile, False) for tile in tiles])
    m.settle([made])
    buffer: Buffer = m.buffer(result)
    host_loops.sweep(m, result.type.shape, [made], lambda i: host_memory.write(m, buffer, i, m.at(made, i)))
    return buffer


def _c(m: Any, number: int) -> V:
    return m.constant(dt.i64, number)


def _some(m: Any, at: V, like: Index) -> Index:
    return Index("some", m.widen(at, like.lanes), like.lanes)


def join(m: Any, result: Value, x: Any, y: Any) -> Buffer:
    """Pairs of elements of two tiles."""

    def element(index: Index) -> V:
        at = host_memory.positions(m, index)
        source = _some(m, m.shift_right(at, _c(m, 1)), index)
        is_first = m.compare("==", m.bit_and(at, _c(m, 1)), _c(m, 0))
        return m.select(is_first, m.at(x, source), m.at(y, source))

    return _filled(m, result, [x, y], element)


def split(m: Any, results: Sequence[Value], tile: Any) -> list[Buffer]:
    """The first and the second elements of pairs."""

    def half(which: int) -> Callable[[Index], V]:
        def element(index: Index) -> V:
            at = m.add(m.multiply(host_memory.positions(m, index), _c(m, 2)), _c(m, which))
            return m.at(tile, _some(m, at, index))

        return element

    return [_filled(m, value, [tile], half(which)) for which, value in enumerate(results)]


def exchange(m: Any, result: Value, tile: Any, axis: int, mask: int) -> Buffer:
    """Elements whose coordinate differs by `mask`: whole runs where it is no smaller than they are."""
    flat = mask * math.prod(result.type.shape[axis + 1 :])

    def element(index: Index) -> V:
        if index.kind == "run" and flat % index.lanes == 0:
            return m.at(tile, Index("run", m.bit_xor(index.at, _c(m, flat)), index.lanes))
        return m.at(tile, _some(m, m.bit_xor(host_memory.positions(m, index), _c(m, flat)), index))

    return _filled(m, result, [tile], element)


def gather(m: Any, result: Value, tile: Any, places: Any, axis: int) -> Buffer:
    """Elements at given coordinates along an axis."""
    shape, source = result.type.shape, tile.shape

    def element(index: Index) -> V:
        total = _c(m, 0)
        for a in range(len(shape)):
            coordinate = (
                m.cast(m.at(places, index), dt.i64) if a == axis else host_memory.coordinate(m, index, shape, a)
            )
            total = m.add(total, m.multiply(coordinate, _c(m, math.prod(source[a + 1 :]))))
        return m.at(tile, _some(m, total, index))

    return _filled(m, result, [tile, places], element)


def histogram(m: Any, result: Value, tile: Any, mask: Any) -> Buffer:
    """Counts, one element after another."""
    (bins,), elements = result.type.shape, tile.shape[0]
    m.settle([t for t in (tile, mask) if t is not None])
    buffer: Buffer = m.buffer(result)
    zero = Lazy(result.type.shape, lambda index: m.widen(m.constant(dt.i32, 0), index.lanes))
    host_loops.sweep(m, result.type.shape, [], lambda i: host_memory.write(m, buffer, i, m.at(zero, i)))
    passed = host_loops.passed_by([t for t in (tile, mask) if t is not None])

    def body(position: V, carried: list[V]) -> list[V]:
        index = Index("one", position, 0)
        bin_ = m.cast(m.at(tile, index), dt.i64)
        counts = m.bit_and(m.compare(">=", bin_, _c(m, 0)), m.compare("<", bin_, _c(m, bins)))
        if mask is not None:
            counts = m.bit_and(counts, m.at(mask, index))
        place = Index("one", m.select(counts, bin_, _c(m, 0)), 0)
        more = m.select(counts, m.constant(dt.i32, 1), m.constant(dt.i32, 0))
        host_memory.write(m, buffer, place, m.add(host_memory.read(m, buffer, place), more))
        return carried

    m.repeat(elements, 1, [], body)
    host_loops.mark(passed)
    return buffer


ROWS, VECTORS = 4, 2  # of a product that are summed in registers at a time


def _in_memory(m: Any, value: Value, tile: Any) -> Buffer:
    """A tile converted to the dtype of `value`, in a buffer of its own."""
    return _filled(m, value, [tile], lambda index: m.cast(m.at(tile, index), value.type.dtype))


def dot(m: Any, result: Value, a: Any, b: Any, acc: Any) -> Buffer:
    """A matrix product, a few rows and vectors of columns at a time, from copies of the operands in memory."""
    *outer, height, width = result.type.shape
    depth, dtype = a.shape[-1], result.type.dtype
    left, right = (_in_memory(m, Value(Tile(dtype, t.shape)), t) for t in (a, b))
    out = _in_memory(m, result, acc)
    lanes = min(m.target.lanes, width)
    rows, vectors = min(ROWS, height), min(VECTORS, width // lanes)

    def block(batch: V, row: V, column: V) -> None:
        def at(line: V, size: int, place: V, index_lanes: int) -> Index:
            position = m.add(m.multiply(line, _c(m, size)), place)
            return Index("run", position, index_lanes) if index_lanes > 1 else Index("one", position, 0)

        def lines(count: int) -> list[V]:
            first = m.add(m.multiply(batch, _c(m, count)), row)
            return [m.add(first, _c(m, i)) for i in range(rows)]

        columns = [m.add(column, _c(m, j * lanes)) for j in range(vectors)]
        places = [at(line, width, c, lanes) for line in lines(height) for c in columns]

        def step(k: V, sums: list[V]) -> list[V]:
            line = m.add(m.multiply(batch, _c(m, depth)), k)
            ys = [host_memory.read(m, right, at(line, width, c, lanes)) for c in columns]
            xs = [host_memory.read(m, left, at(line, depth, k, 1)) for line in lines(height)]
            pairs = [(x, y) for x in xs for y in ys]
            return [_multiply_add(m, x, y, z) for (x, y), z in zip(pairs, sums, strict=True)]

        sums = m.repeat(depth, 1, [host_memory.read(m, out, place) for place in places], step)
        for place, x in zip(places, sums, strict=True):
            host_memory.write(m, out, place, x)

    def rows_of(batch: V, carried: list[V]) -> list[V]:
        def columns_of(row: V, carried: list[V]) -> list[V]:
            def column_of(column: V, carried: list[V]) -> list[V]:
                block(batch, row, column)
                return carried

            return m.repeat(width, lanes * vectors, carried, column_of)

        return m.repeat(height, rows, carried, columns_of)

    m.repeat(math.prod(outer), 1, [], rows_of)
    return out


def _multiply_add(m: Any, x: V, y: V, z: V) -> V:
    x = m.widen(x, z.lanes)
    if not z.dtype.is_float:
        return m.add(m.multiply(x, y), z)
    return m.fma(x, y, z) if m.target.level != "v2" else m.add(m.multiply(x, y), z)
