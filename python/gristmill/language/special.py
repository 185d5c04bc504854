"""Error and gamma functions, roots, and the remainder of a division."""

from __future__ import annotations

import math

from gristmill import dtypes as dt
from gristmill.language import coefficients
from gristmill.language.exponentials import exp_pair, log_pair
from gristmill.language.polynomials import LN2
from gristmill.language.registers import (
    INFINITY,
    NAN,
    Register,
    copy_sign,
    exp,
    floor,
    fma,
    largest,
    log,
    polynomial,
    quick_two_sum,
    smallest,
    sqrt,
    times_power_of_two,
    two_product,
    two_sum,
    where,
)
from gristmill.language.trigonometry import sine_of_half_turns

HALF_LN_2PI = {
    dt.f32: (0.9189385175704956, 1.563417661998301e-08),
    dt.f64: (0.9189385332046728, -3.8782941580672414e-17),
}


def _erf_small(x: Register) -> Register:
    return fma(x, polynomial(x * x, coefficients.ERF), x)


def _erfc_large(x: Register) -> Register:
    """erfc x for x from 0.48 on: e^(-x^2) by a pair, the rest varies slowly."""
    x = smallest(x, 27.3 if x.is_double else 10.3)
    factor = polynomial((x - 4.0) / (x + 4.0), coefficients.ERFC) / (1.0 + 2.0 * x)
    square, low = two_product(x, x)
    return exp_pair(-square, -low) * factor


def erf(x: Register) -> Register:
    size = abs(x)
    return copy_sign(where(size < 1.0, _erf_small(size), 1.0 - _erfc_large(largest(size, 1.0))), x)


def erfc(x: Register) -> Register:
    size = abs(x)
    far = _erfc_large(largest(size, 0.5))
    far = where(x < 0.0, 2.0 - far, far)
    return where(size < 0.5, 1.0 - _erf_small(x), far)


def erfinv(x: Register) -> Register:
    size = abs(x)
    w = -log((1.0 - size) * (1.0 + size))
    root = sqrt(largest(w, 0.0))
    near, middle = polynomial(w - 2.5, coefficients.ERFINV), polynomial(root - 3.0, coefficients.ERFINV_MIDDLE)
    result = where(w < 5.0, near, middle)
    if x.is_double:
        result = where(root > 4.0, polynomial(root - 5.0, coefficients.ERFINV_FAR), result)
    return copy_sign(where(size.equals(1.0), INFINITY, size * result), x)


def _sine_of(size: Register) -> Register:
    """|sin(pi x)|."""
    rest = size - floor(size)
    return sine_of_half_turns(where(rest > 0.5, 1.0 - rest, rest))


def _shifted(size: Register) -> tuple[Register, Register]:
    """y in [1.5, 2.5) and p with gamma(x) = p gamma(y), for x from 1.5 to 8."""
    steps = floor(size - 1.5)
    factor = size.constant(1.0)
    for i in range(1, 7):
        factor = where(steps >= float(i), factor * (size - float(i)), factor)
    return size - steps, factor


def _lgamma_positive(size: Register) -> Register:
    """ln gamma x for x >= 0."""
    y, factor = _shifted(smallest(largest(size, 1.5), 8.0))
    logarithm = log(where((size >= 1.5) & (size < 8.0), factor, size))
    above = size - 1.0
    near_one = above * polynomial(above, coefficients.LGAMMA1)
    near_two = (y - 2.0) * polynomial(y - 2.0, coefficients.LGAMMA2) + logarithm
    near_zero = size * polynomial(size, coefficients.LGAMMA1) - logarithm
    inverse = 1.0 / size
    tail = inverse * polynomial(inverse * inverse, coefficients.STIRLING)
    far = (size - 0.5) * (logarithm - 1.0) + (tail + (HALF_LN_2PI[size.dtype][0] - 0.5))
    small = where(size < 0.5, near_zero, where(size < 1.5, near_one, near_two))
    return where(size < 8.0, small, where(size < INFINITY, far, size))


def lgamma(x: Register) -> Register:
    size = abs(x)
    positive = _lgamma_positive(size)
    sine = _sine_of(size)
    reflected = (math.log(math.pi) - log(sine * size)) - positive
    reflected = where(sine.equals(0.0) | size.equals(INFINITY), INFINITY, reflected)
    tiny = 2.0**-60 if x.is_double else 2.0**-30
    return where((x < 0.0) & (size >= tiny), reflected, positive)


def _stirling(size: Register, is_negative: Register) -> Register:
    """gamma x for x >= 8, or its reciprocal times 2^64, so that it is not denormal yet."""
    size = smallest(size, 200.0 if size.is_double else 45.0)
    high, low = log_pair(size)
    before = size - 0.5
    p, p_low = two_product(before, high)
    p_low = p_low + before * low
    total, lost = two_sum(p, -size)
    first, second = HALF_LN_2PI[size.dtype]
    total, more = two_sum(total, first)
    inverse = 1.0 / size
    tail = inverse * polynomial(inverse * inverse, coefficients.STIRLING)
    total, rest = quick_two_sum(total, lost + more + p_low + second + tail)
    lift, lift_low = (64 * c for c in LN2[size.dtype])
    lifted, lost = two_sum(size.constant(lift), -total)
    return exp_pair(where(is_negative, lifted, total), where(is_negative, (lost + lift_low) - rest, rest))


def tgamma(x: Register) -> Register:
    size, is_negative = abs(x), x < 0.0
    large = _stirling(largest(size, 8.0), is_negative)
    y, factor = _shifted(smallest(largest(size, 1.5), 8.0))
    is_low = size < 1.5
    offset = where(is_low, where(size < 0.5, size, size - 1.0), y - 2.0)
    small = exp(offset * polynomial(offset, coefficients.LGAMMA2))
    below = small / where(size < 0.5, size * (size + 1.0), size)
    small = where(is_low, below, small * factor)
    sine = _sine_of(size)
    turn = math.pi / (size * sine)
    is_small = size < 8.0
    reflected = where(is_small, turn / small, turn * large * 2.0**-64)
    half = 0.5 * floor(size)
    reflected = where(floor(half).equals(half), -reflected, reflected)
    result = where(is_negative, reflected, where(is_small, small, large))
    result = where(is_negative & sine.equals(0.0), NAN, result)
    result = where(x.equals(0.0), 1.0 / x, result)
    result = where(is_negative & (size < 2.0**-60), 1.0 / x, result)
    return where(size.equals(INFINITY), where(is_negative, x.constant(NAN), INFINITY), result)


def cbrt(x: Register) -> Register:
    """Two steps of Halley from a third of the exponent, then one of Newton with an exact residue."""
    size = abs(x)
    grown, root, end = (2.0**54, 2.0**18, 2.0**1000) if x.is_double else (2.0**24, 2.0**8, 2.0**120)
    is_tiny, is_huge = size < 1 / end, size > end
    a = where(is_tiny, size * grown, where(is_huge, size * (1 / grown), size))
    magic = 715094163 << 32 if x.is_double else 709958130
    y = (a.bits() // 3 + magic).as_bits(x.dtype)
    for _ in range(2):
        cube = y * y * y
        y = y * ((cube + (a + a)) / (cube + cube + a))
    square, square_low = two_product(y, y)
    cube, cube_low = two_product(square, y)
    residue = (cube - a) + (cube_low + square_low * y)
    y = y - residue / (3.0 * square)
    y = where(is_tiny, y * (1 / root), where(is_huge, y * root, y))
    is_plain = (size > 0.0) & (size < INFINITY)
    return copy_sign(where(is_plain, y, size), x)


def hypot(x: Register, y: Register) -> Register:
    """The squares as pairs, of numbers scaled so that they neither overflow nor vanish."""
    a, b = abs(x), abs(y)
    large, small = largest(a, b), smallest(a, b)
    reach = 2.0**500 if x.is_double else 2.0**60
    shrink, grow = (2.0**-600, 2.0**600) if x.is_double else (2.0**-80, 2.0**80)
    is_huge, is_tiny = large > reach, large < 1 / reach
    factor = where(is_huge, x.constant(shrink), where(is_tiny, x.constant(grow), 1.0))
    back = where(is_huge, x.constant(grow), where(is_tiny, x.constant(shrink), 1.0))
    p, p_low = two_product(large * factor, large * factor)
    q, q_low = two_product(small * factor, small * factor)
    total, lost = quick_two_sum(p, q)
    root = sqrt(total)
    rest = fma(-root, root, total) + (lost + (p_low + q_low))
    result = (root + where(root > 0.0, rest / (root + root), 0.0)) * back
    return where(a.equals(INFINITY) | b.equals(INFINITY), INFINITY, result)


def _multiply_modulo(a: Register, b: Register, m: Register, inverse: Register) -> Register:
    """a b mod m of integers below 2^24 or 2^53: the low bits of a b - q m, where q is off by little."""
    kind = inverse.dtype
    signed = dt.i64 if kind == dt.f64 else dt.i32
    q = floor(a.to(kind) * b.to(kind) * inverse).to(a.dtype)
    rest = (a * b - q * m).as_bits(signed)
    signed_m = m.as_bits(signed)
    for _ in range(4):
        rest = where(rest < 0, rest + signed_m, rest)
    for _ in range(4):
        rest = where(rest < signed_m, rest, rest - signed_m)
    return rest.as_bits(a.dtype)


def _integer_parts(x: Register) -> tuple[Register, Register]:
    """|x| = number 2^(exponent - bias - mantissa), both unsigned."""
    mantissa = 52 if x.is_double else 23
    word = abs(x).bits()
    exponent, fraction = word >> mantissa, word & ((1 << mantissa) - 1)
    is_normal = exponent.differs(0)
    return where(is_normal, fraction | (1 << mantissa), fraction), where(is_normal, exponent, 1)


def fmod(x: Register, y: Register) -> Register:
    """Exact: while x / y is a small integer its product is subtracted, else by powers of two modulo y."""
    size, divisor = abs(x), abs(y)
    ratio = size / divisor
    q = floor(ratio)  # not below the quotient: division is rounded to nearest
    rest = fma(-q, divisor, size)
    near = where(rest < 0.0, rest + divisor, rest)
    near = where(size < divisor, size, near)
    is_far = ratio >= (2.0**52 if x.is_double else 2.0**23)
    (found,) = x.machine.rarely(is_far.v, [near.v], lambda: [_far_remainder(size, divisor).v])
    return where((size < INFINITY) & (divisor > 0.0), copy_sign(x.wrap(found), x), NAN)


def _far_remainder(size: Register, divisor: Register) -> Register:
    """x = a 2^k in units of y = b, by powers of 2 modulo b; x >= y > 0."""
    mantissa, bias, signed = (52, 1023, dt.i64) if size.is_double else (23, 127, dt.i32)
    a, a_exponent = _integer_parts(size)
    b, b_exponent = _integer_parts(divisor)
    b, k = where(b.equals(0), 1, b), a_exponent - b_exponent
    inverse = 1.0 / b.to(size.dtype)
    one = b.constant(1)
    power = where(b.equals(1), 0, one)
    for bit in reversed(range(11 if size.is_double else 8)):
        power = _multiply_modulo(power, power, b, inverse)
        twice = power + power
        twice = where(twice < b, twice, twice - b)
        power = where((k & (1 << bit)).differs(0), twice, power)
    first = _multiply_modulo(a, one, b, inverse)
    rest = _multiply_modulo(first, power, b, inverse)
    return times_power_of_two(rest.to(size.dtype), b_exponent.as_bits(signed) - (bias + mantissa))
