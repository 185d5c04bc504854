"""Operations on the bits of integers, against Python's own integers."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.dtypes import dt_numpy
from machines import compute, on_each_machine

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import strategies as st  # noqa: E402

WIDTHS = {"i32": 32, "u32": 32, "i64": 64, "u64": 64}
SIZE = 16


def words(dtype: str, seed: int = 0) -> np.ndarray:
    """The extremes, small numbers, single bits and random ones."""
    bits = WIDTHS[dtype]
    random = np.random.default_rng(seed).integers(0, 1 << 64, SIZE - 9, dtype=np.uint64).tolist()
    numbers = [0, 1, 2, 3, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 0x10000, 12345678, *random]
    return np.array([n & ((1 << bits) - 1) for n in numbers], f"u{bits // 8}").view(dt_numpy(getattr(dt, dtype)))


def unsigned(x: np.ndarray) -> list[int]:
    return [int(v) & ((1 << 8 * x.itemsize) - 1) for v in x]


@on_each_machine
@pytest.mark.parametrize("dtype", WIDTHS)
def test_upper_half_of_a_product(run, dtype):
    x, y, bits = words(dtype), words(dtype, 1)[::-1].copy(), WIDTHS[dtype]
    got = compute(run, "tl.extra.libdevice.mulhi(x, y)", x=x, y=y)
    assert got.tolist() == [(int(a) * int(b)) >> bits for a, b in zip(x, y, strict=True)]
    got = compute(run, "tl.umulhi(x, y)", x=x, y=y)
    assert unsigned(got) == [(a * b) >> bits for a, b in zip(unsigned(x), unsigned(y), strict=True)]


@on_each_machine
@pytest.mark.parametrize("dtype", WIDTHS)
def test_bits_are_counted_and_reversed(run, dtype):
    x, bits = words(dtype), WIDTHS[dtype]
    numbers = unsigned(x)
    counts = {"popc": int.bit_count, "clz": lambda n: bits - n.bit_length(), "ffs": lambda n: (n & -n).bit_length()}
    for name, count in counts.items():
        got = compute(run, f"tl.extra.libdevice.{name}(x)", dt.i32, x=x)
        assert got.tolist() == [count(n) for n in numbers], name
    got = compute(run, "tl.extra.libdevice.brev(x)", x=x)
    assert unsigned(got) == [int(f"{n:0{bits}b}"[::-1], 2) for n in numbers]


@on_each_machine
def test_product_with_a_number_and_a_scalar(run):
    x = words("u32")
    got = compute(run, "tl.umulhi(x, 0xD2511F53)", x=x)
    assert got.tolist() == [(int(v) * 0xD2511F53) >> 32 for v in x]
    assert compute(run, "tl.umulhi(s, s)", dt.i32, s=-1).tolist() == [-2]


def permuted(x: int, y: int, s: int) -> int:
    data = (x | y << 32).to_bytes(8, "little")
    return int.from_bytes(bytes(data[s >> 4 * i & 7] for i in range(4)), "little")


@on_each_machine
def test_bytes_are_picked_by_digits(run):
    x, y = words("u32", 2), words("u32", 3)[::-1].copy()
    s = np.random.default_rng(4).integers(0, 1 << 32, SIZE, dtype=np.uint32)
    got = compute(run, "tl.extra.libdevice.byte_perm(x, y, s)", x=x, y=y, s=s)
    assert got.tolist() == [permuted(*map(int, v)) for v in zip(x, y, s, strict=True)]
    signed = compute(run, "tl.extra.libdevice.byte_perm(x, y, 0x0123)", x=x.view(np.int32), y=y.view(np.int32))
    assert unsigned(signed) == [int.from_bytes(int(v).to_bytes(4, "big"), "little") for v in x]


@on_each_machine
@hypothesis.given(st.lists(st.integers(0, (1 << 64) - 1), min_size=SIZE, max_size=SIZE))
@hypothesis.settings(max_examples=30)
def test_identities_of_bits(run, numbers):
    x = np.array(numbers, np.uint64)
    library = "tl.extra.libdevice"
    same = compute(run, f"{library}.brev({library}.brev(x))", x=x)
    np.testing.assert_array_equal(same, x)
    flipped = compute(run, f"{library}.popc(x) + {library}.popc(~x)", dt.i32, x=x)
    assert (flipped == 64).all()
    low = compute(run, f"{library}.clz({library}.brev(x)) + 1", dt.i32, x=np.where(x == 0, 1, x).astype(np.uint64))
    assert low.tolist() == [((n or 1) & -(n or 1)).bit_length() for n in numbers]
