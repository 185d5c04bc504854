"""Loops that copy ahead, and warps with roles: values at any number of stages and steps, and what mistakes lead to."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from gristmill.compiler.compile import compile_variants
from gristmill.compiler.ir import For, Op, walk
from gristmill.compiler.passes import access
from gristmill.compiler.prepare import prepare
from gristmill.compiler.simt import run as simulation
from gristmill.compiler.simt.machine import SimtMachine
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS
from gristmill.errors import SimulationError
from gristmill.specialisation import VARIANTS
from machines import MACHINES, kernel_of, on_each_machine
from test_tensor import PLAIN, TURNED, kernel_for, run_product
from test_windows_shapes import itself, placed_kernel, run_placed, run_windows

TARGET_NAMES = ["sm_80", "sm_90a"]
on_each = pytest.mark.parametrize("run", list((MACHINES | {"simt": pytest.param(run_windows, id="sm_90a")}).values()))
SQUARE = "tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]"
# Rows are taken round, so that no block is one of a matrix, which the hardware would copy.
ROUND = "x = tl.load(a + (rows % m)[:, None] * depth + (start + steps)[None, :], mask=is_deep[None, :])\n        "
ROUNDS = {
    PLAIN: ROUND + PLAIN.replace("(start + steps)[:, None] * n", "((start + steps) % depth)[:, None] * n"),
    TURNED: ROUND + TURNED.replace("columns[:, None] * depth", "(columns % n)[:, None] * depth"),
}


def round_kernel(load: str = PLAIN, **named):
    """A product of blocks that threads copy on every target."""
    return kernel_for(load=ROUNDS[load], **named)


def prepared(kernel, target: str = "sm_90a", variant: int = 0):
    return prepare(kernel, kernel.specialisations()[0], VARIANTS[variant], TARGETS[target], lambda stage, thing: None)[
        0
    ]


def ops(function, *names: str) -> list[Op]:
    found = [s for program in function.programs for s in walk(program) if isinstance(s, Op)]
    return [op for op in found if op.name in names]


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("depth", [32, 64, 96, 320])
def test_any_number_of_stages_and_steps_gives_the_product(target, stages, depth):
    kernel = round_kernel(stages=stages)
    c, want = run_product(lambda *a: run_simulated(*a, target=target), kernel, "f16", (64, 64, depth))
    assert (c == want).all()


PERSISTENT = """
@gm.kernel(grid=2, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], n: gm.shape["c", 1], depth: gm.shape["a", 1]):
    steps, columns = tl.arange(0, 32), tl.arange(0, 64)
    for tile in range(tl.program_id(0), n // 64, tl.num_programs(0)):
        acc = tl.zeros((64, 64), tl.float32)
        for start in range(0, depth, 32):
            x = tl.load(a + (tl.arange(0, 64) % 64)[:, None] * depth + (start + steps)[None, :])
            y = tl.load(b + ((start + steps) % depth)[:, None] * n + (tile * 64 + columns)[None, :])
            acc = tl.dot(x, y, acc)
        scaled = acc * tl.sum(acc)
        tl.store(c + tl.arange(0, 64)[:, None] * n + (tile * 64 + columns)[None, :], scaled)
"""


@on_each_machine
@pytest.mark.parametrize("depth", [32, 160])
def test_slots_go_on_from_tile_to_tile(run, depth):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype("f2") for shape in ((64, depth), (depth, 320)))
    c = np.zeros((64, 320), "f4")
    run(kernel_of(PERSISTENT), None, a, b, c)
    want = a.astype("f8") @ b.astype("f8")
    for tile in range(5):
        part = want[:, 64 * tile : 64 * tile + 64]
        np.testing.assert_allclose(c[:, 64 * tile : 64 * tile + 64], part * part.sum(), rtol=1e-6)


CARRIED = """
@gm.kernel(grid=1, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], depth: gm.shape["a", 1]):
    steps, columns = tl.arange(0, 32), tl.arange(0, 64)
    left = a + columns[:, None] * depth + steps[None, :]
    right = b + steps[:, None] * 64 + columns[None, :]
    acc = tl.zeros((64, 64), tl.float32)
    for start in range(0, depth, 32):
        acc += tl.dot(tl.load(left), tl.load(right))
        left += 32
        right += 32 * 64
    tl.store(c + columns[:, None] * 64 + columns[None, :], acc)
"""


@on_each_machine
def test_pointers_that_the_loop_carries_run_ahead_of_it(run):
    a, b = (np.random.default_rng(i).integers(-4, 4, s).astype("f2") for i, s in enumerate(((64, 128), (128, 64))))
    c = np.zeros((64, 64), "f4")
    run(kernel_of(CARRIED), None, a, b, c)
    assert (c == a.astype("f8") @ b.astype("f8")).all()


GATHERED = f"""
@gm.kernel(grid=1, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], order: gm.ptr[gm.i32], c: gm.ptr[gm.f32], n: gm.i32):
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(n):
        block = tl.load(order + i)
        x = tl.load(a + block * 4096 + {SQUARE})
        acc = tl.dot(x, tl.load(b + {SQUARE}), acc)
    tl.store(c + {SQUARE}, acc)
"""


@on_each_machine
def test_loads_whose_addresses_are_loaded_are_right(run):
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 3, (4, 64, 64)).astype("f2"), rng.integers(-3, 3, (64, 64)).astype("f2")
    order, c = np.array([2, 0, 3], np.int32), np.zeros((64, 64), "f4")
    run(kernel_of(GATHERED), None, a, b, order, c, n=3)
    assert (c == a[order].astype("f8").sum(0) @ b.astype("f8")).all()


TWO_PRODUCTS = f"""
@gm.kernel(grid=1, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], n: gm.i32):
    first, second = tl.zeros((64, 64), tl.float32), tl.zeros((64, 64), tl.float32)
    for i in range(n):
        x, y = tl.load(a + i * 4096 + {SQUARE}), tl.load(b + i * 4096 + {SQUARE})
        first = tl.dot(x, y, first)
        second = tl.dot(x, tl.trans(y), second) * 0.5
    tl.store(c + {SQUARE}, first + second)
"""


@on_each_machine
def test_a_tile_may_be_used_twice_and_sums_between_steps(run):
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 3, (4, 64, 64)).astype("f2") for _ in range(2))
    c, want, half = np.zeros((64, 64), "f4"), np.zeros((64, 64)), np.zeros((64, 64))
    run(kernel_of(TWO_PRODUCTS), None, a, b, c, n=4)
    for x, y in zip(a.astype("f8"), b.astype("f8"), strict=True):
        want, half = want + x @ y, (half + x @ y.T) / 2
    assert (c == want + half).all()


COMPUTED = f"""
@gm.kernel(grid=1, num_warps=4, num_stages=4)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], n: gm.i32):
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(n):
        x = tl.load(a + i * 4096 + {SQUARE}) * 2
        acc = tl.dot(x, tl.load(b + i * 4096 + {SQUARE}), acc)
    tl.store(c + {SQUARE}, acc)
"""


@on_each_machine
def test_one_operand_may_be_computed(run):
    a, b = (np.random.default_rng(i).integers(-3, 3, (5, 64, 64)).astype("f2") for i in range(2))
    c = np.zeros((64, 64), "f4")
    run(kernel_of(COMPUTED), None, a, b, c, n=5)
    assert (c == 2 * np.einsum("bij,bjk->ik", a.astype("f8"), b.astype("f8"))).all()


def test_products_of_what_the_next_step_writes_again_are_waited_for():
    function = prepared(kernel_of(COMPUTED))
    assert len(ops(function, "ring")) == len(ops(function, "share")) == 1
    assert [op.attributes["pending"] for op in ops(function, "product")] == [False]


# ---- what must not be copied ahead ----------------------------------------------------------------------------------

IN_PLACE = f"""
@gm.kernel(grid=1, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], n: gm.i32):
    y = tl.load(b + {SQUARE})
    for i in range(n):
        x = tl.load(a + i * 4096 + {SQUARE})
        tl.store(a + (i + 1) * 4096 + {SQUARE}, tl.dot(x, tl.load(b + {SQUARE})).to(tl.float16))
        tl.debug_barrier()
"""
TWO_PHASES = f"""
@gm.kernel(grid=1, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], n: gm.i32):
    for i in range(n):
        tl.store(a + i * 4096 + {SQUARE}, tl.load(b + {SQUARE}) + i.to(tl.float16))
    tl.debug_barrier()
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(n):
        acc = tl.dot(tl.load(a + i * 4096 + {SQUARE}), tl.load(b + {SQUARE}), acc)
    tl.store(c + {SQUARE}, acc)
"""


@on_each_machine
def test_a_loop_that_reads_what_it_wrote_does_not_run_ahead(run):
    b = np.random.default_rng(0).integers(0, 2, (64, 64)).astype("f2") / 32
    a = np.zeros((4, 64, 64), "f2")
    a[0] = np.random.default_rng(1).integers(-3, 3, (64, 64))
    want = a.copy()
    for i in range(3):
        want[i + 1] = (want[i].astype("f4") @ b.astype("f4")).astype("f2")
    run(kernel_of(IN_PLACE), None, a, b, n=3)
    np.testing.assert_allclose(a.astype("f4"), want.astype("f4"), rtol=2e-3, atol=2e-3)


@on_each_machine
def test_what_an_earlier_loop_writes_is_not_fetched_before(run):
    a, b = np.zeros((3, 64, 64), "f2"), np.random.default_rng(2).integers(-3, 3, (64, 64)).astype("f2")
    c = np.zeros((64, 64), "f4")
    run(kernel_of(TWO_PHASES), None, a, b, c, n=3)
    x = b.astype("f8")
    assert (c == sum((x + i) @ x for i in range(3))).all()


@pytest.mark.parametrize(
    "line",
    [
        f"tl.store(a + {SQUARE}, tl.load(b + {SQUARE}))",
        "tl.atomic_add(c, 1.0)",
        "n += tl.load(b, volatile=True).to(tl.int32)",
    ],
)
def test_roles_are_for_programs_that_wait_for_nobody(line):
    text = TWO_PRODUCTS.replace("second = tl.dot(x, tl.trans(y), second) * 0.5", "pass").replace(
        "first + second", "first"
    )
    assert prepared(kernel_of(text)).producer is not None
    head = "    first, second"
    function = prepared(kernel_of(text.replace(head, f"    {line}\n{head}", 1)))
    assert function.producer is None


# ---- what becomes of the loop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [PLAIN, TURNED], ids=["plain", "turned"])
def test_warps_get_roles_where_warpgroups_multiply(load):
    kernel = round_kernel(load)
    function = prepared(kernel)
    assert function.producer_warps == 4 and not function.maps and function.block_threads == 256
    assert not ops(function, "share", "commit") and len(ops(function, "pipe")) == 1
    (artifact, *_) = compile_variants(kernel, kernel.specialisations()[0], TARGETS["sm_90a"])
    text = artifact.code.decode()
    assert artifact.threads == 256 and ".reqntid 256" in text
    assert "wgmma.mma_async" in text and "cp.async.mbarrier.arrive" in text and "mma.sync" not in text


def test_without_warpgroups_each_warp_copies_ahead():
    function = prepared(round_kernel(), "sm_80")
    assert function.producer is None and function.block_threads == 128
    assert len(ops(function, "ring")) == 4 and not ops(function, "share")  # two loops: full steps, and the rest


def test_both_loops_of_a_product_share_one_ring():
    function = prepared(round_kernel())
    loops = [s for s in walk(function.body) if isinstance(s, For)]
    assert len(loops) == 2 and len(ops(function, "ring")) == 2


def test_stages_are_as_many_as_fit():
    kernel = round_kernel(tile=(128, 128, 64), warps=8, stages=6)
    sizes = {name: ops(prepared(kernel, name), "ring")[0].results[0].type.shape[0] for name in TARGET_NAMES}
    assert sizes == {"sm_80": 3, "sm_90a": 6}


def test_stages_leave_room_for_what_else_a_step_takes():
    text = COMPUTED.replace("num_stages=4", "num_stages=8").replace("gm.f16", "gm.f32")
    text = text.replace("acc = tl.dot(x,", "x = tl.flip(x, 0)\n        acc = tl.dot(x,")
    function = prepared(kernel_of(text), "sm_80")
    (ring,) = ops(function, "ring")
    tile = 64 * 64 * 4  # once shared, and once turned round
    assert ring.results[0].type.shape[0] == (101376 - 2 * tile) // tile == 4
    assert function.used_bytes <= 101376


def test_roles_leave_room_for_what_consumers_exchange():
    epilogue = "acc = tl.flip(acc, 0)"
    kernel = round_kernel(tile=(128, 128, 64), warps=8, stages=7, epilogue=epilogue)
    function = prepared(kernel)
    assert function.producer is not None and function.used_bytes <= function.shared_bytes
    assert ops(function, "ring")[0].results[0].type.shape[0] == (232448 - 65536) // 32768


def test_general_variant_that_cannot_copy_words_loads_and_shares():
    function = prepared(kernel_for(), variant=1)
    assert not ops(function, "ring", "pipe") and ops(function, "share")


def test_two_warpgroups_divide_the_registers():
    kernel = round_kernel(tile=(128, 256, 64), warps=8, stages=4)
    (artifact, *_) = compile_variants(kernel, kernel.specialisations()[0], TARGETS["sm_90a"])
    producers, consumers = (
        int(n) for n in re.findall(r"setmaxnreg\.(?:dec|inc)\.sync\.aligned\.u32 (\d+)", artifact.code.decode())
    )
    assert producers % 8 == consumers % 8 == 0
    assert (168 - producers) >= 2 * (consumers - 168)  # what consumers wait for comes
    assert ".minnctapersm 1" in artifact.code.decode()  # else ptxas may not know the 168, and ignores both (C7508)
    others = prepared(round_kernel(tile=(16, 64, 64), warps=8, stages=3))  # no warpgroups multiply
    assert others.producer is not None and others.registers is None


# ---- products that are waited for in their step ----------------------------------------------------------------------

CHAINED = """
@gm.kernel(grid=2, num_warps={warps}, num_stages={stages})
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], d: gm.ptr[gm.f16], c: gm.ptr[gm.f32], m: gm.shape["a", 0],
      n: gm.shape["b", 0]):
    queries = tl.make_tensor_descriptor(a, [m, 32], [32, 1], [64, 32])
    keys = tl.make_tensor_descriptor(b, [n, 32], [32, 1], [32, 32])
    values = tl.make_tensor_descriptor(d, [n, 32], [32, 1], [32, 32])
    columns = tl.arange(0, 32)
    for row in range(tl.program_id(0) * 64, m, 128):
        rows = row + tl.arange(0, 64)
        acc = tl.zeros((64, 32), tl.float32)
        {before}
        for start in range(0, n, 32):
            steps = start + columns
            x = tl.dot({x}, {y}.T).to(tl.float16)
            acc = {acc}
        tl.store(c + rows[:, None] * 32 + columns[None, :], acc, mask=(rows < m)[:, None])
"""
READ = "tl.load({0} + ({1}{3})[:, None] * 32 + columns[None, :], mask=({1} < {2})[:, None])"
CHAINS = {  # operands of both products
    "descriptors": ("queries.load([row, 0])", "keys.load([start, 0])", "values.load([start, 0])"),
    "pointers": tuple(READ.format(*x.split(), "") for x in ("a rows m", "b steps n", "d steps n")),
    "round": tuple(READ.format(*x.split(), " % " + x[-1]) for x in ("a rows m", "b steps n", "d steps n")),
}
SUMS = {"that grow": ("tl.dot(x, {z}, acc)", 1), "that change": ("acc * 0.5 + tl.dot(x, {z})", 0.5)}


def chained_kernel(operands, sums="that grow", stages=3, warps=4, before="pass"):
    x, y, z = CHAINS[operands]
    acc = SUMS[sums][0].format(z=z)
    return kernel_of(CHAINED.format(**locals()))


@on_each
@pytest.mark.parametrize(("sums", "stages", "warps"), [("that grow", 2, 4), ("that change", 3, 4), ("that grow", 4, 8)])
@pytest.mark.parametrize("operands", CHAINS)
@pytest.mark.parametrize("n", [0, 32, 104])
def test_products_may_follow_from_each_other(run, n, operands, sums, stages, warps):
    """Sums are exact."""
    rng = np.random.default_rng(n)
    a, b, d = (rng.integers(-1, 2, (size, 32)).astype("f2") for size in (136, n, n))
    c, want = np.full((136, 32), np.nan, "f4"), np.zeros((136, 32))
    copied = run(chained_kernel(operands, sums, stages, warps), None, a, b, d, c)
    for start in range(0, n, 32):
        x, y, z = (v.astype("f8") for v in (a, b[start : start + 32], d[start : start + 32]))
        want = want * SUMS[sums][1] + x @ y.T @ z
    assert (c == want).all()
    assert run is not run_windows or copied == (set() if n == 0 or operands == "round" else {"a", "b", "d"})


@pytest.mark.parametrize("operands", CHAINS)
def test_slots_are_released_behind_products_that_are_waited_for(operands):
    function = prepared(chained_kernel(operands))
    assert (function.producer_warps, len(function.maps)) == ((4, 0) if operands == "round" else (1, 3))
    assert not any(op.attributes["pending"] for op in ops(function, "product"))
    loops = [s for s in walk(function.body) if isinstance(s, For)]
    for loop in (loop for loop in loops if all(isinstance(s, Op) for s in loop.body.statements)):
        names = [op.name for op in loop.body.statements]
        assert names.count("product") == 2 and "product" not in names[names.index("release") :]


@pytest.mark.parametrize("dtype", ["f16", "f32", "i8", "f64"])
@pytest.mark.parametrize("depth", [32, 200])
def test_copies_have_warps_of_their_own_where_warps_multiply(dtype, depth):
    kernel = kernel_for(dtype, (32, 32, 32))
    function = prepared(kernel)
    assert function.producer_warps == 4 and not any(op.attributes["by_groups"] for op in ops(function, "product"))
    c, want = run_product(run_simulated, kernel, dtype, (40, 48, depth))
    assert (c == want).all()


# ---- products of warpgroups whose operands must lie along the depth --------------------------------------------------

ALONG = """
@gm.kernel(grid=2, num_warps=4, num_stages={stages})
def k(a: gm.ptr[gm.{dtype}], b: gm.ptr[gm.{dtype}], c: gm.ptr[gm.{kind}], m: gm.shape["a", 0], depth: gm.shape["a", 1],
      n: gm.shape["b", 0]):
    left = tl.make_tensor_descriptor(a, [m, depth], [depth, 1], [64, {step}])
    row = tl.program_id(0) * 64
    rows, columns, steps = row + tl.arange(0, 64), tl.arange(0, 32), tl.arange(0, {step})
    acc = tl.zeros((64, 32), {total})
    for start in range(0, depth, {step}):
        keep = (columns < n)[:, None] & (start + steps < depth)[None, :]
        y = tl.load(b + columns[:, None] * depth + (start + steps)[None, :], mask=keep)
        acc = tl.dot(left.load([row, start]), y.T, acc, input_precision="tf32")
    tl.store(c + rows[:, None] * n + columns[None, :], acc, mask=(rows < m)[:, None] & (columns < n)[None, :])
"""
KINDS = {  # numpy's, the sums', steps, numbers, the instruction's
    "f8e4m3": (ml_dtypes.float8_e4m3fn, "f32", 128, (-3, 4), "k32.f32.e4m3.e4m3"),
    "f8e5m2": (ml_dtypes.float8_e5m2, "f32", 256, (-3, 4), "k32.f32.e5m2.e5m2"),
    "i8": (np.int8, "i32", 64, (-128, 128), "k32.s32.s8.s8"),
    "u8": (np.uint8, "i32", 128, (0, 256), "k32.s32.u8.u8"),
    "f32": (np.float32, "f32", 32, (-9, 10), "k8.f32.tf32.tf32"),
}


def along_kernel(dtype, stages=3):
    _, kind, step, *_ = KINDS[dtype]
    total = {"f32": "tl.float32", "i32": "tl.int32"}[kind]
    return kernel_of(ALONG.format(**locals()))


@on_each
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("depth", "stages"), [(0, 3), (16, 2), (144, 3), (400, 4)])
def test_products_of_bytes_and_tf32(run, dtype, depth, stages):
    """Sums are exact. A NaN is one in its row alone."""
    kind, result, _, numbers, _ = KINDS[dtype]
    rng = np.random.default_rng(depth)
    a, b = (rng.integers(*numbers, size).astype(kind) for size in ((72, depth), (16, depth)))
    if result == "f32" and depth:
        a[70, 5] = np.nan
    c = np.full((72, 16), 77, {"f32": "f4", "i32": "i4"}[result])
    copied = run(along_kernel(dtype, stages), None, a, b, c)
    np.testing.assert_array_equal(c, a.astype("f8") @ b.astype("f8").T)
    assert run is not run_windows or copied == ({"a", "b"} if depth else set())


@pytest.mark.parametrize("dtype", KINDS)
def test_bytes_and_tf32_are_multiplied_by_warpgroups(dtype):
    kernel = along_kernel(dtype)
    assert len(prepared(kernel).maps) == 2
    aligned, *others = compile_variants(kernel, kernel.specialisations()[0], TARGETS["sm_90a"])
    assert KINDS[dtype][-1] in aligned.code.decode()
    assert others and not any("wgmma" in other.code.decode() for other in others)


# ---- mistakes that the simulated device finds ------------------------------------------------------------------------


def run_with(monkeypatch, **words):
    for name, word in words.items():
        monkeypatch.setattr(SimtMachine, name, word)
    return run_product(run_simulated, round_kernel(), "f16", (64, 64, 320))


def test_slots_that_are_never_released_are_waited_for_in_vain(monkeypatch):
    with pytest.raises(SimulationError, match=r"wait for an? (full|empty) slot that never comes"):
        run_with(monkeypatch, release=lambda m, pipe, guard: None)


def test_copies_that_are_never_published_meet_in_their_slot(monkeypatch):
    with pytest.raises(SimulationError, match="is copied to again before the last copy has come"):
        run_with(monkeypatch, publish=lambda m, pipe: None)


def test_slots_that_are_released_too_soon_are_found(monkeypatch):
    released = SimtMachine.release

    def too_soon(m, pipe, guard):
        pipe.state.released[pipe.stages - 1] += pipe.state.taken == 0  # one slot more than there is
        released(m, pipe, guard)

    with pytest.raises(SimulationError, match="a slot is released before it is read"):
        run_with(monkeypatch, release=too_soon)


def test_copies_that_nobody_waits_for_are_found(monkeypatch):
    monkeypatch.setattr(SimtMachine, "wait_for_copies", lambda m, pending: None)
    kernel = round_kernel()
    with pytest.raises(SimulationError, match="is read, but nothing wrote it"):
        run_product(lambda *a: run_simulated(*a, target="sm_80"), kernel, "f16", (64, 64, 64))


# ---- mistakes of the compiler that these tests found -----------------------------------------------------------------


def test_roles_leave_room_for_what_other_products_take():
    epilogue = "acc = tl.dot(acc.to(tl.float16), acc.to(tl.float16).T, acc)"
    function = prepared(kernel_for(tile=(128, 128, 64), warps=8, stages=7, epilogue=epilogue))
    assert function.used_bytes <= function.shared_bytes


def test_blocks_of_an_outer_loop_take_no_maps_from_those_of_an_inner_one():
    """Keys and values are descriptors', queries read through pointers once for all of them."""
    x, y, z = CHAINS["pointers"][0], *CHAINS["descriptors"][1:]
    text = CHAINED.format(before=f"query = {x}", x="query", y=y, acc=f"tl.dot(x, {z}, acc)", stages=2, warps=4)
    assert {tensor_map.parameter for tensor_map in prepared(kernel_of(text)).maps} >= {"b", "d"}


def test_a_block_that_begins_between_chunks_is_a_mistake(monkeypatch):
    monkeypatch.setattr(access, "aligned_places", lambda window: [])
    monkeypatch.setattr(simulation, "_prepared", simulation._prepared.__wrapped__)  # keep nothing of it
    with pytest.raises(SimulationError, match="`a` is copied from column 7, which is not on 16 bytes"):
        run_placed(run_simulated, placed_kernel(place="[0, start + x]"), itself, 7)
