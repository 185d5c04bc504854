"""Operands of products that lie along their columns are loaded turned: as wide as others, and the same numbers."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from gristmill.compiler.compile import lower_variant
from gristmill.compiler.ir import Op, walk
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS
from gristmill.specialisation import VARIANTS
from machines import kernel_of, on_each_machine

HEAD = """
@gm.kernel(grid=1, num_stages=3)
def k(x: gm.ptr[gm.f16], y: gm.ptr[gm.f16], out: gm.ptr[gm.f32], n: gm.shape["y", 0], depth: gm.shape["x", 1],
      x_row: gm.stride["x", 0], y_row: gm.stride["y", 0]):
    r, c, s = tl.arange(0, 32)[:, None], tl.arange(0, 16)[None, :], tl.arange(0, 32)
    total = tl.zeros((32, 16), tl.float32)
"""
TAIL = """
    tl.store(out + r * 16 + c, total)
"""
A = "a = tl.load(x + r * x_row + start + s[None, :], mask=start + s[None, :] < depth)"
READS = {
    "computed": f"""
for start in range(0, depth, 32):
    {A}
    b = tl.load(y + c * y_row + (start + s)[:, None], mask=((start + s)[:, None] < depth) & (c < n))
    total = tl.dot(a, b, total)
""",
    "carried": f"""
at = y + (s[:, None] + c % n * y_row)
for start in range(0, depth, 32):
    {A}
    total = tl.dot(a, tl.load(at, mask=s[:, None] < depth - start, other=0.0), total)
    at += 32
""",
    "of turned numbers": f"""
rows = tl.trans(tl.arange(0, 16)[:, None] * y_row + tl.zeros((16, 32), tl.int32))
for start in range(0, depth, 32):
    {A}
    b = tl.load(y + rows + (start + s)[:, None], mask=(start + s)[:, None] < depth, other=0.0)
    total = tl.dot(a, b, total)
""",
    "promised": f"""
for start in range(0, depth, 32):
    {A}
    at = tl.multiple_of(y + c * y_row + (start + s)[:, None], (16, 2))
    total = tl.dot(a, tl.load(at, mask=(start + s)[:, None] < depth), total)
""",
    "before a loop": """
a = tl.load(x + r * x_row + s[None, :], mask=s[None, :] < depth)
total = tl.dot(a, tl.load(y + c * y_row + s[:, None], mask=s[:, None] < depth))
a = tl.load(x + 32 + r * x_row + s[None, :], mask=s[None, :] < depth - 32)
total = tl.dot(a, tl.load(y + 32 + c * y_row + s[:, None], mask=s[:, None] < depth - 32), total)
a = tl.load(x + 64 + r * x_row + s[None, :], mask=s[None, :] < depth - 64)
total = tl.dot(a, tl.load(y + 64 + c * y_row + s[:, None], mask=s[:, None] < depth - 64), total)
""",
}
OTHERS = {
    "along rows": f"""
for start in range(0, depth, 32):
    {A}
    b = tl.load(y + c + (start + s)[:, None] * y_row, mask=(start + s)[:, None] < depth)
    total = tl.dot(a, b, total)
""",
    "by neither axis": f"""
for start in range(0, depth, 32):
    {A}
    b = tl.load(y + (c * y_row + (start + s)[:, None]) * 1 * (n // n), mask=(start + s)[:, None] < depth)
    total = tl.dot(a, b, total)
""",
}


def source_of(body: str) -> str:
    return HEAD + textwrap.indent(body.strip("\n"), "    ") + TAIL


def reads_of(body: str, target: str, variant: int = 0) -> list[tuple[tuple[int, ...], dict[str, int]]]:
    """The shapes of what is read, and how wide."""
    kernel, found = kernel_of(source_of(body)), []

    def watch(stage, function):
        if stage == "access" and not found:
            ops = [s for s in walk(function.body) if isinstance(s, Op) and s.row.effect == "read"]
            found.extend((op.results[0].type.shape, dict(op.attributes)) for op in ops)

    lower_variant(kernel, kernel.specialisations()[0], VARIANTS[variant], TARGETS[target], watch)
    return found


def check(run, body, *, pitch=96, **named):
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-8, 8, (rows, pitch)).astype(np.float16)[:, :72] for rows in (32, 16))
    out = np.full((32, 16), np.nan, np.float32)
    run(kernel_of(source_of(body)), None, x, y, out, **named)
    assert (out == x.astype("f4") @ y.astype("f4").T).all()


@on_each_machine
@pytest.mark.parametrize("pitch", [96, 73])
@pytest.mark.parametrize("name", READS)
def test_numbers_are_those_of_the_addresses(run, name, pitch):
    check(run, READS[name], pitch=pitch)


@pytest.mark.parametrize("name", READS)
def test_numbers_are_the_same_on_targets_without_instructions_of_warpgroups(name):
    check(run_simulated, READS[name], target="sm_80")


@pytest.mark.parametrize("variant", [0, 1])
@pytest.mark.parametrize("name", READS)
def test_blocks_along_columns_are_read_as_their_transposes(name, variant):
    reads = reads_of(READS[name], "sm_80", variant)
    assert {shape for shape, _ in reads} == {(32, 32), (16, 32)}
    assert {how["contiguous"] for _, how in reads} == {32}
    assert {how["unmasked"] for _, how in reads} == {1 if variant else 8}


@pytest.mark.parametrize("name", OTHERS)
def test_other_blocks_stay_as_they_are(name):
    assert reads_of(OTHERS[name], "sm_80")[1][0] == (32, 16)
