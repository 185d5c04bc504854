"""Promises and cache hints: what they do to memory access, and that they change no value."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from assembled import assemble_text, ptx_of
from gristmill.compiler.interpreter import run_kernel
from gristmill.compiler.passes import access, simplify
from gristmill.errors import KernelError
from gristmill.language.memory import EVICTIONS, LOAD_CACHES, STORE_CACHES
from machines import compute, kernel_of, on_each_machine, same
from ptx import count_instructions, needs_ptxas
from staged import GENERAL, indented, ops, plain_function

# ---- promises ------------------------------------------------------------------------------------------------------

HEAD = "@gm.kernel(grid=1)\ndef k(x: gm.ptr[gm.f16], y: gm.ptr[gm.f16], s: gm.i32, t: gm.i64, at: gm.ptr[gm.i32]):\n"


def widths_of(body: str, variant=None) -> list[int]:
    """The widths of the loads, in order; `i` counts 64 elements."""
    source = HEAD + indented("i = tl.arange(0, 64)\n" + body)
    function = plain_function(source) if variant is None else plain_function(source, variant)
    simplify.run(function)
    access.run(function)
    return [op.attributes["width"] for op in ops(function, "load")]


LOAD = "tl.store(y + i, tl.load(x + {}))"
WIDTHS = {
    LOAD.format("s + i"): 1,
    LOAD.format("tl.multiple_of(s, 8) + i"): 8,
    LOAD.format("tl.multiple_of(s, 4) + i"): 4,
    LOAD.format("tl.multiple_of(s, 24) + i"): 8,
    LOAD.format("tl.multiple_of(s, 3) + i"): 1,
    LOAD.format("tl.multiple_of(t, 1 << 40) + i"): 8,
    "tl.multiple_of(s, 8)\n" + LOAD.format("s + i"): 8,
    "s = tl.multiple_of(s, 8)\n" + LOAD.format("s + i"): 8,
    "tl.assume(s % 8 == 0)\n" + LOAD.format("s + i"): 8,
    "tl.assume(0 == s % 4)\n" + LOAD.format("s + i"): 4,
    "tl.assume((s & 7) == 0)\n" + LOAD.format("s + i"): 8,
    "tl.assume((s & 5) == 0)\n" + LOAD.format("s + i"): 2,
    "tl.assume((s > 0) & (s % 8 == 0))\n" + LOAD.format("s + i"): 8,
    "tl.assume(s > 0 and s % 8 == 0 and t >= 8)\n" + LOAD.format("s + i"): 8,
    "tl.assume((s > 0) | (s % 8 == 0))\n" + LOAD.format("s + i"): 1,
    "tl.assume(s % 8 != 0)\n" + LOAD.format("s + i"): 1,
    "tl.assume(s % 8 == 1)\n" + LOAD.format("s + i"): 1,
    "tl.assume(s // 8 == 0)\n" + LOAD.format("s + i"): 1,
    "tl.assume(t % 16 == 0)\n" + LOAD.format("t + i"): 8,
    LOAD.format("(64 * s + i) % 96"): 1,
    "tl.assume(s >= 0)\n" + LOAD.format("(64 * s + i) % 96"): 8,
    "tl.assume((s > -1) & (t > 0))\n" + LOAD.format("(64 * s + i) % 96"): 8,
    "tl.assume(0 <= s)\n" + LOAD.format("(64 * s + i) % 96"): 8,
    "tl.assume(3 < s)\n" + LOAD.format("(64 * s + i) % 96"): 8,
    "tl.assume(s >= -1)\n" + LOAD.format("(64 * s + i) % 96"): 1,
    "tl.assume(s <= 0)\n" + LOAD.format("(64 * s + i) % 96"): 1,
    "tl.assume(0 > s)\n" + LOAD.format("(64 * s + i) % 96"): 1,
    "if t > 0:\n    tl.assume(s >= 0)\n" + LOAD.format("(64 * s + i) % 96"): 1,
    LOAD.format("(s + i) % 100"): 1,
    LOAD.format("tl.max_contiguous((s + i) % 100, 64)"): 1,
    LOAD.format("tl.max_contiguous(tl.multiple_of((s + i) % 100, 64), 64)"): 8,
    LOAD.format("tl.max_contiguous(tl.multiple_of((s + i) % 100, (4,)), [4])"): 4,
    "o = (s + i) % 100\ntl.multiple_of(o, 64)\ntl.max_contiguous(o, 64)\n" + LOAD.format("o"): 8,
    "o = s + i\ntl.multiple_of(s, 8)\n" + LOAD.format("o"): 1,
    "if t > 0:\n    tl.multiple_of(s, 8)\n" + LOAD.format("s + i"): 1,
    "for j in range(4):\n    tl.assume(s % 8 == 0)\n" + LOAD.format("s + i"): 1,
}


@pytest.mark.parametrize("body", WIDTHS)
def test_width_follows_from_promises(body):
    assert min(widths_of(body)) == WIDTHS[body]


@pytest.mark.parametrize("body", WIDTHS)
def test_nothing_is_promised_of_unaligned_arrays(body):
    assert set(widths_of(body, GENERAL)) == {1}


def test_promise_holds_where_it_is_made_and_below():
    inner = "    tl.multiple_of(s, 8)\n    " + LOAD.format("s + i") + "\n    for j in range(2):\n        "
    inner += LOAD.format("s + i")
    assert widths_of(f"if t > 0:\n{inner}\nelse:\n    {LOAD.format('s + i')}\n{LOAD.format('s + i')}") == [8, 8, 1, 1]


def test_promise_of_a_pointer_is_in_bytes():
    assert widths_of("p = tl.multiple_of(x + s, 16)\ntl.store(y + i, tl.load(p + i))") == [8]
    assert widths_of("p = tl.multiple_of(x + s, 4)\ntl.store(y + i, tl.load(p + i))") == [2]


def test_constancy_keeps_a_masked_access_wide():
    masked = "o = tl.load(at + i // 8)\ntl.store(y + i, tl.load(x + i, mask={} < 3))"
    assert widths_of(masked.format("o"))[-1] == 1
    assert widths_of(masked.format("tl.max_constancy(o, 8)"))[-1] == 8


@on_each_machine
def test_promises_change_no_value(run):
    body = """
    tl.assume(n % 2 == 0)
    tl.assume(n > 0)
    tl.assume(True)
    o = tl.max_contiguous(tl.multiple_of(n + tl.arange(0, 16), 2), 16)
    c = tl.max_constancy(tl.arange(0, 16) // 4, 4)
    """
    got = compute(run, "tl.load(x_ + o % 16) + c.to(tl.float32)", body=body, x=np.arange(16, dtype=np.float32), n=4)
    same(got, *[(i + 4) % 16 + i // 4 for i in range(16)])


def test_interpreter_ignores_a_broken_promise():
    got = compute(run_kernel, "tl.load(x_ + tl.multiple_of(tl.arange(0, 4), 4))", x=np.arange(4, dtype=np.float32))
    same(got, 0, 1, 2, 3)


REFUSED = {
    "tl.multiple_of(v, 8)": "needs integers or pointers, got f32",
    "tl.multiple_of(i, n)": "needs positive numbers known at build time",
    "tl.multiple_of(i, 0)": "needs positive numbers",
    "tl.max_contiguous(i, -8)": "needs positive numbers",
    "tl.max_constancy(i, 2.0)": "needs positive numbers",
    "tl.max_contiguous(i, (4, 4))": "2 numbers for 1 axes",
    "tl.multiple_of(i)": "missing a required argument",
    "tl.assume(i > 0)": "needs one condition",
    "tl.assume(n)": "needs one condition, got i32",
    "tl.assume(1 > 2)": "false at build time",
}


@pytest.mark.parametrize("call", REFUSED)
def test_meaningless_promise_is_refused(call):
    source = f"""
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], n: gm.i32):
        i = tl.arange(0, 4)
        v = tl.load(x + i)
        {call}
    """
    with pytest.raises(KernelError, match=REFUSED[call]) as caught:
        run_kernel(kernel_of(source), None, np.zeros(4, np.float32), 4)
    assert caught.value.fix


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_promise_makes_one_wide_instruction(target):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], at: gm.ptr[gm.i64]):
        i = tl.arange(0, 512)
        s = tl.load(at)
        {}
        tl.store(y + i, tl.load(x + s + i))
    """
    assert count_instructions(ptx_of(source.format("pass"), target))["ld.global 32"] == 4
    wide = count_instructions(ptx_of(source.format("tl.assume(s % 4 == 0)"), target))
    assert wide["ld.global 128"] == 1
    assert "ld.global 32" not in wide


# ---- cache hints ---------------------------------------------------------------------------------------------------

HINTED = """
@gm.kernel(grid=1)
def k(x: gm.ptr[gm.{dtype}], y: gm.ptr[gm.{dtype}], n: gm.i32):
    i = tl.arange(0, 512)
    v = tl.load(x + i{mask}, cache_modifier="{load}", eviction_policy="{eviction}"{volatile})
    tl.store(y + i, v{mask}, cache_modifier="{store}", eviction_policy="{eviction}")
"""
CHOICES = [
    *((load, "", "", "") for load in LOAD_CACHES),
    *(("", store, "", "") for store in STORE_CACHES),
    *(("", "", eviction, "") for eviction in EVICTIONS),
    (".cg", ".cs", "evict_last", ""),
    (".cv", ".wt", "evict_first", ", volatile=True"),
    ("", "", "", ", volatile=True"),
]


def suffixes(text: str) -> tuple[set[str], set[str]]:
    """What stands between `global` and the width in loads and stores; volatile ones have it before."""
    loads = {v + h for v, h in re.findall(r"\bld(\.volatile)?\.global((?:\.[cw]\w|\.L1::\w+)?)\.", text)}
    return loads, set(re.findall(r"\bst\.global((?:\.[cw]\w|\.L1::\w+)?)\.", text))


def wanted(load: str, store: str, eviction: str, volatile: str, target: str) -> tuple[set[str], set[str]]:
    priority = f".L1::{eviction}" if eviction in ("evict_first", "evict_last") else ""
    if target in ("sm_75", "sm_80"):
        priority = ".cs" if eviction == "evict_first" else ""
    first = ".volatile" if volatile else {".ca": ""}.get(load, load) or priority
    return {first}, {{".wb": ""}.get(store, store) or priority}


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_120"])
@pytest.mark.parametrize("mask", ["", ", mask=i < n"])
def test_hints_are_in_the_instructions_and_assemble(target, mask):
    texts = []
    for number, ((load, store, eviction, volatile), dtype) in enumerate(itertools.product(CHOICES, ("f32", "i8"))):
        source = HINTED.format(dtype=dtype, mask=mask, load=load, store=store, eviction=eviction, volatile=volatile)
        texts.append(ptx_of(source, target, name=f"hinted_{number}"))
        assert suffixes(texts[-1]) == wanted(load, store, eviction, volatile, target), (load, store, eviction, volatile)
    assemble_text(texts, target)


@on_each_machine
@pytest.mark.parametrize(("load", "store", "eviction", "volatile"), CHOICES)
def test_hints_change_no_value(run, load, store, eviction, volatile):
    source = HINTED.format(
        dtype="f32", mask=", mask=i < n", load=load, store=store, eviction=eviction, volatile=volatile
    )
    x, y = np.arange(512, dtype=np.float32), np.full(512, 77, np.float32)
    run(kernel_of(source), None, x, y, 300)
    same(y, *range(300), *[77] * 212)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("tl.load(x + i, cache_modifier='.wb')", "cache_modifier `.wb` is not one of none, .ca"),
        ("tl.store(x + i, 1.0, cache_modifier='.ca')", "cache_modifier `.ca` is not one of"),
        ("tl.load(x + i, eviction_policy='evict')", "eviction_policy `evict` is not one of"),
        ("tl.load(x + i, volatile=i)", "volatile is known at build time"),
        ("tl.load(x + i, cache_modifier=3)", "cache_modifier `3` is not one of"),
    ],
)
def test_unknown_hint_is_refused(call, message):
    source = f"""
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32]):
        i = tl.arange(0, 4)
        {call}
    """
    with pytest.raises(KernelError, match=message):
        run_kernel(kernel_of(source), None, np.zeros(4, np.float32))
