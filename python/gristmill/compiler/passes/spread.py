"""Spread tiles that are too large for one block over the blocks of a cluster.

A row of 65,536 halves fills a multiprocessor, which then either loads or computes. Four blocks, on multiprocessors of
their own, take a quarter each and exchange what they reduce through each other's shared memory; several such blocks fit
one multiprocessor, so that some load while others compute. Where there are no clusters, or no more blocks in them, a
block gets more warps instead.
"""

from __future__ import annotations

import math

from gristmill.compiler.ir import For, Function, Op, While, walk

BYTES_OF_BLOCK = 32768
ELEMENTS_OF_THREAD = 32  # that a thread takes without ado
BYTES_OF_THREAD = 128  # that it loads at once
MAX_BLOCKS = 8  # more need a launch attribute
MAX_WARPS = 32


def run(function: Function) -> None:
    """Set `num_blocks`, or raise `num_warps`, by the largest tile that is loaded."""
    elements, size = largest(function)
    blocks = min(MAX_BLOCKS, size // BYTES_OF_BLOCK)
    if blocks <= 1 or not is_much(function, elements):
        return
    if function.has_clusters and _is_flat(function, blocks):
        function.num_blocks = blocks
        while size > BYTES_OF_THREAD * function.threads and function.num_warps < MAX_WARPS:
            function.num_warps *= 2
    else:
        function.num_warps = min(MAX_WARPS, function.num_warps * blocks)
        function.overflows |= elements > ELEMENTS_OF_THREAD * 32 * function.num_warps


def is_much(function: Function, elements: int) -> bool:
    """Whether a tile gives each thread more than it takes without ado."""
    return elements > ELEMENTS_OF_THREAD * 32 * function.num_warps and not multiplies(function)


def multiplies(function: Function) -> bool:
    """Whether it computes products, for which its author has chosen warps."""
    return any(isinstance(s, Op) and s.row.is_product for s in walk(function.body))


def largest(function: Function) -> tuple[int, int]:
    """Elements and bytes of the largest tile that is loaded."""
    loads = [s for s in walk(function.body) if isinstance(s, Op) and s.row.effect == "read"]
    sizes = [(v.type.elements, v.type.bytes) for op in loads for v in op.results]
    return max(sizes, key=lambda s: s[1], default=(0, 0))


def _is_flat(function: Function, blocks: int) -> bool:
    """Whether tiles that memory decides the layout of have one axis, which is reduced once and never permuted, and
    nothing but reductions exchanges numbers between threads: along the axis, or along parts of it that blocks have."""
    ops = [s for s in walk(function.body) if isinstance(s, Op)]
    loops = [s for s in walk(function.body) if isinstance(s, (For, While))]
    recurring = [
        s for loop in loops for block in loop.blocks for s in walk(block) if isinstance(s, Op) and s.row.result_layout
    ]
    moving = [op for op in ops if not (op.row.effect or op.row.is_own)]
    if any(op.row.effect == "act" or op.attributes.get("is_used") for op in ops):
        return False
    if any(not op.row.result_layout and not op.results[0].type.is_scalar for op in moving):
        return False
    if not all(_is_in_parts(op, blocks) for op in ops if op.row.result_layout):
        return False
    return not recurring and all(len(op.operands[0].type.shape) <= 1 for op in ops if "width" in op.attributes)


def _is_in_parts(op: Op, blocks: int) -> bool:
    """Whether a reduction goes along the last axis, and each block has one or more of what the others name."""
    shape = op.operands[0].type.shape
    return len(shape) <= 1 or (op.attributes["axis"] == len(shape) - 1 and math.prod(shape[:-1]) >= blocks)
