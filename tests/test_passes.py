"""The passes: what they make of kernels, and that they change nothing that a kernel does."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.compiler.frontend import build
from gristmill.compiler.interpreter import Pointers, interpret
from gristmill.compiler.ir import Block, For, Function, If, Op, Value, print_function, verify, walk
from gristmill.compiler.passes import simplify
from machines import kernel_of
from staged import (
    ALIGNED,
    FLAT,
    GENERAL,
    KINDS,
    ROWS,
    STREAMING,
    VARIANTS,
    WIDE,
    accesses,
    count,
    element_bytes,
    indented,
    is_masked,
    named,
    ops,
    plain_function,
    run_passes,
)

# ---- tail versioning: which kernels get a copy without masks -------------------------------------------------------


@pytest.mark.parametrize("kernel", FLAT, ids=named)
def test_elementwise_kernel_has_a_copy_without_masks_where_masks_cost(kernel):
    for specialisation in kernel.specialisations():
        for variant, kind in ((ALIGNED, "cuda"), (ALIGNED, "host"), (GENERAL, "host"), (WIDE, "host")):
            function = run_passes(kernel, specialisation, variant=variant, kind=kind)
            (branch,) = (s for s in walk(function.body) if isinstance(s, If))
            inside, rest = (
                [op for op in walk(block) if isinstance(op, Op) and op.row.effect]
                for block in (branch.then, branch.otherwise)
            )
            assert len(inside) == len(rest) == len(accesses(function)) / 2
            assert not any(map(is_masked, inside))
            assert all(map(is_masked, rest))


@pytest.mark.parametrize("kernel", FLAT + ROWS, ids=named)
def test_predicated_access_of_single_elements_gets_no_copy(kernel):
    for variant in (GENERAL, WIDE):
        function = run_passes(kernel, variant=variant)
        assert count(function, If) == 0
        assert all(map(is_masked, accesses(function)))


def accesses_below(branch: If) -> list[Op]:
    return [s for block in branch.blocks for s in walk(block) if isinstance(s, Op) and s.row.touches_memory]


@pytest.mark.parametrize("kernel", ROWS, ids=named)
def test_rows_of_a_promised_length_need_no_copy_on_cuda(kernel):
    """A mask that is equal for each group of 16 bytes does not make an access narrower; only large tiles have many."""
    for specialisation in kernel.specialisations():
        function = run_passes(kernel, specialisation)
        branches = [s for s in walk(function.body) if isinstance(s, If)]
        is_large = dict(specialisation.constants)["BLOCK"] > 32 * 32 * specialisation.num_warps
        assert any(accesses_below(branch) for branch in branches) == is_large
        assert {op.attributes["width"] * element_bytes(op) for op in accesses(function)} == {16}


@pytest.mark.parametrize("kernel", ROWS, ids=named)
def test_loop_over_a_row_is_split_on_the_host(kernel):
    looping = next(s for s in kernel.specialisations() if not dict(s.constants)["ONE_PASS"])
    loops = {kind: count(run_passes(kernel, looping, kind=kind), For) for kind in KINDS}
    # Each loop twice, in the copy for long rows and in the one that is never reached.
    assert loops["host"] == 4 * loops["cuda"] > 0


LOOP = """
@gm.kernel(grid=1)
def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.i32, step: gm.i32):
    limit = n - 3
    for start in range(0, n, 4):
        cols = {cols}
        tl.store(y + cols, tl.load(x + cols, mask={mask}), mask={mask})
"""
SPLITS = {
    ("start + tl.arange(0, 4)", "cols < n"): True,
    ("step + (start + tl.arange(0, 4))", "cols < n"): True,
    ("start + tl.arange(0, 4)", "(cols < n) & (cols < step)"): True,
    ("start + tl.arange(0, 4)", "cols < limit"): True,
    ("start + tl.arange(0, 4)", "cols < n - step"): False,
    ("start + tl.arange(0, 4)", "cols <= n"): False,
    ("start + tl.arange(0, 4)", "(cols < n) | (cols < step)"): False,
    ("2 * start + tl.arange(0, 4)", "cols < n"): False,
    ("start + start + tl.arange(0, 4)", "cols < n"): False,
    ("start + tl.arange(0, 4)", "cols < n - start"): False,
    ("start + tl.arange(0, 4) * 2", "cols < n"): False,
    ("start - tl.arange(0, 4)", "cols < n"): False,
}


@pytest.mark.parametrize(("cols", "mask"), SPLITS)
def test_loop_is_split_where_its_mask_is_a_bound_on_the_induction(cols, mask):
    function = run_passes(kernel_of(LOOP.format(cols=cols, mask=mask)), kind="host")
    loops = [s for s in walk(function.body) if isinstance(s, For)]
    assert len(loops) == 1 + SPLITS[cols, mask]
    has_masks = [all(is_masked(op) for op in walk(loop.body) if isinstance(op, Op) and op.row.effect) for loop in loops]
    assert not SPLITS[cols, mask] or has_masks == [False, True]


# ---- and that it changes nothing: executed -------------------------------------------------------------------------

HEAD = """
@gm.kernel(BLOCK=[{block}], grid=lambda p: p)
def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.i32, m: gm.i32, lower: gm.i32, upper: gm.i32, step: gm.i32,
      shift: gm.i32, p: gm.i32, big: gm.i64, BLOCK: gm.constexpr):
    x += 256
    y += 256
    total = tl.zeros((BLOCK,), tl.float32)
"""
BODIES = {
    "loop": """
    for start in range(lower, upper, step):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + cols, mask=cols < n, other=-1.0)
        tl.store(y + cols, v + total, mask=cols < n)
        total += v
    tl.store(y - 256 + tl.arange(0, BLOCK), total)
    """,
    "loop with a shift": """
    limit = n - 3
    for start in range(lower, upper, step):
        cols = shift + start + tl.arange(0, BLOCK)
        tl.store(y + cols, tl.load(x + cols, mask=cols < limit) + total, mask=cols < limit)
        total += 1
    tl.store(y - 256 + tl.arange(0, BLOCK), total)
    """,
    "loop with a bound that it computes": """
    for start in range(lower, upper, step):
        cols = start + tl.arange(0, BLOCK)
        tl.store(y + cols, tl.load(x + cols, mask=cols < n - start) + total, mask=cols < m - 2)
        total += 1
    """,
    "loop with two bounds": """
    for start in range(lower, upper, step):
        cols = start + tl.arange(0, BLOCK)
        keep = (cols < n) & (cols + shift < m)
        tl.store(y + cols, tl.load(x + cols, mask=keep) + total, mask=keep)
        total += 1
    """,
    "loop with two masks": """
    for start in range(lower, upper, step):
        cols = start + tl.arange(0, BLOCK)
        tl.store(y + cols, tl.load(x + cols, mask=cols < m, other=5.0), mask=cols < n)
    """,
    "loop with one mask that is no bound": """
    for start in range(lower, upper, step):
        cols = start + tl.arange(0, BLOCK)
        tl.store(y + cols, tl.load(x + cols, mask=cols < n), mask=cols > m)
    """,
    "loops in a loop": """
    for row in range(0, p):
        for start in range(lower, upper, step):
            cols = row * 8 + start + tl.arange(0, BLOCK)
            tl.store(y + cols, tl.load(x + cols, mask=cols < n) + row, mask=cols < n)
    """,
    "bound that the loop changes": """
    limit = n
    for start in range(lower, upper, step):
        cols = start + tl.arange(0, BLOCK)
        tl.store(y + cols, tl.load(x + cols, mask=cols < limit), mask=cols < limit)
        limit -= 1
    """,
    "wide bound": """
    for start in range(lower, upper, step):
        cols = start + tl.arange(0, BLOCK)
        tl.store(y + cols, tl.load(x + cols, mask=cols < big), mask=cols < big)
    """,
    "block": """
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + cols, tl.load(x + cols, mask=cols < n), mask=cols < n)
    """,
    "block with steps before and after": """
    cols = lower + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + shift, 3.0)
    v = tl.load(x + cols, mask=(cols < n) & (cols < m), other=2.0)
    tl.store(y + cols, v + tl.sum(v), mask=cols < m)
    tl.store(y + shift + 1, tl.sum(v))
    """,
    "block under a condition": """
    if n > m:
        cols = shift + tl.arange(0, BLOCK)
        tl.store(y + cols, tl.load(x + cols, mask=cols < n), mask=cols < n)
    tl.store(y + lower, 9.0)
    """,
    "block, then a loop": """
    cols = shift + tl.arange(0, BLOCK)
    v = tl.load(x + cols, mask=cols < n)
    for start in range(lower, upper, step):
        more = start + tl.arange(0, BLOCK)
        tl.store(y + more, tl.load(x + more, mask=more < n) + v, mask=more < n)
    tl.store(y + cols, v, mask=cols < m)
    """,
}


@functools.cache
def stages(body: str, block: int) -> list[Function]:
    """Return a kernel as the frontend gives it, and after the passes of each kind of machine."""
    kernel = kernel_of(HEAD.format(block=block) + BODIES[body])
    plain = build(kernel, kernel.specialisations()[0], ALIGNED)
    return [plain, *(run_passes(kernel, kind=kind) for kind in KINDS)]


def outcome(function: Function, numbers: dict[str, int]) -> bytes:
    arrays = {"x": np.arange(512, dtype=np.float32), "y": np.full(512, 77, np.float32)}
    interpret(function, (numbers["p"],), arrays | numbers)
    return arrays["y"].tobytes()


@pytest.mark.parametrize("body", BODIES)
@given(st.data())
def test_passes_change_nothing_for_ragged_sizes(body, data):
    near = st.integers(-20, 70)
    numbers = {name: data.draw(near, label=name) for name in ("n", "m", "lower", "upper", "shift")}
    numbers |= {"step": data.draw(st.integers(1, 20), label="step"), "p": data.draw(st.integers(1, 3), label="p")}
    numbers["big"] = data.draw(near | st.integers(-(2**60), 2**60), label="big")
    plain, *others = stages(body, data.draw(st.sampled_from([1, 4, 16]), label="block"))
    assert [outcome(f, numbers) == outcome(plain, numbers) for f in others] == [True, True]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 31, 32, 33, 48])
def test_copy_without_masks_runs_exactly_the_whole_blocks(kind, n, monkeypatch):
    source = HEAD.format(block=16) + BODIES["loop"].replace("lower, upper, step", "0, upper, 16")
    kernel = kernel_of(source)
    seen = []
    load = Pointers.load
    monkeypatch.setattr(Pointers, "load", lambda p, mask, other: (seen.append(mask is None), load(p, mask, other))[1])
    numbers = dict.fromkeys(("m", "lower", "step", "shift", "big"), 0) | {"n": n, "upper": n, "p": 1}
    outcome(run_passes(kernel, kind=kind), numbers)
    assert seen == [True] * (n // 16) + [False] * (n % 16 > 0)


# ---- simplify ------------------------------------------------------------------------------------------------------


def simplified(body: str) -> list[str]:
    head = "@gm.kernel(grid=1)\ndef k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.i32):\n"
    function = plain_function(head + indented(body), GENERAL)
    simplify.run(function)
    verify(function)
    return [s.name for s in walk(function.body)]


def test_equal_pure_ops_are_shared_and_unused_ones_dropped():
    body = "a = tl.load(x) * 2\nb = tl.load(y)\nunused = tl.exp(b)\ntl.store(y, n + 1)\ntl.store(x, (n + 1) * a)"
    names = simplified(body)
    assert names.count("add") == 1
    assert "exp" not in names


def test_load_is_not_shared_across_a_store():
    names = simplified("tl.store(y, tl.load(x))\ntl.store(x, 2.0)\ntl.store(y + 1, tl.load(x))")
    assert names.count("load") == 2


def test_unused_load_is_dropped_and_store_is_kept():
    assert simplified("unused = tl.load(x)\ntl.store(y, 1.0)").count("load") == 0
    assert simplified("tl.store(y, 1.0)\ntl.store(y, 1.0)").count("store") == 2


def test_zeros_of_both_signs_are_not_shared():
    names = simplified("a = tl.load(x)\ntl.store(x, a * 0.0)\ntl.store(y, a * -0.0)")
    assert names.count("mul") == 2


def test_branch_shares_with_what_is_before_it_but_not_with_its_other_side():
    before = "w = n + 5\nif n > 0:\n    tl.store(x, n + 5)\nelse:\n    tl.store(y, w)"
    assert simplified(before).count("add") == 1
    sides = "if n > 0:\n    tl.store(x, n + 5)\nelse:\n    tl.store(y, n + 5)\ntl.store(y, n + 5)"
    assert simplified(sides).count("add") == 3


def test_loop_without_effect_is_dropped():
    assert "for" not in simplified("v = 0\nfor i in range(0, n):\n    v += i\ntl.store(y, 1.0)")
    assert "for" in simplified("v = 0\nfor i in range(0, n):\n    v += i\ntl.store(y, v)")


# ---- layout --------------------------------------------------------------------------------------------------------


def misfits(function: Function) -> list[str]:
    """Where the layout of a value is not the one that its op or statement needs."""
    layouts, found = function.layouts, []

    def need(place: str, value: Value, layout: Any) -> None:
        if value.type.shape and layouts[value] != layout:
            found.append(f"{place}: {value} has {layouts[value]}, not {layout}")

    for statement in walk(function.body):
        if isinstance(statement, Op):
            _check_op(statement, layouts, need)
        for block, sources in _flows(statement):
            for value, source in sources:
                if source.type.shape:
                    need(statement.name, value, layouts[source])
            assert isinstance(block, Block)
    return found


def _check_op(op: Op, layouts: Any, need: Any) -> None:
    if op.row.operand_layout and op.operands[0].type.shape:
        need(op.name, op.operands[0], op.row.operand_layout(op, layouts[op.results[0]]))
    elif op.row.result_layout:
        need(op.name, op.results[0], op.row.result_layout(op, layouts[op.operands[0]]))
    elif op.name not in ("relayout", "gathered", "hold", "held"):
        tiles = [v for v in (*op.operands, *op.results) if v.type.shape]
        for tile in tiles[1:]:
            need(op.name, tile, layouts[tiles[0]])


def _flows(statement: Any) -> list[tuple[Block, list[tuple[Value, Value]]]]:
    """Which values of a loop or branch take which others' place."""
    if isinstance(statement, For):
        carried = statement.body.arguments[1:]
        initial = list(zip(carried, statement.operands[3:], strict=True))
        step = [*zip(carried, statement.body.yields, strict=True), *zip(carried, statement.results, strict=True)]
        return [(statement.body, initial + step)]
    if isinstance(statement, If):
        return [(block, list(zip(statement.results, block.yields, strict=True))) for block in statement.blocks]
    return []


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
@pytest.mark.parametrize("kernel", STREAMING, ids=named)
def test_kernels_that_stream_need_no_relayout(kernel, variant):
    for specialisation in kernel.specialisations():
        function = run_passes(kernel, specialisation, variant=variant)
        assert ops(function, "relayout") == []
        assert misfits(function) == []


PLANES = {
    "rows and columns": ("v = tl.load(x + r[:, None] * 64 + c[None, :])", "tl.sum(v, 1)", "r", False),
    "columns of a tile": ("v = tl.load(x + r[:, None] * 64 + c[None, :])", "tl.sum(v, 0)", "c", False),
    "scaled rows": (
        "v = tl.load(x + r[:, None] * 64 + c[None, :]) * tl.load(x + r)[:, None]", "tl.sum(v, 1)", "r", True,
    ),
    "outer sum": ("v = tl.load(x + r)[:, None] + tl.load(x + c)[None, :]", "tl.sum(v, 1)", "r", True),
    "transposed": ("v = tl.load(x + r[:, None] * 64 + c[None, :]).T", "tl.sum(v, 0)", "r", False),
    "square and its transpose": (
        "t = tl.load(x + c[:, None] * 64 + c[None, :])\nv = t + t.T", "tl.sum(v, 1)", "c", True,
    ),
    "flattened": ("v = tl.load(x + r[:, None] * 64 + c[None, :]).reshape(1024)", "v", "tl.arange(0, 1024)", False),
}  # fmt: skip


@pytest.mark.parametrize("variant", [ALIGNED, GENERAL], ids=lambda v: v.name)
@pytest.mark.parametrize("name", PLANES)
def test_tiles_of_two_axes_get_relayouts_only_where_layouts_differ(name, variant):
    body, result, places, needs_relayout = PLANES[name]
    lines = ["r, c = tl.arange(0, 16), tl.arange(0, 64)", *body.splitlines(), f"tl.store(y + {places}, {result})"]
    source = "@gm.kernel(grid=1)\ndef k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32]):\n"
    kernel = kernel_of(source + indented("\n".join(lines)))
    function = run_passes(kernel, variant=variant)
    assert misfits(function) == []
    if not needs_relayout:
        assert ops(function, "relayout") == [], print_function(function)
    arrays = [{"x": np.arange(4096, dtype=np.float32) % 37, "y": np.zeros(1024, np.float32)} for _ in range(2)]
    interpret(function, (1,), arrays[0])
    interpret(build(kernel, kernel.specialisations()[0], variant), (1,), arrays[1])
    assert arrays[0]["y"].tobytes() == arrays[1]["y"].tobytes()
