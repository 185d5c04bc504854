"""What the language means of memory and programs; what is undefined, the interpreter reports."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from gristmill.compiler.interpreter import InterpreterError, run_kernel
from gristmill.errors import KernelError
from machines import array, compute, kernel_of, on_each_machine, same

# ---- pointers, loads and stores ------------------------------------------------------------------------------------

COPY = """
@gm.kernel(grid=1)
def copy(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.i32):
    offsets = tl.arange(0, 8)
    tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n, other=-1.0), mask=offsets < n + 1)
"""


@on_each_machine
def test_masked_load_gives_other_and_masked_store_leaves_memory(run):
    x, y = np.arange(8, dtype=np.float32), np.full(8, 77, np.float32)
    run(kernel_of(COPY), None, x, y, 3)
    same(y, 0, 1, 2, -1, 77, 77, 77, 77)


@on_each_machine
@pytest.mark.parametrize("offsets", ["i * 2 + 1", "1 + i * 2", "3 * i - 1 + 2", "i * 2 + tl.full((16,), 1, tl.int16)"])
def test_pointers_moved_by_tiles_and_then_by_a_number(run, offsets):
    source = f"""
    @gm.kernel(grid=1)
    def odd(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.i32):
        i = tl.arange(0, 16)
        tl.store(y + {offsets}, tl.load(x + {offsets}, mask=i < n), mask=i < n)
    """
    x, y = np.arange(48, dtype=np.float32), np.full(48, 77, np.float32)
    run(kernel_of(textwrap.dedent(source)), None, x, y, 9)
    step = 3 if "3" in offsets else 2
    want = np.full(48, 77, np.float32)
    want[1 : 9 * step : step] = x[1 : 9 * step : step]
    same(y, *want)


@on_each_machine
def test_masked_load_touches_no_address(run):
    x, y = np.arange(3, dtype=np.float32), np.full(4, 77, np.float32)
    run(kernel_of(COPY), None, x, y, 3)
    same(y, 0, 1, 2, -1)


@on_each_machine
def test_masked_off_elements_without_other_are_zero(run):
    body = "v = tl.load(x_ + tl.arange(0, 4), mask=tl.arange(0, 4) < 2)"
    same(compute(run, "v", body=body, x=array("f32", 5, 6, 7, 8)), 5, 6, 0, 0)


@on_each_machine
def test_other_is_cast_to_the_element(run):
    body = "v = tl.load(x_ + tl.arange(0, 2), mask=tl.arange(0, 2) < 1, other=2.9)"
    same(compute(run, "v", body=body, x=array("i32", 5, 6)), 5, 2)


@on_each_machine
def test_store_casts_to_the_element(run):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.i32]):
        tl.store(y + tl.arange(0, 4), tl.load(x + tl.arange(0, 4)))
    """
    y = np.zeros(4, np.int32)
    run(kernel_of(source), None, array("f32", 1.9, -1.9, 3, 0), y)
    same(y, 1, -1, 3, 0)


@on_each_machine
def test_store_of_a_number_to_bools_writes_one(run):
    source = """
    @gm.kernel(grid=1)
    def k(y: gm.ptr[gm.bool_]):
        tl.store(y + tl.arange(0, 2), tl.full((2,), 2, tl.int32))
    """
    y = np.zeros(2, np.bool_)
    run(kernel_of(source), None, y)
    assert y.view(np.uint8).tolist() == [1, 1]


@on_each_machine
def test_unsigned_offset_is_zero_extended_and_signed_sign_extended(run):
    body = "v = tl.load(x_ + 2 + tl.full((4,), {}, {}))"
    x = array("f32", 1, 2, 3, 4)
    same(compute(run, "v", body=body.format(-1, "tl.int8"), x=x), 2, 2, 2, 2)
    same(compute(run, "v", body="v = tl.load(x_ + (tl.full((4,), 255, tl.uint8) - 253))", x=x), 3, 3, 3, 3)
    big = np.zeros(256, np.float32)
    big[200] = 5
    same(compute(run, "v", body="v = tl.load(x_ + tl.full((1,), 200, tl.uint8))", size=1, x=big), 5)


@on_each_machine
def test_pointer_moves_back(run):
    same(compute(run, "tl.load(x_ + 3 - tl.arange(0, 4))", x=array("i16", 1, 2, 3, 4)), 4, 3, 2, 1)
    same(compute(run, "tl.load(tl.arange(0, 4) + x_)", x=array("i16", 1, 2, 3, 4)), 1, 2, 3, 4)


@on_each_machine
def test_pointer_may_be_chosen_between_arrays(run):
    body = "p = tl.where(tl.arange(0, 2) < 1, x_ + tl.arange(0, 2), y_ + tl.arange(0, 2))"
    same(compute(run, "tl.load(p)", body=body, x=array("f32", 1, 2), y=array("f32", 3, 4)), 1, 4)


@on_each_machine
def test_scalar_pointer_loads_a_scalar(run):
    same(compute(run, "tl.load(x_ + 1) + x", x=array("f32", 1, 10)), 11, 20)


@on_each_machine
@pytest.mark.parametrize(
    "dtype", ["f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool_"]
)
def test_every_dtype_loads_and_stores(run, dtype):
    values = array(dtype, 1, 0, 1, 1)
    got = compute(run, "x", x=values)
    assert got.tobytes() == values.tobytes()


# ---- programs ------------------------------------------------------------------------------------------------------


@on_each_machine
def test_every_program_of_a_grid_of_three_axes_runs_once(run):
    source = """
    @gm.kernel(grid=(2, 3, 4))
    def k(y: gm.ptr[gm.i32]):
        i = (tl.program_id(0) * 3 + tl.program_id(1)) * 4 + tl.program_id(2)
        size = tl.num_programs(0) * 100 + tl.num_programs(1) * 10 + tl.num_programs(2)
        tl.store(y + i, tl.load(y + i) + size)
    """
    y = np.arange(24, dtype=np.int32)
    run(kernel_of(source), None, y)
    assert y.tolist() == [i + 234 for i in range(24)]


@on_each_machine
def test_grid_without_programs_runs_nothing(run):
    source = """
    @gm.kernel(grid=lambda n: gm.cdiv(n, 4))
    def k(y: gm.ptr[gm.i32], n: gm.size["y"]):
        tl.store(y, 1)
    """
    run(kernel_of(source), None, np.zeros(0, np.int32))


@on_each_machine
def test_strides_are_parameters(run):
    source = """
    @gm.kernel(grid=lambda m: m)
    def k(x: gm.ptr[gm.f32, "1"], y: gm.ptr[gm.f32], m: gm.shape["x", 0], a: gm.stride["x", 0], b: gm.stride["x", 1]):
        offsets = tl.program_id(0) * a + tl.arange(0, 4) * b
        tl.store(y + tl.program_id(0), tl.sum(tl.load(x + offsets)))
    """
    whole = np.arange(60, dtype=np.float32).reshape(5, 12)
    for view in (whole[:, 3:7], whole[::-1, 8:4:-1], whole.T[4:9, :4], np.broadcast_to(whole[2, :4], (3, 4))):
        y = np.zeros(len(view), np.float32)
        run(kernel_of(source), None, view, y)
        np.testing.assert_array_equal(y, view.sum(1))


# ---- what is undefined is reported by the interpreter --------------------------------------------------------------


def test_access_outside_an_array_is_reported_at_its_line():
    with pytest.raises(InterpreterError) as caught:
        run_kernel(kernel_of(COPY), None, np.zeros(2, np.float32), np.zeros(8, np.float32), 3)
    lines = str(caught.value).splitlines()
    assert ":8:27: error: load: element 2 of `x` is outside the array, whose shape is [2]" in lines[0]
    assert lines[1].startswith("    8 |     tl.store(y + offsets, tl.load(x + offsets")
    assert lines[3] == "  fix: mask it, as in `mask=offsets < n`"


def test_access_between_the_elements_of_a_view_is_reported():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], s: gm.stride["x", 0]):
        tl.store(x + 1, 0.0)
    """
    with pytest.raises(InterpreterError, match="element 1 of `x` is outside"):
        run_kernel(kernel_of(source), None, np.zeros((3, 2), np.float32)[:, 0])


def test_store_to_a_read_only_array_is_reported():
    y = np.zeros(8, np.float32)
    y.flags.writeable = False
    with pytest.raises(InterpreterError, match="`y` is read-only"):
        run_kernel(kernel_of(COPY), None, np.zeros(8, np.float32), y, 3)


def test_every_step_of_a_loop_is_positive():
    source = """
    @gm.kernel(grid=1)
    def k(y: gm.ptr[gm.i32], step: gm.i32):
        for i in range(0, 4, step):
            tl.store(y, i)
    """
    with pytest.raises(InterpreterError, match="step must be positive, got 0"):
        run_kernel(kernel_of(source), None, np.zeros(1, np.int32), 0)


# ---- what has no meaning is refused --------------------------------------------------------------------------------

REFUSED = {
    "x // y": "needs integers",
    "x * p": "got a pointer",
    "x + p": "integer offset",
    "x & y": "needs integers or bools",
    "i << x": "needs integers or bools",
    "tl.load(x)": "needs pointers",
    "i + 3000000000": "out of range for i32",
    "i / u": "differ in signedness",
    "i % u": "differ in signedness",
    "i // u": "differ in signedness",
    "tl.load(p, other=0.0)": "`other` without `mask`",
    "tl.load(p, mask=i)": "mask must be bools",
    "tl.exp(i)": "needs a floating tile",
    "x ** 2": "is not supported on tiles",
    "x[0]": "indexed only by",
    "p + x": "integer offset",
    "u + -1": "out of range for u32",
}


@pytest.mark.parametrize("expression", REFUSED)
def test_meaningless_expression_is_refused(expression):
    body = "p = x_ + tl.arange(0, 4)"
    inputs = {name: np.ones(4).astype(d) for name, d in zip("xyiu", ("f4", "f4", "i4", "u4"), strict=True)}
    with pytest.raises(KernelError, match=REFUSED[expression]):
        compute(run_kernel, expression, body=body, **inputs)


@on_each_machine
@pytest.mark.parametrize("shift", [1, 3, 64])
def test_tile_is_read_as_a_whole_before_it_is_stored_elsewhere(run, shift):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.i32], shift: gm.i32):
        i = tl.arange(0, 128)
        moved = tl.load(x + i) * 10
        tl.debug_barrier()
        tl.store(x + shift + i, moved)
    """
    x = np.arange(256, dtype=np.int32)
    run(kernel_of(source), None, x, shift)
    want = np.arange(256)
    want[shift : shift + 128] = np.arange(128) * 10
    assert x.tolist() == want.tolist()


@on_each_machine
def test_tile_is_turned_in_place(run):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.i32]):
        i = tl.arange(0, 256)
        turned = tl.load(x + 255 - i)
        tl.debug_barrier()
        tl.store(x + i, turned)
    """
    x = np.arange(256, dtype=np.int32)
    run(kernel_of(source), None, x)
    assert x.tolist() == list(range(256))[::-1]
