"""Blocks that the hardware copies (TMA): maps come behind a kernel's parameters, and one thread tells what to copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op
from gristmill.compiler.machine import V
from gristmill.compiler.targets import cuda_roles
from gristmill.compiler.targets.thread_products import Shared, slot

MAP = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
PREFETCH = "@$1 prefetch.tensormap [$0];"
LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"


def parameters(m: Any) -> list[str]:
    """The maps, as the function declares them."""
    return [f"{MAP} %map{i}" for i in range(len(m.function.maps))]


def prefetch(m: Any) -> None:
    """Let the maps come before they are needed."""
    for i in range(len(m.function.maps)):
        cuda_roles.assembly(m, PREFETCH, _map(m, i), cuda_roles.is_first_producer(m))


def copy_window(m: Any, op: Op, window: Sequence[V], pipe: Any, ring: Shared, index: V) -> None:
    """Begin to copy a block, box by box."""
    box = m.function.maps[op.attributes["map"]].box
    place, rank = slot(m, ring, index), len(box)
    assert place.start is not None
    size = m.constant(dt.i32, ring.dtype.itemsize)
    start = m.emit(f"ptrtoint ptr addrspace(3) {place.memory.text} to i32", dt.i32)
    start = m.add(start, m.multiply(place.start, size))
    fixed = [_map(m, op.attributes["map"]), cuda_roles.filling(m, pipe), cuda_roles.is_first_producer(m)]
    inner, outer, *others = window[: -1 - rank : -1]
    for along in range(0, ring.shape[ring.inner], box[0]):
        for across in range(0, ring.shape[1 - ring.inner], box[1]):
            to = m.add(start, m.constant(dt.i32, ring.offset(across, along) * ring.dtype.itemsize))
            at = [_moved(m, inner, along), _moved(m, outer, across), *others]
            cuda_roles.assembly(m, _text(rank), to, *fixed, *at)


def _text(rank: int) -> str:
    coordinates = ", ".join(f"${4 + i}" for i in range(rank))
    return f"@$3 {LOAD.format(rank=rank)} [$0], [$1, {{{coordinates}}}], [$2];"


def _moved(m: Any, offset: V, by: int) -> V:
    return m.add(offset, m.constant(dt.i32, by)) if by else offset


def _map(m: Any, index: int) -> V:
    return m.emit(f"ptrtoint ptr %map{index} to i64", dt.u64)
