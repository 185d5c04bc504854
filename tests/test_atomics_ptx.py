"""The PTX of atomics: the instruction, its order and scope, who runs it, and who waits for whom."""

from __future__ import annotations

import itertools
import re

import pytest

from assembled import assemble_text, ptx_of
from gristmill import dtypes as dt
from gristmill.language.atomic import SCOPES, SEMS, TAKEN
from ptx import needs_ptxas
from test_atomics import SHAPES, learning, update


def types_of(kind: str, dtype: str) -> list[str]:
    """What PTX calls an operation on a dtype."""
    bits = getattr(dt, dtype).bits
    if kind == "add":
        half = f"add.noftz.{dtype}"
        return [half if bits == 16 else f"add.{dtype if dtype[0] == 'f' else f'u{bits}'}"]
    if kind in ("max", "min"):
        if dtype[0] == "f":
            return [f"{kind}.s{bits}", f"{'min' if kind == 'max' else 'max'}.u{bits}"]
        return [f"{kind}.{'u' if dtype[0] == 'u' else 's'}{bits}"]
    return [f"{'exch' if kind == 'xchg' else kind}.b{bits}"]


def instructions(text: str) -> list[str]:
    """The atomic instructions of a PTX text, without their operands."""
    return re.findall(r"\b((?:atom|red)\.[\w.]+)", text)


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kind", TAKEN)
def test_every_dtype_is_one_predicated_instruction_that_assembles(kind, target):
    texts = []
    for dtype in (d.name for d in TAKEN[kind]):
        call = f"atomic_{kind}({{p}}, {'0, x' if kind == 'cas' else 'x, mask=i < n'})"
        texts.append(ptx_of(update(dtype, call, size=128), target, name=f"{kind}_{dtype}"))
        found = instructions(texts[-1])
        if (kind, dtype, target) == ("add", "bf16", "sm_80"):
            assert found == ["atom.acq_rel.gpu.global.cas.b16"]
        else:
            assert found == [f"atom.acq_rel.gpu.global.{t}" for t in types_of(kind, dtype)]
            guarded = re.findall(r"@%p\d+ atom", texts[-1])
            assert len(guarded) == (0 if kind == "cas" else len(found))
    assemble_text(texts, target)


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_order_and_scope_are_in_the_instruction(target):
    texts = []
    for sem, scope in itertools.product(SEMS, SCOPES):
        call = f"atomic_add({{p}}, x, sem='{sem}', scope='{scope}')"
        texts.append(ptx_of(update("i32", call), target, name=f"used_{sem}_{scope}"))
        assert instructions(texts[-1]) == [f"atom.{sem}.{scope}.global.add.u32"]
        unused = f"""
        @gm.kernel(grid=1)
        def k(p: gm.ptr[gm.f32]):
            tl.atomic_add(p + tl.arange(0, 128), 1.0, sem="{sem}", scope="{scope}")
        """
        texts.append(ptx_of(unused, target, name=f"unused_{sem}_{scope}"))
        weaker = {"acq_rel": "release", "acquire": "relaxed"}.get(sem, sem)
        assert instructions(texts[-1]) == [f"red.{weaker}.{scope}.global.add.f32"]
    assemble_text(texts, target)


HALVES = """
@gm.kernel(grid=1)
def k(p: gm.ptr[gm.{dtype}], v: gm.ptr[gm.{dtype}], n: gm.i32):
    i = tl.arange(0, 512)
    {store}tl.atomic_add(p + i{odd}, tl.load(v + i), sem="relaxed"{mask}){end}
"""


@needs_ptxas
@pytest.mark.parametrize(
    ("target", "dtype", "named", "want"),
    [
        ("sm_80", "f16", {}, ["red.relaxed.gpu.global.add.noftz.f16x2"] * 2),
        ("sm_90a", "bf16", {}, ["red.relaxed.gpu.global.add.noftz.bf16x2"] * 2),
        ("sm_90a", "bf16", {"store": "tl.store(v + i, ", "end": ")"}, ["atom.relaxed.gpu.global.add.noftz.bf16x2"] * 2),
        ("sm_80", "f16", {"odd": " + 1"}, ["red.relaxed.gpu.global.add.noftz.f16"] * 4),
        ("sm_80", "bf16", {}, ["atom.relaxed.gpu.global.cas.b16"] * 4),
        ("sm_90a", "f16", {"mask": ", mask=i % 3 != 0"}, ["red.relaxed.gpu.global.add.noftz.f16"] * 4),
    ],
)
def test_halves_are_added_in_pairs_where_the_address_and_the_mask_allow(target, dtype, named, want):
    fields = dict.fromkeys(("store", "end", "odd", "mask"), "") | named
    text = ptx_of(HALVES.format(dtype=dtype, **fields), target)
    assert instructions(text) == want
    assemble_text([text], target)


SMALL = """
@gm.kernel(grid=1, num_warps=4)
def k(p: gm.ptr[gm.i32], y: gm.ptr[gm.i32]):
    {body}
"""


@pytest.mark.parametrize(
    ("body", "barriers"),
    [
        ("tl.atomic_add(p, 1)", 0),
        ("tl.store(y, 5); tl.atomic_add(p, 1)", 1),
        ("tl.store(y, 5); tl.atomic_add(p, 1, sem='relaxed')", 0),
        ("tl.store(y, tl.atomic_add(p, 1, sem='relaxed'))", 1),
        ("tl.store(y + tl.arange(0, 128), tl.atomic_add(p + tl.arange(0, 128), 1, sem='relaxed'))", 0),
        ("tl.store(y + tl.arange(0, 128), tl.atomic_add(p + tl.arange(0, 128), 1, sem='acquire'))", 1),
        ("tl.store(y + tl.arange(0, 128), tl.atomic_add(p + tl.arange(0, 128), 1))", 2),
        ("tl.store(y + tl.arange(0, 32), tl.atomic_add(p + tl.arange(0, 32), 1, sem='relaxed'))", 1),
    ],
)
def test_threads_wait_where_order_or_a_shared_result_needs_it(body, barriers):
    text = ptx_of(SMALL.format(body=body), "sm_90a")
    assert len(re.findall(r"bar\.sync", text)) == barriers


@pytest.mark.parametrize("size", [1, 2, 16, 32, 64])
def test_only_the_thread_that_owns_an_element_updates_it(size):
    text = ptx_of(SMALL.format(body=f"tl.atomic_add(p + tl.arange(0, {size}), 1)"), "sm_80")
    assert re.findall(r"@%p\d+ red", text)
    assert len(instructions(text)) == 1
    whole = ptx_of(SMALL.format(body="tl.atomic_add(p + tl.arange(0, 128), 1)"), "sm_80")
    assert not re.findall(r"@%p\d+ red", whole)


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_results_in_every_shape_assemble(target, num_warps):
    texts = [
        ptx_of(learning(rows, columns, num_warps), target, name=f"learning_{rows}_{columns}_{num_warps}")
        for rows, columns in SHAPES
    ]
    for text in texts:
        assert instructions(text)[-1] == "atom.acq_rel.gpu.global.add.u32"
        assert "atom.acq_rel.gpu.global.exch.b32" in instructions(text)
    assemble_text(texts, target)
