"""Products that run while warps compute: values at any number of steps, and where each is waited for."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gristmill.compiler.compile import compile_variant
from gristmill.compiler.ir import Block, For, Op, Statement, used_below, walk
from gristmill.compiler.passes import overlap
from gristmill.compiler.simt import run as simulation
from gristmill.compiler.simt.pipes import PipeMachine
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS
from gristmill.errors import SimulationError
from gristmill.specialisation import VARIANTS
from machines import bfloat16, kernel_of
from test_windows_shapes import on_each, prepared, run_windows

DTYPES = {"f16": ("float16", np.float16), "bf16": ("bfloat16", bfloat16)}
CHAINED = """
@gm.kernel(grid=1, num_warps={warps}, num_stages=2)
def k(q: gm.ptr[gm.{dtype}], x: gm.ptr[gm.{dtype}], y: gm.ptr[gm.{dtype}], out: gm.ptr[gm.f32], each: gm.ptr[gm.f32],
      scale: gm.f32, n: gm.shape["x", 0]):
    queries = tl.make_tensor_descriptor(q, [{rows}, 64], [64, 1], [{rows}, 64])
    keys = tl.make_tensor_descriptor(x, [n, 64], [64, 1], [32, 64])
    values = tl.make_tensor_descriptor(y, [n, 64], [64, 1], [32, 64])
    rows, columns = tl.arange(0, {rows}), tl.arange(0, 64)
    a = queries.load([0, 0])
    acc = tl.zeros(({rows}, 64), tl.float32)
    {before}
    for start in range(0, n, 32):
        s = tl.dot(a, keys.load([start, 0]).T)
        p = tl.where(s > 0, s * 2 + 1, -s).to(tl.{kind})
        {inside}
        acc = tl.dot(p, values.load([start, 0]), acc)
    {behind}
    tl.store(out + rows[:, None] * 64 + columns[None, :], acc)
"""
STEPS = [0, 1, 2, 3, 7]


def chained(dtype="f16", warps=4, before="pass", inside="pass", behind="pass"):
    rows, kind = 16 * warps, DTYPES[dtype][0]
    return kernel_of(CHAINED.format(**locals()))


def run_chained(run, kernel, steps, dtype="f16", warps=4, ragged=0):
    """Returns the sums, what is stored beside them, and for each step its first product and p @ values, all exact."""
    rng, n, kind = np.random.default_rng(steps + warps), 32 * steps - ragged, DTYPES[dtype][1]
    q, x, y = (rng.integers(-1, 2, shape).astype(kind) for shape in ((16 * warps, 64), (n, 64), (n, 64)))
    out, each = np.full((16 * warps, 64), np.nan, "f4"), np.full(16 * warps, np.nan, "f4")
    copied = run(kernel, None, q, x, y, out, each, scale=0.5)
    assert run is not run_windows or steps == 0 or copied == {"q", "x", "y"}
    found = []
    for i in range(0, n, 32):
        s = q.astype("f8") @ x[i : i + 32].astype("f8").T
        found.append((s, np.where(s > 0, 2 * s + 1, -s) @ y[i : i + 32].astype("f8")))
    return out, each, found


@on_each
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("steps", "ragged", "warps"), [*((n, 0, 4) for n in STEPS), (2, 5, 8), (3, 31, 8)])
def test_any_number_of_steps(run, steps, ragged, warps, dtype):
    out, _, found = run_chained(run, chained(dtype, warps), steps, dtype, warps, ragged)
    np.testing.assert_array_equal(out, sum((b for _, b in found), np.zeros_like(out)))


MORE = {  # what else a loop does: before it, in a step, behind it
    "a number behind": ("pass", "pass", "acc = acc * scale + tl.full(({rows}, 64), 3.0, tl.float32)"),
    "sums that change": ("pass", "acc = acc * scale", "pass"),
    "a second use of what is rounded": ("z = 0.0", "z = z + tl.sum(p.to(tl.float32))", "acc += z"),
}


@on_each
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", MORE)
def test_loops_may_do_more(run, name, steps):
    before, inside, behind = MORE[name]
    kernel = chained(before=before, inside=inside, behind=behind.format(rows=64))
    out, _, found = run_chained(run, kernel, steps)
    want = np.zeros_like(out, "f8")
    for s, product in found:
        want = want * (0.5 if name == "sums that change" else 1) + product
        want += np.where(s > 0, 2 * s + 1, -s).sum() if name.startswith("a second") else 0
    np.testing.assert_array_equal(out, want * 0.5 + 3 if name == "a number behind" else want)


# ---- where products are waited for -----------------------------------------------------------------------------------

BESIDE = {  # three products a step, whose chain is not shifted
    "before": "more = tl.zeros(({rows}, 64), tl.float32)",
    "inside": "more = tl.dot(p, keys.load([start, 0]), more)",
    "behind": "acc += more * 64.0",
}
KERNELS = {
    "a chain": {},
    "eight warps": {"warps": 8},
    "bf16": {"dtype": "bf16"},
    "two chains": {key: text.format(rows=64) for key, text in BESIDE.items()},
    "a second use": dict(zip(("before", "inside", "behind"), MORE["a second use of what is rounded"], strict=True)),
}


def blocks_with_open_products(function) -> list[Block]:
    found = [function.body, *(b for s in walk(function.body) for b in s.blocks)]
    return [b for b in found if any(is_open(s) for s in b.statements)]


def is_open(statement: Statement) -> bool:
    return isinstance(statement, Op) and statement.name == "product" and statement.attributes["pending"] is None


def settles(block: Block) -> dict[Op, Op]:
    """What waits for each open product of a block; nothing else reads its sums."""
    found = {}
    for product in filter(is_open, block.statements):
        users = [s for s in block.statements if product.results[0] in used_below(s)]
        assert [s.name for s in users] == ["settle"] and product.results[0] not in block.yields
        found[product] = users[0]
    return found


def where(block: Block, op: Statement) -> int:
    return block.statements.index(op)


@on_each
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_two_chains_give_both_sums(run, steps):
    kernel = chained(**KERNELS["two chains"])
    out, _, _ = run_chained(run, kernel, steps)
    rng = np.random.default_rng(steps + 4)
    q, x, y = (rng.integers(-1, 2, s).astype("f8") for s in ((64, 64), (32 * steps, 64), (32 * steps, 64)))
    p = q @ x.T
    p = np.where(p > 0, 2 * p + 1, -p)
    np.testing.assert_array_equal(out, p @ y + 64 * (p @ x))


@pytest.mark.parametrize("name", KERNELS)
def test_sums_are_read_behind_their_settle_alone(name):
    blocks = blocks_with_open_products(prepared(chained(**KERNELS[name])))
    assert blocks
    for block in blocks:
        for product, settle in settles(block).items():
            later = [p for p in settles(block) if where(block, product) < where(block, p) < where(block, settle)]
            assert settle.attributes["pending"] <= len(later)
            assert [settle.operands[1]] == [product.operands[0]] if product.attributes["is_held"] else True


@pytest.mark.parametrize("name", ["a chain", "eight warps", "bf16", "a second use"])
def test_a_loops_last_product_is_of_the_step_before(name):
    """Both run side by side; what the next one holds is made behind the wait for this one."""
    function = prepared(chained(**KERNELS[name]))
    (loop,) = [s for s in walk(function.body) if isinstance(s, For)]
    block = loop.body
    first, last = filter(is_open, block.statements)
    assert (first.attributes["is_held"], last.attributes["is_held"]) == (False, True)
    assert last.operands[0] in block.arguments  # the words of the step before
    waits = settles(block)
    assert where(block, last) < where(block, waits[first]) < where(block, waits[last])
    (words,) = [s for s in block.statements if s.name == "words"]
    assert where(block, words) > where(block, waits[last])
    assert block.yields.index(words.results[0]) == block.arguments.index(last.operands[0]) - 1


def released(block: Block) -> list[tuple[Op, Op]]:
    """Each release of a block, and the last product that reads slots of its pipe."""
    made, found = {v: s for s in block.statements for v in s.results}, []
    for op in (s for s in block.statements if s.name == "release"):
        readers = [s for s in filter(is_open, block.statements) if op.operands[0] in pipes_of(s, made)]
        if readers:
            found.append((op, readers[-1]))
    return found


def pipes_of(product: Op, made) -> set:
    pending, pipes = list(product.operands), set()
    while pending:
        op = made.get(pending.pop())
        if op is not None and op.name in ("turned", "slot"):
            pending += op.operands
        elif op is not None and op.name == "take":
            pipes |= set(op.operands)
    return pipes


@pytest.mark.parametrize("name", KERNELS)
def test_slots_are_free_behind_the_wait(name):
    function = prepared(chained(**KERNELS[name]))
    found = [(b, *pair) for b in blocks_with_open_products(function) for pair in released(b)]
    assert len(found) >= 2  # of keys and values
    for block, release, product in found:
        assert where(block, release) > where(block, settles(block)[product])


# ---- turns -----------------------------------------------------------------------------------------------------------


def turns(block: Block) -> list[str]:
    """The products of a block, and where warpgroups wait for their turn and pass it."""
    names = [s.name for s in block.statements if isinstance(s, Op)]
    return [name for name in names if name in ("wait_turn", "product", "pass_turn")]


@pytest.mark.parametrize(("warps", "is_alone"), [(4, True), (8, False)])
def test_warpgroups_begin_the_products_of_a_step_in_turn(warps, is_alone):
    function = prepared(chained(warps=warps))
    found = sorted(t for t in (turns(b) for s in walk(function.body) for b in s.blocks) if t)
    last = ["product"]
    both = [["product"] * 2] if is_alone else [["wait_turn", "product", "product", "pass_turn"]]
    first = ["product", "product"] if is_alone else ["wait_turn", "product", "pass_turn", *last]
    assert found == sorted([*both, first])
    assert function.takes_turns is not is_alone


def test_a_turn_is_a_barrier_of_two_warpgroups():
    """The last one lets the first begin, and the first takes back what the last has passed."""
    kernel = chained(warps=8)
    text = compile_variant(kernel, kernel.specialisations()[0], VARIANTS[0], TARGETS["sm_90a"]).code.decode()
    found = re.findall(r"(@%p\d+ )?bar\.(sync|arrive) %r\d+, 256;", text)
    kinds = [("begins " if guard else "") + kind for guard, kind in found]
    assert kinds == ["begins arrive", *["sync", "arrive"] * 2, "begins sync"]


# ---- mistakes that the simulated device finds ------------------------------------------------------------------------


def add_at_once(opened: overlap._Opened, statement: Statement) -> None:
    """Free a slot where the product that reads it has begun."""
    if isinstance(statement, Op) and statement.row.frees_slot:
        opened.statements.append(statement)
    else:
        ADD(opened, statement)


ADD = overlap._Opened.add


def test_slots_that_are_free_before_the_wait_are_found(monkeypatch):
    monkeypatch.setattr(simulation, "_prepared", simulation._prepared.__wrapped__)  # keep nothing of it
    run_chained(run_simulated, chained(), 7)
    monkeypatch.setattr(overlap._Opened, "add", add_at_once)
    with pytest.raises(SimulationError, match="is written while a product that nobody has waited for reads it"):
        run_chained(run_simulated, chained(), 7)


@pytest.mark.parametrize(
    "name, message", [("pass_turn", "is not passed before the next"), ("wait_turn", "was not taken")]
)
def test_turns_that_are_not_taken_or_passed_are_found(name, message, monkeypatch):
    monkeypatch.setattr(simulation, "_prepared", simulation._prepared.__wrapped__)
    monkeypatch.setattr(PipeMachine, name, lambda machine: None)
    with pytest.raises(SimulationError, match=message):
        run_chained(run_simulated, chained(warps=8), 3, warps=8)


def test_a_turn_that_is_never_passed_is_found(monkeypatch):
    calls = iter(range(9))
    passing = PipeMachine.pass_turn
    monkeypatch.setattr(simulation, "_prepared", simulation._prepared.__wrapped__)
    monkeypatch.setattr(PipeMachine, "pass_turn", lambda m: None if next(calls) == 2 else passing(m))
    with pytest.raises(SimulationError, match="a turn is never passed"):
        run_chained(run_simulated, chained(warps=8), 3, warps=8)
