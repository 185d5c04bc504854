"""Elementary functions composed from machine words, for machines or dtypes without an instruction for them.

Coefficients are minimax fits (relative error over the reduced range beside each).
"""

from __future__ import annotations

import math
import struct
from typing import Any

from gristmill import dtypes as dt


def horner(m: Any, x: Any, coefficients: tuple[float, ...]) -> Any:
    """Evaluate c0 + c1 x + c2 x^2 + ... highest first, with fused steps where they are fast."""
    result = m.constant(x.dtype, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = m.multiply_add(result, x, m.constant(x.dtype, c))
    return result


# ln 2 in two pieces: the high one has trailing zeros, so that n * high is exact.
LN2 = {dt.f32: (0.693359375, -2.12194440e-4), dt.f64: (0.6931471803691238, 1.9082149292705877e-10)}
EXP_RANGE = {dt.f32: (-104.0, 89.0), dt.f64: (-746.0, 710.0)}
EXP2_RANGE = {dt.f32: (-151.0, 129.0), dt.f64: (-1076.0, 1025.0)}
# Adding 1.5 * 2^mantissa leaves the nearest integer in a float's low bits.
ROUNDER = {dt.f32: 1.5 * 2.0**23, dt.f64: 1.5 * 2.0**52}
# (e^r - 1 - r) / r^2 for |r| <= ln2/2: 3e-9 of e^r.
EXP_TAIL = (0.49999993412261023, 0.16666520105546206, 0.041668394259156964, 0.00836878062222795, 0.001381446475211377)


def exp_tail(dtype: dt.Dtype) -> tuple[float, ...]:
    """The coefficients of (e^r - 1 - r) / r^2; f64 by the series to r^13, below 2^-55."""
    return EXP_TAIL if dtype == dt.f32 else tuple(1 / math.factorial(i) for i in range(2, 14))


def exp(m: Any, x: Any) -> Any:
    """e^x within 1 ulp: x = n ln2 + r, then 2^n times a polynomial in r; gradual underflow is kept."""
    x = limit(m, x, EXP_RANGE[x.dtype])
    n, bits = nearest_integer(m, x, math.log2(math.e))
    big, small = (m.constant(x.dtype, -c) for c in LN2[x.dtype])
    r = m.multiply_add(n, small, m.multiply_add(n, big, x))
    return times_power_of_two(m, exp_of_rest(m, r), bits)


def exp2(m: Any, x: Any) -> Any:
    """2^x within 1 ulp, by exp of the fraction."""
    x = limit(m, x, EXP2_RANGE[x.dtype])
    n, bits = nearest_integer(m, x, 1.0)
    r = m.multiply(m.subtract(x, n), m.constant(x.dtype, math.log(2)))
    return times_power_of_two(m, exp_of_rest(m, r), bits)


def exp_of_rest(m: Any, r: Any) -> Any:
    """e^r for |r| <= ln2/2."""
    tail = m.multiply_add(m.multiply(r, r), horner(m, r, exp_tail(r.dtype)), r)
    return m.add(tail, m.constant(r.dtype, 1.0))


def limit(m: Any, x: Any, bounds: tuple[float, float]) -> Any:
    """x within bounds; NaN stays."""
    low, high = (m.constant(x.dtype, b) for b in bounds)
    return m.minimum(m.maximum(x, low, keep_nan=True), high, keep_nan=True)


def nearest_integer(m: Any, x: Any, scale: float) -> tuple[Any, Any]:
    """The integer nearest to scale * x, as a float and as an integer; of NaN any."""
    rounder = m.constant(x.dtype, ROUNDER[x.dtype])
    shifted = m.multiply_add(x, m.constant(x.dtype, scale), rounder)
    kind = dt.i32 if x.dtype == dt.f32 else dt.i64
    zero = struct.unpack(
        "<i" if kind == dt.i32 else "<q", struct.pack("<f" if kind == dt.i32 else "<d", ROUNDER[x.dtype])
    )[0]
    return m.subtract(shifted, rounder), m.subtract(m.bitcast(shifted, kind), m.constant(kind, zero))


def times_power_of_two(m: Any, x: Any, n: Any) -> Any:
    """x * 2^n for integers n within twice the exponent range, in two halves so that neither overflows early."""
    half = m.shift_right(n, m.constant(n.dtype, 1))
    first = m.multiply(x, power_of_two(m, half, x.dtype))
    return m.multiply(first, power_of_two(m, m.subtract(n, half), x.dtype))


def power_of_two(m: Any, n: Any, dtype: dt.Dtype) -> Any:
    """2^n for an integer n in the normal range, from the bits of the exponent."""
    mantissa, bias = (23, 127) if dtype == dt.f32 else (52, 1023)
    exponent = m.shift_left(m.add(n, m.constant(n.dtype, bias)), m.constant(n.dtype, mantissa))
    return m.bitcast(exponent, dtype)


def log2(m: Any, x: Any) -> Any:
    """log2 x = ln x / ln 2; f32 within 2 ulp, f64 within 2 ulp."""
    return m.multiply(log(m, x), m.constant(x.dtype, 1 / math.log(2)))


def log(m: Any, x: Any) -> Any:
    """ln x: x = 2^n f with f in [sqrt(1/2), sqrt 2), ln f = 2 atanh(s), s = (f - 1)/(f + 1). 0 gives -inf, < 0 NaN."""
    bits, mantissa, bias = (dt.i32, 23, 127) if x.dtype == dt.f32 else (dt.i64, 52, 1023)
    scale = 2.0**mantissa
    is_small = m.compare("<", x, m.constant(x.dtype, 2.0 ** (1 - bias)))
    scaled = m.select(is_small, m.multiply(x, m.constant(x.dtype, scale)), x)
    word = m.bitcast(scaled, bits)
    sqrt_half = 0x3F3504F3 if x.dtype == dt.f32 else 0x3FE6A09E667F3BCD
    shifted = m.subtract(word, m.constant(bits, sqrt_half))
    exponent = m.shift_right(shifted, m.constant(bits, mantissa))
    f = m.bitcast(m.subtract(word, m.shift_left(exponent, m.constant(bits, mantissa))), x.dtype)
    n = m.cast(exponent, x.dtype)
    n = m.select(is_small, m.subtract(n, m.constant(x.dtype, mantissa)), n)
    return _log_edges(m, x, _log_of_parts(m, f, n))


def _log_of_parts(m: Any, f: Any, n: Any) -> Any:
    g = m.subtract(f, m.constant(f.dtype, 1.0))
    s = m.divide_exactly(g, m.add(g, m.constant(f.dtype, 2.0)))
    z = m.multiply(s, s)
    terms = 5 if f.dtype == dt.f32 else 11
    series = horner(m, z, tuple(2 / (2 * i + 3) for i in range(terms)))
    half = m.multiply(m.constant(f.dtype, 0.5), m.multiply(g, g))
    # 2 atanh(s) = g - g^2/2 + s (g^2/2 + z * series): exact in g where f is near 1.
    tail = m.multiply(s, m.add(half, m.multiply(z, series)))
    big, small = (m.constant(f.dtype, c) for c in LN2[f.dtype])
    low = m.multiply_add(n, small, tail)
    return m.multiply_add(n, big, m.add(g, m.subtract(low, half)))


def _log_edges(m: Any, x: Any, result: Any) -> Any:
    zero, infinity = m.constant(x.dtype, 0.0), m.constant(x.dtype, math.inf)
    result = m.select(m.compare("==", x, infinity), infinity, result)
    result = m.select(m.compare("==", x, zero), m.constant(x.dtype, -math.inf), result)
    return m.select(m.compare(">=", x, zero), result, m.constant(x.dtype, math.nan))


# tanh x = x + x z p(z), z = x^2, |x| < 0.625: error below 2^-26 of x (f32); f64 goes by expm1.
TANH_SMALL = (-3.33332819422e-1, 1.33314422036e-1, -5.37397155531e-2, 2.06390887954e-2, -5.70498872745e-3)


def tanh(m: Any, x: Any, exp_function: Any) -> Any:
    """tanh x within 2 ulp (f32) and 4 ulp (f64); odd, -0 stays -0, infinities give +-1."""
    size = m.absolute(x)
    twice = m.add(size, size)
    if x.dtype == dt.f32:
        z = m.multiply(x, x)
        small = m.multiply_add(m.multiply(horner(m, z, TANH_SMALL), z), size, size)
        e = exp_function(m, m.minimum(twice, m.constant(x.dtype, 40.0), keep_nan=True))
    else:
        small = _tanh_small_double(m, size)
        e = exp_function(m, m.minimum(twice, m.constant(x.dtype, 80.0), keep_nan=True))
    one, two = m.constant(x.dtype, 1.0), m.constant(x.dtype, 2.0)
    large = m.subtract(one, m.divide(two, m.add(e, one)))
    result = m.select(m.compare("<", size, m.constant(x.dtype, 0.625)), small, large)
    return copy_sign(m, result, x)


def _tanh_small_double(m: Any, x: Any) -> Any:
    """tanh by a continued fraction of nine levels, below 2^-54 for x < 0.625."""
    z = m.multiply(x, x)
    fraction = m.constant(x.dtype, 19.0)
    for level in range(17, 0, -2):
        fraction = m.add(m.constant(x.dtype, float(level)), m.divide_exactly(z, fraction))
    return m.divide_exactly(x, fraction)


def copy_sign(m: Any, size: Any, sign: Any) -> Any:
    """|size| with the sign bit of `sign`."""
    bits = dt.u32 if sign.dtype == dt.f32 else dt.u64
    top = m.constant(bits, 1 << (bits.bits - 1))
    rest = m.constant(bits, (1 << (bits.bits - 1)) - 1)
    word = m.bit_or(m.bit_and(m.bitcast(sign, bits), top), m.bit_and(m.bitcast(size, bits), rest))
    return m.bitcast(word, sign.dtype)
