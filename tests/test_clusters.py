"""Programs that blocks of a cluster share: values, what is copied once for all, and what stays with one block."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gristmill as gm
from gristmill import symbolic
from gristmill.compiler.compile import compile_variant
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS
from gristmill.errors import DeclarationError
from gristmill.specialisation import VARIANTS
from machines import kernel_of, shipped_kernels

PRODUCT = """
@gm.kernel(grid=lambda m, n: gm.cdiv(m, {rows}) * gm.cdiv(n, {columns}), configs=[
    gm.Config(ROWS={rows}, num_warps={warps}, num_stages=3, num_ctas={ctas}, aligned=True),
    gm.Config(ROWS=64, num_warps=4, num_stages=3)])
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], out: gm.ptr[gm.f16], m: gm.shape["a", 0], n: gm.shape["out", 1],
      depth: gm.shape["a", 1], ROWS: gm.constexpr):
    left = tl.make_tensor_descriptor(a, [m, depth], [depth, 1], [ROWS, 64])
    right = tl.make_tensor_descriptor(b, {shape}, [{pitch}, 1], {block})
    to = tl.make_tensor_descriptor(out, [m, n], [n, 1], [ROWS, {columns}])
    tile = tl.program_id(0)
    row, column = tile % tl.cdiv(m, ROWS) * ROWS, tile // tl.cdiv(m, ROWS) * {columns}
    sums = tl.zeros((ROWS, {columns}), tl.float32)
    for start in range(0, depth, 64):
        x = left.load([row, start])
        y = right.load({at}){turned}
        sums = tl.dot(x, y, sums)
    {behind}
    to.store([row, column], sums.to(tl.float16))
"""


def product(rows=128, columns=64, ctas=2, warps=4, is_turned=False, behind="pass"):
    shape, pitch, at, turned = ("[depth, n]", "n", "[start, column]", "")
    block = f"[64, {columns}]"
    if is_turned:
        shape, pitch, at, turned, block = "[n, depth]", "depth", "[column, start]", ".T", f"[{columns}, 64]"
    return kernel_of(PRODUCT.format(**locals()))


def ptx_of(kernel, target="sm_90a"):
    return compile_variant(kernel, kernel.expanded[0], VARIANTS[0], TARGETS[target])


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "ctas", "warps"), [(128, 64, 2, 4), (256, 128, 4, 4), (512, 128, 8, 4), (256, 128, 2, 8)]
)
def test_each_block_computes_its_rows(rows, columns, ctas, warps, is_turned):
    kernel, rng = product(rows, columns, ctas, warps, is_turned), np.random.default_rng(0)
    m, n, depth = 200, 136, 200
    a, b = (rng.standard_normal(shape).astype("f2") for shape in ((m, depth), (depth, n)))
    out = np.full((m, n), np.nan, "f2")
    given = np.ascontiguousarray(b.T) if is_turned else b
    chosen = run_simulated(kernel, kernel.expanded[0], a, given, out, variant=VARIANTS[0])
    assert chosen.id.endswith(f"c{ctas}")
    want = a.astype("f8") @ b.astype("f8")
    assert np.linalg.norm(out - want) <= 6e-4 * np.linalg.norm(want)


def test_what_all_blocks_read_is_copied_once_for_all():
    artifact = ptx_of(product(rows=256, columns=128, ctas=4))
    text = artifact.code.decode()
    assert artifact.ctas == 4 and ".reqnctapercluster 4" in text
    copies = re.findall(r"cp\.async\.bulk\.tensor\S+complete_tx::bytes(\S*)", text)
    assert sorted(copies) == ["", ".multicast::cluster", ".multicast::cluster"]  # rows of a; two panels of b
    right = next(m for m in artifact.tensor_maps if m.parameter == "b")
    assert right.box == (64, 64 // 4)
    # A slot is free when the warps of all blocks have read it, and no block goes before the others.
    assert "mbarrier.arrive.shared::cluster" in text
    inits = re.findall(r"mbarrier\.init\.shared::cta\.b64 \[\S+\], (%r\d+)", text)
    counts = {int(re.search(rf"mov\.b32\s+{register}, (\d+);", text)[1]) for register in set(inits) if register}
    assert counts == {1, 4 * 4}
    assert text.count("barrier.cluster.arrive") == text.count("barrier.cluster.wait") == 2


def test_descriptors_leave_out_which_block_an_address_is_in():
    """They have 18 bits of an address; those of a cluster's blocks have their number above."""
    seen = {}
    for ctas in (1, 2):
        kernel, found = product(ctas=ctas), {}
        compile_variant(kernel, kernel.expanded[0], VARIANTS[0], TARGETS["sm_90a"], found.__setitem__)
        seen[ctas] = found["llvm"].count(", 262143")
    assert seen[1] == 0 < seen[2]


@pytest.mark.parametrize("target", ["sm_80", "sm_120"])
def test_one_block_computes_the_program_where_nothing_is_copied_by_the_hardware(target):
    artifact = ptx_of(product(), target)
    assert artifact.ctas == 1 and "cluster" not in artifact.code.decode()


BEHIND = {
    "rows that are reduced together": "sums += tl.sum(sums, 0)[None, :]",
    "what each program adds once": "tl.atomic_add(out, 1.0)",
    "what depends on where a row is": "sums += tl.arange(0, ROWS)[:, None].to(tl.float32)",
}


@pytest.mark.parametrize("what", BEHIND)
def test_programs_that_cannot_be_shared_are_one_blocks(what):
    assert ptx_of(product(behind=BEHIND[what])).ctas == 1


def test_what_is_computed_element_by_element_is_shared():
    kernel = product(behind="sums = tl.where(sums > 0, sums, 0.0) * 0.5")
    assert ptx_of(kernel).ctas == 2


def test_a_configuration_says_how_many_blocks():
    with pytest.raises(DeclarationError, match=r"`num_ctas=3` is not possible") as caught:
        gm.Config(num_ctas=3)
    assert caught.value.fix == "write `num_ctas=` one of 1, 2, 4, 8"
    assert repr(gm.Config(num_ctas=2)) == "gm.Config(num_ctas=2)"


SIZES = [(1000, 1000, 1), (1024, 1024, 2), (1024, 1000, 1), (4096, 4096, 2), (8, 1000, 2)]


@pytest.mark.parametrize(("size", "pitch", "wanted"), SIZES)
def test_products_share_what_is_slow_to_read(size, pitch, wanted):
    """On 132 multiprocessors: two of them share a program where rows begin in the middle of 32 bytes, and are few."""
    kernel = shipped_kernels()["matmul"]
    strides = {"a_row": pitch, "b_row": pitch, "out_row": pitch, "a_column": 1, "b_column": 1, "out_column": 1}
    values = {"m": size, "n": size, "depth": pitch} | strides
    numbers = [values.get(p.name, 0) for p in kernel.parameters]

    def time(specialisation):
        constants = [v for _, v in specialisation.constants]
        return symbolic.evaluate(kernel.prefer, numbers, constants, sm_count=132)

    halves = [s for s in kernel.expanded if s.dtypes[0][1] == gm.f16 and s.warpgroups is not False]
    rows = [s for s in halves if {("A_TURNED", False), ("B_TURNED", False)} <= set(s.constants)]
    assert dict(max(rows, key=time).constants)["PER_TWO"] == wanted
