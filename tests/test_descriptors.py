"""Block pointers and tensor descriptors: what they read and write, and that accesses are as wide as by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gristmill.compiler.frontend import build
from gristmill.compiler.ir import For, If, print_function, walk
from gristmill.compiler.op import ROWS
from gristmill.declare import Kernel
from gristmill.errors import KernelError
from machines import kernel_of, on_each_machine
from staged import ALIGNED, GENERAL, accesses, is_masked, ops, plain_function, run_passes

SIZES = [(16, 64), (15, 63), (17, 65), (1, 1), (50, 200), (3, 1000)]


def filled(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 97 + 1).astype(dtype).reshape(shape)


COPY_BLOCKS = """
@gm.kernel(grid=lambda m, n: (gm.cdiv(m, 16), gm.cdiv(n, 64)))
def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], m: gm.shape["x", 0], n: gm.shape["x", 1], s: gm.stride["x", 0],
      t: gm.stride["y", 0]):
    at = (tl.program_id(0) * 16, tl.program_id(1) * 64)
    {body}
"""
WITH_POINTERS = """\
source = tl.make_block_ptr(x, (m, n), (s, 1), at, (16, 64), (1, 0))
    target = tl.make_block_ptr(y, (m, n), (t, 1), at, (16, 64), (1, 0))
    v = tl.load(source, boundary_check=(0, 1), padding_option="zero")
    tl.store(target, v + 1, boundary_check=(0, 1))"""
WITH_DESCRIPTORS = """\
source = tl.make_tensor_descriptor(x, [m, n], [s, 1], [16, 64])
    target = tl.make_tensor_descriptor(y, shape=[m, n], strides=[t, 1], block_shape=[16, 64])
    target.store(at, source.load(at) + 1)"""
WITH_FUNCTIONS = """\
source = tl.make_tensor_descriptor(x, [m, n], [s, 1], [16, 64])
    target = tl.make_tensor_descriptor(y, shape=[m, n], strides=[t, 1], block_shape=[16, 64])
    tl.store_tensor_descriptor(target, at, tl.load_tensor_descriptor(source, at) + 1)"""
BY_HAND = """\
r = at[0] + tl.arange(0, 16)[:, None]
    c = at[1] + tl.arange(0, 64)[None, :]
    keep = (r < m) & (c < n)
    tl.store(y + r * t + c, tl.load(x + r * s + c, mask=keep) + 1, mask=keep)"""
WAYS = {"pointers": WITH_POINTERS, "descriptors": WITH_DESCRIPTORS, "functions": WITH_FUNCTIONS}


def copy_kernel(way: str) -> Kernel:
    return kernel_of(COPY_BLOCKS.format(body=way))


@on_each_machine
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SIZES)
def test_blocks_cover_an_array_of_any_size_and_touch_nothing_else(run, way, shape):
    x = filled(*shape)
    around = np.full((shape[0] + 2, shape[1] + 5), -7, np.float32)
    y = around[1:-1, 2:-3]
    run(copy_kernel(WAYS[way]), None, x, y)
    np.testing.assert_array_equal(y, x + 1)
    y[:] = -7
    assert (around == -7).all()


@on_each_machine
def test_strided_source_is_read_by_its_strides(run):
    base = filled(40, 150)
    x, y = base[::2, :70], np.zeros((20, 70), np.float32)
    run(copy_kernel(WITH_DESCRIPTORS), None, x, y)
    np.testing.assert_array_equal(y, x + 1)


WINDOW = """
@gm.kernel(grid=1)
def k(x: gm.ptr[gm.{dtype}], y: gm.ptr[gm.{dtype}], i: gm.i32, j: gm.i32, m: gm.shape["x", 0], n: gm.shape["x", 1]):
    rows, columns = tl.arange(0, 4), tl.arange(0, 8)
    {body}
    tl.store(y + rows[:, None] * 8 + columns[None, :], v)
"""


def window(run: Any, body: str, x: np.ndarray, i: int, j: int, dtype: str = "f32") -> np.ndarray:
    y = np.full((4, 8), 77, x.dtype)
    run(kernel_of(WINDOW.format(body=body, dtype=dtype)), None, x, y, i=i, j=j)
    return y


def expected(x: np.ndarray, i: int, j: int, padding: float = 0) -> np.ndarray:
    out = np.full((4, 8), padding, x.dtype)
    for r in range(4):
        for c in range(8):
            if 0 <= i + r < x.shape[0] and 0 <= j + c < x.shape[1]:
                out[r, c] = x[i + r, j + c]
    return out


@on_each_machine
@pytest.mark.parametrize("at", [(0, 0), (-1, -3), (2, 5), (-4, 0), (5, 10), (0, -2147483640), (2147483640, 0)])
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_what_is_outside_on_any_side_is_padding(run, at, padding):
    x = filled(5, 10)
    filler = np.nan if padding == "nan" else 0
    pointer = (
        "p = tl.make_block_ptr(x, (m, n), (n, 1), (i, j), (4, 8), (1, 0))\n"
        f"    v = tl.load(p, boundary_check=(0, 1), padding_option='{padding}')"
    )
    descriptor = f"v = tl.make_tensor_descriptor(x, (m, n), (n, 1), (4, 8), padding_option='{padding}').load([i, j])"
    np.testing.assert_array_equal(window(run, pointer, x, *at), expected(x, *at, filler))
    np.testing.assert_array_equal(window(run, descriptor, x, *at), expected(x, *at, filler))


@on_each_machine
def test_only_the_axes_that_are_named_are_checked(run):
    x = filled(6, 10)
    body = (
        "p = tl.make_block_ptr(x, (3, n), (n, 1), (i, j), (4, 8), (1, 0))\n"
        "    v = tl.load(p, boundary_check=(1,), padding_option='zero')"
    )
    np.testing.assert_array_equal(window(run, body, x, 1, 5), expected(x, 1, 5))
    limited = body.replace("(1,)", "(-2, -1)")
    np.testing.assert_array_equal(window(run, limited, x, 1, 5), expected(x[:3], 1, 5))
    assert (window(run, body.replace("(1,), padding_option='zero'", "()"), x, 1, 1) == x[1:5, 1:9]).all()


@on_each_machine
def test_block_pointer_of_a_transposed_array(run):
    x = filled(8, 4)
    body = "p = tl.make_block_ptr(x, (n, m), (1, n), (0, 0), (4, 8), (0, 1))\n    v = tl.load(p, boundary_check=0)"
    np.testing.assert_array_equal(window(run, body, x, 0, 0), x.T)


@on_each_machine
@pytest.mark.parametrize("dtype", ["i8", "u32", "i64", "f16", "f64"])
def test_windows_of_every_width(run, dtype):
    x = filled(
        5, 10, dtype={"i8": np.int8, "u32": np.uint32, "i64": np.int64, "f16": np.float16, "f64": np.float64}[dtype]
    )
    body = "v = tl.make_tensor_descriptor(x, (m, n), (n, 1), (4, 8)).load([i, j])"
    np.testing.assert_array_equal(window(run, body, x, 3, -2, dtype), expected(x, 3, -2))


@on_each_machine
@pytest.mark.parametrize("n", [1, 64, 130])
def test_block_pointer_goes_round_a_loop(run, n):
    x, y = filled(20, n), np.full(20, 7, np.float32)
    run(row_sums(), None, x, y)
    np.testing.assert_array_equal(y, x.sum(1))


def row_sums() -> Kernel:
    source = """
    def step(p, acc):
        return p.advance((0, 64)), acc + tl.sum(tl.load(p, boundary_check=(0, 1)), 1)


    @gm.kernel(grid=lambda m: gm.cdiv(m, 16))
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], m: gm.shape["x", 0], n: gm.shape["x", 1], s: gm.stride["x", 0]):
        i = tl.program_id(0) * 16
        p = tl.make_block_ptr(x, (m, n), (s, 1), (i, 0), (16, 64), (1, 0))
        acc = tl.zeros((16,), tl.float32)
        for k in range(0, n, 64):
            p, acc = step(p, acc)
        out = tl.make_block_ptr(y, (m,), (1,), (i,), (16,), (0,))
        tl.store(out, acc, boundary_check=(0,))
    """
    return kernel_of(source)


@on_each_machine
@pytest.mark.parametrize("c", [0, 1])
def test_branches_choose_between_block_pointers(run, c):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], c: gm.i32, m: gm.shape["x", 0]):
        p = tl.make_block_ptr(x, (m,), (1,), (1,), (4,), (0,))
        if c > 0:
            p = tl.advance(p, (2,))
        q = p if c > 0 else tl.advance(p, (3,))
        tl.store(y + tl.arange(0, 4), tl.load(q, boundary_check=(0,)))
    """
    x, y = filled(6), np.zeros(4, np.float32)
    run(kernel_of(source), None, x, y, c=c)
    start = 3 if c else 4
    np.testing.assert_array_equal(y, [*x[start:], 0, 0, 0, 0][:4])


@on_each_machine
def test_block_pointer_after_a_while_loop_and_in_a_tuple(run):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.size["x"]):
        state = (tl.make_block_ptr(x, (n,), (1,), (0,), (4,), (0,)), tl.zeros((4,), tl.float32), 0)
        while state[2] < n:
            p, total, i = state
            state = (p.advance((4,)), total + tl.load(p, boundary_check=(0,)), i + 4)
        tl.store(y + tl.arange(0, 4), state[1])
        tl.store(y + 4, state[0].offsets[0].to(tl.float32))
    """
    x, y = filled(10), np.zeros(5, np.float32)
    run(kernel_of(source), None, x, y)
    np.testing.assert_array_equal(y, [*np.pad(x, (0, 2)).reshape(3, 4).sum(0), 12])


@on_each_machine
def test_rows_are_gathered_and_scattered(run):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], rows: gm.ptr[gm.i32], y: gm.ptr[gm.f32], m: gm.shape["x", 0], n: gm.shape["x", 1]):
        d = tl.make_tensor_descriptor(x, [m, n], [n, 1], [1, 8])
        e = tl.make_tensor_descriptor(y, [m, n], [n, 1], [1, 8])
        r = tl.load(rows + tl.arange(0, 4))
        e.scatter(d.gather(r, 2) * 10, r, 2)
    """
    x, y = filled(6, 9), np.zeros((6, 9), np.float32)
    run(kernel_of(source), None, x, np.array([4, 0, -1, 6], np.int32), y)
    want = np.zeros_like(y)
    want[[4, 0], 2:] = 10 * x[[4, 0], 2:]
    np.testing.assert_array_equal(y, want)


@on_each_machine
def test_number_fills_a_block_and_values_are_cast(run):
    source = """
    @gm.kernel(grid=1)
    def k(y: gm.ptr[gm.i8], n: gm.size["y"]):
        d = tl.make_tensor_descriptor(y, [n], [1], [8])
        d.store([0], 3)
        d.store([8], tl.arange(0, 8) * 100 - 0.5)
    """
    y = np.full(13, 7, np.int8)
    run(kernel_of(source), None, y)
    assert y.tolist() == [3] * 8 + (np.arange(5) * 100 - 0.5).astype(np.int32).astype(np.int8).tolist()


@pytest.mark.skipif("atomic_add" not in ROWS, reason="needs atomics")
@on_each_machine
def test_atomic_add_through_a_descriptor(run):
    source = """
    @gm.kernel(grid=3)
    def k(y: gm.ptr[gm.i32], n: gm.size["y"]):
        tl.make_tensor_descriptor(y, [n], [1], [8]).atomic_add([2], tl.arange(0, 8))
    """
    y = np.ones(6, np.int32)
    run(kernel_of(source), None, y)
    assert y.tolist() == [1, 1, 1, 4, 7, 10]


# ---- how wide ------------------------------------------------------------------------------------------------------


def widths(kernel: Kernel, kind: str, variant: Any = ALIGNED) -> list[tuple[str, bool, int]]:
    return [
        (op.name, is_masked(op), op.attributes["width"])
        for op in accesses(run_passes(kernel, kind=kind, variant=variant))
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["cuda", "host"])
@pytest.mark.parametrize("variant", [ALIGNED, GENERAL], ids=["aligned", "general"])
def test_access_is_as_wide_as_by_hand(way, kind, variant):
    by_hand = widths(copy_kernel(BY_HAND), kind, variant)
    assert widths(copy_kernel(WAYS[way]), kind, variant) == by_hand
    assert (("load", False, 4) in by_hand) == (variant is ALIGNED)


def test_window_whose_place_is_known_has_upper_bounds_alone():
    function = run_passes(copy_kernel(WITH_POINTERS))
    assert not [op for op in ops(function) if op.row.predicate == ">="]
    assert [s.name for s in walk(function.body) if isinstance(s, If)] == ["if"]


def test_lower_bound_stays_where_an_offset_may_be_negative():
    source = WINDOW.format(body="v = tl.make_tensor_descriptor(x, (m, n), (n, 1), (4, 8)).load([i, 0])", dtype="f32")
    compared = [op for op in ops(run_passes(kernel_of(source))) if op.row.predicate == ">="]
    assert [op.results[0].type.shape for op in compared if op.results[0].type.shape] == [(4, 1)]


@pytest.mark.parametrize("promise", ["i >= 0", "0 < i"])
def test_lower_bound_goes_where_an_offset_is_promised_not_to_be_negative(promise):
    body = f"tl.assume({promise})\n    v = tl.make_tensor_descriptor(x, (m, n), (n, 1), (4, 8)).load([i, 0])"
    function = run_passes(kernel_of(WINDOW.format(body=body, dtype="f32")))
    assert not [op for op in ops(function) if op.row.predicate == ">=" and op.results[0].type.shape]


def test_loop_that_advances_a_block_pointer_carries_only_its_sum_and_reads_wide():
    function = run_passes(row_sums())
    loops = [s for s in walk(function.body) if isinstance(s, For)]
    assert [len(loop.results) for loop in loops] == [1, 1]
    assert [(op.name, is_masked(op), op.attributes["width"]) for op in ops(function, "load")] == [
        ("load", False, 4),
        ("load", True, 1),
    ]


def test_index_arithmetic_is_as_wide_as_the_variant_says():
    text = print_function(plain_function(COPY_BLOCKS.format(body=WITH_DESCRIPTORS), GENERAL))
    assert "i64" not in text
    from staged import WIDE

    assert "i32[" not in print_function(plain_function(COPY_BLOCKS.format(body=WITH_DESCRIPTORS), WIDE))


# ---- mistakes ------------------------------------------------------------------------------------------------------

MISTAKES = {
    "tl.make_block_ptr(v, (n,), (1,), (0,), (4,), (0,))": "base must be one pointer, got f32",
    "tl.make_block_ptr(x, n, (1,), (0,), (4,), (0,))": "shape must be a tuple, got i32",
    "tl.make_block_ptr(x, (n,), (1, 1), (0,), (4,), (0,))": "2 strides for 1 axes",
    "tl.make_block_ptr(x, (n,), (1,), (0, 0), (4,), (0,))": "2 offsets for 1 axes",
    "tl.make_block_ptr(x, (n,), (1.5,), (0,), (4,), (0,))": "strides must be integers, got `1.5`",
    "tl.make_block_ptr(x, (n,), (1,), (tl.arange(0, 4),), (4,), (0,))": "offsets must be integers",
    "tl.make_block_ptr(x, (n,), (1,), (0,), (5,), (0,))": "power of two, got 5",
    "tl.make_block_ptr(x, (n,), (1,), (0,), (n,), (0,))": "must be known at build time",
    "tl.make_block_ptr(x, (n,), (1,), (0,), 4, (0,))": "block_shape must be a tuple",
    "tl.make_block_ptr(x, (n,), (1,), (0,), (4,), (1,))": "order must name each axis once",
    "tl.make_block_ptr(x, (n,), (1,), (0,), (4,), (n,))": "order must name each axis once",
    "tl.load(p, boundary_check=(1,))": "axis 1 is out of range",
    "tl.load(p, boundary_check=(n,))": "axis must be a constant integer",
    "tl.load(p, boundary_check=(0,), padding_option='one')": "padding `one` is not 'zero' or 'nan'",
    "tl.load(q, boundary_check=(0,), padding_option='nan')": "i32 has no NaN",
    "tl.load(p, mask=n > 3)": "a block pointer takes no mask",
    "tl.store(p, v, mask=n > 3)": "a block pointer takes no mask",
    "tl.load(x, boundary_check=(0,))": "only a block pointer's boundary is known",
    "tl.load(d)": "needs pointers, got a tensor descriptor",
    "tl.advance(x, (1,))": "needs a block pointer",
    "tl.advance(p, (1, 2))": "2 offsets for 1 axes",
    "p + 1": "operators take tiles, not a block pointer",
    "p.moved(1)": "a block pointer has no `moved`",
    "tl.make_tensor_descriptor(x, [n], [2], [4])": "the last stride must be the constant 1, got `2`",
    "tl.make_tensor_descriptor(x, [n], [n], [4])": "the last stride must be the constant 1, got i32",
    "tl.make_tensor_descriptor(x, [n] * 6, [1] * 6, [1] * 6)": "6 axes, not 1 to 5",
    "tl.make_tensor_descriptor(y, [n], [1], [4], padding_option='nan')": "i32 has no NaN",
    "d.load()": "missing a required argument: 'offsets'",
    "d.load([0, 0])": "2 offsets for 1 axes",
    "d.load(n)": "offsets must be a tuple",
    "d.store([0], tl.zeros((8,), tl.float32))": "the value is f32[8], the block [4]",
    "d.gather(tl.arange(0, 4), 0)": "needs a descriptor of rows",
    "tl.load_tensor_descriptor(x, [0])": "needs a tensor descriptor",
    "tl.store_tensor_descriptor(p, [0], v)": "needs a tensor descriptor",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistake_is_an_error_with_a_fix(text):
    source = f"""
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.i32], n: gm.size["x"]):
        v = tl.load(x)
        p = tl.make_block_ptr(x, (n,), (1,), (0,), (4,), (0,))
        q = tl.make_block_ptr(y, (n,), (1,), (0,), (4,), (0,))
        d = tl.make_tensor_descriptor(x, [n], [1], [4])
        w = {text}
    """
    kernel = kernel_of(source)
    with pytest.raises(KernelError) as caught:
        build(kernel, kernel.specialisations()[0], ALIGNED)
    assert MISTAKES[text] in caught.value.message
    assert caught.value.fix
    assert caught.value.position.line == 11


def test_loop_that_changes_what_a_block_pointer_is_is_an_error():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], n: gm.size["x"]):
        p = tl.make_block_ptr(x, (n,), (1,), (0,), (4,), (0,))
        for i in range(n):
            p = tl.make_block_ptr(x, (n,), (1,), (0,), (8,), (0,))
    """
    kernel = kernel_of(source)
    with pytest.raises(KernelError, match="`p` is a block pointer before the loop and a block pointer after a step"):
        build(kernel, kernel.specialisations()[0], ALIGNED)
