"""Blocks that the hardware copies (TMA): maps come behind a kernel's parameters, and one thread tells what to copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op, walk
from gristmill.compiler.machine import V
from gristmill.compiler.targets import cuda_roles, cuda_tickets
from gristmill.compiler.targets.thread_products import Shared, slot

MAP = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
PREFETCH = "@$1 prefetch.tensormap [$0];"
STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
ADD = "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.bulk_group"
LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"


def parameters(m: Any) -> list[str]:
    """The maps, as the function declares them, and the counter of tickets."""
    counter = [cuda_tickets.PARAMETER] if m.function.tickets is not None else []
    return [*(f"{MAP} %map{i}" for i in range(len(m.function.maps))), *counter]


def prefetch(m: Any) -> None:
    """Let the maps come before they are needed."""
    for i in range(len(m.function.maps)):
        cuda_roles.assembly(m, PREFETCH, _map(m, i), cuda_roles.is_first_producer(m))


def copy_window(m: Any, op: Op, window: Sequence[V], pipe: Any, ring: Shared, index: V) -> None:
    """Begin to copy a block, box by box; of one that is cut in parts the block's own, to all blocks of the cluster."""
    tensor_map, rank = m.function.maps[op.attributes["map"]], len(op.attributes["block"])
    place = slot(m, ring, index)
    assert place.start is not None
    size = m.constant(dt.i32, ring.dtype.itemsize)
    start = m.emit(f"ptrtoint ptr addrspace(3) {place.memory.text} to i32", dt.i32)
    start = m.add(start, m.multiply(place.start, size))
    fixed = [_map(m, op.attributes["map"]), cuda_roles.filling(m, pipe), cuda_roles.is_first_producer(m)]
    inner, outer, *others = window[: -1 - rank : -1]
    parts, rows = op.attributes.get("parts", 1), tensor_map.box[1]
    if parts > 1:  # boxes below each other go to the blocks in turn
        own = m.cluster_rank()
        outer = m.add(outer, m.multiply(own, m.constant(dt.i32, rows)))
        start = m.add(start, m.multiply(own, m.constant(dt.i32, ring.offset(rows, 0) * ring.dtype.itemsize)))
    for across, along in tensor_map.boxes(*op.attributes["block"][-2:]):
        if across % (rows * parts) == 0:
            to = m.add(start, m.constant(dt.i32, ring.offset(across, along) * ring.dtype.itemsize))
            at = [_moved(m, inner, along), _moved(m, outer, across), *others]
            cuda_roles.assembly(m, _text(rank, parts), to, *fixed, *at)


def store_box(
    m: Any, op: Op, window: Sequence[V], buffer: Shared, at_first: tuple[int, int], first: tuple[int, int], groups: Any
) -> None:
    """One thread, or one of each group, tells what to store."""
    row, column = at_first
    size = buffer.dtype.itemsize
    place = m.constant(dt.i32, buffer.offset(row, column) * size)
    start = m.emit(f"ptrtoint ptr addrspace(3) {buffer.memory.text} to i32", dt.i32)
    start = m.add(start, m.multiply(buffer.start, m.constant(dt.i32, buffer.dtype.itemsize)))
    rank = len(op.attributes["block"])
    inner, outer, *others = window[: -1 - rank : -1]
    if groups:
        numbers = range((groups.rows * groups.columns).bit_length() - 1)
        next_row, next_column = row + groups.step * (groups.rows > 1), column + groups.step * (groups.columns > 1)
        behind = buffer.offset(next_row, next_column) - buffer.offset(row, column)
        place = m.add(place, m.group_bits(tuple((2 + i, behind * size << i) for i in numbers)))
        own = m.group_bits(tuple((2 + i, groups.step << i) for i in numbers))
        inner, outer = (inner, m.add(outer, own)) if groups.rows > 1 else (m.add(inner, own), outer)
    at = [_moved(m, inner, first[1] + column), _moved(m, outer, first[0] + row), *others]
    coordinates = ", ".join(f"${3 + i}" for i in range(rank))
    instruction = ADD if op.row.effect == "update" else STORE
    text = f"@$2 {instruction.format(rank=rank)} [$0, {{{coordinates}}}], [$1];"
    is_first = m.is_thread(range(5), range(2 if groups else m.num_warps.bit_length() - 1), ())
    cuda_roles.assembly(m, text, _map(m, op.attributes["map"]), m.add(start, place), is_first, *at)


def finish(m: Any) -> None:
    """Nothing of the block may go before its boxes are stored."""
    if any(isinstance(s, Op) and s.row.is_window for s in walk(m.function.body)):
        m.say('call void asm sideeffect "cp.async.bulk.wait_group 0;", "~{memory}"()')


def _text(rank: int, parts: int) -> str:
    coordinates = ", ".join(f"${4 + i}" for i in range(rank))
    if parts == 1:
        return f"@$3 {LOAD.format(rank=rank)} [$0], [$1, {{{coordinates}}}], [$2];"
    copy = f"@$3 {LOAD.format(rank=rank)}.multicast::cluster [$0], [$1, {{{coordinates}}}], [$2], blocks;"
    return f"{{ .reg .b16 blocks; mov.b16 blocks, {(1 << parts) - 1}; {copy} }}"


def _moved(m: Any, offset: V, by: int) -> V:
    return m.add(offset, m.constant(dt.i32, by)) if by else offset


def _map(m: Any, index: int) -> V:
    return m.emit(f"ptrtoint ptr %map{index} to i64", dt.u64)
