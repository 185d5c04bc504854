"""How wide memory access is, that it may be so, and what callers must promise for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gristmill.cases import spec_of
from gristmill.compiler import interpreter
from gristmill.compiler.frontend import build
from gristmill.compiler.interpreter import interpret
from gristmill.compiler.ir import Op
from gristmill.compiler.passes import access, simplify
from machines import kernel_of, on_each_machine
from staged import (
    ALIGNED,
    FLAT,
    GENERAL,
    KERNELS,
    ROWS,
    WIDE,
    accesses,
    element_bytes,
    indented,
    named,
    ops,
    parameter_names,
    plain_function,
    run_passes,
)

# ---- access widths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [*FLAT, *ROWS], ids=named)
def test_aligned_access_takes_sixteen_bytes_and_general_access_one_element(kernel):
    for specialisation in kernel.specialisations():
        wide = [op for op in accesses(run_passes(kernel, specialisation)) if op.attributes["width"] > 1]
        assert wide
        assert {op.attributes["width"] * max(2, element_bytes(op)) for op in wide} <= {16, 32}
        for op in wide:
            assert op.attributes["width"] == 16 // element_bytes(op)
        assert {op.attributes["width"] for op in accesses(run_passes(kernel, specialisation, variant=GENERAL))} == {1}


ADDRESSES = {
    "i": 8,
    "8 * p + i": 8,
    "4 * p + i": 4,
    "p + i": 1,
    "i + 1": 1,
    "i + 6": 2,
    "2 * i": 1,
    "63 - i": 1,
    "i - 4": 4,
    "i // 2": 1,
    "tl.where(i < 8, i, i)": 1,
    "i % n": 1,
    "i % (8 * n)": 8,
    "i % 12": 4,
    "i % 128": 8,
    "i % -16": 8,
    "(i + 4) % (8 * n)": 4,
    "(8 * p + i) % (4 * n)": 4,
    "(8 * i) % (8 * n)": 1,
    "(i - 32) % (8 * n)": 1,
    "(64 * (p - 5) + i) % (8 * n)": 1,
    "(64 * (tl.program_id(0) // (p - 5)) + i) % (8 * n)": 8,
    "(64 * (tl.program_id(0) % (p - 5)) + i) % (8 * n)": 8,
    "(64 * ((5 - p) // 3) + i) % (8 * n)": 1,
    "tl.full((64,), 16, tl.int32)": 1,
    "tl.program_id(0) * 64 + i": 8,
    "(tl.program_id(0) * 64 + i).to(tl.int64)": 8,
    "(tl.arange(0, 8)[:, None] * 8 + tl.arange(0, 8)[None, :])": 8,
    "(tl.arange(0, 8)[:, None] * p + tl.arange(0, 8)[None, :])": 1,
    "(tl.arange(0, 8)[:, None] + 8 * tl.arange(0, 8)[None, :])": 1,
    "(tl.arange(0, 16)[:, None] * 4 + tl.arange(0, 4)[None, :])": 4,
}


def width_of(text: str, variant: Any = ALIGNED) -> int:
    source = "@gm.kernel(grid=1)\ndef k(x: gm.ptr[gm.f16], y: gm.ptr[gm.f16], n: gm.size['x'], p: gm.shape['x', 0]):"
    function = plain_function(source + "\n" + indented(f"i = tl.arange(0, 64)\n{text}"), variant)
    simplify.run(function)
    access.run(function)
    return min(op.attributes["width"] for op in ops(function, "load"))


@pytest.mark.parametrize("address", ADDRESSES)
def test_width_follows_from_the_address(address):
    assert width_of(f"tl.store(y + {address}, tl.load(x + {address}))") == ADDRESSES[address]
    assert width_of(f"tl.store(y + {address}, tl.load(x + {address}))", GENERAL) == 1


MASKS = {"i < n": 1, "i < 8 * n": 8, "i < 4 * n": 4, "i < 40": 8, "i < 12": 4, "i >= 16": 8, "i > 16": 1, "i <= 15": 1,
         "8 * n > i": 8, "(i < 8 * n) & (i < 4 * p)": 4, "i == i": 1, "n > 3": 8}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
def test_width_follows_from_the_mask(mask):
    assert width_of(f"tl.store(y + i, tl.load(x + i, mask={mask}))") == MASKS[mask]


def test_width_of_a_pointer_that_a_loop_moves_is_what_every_step_keeps():
    loop = "q = x + i\nfor _ in range(0, n):\n    tl.store(y + i, tl.load(q))\n    q += {}"
    assert [width_of(loop.format(step)) for step in (64, 4, 1, "8 * p")] == [8, 4, 1, 8]


def test_width_of_a_pointer_that_branches_assign_is_what_both_keep():
    branch = "if n > 3:\n    q = x + i\nelse:\n    q = x + i + {}\ntl.store(y + i, tl.load(q))"
    assert [width_of(branch.format(step)) for step in (64, 4, 1)] == [8, 4, 1]


@on_each_machine
@pytest.mark.parametrize("size", [8, 12, 37, 64, 200])
@pytest.mark.parametrize("first", [0, -16])
def test_a_remainder_reads_what_it_says(run, first, size):
    """Groups stay whole between multiples of what divides; below 0 they do not: the first of each multiple is at 0."""
    source = f"""
    @gm.kernel(grid=4)
    def k(x: gm.ptr[gm.i32], y: gm.ptr[gm.i32], n: gm.shape["x", 1]):
        start = tl.program_id(0) * 8 + {first}
        i = tl.arange(0, 64)
        tl.store(y + tl.program_id(0) * 64 + i, tl.load(x + n + (start + i) % n))
    """
    x, y = np.arange(2 * size, dtype=np.int32).reshape(2, size), np.zeros((4, 64), np.int32)
    run(kernel_of(source), None, x, y)
    assert (y == size + np.fmod(np.arange(4)[:, None] * 8 + first + np.arange(64), size)).all()


class Checker:
    """Executes a function and checks that each memory access keeps what its width says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.checked = 0
        run = interpreter._HANDLERS[Op]
        monkeypatch.setitem(
            interpreter._HANDLERS, Op, lambda program, op: (self.check(program, op), run(program, op))[1]
        )

    def check(self, program: Any, op: Op) -> None:
        width = op.attributes.get("width", 1)
        if width == 1:
            return
        pointers, *others = (program.values[v] for v in op.operands)
        groups = pointers.addresses.reshape(-1, width)
        assert (groups[:, 0] % width == 0).all(), f"{op.position}: not aligned"
        assert (np.diff(groups, axis=1) == 1).all(), f"{op.position}: not consecutive"
        for mask in others[op.name == "store" :][:1]:
            mask = np.broadcast_to(mask, pointers.shape).reshape(-1, width)
            assert (mask == mask[:, :1]).all(), f"{op.position}: the mask differs in a group"
        self.checked += 1


@pytest.mark.parametrize("columns", [8, 1000, 1024])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=named)
def test_what_a_width_promises_holds(kernel, columns, monkeypatch):
    checker, spec = Checker(monkeypatch), spec_of(kernel)
    case = next(
        c for c in spec.cases_for("test") if c.name.startswith(("1000", "2 x 1000", "2 x 129 x 40", "1 x 1 x 129 x 64"))
    )
    sizes = {1000: columns if "n_cols" in parameter_names(kernel) else 6 * columns, 129: 6 * columns, 40: 48}
    shapes = {name: tuple(sizes.get(size, size) for size in shape) for name, shape in case.shapes.items()}
    for dtypes in {s.dtypes: 0 for s in kernel.specialisations()}:
        first = next(s for s in kernel.specialisations() if s.dtypes == dtypes)
        values = interpreter._fill(kernel, spec.arguments(replace(case, shapes=shapes), first))
        chosen = interpreter._choose(kernel, values, {})
        function = run_passes(kernel, chosen)
        assert all(values[p.name] % d == 0 for p, d in access.promise(function).items())
        interpret(function, [interpreter._evaluate(code, kernel, values, chosen) for code in kernel.grid], values)
    assert checker.checked or columns == 8


# ---- promises ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "divisor"), [("f64", 2), ("f32", 4), ("f16", 8), ("bf16", 8)])
def test_row_length_is_promised_to_keep_rows_on_sixteen_bytes(dtype, divisor):
    for kernel in ROWS:
        specialisation = next(s for s in kernel.specialisations() if s.dtypes[0][1].name == dtype)
        promised = access.promise(build(kernel, specialisation, ALIGNED))
        assert {v.name: d for v, d in promised.items()} == {"n_cols": divisor}
        assert 1000 % divisor == 0


@pytest.mark.parametrize("kernel", FLAT, ids=named)
def test_length_that_only_masks_is_not_promised(kernel):
    assert access.promise(build(kernel, kernel.specialisations()[0], ALIGNED)) == {}


def test_promise_is_about_what_offsets_are_computed_from_by_the_smallest_element():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.u8], f: gm.f32, n: gm.size["x"], m: gm.shape["x", 0],
          s: gm.stride["x", 0]):
        i = tl.arange(0, 4)
        for row in range(0, n):
            tl.store(y + (row * s + i), f > 0, mask=i < m)
    """
    promised = access.promise(plain_function(source))
    assert {v.name: d for v, d in promised.items()} == {"s": 16}


def test_what_divides_is_promised_where_access_is_wider_for_it():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f16], y: gm.ptr[gm.f16], rows: gm.shape['x', 0], columns: gm.shape['x', 1],
          row: gm.stride['x', 0]):
        r, c = tl.arange(0, 16)[:, None], tl.arange(0, 64)[None, :]
        tl.store(y + r * 64 + c, tl.load(x + r % rows * row + c % columns))
    """
    promised = access.promise(plain_function(source))
    assert {v.name: d for v, d in promised.items()} == {"columns": 8, "row": 8}


PRODUCT = """
@gm.kernel(grid=1)
def k(x: gm.ptr[gm.f16], y: gm.ptr[gm.f16], m: gm.shape['x', 0], depth: gm.shape['x', 1], n: gm.shape['y', 1],
      row: gm.stride['x', 0]):
    r, c, s = tl.arange(0, 32)[:, None], tl.arange(0, 32)[None, :], tl.arange(0, 32)
    total = tl.zeros((32, 32), tl.float32)
    for start in range(0, depth, 32):
        a = tl.load(x + r * row + start + s[None, :], mask=(r < m) & (start + s[None, :] < depth))
        total += {step}
    tl.store(y + r * 32 + c, total, mask=c < n)
"""


@pytest.mark.parametrize(("step", "found"), [("tl.dot(a, a.T)", {"depth", "row"}), ("a", {"row"})])
def test_where_rows_end_is_promised_to_what_reads_them_for_products(step, found):
    """Other loops have a copy without masks; so has the store at the end."""
    promised = access.promise(plain_function(PRODUCT.format(step=step)))
    assert {v.name: d for v, d in promised.items()} == dict.fromkeys(found, 8)


def test_general_variants_promise_nothing():
    for variant in (GENERAL, WIDE):
        assert build(KERNELS["softmax_forward"], KERNELS["softmax_forward"].specialisations()[0], variant).facts == {}
