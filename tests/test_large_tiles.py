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
TWO_TILES = """
    other = tl.load(w + cols, mask=cols < n).to(tl.float32)
    tl.store(y + cols, v * tl.sum(v * other) + other, mask=cols < n)
"""
VARIANCE = """
    each = tl.reshape(v, (4, {block} // 4))
    means = tl.sum(each, 1) / ({block} // 4)
    apart = each - means[:, None]
    squares = tl.sum(apart * apart, 1)
    mean = tl.sum(means) / 4
    total = tl.sum(squares + (means - mean) * (means - mean))
    tl.store(y + cols, v * total - mean, mask=cols < n)
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
    kernel = kernel_of(ROW.format(block=block, warps=warps, body=body.format(term=term, block=block)))
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


FEW_PARTS = """
    each = tl.reshape(v, (2, {block} // 2))
    tl.store(y + tl.arange(0, 2), tl.sum(each, 1))
"""
ACROSS_PARTS = """
    each = tl.reshape(v, (4, {block} // 4))
    tl.store(y + tl.arange(0, {block} // 4), tl.sum(each, 0))
"""
LOOP_BETWEEN = """
    total = tl.sum(v)
    for i in range(n):
        tl.store(b + i, total)
    tl.store(y + cols, v * total + tl.load(w + cols, mask=cols < n), mask=cols < n)
"""
NOT_FLAT = {"repeated": REPEATED, "two axes": TWO_AXES, "few parts": FEW_PARTS, "across parts": ACROSS_PARTS}


@pytest.mark.parametrize("body", NOT_FLAT.values(), ids=NOT_FLAT)
def test_tiles_that_a_cluster_cannot_reduce_stay_in_a_block(body):
    function, artifact = compiled(body)
    assert function.num_blocks == artifact.ctas == 1


def waits_by_way(ptx: str) -> set[tuple[int, bool]]:
    """For each way through the kernel, how often it waits for the cluster, and whether that is before it exchanges."""
    lines = [line for line in ptx.splitlines() if not line.strip().startswith("//")]
    lines = [re.sub(r"\{ \.reg \.pred p; again.*", "", line) for line in lines]
    labels = {line.split(":")[0].strip(): i for i, line in enumerate(lines) if re.match(r"\s*\$L\w+:", line)}
    found, ways = set(), [(0, 0, True)]
    while ways:
        place, waits, is_first = ways.pop()
        line = lines[place]
        waits += "barrier.cluster.wait" in line
        is_first &= waits > 0 or "st.async" not in line
        target = re.search(r"\bbra(?:\.uni)?\s+(\$L\w+)", line)
        if re.search(r"\bret;", line):
            found.add((waits, is_first))
            continue
        if target:
            ways.append((labels[target[1]], waits, is_first))
        if not target or "@" in line:
            ways.append((place + 1, waits, is_first))
    return found


def test_blocks_exchange_without_a_fence():
    """One relaxed arrival and one wait on the way through the kernel; numbers come with their own barrier."""
    _, artifact = compiled("    tl.store(y + cols, v / tl.sum(v) - tl.max(v), mask=cols < n)")
    ptx = artifact.code.decode()
    assert artifact.ptx_version == 81
    assert ptx.count("barrier.cluster.arrive.relaxed.aligned") == 1
    assert waits_by_way(ptx) == {(1, True)}
    assert ptx.count("st.async.weak.shared::cluster") == 2 * 2, "where the masks hold, and where they do not"
    assert ptx.count("mbarrier.init") == 2 * 2
    assert "membar" not in ptx
    assert "fence.acq_rel" not in ptx


BRANCHES = {
    "then": "    if odd:\n        v = v / tl.sum(v)\n    tl.store(y + cols, v - tl.max(v), mask=cols < n)",
    "otherwise": "    if odd:\n        v += 1\n    else:\n        v /= tl.sum(v)\n    tl.store(y + cols, tl.max(v))",
    "nothing after": "    if odd:\n        v = v / tl.sum(v)\n    tl.store(y + cols, v, mask=cols < n)",
    "before": "    v -= tl.max(v)\n    if odd:\n        v = v / tl.sum(v)\n    tl.store(y + cols, v, mask=cols < n)",
}


@pytest.mark.parametrize("body", BRANCHES.values(), ids=BRANCHES)
def test_blocks_meet_once_on_each_way_and_before_they_exchange(body):
    _, artifact = compiled(body.replace("odd", "n % 2 == 1"))
    assert artifact.ctas == 4
    assert waits_by_way(artifact.code.decode()) == {(1, True)}


def test_where_masks_hold_there_are_none():
    function, _ = compiled(NORM)
    masked = [len(op.operands) - (1 if op.name == "load" else 2) for op in ops(function, "load", "store")]
    assert masked == [0, 0, 0, 0, 1, 1, 1, 1]


def test_elements_that_are_needed_twice_wait_in_shared_memory():
    function, artifact = compiled(NORM)
    assert len(ops(function, "hold")) == 2
    assert len(ops(function, "held")) == 2
    assert 65536 * 2 // 4 <= artifact.shared_bytes < 65536 * 2 // 4 + 1024, "one place serves both ways"
    assert (function.blocks_per_sm, compiled(TWO_TILES)[0].blocks_per_sm) == (4, 3)


def test_what_only_stores_need_is_read_as_they_go():
    """Half of it before the exchange, where threads have registers for it; the rest store by store."""
    function, artifact = compiled(NORM)
    assert late(function) == ["load", "load", "held"] * 2
    ptx = artifact.code.decode()
    before, _, behind = ptx[: len(ptx) // 2].partition("st.async")
    assert accesses(before) == ["ld"] * (8 + 4 + 4), "x, and what the first four stores need"
    assert accesses(behind)[:11] == ["st", "st", "ld", "ld", "st", "ld", "ld", "st", "ld", "ld", "st"]


def test_little_is_read_before_the_exchange():
    function, artifact = compiled(NORM.replace("+ term", ""))
    assert late(function) == ["load"] * 2
    ptx = artifact.code.decode()
    assert accesses(ptx[: ptx.index("st.async")]) == ["ld"] * 16
    assert accesses(ptx) == (["ld"] * 16 + ["st"] * 8) * 2


def test_nothing_is_read_late_through_an_argument_that_is_stored_through():
    function, _ = compiled(NORM, term="y")
    read = ops(function, "load")
    assert [bool(op.attributes.get("late")) for op in read] == [False, True, False] * 2


def test_no_load_overtakes_a_loop_or_what_it_stores():
    function, _ = compiled(LOOP_BETWEEN)
    assert late(function) == []
    assert ops(function, "held"), "it would be begun before the exchange but for the loop"


def test_several_reductions_of_parts_take_one_exchange():
    """Blocks tell each other means and sums of squares at once, and every thread goes on with those of all."""
    function, artifact = compiled(VARIANCE)
    ptx = artifact.code.decode()
    assert [len(op.operands) for op in ops(function, "gathered")] == [2, 2]
    assert ptx.count("mbarrier.init") == 2, "one on each way"
    assert ptx.count("st.async") == 2 * 2
    assert "gathered" not in {op.name for op in ops(compiled(VARIANCE, target="sm_80")[0])}


def test_one_warp_reads_before_it_writes():
    assert late(compiled(NORM, block=2048, warps=1)[0]) == []
