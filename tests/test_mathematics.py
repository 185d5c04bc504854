"""Elementary and special functions: as exact as their documentation says, on every machine, special values included."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import gristmill.language as tl
from gristmill import dtypes as dt
from gristmill.compiler.op import ROWS
from gristmill.language import references
from gristmill.language.functions import _erfinv, each
from machines import array, compute, on_each_machine, same
from test_numbers import HAS_WIDE_REFERENCE, apply, assert_within, on_each_level, sweep, ulps

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
INF, NAN = math.inf, math.nan
KINDS = {"f32": np.float32, "f64": np.float64}

# Functions with the ulp that their documentation promises, of f32 and f64.
UNARY: dict[str, tuple[Callable, float]] = {
    "sin": (np.sin, 1), "cos": (np.cos, 1), "tan": (np.tan, 3), "asin": (np.arcsin, 2), "acos": (np.arccos, 2),
    "atan": (np.arctan, 2), "sinh": (np.sinh, 3), "cosh": (np.cosh, 3), "asinh": (np.arcsinh, 3),
    "acosh": (np.arccosh, 3), "atanh": (np.arctanh, 3), "exp10": (lambda x: np.power(x.dtype.type(10), x), 2),
    "log10": (np.log10, 1), "log1p": (np.log1p, 3), "expm1": (np.expm1, 2), "cbrt": (np.cbrt, 1),
    "tgamma": (references.tgamma, 5),
}  # fmt: skip
BINARY: dict[str, tuple[Callable, float]] = {
    "atan2": (np.arctan2, 2), "hypot": (np.hypot, 1), "fmod": (np.fmod, 0), "copysign": (np.copysign, 0),
    "pow": (np.power, 2),
}  # fmt: skip
# Their wider reference is Python's, which has f64 only: f64 is checked on fewer numbers.
SPECIAL: dict[str, tuple[Callable, float]] = {
    "erf": (each(math.erf), 2), "erfc": (each(math.erfc), 5), "erfinv": (each(_erfinv), 4),
}  # fmt: skip
ROUNDING: dict[str, Callable] = {"rint": np.rint, "nearbyint": np.rint, "trunc": np.trunc}


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)


def needs_wide_reference(dtype: str) -> None:
    if dtype == "f64" and not HAS_WIDE_REFERENCE:
        pytest.skip("long double is no wider than double here")


@pytest.mark.parametrize("name", [*UNARY, *BINARY, *SPECIAL])
def test_documentation_says_what_is_tested(name):
    bound = {**UNARY, **BINARY, **SPECIAL}[name][1]
    assert ("exact" if bound == 0 else f"within {bound} ulp") in ROWS[name].doc


# ---- accuracy ------------------------------------------------------------------------------------------------------


@cache
def reference(name: str, dtype: str) -> np.ndarray:
    return UNARY[name][0](wide(sweep(dtype)))


@on_each_level
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", UNARY)
def test_function_of_one_number_is_as_exact_as_promised(level, dtype, name):
    needs_wide_reference(dtype)
    x = sweep(dtype)
    got = apply(level, f"tl.extra.libdevice.{name}(x)", dtype, x=x)
    assert_within(UNARY[name][1], got, reference(name, dtype), x=x)


@cache
def pairs(name: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of every kind beside each other; for powers also many whose result is finite."""
    kind, x = KINDS[dtype], sweep(dtype)
    random = np.random.default_rng(1)
    y = random.permutation(x)
    if name != "pow":
        near = (x * kind(1.5), x)
        return np.concatenate([x, near[0]]), np.concatenate([y, near[1]])
    bases = [np.exp(random.uniform(-20, 20, 200_000)), 1 + random.uniform(-1e-3, 1e-3, 200_000)]
    base = np.concatenate(bases).astype(kind)
    end = 100 if dtype == "f32" else 740
    exponent = (random.uniform(-end, end, base.size) / np.log(base.astype(np.float64))).astype(kind)
    whole = random.integers(-20, 20, base.size).astype(kind)
    return np.concatenate([x, base, -base]), np.concatenate([y, exponent, whole])


@on_each_level
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", BINARY)
def test_function_of_two_numbers_is_as_exact_as_promised(level, dtype, name):
    needs_wide_reference(dtype)
    x, y = pairs(name, dtype)
    want = BINARY[name][0](wide(x), wide(y))
    assert_within(BINARY[name][1], apply(level, f"tl.extra.libdevice.{name}(x, y)", dtype, x=x, y=y), want, x=x, y=y)


@on_each_level
@pytest.mark.parametrize("dtype", KINDS)
def test_remainder_by_operator_is_exact(level, dtype):
    x, y = pairs("fmod", dtype)
    np.testing.assert_array_equal(apply(level, "x % y", dtype, x=x, y=y), np.fmod(x, y))


@on_each_level
@pytest.mark.parametrize("name", SPECIAL)
def test_special_function_of_f32_is_as_exact_as_promised(level, name):
    x = sweep("f32")
    function, bound = SPECIAL[name]
    assert_within(bound, apply(level, f"tl.extra.libdevice.{name}(x)", "f32", x=x), function(wide(x)), x=x)


@cache
def special_points(name: str) -> np.ndarray:
    random = np.random.default_rng(2)
    if name == "erfinv":
        return np.concatenate([random.uniform(-1, 1, 500), 1 - 10 ** random.uniform(-16, 0, 500)])
    return np.concatenate([random.uniform(-7, 28, 1000), 10 ** random.uniform(-20, 1, 200)])


@on_each_level
@pytest.mark.parametrize("name", SPECIAL)
def test_special_function_of_f64_is_as_exact_as_promised(level, name):
    needs_wide_reference("f64")
    mpmath = pytest.importorskip("mpmath")
    x, bound = special_points(name), SPECIAL[name][1]
    with mpmath.workprec(120):
        exact = [getattr(mpmath, name)(mpmath.mpf(float(v))) for v in x]
        want = np.array([np.longdouble(mpmath.nstr(v, 25)) for v in exact])
    assert_within(bound, apply(level, f"tl.extra.libdevice.{name}(x)", "f64", x=x), want, x=x)


@cache
def gamma_points(dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, ln |gamma(x)| and what the error is measured by: the largest term."""
    random = np.random.default_rng(3)
    near = [random.uniform(0, 12, 30_000), random.uniform(-30, 0, 30_000), 1 + random.uniform(-1e-6, 1e-6, 5000)]
    x = np.concatenate([sweep(dtype)[::5], *near]).astype(KINDS[dtype])
    want = references.lgamma(x)
    return x, want, np.maximum(np.maximum(np.abs(want), references.lgamma(np.abs(wide(x)))), 1)


@on_each_level
@pytest.mark.parametrize("dtype", KINDS)
def test_logarithm_of_gamma_is_as_exact_as_promised(level, dtype):
    needs_wide_reference(dtype)
    x, want, terms = gamma_points(dtype)
    got = apply(level, "tl.extra.libdevice.lgamma(x)", dtype, x=x)
    positive = ~(x < 0)
    assert_within(4, got[positive], want[positive].astype(wide(x).dtype), x=x[positive])
    got, want = got[~positive], want[~positive]
    # Between the poles the result passes 0: there the error is that of the terms.
    unit = np.spacing(terms[~positive].astype(got.dtype))
    is_pole = np.isinf(want)
    np.testing.assert_array_equal(got[is_pole], want[is_pole].astype(got.dtype))
    assert (np.abs(got - want)[~is_pole] <= 4.01 * np.abs(unit)[~is_pole]).all()


@pytest.mark.parametrize("name", ["lgamma", "tgamma"])
def test_reference_of_gamma_functions_is_right(name):
    mpmath = pytest.importorskip("mpmath")
    needs_wide_reference("f64")
    random = np.random.default_rng(4)
    x = np.concatenate(
        [random.uniform(-20, 40, 400), random.uniform(40, 170, 100), 2 + random.uniform(-1e-9, 1e-9, 50)]
    )
    with mpmath.workprec(120):
        gamma = [mpmath.gamma(mpmath.mpf(float(v))) for v in x]
        exact = [mpmath.log(abs(v)) if name == "lgamma" else v for v in gamma]
        want = np.array([np.longdouble(mpmath.nstr(v, 25)) for v in exact])
    error = ulps(getattr(references, name)(x).astype(np.float64), want)
    is_well_conditioned = (x > 0) | (np.abs(want) > 1) | (name == "tgamma")
    assert error[is_well_conditioned].max() < 1.1


@on_each_level
@pytest.mark.parametrize("name", [*UNARY, *SPECIAL, "lgamma"])
def test_function_of_halves_is_rounded_from_f32(level, name):
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    function = {**UNARY, **SPECIAL, "lgamma": (references.lgamma, 4)}[name][0]
    want = function(x.astype(np.float64)).astype(np.float64)
    is_apart = (np.abs(want) > 1e-3) | (name != "lgamma")  # from its zeros, where f32 has few bits
    got = apply(level, f"tl.extra.libdevice.{name}(x)", "f16", x=x)
    assert_within(0.51, got[is_apart], want[is_apart], x=x[is_apart])


@on_each_level
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    "name", ["sin", "tan", "asin", "atan", "sinh", "asinh", "atanh", "expm1", "log1p", "erf", "cbrt"]
)
def test_small_numbers_are_kept_with_their_sign(level, dtype, name):
    tiny = np.finfo(KINDS[dtype]).smallest_subnormal
    x = np.array([0.0, -0.0, tiny, -tiny, 3 * tiny, -5 * tiny], KINDS[dtype])
    got = apply(level, f"tl.extra.libdevice.{name}(x)", dtype, x=x)
    want = {**UNARY, **SPECIAL}[name][0](wide(x)).astype(x.dtype)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))


# ---- special values ------------------------------------------------------------------------------------------------

POINTS = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e-30, -1e30, 171.0]


@on_each_machine
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("name", [*UNARY, *SPECIAL])
def test_special_values_of_one_number(run, dtype, name):
    x = array(dtype, *POINTS)
    function, bound = {**UNARY, **SPECIAL}[name]
    exact = np.asarray(function(x.astype(np.float64)), np.float64)
    want, got = exact.astype(x.dtype), compute(run, f"tl.extra.libdevice.{name}(x)", x=x)
    rtol = {"f16": 1e-3, "bf16": 8e-3, "f32": bound * 1.2e-7, "f64": bound * 2.3e-16}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=0)
    zeros = want == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


@on_each_machine
@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize("name", BINARY)
def test_special_values_of_two_numbers(run, dtype, name):
    x, y = (np.array(v).astype(array(dtype).dtype) for v in zip(*itertools.product(POINTS, POINTS), strict=True))
    got = compute(run, f"tl.extra.libdevice.{name}(x, y)", x=x, y=y)
    want = BINARY[name][0](wide(x) if dtype != "f16" else x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)
    rtol = {"f16": 1e-3, "f32": 2.4e-7, "f64": 4.6e-16}[dtype]
    np.testing.assert_allclose(got, want, rtol=rtol, atol=0)
    exact = (want == 0) | ((name == "copysign") & ~np.isnan(want))
    np.testing.assert_array_equal(np.signbit(got[exact]), np.signbit(want[exact]))


@on_each_machine
def test_functions_of_scalars(run):
    """0.75 as a parameter, at which all are defined but the inverse of cosh."""
    names = [name for name in [*UNARY, *SPECIAL, "lgamma"] if name != "acosh"]
    body = "\n".join(f"v{i} = tl.extra.libdevice.{name}(s)" for i, name in enumerate(names))
    for i, name in enumerate(names):
        function = {**UNARY, **SPECIAL, "lgamma": (references.lgamma, 4)}[name][0]
        np.testing.assert_allclose(
            compute(run, f"v{i}", dt.f32, body=body, s=0.75)[0], function(np.float64(0.75)), rtol=1e-6
        )


@on_each_machine
def test_gamma_of_poles(run):
    x = array("f64", 0.0, -0.0, -1, -2, -1e20, INF, -INF, NAN)
    same(compute(run, "tl.extra.libdevice.tgamma(x)", x=x), INF, -INF, NAN, NAN, NAN, INF, NAN, NAN)
    same(compute(run, "tl.extra.libdevice.lgamma(x)", x=x), INF, INF, INF, INF, INF, INF, INF, NAN)


@on_each_machine
def test_power_of_an_integer_exponent(run):
    x = array("f32", -2, 3, -1, 1.0000001)
    n = np.array([3, -2, 2**24 + 1, 2**24 + 1], np.int32)
    got = compute(run, "tl.extra.libdevice.pow(x, n)", x=x, n=n)
    np.testing.assert_allclose(got, np.power(x.astype(np.float64), n), rtol=2e-7)
    assert compute(run, "tl.extra.libdevice.pow(x, 2)", x=array("f16", 3, -4)).tolist() == [9, 16]
    assert compute(run, "tl.extra.libdevice.pow(2.0, x)", x=array("f32", 3, -1)).tolist() == [8, 0.5]


@on_each_machine
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, 10, 22])
def test_logarithm_to_base_ten_is_exact_for_powers_of_ten(run, exponent):
    assert compute(run, "tl.extra.libdevice.log10(x)", x=np.array([10.0**exponent])).tolist() == [exponent]


# ---- rounding, signs and kinds -------------------------------------------------------------------------------------

EDGES = [0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, -0.0, 0.0, 8388607.5, -8388609, 1e30, INF, -INF, NAN, -0.2, 3.7]


@on_each_machine
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("name", [*ROUNDING, "round"])
def test_rounding_keeps_the_sign_and_what_is_whole(run, dtype, name):
    x = array(dtype, *EDGES)
    exact = x.astype(np.float64)
    away = np.copysign(np.floor(np.abs(exact) + 0.5), exact)
    want = away if name == "round" else ROUNDING[name](exact)
    got = compute(run, f"tl.extra.libdevice.{name}(x)", x=x)
    same(got, *want)
    numbers = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(exact)[numbers])


@on_each_machine
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_round_does_not_round_twice(run, dtype):
    below = np.nextafter(KINDS[dtype](0.5), KINDS[dtype](0))
    odd = KINDS[dtype](2.0 ** np.finfo(KINDS[dtype]).nmant + 1)
    got = compute(run, "tl.extra.libdevice.round(x)", x=np.array([below, -below, odd, -odd]))
    same(got, 0, 0, odd, -odd)


@on_each_machine
def test_rounding_to_i64(run):
    x = array("f64", 2.5, -2.5, 3.5, 1e30, -1e30, NAN, 2.0**53 + 2, -0.5)
    top, low = 2**63 - 1, -(2**63)
    got = compute(run, "tl.extra.libdevice.llrint(x)", dt.i64, x=x)
    assert got.tolist() == [2, -2, 4, top, low, 0, 2**53 + 2, 0]
    got = compute(run, "tl.extra.libdevice.llround(x)", dt.i64, x=x)
    assert got.tolist() == [3, -3, 4, top, low, 0, 2**53 + 2, -1]


@on_each_machine
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_kinds_of_numbers(run, dtype):
    x = array(dtype, 0.0, -0.0, INF, -INF, NAN, 1, -1, 1e-5)
    x[4] = np.copysign(x[4], -1)
    for name, want in {
        "isnan": (0, 0, 0, 0, 1, 0, 0, 0), "isinf": (0, 0, 1, 1, 0, 0, 0, 0), "isfinited": (1, 1, 0, 0, 0, 1, 1, 1),
        "finitef": (1, 1, 0, 0, 0, 1, 1, 1),
    }.items():  # fmt: skip
        same(compute(run, f"tl.extra.libdevice.{name}(x)", dt.bool_, x=x), *want)
    same(compute(run, "tl.extra.libdevice.signbit(x)", dt.i32, x=x), 0, 1, 0, 1, 1, 0, 1, 0)


@on_each_machine
@pytest.mark.parametrize("dtype", KINDS)
def test_next_number_towards_another(run, dtype):
    kind = KINDS[dtype]
    tiny, top = np.finfo(kind).smallest_subnormal, np.finfo(kind).max
    points = [0.0, -0.0, 1.0, -1.0, tiny, -tiny, top, -top, INF, -INF, NAN, 2.5, 1e-3, 1 - 2.0**-20, 4.0, -8.0]
    x, y = (np.array(v, kind) for v in zip(*itertools.product(points, points), strict=True))
    got, want = compute(run, "tl.extra.libdevice.nextafter(x, y)", x=x, y=y), np.nextafter(x, y)
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


@on_each_machine
def test_saturatef_limits_to_one_and_drops_nan(run):
    got = compute(run, "tl.extra.libdevice.saturatef(x)", x=array("f32", -1, 0.25, 2, NAN, INF, -INF, 1, -0.0))
    same(got, 0, 0.25, 1, 0, 1, 0, 1, 0)


@on_each_machine
def test_bits_of_floats(run):
    x = np.array([1.0, -0.0], np.float32)
    same(compute(run, "tl.extra.libdevice.float_as_int(x)", dt.i32, x=x), 0x3F800000, -(2**31))
    same(compute(run, "tl.extra.libdevice.float_as_uint(x)", dt.u32, x=x), 0x3F800000, 2**31)
    same(compute(run, "tl.extra.libdevice.int_as_float(x)", dt.f32, x=array("i32", 0x40000000, 0)), 2, 0)
    same(compute(run, "tl.extra.libdevice.uint_as_float(x)", dt.f32, x=array("u32", 0xC0000000, 0)), -2, 0)
    d = np.array([1.0, -2.0])
    got = compute(run, "tl.extra.libdevice.double_as_longlong(x)", dt.i64, x=d)
    np.testing.assert_array_equal(got, d.view(np.int64))
    np.testing.assert_array_equal(compute(run, "tl.extra.libdevice.longlong_as_double(x)", dt.f64, x=got), d)


# ---- functions of the language -------------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_softmax_is_along_axis_0_unless_told(run, dtype):
    x = array(dtype, *np.random.default_rng(0).uniform(-8, 8, 16))
    for argument, axis in (("", 0), (", 1", 1), (", dim=0, keep_dims=True", 0), (", -1, ieee_rounding=True", 1)):
        e = np.exp(x.astype(np.float64).reshape(4, 4))
        want = e / e.sum(axis=axis, keepdims=True)
        got = compute(run, f"tl.softmax(x.reshape(4, 4){argument}).reshape(16)", x=x).astype(np.float64)
        np.testing.assert_allclose(got, want.ravel(), rtol={"f16": 1e-3, "bf16": 8e-3}.get(dtype, 1e-6), atol=3e-8)


@on_each_machine
def test_softmax_of_large_numbers_does_not_overflow(run):
    same(compute(run, "tl.softmax(x)", x=array("f32", 1e30, -1e30, 3, -INF)), 1, 0, 0, 0)


@on_each_machine
def test_nan_is_kept_where_propagate_nan_says_all(run):
    x, y = array("bf16", NAN, 1, 3, 2), array("bf16", 2, NAN, 4, 1)
    same(compute(run, "tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)", x=x, y=y), NAN, NAN, 4, 2)
    same(compute(run, "tl.minimum(x, y, propagate_nan=tl.PropagateNan.NONE)", x=x, y=y), 2, 1, 3, 1)
    same(compute(run, "tl.clamp(x, 1.5, 2.5, tl.PropagateNan.ALL)", x=x), NAN, 1.5, 2.5, 2)


@on_each_machine
def test_three_operands_are_promoted_together(run):
    """bf16 and f16 give f16, but not where the third is f32: 1e20 is no f16."""
    x, low, high = array("f16", 1, 1), array("bf16", 1e20, -1e20), array("f32", 2e20, 2e20)
    np.testing.assert_allclose(compute(run, "tl.clamp(x, a, b)", dt.f32, x=x, a=low, b=high), [1e20, 1], rtol=1e-2)
    np.testing.assert_allclose(compute(run, "tl.fma(x, a, b)", dt.f32, x=x, a=low, b=high), [3e20, 1e20], rtol=1e-2)


@pytest.mark.parametrize("name", ["exp2", "sin", "erf", "tanh", "rsqrt", "cdiv", "maximum", "umulhi"])
def test_math_has_the_functions_of_the_language(name):
    other = tl if hasattr(tl, name) else tl.extra.cuda.libdevice
    assert getattr(tl.math, name) is getattr(other, name)


@on_each_machine
@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("from gristmill.language.extra import libdevice", "libdevice.exp10"),
        ("from gristmill.language.extra.libdevice import exp10", "exp10"),
        ("", "tl.extra.cuda.libdevice.exp10"),
        ("", "tl.math.exp10"),
    ],
)
def test_kernels_reach_functions_by_every_path(run, head, call):
    same(compute(run, f"{call}(x)", head=head, x=array("f32", 0, 1)), 1, 10)


def test_libdevice_can_be_imported_as_in_triton():
    from gristmill.language.extra import libdevice
    from gristmill.language.extra.cuda import libdevice as same_one

    assert libdevice is same_one is tl.extra.libdevice
    assert [name for name in libdevice.__all__ if not getattr(libdevice, name).doc] == []
