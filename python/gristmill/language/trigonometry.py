"""Sine and its relatives: reduction of any argument by quarter turns, then polynomials."""

from __future__ import annotations

from gristmill import dtypes as dt
from gristmill.dtypes import Dtype
from gristmill.language import coefficients
from gristmill.language.registers import (
    INFINITY,
    NAN,
    Register,
    copy_sign,
    fma,
    has_sign,
    largest,
    nearest_integer,
    polynomial,
    quick_two_sum,
    smallest,
    sqrt,
    two_product,
    two_sum,
    where,
)

# pi/2 in three pieces.
QUARTER: dict[Dtype, tuple[float, float, float]] = {
    dt.f32: (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    dt.f64: (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
# Up to here n pi/2 subtracted in three pieces keeps more bits than an ulp has.
NEAR = {dt.f32: 2.0**15, dt.f64: 2.0**30}
# The first 1216 bits of 2/pi.
TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73e"
    "e88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b7"
    "4f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6bab",
    16,
)  # fmt: skip


def quarters(x: Register) -> tuple[Register, Register, Register]:
    """x = q pi/2 + r: r as a pair within pi/4, and q modulo 4 as an integer."""
    m = x.machine
    near = _near_quarters(x)
    is_far = abs(x) >= NEAR[x.dtype]
    found = m.rarely(is_far.v, [r.v for r in near], lambda: [r.v for r in _far_quarters(x)])
    high, low, q = (x.wrap(v) for v in found)
    is_small = abs(x) < 0.5
    return where(is_small, x, high), where(is_small, 0.0, low), q


def _near_quarters(x: Register) -> tuple[Register, Register, Register]:
    first, second, third = QUARTER[x.dtype]
    n, q = nearest_integer(x, 2 / 3.141592653589793)
    rest = fma(-n, first, x)  # exact: both are multiples of an ulp of pi/2, and close
    product, lost = two_product(n, second)
    high, low = two_sum(rest, -product)
    return (*quick_two_sum(high, low - lost - n * third), q)


def _far_quarters(x: Register) -> tuple[Register, Register, Register]:
    """By the bits of 2/pi that matter: those before give whole turns (Payne and Hanek, 1983)."""
    kind, mantissa, bias = (dt.u64, 52, 1023) if x.is_double else (dt.u32, 23, 127)
    signed, width = (dt.i64, 64) if x.is_double else (dt.i32, 32)
    word = abs(x).bits()
    number = (word & ((1 << mantissa) - 1)) | (1 << mantissa)
    place = (word >> mantissa) + (width - 2 - bias - mantissa) % (1 << width)
    first, second, third = _bits_at(place, width)
    low = number.multiply_high(third)
    middle = number * second + low
    carry = (middle < low).to(kind)
    top = number * first + number.multiply_high(second) + carry
    q = (top + (1 << (width - 3))) >> (width - 2)
    turn = (top - (q << (width - 2))).as_bits(signed)
    high = turn.to(x.dtype)
    rest = (turn - high.to(signed)).to(x.dtype) + middle.to(x.dtype) * 2.0**-width
    high, rest = quick_two_sum(high, rest)
    scale = 2.0 ** (2 - width)
    one, two, _ = (c * scale for c in QUARTER[x.dtype])
    product, lost = two_product(high, one)
    high, rest = quick_two_sum(product, fma(high, two, lost) + rest * one)
    q = q.as_bits(signed)
    is_negative = x < 0.0
    return where(is_negative, -high, high), where(is_negative, -rest, rest), where(is_negative, -q, q)


def _bits_at(place: Register, width: int) -> list[Register]:
    """Three words of 2/pi from bit `place` on, counted from `width` bits before its point."""
    count = 20 if width == 64 else 8
    total = TWO_OVER_PI >> (1216 - width * (count - 1))
    every = [total >> (width * (count - 1 - i)) & ((1 << width) - 1) for i in range(count)]
    words = [place.constant(w) for w in every]
    index = place >> (width.bit_length() - 1)
    for bit in reversed(range((count - 4).bit_length())):
        step = 1 << bit
        is_set = (index & step).differs(0)
        needed = min(len(words), 3 + step)
        words = [where(is_set, words[min(i + step, len(words) - 1)], words[i]) for i in range(needed)]
    shift = place & (width - 1)
    back = (width - 1) - shift
    return [(words[i] << shift) | ((words[i + 1] >> 1) >> back) for i in range(3)]


def _sine(high: Register, low: Register) -> Register:
    z = high * high
    return high + fma(high * z, polynomial(z, coefficients.SIN), low * (1.0 - 0.5 * z))


def _cosine(high: Register, low: Register) -> Register:
    z = high * high
    half = 0.5 * z
    near = 1.0 - half
    return near + (((1.0 - near) - half) + (z * z * polynomial(z, coefficients.COS) - high * low))


def _finite(x: Register, result: Register) -> Register:
    return where(abs(x) < INFINITY, result, NAN)


def _odd(x: Register, result: Register) -> Register:
    """Of zero, itself with its sign."""
    return where(x.equals(0.0), x, _finite(x, result))


def sin(x: Register) -> Register:
    high, low, q = quarters(x)
    result = where((q & 1).differs(0), _cosine(high, low), _sine(high, low))
    return _odd(x, where((q & 2).differs(0), -result, result))


def cos(x: Register) -> Register:
    high, low, q = quarters(x)
    result = where((q & 1).differs(0), _sine(high, low), _cosine(high, low))
    return _finite(x, where(((q + 1) & 2).differs(0), -result, result))


def tan(x: Register) -> Register:
    high, low, q = quarters(x)
    is_odd = (q & 1).differs(0)
    s, c = _sine(high, low), _cosine(high, low)
    return _odd(x, where(is_odd, c, s) / where(is_odd, -s, c))


def _arc(x: Register) -> Register:
    """atan x for x from 0 to 1."""
    z = x * x
    return x + x * z * polynomial(z, coefficients.ATAN)


def _minus(x: Register, high: float, low: float, rest: Register | float = 0.0) -> Register:
    """high + low - x - rest."""
    total, lost = two_sum(x.constant(high), -x)
    return total + ((lost + low) - rest)


def atan(x: Register) -> Register:
    size = abs(x)
    is_large = size > 1.0
    near = _arc(where(is_large, 1.0 / size, size))
    return copy_sign(where(is_large, _minus(near, *QUARTER[x.dtype][:2]), near), x)


def atan2(y: Register, x: Register) -> Register:
    across, up = abs(x), abs(y)
    large, small = largest(across, up), smallest(across, up)
    ratio = where(large.equals(small), 1.0, small / large)
    result = _arc(where(large.equals(0.0), 0.0, ratio))
    high, low, _ = QUARTER[x.dtype]
    result = where(up > across, _minus(result, high, low), result)
    result = where(has_sign(x), _minus(result, 2 * high, 2 * low), result)
    return copy_sign(result, y)


def _arc_parts(x: Register) -> tuple[Register, Register, Register]:
    """Whether |x| > 1/2; then asin sqrt((1 - |x|) / 2), else asin |x|, as a large and a small part."""
    size = abs(x)
    is_large = size > 0.5
    z = where(is_large, (1.0 - size) * 0.5, size * size)
    root = sqrt(z)
    lost = where(z > 0.0, fma(-root, root, z) / (root + root), 0.0)
    s = where(is_large, root, size)
    small = s * z * polynomial(z, coefficients.ASIN) + where(is_large, lost, 0.0)
    return is_large, s, small


def asin(x: Register) -> Register:
    is_large, s, small = _arc_parts(x)
    far = _minus(s + s, *QUARTER[x.dtype][:2], small + small)
    return copy_sign(where(is_large, far, s + small), x)


def acos(x: Register) -> Register:
    is_large, s, small = _arc_parts(x)
    high, low, _ = QUARTER[x.dtype]
    size, rest = where(is_large, s + s, s), where(is_large, small + small, small)
    is_negative = x < 0.0
    near = _minus(copy_sign(size, x), high, low, where(is_negative, -rest, rest))
    far = where(is_negative, _minus(size, 2 * high, 2 * low, rest), size + rest)
    return where(is_large | x.is_nan(), far, near)


def sine_of_half_turns(x: Register) -> Register:
    """sin(pi x) for x from 0 to 1/2."""
    is_large = x > 0.25
    rest = where(is_large, 0.5 - x, x)
    high, low, _ = QUARTER[x.dtype]
    product, lost = two_product(rest, 2 * high)
    angle, error = quick_two_sum(product, lost + rest * (2 * low))
    return where(is_large, _cosine(angle, error), _sine(angle, error))
