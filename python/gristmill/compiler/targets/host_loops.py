"""Loops on the CPU: sweeps over a tile, reductions, and the kernel's own loops and branches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gristmill.compiler.ir import For, If, Value, While
from gristmill.compiler.machine import V
from gristmill.compiler.targets import host_memory
from gristmill.compiler.targets.host_tiles import Buffer, Index, Kept, Lazy, free_values, pending, reaches, writes


def sweep(m: Any, shape: tuple[int, ...], tiles: Sequence[Any], visit: Callable[[Index], object]) -> None:
    """Visit every position in runs; kept tiles passed on the way are stored from then on."""
    elements = math.prod(shape)
    lanes = min(m.target.lanes, elements)
    passed = passed_by(tiles)

    def body(position: V, carried: list[V]) -> list[V]:
        visit(Index("run", position, lanes))
        return carried

    m.repeat(elements, lanes, [], body)
    mark(passed)


def passed_by(tiles: Sequence[Any]) -> dict[Kept, bool]:
    """The kept tiles that a sweep over `tiles` computes on its way."""
    found: dict[Kept, bool] = {}
    for tile in tiles:
        pending(tile, True, found)
    return found


def mark(passed: dict[Kept, bool]) -> None:
    """Note that they are stored."""
    for kept in passed:
        kept.is_stored = True


# -- the kernel's own statements


def _settle_before(m: Any, statement: For | If | While, values: dict[Value, Any]) -> None:
    """Store what a loop or branch reads from outside, and what it might overwrite."""
    needed = {values[v] for v in free_values(statement, set()) if v in values}
    reached: dict[Kept, bool] = {}
    for tile in needed:
        pending(tile, True, reached)
    m.settle([], everything=writes(statement), needed=set(reached))


def _store_all(m: Any, tiles: Sequence[Any], buffers: Sequence[Buffer]) -> None:
    """Write tiles to buffers in common sweeps; one that reads a buffer at other places is copied first."""
    pairs = []
    for tile, buffer in zip(tiles, buffers, strict=True):
        if reaches(tile, set(buffers)):
            tile = _copy(m, tile, buffer)
        pairs.append((tile, buffer))
    m.settle([tile for tile, _ in pairs])
    for shape in dict.fromkeys(buffer.shape for _, buffer in pairs):
        same = [(t, b) for t, b in pairs if b.shape == shape]

        def visit(index: Index, same: list[tuple[Any, Buffer]] = same) -> None:
            current = [m.widen(m.at(t, index), index.lanes) for t, _ in same]
            for x, (_, buffer) in zip(current, same, strict=True):
                host_memory.write(m, buffer, index, x)

        sweep(m, shape, [t for t, _ in same], visit)


def _copy(m: Any, tile: Any, like: Buffer) -> Buffer:
    dtype = like.address.dtype.element  # type: ignore[union-attr]
    from gristmill.compiler.ir import Tile as TileType

    buffer: Buffer = m.buffer(Value(TileType(dtype, like.shape)))
    _store_all(m, [tile], [buffer])
    return buffer


def _carried(m: Any, arguments: Sequence[Value]) -> list[Buffer | None]:
    return [None if v.type.is_scalar else m.buffer(v) for v in arguments]


def run_if(m: Any, statement: If, values: dict[Value, Any]) -> None:
    """Branch; result tiles are written by either side to one buffer."""
    _settle_before(m, statement, values)
    buffers = _carried(m, statement.results)
    labels = [m.new_label("then"), m.new_label("else"), m.new_label("end")]
    condition = values[statement.operands[0]]
    m.say(f"br i1 {condition.text}, label %{labels[0]}, label %{labels[1]}")
    outcomes = []
    for label, block in zip(labels, statement.blocks, strict=False):
        m.begin_label(label)
        outer, m.waiting = m.waiting, []
        yields = m.run(block, dict(values))
        _write_yields(m, yields, buffers)
        m.waiting = outer
        outcomes.append((yields, m.label))
        m.say(f"br label %{labels[2]}")
    m.begin_label(labels[2])
    for i, result in enumerate(statement.results):
        pairs = [(yields[i], label) for yields, label in outcomes]
        values[result] = buffers[i] or m.phi(result.type.dtype, 0, pairs)


def _write_yields(m: Any, yields: Sequence[Any], buffers: Sequence[Buffer | None]) -> None:
    pairs = [(t, b) for t, b in zip(yields, buffers, strict=True) if b is not None]
    if pairs:
        _store_all(m, [t for t, _ in pairs], [b for _, b in pairs])


def run_for(m: Any, loop: For, values: dict[Value, Any]) -> None:
    """A counted loop; carried tiles live in one buffer each, carried scalars in registers."""
    lower, upper, step = (values[v] for v in loop.operands[:3])
    arguments = loop.body.arguments

    def goes_on(inner: dict[Value, Any]) -> V:
        return m.compare("<", inner[arguments[0]], upper)

    def advance(inner: dict[Value, Any]) -> list[Any]:
        yields = m.run(loop.body, inner)
        return [m.add(inner[arguments[0]], step), *yields]

    initial = [lower, *(values[v] for v in loop.operands[3:])]
    final = _loop(m, loop, arguments, initial, values, goes_on, advance)
    values.update(zip(loop.results, final[1:], strict=True))


def run_while(m: Any, loop: While, values: dict[Value, Any]) -> None:
    """A loop with a condition on its carried values."""
    arguments = loop.body.arguments

    def goes_on(inner: dict[Value, Any]) -> V:
        inner.update(zip(loop.condition.arguments, (inner[v] for v in arguments), strict=True))
        condition, *carried = m.run(loop.condition, inner)
        inner.update(zip(arguments, carried, strict=True))
        return condition

    initial = [values[v] for v in loop.operands]
    final = _loop(m, loop, arguments, initial, values, goes_on, lambda inner: m.run(loop.body, inner))
    values.update(zip(loop.results, final, strict=True))


def _loop(
    m: Any, loop: Any, arguments: list[Value], initial: list[Any], values: dict[Value, Any], goes_on: Any, advance: Any
) -> list[Any]:
    _settle_before(m, loop, values)
    buffers = _carried(m, arguments)
    _write_yields(m, initial, buffers)
    head, body, end, before = m.new_label("head"), m.new_label("body"), m.new_label("end"), m.label
    m.say(f"br label %{head}")
    m.begin_label(head)
    place, inner = len(m.lines), dict(values)
    carried = [b or V(m.fresh(), a.type.dtype) for a, b in zip(arguments, buffers, strict=True)]
    m.lines += [""] * len(arguments)
    inner.update(zip(arguments, carried, strict=True))
    condition = goes_on(inner)
    m.say(f"br i1 {condition.text}, label %{body}, label %{end}")
    m.begin_label(body)
    outer, m.waiting = m.waiting, []
    nexts = advance(inner)
    _write_yields(m, nexts, buffers)
    m.waiting = outer
    m.say(f"br label %{head}")
    for i, (phi, first, following) in enumerate(zip(carried, initial, nexts, strict=True)):
        if isinstance(phi, V):
            pairs = f"[ {first.text}, %{before} ], [ {following.text}, %{m.label} ]"
            m.lines[place + i] = f"  {phi.text} = phi {m.element_type(phi.dtype)} {pairs}"
    m.begin_label(end)
    return carried


__all__ = ["Lazy", "mark", "passed_by", "run_for", "run_if", "run_while", "sweep"]
