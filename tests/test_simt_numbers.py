"""Numbers of the simulated device, to the bit: conversions, arithmetic, and what its fast instructions do."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill import dtypes as dt
from gristmill.compiler.interpreter import run_kernel
from gristmill.compiler.ir import Block, Function
from gristmill.compiler.simt.machine import SimtMachine
from gristmill.compiler.simt.numbers import Numbers, convert, from_bits, fused, number_of, to_bits
from gristmill.compiler.simt.run import run_simulated
from gristmill.dtypes import dt_numpy
from gristmill.errors import KernelError
from machines import array, compute

NUMBERS = [d for d in dt.ALL if not d.name.startswith("f8")]
SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.5,
    2.5,
    255.5,
    -129.0,
    65504.0,
    65520.0,
    3e9,
    -3e9,
    1e19,
    2.0**-24,
    2.0**-133,
    1e-45,
    3e38,
)
EVERY = np.array([*SPECIAL, math.inf, -math.inf, math.nan, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11 + 2**-40, 1e300])


@pytest.mark.parametrize("to", NUMBERS, ids=str)
@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_conversions_are_those_of_the_language(source, to):
    """Integers too: of all kinds of width and sign."""
    with np.errstate(all="ignore"):
        values = EVERY.astype(dt_numpy(source)) if source.is_float else np.arange(-200, 200).astype(dt_numpy(source))
        if source.is_int:
            limits = np.iinfo(values.dtype)
            values = np.append(values, [limits.min, limits.max, limits.max // 3]).astype(values.dtype)
        want = compute(run_kernel, f"x.to(tl.{spelled(to)})", to, x=padded(values)) if source != to else padded(values)
        got = convert(from_bits(padded(values).view(f"u{source.itemsize}"), source), source, to)
    assert_same(got, want, to)


def spelled(dtype: dt.Dtype) -> str:
    return {"bool": "int1", "bf16": "bfloat16"}.get(dtype.name) or dt_numpy(dtype).name


def padded(values: np.ndarray) -> np.ndarray:
    return np.resize(values, 1 << (len(values) - 1).bit_length())


def assert_same(got: object, want: np.ndarray, dtype: dt.Dtype) -> None:
    """Equal to the bit, but for what a NaN carries."""
    bits, wanted = to_bits(got, dtype), want.view(f"u{dtype.itemsize}")
    if dtype.is_float:
        is_nan = np.isnan(want.astype(np.float64))
        assert (np.isnan(np.asarray(got, np.float64)) == is_nan).all()
        bits, wanted = bits[~is_nan], wanted[~is_nan]
    np.testing.assert_array_equal(bits, wanted)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_half_survives_its_way_through_registers(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    kind = getattr(dt, dtype)
    assert (to_bits(from_bits(bits, kind), kind) == bits).all()
    with np.errstate(all="ignore"):
        back = convert(convert(from_bits(bits, kind), kind, dt.f64), dt.f64, kind)
        assert_same(back, bits.view(dt_numpy(kind)), kind)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_constants_are_rounded_as_numpy_does(dtype):
    numbers = [0, 1, 3, 100] if not dtype.is_float else [*SPECIAL, math.inf, math.nan, 0.1, 1 / 3]
    with np.errstate(all="ignore"):
        want = np.array(numbers).astype(np.float32 if dtype == dt.bf16 else dt_numpy(dtype)).astype(dt_numpy(dtype))
        assert_same(np.array([number_of(dtype, n) for n in numbers]), want, dtype)


floats = st.floats(allow_nan=False, allow_infinity=False)


@given(floats, floats, floats)
@example(1 + 2.0**-52, 1 - 2.0**-53, -1.0)
@example(5e-324, 0.5, 0.0)
@example(1e308, 10.0, -1e308)
@example(0.0, 1e308, -0.0)
@example(2.0**-540, 2.0**-540, 2.0**-1074)
def test_fused_product_and_sum_is_rounded_once(x, y, z):
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    try:
        want = exact.numerator / exact.denominator
    except OverflowError:
        want = math.inf if exact > 0 else -math.inf
    with np.errstate(all="ignore"):
        got = float(fused(np.float64(x), np.float64(y), np.float64(z), dt.f64))
    assert got == want


@given(*[st.floats(width=16, allow_nan=False, allow_infinity=False)] * 3)
@example(1 + 2.0**-10, 1 + 2.0**-10, 2.0**-24)
def test_fused_halves_are_rounded_once(x, y, z):
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    with np.errstate(all="ignore"):
        got = fused(*(np.float16(v) for v in (x, y, z)), dt.f16)
        low, high = np.nextafter(got, np.float16(-np.inf)), np.nextafter(got, np.float16(np.inf))
    if np.isinf(got):
        assert abs(exact) >= 65520
        return
    distance = abs(Fraction(float(got)) - exact)
    assert all(distance <= abs(Fraction(float(v)) - exact) for v in (low, high) if np.isfinite(v))


OPERATIONS = {
    "floats": [
        "x + y", "x - y", "x * y", "-x", "tl.abs(x)", "tl.maximum(x, y)", "tl.minimum(x, y)", "tl.where(x < y, x, y)",
        "tl.maximum(x, y, propagate_nan='all')", "tl.minimum(x, y, propagate_nan='all')", "tl.clamp(x, -1.0, 2.0)",
        "tl.floor(x)", "tl.ceil(x)", "tl.sqrt(x)", "tl.fma(x, y, x)",
    ],
    "ints": [
        "x + y", "x - y", "x * y", "-x", "tl.abs(x)", "tl.maximum(x, y)", "tl.minimum(x, y)", "tl.where(x < y, x, y)",
        "x // y", "x % y", "x & y", "x | y", "x ^ y", "~x", "x << (y & 7)", "x >> (y & 7)",
    ],
    "bools": ["x < y", "x <= y", "x > y", "x >= y", "x == y", "x != y"],
}  # fmt: skip
DTYPES = {"floats": ["f16", "bf16", "f32", "f64"], "ints": ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]}
CASES = [(dtype, e) for kind, names in DTYPES.items() for dtype in names for e in OPERATIONS[kind]]
CASES += [(dtype, "x % y") for dtype in ("f32", "f64")]
CASES += [(dtype, e) for names in DTYPES.values() for dtype in names for e in OPERATIONS["bools"]]


@pytest.mark.parametrize(("dtype", "expression"), CASES)
def test_operations_give_the_bits_that_the_reference_gives(dtype, expression):
    """These are rounded correctly, so that there is one right answer; that of zeros of both signs is +0 or -0."""
    kind = getattr(dt, dtype)
    with np.errstate(all="ignore"):
        if kind.is_float:
            x, y = (v.ravel().astype(dt_numpy(kind)) for v in np.meshgrid(EVERY, EVERY))
        else:
            limits = np.iinfo(dt_numpy(kind))
            edges = np.array([limits.min, limits.max, limits.max // 2, 1, 2, 3, 7, 100, limits.min + 1], dt_numpy(kind))
            x, y = (v.ravel() for v in np.meshgrid(edges, edges[edges != 0]))
        inputs = {"x": padded(x), "y": padded(y)}
        result = dt.bool_ if expression in OPERATIONS["bools"] else kind
        got, want = (compute(run, expression, result, **inputs) for run in (run_simulated, run_kernel))
    if kind.is_float and ("maximum" in expression or "minimum" in expression or "clamp" in expression):
        got, want = got + dt_numpy(kind).type(0), want + dt_numpy(kind).type(0)
    if "fma" in expression:
        return np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2**-8 if kind == dt.bf16 else 0)
    assert_same(from_bits(got.view(f"u{result.itemsize}"), result), want, result)
    return None


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2", "tanh", "rsqrt", "sigmoid"])
def test_functions_are_within_4_ulp_of_the_reference(name, dtype):
    x = array(dtype, *np.linspace(-20, 80, 1000), *np.linspace(0, 1, 24))
    x = np.abs(x) if name in ("log", "log2", "rsqrt") else x
    got, want = (compute(run, f"tl.{name}(x)", x=x) for run in (run_simulated, run_kernel))
    np.testing.assert_allclose(got, want, rtol=4 * np.finfo(x.dtype).eps, atol=np.finfo(x.dtype).smallest_normal)


def test_fast_words_flush_denormals_as_their_instructions_do():
    x = array("f32", -126, -127, -149, 127)
    assert compute(run_simulated, "tl.exp2(x)", x=x).tolist() == [2.0**-126, 0, 0, 2.0**127]
    y = array("f32", 2.0**126, 2.0**127, -(2.0**127), 4)
    assert compute(run_simulated, "tl.fdiv(1.0, y, approx=True)", y=y).tolist() == [2.0**-126, 0, -0.0, 0.25]


def test_maximum_prefers_the_positive_zero_whatever_the_order():
    x, y = array("f32", 0.0, -0.0, -0.0, 0.0), array("f32", -0.0, 0.0, -0.0, 0.0)
    assert np.signbit(compute(run_simulated, "tl.maximum(x, y)", x=x, y=y)).tolist() == [False, False, True, False]
    assert np.signbit(compute(run_simulated, "tl.minimum(x, y)", x=x, y=y)).tolist() == [True, True, True, False]


@pytest.mark.parametrize("dtype", ["i8", "i32", "u16", "u64"])
def test_integer_division_by_zero_is_division_by_one(dtype):
    x, y = array(dtype, 5, 100, 0, 7), array(dtype, 0, 0, 0, 2)
    assert compute(run_simulated, "x // y", x=x, y=y).tolist() == [5, 100, 0, 3]
    assert compute(run_simulated, "x % y", x=x, y=y).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("dtype", ["i8", "u16", "i32", "u64"])
def test_shifts_beyond_the_width_give_zero_or_the_sign(dtype):
    x = array(dtype, 1, 5, 100, 3)
    y = array(dtype, *[getattr(dt, dtype).bits] * 4)
    assert compute(run_simulated, "x << y", x=x, y=y).tolist() == [0] * 4
    assert compute(run_simulated, "x >> y", x=x, y=y).tolist() == [0] * 4


# ---- 8-bit floats and bits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dt.f8e4m3, dt.f8e5m2], ids=str)
def test_every_8_bit_float_means_what_it_means_elsewhere(dtype):
    bits = np.arange(256, dtype=np.uint8)
    with np.errstate(all="ignore"):
        for to in (dt.f16, dt.f32, dt.f64, dt.bf16):
            assert_same(convert(bits, dtype, to), bits.view(dt_numpy(dtype)).astype(dt_numpy(to)), to)


@pytest.mark.parametrize("dtype", [dt.f8e4m3, dt.f8e5m2], ids=str)
def test_numbers_become_the_nearest_8_bit_float_and_stop_at_the_largest(dtype):
    largest = 448.0 if dtype == dt.f8e4m3 else 57344.0
    with np.errstate(all="ignore"):
        halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
        exact = halves[np.abs(halves.astype(float)) <= largest]
        want = exact.astype(np.float32).astype(dt_numpy(dtype)).view(np.uint8)
        np.testing.assert_array_equal(convert(exact, dt.f16, dtype), want)
        wide = exact.astype(np.float64) * (1 + 2.0**-40)
        beside = np.abs(convert(wide, dt.f64, dtype).astype(int) - want)
        assert set(beside.tolist()) == {0, 1}, "halfway between two and a little more is the upper one"
        high = convert(np.array([largest, 1e30, -math.inf]), dt.f64, dtype)
        assert np.abs(convert(high, dtype, dt.f64)).tolist() == [largest] * 3
        assert convert(np.float32(math.nan), dt.f32, dtype) == 0x7F


@pytest.mark.parametrize("dtype", [dt.f8e4m3, dt.f8e5m2], ids=str)
def test_8_bit_floats_are_calculated_with_in_f32(dtype):
    m, bits = SimtMachine(Function("", Block(), 1)), np.arange(32, dtype=np.uint8) + 48
    x, two = Numbers(bits, dtype), m.constant(dtype, 2.0)
    values = bits.view(dt_numpy(dtype)).astype(np.float32)
    assert (m.multiply(x, two).each == (values * 2).astype(dt_numpy(dtype)).view(np.uint8)).all()
    assert (m.compare("<", x, two).each == (values < 2)).all()
    assert (m.negative(x).each == bits + 128).all()
    assert m.bitcast(x, dt.u8).each.tolist() == bits.tolist()


INTS = [d for d in dt.ALL if d.is_int]


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_bits_are_counted_and_turned_round(dtype):
    m, limits = SimtMachine(Function("", Block(), 1)), np.iinfo(dt_numpy(dtype))
    numbers = [0, 1, 2, 5, 100, limits.max, limits.min, limits.max // 3, limits.max - 1]
    x, width = Numbers(np.array(numbers, limits.dtype), dtype), dtype.bits
    texts = [format(n % (1 << width), f"0{width}b") for n in numbers]
    assert m.count_ones(x).each.tolist() == [text.count("1") for text in texts]
    zeros = [len(text) - len(text.lstrip("0")) for text in texts]
    assert m.leading_zeros(x).each.tolist() == zeros
    turned = [int(text[::-1], 2) for text in texts]
    assert [n % (1 << width) for n in m.reverse_bits(x).each.tolist()] == turned
    assert int(m.count_ones(Numbers(limits.dtype.type(7), dtype)).each) == 3
    assert int(m.reverse_bits(Numbers(limits.dtype.type(2), dtype)).each) % (1 << width) == 1 << width - 2


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_upper_half_of_a_product(dtype):
    m, limits = SimtMachine(Function("", Block(), 1)), np.iinfo(dt_numpy(dtype))
    edges = [limits.min, limits.max, 0, 1, limits.max // 3, limits.min + 1, 77, limits.max - 5]
    x, y = (v.ravel() for v in np.meshgrid(np.array(edges, limits.dtype), np.array(edges, limits.dtype)))
    got = m.multiply_high(Numbers(x, dtype), Numbers(y, dtype)).each
    assert got.tolist() == [int(a) * int(b) >> dtype.bits for a, b in zip(x, y, strict=True)]


# ---- intrinsics ----------------------------------------------------------------------------------------------------


def test_bytes_are_permuted_by_digits_or_their_signs_spread():
    """As `prmt` of the PTX ISA does in its default mode."""
    m = SimtMachine(Function("", Block(), 1))
    x, y = (Numbers(np.uint32(number), dt.u32) for number in (0x80C1A203, 0xF7E6D504))
    digits = Numbers(np.array([0x3210, 0x7654, 0x0000, 0x2516, 0xB8F9]), dt.u32)
    got = m.call("llvm.nvvm.prmt", dt.u32, x, y, digits).each
    assert [hex(n) for n in got.tolist()] == ["0x80c1a203", "0xf7e6d504", "0x3030303", "0xc1d5a2e6", "0xff00ffff"]


def test_fast_intrinsics_are_near_what_they_approximate():
    m = SimtMachine(Function("", Block(), 1))
    x = Numbers(np.linspace(0.1, 3, 32).astype(np.float32), dt.f32)
    wanted = {"ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "sqrt": np.sqrt, "rcp": np.reciprocal}
    for name, function in wanted.items():
        got = m.call(f"llvm.nvvm.{name}.approx.f", dt.f32, x).each
        np.testing.assert_allclose(got, function(x.each), rtol=1e-6, atol=1e-7)
        assert got.dtype == np.float32
    with pytest.raises(KernelError, match=r"does not know `llvm.nvvm.strange`"):
        m.call("llvm.nvvm.strange", dt.f32, x)
