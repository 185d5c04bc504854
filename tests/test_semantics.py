"""What the language means, rule by rule: each test names one rule, and holds on every machine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.dtypes import dt_numpy
from machines import array, bfloat16, compute, on_each_machine, same

INF, NAN = math.inf, math.nan


# ---- constants and promotion ---------------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize(
    ("literal", "dtype"),
    [
        ("True", "bool_"), ("3", "i32"), ("-2147483648", "i32"), ("2147483648", "u32"), ("4294967296", "i64"),
        ("9223372036854775808", "u64"), ("1.5", "f32"), ("0.0", "f32"), ("float('inf')", "f32"), ("1e300", "f64"),
        ("1e-40", "f64"),
    ],
)  # fmt: skip
def test_literal_has_the_first_dtype_that_holds_it(run, literal, dtype):
    got = compute(run, "v", getattr(dt, dtype), body=f"v = {literal}")
    assert got[0] == dt_numpy(getattr(dt, dtype)).type(eval(literal))


@on_each_machine
@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64"])
def test_number_takes_the_dtype_of_the_tile(run, dtype):
    same(compute(run, "x + 100", x=array(dtype, 0, 7)), 100, 107)


@on_each_machine
def test_float_number_beside_integers_gives_f32(run):
    same(compute(run, "x * 1.5", dt.f32, x=array("i64", 3, -3)), 4.5, -4.5)


@on_each_machine
def test_number_is_rounded_to_the_dtype_of_the_tile(run):
    got = compute(run, "x * 1.1", x=array("f16", 1, 3))
    np.testing.assert_array_equal(got, array("f16", 1, 3) * np.float16(1.1))


PROMOTIONS = [
    ("f64", "f16", "f64"), ("f64", "i64", "f64"), ("f32", "f16", "f32"), ("f32", "i64", "f32"), ("f32", "bf16", "f32"),
    ("f16", "bf16", "f16"), ("f16", "i32", "f16"), ("bf16", "bf16", "bf16"), ("bf16", "i32", "f32"),
    ("bf16", "i8", "f32"),
    ("i8", "i8", "i8"), ("i8", "i32", "i32"), ("i32", "u32", "u32"), ("i64", "u32", "i64"), ("i8", "u8", "u8"),
    ("u16", "i32", "i32"), ("u64", "i64", "u64"), ("bool", "i8", "i8"), ("bool", "u16", "u16"), ("bool", "f16", "f16"),
]  # fmt: skip


@on_each_machine
@pytest.mark.parametrize(("left", "right", "result"), PROMOTIONS)
def test_operands_are_promoted(run, left, right, result):
    dtypes = {d.name: d for d in dt.ALL}
    x, y = (np.array([1, 0]).astype(dt_numpy(dtypes[name])) for name in (left, right))
    same(compute(run, "x + y", dtypes[result], x=x, y=y), 2, 0)
    same(compute(run, "y + x", dtypes[result], x=x, y=y), 2, 0)


@on_each_machine
def test_shorter_half_arithmetic_rounds_each_operation(run):
    x = array("bf16", 256)
    same(compute(run, "x + 1 + 1", x=x), 256)
    same(compute(run, "(x.to(tl.float32) + 1 + 1).to(tl.bfloat16)", x=x), 258)


@on_each_machine
def test_where_promotes_its_values(run):
    got = compute(run, "tl.where(c, x, y)", dt.f32, c=array("bool_", 1, 0), x=array("f16", 1, 2), y=array("f32", 3, 4))
    same(got, 1, 4)


# ---- integers ------------------------------------------------------------------------------------------------------


@on_each_machine
def test_integers_wrap_in_their_own_width(run):
    same(compute(run, "x + x", x=array("i8", 127, -128)), -2, 0)
    same(compute(run, "x * x", x=array("i32", 65536, 3)), 0, 9)
    same(compute(run, "-x", x=array("u8", 1, 0)), 255, 0)
    same(compute(run, "tl.abs(x)", x=array("i16", -32768, -5)), -32768, 5)


@on_each_machine
def test_true_division_of_integers_is_in_f32(run):
    same(compute(run, "x / y", dt.f32, x=array("i64", 1, 7), y=array("i64", 4, -2)), 0.25, -3.5)


@on_each_machine
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_true_division_of_halves_is_in_f32(run, dtype):
    x, y = array(dtype, 1, 2), array(dtype, 3, 7)
    np.testing.assert_allclose(
        compute(run, "x / y", dt.f32, x=x, y=y), x.astype(np.float32) / y.astype(np.float32), rtol=2.5e-7
    )


@on_each_machine
@pytest.mark.parametrize("dtype", ["i8", "i32", "i64"])
def test_floor_division_truncates_towards_zero(run, dtype):
    x, y = array(dtype, 7, -7, 7, -7), array(dtype, 2, 2, -2, -2)
    same(compute(run, "x // y", x=x, y=y), 3, -3, -3, 3)


@on_each_machine
@pytest.mark.parametrize("dtype", ["i8", "i32", "i64", "f32", "f64"])
def test_remainder_has_the_sign_of_the_dividend(run, dtype):
    x, y = array(dtype, 7, -7, 7, -7), array(dtype, 3, 3, -3, -3)
    same(compute(run, "x % y", x=x, y=y), 1, -1, 1, -1)


@on_each_machine
def test_division_of_the_extremes_of_i64_is_exact(run):
    x = np.array([2**63 - 1, -(2**63), 2**62 + 1, -(2**63)], np.int64)
    y = np.array([3, 7, 2, 1], np.int64)
    got = compute(run, "x // y", x=x, y=y)
    assert got.tolist() == [(abs(int(a)) // int(b)) * (1 if a > 0 else -1) for a, b in zip(x, y, strict=True)]
    assert compute(run, "x % y", x=x, y=y).tolist() == [
        int(a) - int(q) * int(b) for a, q, b in zip(x, got, y, strict=True)
    ]


@on_each_machine
def test_unsigned_division_is_unsigned(run):
    same(compute(run, "x // y", x=array("u32", 4294967295, 10), y=array("u32", 2, 3)), 2147483647, 3)


@on_each_machine
def test_right_shift_is_arithmetic_for_signed_and_logical_for_unsigned(run):
    same(compute(run, "x >> 1", x=array("i8", -128, 5)), -64, 2)
    same(compute(run, "x >> 1", x=array("u8", 128, 255)), 64, 127)


@on_each_machine
def test_bits_of_integers_and_bools(run):
    same(compute(run, "(x & 6) | (x ^ 1)", x=array("i32", 5, 2)), 4, 3)
    same(compute(run, "~x", x=array("i16", 0, -1)), -1, 0)
    same(compute(run, "~x", x=array("bool_", 1, 0)), 0, 1)
    same(compute(run, "x << 3", x=array("u8", 33, 1)), 8, 8)


@on_each_machine
def test_cdiv_rounds_up(run):
    same(compute(run, "tl.cdiv(x, 4)", x=array("i32", 8, 9)), 2, 3)


# ---- comparisons and NaN -------------------------------------------------------------------------------------------


@on_each_machine
def test_comparison_with_nan_is_false_except_not_equal(run):
    x, y = array("f32", NAN, 1, NAN, 2), array("f32", 1, NAN, NAN, 2)
    for sign, want in {"<": 0, "<=": 1, ">": 0, ">=": 1, "==": 1}.items():
        same(compute(run, f"x {sign} y", dt.bool_, x=x, y=y), 0, 0, 0, want)
    same(compute(run, "x != y", dt.bool_, x=x, y=y), 1, 1, 1, 0)


@on_each_machine
def test_comparison_chain_is_a_conjunction(run):
    same(compute(run, "(0 < x) & (x < 5)", dt.bool_, x=array("i32", 3, 7)), 1, 0)
    same(compute(run, "0 < x < 5", dt.bool_, x=array("i32", 3, 7)), 1, 0)


@on_each_machine
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_maximum_takes_the_number_beside_nan(run, dtype):
    x, y = array(dtype, NAN, 1, NAN, -INF), array(dtype, 2, NAN, NAN, 5)
    same(compute(run, "tl.maximum(x, y)", x=x, y=y), 2, 1, NAN, 5)
    same(compute(run, "tl.minimum(x, y)", x=x, y=y), 2, 1, NAN, -INF)


@on_each_machine
def test_maximum_keeps_nan_when_asked(run):
    x, y = array("f32", NAN, 1, 3, -INF), array("f32", 2, NAN, 4, 5)
    same(compute(run, "tl.maximum(x, y, propagate_nan='all')", x=x, y=y), NAN, NAN, 4, 5)
    same(compute(run, "tl.minimum(x, y, propagate_nan='all')", x=x, y=y), NAN, NAN, 3, -INF)


@on_each_machine
def test_clamp_keeps_nan_only_when_asked(run):
    x = array("f32", NAN, -3, 0.5, 9)
    same(compute(run, "tl.clamp(x, -1.0, 1.0)", x=x), -1, -1, 0.5, 1)
    same(compute(run, "tl.clamp(x, -1.0, 1.0, propagate_nan='all')", x=x), NAN, -1, 0.5, 1)


@on_each_machine
def test_minus_flips_the_sign_of_zero(run):
    got = compute(run, "-x", x=array("f32", 0.0, -0.0))
    assert np.signbit(got).tolist() == [True, False]


# ---- casts ---------------------------------------------------------------------------------------------------------


@on_each_machine
def test_cast_to_a_narrower_float_rounds_to_nearest_even(run):
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, 1e-41], np.float32)
    assert compute(run, "x.to(tl.bfloat16)", dt.bf16, x=x).tolist() == [1, 1 + 2**-6, INF, float(bfloat16(1e-41))]
    x = np.array([65519, 65520, 2**-25, 2**-24], np.float32)
    assert compute(run, "x.to(tl.float16)", dt.f16, x=x).tolist() == [65504, INF, 0, 2**-24]


@on_each_machine
def test_cast_between_halves_rounds_once(run):
    x = np.array([1 + 2**-10, 65504], np.float16)
    same(compute(run, "x.to(tl.bfloat16)", dt.bf16, x=x), 1, 65536)


@on_each_machine
def test_cast_of_floats_to_integers_truncates(run):
    x = array("f32", 2.9, -2.9, 0.5, -0.5)
    same(compute(run, "x.to(tl.int32)", dt.i32, x=x), 2, -2, 0, 0)
    same(compute(run, "x.to(tl.int8)", dt.i8, x=x), 2, -2, 0, 0)
    same(compute(run, "x.to(tl.int64)", dt.i64, x=x.astype(np.float16)), 2, -2, 0, 0)


@on_each_machine
@pytest.mark.parametrize("name", ["int32", "uint32", "int64", "uint64"])
def test_cast_of_floats_beyond_the_integers_gives_the_nearest_and_of_nan_zero(run, name):
    low, high = np.iinfo(name).min, np.iinfo(name).max
    x = array("f32", INF, -INF, NAN, 1e30, -1e30, float(high), 3.5, 0.0)
    out = compute(run, f"x.to(tl.{name})", getattr(dt, name.replace("uint", "u").replace("int", "i")), x=x)
    same(out, high, low, 0, high, low, high, 3, 0)


@on_each_machine
def test_cast_of_floats_to_short_integers_wraps_what_32_bits_hold(run):
    x = array("f32", 300, -300, 1e10, -1e10, NAN, 1, 2, 3)
    same(compute(run, "x.to(tl.int8)", dt.i8, x=x), 44, -44, -1, 0, 0, 1, 2, 3)
    same(compute(run, "x.to(tl.uint8)", dt.u8, x=x), 44, 212, 255, 0, 0, 1, 2, 3)


@on_each_machine
def test_cast_to_bool_is_not_equal_zero(run):
    same(compute(run, "x.to(tl.int1)", dt.bool_, x=array("f32", 0.5, -0.0, NAN, 256)), 1, 0, 1, 1)
    same(compute(run, "x.to(tl.int1)", dt.bool_, x=array("i32", 256, 0)), 1, 0)


@on_each_machine
def test_cast_of_integers_extends_by_the_sign_of_the_source(run):
    same(compute(run, "x.to(tl.int32)", dt.i32, x=array("u8", 255, 1)), 255, 1)
    same(compute(run, "x.to(tl.uint32)", dt.u32, x=array("i8", -1, 1)), 4294967295, 1)
    same(compute(run, "x.to(tl.int8)", dt.i8, x=array("i32", 300, -129)), 44, 127)
    same(compute(run, "x.to(tl.int8)", dt.i8, x=array("bool_", 1, 0)), 1, 0)


@on_each_machine
def test_cast_of_integers_to_floats_keeps_the_sign_of_the_source(run):
    same(compute(run, "x.to(tl.float64)", dt.f64, x=np.array([2**63, 3], np.uint64)), 2**63, 3)
    same(compute(run, "x.to(tl.float32)", dt.f32, x=array("i64", -(2**40), 1)), -(2**40), 1)


@on_each_machine
def test_bitcast_keeps_the_bits(run):
    same(compute(run, "x.to(tl.int32, bitcast=True)", dt.i32, x=array("f32", 1.0, -0.0)), 0x3F800000, -(2**31))
    same(compute(run, "x.to(tl.float16, bitcast=True)", dt.f16, x=array("u16", 0x3C00, 0x8000)), 1, 0)


# ---- shapes --------------------------------------------------------------------------------------------------------


@on_each_machine
def test_size_one_and_missing_axes_broadcast(run):
    x = array("i32", 0, 1, 2, 3)
    got = compute(run, "(10 * x[:, None] + x[None, :]).reshape(16)", size=16, x=x)
    assert got.tolist() == [10 * i + j for i in range(4) for j in range(4)]


@on_each_machine
def test_permute_and_reshape_keep_row_major_order(run):
    x = np.arange(8, dtype=np.int32)
    assert compute(run, "tl.trans(x.reshape(2, 4)).reshape(8)", x=x).tolist() == x.reshape(2, 4).T.ravel().tolist()
    assert compute(run, "tl.view(tl.trans(x.view(2, 4)), (8,))", x=x).tolist() == x.reshape(2, 4).T.ravel().tolist()
    got = compute(run, "tl.permute(x.reshape(2, 2, 2), (2, 0, 1)).reshape(8)", x=x)
    assert got.tolist() == x.reshape(2, 2, 2).transpose(2, 0, 1).ravel().tolist()


@on_each_machine
def test_arange_starts_where_it_is_told(run):
    assert compute(run, "tl.arange(3, 7)", dt.i32, size=4).tolist() == [3, 4, 5, 6]


@on_each_machine
def test_full_and_zeros(run):
    same(compute(run, "tl.full((2,), 3.7, tl.int32)", dt.i32, size=2), 3, 3)
    same(compute(run, "tl.zeros((2,), tl.float64)", dt.f64, size=2), 0, 0)
    same(compute(run, "tl.zeros_like(x)", x=array("i8", 4, 5)), 0, 0)


# ---- reductions ----------------------------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize(
    ("dtype", "result"),
    [("i8", "i32"), ("i16", "i32"), ("u8", "u32"), ("bool_", "u32"), ("i64", "i64"), ("u32", "u32"), ("f64", "f64")],
)
def test_sum_of_narrow_integers_is_wide(run, dtype, result):
    same(
        compute(run, "tl.sum(x)", getattr(dt, result), size=1, x=np.ones(256).astype(dt_numpy(getattr(dt, dtype)))), 256
    )


@on_each_machine
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_sum_of_halves_accumulates_in_f32_and_rounds_once(run, dtype):
    x = np.ones(8192).astype(dt_numpy(getattr(dt, dtype)))
    same(compute(run, "tl.sum(x)", size=1, x=x), 8192)


@on_each_machine
def test_sum_converts_first_when_told_the_dtype(run):
    x = np.full(4, 60000, np.float16)
    same(compute(run, "tl.sum(x, dtype=tl.float32)", dt.f32, size=1, x=x), 240000 - 4 * (60000 - float(x[0])))


@on_each_machine
@pytest.mark.parametrize(
    ("dtype", "result"), [("i8", "i32"), ("u8", "u32"), ("f16", "f32"), ("bf16", "f32"), ("f64", "f64"), ("i64", "i64")]
)
def test_max_of_narrow_dtypes_is_wide(run, dtype, result):
    x = array(dtype, 3, 100, 7, 2)
    same(compute(run, "tl.max(x)", getattr(dt, result), size=1, x=x), 100)
    same(compute(run, "tl.min(x)", getattr(dt, result), size=1, x=x), 2)


@on_each_machine
def test_max_ignores_nan_beside_numbers(run):
    same(compute(run, "tl.max(x)", size=1, x=array("f32", NAN, -1, NAN, -INF)), -1)
    same(compute(run, "tl.min(x)", size=1, x=array("f32", NAN, -1, NAN, INF)), -1)
    same(compute(run, "tl.max(x)", size=1, x=array("f32", NAN, NAN)), NAN)


@on_each_machine
def test_reduction_along_an_axis(run):
    x = np.arange(8, dtype=np.float32)
    assert compute(run, "tl.sum(x.reshape(2, 4), 0)", size=4, x=x).tolist() == [4, 6, 8, 10]
    assert compute(run, "tl.sum(x.reshape(2, 4), -1)", size=2, x=x).tolist() == [6, 22]
    assert compute(run, "tl.max(x.reshape(2, 4), 1, keep_dims=True).reshape(2)", size=2, x=x).tolist() == [3, 7]
    assert compute(run, "x.reshape(2, 4).sum().to(tl.float32)", size=1, x=x).tolist() == [28]
    assert compute(run, "tl.sum(x.reshape(2, 4), keep_dims=True).reshape(1)", size=1, x=x).tolist() == [28]


# ---- functions -----------------------------------------------------------------------------------------------------

FUNCTIONS = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil,
    "tanh": np.tanh, "abs": np.abs, "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip
POINTS = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 0.3, -0.3, 3.7, -3.7, 80.0, -80.0, 1e-3, 2.5, 1e-40]


@on_each_machine
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_function_agrees_with_numpy(run, name, dtype):
    x = np.array(POINTS).astype(dt_numpy(getattr(dt, dtype)))
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](x.astype(np.float64)).astype(x.dtype)
    got = compute(run, f"tl.{name}(x)", x=x)
    rtol = {"f16": 1e-3, "bf16": 8e-3, "f32": 5e-7, "f64": 1e-15}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=0)
    if name in ("tanh", "sqrt", "floor", "ceil", "abs"):
        zeros = x == 0
        assert np.signbit(got[zeros]).tolist() == np.signbit(want[zeros]).tolist()


@on_each_machine
def test_fma_rounds_once(run):
    x = np.array([1 + 2**-23], np.float32)
    same(compute(run, "tl.fma(x, x, -(1 + 2**-22))", x=x), 2**-46)


@on_each_machine
def test_fdiv_and_div_rn_are_division(run):
    x, y = array("f32", 1, 2), array("f32", 3, -7)
    np.testing.assert_array_equal(compute(run, "tl.div_rn(x, y)", x=x, y=y), x / y)
    np.testing.assert_array_equal(compute(run, "tl.fdiv(x, y, ieee_rounding=True)", x=x, y=y), x / y)
    np.testing.assert_allclose(compute(run, "tl.fdiv(x, y)", x=x, y=y), x / y, rtol=2.5e-7)
