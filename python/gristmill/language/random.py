"""Random numbers by counting: Philox (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).

The same seed and offset give the same number in every kernel, on every machine, and in Triton.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Value
from gristmill.compiler.op import composite, op
from gristmill.errors import KernelError
from gristmill.language.elementwise import maximum, where
from gristmill.language.functions import check_int, cos, sin
from gristmill.language.iterate import static_range
from gristmill.language.mathematics import log, sqrt
from gristmill.language.types import as_value, constant, is_number
from gristmill.language.words import UNSIGNED, umulhi, with_dtype

ROUNDS = 10  # that all published test vectors of Philox4x32 are given for
# The width's multipliers, and by how much the two words of the key grow with each round.
MULTIPLIERS = {32: (0xD2511F53, 0xCD9E8D57), 64: (0xD2E7470EE14C6C93, 0xCA5A826395121157)}
STEPS = {32: (0x9E3779B9, 0xBB67AE85), 64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)}


@op("internal")
def random_integers(x: Any, what: str, role: str) -> Value:
    """x as a tile of integers, which the function called `what` needs as its `role`."""
    x = as_value(x, f"{what}()")
    if not x.type.dtype.is_int:
        fix = "use integers, or the bits of a float, as in `x.to(tl.int32, bitcast=True)`"
        raise KernelError(f"{what}(): needs integers as {role}, got {x.type}", fix=fix)
    return x


@op("internal")
def random_words(x: Any, like: Any, what: str) -> Value:
    """x as unsigned words of the width of `like`, 32 or 64 bits, which the function called `what` needs."""
    bits = check_int(like, what).type.dtype.bits
    if is_number(x):
        return constant(int(x) & ((1 << bits) - 1), UNSIGNED[bits])
    return with_dtype(check_int(x, what, (bits,)), UNSIGNED[bits])


@composite("random")
def philox_impl(c0, c1, c2, c3, k0, k1, n_rounds=10):  # type: ignore[no-untyped-def]
    """Four random words for the counter c0 ... c3 and the key k0, k1, all of 32 bits (Philox4x32) or 64 (Philox4x64).

    Their bits are taken as unsigned, and the results are u32 or u64.
    """
    c0 = random_words(c0, c0, "philox_impl")
    c1, c2, c3 = (
        random_words(c1, c0, "philox_impl"),
        random_words(c2, c0, "philox_impl"),
        random_words(c3, c0, "philox_impl"),
    )
    k0, k1 = random_words(k0, c0, "philox_impl"), random_words(k1, c0, "philox_impl")
    for _ in static_range(n_rounds):
        old0, old2 = c0, c2
        c0 = umulhi(old2, MULTIPLIERS[c1.dtype.bits][1]) ^ c1 ^ k0
        c2 = umulhi(old0, MULTIPLIERS[c1.dtype.bits][0]) ^ c3 ^ k1
        c1 = old2 * MULTIPLIERS[c1.dtype.bits][1]
        c3 = old0 * MULTIPLIERS[c1.dtype.bits][0]
        k0 = k0 + STEPS[c1.dtype.bits][0]
        k1 = k1 + STEPS[c1.dtype.bits][1]
    return c0, c1, c2, c3


@composite("random")
def philox(seed, c0, c1, c2, c3, n_rounds=10):  # type: ignore[no-untyped-def]
    """Four random words for the counter c0 ... c3, integers of 32 or 64 bits, and an integer seed of up to 64 bits.

    With words of 32 bits the seed's lower half is the first word of the key and its upper half the second; with words
    of 64 bits the seed is the first word, and the second is 0. The width of `tl.arange` and `tl.program_id` follows
    the arrays': cast counters that are made of them, as in `c0.to(tl.uint32)`; `rand` and `randint4x` need no cast.
    """
    seed = random_integers(seed, "philox", "the seed").to(dt.u64)
    c0 = random_words(c0, c0, "philox")
    c1, c2, c3 = random_words(c1, c0, "philox"), random_words(c2, c0, "philox"), random_words(c3, c0, "philox")
    if c0.dtype == dt.u32:
        return philox_impl(c0, c1, c2, c3, seed.to(dt.u32), (seed >> 32).to(dt.u32), n_rounds)
    return philox_impl(c0, c1, c2, c3, seed, 0, n_rounds)


@composite("random")
def randint4x(seed, offset, n_rounds=10):  # type: ignore[no-untyped-def]
    """Four blocks of random u32, for an integer seed and a block of integer offsets of up to 64 bits."""
    offset = random_integers(offset, "randint4x", "offsets")
    low = offset.to(dt.u32)
    zero = low * 0
    high = (offset >> 32).to(dt.u32) if offset.dtype.bits > 32 else zero
    return philox(seed, low, high, zero, zero, n_rounds)


@composite("random")
def randint(seed, offset, n_rounds=10):  # type: ignore[no-untyped-def]
    """A block of random u32, for an integer seed and a block of integer offsets.

    `randint4x` gives four for the same work.
    """
    return randint4x(seed, offset, n_rounds)[0]


@composite("random")
def uint_to_uniform_float(x):  # type: ignore[no-untyped-def]
    """Random integers of 32 or 64 bits as f32 in [0, 1): taken as signed, negative ones mirrored, and scaled."""
    x = random_words(x, x, "uint_to_uniform_float")
    if x.dtype.bits == 32:
        x = x.to(dt.i32, bitcast=True)
        return where(x < 0, -x - 1, x) * 4.6566127342e-10
    x = x.to(dt.i64, bitcast=True)
    return where(x < 0, -x - 1, x) * 1.0842020432385337e-19


@uint_to_uniform_float.reference
def _(x: Any) -> Any:
    bits = 8 * x.dtype.itemsize
    signed = x.view(f"i{bits // 8}")
    scale = np.float32(4.6566127342e-10 if bits == 32 else 1.0842020432385337e-19)
    return np.where(signed < 0, ~signed, signed).astype(np.float32) * scale


@composite("random")
def rand(seed, offset, n_rounds=10):  # type: ignore[no-untyped-def]
    """A block of random f32, uniform in [0, 1), for an integer seed and a block of integer offsets."""
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


@composite("random")
def rand4x(seed, offsets, n_rounds=10):  # type: ignore[no-untyped-def]
    """Four blocks of random f32, uniform in [0, 1), for an integer seed and a block of integer offsets."""
    a, b, c, d = randint4x(seed, offsets, n_rounds)
    return uint_to_uniform_float(a), uint_to_uniform_float(b), uint_to_uniform_float(c), uint_to_uniform_float(d)


@composite("random")
def pair_uniform_to_normal(u1, u2):  # type: ignore[no-untyped-def]
    """Two independent normal numbers from two uniform ones (Box and Muller, 1958); u1 is raised to 1e-7."""
    angle = 6.283185307179586 * u2
    radius = sqrt(-2.0 * log(maximum(1.0e-7, u1)))
    return radius * cos(angle), radius * sin(angle)


@composite("random")
def randn(seed, offset, n_rounds=10):  # type: ignore[no-untyped-def]
    """A block of random f32 from the standard normal distribution, for an integer seed and a block of offsets."""
    words = randint4x(seed, offset, n_rounds)
    return pair_uniform_to_normal(uint_to_uniform_float(words[0]), uint_to_uniform_float(words[1]))[0]


@composite("random")
def randn4x(seed, offset, n_rounds=10):  # type: ignore[no-untyped-def]
    """Four blocks of random f32 from the standard normal distribution."""
    a, b, c, d = rand4x(seed, offset, n_rounds)
    first, second = pair_uniform_to_normal(a, b)
    third, fourth = pair_uniform_to_normal(c, d)
    return first, second, third, fourth
