"""Accuracy of elementary functions and casts as machine code: over whole ranges, at every level this processor has."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.dtypes import dt_numpy
from host import levels, runner
from machines import compute, kernel_of, on_each_machine

on_each_level = pytest.mark.parametrize(
    "level", levels() or [pytest.param("", marks=pytest.mark.skip("no C compiler"))]
)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow and NaN are what this is about
HAS_WIDE_REFERENCE = np.finfo(np.longdouble).nmant >= 63


def apply(level: str, expression: str, result: str, **inputs: np.ndarray) -> np.ndarray:
    """Evaluate an expression of whole arrays as machine code; the result has the dtype called `result`."""
    arrays = ", ".join(f"{name}_: gm.ptr[gm.{_name(a.dtype)}]" for name, a in inputs.items())
    loads = "".join(f"    {name} = tl.load({name}_ + i, mask=i < n)\n" for name in inputs)
    source = (
        "@gm.kernel(BLOCK=[1024], grid=lambda n, BLOCK: gm.cdiv(n, BLOCK))\n"
        f"def k({arrays}, out: gm.ptr[gm.{result}], n: gm.size['out'], BLOCK: gm.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        f"{loads}    tl.store(out + i, {expression}, mask=i < n)\n"
    )
    out = np.full(next(iter(inputs.values())).shape, 77).astype(dt_numpy(getattr(dt, result)))
    runner(level)(kernel_of(source), None, *inputs.values(), out)
    return out


def _name(dtype: np.dtype) -> str:
    return next(d.name for d in dt.ALL if d.name != "bool" and not d.name.startswith("f8") and dt_numpy(d) == dtype)


# ---- functions -----------------------------------------------------------------------------------------------------

EDGES = (
    0.0,
    1.0,
    0.5,
    0.625,
    2.0,
    88.72,
    88.73,
    103.9,
    104.1,
    126.0,
    127.0,
    128.0,
    149.0,
    150.0,
    709.78,
    745.2,
    1024.0,
)


@cache
def sweep(dtype: str) -> np.ndarray:
    """Numbers of every sign, exponent and kind, those near edges of functions, and many of ordinary size."""
    kind, word = (np.float32, np.uint32) if dtype == "f32" else (np.float64, np.uint64)
    info = np.finfo(kind)
    step = 8191 if dtype == "f32" else (1 << 64) // 300_007
    bits = (np.arange((1 << word(0).nbytes * 8) // step, dtype=np.uint64) * np.uint64(step)).astype(word)
    random = np.random.default_rng(0)
    ordinary = [random.uniform(-reach, reach, 50_000) for reach in (1, 3, 30, 200, 800)]
    near_one = 1 + random.uniform(-0.3, 0.5, 50_000)
    limits = [info.max, info.smallest_normal, info.smallest_subnormal, np.inf, np.nan, 3 * info.smallest_subnormal]
    edges = np.array([*EDGES, *limits]).astype(kind)
    edges = np.concatenate([edges, np.nextafter(edges, kind(0)), np.nextafter(edges, kind(np.inf))])
    parts = [bits.view(kind), *ordinary, near_one, edges, -edges]
    return np.concatenate([p.astype(kind) for p in parts])


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


# Functions with the ulp that their documentation promises of f32 and f64.
FUNCTIONS: dict[str, tuple[Callable, float, float]] = {
    "exp": (np.exp, 2, 2),
    "exp2": (np.exp2, 2, 2),
    "log": (np.log, 2, 2),
    "log2": (np.log2, 3, 3),
    "tanh": (np.tanh, 4, 4),
    "sigmoid": (sigmoid, 4, 4),
    "sqrt": (np.sqrt, 0.5, 0.5),
    "sqrt_rn": (np.sqrt, 0.5, 0.5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2, 2),
}


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Errors in units of the last place of `want` in the dtype of `got`; inf where only one is NaN.

    Infinity counts as the number from which the wider `want` is rounded to it.
    """
    info = np.finfo(got.dtype)
    wide = want.dtype.type
    limit = wide(info.max) * (1 + wide(info.eps) / 2)
    both_nan = np.isnan(got) & np.isnan(want)
    a, b = (np.clip(x.astype(want.dtype), -limit, limit) for x in (got, want))
    unit = np.spacing(np.maximum(np.abs(np.clip(want, -info.max, info.max)), info.smallest_normal).astype(got.dtype))
    error = np.abs(a - b) / unit.astype(want.dtype)
    return np.where(both_nan, 0, np.where(np.isnan(error), np.inf, error))


def assert_within(bound: float, got: np.ndarray, want: np.ndarray, **inputs: np.ndarray) -> None:
    error = ulps(got, want)
    worst = int(np.argmax(error))
    shown = {name: float(x[worst]) for name, x in inputs.items()}
    # The reference in the wider dtype is itself off by up to 2^-10 ulp.
    assert error[worst] <= bound * (1 + 1e-3), f"{error[worst]:.3f} ulp at {shown}: {got[worst]}, not {want[worst]}"


@on_each_level
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_within_the_ulp_that_it_promises(level, dtype, name):
    if dtype == "f64" and not HAS_WIDE_REFERENCE:
        pytest.skip("long double is no wider than double here")
    x, bound = sweep(dtype), FUNCTIONS[name][1 + (dtype == "f64")]
    assert_within(bound, apply(level, f"tl.{name}(x)", dtype, x=x), reference(name, dtype), x=x)


@cache
def reference(name: str, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return FUNCTIONS[name][0](sweep(dtype).astype(np.float64 if dtype == "f32" else np.longdouble))


@on_each_level
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["tanh", "sqrt", "floor", "ceil", "abs"])
def test_zero_keeps_its_sign(level, dtype, name):
    x = np.array([0.0, -0.0], np.float32 if dtype == "f32" else np.float64)
    got = apply(level, f"tl.{name}(x)", dtype, x=x)
    assert got.tolist() == [0, 0]
    assert np.signbit(got).tolist() == [False, name != "abs"]


@on_each_level
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_tanh_and_sigmoid_stay_in_their_range_and_tanh_is_odd(level, dtype):
    x = sweep(dtype)
    t, s = (apply(level, f"tl.{name}(x)", dtype, x=x) for name in ("tanh", "sigmoid"))
    assert not (np.abs(t) > 1).any()
    assert not ((s < 0) | (s > 1)).any()
    np.testing.assert_array_equal(apply(level, "tl.tanh(-x)", dtype, x=x), -t)


# ---- division ------------------------------------------------------------------------------------------------------


@cache
def quotients(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    x = sweep(dtype)
    return x, np.random.default_rng(1).permutation(x)


@on_each_level
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("expression", "bound"), [("x / y", 2), ("tl.fdiv(x, y)", 2), ("tl.div_rn(x, y)", 0.5)])
def test_division_is_within_the_ulp_that_it_promises(level, dtype, expression, bound):
    x, y = quotients(dtype)
    with np.errstate(all="ignore"):
        if bound == 0.5 or dtype == "f64":
            np_quotient = x / y
            want = np_quotient.astype(np.float64 if dtype == "f32" else np.longdouble)
            bound = bound if bound != 0.5 else 0
        else:
            want = x.astype(np.float64) / y
        assert_within(bound, apply(level, expression, dtype, x=x, y=y), want, x=x, y=y)


@on_each_level
def test_rough_division_is_within_two_ulp_for_ordinary_divisors(level):
    x, y = quotients("f32")
    is_ordinary = (np.abs(y) >= 2.0**-126) & (np.abs(y) <= 2.0**126)
    x, y = x[is_ordinary], y[is_ordinary]
    with np.errstate(all="ignore"):
        want = x.astype(np.float64) / y
    assert_within(2, apply(level, "tl.fdiv(x, y, approx=True)", "f32", x=x, y=y), want, x=x, y=y)


@on_each_level
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_fma_rounds_once_everywhere(level, dtype):
    random = np.random.default_rng(2)
    kind = np.float32 if dtype == "f32" else np.float64
    x, y = (random.standard_normal(200_000).astype(kind) for _ in range(2))
    z = -(x * y) * (1 + random.integers(-2, 3, x.size).astype(kind) * np.finfo(kind).eps)
    got = apply(level, "tl.fma(x, y, z)", dtype, x=x, y=y, z=z)
    if dtype == "f32":
        # The product is exact in f64, and the sum cancels to a few bits.
        np.testing.assert_array_equal(got, (x.astype(np.float64) * y + z).astype(np.float32))
    else:
        exact = two_product(x, y)
        np.testing.assert_array_equal(got, (exact[0] + z) + exact[1])


def two_product(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x y as the sum of a rounded product and what it lost (Dekker)."""
    product = x * y
    (a, b), (c, d) = (_halves(v) for v in (x, y))
    return product, ((a * c - product) + a * d + b * c) + b * d


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    return high, x - high


# ---- casts ---------------------------------------------------------------------------------------------------------

HALVES = {"f16": np.float16, "bf16": dt_numpy(dt.bf16)}


@cache
def ladder(half: str) -> tuple[np.ndarray, np.ndarray]:
    """The finite numbers of a half from 0 up, in f64, and the midpoints above each."""
    finite = np.arange(0x7C00 if half == "f16" else 0x7F80, dtype=np.uint16).view(HALVES[half]).astype(np.float64)
    above = np.append(finite[1:], 2 * finite[-1] - finite[-2])
    return finite, (finite + above) / 2


def rounded(x: np.ndarray, half: str) -> np.ndarray:
    """Round to nearest, ties to even, by looking the number up: exact for any x that f64 holds."""
    finite, middles = ladder(half)
    size = np.abs(x.astype(np.float64))
    index = np.searchsorted(middles, size, side="left")
    is_tie = (index < len(middles)) & (middles[np.minimum(index, len(middles) - 1)] == size)
    index = np.where(is_tie & (index % 2 == 1), index + 1, index)
    bits = np.minimum(index, len(finite)).astype(np.uint16)
    bits = np.where(np.isnan(x), bits.dtype.type(0x7FFF), bits | np.signbit(x).astype(np.uint16) << 15)
    return bits.astype(np.uint16).view(HALVES[half])


def near_ties(half: str, kind: type) -> np.ndarray:
    """Every number of a half, every midpoint, and their neighbours in the wider dtype, of both signs."""
    finite, middles = ladder(half)
    points = np.concatenate([finite, middles, [np.inf, np.nan, np.finfo(kind).max]]).astype(kind)
    with np.errstate(all="ignore"):
        below, above = np.nextafter(points, kind(-np.inf)), np.nextafter(points, kind(np.inf))
    points = np.concatenate([points, below, above])
    return np.concatenate([points, -points])


def assert_same_bits(got: np.ndarray, want: np.ndarray, x: np.ndarray) -> None:
    is_nan = np.isnan(want.astype(np.float32))
    assert np.isnan(got.astype(np.float32))[is_nan].all()
    wrong = np.flatnonzero((got.view(np.uint16) != want.view(np.uint16)) & ~is_nan)
    assert wrong.size == 0, f"{wrong.size} wrong: {x[wrong[0]]!r} gives {got[wrong[0]]}, not {want[wrong[0]]}"


@on_each_level
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_cast_to_a_half_is_correctly_rounded(level, source, half):
    kind = np.float32 if source == "f32" else np.float64
    x = np.concatenate([near_ties(half, kind), sweep(source)])
    assert_same_bits(apply(level, f"x.to(gm.{half})", half, x=x), rounded(x, half), x)


@on_each_machine
@pytest.mark.parametrize("half", HALVES)
def test_cast_of_wide_numbers_to_a_half_rounds_once(run, half):
    """Just beside a tie of the half, where f32 would round to the tie."""
    finite = ladder(half)[0]
    tie = (1.0 + finite[finite > 1][0]) / 2
    x = np.array([tie, np.nextafter(tie, 0), np.nextafter(tie, 2), tie + 1e-10, -tie - 1e-10, 1e300, np.nan, -1e-300])
    got = compute(run, f"x.to(gm.{half})", half, x=x)
    assert_same_bits(got, rounded(x, half), x)
    n = (np.array([tie, tie + 2**-28, tie - 2**-28, 0]) * 2**30).astype(np.int32)
    assert_same_bits(compute(run, f"x.to(gm.{half})", half, x=n), rounded(n.astype(np.float64), half), n)


@on_each_level
@pytest.mark.parametrize(("source", "half"), [("f16", "bf16"), ("bf16", "f16")])
def test_cast_between_halves_is_correctly_rounded(level, source, half):
    x = np.arange(1 << 16, dtype=np.uint16).view(HALVES[source])
    assert_same_bits(apply(level, f"x.to(gm.{half})", half, x=x), rounded(x.astype(np.float64), half), x)


@on_each_level
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("wide", ["f32", "f64"])
def test_cast_from_a_half_is_exact(level, half, wide):
    x = np.arange(1 << 16, dtype=np.uint16).view(HALVES[half])
    got = apply(level, f"x.to(gm.{wide})", wide, x=x)
    want = x.astype(got.dtype)
    np.testing.assert_array_equal(got, want)
    is_number = ~np.isnan(want)
    assert (np.signbit(got) == np.signbit(want))[is_number].all()


@on_each_level
def test_cast_between_f64_and_f32_is_numpys(level):
    x = sweep("f64")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(apply(level, "x.to(gm.f32)", "f32", x=x), x.astype(np.float32))
    y = sweep("f32")
    np.testing.assert_array_equal(apply(level, "y.to(gm.f64)", "f64", y=y), y.astype(np.float64))


@on_each_level
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("operator", ["+", "-", "*"])
def test_arithmetic_of_halves_is_rounded_once(level, half, operator):
    """f32 holds sums and products of halves well enough that rounding them again is harmless."""
    random = np.random.default_rng(3)
    x, y = (random.integers(0, 1 << 16, 300_000, dtype=np.uint16).view(HALVES[half]) for _ in range(2))
    with np.errstate(all="ignore"):
        a, b = x.astype(np.float64), y.astype(np.float64)
        exact = {"+": a + b, "-": a - b, "*": a * b}[operator]
    got = apply(level, f"x {operator} y", half, x=x, y=y)
    is_exact = np.isfinite(exact) if operator == "*" else np.abs(np.log2(np.abs(a) / np.abs(b))) < 40
    assert_same_bits(got[is_exact], rounded(exact, half)[is_exact], exact[is_exact])


# ---- integers ------------------------------------------------------------------------------------------------------


@on_each_level
@pytest.mark.parametrize("to", ["f32", "f64"])
@pytest.mark.parametrize("source", ["i32", "i64", "u32", "u64"])
def test_cast_of_integers_is_correctly_rounded(level, source, to):
    kind = dt_numpy(getattr(dt, source))
    bits = np.random.default_rng(4).integers(0, 1 << 64, 200_000, dtype=np.uint64)
    shifts = np.random.default_rng(5).integers(0, 64, bits.size, dtype=np.uint64)
    info = np.iinfo(kind)
    edges = np.array([info.min, info.max, 0, 1, (1 << 24) + 1, info.max - 1]).astype(kind)
    x = np.concatenate([(bits >> shifts).astype(kind), edges])
    got = apply(level, f"x.to(gm.{to})", to, x=x)
    np.testing.assert_array_equal(got, x.astype(got.dtype))


@on_each_level
@pytest.mark.parametrize("to", ["i32", "i64"])
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_cast_to_integers_truncates_every_number_that_fits(level, source, to):
    x = sweep(source)
    limit = 2.0 ** (31 if to == "i32" else 63)
    x = x[(x > -limit) & (x < limit)]
    got = apply(level, f"x.to(gm.{to})", to, x=x)
    np.testing.assert_array_equal(got, np.trunc(x).astype(got.dtype))
