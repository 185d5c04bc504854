"""Updates of memory and visits of elements on the CPU: one after the other in row-major order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op
from gristmill.compiler.machine import Step, V
from gristmill.compiler.targets import exchange, host_loops, host_memory
from gristmill.compiler.targets.host_tiles import Index
from gristmill.dtypes import Dtype

Visit = Callable[[Sequence[V], V | None], Any]
ORDERS = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}
FAILED_ORDERS = {"relaxed": "monotonic", "acquire": "acquire", "release": "monotonic", "acq_rel": "acquire"}


def update(m: Any, op: Op, pointers: Any, operands: Sequence[Any], mask: Any | None, step: Step) -> Any:
    """Update each element, when all that waits is stored; the result is a tile in memory, if there is a use of it."""
    m.settle([], everything=True)
    if isinstance(pointers, V):
        return step(pointers, [[x] for x in operands], mask)[0]
    dtype = op.results[0].type.dtype
    result = m.buffer(op.results[0]) if op.attributes.get("is_used", True) else None

    def visit(row: Sequence[V], guard: V | None) -> V:
        return step(row[0], [[x] for x in row[1:]], guard)[0]

    def run(index: Index) -> None:
        found = _each_lane(m, index, [pointers, *operands], mask, visit, dtype)
        if result is not None:
            host_memory.write(m, result, index, found)

    tiles = [t for t in (pointers, *operands, mask) if t is not None]
    host_loops.sweep(m, pointers.shape, tiles, run)
    return result


def each(m: Any, tiles: Sequence[Any], mask: Any | None, visit: Visit) -> None:
    """Visit each element."""
    every = [t for t in (*tiles, mask) if t is not None]
    m.settle(every, everything=True)
    blocks = [t for t in every if not isinstance(t, V)]
    if not blocks:
        visit(tiles, mask)
        return
    host_loops.sweep(m, blocks[0].shape, every, lambda index: _each_lane(m, index, tiles, mask, visit, None))


def _each_lane(m: Any, index: Index, tiles: Sequence[Any], mask: Any | None, visit: Visit, dtype: Any) -> Any:
    """Compute a run's elements side by side, then visit them one by one; the results make a vector again."""
    columns = [m.widen(m.at(t, index), index.lanes) for t in tiles]
    guards = None if mask is None else m.widen(m.at(mask, index), index.lanes)

    def body(lane: V, carried: list[V]) -> list[V]:
        row = [_lane(m, column, lane) for column in columns]
        found = visit(row, None if guards is None else _lane(m, guards, lane))
        if dtype is None:
            return carried
        vector = m.typed(carried[0])
        return [m.emit(f"insertelement {vector}, {m.typed(found)}, {m.typed(lane)}", dtype, index.lanes)]

    initial = [] if dtype is None else [V("zeroinitializer", dtype, index.lanes)]
    after = m.repeat(index.lanes, 1, initial, body)
    return after[0] if after else None


def _lane(m: Any, vector: V, lane: V) -> V:
    return m.emit(f"extractelement {m.typed(vector)}, {m.typed(lane)}", vector.dtype)


def atomic(m: Any, kind: str, pointer: V, operands: Sequence[V], mask: V | None, sem: str) -> V:
    """Update one element where the mask holds."""
    dtype = operands[0].dtype
    assert isinstance(dtype, Dtype)
    if kind == "add" and dtype.is_float and dtype.bits == 16:
        return exchange.add(m, pointer, operands[0], mask, lambda p: _read(m, p), _exchanger(m, sem))
    results: list[V] = []
    with exchange.where(m, mask, results):
        if kind == "cas":
            expected, new = (m.bitcast(x, _word(dtype)) for x in operands)
            results.append(m.bitcast(_compare_and_swap(m, pointer, expected, new, sem)[0], dtype))
        else:
            results.append(_read_modify_write(m, kind, pointer, operands[0], sem))
    return results[0]


def _word(dtype: Dtype) -> Dtype:
    return {16: dt.u16, 32: dt.u32, 64: dt.u64}[dtype.bits]


def _read_modify_write(m: Any, kind: str, pointer: V, x: V, sem: str) -> V:
    word = kind
    if kind == "add" and x.dtype.is_float:
        word = "fadd"
    elif kind in ("max", "min") and not x.dtype.is_signed:
        word = f"u{kind}"
    text = f"atomicrmw {word} ptr {pointer.text}, {m.typed(x)} {ORDERS[sem]}, align {x.dtype.bits // 8}"
    return m.emit(text, x.dtype)


def _compare_and_swap(m: Any, pointer: V, old: V, new: V, sem: str) -> tuple[V, V]:
    kind, size = m.element_type(old.dtype), old.dtype.bits // 8
    orders = f"{ORDERS[sem]} {FAILED_ORDERS[sem]}, align {size}"
    pair = m.emit(f"cmpxchg ptr {pointer.text}, {m.typed(old)}, {m.typed(new)} {orders}", old.dtype)
    found = m.emit(f"extractvalue {{ {kind}, i1 }} {pair.text}, 0", old.dtype)
    return found, m.emit(f"extractvalue {{ {kind}, i1 }} {pair.text}, 1", dt.bool_)


def _read(m: Any, pointer: V) -> V:
    return m.emit(f"load atomic i16, ptr {pointer.text} monotonic, align 2", dt.u16)


def _exchanger(m: Any, sem: str) -> exchange.Exchange:
    return lambda pointer, old, new: _compare_and_swap(m, pointer, old, new, sem)
