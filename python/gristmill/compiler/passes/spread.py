"""Spread tiles that are too large for one block's registers over the blocks of a cluster.

A row of 65,536 elements takes more registers than a thread has. Eight blocks, each on a multiprocessor of its own,
hold it with 32 elements a thread, and exchange what they reduce through each other's shared memory. Where there are no
clusters, a block gets more warps instead.
"""

from __future__ import annotations

from gristmill.compiler.ir import Function, Op, walk

ELEMENTS_OF_THREAD = 32
MAX_BLOCKS = 8  # more need a launch attribute
MAX_WARPS = 32


def run(function: Function) -> None:
    """Set `num_blocks`, or raise `num_warps`, by the largest tile that is loaded."""
    wanted = _largest(function) // (32 * function.num_warps * ELEMENTS_OF_THREAD)
    if wanted <= 1:
        return
    if function.has_clusters and _is_flat(function):
        function.num_blocks = min(MAX_BLOCKS, wanted)
    else:
        function.num_warps = min(MAX_WARPS, function.num_warps * wanted)


def _largest(function: Function) -> int:
    loads = [s for s in walk(function.body) if isinstance(s, Op) and s.row.effect == "read"]
    return max((v.type.elements for op in loads for v in op.results), default=0)


def _is_flat(function: Function) -> bool:
    """Whether all tiles that memory decides the layout of have one axis, along which blocks may lie."""
    ops = [s for s in walk(function.body) if isinstance(s, Op) and "width" in s.attributes]
    return all(len(op.operands[0].type.shape) <= 1 for op in ops)
