"""Where shared memory lies: exchanges take turns in two areas, and barriers stand where straight code ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import dtypes as dt
from gristmill.compiler.compile import compile_variants
from gristmill.compiler.targets import TARGETS
from gristmill.compiler.targets.cuda_shared import SharedMemory
from machines import kernel_of

DTYPES = [dt.i8, dt.f16, dt.f32, dt.f64]


def place_of(memory: SharedMemory, handle) -> int:
    return int(memory.placed(handle.text).split("i32 ")[1].rstrip(")"))


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3), st.integers(1, 99)))
)
def test_what_lasts_and_the_two_areas_never_overlap(wanted):
    memory, machine = SharedMemory(), SimpleNamespace(label="entry", loop_depth=0)
    taken = []
    for lasts, dtypes, elements in wanted:
        handles = [memory.lasting(d, elements) for d in dtypes] if lasts else memory.exchange(machine, dtypes, elements)
        owner = len(taken) + 2 if lasts else memory.turn
        taken += [
            (owner if not lasts else owner + i, h, d, elements)
            for i, (h, d) in enumerate(zip(handles, dtypes, strict=True))
        ]
    spans = [(owner, place_of(memory, h), elements * d.itemsize, d) for owner, h, d, elements in taken]
    for owner, start, size, dtype in spans:
        assert start % dtype.itemsize == 0
        assert start + size <= memory.total_bytes
        for other, begin, length, _ in spans:
            assert owner == other or start + size <= begin or begin + length <= start


def test_exchanges_of_several_dtypes_lie_side_by_side():
    memory, machine = SharedMemory(), SimpleNamespace(label="entry", loop_depth=0)
    first, second = memory.exchange(machine, [dt.i8, dt.f64], 5)
    assert (place_of(memory, first), place_of(memory, second)) == (0, 16)


def ptx(body: str, target: str = "sm_90a"):
    head = "@gm.kernel(grid=1)\ndef k(p: gm.ptr[gm.f32], q: gm.ptr[gm.f32], n: gm.i32):\n"
    load = "    x = tl.load(p + tl.arange(0, 1024))\n"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    kernel = kernel_of(head + load + lines + "    tl.store(q + tl.arange(0, 1024), x)\n")
    return compile_variants(kernel, kernel.specialisations()[0], TARGETS[target])[0]


def test_sorting_takes_two_areas_however_many_exchanges_it_needs():
    artifact = ptx("x = tl.sort(x)")
    assert artifact.code.decode().count("bar.sync") == 5
    assert artifact.shared_bytes == 2 * 1024 * 4


@pytest.mark.parametrize(
    ("body", "barriers"),
    [
        ("x = x / tl.sum(x) - tl.max(x)", 2),  # each exchange has its own
        ("for i in range(n):\n    x = x / tl.sum(x)", 2),  # and one, since the last round may still read
        ("for i in range(n):\n    x = x / tl.sum(x) - tl.max(x)", 3),
        ("x = x / tl.sum(x)\nif n > 3:\n    x = x - tl.max(x)", 3),
        ("for i in range(n):\n    x = x + 1.0\nx = x / tl.sum(x)", 1),
    ],
)
def test_barriers_stand_where_they_are_needed(body, barriers):
    assert ptx(body).code.decode().count("bar.sync") == barriers
