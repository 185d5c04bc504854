"""What the frontend turns into pointers, loops and conversions assembles for CUDA, and is as wide as it should be."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from gristmill.compiler.compile import generate, lower_variant
from gristmill.compiler.targets import TARGETS
from gristmill.declare import Kernel
from gristmill.specialisation import VARIANTS
from machines import kernel_of
from ptx import Entry, assemble, count_instructions, needs_ptxas
from test_descriptors import COPY_BLOCKS, WITH_DESCRIPTORS, WITH_POINTERS, row_sums
from test_frontend_flow import UNROLLED

EIGHT_BITS = """
A = gm.dtype_var("A", gm.Num)


@gm.kernel(A=[gm.f32, gm.bf16, gm.f64, gm.i32], grid=1)
def k(x: gm.ptr[A], y: gm.ptr[gm.f8e4m3], z: gm.ptr[gm.f8e5m2], w: gm.ptr[A]):
    i = tl.arange(0, 1024)
    v = tl.load(x + i)
    tl.store(y + i, v.to(tl.float8e4nv))
    tl.store(z + i, -v.to(tl.float8e5))
    tl.store(w + i, tl.trans(tl.load(y + i).reshape(32, 32)).reshape(1024).to(A) + tl.load(z + i).to(A))
    tl.store(w + 1024, tl.max(tl.load(y + i)).to(A))
"""
CASTS = """
@gm.kernel(grid=1)
def k(x: gm.ptr[gm.f64], y: gm.ptr[gm.f16], z: gm.ptr[gm.i64], w: gm.ptr[gm.f32]):
    i = tl.arange(0, 256)
    tl.store(y + i, tl.load(x + i).to(tl.float16, fp_downcast_rounding="rtz"))
    tl.store(w + i, tl.load(x + i).to(tl.float32, fp_downcast_rounding="rtz"))
    tl.store(z + i, (x + i).to(tl.int64) + (tl.load(z + i).to(tl.pointer_type(tl.int64)) + 1).to(tl.int64))
    tl.store(z, x.to(tl.int1))
"""
FLOW = """
def pick(v, n):
    for k in (2, 3):
        if n == k:
            return v, k
    return -v, 0


@gm.kernel(grid=1)
def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.size["x"]):
    i = tl.arange(0, 256)
    state = (tl.zeros((256,), tl.float32), 0)
    for j in range(n - 256, -1, -256):
        v, k = pick(tl.load(x + j + i), j)
        state = (state[0] + v, state[1] + k)
    if state[1] > 3:
        return
    tl.store(y + i, state[0] + state[1])
"""
KERNELS = {
    "block pointers": COPY_BLOCKS.format(body=WITH_POINTERS),
    "descriptors": COPY_BLOCKS.format(body=WITH_DESCRIPTORS),
    "unrolled": UNROLLED.format(upper="n"),
    "8-bit floats": EIGHT_BITS,
    "casts": CASTS,
    "flow": FLOW,
}


@cache
def entries(name: str, target: str, variants: tuple[int, ...] = (0, 1, 2)) -> tuple[Entry, ...]:
    return tuple(compiled(kernel_of(KERNELS[name]), target, variants))


def compiled(kernel: Kernel, target: str, variants: tuple[int, ...]) -> list[Entry]:
    found = []
    for specialisation in kernel.specialisations():
        for number in variants:
            lowered = lower_variant(kernel, specialisation, VARIANTS[number], TARGETS[target], _ignore)
            text = generate(lowered, TARGETS[target], _ignore).code.decode()
            found.append(Entry(specialisation, VARIANTS[number], lowered, text))
    return found


def _ignore(stage: str, thing: Any) -> None:
    return None


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_assembles_without_spills(name, target):
    for entry in entries(name, target):
        (usage,) = assemble([entry], target).values()
        assert usage.local_bytes == 0, entry.symbol


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["block pointers", "descriptors"])
def test_full_blocks_are_read_and_written_in_sixteen_bytes(name, target):
    aligned, general, _ = (count_instructions(entry.text) for entry in entries(name, target))
    assert aligned["ld.global 128"] >= 2
    assert "ld.global 128" not in general


def test_steps_side_by_side_read_all_that_a_thread_has_at_once():
    counts = count_instructions(entries("unrolled", "sm_80")[0].text)
    assert counts["ld.global 64"] >= 4  # 256 elements for 128 threads, four times


def test_windows_cost_what_pointers_by_hand_cost():
    counts = [count_instructions(entries(name, "sm_80", (0,))[0].text) for name in ("block pointers", "descriptors")]
    assert counts[0] == counts[1]
    (loop,) = compiled(row_sums(), "sm_80", (0,))
    assert count_instructions(loop.text)["ld.global 128"] >= 1


def test_eight_bit_floats_are_converted_by_instructions_where_there_are_any():
    new, old = (entries("8-bit floats", target, (0,))[0].text for target in ("sm_90a", "sm_80"))
    for instruction in ("cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e5m2x2.f32", "cvt.rn.f16x2.e4m3x2"):
        assert instruction in new
        assert instruction not in old
