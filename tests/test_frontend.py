"""From a kernel's source to tile IR: whole functions as text, and what each construct of Python does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.compiler.frontend import build
from gristmill.compiler.ir import Block, For, Function, If, Tile, Value, print_function, verify, walk
from gristmill.declare import Kernel
from gristmill.specialisation import VARIANTS
from machines import array, compute, kernel_of, on_each_machine, same, shipped_kernels


def read_goldens() -> dict[str, tuple[str, str]]:
    text = (Path(__file__).parent / "data" / "tile_ir.txt").read_text()
    parts = (part.partition("\n") for part in text.split("=== ")[1:])
    return {name: tuple(rest.strip().split("\n---\n")) for name, _, rest in parts}


GOLDENS = read_goldens()


def first(kernel: Kernel, index: int = 0, variant: int = 0) -> Function:
    return build(kernel, kernel.specialisations()[index], VARIANTS[variant])


@pytest.mark.parametrize("name", GOLDENS)
def test_tile_ir_is_the_golden_text(name):
    source, expected = GOLDENS[name]
    assert print_function(first(kernel_of(source))).strip() == expected


def test_index_parameters_are_as_wide_as_the_variant_says():
    kernel = shipped_kernels()["vector_add"]
    for variant, index in enumerate(("i32", "i32", "i64")):
        function = first(kernel, variant=variant)
        assert [p.type.dtype.name for p in function.parameters] == ["ptr<i8>"] * 3 + [index]
        assert ("i64[2048]" in print_function(function)) == (index == "i64")


def test_aligned_variant_promises_sixteen_bytes():
    assert list(first(shipped_kernels()["vector_add"]).facts.values()) == [16, 16, 16]
    assert first(shipped_kernels()["vector_add"], variant=1).facts == {}


def test_ops_know_their_place_in_the_file():
    function = first(shipped_kernels()["vector_add"])
    (store,) = (op for op in walk(function.body) if op.name == "store")
    assert store.position.text.strip().startswith("tl.store(out + offsets")
    assert store.position.file.endswith("kernels/vector_add.py")
    assert store.position.text[store.position.column - 1 : store.position.end - 1] == store.position.text.strip()


# ---- verifier ------------------------------------------------------------------------------------------------------


def test_verifier_refuses_a_value_before_its_definition():
    stray = Value(Tile(dt.i32), "stray")
    with pytest.raises(AssertionError, match="stray"):
        verify(Function("f", Block(yields=[stray])))


def test_verifier_refuses_branches_of_different_types():
    condition = Value(Tile(dt.bool_), "c")
    sides = [Value(Tile(dt.i32), "a"), Value(Tile(dt.f32), "b")]
    branch = If([condition], *(Block(yields=[v]) for v in sides), [Value(Tile(dt.i32))])
    with pytest.raises(AssertionError, match="branches differ"):
        verify(Function("f", Block([condition, *sides], [branch])))


def test_verifier_refuses_a_loop_that_changes_the_type_of_what_it_carries():
    bounds = [Value(Tile(dt.i32), n) for n in "abc"]
    start, other = Value(Tile(dt.i32), "s"), Value(Tile(dt.f32), "o")
    body = Block([Value(Tile(dt.i32), "i"), Value(Tile(dt.i32), "carried")], [], [other])
    loop = For([*bounds, start], body, [Value(Tile(dt.i32))])
    with pytest.raises(AssertionError, match="for: carries"):
        verify(Function("f", Block([*bounds, start, other], [loop])))


# ---- branches ------------------------------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize("n", [-1, 0, 1])
def test_branch_merges_what_both_sides_assign(run, n):
    body = """
    if n > 0:
        v, w = x * 2, 1
    elif n == 0:
        v, w = x, 2
    else:
        v, w = -x, 3
    """
    x = array("i32", 3, 4)
    same(compute(run, "v * 10 + w", body=body, x=x, n=n), *({-1: [-27, -37], 0: [32, 42], 1: [61, 81]}[n]))


@on_each_machine
@pytest.mark.parametrize("n", [0, 1])
def test_branch_that_is_not_taken_stores_nothing(run, n):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.i32], n: gm.i32):
        if n > 0:
            tl.store(x, 5)
    """
    x = array("i32", 3, 4)
    run(kernel_of(source), None, x, n)
    same(x, 5 if n else 3, 4)


@on_each_machine
@pytest.mark.parametrize("n", [0, 1, 2])
def test_early_return_ends_the_kernel(run, n):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.i32], n: gm.i32):
        tl.store(x, 1)
        if n == 0:
            return
        tl.store(x + 1, 2)
        if n == 1:
            tl.store(x + 2, 3)
            return
        tl.store(x + 3, 4)
    """
    x = np.zeros(4, np.int32)
    run(kernel_of(source), None, x, n)
    assert x.tolist() == [[1, 0, 0, 0], [1, 2, 3, 0], [1, 2, 0, 4]][n]


@on_each_machine
@pytest.mark.parametrize("c", [0, 1, -1])
def test_conditional_expression_chooses_at_run_time(run, c):
    same(
        compute(
            run,
            "a if c != 0 else b",
            dt.i32,
            body="a = tl.load(x_)\nb = tl.load(x_ + 1)",
            size=1,
            x=array("i32", 5, 7),
            c=c,
        ),
        5 if c else 7,
    )


def test_constant_condition_leaves_no_branch():
    source = """
    @gm.kernel(FLAG=[True, False], grid=1)
    def k(x: gm.ptr[gm.f32], FLAG: gm.constexpr):
        if FLAG:
            v = tl.load(x)
        else:
            v = nothing_that_exists
        tl.store(x + 1, v if FLAG else also_nothing)
    """
    function = first(kernel_of(source))
    assert [s.name for s in walk(function.body) if isinstance(s, If)] == []


@on_each_machine
def test_and_or_not_short_circuit_constants(run):
    body = """
    LIMIT: tl.constexpr = None
    v = 1 if LIMIT is not None and LIMIT > 3 else 2
    w = 1 if LIMIT is None or LIMIT > 3 else 2
    """
    same(compute(run, "x + 10 * v + w", body=body, x=array("i32", 100)), 121)


@on_each_machine
def test_and_or_not_of_conditions_at_run_time(run):
    expression = "1 if n > 0 and n < 5 or not n != 7 else 0"
    got = [compute(run, f"x + ({expression})", x=array("i32", 0), n=n)[0] for n in (-1, 0, 3, 5, 7)]
    assert got == [0, 0, 1, 0, 1]


# ---- loops ---------------------------------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize("bounds", ["n", "0, n", "2, n, 3", "n, 2"])
@pytest.mark.parametrize("keyword", ["range", "tl.range"])
def test_loop_carries_what_it_assigns(run, bounds, keyword):
    body = f"""
    total = 0
    last = x
    for i in {keyword}({bounds}):
        total += i
        last = x + i
    """
    want = range(*eval(f"({bounds},)", {"n": 9}))
    expected = sum(want) * 100 + 5 + ([*want] or [0])[-1]
    same(compute(run, "total * 100 + last", body=body, x=array("i32", 5), n=9), expected)


@on_each_machine
def test_assignment_to_the_index_does_not_change_the_iteration(run):
    body = """
    total = 0
    for i in range(0, 12, 3):
        i = i + 2
        total += tl.load(x_ + i)
    """
    same(compute(run, "total + x * 0", body=body, x=np.arange(16, dtype=np.int32)), *[2 + 5 + 8 + 11] * 16)


@on_each_machine
def test_loops_nest(run):
    body = """
    total = 0
    for i in range(3):
        for j in range(i, n):
            if j % 2 == 0:
                total += 10 * i + j
    """
    want = sum(10 * i + j for i in range(3) for j in range(i, 5) if j % 2 == 0)
    same(compute(run, "x + total", body=body, x=array("i32", 0), n=5), want)


@on_each_machine
def test_loop_index_is_as_wide_as_its_bounds(run):
    body = """
    total = tl.zeros((1,), tl.int64)
    for i in range(tl.full((), 4294967296, tl.int64), tl.full((), 4294967299, tl.int64)):
        total += i
    """
    assert compute(run, "total", dt.i64, body=body, size=1).tolist() == [3 * 2**32 + 3]


@on_each_machine
@pytest.mark.parametrize("n", [1, 7, 27])
def test_while_runs_as_long_as_its_condition_holds(run, n):
    body = """
    steps = 0
    v = n
    while v != 1:
        v = v // 2 if v % 2 == 0 else 3 * v + 1
        steps += 1
    """
    v, steps = n, 0
    while v != 1:
        v, steps = (v // 2 if v % 2 == 0 else 3 * v + 1), steps + 1
    same(compute(run, "x + steps", body=body, x=array("i32", 0), n=n), steps)


@on_each_machine
def test_static_range_unrolls_and_keeps_its_names(run):
    body = """
    total = x
    for i in tl.static_range(1, 4):
        SIZE: tl.constexpr = 2**i
        total += tl.sum(tl.full((SIZE,), i, tl.int32))
    total += SIZE
    """
    function_free = compute(run, "total", body=body, x=array("i32", 0))
    same(function_free, 2 + 8 + 24 + 8)


@on_each_machine
def test_loop_over_a_tuple_unrolls(run):
    body = """
    total = x
    for factor, shift in ((1, 2), (3, 4)):
        total = total * factor + shift
    """
    same(compute(run, "total", body=body, x=array("i32", 5)), 25)


def test_unrolled_loop_leaves_no_loop():
    source = """
    @gm.kernel(N=[3], grid=1)
    def k(x: gm.ptr[gm.i32], N: gm.constexpr):
        for i in tl.static_range(N):
            tl.store(x + i, i)
    """
    statements = list(walk(first(kernel_of(source)).body))
    assert [s.name for s in statements if s.name in ("for", "store")] == ["store"] * 3


def test_hints_of_a_range_reach_the_loop():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.i32], n: gm.i32):
        for i in tl.range(n, num_stages=3, loop_unroll_factor=2):
            tl.store(x + i, i)
    """
    (loop,) = (s for s in walk(first(kernel_of(source)).body) if isinstance(s, For))
    assert loop.attributes == {"num_stages": 3, "unroll": 2}


# ---- helpers -------------------------------------------------------------------------------------------------------

HELPERS = """
SCALE: tl.constexpr = 3
OFFSET = tl.constexpr(100)


def scaled(v, by=SCALE, plus=0):
    return v * by + plus


@gm.jit
def both(v):
    return scaled(v), v - 1


def signed(v, n):
    if n < 0:
        return -v
    elif n == 0:
        return v * 0
    return v


def shrunk(v, IS_WHOLE: tl.constexpr):
    if IS_WHOLE:
        return v + v
    return tl.sum(v)


def max(v, keep):
    return tl.max(v, keep_dims=keep)
"""


@on_each_machine
def test_helper_with_defaults_and_names_is_inlined(run):
    same(compute(run, "scaled(x) + scaled(x, plus=OFFSET, by=2)", head=HELPERS, x=array("i32", 1, 2)), 105, 110)


@on_each_machine
def test_helper_returns_a_tuple(run):
    body = "a, b = both(x)\nc = both(x)[1]"
    same(compute(run, "a * 100 + b * 10 + c", body=body, head=HELPERS, x=array("i32", 1, 2)), 300, 611)


@on_each_machine
@pytest.mark.parametrize("n", [-4, 0, 4])
def test_helper_returns_early(run, n):
    same(compute(run, "signed(x, n)", head=HELPERS, x=array("i32", 7), n=n), 7 * np.sign(n))


@on_each_machine
def test_return_after_a_constant_condition_is_not_compiled(run):
    x = array("i32", 1, 2)
    same(compute(run, "shrunk(x, True)", head=HELPERS, x=x), 2, 4)
    same(compute(run, "shrunk(x, IS_WHOLE=False)", head=HELPERS, size=1, x=x), 3)


@on_each_machine
def test_helper_may_share_the_name_of_an_op(run):
    same(compute(run, "max(x, True).reshape(1)", head=HELPERS, size=1, x=array("i32", 1, 9)), 9)


@on_each_machine
def test_assignment_in_a_helper_stays_inside(run):
    head = """
    def inner(v):
        w = v + 1
        return w
    """
    same(compute(run, "w * 10 + inner(x)", body="w = x", head=head, x=array("i32", 4)), 45)


@on_each_machine
def test_python_functions_of_constants_are_folded(run):
    body = "SIZE: tl.constexpr = gm.next_power_of_2(gm.cdiv(10, 3)) * max(1, min(2, 3)) + len((1, 2)) - 2"
    same(compute(run, "x * SIZE + tl.arange(0, SIZE // 4)", body=body, x=array("i32", 1, 2)), 8, 17)


@on_each_machine
def test_functions_of_tiles_and_constants_mix(run):
    same(compute(run, "max(n, 3) + min(x, n) + abs(-x)", x=array("i32", 1, 9), n=5), 7, 19)
    same(compute(run, "gm.cdiv(n, 4) + x", x=array("i32", 0), n=9), 3)


# ---- names ---------------------------------------------------------------------------------------------------------


@on_each_machine
def test_dtype_variable_and_pointer_element_name_dtypes(run):
    source = """
    D = gm.dtype_var("D", gm.Float)


    @gm.kernel(D=[gm.f16, gm.f64], grid=1)
    def k(x: gm.ptr[D], y: gm.ptr[D]):
        wide = tl.load(x + tl.arange(0, 2)).to(tl.float32 if D.bits < 32 else D)
        tl.store(y + tl.arange(0, 2), (wide * 3).to(y.dtype.element_ty))
    """
    for dtype in (np.float16, np.float64):
        y = np.zeros(2, dtype)
        run(kernel_of(source), None, np.array([1, 2], dtype), y)
        same(y, 3, 6)


@on_each_machine
def test_methods_are_ops(run):
    x = array("f32", 4, 9)
    same(compute(run, "x.sqrt().maximum(2.5) + x.sum() - x.max()", x=x), 6.5, 7)
    same(compute(run, "x.to(tl.int32).to(tl.float32) + x.shape[0]", x=x), 6, 11)


def test_names_of_values_are_the_authors():
    _, text = GOLDENS["masked sum of two arrays"]
    assert "%offsets: i32[1024] = add" in text
    assert "%keep: bool[1024] = lt" in text
