"""Powers, logarithms and hyperbolic functions, from exp and log of numbers kept as pairs of floats."""

from __future__ import annotations

import math

from gristmill import dtypes as dt
from gristmill.dtypes import Dtype
from gristmill.language.polynomials import EXP_RANGE, LN2, exp_of_rest, exp_tail, horner
from gristmill.language.registers import (
    INFINITY,
    NAN,
    Pair,
    Register,
    copy_sign,
    exp,
    floor,
    fma,
    has_sign,
    largest,
    log,
    nearest_integer,
    quick_two_sum,
    smallest,
    sqrt,
    times_power_of_two,
    two_product,
    two_sum,
    where,
)

TWO_THIRDS = {dt.f32: (0.6666666865348816, -1.9868215e-08), dt.f64: (0.6666666666666666, 3.700743415417188e-17)}
# 2 atanh(s) = 2s + 2/3 s^3 + s^5 (2/5 + 2/7 s^2 + ...) for |s| < 0.1716.
LOG_TAIL: dict[Dtype, tuple[float, ...]] = {
    dt.f32: tuple(2 / (2 * i + 5) for i in range(4)),
    dt.f64: tuple(2 / (2 * i + 5) for i in range(11)),
}
LOG10_E = {dt.f32: (0.4342944920063019, -1.0103049952192578e-08), dt.f64: (0.4342944819032518, 1.098319650216765e-17)}
LOG10_2 = {dt.f32: (0.3010300099849701, -1.432098883924482e-08), dt.f64: (0.3010299956639812, -2.8037281277851704e-18)}
LN_10 = {dt.f32: (2.3025851249694824, -3.1975435632602967e-08), dt.f64: (2.302585092994046, -2.1707562233822494e-16)}
# Beyond this 1 + 1/(4 x^2) is 1.
LARGE = {dt.f32: 2.0**14, dt.f64: 2.0**28}


def log_parts(x: Register) -> Pair:
    """x = 2^n f with f in [sqrt(1/2), sqrt 2), as (f, n); x is positive and finite."""
    kind, mantissa, bias = (dt.i64, 52, 1023) if x.is_double else (dt.i32, 23, 127)
    is_small = x < 2.0 ** (1 - bias)
    word = where(is_small, x * 2.0**mantissa, x).as_bits(kind)
    root_half = 0x3FE6A09E667F3BCD if x.is_double else 0x3F3504F3
    exponent = (word - root_half) >> mantissa
    f = (word - (exponent << mantissa)).as_bits(x.dtype)
    n = exponent.to(x.dtype)
    return f, where(is_small, n - float(mantissa), n)


def log_pair(x: Register) -> Pair:
    """ln x with half as many bits again as a float has, for x positive and finite."""
    f, n = log_parts(x)
    sum_, sum_low = two_sum(f, 1.0)
    g = f - 1.0
    s = g / sum_
    s_low = (fma(-s, sum_, g) - s * sum_low) / sum_
    z = s * s
    z_low = fma(s, s, -z) + 2.0 * s * s_low
    first, rest = TWO_THIRDS[x.dtype]
    tail = z * x.wrap(horner(x.machine, z.v, LOG_TAIL[x.dtype])) + rest
    w, w_low = quick_two_sum(x.constant(first), tail)
    p, p_low = two_product(z, w)
    p_low = p_low + (z * w_low + z_low * w)
    q, q_low = two_product(s, p)
    q_low = q_low + (s * p_low + s_low * p)
    high, low = quick_two_sum(s + s, q)
    low = low + (q_low + (s_low + s_low))
    big, small = LN2[x.dtype]
    total, lost = two_sum(n * big, high)
    return quick_two_sum(total, lost + (low + n * small))


def exp_pair(high: Register, low: Register) -> Register:
    """e^(high + low), with gradual underflow."""
    bottom, top = EXP_RANGE[high.dtype]
    high = smallest(largest(high, bottom), top)
    n, bits = nearest_integer(high, math.log2(math.e))
    big, small = LN2[high.dtype]
    rest = fma(-n, small, fma(-n, big, high)) + low
    return times_power_of_two(high.wrap(exp_of_rest(high.machine, rest.v)), bits)


def _log_edges(x: Register, result: Register) -> Register:
    """Of 0 -inf, of inf inf, of negative numbers and NaN NaN."""
    result = where(x < INFINITY, result, x)
    result = where(x.equals(0.0), -INFINITY, result)
    return where(x >= 0.0, result, NAN)


def log10(x: Register) -> Register:
    high, low = log_pair(x)
    factor, rest = LOG10_E[x.dtype]
    product, lost = two_product(high, factor)
    return _log_edges(x, product + (lost + (high * rest + low * factor)))


def exp10(x: Register) -> Register:
    bottom, top = (-324.5, 309.5) if x.is_double else (-46.0, 39.5)
    near = smallest(largest(x, bottom), top)
    n, bits = nearest_integer(near, math.log2(10))
    big, small = LOG10_2[x.dtype]
    rest = fma(-n, small, fma(-n, big, near))
    factor, low = LN_10[x.dtype]
    rest = fma(rest, factor, rest * low)
    return times_power_of_two(x.wrap(exp_of_rest(x.machine, rest.v)), bits)


def log1p(x: Register) -> Register:
    total, lost = two_sum(x, 1.0)
    result = log(total) + lost / total
    result = where(abs(x) < INFINITY, result, x)
    result = where(x.equals(-1.0), -INFINITY, result)
    result = where(x >= -1.0, result, NAN)
    return where(x.equals(0.0), x, result)


def expm1(x: Register) -> Register:
    """2^n (e^r - 1) + (2^n - 1), doubled at the end so that 2^n does not overflow."""
    bottom, top = (-50.0, 710.0) if x.is_double else (-30.0, 89.0)
    near = smallest(largest(x, bottom), top)
    n, bits = nearest_integer(near, math.log2(math.e))
    big, small = LN2[x.dtype]
    r = fma(-n, small, fma(-n, big, near))
    rise = fma(r * r, x.wrap(horner(x.machine, r.v, exp_tail(x.dtype))), r)
    half = times_power_of_two(x.constant(0.5), bits)
    grown = fma(half, rise, half - 0.5)
    return where(abs(x) < (2.0**-54 if x.is_double else 2.0**-25), x, grown + grown)


def sinh(x: Register) -> Register:
    size = abs(x)
    e = expm1(size)
    near = 0.5 * (e + e / (e + 1.0))
    return copy_sign(where(size < _exp_end(x), near, _half_exp(size)), x)


def cosh(x: Register) -> Register:
    size = abs(x)
    e = exp(size)
    return where(size < _exp_end(x), 0.5 * e + 0.5 / e, _half_exp(size))


def _exp_end(x: Register) -> float:
    return 709.0 if x.is_double else 88.0


def _half_exp(x: Register) -> Register:
    """e^x / 2, also where e^x overflows."""
    root = exp(0.5 * x)
    return (0.5 * root) * root


def asinh(x: Register) -> Register:
    size = abs(x)
    square = size * size
    near = log1p(size + square / (1.0 + sqrt(1.0 + square)))
    return copy_sign(where(size < LARGE[x.dtype], near, log(size) + math.log(2)), x)


def acosh(x: Register) -> Register:
    above = x - 1.0
    near = log1p(above + sqrt(above * (above + 2.0)))
    result = where(x < LARGE[x.dtype], near, log(x) + math.log(2))
    return where(x >= 1.0, result, NAN)


def atanh(x: Register) -> Register:
    size = abs(x)
    return copy_sign(0.5 * log1p((size + size) / (1.0 - size)), x)


def tanh(x: Register) -> Register:
    from gristmill.language import polynomials

    return x.wrap(polynomials.tanh(x.machine, x.v, polynomials.exp))


def power(x: Register, y: Register) -> Register:
    """x^y with the special values of C's `pow` (C17, F.10.4.4)."""
    size = abs(x)
    high, low = log_pair(size)
    p, p_low = two_product(high, y)
    p_low = where(abs(p) < 2000.0, p_low + low * y, 0.0)
    result = exp_pair(p, p_low)
    is_rising = y > 0.0
    result = where(size.equals(0.0), where(is_rising, x.constant(0.0), INFINITY), result)
    result = where(size.equals(INFINITY), where(is_rising, x.constant(INFINITY), 0.0), result)
    result = where(size.equals(1.0), 1.0, result)
    half = 0.5 * y
    is_whole = floor(y).equals(y)
    is_odd = is_whole & floor(half).differs(half)
    result = where(is_odd & has_sign(x), -result, result)
    is_missing = (x < 0.0) & (size < INFINITY) & floor(y).differs(y)
    result = where(is_missing | x.is_nan() | y.is_nan(), NAN, result)
    return where(y.equals(0.0) | x.equals(1.0), 1.0, result)
