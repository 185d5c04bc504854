"""The language's rules about constants, promotion, division, shifts, pointers and memory, one test a rule.

`test_semantics.py` has the common cases; here are the corners: every pair of dtypes, extremes, and what is refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.dtypes import Dtype, dt_numpy
from machines import RUNNERS, array, compute, kernel_of, needs_host, on_each_machine, same
from rules import BY_NAME, EVERY, INF, INTEGERS, NAN, numbers, refused, spelled

# ---- 2.1 constants -------------------------------------------------------------------------------------------------


@on_each_machine
def test_assignment_makes_a_number_a_tile(run):
    same(compute(run, "n + x", dt.i32, body="n = 100", x=array("i8", 100)), 200)
    same(compute(run, "n + x", dt.i8, body="n: tl.constexpr = 20", x=array("i8", 100)), 120)


@on_each_machine
def test_constexpr_may_be_assigned_again_as_a_tile(run):
    same(compute(run, "n + x", dt.i32, body="n: tl.constexpr = 3\nn = 4", x=array("i8", 100)), 104)


@on_each_machine
def test_annotation_with_a_dtype_converts(run):
    same(compute(run, "n + x", dt.i64, body="n: tl.int64 = 3", x=array("i32", 4)), 7)


def test_number_beyond_an_integer_dtype_is_refused():
    x = array("i8", 1)
    for text in ("x + 1000", "x * -129", "x == 128", "tl.where(x > 0, x, 200)", "tl.maximum(x, 300)", "x & 256"):
        assert "out of range for i8" in refused(text, x=x)
    assert "-1 is out of range for u8" in refused("x + -1", x=array("u8", 1))
    assert "-1 is out of range for u64" in refused("-1 < x", x=np.array([1], np.uint64))


# ---- 2.2 promotion -------------------------------------------------------------------------------------------------


def promotion(a: Dtype, b: Dtype) -> Dtype:
    """The dtype of the sum of two tiles."""
    if dt.f64 in (a, b):
        return dt.f64
    if dt.f32 in (a, b):
        return dt.f32
    if dt.f16 in (a, b):
        return dt.f16
    if dt.bf16 in (a, b):
        return dt.bf16 if a == b else dt.f32
    if a.is_float or b.is_float:
        return a if a == b else dt.f16
    rank = {d: 1 if d == dt.bool_ else d.bits for d in (a, b)}
    if a.is_signed == b.is_signed:
        return max((a, b), key=lambda d: rank[d])
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    return unsigned if rank[unsigned] >= rank[signed] else signed


@pytest.mark.parametrize("left", EVERY)
def test_two_tiles_of_any_dtypes_are_promoted(left):
    for right in EVERY:
        x, y = numbers(left, 1, 0), numbers(right, 0, 0)
        want = promotion(BY_NAME[left], BY_NAME[right])
        same(compute(RUNNERS["interpreter"], "x | y" if want == dt.bool_ else "x + y", want, x=x, y=y), 1, 0)


@needs_host
@pytest.mark.parametrize("right", EVERY)
def test_two_tiles_of_any_dtypes_are_promoted_on_the_host(right):
    for left in ("u8", "i16", "bool", "f16", "f8e4m3"):
        x, y = numbers(left, 1, 0), numbers(right, 0, 0)
        want = promotion(BY_NAME[left], BY_NAME[right])
        same(compute(RUNNERS["host"], "x | y" if want == dt.bool_ else "x + y", want, x=x, y=y), 1, 0)


@on_each_machine
def test_number_of_a_higher_kind_keeps_its_own_dtype(run):
    same(compute(run, "x + 2", dt.i32, x=array("bool_", 1, 0)), 3, 2)
    same(compute(run, "x + 3000000000", dt.u32, x=array("bool_", 1, 0)), 3000000001, 3000000000)
    same(compute(run, "x * 0.5", dt.f32, x=array("i8", 1, 3)), 0.5, 1.5)
    same(compute(run, "x * 1e300", dt.f64, x=array("i8", 1, 3)), 1e300, 3e300)
    same(compute(run, "x * 0.5", dt.f32, x=array("bool_", 1, 0)), 0.5, 0)


@on_each_machine
def test_number_of_the_tiles_kind_takes_its_dtype_even_where_it_overflows(run):
    same(compute(run, "x + 1e6", x=array("f16", 1, -1)), INF, INF)
    same(compute(run, "x + True", x=array("i8", 127, 1)), -128, 2)
    same(compute(run, "x * 70000", x=array("f16", 0.5, 1)), INF, INF)


@on_each_machine
@pytest.mark.parametrize("sign", ["/", "%"])
def test_division_with_a_float_is_in_f32_or_f64(run, sign):
    for left, right in (("f16", "f16"), ("bf16", "bf16"), ("f16", "i32"), ("i64", "bf16"), ("f8e5m2", "f16")):
        x, y = numbers(left, 7, 5), numbers(right, 2, 4)
        same(compute(run, f"x {sign} y", dt.f32, x=x, y=y), *([3.5, 1.25] if sign == "/" else [1, 1]))
    same(compute(run, f"x {sign} 2.0", dt.f32, x=array("f16", 7)), 3.5 if sign == "/" else 1)
    same(compute(run, f"x {sign} y", dt.f64, x=array("f16", 7), y=array("f64", 2)), 3.5 if sign == "/" else 1)


def test_division_of_different_signedness_is_refused():
    x, y = array("i32", 1), array("u32", 1)
    for sign in ("/", "//", "%"):
        assert "differ in signedness" in refused(f"x {sign} y", x=x, y=y)


@on_each_machine
def test_division_of_a_tile_and_a_number_is_in_the_tiles_dtype(run):
    same(compute(run, "x // 2", x=array("u8", 255, 3)), 127, 1)
    same(compute(run, "200 // x", x=array("u8", 7, 3)), 28, 66)
    same(compute(run, "x % 7", x=array("i8", -128, 127)), -2, 1)


@on_each_machine
def test_where_promotes_numbers_tiles_and_pointers(run):
    c = array("bool_", 1, 0)
    same(compute(run, "tl.where(c, 1, 2.5)", dt.f32, size=2, c=c), 1, 2.5)
    same(compute(run, "tl.where(c, x, 7)", dt.i8, c=c, x=array("i8", 1, 2)), 1, 7)
    same(compute(run, "tl.where(x, x, -1)", dt.i32, x=array("i32", 5, 0)), 5, -1)
    body = "p = tl.where(c, x_ + tl.arange(0, 2), y_ + tl.arange(0, 2))"
    same(compute(run, "tl.load(p)", dt.f32, body=body, c=c, x=array("f32", 1, 2), y=array("f32", 3, 4)), 1, 4)


@on_each_machine
def test_fma_takes_the_tiles_dtype_for_its_numbers(run):
    same(compute(run, "tl.fma(2.0, 3.0, x)", x=array("f16", 1, 2)), 7, 8)
    same(compute(run, "tl.fma(x, 3.0, 1)", x=array("f64", 1, 2)), 4, 7)


@on_each_machine
def test_and_or_not_are_of_truth(run):
    same(compute(run, "x and y", dt.bool_, x=array("i32", 5, 0, 2, 0), y=array("i32", 2, 3, 0, 0)), 1, 0, 0, 0)
    same(compute(run, "x or y", dt.bool_, x=array("i32", 5, 0), y=array("f32", 0, 0)), 1, 0)
    same(compute(run, "not x", dt.bool_, x=array("f32", NAN, 0, -0.0, 3)), 0, 1, 1, 0)


# ---- 2.3 division, shifts, overflow --------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_every_width_wrap(run, name):
    info = np.iinfo(dt_numpy(BY_NAME[name]))
    x = np.array([info.max, info.min], info.dtype)
    assert compute(run, "x + 1", x=x).tolist() == [info.min, info.min + 1]
    assert compute(run, "x - 1", x=x).tolist() == [info.max - 1, info.max]
    with np.errstate(over="ignore"):
        assert compute(run, "x * x", x=x).tolist() == (x * x).tolist()
        assert compute(run, "-x", x=x).tolist() == (np.zeros_like(x) - x).tolist()
    assert compute(run, "tl.abs(x)", x=x).tolist() == np.abs(x).tolist()


@on_each_machine
@pytest.mark.parametrize("name", INTEGERS)
def test_quotient_and_remainder_are_those_of_c(run, name):
    info = np.iinfo(dt_numpy(BY_NAME[name]))
    signs = (1, -1) if info.min < 0 else (1,)
    pairs = [(s * a, t * b) for a in (info.max, 7, 6, 1, 0) for b in (info.max, 3, 2, 1) for s in signs for t in signs]
    pairs += [(info.min, 3), (info.min, 1), (info.min, info.max)]
    pairs += [(0, 1)] * (-len(pairs) % 128)
    x, y = (np.array(side, info.dtype) for side in zip(*pairs, strict=True))
    quotients = [abs(int(a)) // abs(int(b)) * (1 if (a < 0) == (b < 0) else -1) for a, b in pairs]
    assert compute(run, "x // y", x=x, y=y).tolist() == quotients
    got = compute(run, "x % y", x=x, y=y).tolist()
    assert got == [int(a) - q * int(b) for (a, b), q in zip(pairs, quotients, strict=True)]


@on_each_machine
def test_constants_divide_as_tiles_do(run):
    body = "a: tl.constexpr = -7 // 2\nb: tl.constexpr = -7 % 3\nc: tl.constexpr = 7 // -2"
    same(compute(run, "x + a * 100 + b * 10 + c", body=body, x=array("i32", 0)), -300 - 10 - 3)


def test_floor_division_of_floats_is_refused():
    assert "needs integers" in refused("x // 2.0", x=array("f32", 1))
    assert "needs integers" in refused("x // y", x=array("i32", 1), y=array("f16", 1))


@on_each_machine
@pytest.mark.parametrize("name", INTEGERS)
def test_shifts_of_every_width(run, name):
    info = np.iinfo(dt_numpy(BY_NAME[name]))
    x = np.array([info.max, info.min, 1, info.max // 3], info.dtype)
    for by in (0, 1, info.bits - 1):
        assert compute(run, f"x >> {by}", x=x).tolist() == [int(v) >> by for v in x]
        kept = [(int(v) << by) & (2**info.bits - 1) for v in x]
        assert compute(run, f"x << {by}", x=x).tolist() == np.array(kept, f"u{info.bits // 8}").view(x.dtype).tolist()


@on_each_machine
def test_right_shift_goes_by_the_sign_of_what_is_shifted(run):
    y = array("u32", 4, 1)
    same(compute(run, "x >> y", dt.u32, x=array("i32", -16, 16), y=y), 2**32 - 1, 8)
    same(compute(run, "x >> y", dt.u32, x=array("i8", -16, 16), y=y), 2**32 - 1, 8)
    same(compute(run, "x >> y", dt.u32, x=np.array([2**31, 16], np.uint32), y=array("i32", 4, 1)), 2**27, 8)


# ---- 2.4 pointers --------------------------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize("name", INTEGERS)
def test_offset_of_every_integer_dtype(run, name):
    body = f"at = (tl.arange(0, 4) * 2).to({spelled(name)})"
    x = np.arange(8, dtype=np.float32)
    assert compute(run, "tl.load(x_ + at)", dt.f32, body=body, size=4, x=x).tolist() == [0, 2, 4, 6]
    assert compute(run, "tl.load(at + x_)", dt.f32, body=body, size=4, x=x).tolist() == [0, 2, 4, 6]
    assert compute(run, "tl.load(x_ + 7 - at)", dt.f32, body=body, size=4, x=x).tolist() == [7, 5, 3, 1]


@on_each_machine
def test_narrow_offset_is_extended_by_its_sign(run):
    x = np.arange(256, dtype=np.float32)
    at = {"u8": 190, "i8": -56}
    for name, value in at.items():
        got = compute(
            run, "tl.load(x_ + 56 + at)", dt.f32, body=f"at = tl.full((1,), {value}, {spelled(name)})", size=1, x=x
        )
        assert got.tolist() == [56 + value]
    least = "at = tl.full((1,), -128, tl.int8)"
    assert compute(run, "tl.load(x_ - at)", dt.f32, body=least, size=1, x=x).tolist() == [128]


@on_each_machine
def test_bool_in_memory_is_a_byte_that_is_not_zero(run):
    x = np.array([2, 0, 1, 255], np.uint8)
    same(compute(run, "tl.load(x_ + tl.arange(0, 4)).to(tl.int32)", dt.i32, x=x.view(np.bool_)), 1, 0, 1, 1)
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.i32], y: gm.ptr[gm.bool_]):
        tl.store(y + tl.arange(0, 4), tl.load(x + tl.arange(0, 4)))
    """
    y = np.zeros(4, np.bool_)
    run(kernel_of(source), None, array("i32", 2, 0, 256, -1), y)
    assert y.view(np.uint8).tolist() == [1, 0, 1, 1]


@on_each_machine
def test_pointer_as_an_integer_counts_bytes(run):
    body = """
    a = (x_ + 3).to(tl.int64) - x_.to(tl.int64)
    b = (x_ + 1).to(tl.uint64, bitcast=True).to(tl.int64) - x_.to(tl.int64)
    """
    same(compute(run, "a * 100 + b", dt.i64, body=body, size=1, x=array("f64", 0, 1, 2, 3)), 2408)
    same(compute(run, "x_.to(tl.int1).to(tl.int32)", dt.i32, size=1, x=array("f32", 0)), 1)


@on_each_machine
def test_integer_as_a_pointer(run):
    body = """
    a = x_.to(tl.int64) + 8 * tl.arange(0, 2)
    p = a.to(tl.pointer_type(tl.float32))
    q = x_.to(tl.pointer_type(tl.int32))
    """
    same(compute(run, "tl.load(p)", dt.f32, body=body, size=2, x=array("f32", 5, 6, 7, 8)), 5, 7)
    same(compute(run, "tl.load(q + 1)", dt.i32, body=body, size=1, x=array("f32", 5, 1)), 0x3F800000)
    same(compute(run, "tl.load((x_ + 2).to(x_.dtype))", dt.f32, body=body, size=1, x=array("f32", 5, 6, 7, 8)), 7)


# ---- 2.5 broadcasting ----------------------------------------------------------------------------------------------


@on_each_machine
def test_none_and_ellipsis_add_axes(run):
    x = array("i32", 0, 1)
    for text in ("x[None] + 10 * x[:, None]", "x[None, ...] + 10 * x[..., None]", "x[None, :] + 10 * x[:, None]"):
        assert compute(run, f"({text}).reshape(4)", size=4, x=x).tolist() == [0, 1, 10, 11]
    cube = "(x[:, None, None] * 4 + x[None, :, None] * 2 + x[None, None]).reshape(8)"
    assert compute(run, cube, size=8, x=x).tolist() == list(range(8))
    assert compute(run, "(x[:, None] + x[None])[..., None, :].reshape(4)", size=4, x=x).tolist() == [0, 1, 1, 2]


# ---- 2.7 memory ----------------------------------------------------------------------------------------------------


@on_each_machine
def test_other_is_cast_to_the_element_dtype(run):
    body = "keep = tl.arange(0, 4) < 2\nv = tl.load(x_ + tl.arange(0, 4), mask=keep, other={})"
    for other, want in (("2.9", 2), ("tl.full((), -1.5, tl.float32)", -1), ("3 + tl.arange(0, 4)", None)):
        got = compute(run, "v", body=body.format(other), x=array("i8", 7, 8, 9, 10)).tolist()
        assert got == [7, 8, *([want, want] if want is not None else [5, 6])]


@on_each_machine
def test_stored_value_is_cast_to_the_element_dtype(run):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.i8], z: gm.ptr[gm.f8e4m3]):
        v = tl.load(x + tl.arange(0, 4))
        tl.store(y + tl.arange(0, 4), v)
        tl.store(z + tl.arange(0, 4), v)
    """
    y, z = np.zeros(4, np.int8), np.zeros(4, dt_numpy(dt.f8e4m3))
    run(kernel_of(source), None, array("f32", 2.9, -2.9, 300, 1000), y, z)
    same(y, 2, -2, 44, -24)
    same(z.astype(np.float64), 3, -3, 288, 448)


@on_each_machine
def test_masked_load_without_other_is_zero(run):
    body = "v = tl.load(x_ + tl.arange(0, 4), mask=tl.arange(0, 4) < 1)"
    for name in ("f32", "i64", "bool_", "f8e5m2"):
        same(compute(run, "v", body=body, x=array(name, 1, 1, 1, 1)).astype(np.float64), 1, 0, 0, 0)
