"""Tiles too large for one block's registers: spread over a cluster, held in shared memory, read late."""

from __future__ import annotations

import re

import pytest

from gristmill.compiler.compile import compile_variant
from gristmill.compiler.ir import Function
from gristmill.compiler.targets import TARGETS
from machines import kernel_of
from staged import ALIGNED, ops

ROW = """
@gm.kernel(grid=1, num_warps={warps})
def row(x: gm.ptr[gm.bf16], w: gm.ptr[gm.bf16], b: gm.ptr[gm.bf16], y: gm.ptr[gm.bf16], n: gm.i32):
    x += tl.program_id(0) * n
    cols = tl.arange(0, {block})
    v = tl.load(x + cols, mask=cols < n).to(tl.float32)
{body}
"""
NORM = """
    total = tl.sum(v)
    factor = tl.load(w + cols, mask=cols < n).to(tl.float32)
    term = tl.load({term} + cols, mask=cols < n).to(tl.float32)
    tl.store(y + cols, v * total * factor + term, mask=cols < n)
"""
REPEATED = """
    for i in range(n):
        tl.store(y + cols, v / tl.sum(v + i), mask=cols < n)
"""
TWO_AXES = """
    square = tl.arange(0, 256)[:, None] * 256 + tl.arange(0, 256)[None, :]
    tl.store(y + tl.arange(0, 256), tl.sum(tl.load(w + square), axis=1) + tl.sum(v))
"""


def compiled(body: str, *, block: int = 65536, warps: int = 8, term: str = "b", target: str = "sm_90a"):
    """Compile a kernel that works on one row: its IR after the last pass, and what it became."""
    kernel = kernel_of(ROW.format(block=block, warps=warps, body=body.format(term=term)))
    seen: list[Function] = []
    (specialisation,) = kernel.specialisations()
    artifact = compile_variant(
        kernel, specialisation, ALIGNED, TARGETS[target], lambda stage, thing: stage == "layout" and seen.append(thing)
    )
    return seen[0], artifact


def late(function: Function) -> list[str]:
    return [op.name for op in ops(function, "load", "held") if op.attributes.get("late")]


def accesses(ptx: str) -> list[str]:
    """Reads and writes of global memory, in order."""
    return re.findall(r"\b(ld|st)\.global", ptx)


@pytest.mark.parametrize(("block", "blocks"), [(8192, 1), (16384, 1), (65536, 4), (131072, 8)])
def test_long_rows_are_spread_over_a_cluster(block, blocks):
    function, artifact = compiled(NORM, block=block)
    assert function.num_blocks == artifact.ctas == blocks
    assert (".explicitcluster" in artifact.code.decode()) == (blocks > 1)


def test_without_clusters_a_block_gets_more_warps():
    function, artifact = compiled(NORM, target="sm_80")
    assert (function.num_blocks, artifact.threads) == (1, 1024)


@pytest.mark.parametrize("body", [REPEATED, TWO_AXES], ids=["repeated", "two axes"])
def test_tiles_that_a_cluster_cannot_reduce_stay_in_a_block(body):
    function, artifact = compiled(body)
    assert function.num_blocks == artifact.ctas == 1


def test_blocks_exchange_without_a_fence():
    """One relaxed arrival and one wait for the whole kernel; numbers come with their own barrier."""
    _, artifact = compiled("    tl.store(y + cols, v / tl.sum(v) - tl.max(v), mask=cols < n)")
    ptx = artifact.code.decode()
    assert artifact.ptx_version == 81
    assert re.findall(r"barrier\.cluster\.[a-z.]*", ptx) == [
        "barrier.cluster.arrive.relaxed.aligned",
        "barrier.cluster.wait.aligned",
    ]
    assert ptx.count("st.async.weak.shared::cluster") == 2
    assert ptx.count("mbarrier.init") == 2
    assert "membar" not in ptx
    assert "fence.acq_rel" not in ptx


def test_exchange_that_a_branch_may_skip_finds_the_cluster_ready():
    _, artifact = compiled(
        "    if n > 9:\n        v = v / tl.sum(v)\n    tl.store(y + cols, v - tl.max(v), mask=cols < n)"
    )
    ptx = artifact.code.decode()
    assert artifact.ctas == 4
    assert ptx.count("barrier.cluster.wait") == 1
    assert ptx.index("barrier.cluster.wait") < ptx.index("ld.global")
    assert ptx.count("st.async.weak.shared::cluster") == 2


def test_elements_that_are_needed_twice_wait_in_shared_memory():
    function, artifact = compiled(NORM)
    assert len(ops(function, "hold")) == 1
    assert len(ops(function, "held")) == 1
    assert artifact.shared_bytes >= 65536 * 2 // 4


def test_what_only_stores_need_is_read_as_they_go():
    function, artifact = compiled(NORM)
    assert late(function) == ["load", "load", "held"]
    order = accesses(artifact.code.decode())
    assert order[: 8 + 6] == ["ld"] * 14, "x, and what the first store and the two after it need"
    assert order[8 + 6 :] == ["st", "ld", "ld"] * 5 + ["st"] * 3


def test_little_is_read_at_once():
    """One such tile fits the registers: its loads are all on their way before the first store."""
    function, artifact = compiled(NORM.replace("+ term", ""))
    assert late(function) == []
    assert accesses(artifact.code.decode()) == ["ld"] * 16 + ["st"] * 8


def test_nothing_is_read_late_through_an_argument_that_is_stored_through():
    assert late(compiled(NORM, term="y")[0]) == []


def test_one_warp_reads_before_it_writes():
    assert late(compiled(NORM, block=2048, warps=1)[0]) == []
