"""Random numbers: Philox word for word, and what is made of its words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gristmill import dtypes as dt
from machines import array, compute, on_each_machine
from test_public_cases import PUBLIC

PI32 = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
PI64 = (
    (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
    (0x452821E638D01377, 0xBE5466CF34E90C6C),
)
ONES = {32: (((1 << 32) - 1,) * 4, ((1 << 32) - 1,) * 2), 64: (((1 << 64) - 1,) * 4, ((1 << 64) - 1,) * 2)}
ZEROS = (0,) * 4, (0,) * 2
# Known answers that are published with Random123 (kat_vectors), for 10 rounds: width, (counter, key), words.
KNOWN = [
    (32, ZEROS, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (32, ONES[32], (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (32, PI32, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    (64, ZEROS, (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)),
    (64, ONES[64], (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0)),
    (64, PI64, (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6)),
]
SEEDS = [0, 1, 1234, 2**31 - 1, 2**32 + 7, 0x123456789ABCDEF0, 2**64 - 1]
OFFSETS = np.array([0, 1, 2, 3, 2**31 - 1, 17, 1000003, 2**30], np.int32)
WIDE_OFFSETS = np.array([0, 1, 2**31 - 1, 2**31, 2**31 + 5, 2**32 - 1, 2**32 + 5, 2**62 + 3], np.int64)


def four(run, call: str, dtype: dt.Dtype, *, size: int | None = None, **inputs: np.ndarray) -> np.ndarray:
    """The four results of a call, one a row."""
    body = f"a, b, c, d = {call}"
    return np.stack([compute(run, name, dtype, body=body, size=size, **inputs) for name in "abcd"])


def philox(seed: int, offsets: np.ndarray, rounds: int = 10) -> np.ndarray:
    """Philox4x32 in numpy, the counter being the offset: four rows of u32."""
    low, high = (np.asarray(offsets.astype(np.int64) >> s).astype(np.uint64) & 0xFFFFFFFF for s in (0, 32))
    if offsets.itemsize == 4:
        high = np.zeros_like(low)
    c = [low, high, np.zeros_like(low), np.zeros_like(low)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(rounds):
        p, q = (c[i] * np.uint64(m) for i, m in ((0, 0xD2511F53), (2, 0xCD9E8D57)))
        mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        c = [(q >> shift) ^ c[1] ^ np.uint64(k0), q & mask, (p >> shift) ^ c[3] ^ np.uint64(k1), p & mask]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c).astype(np.uint32)


def uniform(words: np.ndarray) -> np.ndarray:
    """What Triton makes of words: mirrored at zero, converted to f32, scaled in f32."""
    signed = words.view(np.int32)
    return np.where(signed < 0, -1 - signed.astype(np.int64), signed).astype(np.float32) * np.float32(4.6566127342e-10)


# ---- words ---------------------------------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize(("bits", "start", "words"), KNOWN)
def test_known_answers(run, bits, start, words):
    (counter, key), dtype = start, dt.u32 if bits == 32 else dt.u64
    inputs = {f"c{i}": np.full(2, c, f"u{bits // 8}") for i, c in enumerate(counter)}
    inputs |= {f"k{i}": np.full(2, k, f"u{bits // 8}") for i, k in enumerate(key)}
    got = four(run, "tl.philox_impl(c0, c1, c2, c3, k0, k1)", dtype, **inputs)
    assert got[:, 0].tolist() == got[:, 1].tolist() == list(words)


def test_the_independent_implementations_agree():
    for seed in SEEDS:
        words = philox(seed, WIDE_OFFSETS)
        for i, offset in enumerate(WIDE_OFFSETS.tolist()):
            counter = (offset & 0xFFFFFFFF, offset >> 32, 0, 0)
            assert words[:, i].tolist() == PUBLIC.philox4x32((seed & 0xFFFFFFFF, seed >> 32), counter)


@on_each_machine
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("offsets", [OFFSETS, WIDE_OFFSETS], ids=["i32", "i64"])
def test_words_of_a_seed_and_offsets(run, seed, offsets):
    got = four(run, f"tl.randint4x({seed}, x)", dt.u32, x=offsets)
    np.testing.assert_array_equal(got, philox(seed, offsets))
    np.testing.assert_array_equal(compute(run, f"tl.randint({seed}, x)", dt.u32, x=offsets), got[0])


@on_each_machine
def test_wide_offsets_do_not_repeat_those_of_32_bits(run):
    x = np.array([5, 2**32 + 5, 2**33 + 5, -1], np.int64)
    assert len(set(compute(run, "tl.randint(1, x)", dt.u32, x=x).tolist())) == 4
    narrow = compute(run, "tl.randint(1, x)", dt.u32, x=np.array([5, -1], np.int32))
    assert narrow.tolist() == philox(1, np.array([5, 2**32 - 1], np.int64))[0].tolist()


@on_each_machine
def test_negative_seed_is_extended_to_64_bits(run):
    got = compute(run, "tl.randint(s, x)", dt.u32, s=-2, x=OFFSETS)
    np.testing.assert_array_equal(got, philox(2**64 - 2, OFFSETS)[0])
    np.testing.assert_array_equal(compute(run, "tl.randint(-2, x)", dt.u32, x=OFFSETS), got)


@on_each_machine
@pytest.mark.parametrize("rounds", [1, 6, 7])
def test_fewer_rounds(run, rounds):
    got = four(run, f"tl.randint4x(99, x, n_rounds={rounds})", dt.u32, x=OFFSETS)
    np.testing.assert_array_equal(got, philox(99, OFFSETS, rounds))


@on_each_machine
def test_philox_takes_counters_of_32_and_64_bits(run):
    got = four(run, "tl.philox(0x299F31D0A4093822, x, 0x85A308D3, 0x13198A2E, 0x03707344)", dt.u32,
               x=np.full(2, 0x243F6A88, np.int32))  # fmt: skip
    assert got[:, 0].tolist() == list(KNOWN[2][2])
    got = four(run, "tl.philox(0, x, 0, 0, 0)", dt.u64, x=np.zeros(2, np.int64))
    assert got[:, 0].tolist() == list(KNOWN[3][2])


# ---- uniform and normal --------------------------------------------------------------------------------------------


@on_each_machine
def test_words_become_floats_below_one(run):
    words = array("u32", 0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**31 + 1, 12345, 2**32 - 64)
    got = compute(run, "tl.uint_to_uniform_float(x)", dt.f32, x=words)
    np.testing.assert_array_equal(got, uniform(words))
    assert got.max() < 1
    assert got.min() == 0
    np.testing.assert_array_equal(compute(run, "tl.uint_to_uniform_float(x)", dt.f32, x=words.view(np.int32)), got)
    wide = np.array([0, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    got = compute(run, "tl.uint_to_uniform_float(x)", dt.f32, x=wide)
    assert got.tolist() == [0, got[1], got[1], 0]
    assert 0.999 < got[1] < 1


@on_each_machine
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_rand_is_bit_for_bit_what_its_words_give(run, seed):
    want = uniform(philox(seed, WIDE_OFFSETS))
    np.testing.assert_array_equal(four(run, f"tl.rand4x({seed}, x)", dt.f32, x=WIDE_OFFSETS), want)
    np.testing.assert_array_equal(compute(run, f"tl.rand({seed}, x)", dt.f32, x=WIDE_OFFSETS), want[0])


def normal(u1: np.ndarray, u2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    radius = np.sqrt(-2 * np.log(np.maximum(u1.astype(np.float64), np.float32(1e-7))))
    angle = (np.float32(2 * math.pi) * u2).astype(np.float64)
    return radius * np.cos(angle), radius * np.sin(angle)


@on_each_machine
def test_randn_is_box_muller_of_the_words(run):
    x = np.arange(1024, dtype=np.int32)
    u = uniform(philox(42, x))
    want = np.stack([*normal(u[0], u[1]), *normal(u[2], u[3])])
    np.testing.assert_allclose(four(run, "tl.randn4x(42, x)", dt.f32, x=x), want, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(compute(run, "tl.randn(42, x)", dt.f32, x=x), want[0], rtol=1e-6, atol=1e-6)


@on_each_machine
def test_normal_numbers_of_zero_are_finite(run):
    u1, u2 = array("f32", 0, 0, 1e-9, 0.5), array("f32", 0, 0.25, 0.5, 0.75)
    body = "a, b = tl.pair_uniform_to_normal(u1, u2)"
    for name, want in zip("ab", normal(u1, u2), strict=True):
        got = compute(run, name, dt.f32, body=body, u1=u1, u2=u2)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@on_each_machine
def test_numbers_have_the_moments_of_their_distribution(run):
    x = np.arange(1 << 15, dtype=np.int32)
    n = compute(run, "tl.randn(7, x)", dt.f32, x=x).astype(np.float64)
    u = compute(run, "tl.rand(7, x)", dt.f32, x=x).astype(np.float64)
    error = 5 / math.sqrt(x.size)  # five standard deviations of a mean
    assert abs(n.mean()) < error
    assert abs((n**2).mean() - 1) < error * math.sqrt(2)
    assert abs((n**4).mean() - 3) < error * math.sqrt(96)
    assert abs(u.mean() - 0.5) < error * math.sqrt(1 / 12)
    counts = np.histogram(u, 64, (0, 1))[0] / (x.size / 64) - 1
    assert (counts**2).sum() * x.size / 64 < 63 + 5 * math.sqrt(126)  # chi squared


@on_each_machine
def test_neighbouring_programs_and_elements_draw_different_numbers(run):
    x = np.arange(1 << 12, dtype=np.int32)
    seen = [compute(run, f"tl.randint({seed}, x)", dt.u32, x=x) for seed in (1, 2)]
    assert len(set(np.concatenate(seen).tolist())) > 2 * x.size - 4
