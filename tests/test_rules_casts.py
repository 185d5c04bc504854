"""The language's rules about casts: every pair of dtypes, every rounding, bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.dtypes import Dtype, dt_numpy
from host import levels, runner
from machines import RUNNERS, array, compute, needs_host, on_each_machine, same
from rules import BY_NAME, EVERY, INF, NAN, numbers, refused, spelled

# ---- 2.6 casts -----------------------------------------------------------------------------------------------------


def samples(name: str) -> np.ndarray:
    dtype = BY_NAME[name]
    if name == "bool":
        return np.array([0, 1] * 16, np.bool_)
    if dtype.is_int:
        info = np.iinfo(dt_numpy(dtype))
        values = [0, 1, 2, 3, 100, 127, info.max, info.max - 1, info.max // 2, info.min, info.min + 1, info.min // 2]
        values += [
            v for v in (-1, -2, 128, 255, 256, 257, 448, 449, 65504, 65520, 16777217) if info.min <= v <= info.max
        ]
        return np.array(values + [7] * (32 - len(values)), info.dtype)
    values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        2.99,
        -2.99,
        127,
        128,
        -129,
        255,
        256,
        300,
        -300,
        448,
        460,
        470,
    ]
    values += [65504, 65520, 3e9, -3e9, 1e30, -1e30, 2.0**-9, 2.0**-24, 1e-40, INF, -INF, NAN]
    with np.errstate(all="ignore"):
        return np.array(values).astype(dt_numpy(dtype))


def converted(value: Any, source: Dtype, to: Dtype) -> Any:
    """One number as another dtype, by the rules."""
    if source == to:
        return value
    if to == dt.bool_:
        return value != 0
    if not to.is_int:
        return _rounded(value, source, to)
    if source.is_float:
        bits = max(32, to.bits)
        low, high = (
            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if to.bits < 32 or to.is_signed else (0, (1 << bits) - 1)
        )
        number = 0 if math.isnan(value) else low if value < low else high if value > high else int(value)
    else:
        number = int(value)
    number &= (1 << to.bits) - 1
    return number - (1 << to.bits) if to.is_signed and number >> (to.bits - 1) else number


def _rounded(value: Any, source: Dtype, to: Dtype) -> float:
    largest = {"f8e4m3": 448.0, "f8e5m2": 57344.0}.get(to.name)
    number = value if to == dt.f64 or source.is_float else int(value)
    if largest is not None and not math.isnan(number):
        number = max(-largest, min(largest, float(number)))
    with np.errstate(all="ignore"):
        if to == dt.f64 or largest is not None or to == dt.bf16:
            import ml_dtypes

            return float(
                np.float64(number).astype(dt_numpy(to)) if to != dt.bf16 else _bf16(number, ml_dtypes.bfloat16)
            )
        return float(np.array([number]).astype(dt_numpy(to))[0])


def _bf16(number: Any, bfloat16: Any) -> float:
    """The nearest of the candidates around a number, ties to even."""
    if not math.isfinite(number):
        return float(number)
    near = np.array([float(number)]).astype(np.float32).astype(bfloat16)
    return float(near[0])


@pytest.mark.parametrize("source", EVERY)
@pytest.mark.parametrize("run", ["interpreter", pytest.param("host", marks=needs_host)])
def test_cast_between_every_two_dtypes(run, source):
    x = samples(source)
    for to in EVERY:
        got = compute(RUNNERS[run], f"x.to({spelled(to)})", BY_NAME[to], x=x)
        values = x.astype(np.float64).tolist() if BY_NAME[source].is_float else x.tolist()
        want = np.array(
            [converted(v, BY_NAME[source], BY_NAME[to]) for v in values], None if BY_NAME[to].is_float else object
        )
        if BY_NAME[to].is_float:
            np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64), err_msg=to)
            zeros = (want == 0) & ~np.isnan(want)
            assert np.signbit(got[zeros].astype(np.float64)).tolist() == np.signbit(want[zeros]).tolist(), to
        else:
            assert got.tolist() == want.tolist(), to


@needs_host
@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("level", levels())
def test_eight_bit_floats_on_every_level_of_the_host(name, level):
    every = np.arange(256, dtype=np.uint8).view(dt_numpy(BY_NAME[name]))
    np.testing.assert_array_equal(compute(runner(level), "x.to(tl.float32)", dt.f32, x=every), every.astype(np.float32))
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.standard_normal(1 << 10) * scale for scale in (1e-5, 1e-2, 1, 1e3)]).astype(np.float32)
    text = f"x.to({spelled(name)})"
    want = compute(RUNNERS["interpreter"], text, BY_NAME[name], x=x)
    assert compute(runner(level), text, BY_NAME[name], x=x).tobytes() == want.tobytes()


def neighbours(name: str) -> np.ndarray:
    """Every number of an 8-bit float, what is halfway between two, and a little beside that, in f32."""
    positive = np.arange(0x7F if name == "f8e4m3" else 0x7C, dtype=np.uint8).view(dt_numpy(BY_NAME[name]))
    values = positive.astype(np.float32)
    middles = (values[1:] + values[:-1]) / 2
    found = np.concatenate(
        [values, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(1e9))]
    )
    found = np.concatenate([found, -found])
    return np.pad(found, (0, 1024 - len(found)))


@on_each_machine
@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_eight_bit_floats_round_to_the_nearest_even(run, name):
    x = neighbours(name)
    got = compute(run, f"x.to({spelled(name)})", BY_NAME[name], x=x).astype(np.float64)
    codes = np.arange(0x7F if name == "f8e4m3" else 0x7C, dtype=np.uint8)
    values = codes.view(dt_numpy(BY_NAME[name])).astype(np.float64)
    distance = np.abs(np.abs(x.astype(np.float64))[:, None] - values[None, :])
    nearest = distance == distance.min(1, keepdims=True)
    want = np.where(nearest.sum(1) > 1, (nearest & (codes % 2 == 0)).argmax(1), nearest.argmax(1))
    np.testing.assert_array_equal(np.abs(got), values[want])
    assert (np.signbit(got) == np.signbit(x)).all()


@on_each_machine
@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_eight_bit_floats_saturate_and_know_one_nan(run, name):
    x = array("f32", INF, -INF, 1e6, NAN)
    got = compute(run, f"x.to({spelled(name)})", BY_NAME[name], x=x)
    largest = 448.0 if name == "f8e4m3" else 57344.0
    same(got.astype(np.float64), largest, -largest, largest, NAN)
    assert got.view(np.uint8)[3] == 0x7F


@on_each_machine
def test_arithmetic_of_eight_bit_floats_is_rounded_each_time(run):
    x, y = numbers("f8e4m3", 300, 1, 17, NAN), numbers("f8e4m3", 300, 0.0625, 1, 1)
    same(compute(run, "x + y", dt.f8e4m3, x=x, y=y).astype(np.float64), 448, 1, 16, NAN)
    same(compute(run, "-x", dt.f8e4m3, x=x).astype(np.float64), -float(x[0]), -1, -float(x[2]), NAN)
    same(compute(run, "x < y", dt.bool_, x=x, y=y), 0, 0, 0, 0)
    same(compute(run, "tl.maximum(x, y)", dt.f8e4m3, x=x, y=y).astype(np.float64), float(x[0]), 1, float(x[2]), 1)
    same(compute(run, "tl.max(y)", dt.f32, size=1, y=y), float(y[0]))


@on_each_machine
@pytest.mark.parametrize(
    ("source", "to"),
    [("f32", "f16"), ("f32", "bf16"), ("f64", "f32"), ("f64", "f16"), ("f64", "bf16"), ("f32", "f8e5m2")],
)
def test_rounding_towards_zero(run, source, to):
    values = [
        1 + 2**-30,
        -1 - 2**-30,
        1.9999999,
        -3.9999,
        1e39,
        -1e39,
        65519.0,
        65536.0,
        1e-46,
        -1e-46,
        INF,
        -INF,
        NAN,
        0.0,
        -0.0,
        0.1,
    ]
    with np.errstate(all="ignore"):
        x = np.array(values).astype(dt_numpy(BY_NAME[source]))
    got = compute(run, f"x.to({spelled(to)}, fp_downcast_rounding='rtz')", BY_NAME[to], x=x)
    exact, wide = x.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(exact)
    assert (np.abs(wide[finite]) <= np.abs(exact[finite])).all()
    word = {1: np.uint8, 2: np.uint16, 4: np.uint32}[got.dtype.itemsize]
    with np.errstate(all="ignore"):
        above = (got.view(word) + word(1)).view(got.dtype).astype(np.float64)
    assert (~(np.abs(above[finite]) <= np.abs(exact[finite]))).all()
    assert np.signbit(wide[~np.isnan(wide)]).tolist() == np.signbit(exact[~np.isnan(wide)]).tolist()
    assert np.isnan(wide[12])


@on_each_machine
def test_rounding_to_nearest_may_be_said(run):
    x = np.array([1 + 2**-9 + 2**-20], np.float32)
    same(compute(run, "x.to(tl.bfloat16, fp_downcast_rounding='rtne')", dt.bf16, x=x), 1)


@on_each_machine
@pytest.mark.parametrize(
    ("source", "to"),
    [
        ("f8e4m3", "u8"),
        ("f8e5m2", "i8"),
        ("f8e4m3", "f8e5m2"),
        ("bf16", "f16"),
        ("u16", "bf16"),
        ("i64", "f64"),
        ("f32", "u32"),
    ],
)
def test_bitcast_keeps_every_bit(run, source, to):
    bits = (
        np.arange(256, dtype=np.uint8)
        if BY_NAME[source].bits == 8
        else np.arange(256, dtype=np.uint64) * 0x0101010101010101
    )
    x = bits.astype(f"u{BY_NAME[source].itemsize}").view(dt_numpy(BY_NAME[source]))
    got = compute(run, f"x.to({spelled(to)}, bitcast=True)", BY_NAME[to], x=x)
    assert got.tobytes() == x.tobytes()


def test_bitcast_between_widths_is_refused():
    assert "cannot keep the bits" in refused("x.to(tl.int32, bitcast=True)", x=array("f16", 1))
    assert "cannot keep the bits" in refused("x.to(tl.int8, bitcast=True)", x=array("bool_", 1))
    assert "cannot keep the bits" in refused("x_.to(tl.float64, bitcast=True)", x=array("f16", 1))


@on_each_machine
def test_bitcast_of_a_number_is_of_its_literal_dtype(run):
    same(compute(run, "x + tl.cast(1.0, tl.int32, bitcast=True)", x=array("i32", 0)), 0x3F800000)
