"""Ops that move elements on the CPU: each fills a buffer, reading its operands wherever the elements come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Tile, Value
from gristmill.compiler.machine import V
from gristmill.compiler.targets import host_loops, host_memory
from gristmill.compiler.targets.host_tiles import Buffer, Index, Kept, Lazy


def _filled(m: Any, result: Value, tiles: Sequence[Any], element: Callable[[Index], V]) -> Buffer:
    """Fill a buffer with `element`, which reads `tiles` at other positions."""
    made = Lazy(result.type.shape, element, [(tile, False) for tile in tiles])
    m.settle([made])
    buffer: Buffer = m.buffer(result)
    host_loops.sweep(m, result.type.shape, [made], lambda i: host_memory.write(m, buffer, i, m.at(made, i)))
    return buffer


def _settle_read(m: Any, tile: Any) -> None:
    """Store what a tile needs that is read in another order than its own."""
    m.settle([Lazy(tile.shape, lambda index: m.at(tile, index), [(tile, False)])])


def _run(at: V, lanes: int) -> Index:
    return Index("run", at, lanes) if lanes > 1 else Index("one", at, 0)


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


# Vectors of a product that are summed in registers at a time, of 16 numbers each, and those of them side by side: more
# would not stay there. A vector takes one register of v4, two of v3, and four of others.
VECTORS = {"v4": (16, 4), "v3": (4, 1), "v2": (2, 1)}
FEW_VECTORS = (4, 1)


def _copy(m: Any, value: Value, tile: Any) -> Buffer:
    """A tile converted to the dtype of `value`, in a buffer of its own."""
    return _filled(m, value, [tile], lambda index: m.cast(m.at(tile, index), value.type.dtype))


def _in_memory(m: Any, value: Value, tile: Any) -> Buffer:
    """A tile in memory, in the dtype of `value`: where it lies, if it does, or in a copy."""
    stored = tile.buffer if isinstance(tile, Kept) and tile.is_stored else tile
    if isinstance(stored, Buffer) and stored.address.dtype.element == value.type.dtype:  # type: ignore[union-attr]
        return stored
    if isinstance(tile, Lazy) and tile.turned is not None:
        return _turn(m, value, tile.turned)
    return _copy(m, value, tile)


def _turn(m: Any, result: Value, tile: Any) -> Buffer:
    """The transpose of a tile, a square of vectors at a time: it is read and written in runs."""
    *outer, height, width = tile.shape
    _settle_read(m, tile)
    buffer: Buffer = m.buffer(result)
    size = min(m.target.lanes, height, width)

    def square(batch: V, row: V, column: V) -> None:
        def runs(line: V, length: int, place: V) -> list[Index]:
            first = m.add(m.multiply(line, _c(m, length)), place)
            return [_run(m.add(first, _c(m, i * length)), size) for i in range(size)]

        lines = runs(m.add(m.multiply(batch, _c(m, height)), row), width, column)
        vectors = [m.widen(m.cast(m.at(tile, i), result.type.dtype), i.lanes) for i in lines]
        to = runs(m.add(m.multiply(batch, _c(m, width)), column), height, row)
        for index, x in zip(to, _turned_square(m, vectors), strict=True):
            host_memory.write(m, buffer, index, x)

    _each_block(m, math.prod(outer), (height, size), (width, size), square)
    return buffer


def _turned_square(m: Any, vectors: list[V]) -> list[V]:
    """The columns of a square of which these are the rows: halves, quarters and so on beside the diagonal swap."""
    size, bit = len(vectors), 1
    while bit < size:
        turned = list(vectors)
        for i in (i for i in range(size) if not i & bit):
            upper, lower = vectors[i], vectors[i | bit]
            turned[i] = _shuffled(m, upper, lower, [k if not k & bit else size + (k ^ bit) for k in range(size)])
            turned[i | bit] = _shuffled(m, upper, lower, [k | bit if not k & bit else size + k for k in range(size)])
        vectors, bit = turned, 2 * bit
    return vectors


def _shuffled(m: Any, x: V, y: V, order: list[int]) -> V:
    """Elements of two vectors by their places in both together."""
    places = ", ".join(f"i32 {k}" for k in order)
    return m.emit(f"shufflevector {m.typed(x)}, {m.typed(y)}, <{len(order)} x i32> <{places}>", x.dtype, len(order))


def _each_block(
    m: Any, batches: int, rows: tuple[int, int], columns: tuple[int, int], visit: Callable[[V, V, V], None]
) -> None:
    """Visit the blocks of matrices: `rows` and `columns` are how many there are, and how many a block has."""

    def rows_of(batch: V, carried: list[V]) -> list[V]:
        def columns_of(row: V, carried: list[V]) -> list[V]:
            def column_of(column: V, carried: list[V]) -> list[V]:
                visit(batch, row, column)
                return carried

            return m.repeat(*columns, carried, column_of)

        return m.repeat(*rows, carried, columns_of)

    m.repeat(batches, 1, [], rows_of)


def dot(m: Any, result: Value, a: Any, b: Any, acc: Any) -> Buffer:
    """A matrix product, a few rows and vectors of columns at a time, from operands in memory."""
    *outer, height, width = result.type.shape
    depth, dtype = a.shape[-1], result.type.dtype
    left, right = (_in_memory(m, Value(Tile(dtype, t.shape)), t) for t in (a, b))
    _settle_read(m, acc)
    out: Buffer = m.buffer(result)
    lanes = min(m.target.lanes, width)
    most, beside = VECTORS.get(m.target.level, FEW_VECTORS)
    vectors = min(beside, width // lanes)
    rows = min(most // vectors, height)

    def block(batch: V, row: V, column: V) -> None:
        def at(line: V, size: int, place: V, index_lanes: int) -> Index:
            return _run(m.add(m.multiply(line, _c(m, size)), place), index_lanes)

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

        before = [m.widen(m.cast(m.at(acc, place), dtype), place.lanes) for place in places]
        sums = m.repeat(depth, 1, before, step)
        for place, x in zip(places, sums, strict=True):
            host_memory.write(m, out, place, x)

    _each_block(m, math.prod(outer), (height, rows), (width, lanes * vectors), block)
    return out


def _multiply_add(m: Any, x: V, y: V, z: V) -> V:
    x = m.widen(x, z.lanes)
    if not z.dtype.is_float:
        return m.add(m.multiply(x, y), z)
    return m.fma(x, y, z) if m.target.level != "v2" else m.add(m.multiply(x, y), z)
