"""Products of microscaling blocks: every format's numbers, scales and packings, against tables written by hand."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest

import gristmill.language as tl
from gristmill.compat.triton import language as triton_language
from gristmill.errors import KernelError
from machines import compute, kernel_of, on_each_machine

FORMATS = ["e2m1", "e4m3", "e5m2", "bf16", "fp16"]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
M, N, K = 16, 32, 64


def minifloat(code: int, mantissa_bits: int, bias: int) -> float:
    """What a byte without special values means."""
    sign, field = -1 if code & 0x80 else 1, (code & 0x7F) >> mantissa_bits
    fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    return sign * (fraction * 2.0 ** (1 - bias) if field == 0 else (1 + fraction) * 2.0 ** (field - bias))


E4M3 = [np.nan if code & 0x7F == 0x7F else minifloat(code, 3, 7) for code in range(256)]
E5M2 = [minifloat(code, 2, 15) if code & 0x7F < 0x7C else np.nan for code in range(256)]
FINITE = {"e4m3": [c for c in range(256) if E4M3[c] == E4M3[c]], "e5m2": [c for c in range(256) if E5M2[c] == E5M2[c]]}


def decode(name: str, bits: np.ndarray) -> np.ndarray:
    """The numbers that codes mean; of e2m1 one code a number, not packed."""
    if name == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype("f8")
    if name == "fp16":
        return bits.view(np.float16).astype("f8")
    return np.array({"e2m1": E2M1, "e4m3": E4M3, "e5m2": E5M2}[name])[bits]


def codes(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Codes of numbers that are multiples of a half from -6 to 6: their products are summed exactly in f32."""
    numbers = np.random.default_rng(seed).choice([v for v in E2M1 if v], shape)
    if name == "e2m1":
        return np.array([E2M1.index(v) for v in numbers.ravel()], np.uint8).reshape(shape)
    if name in ("bf16", "fp16"):
        return numbers.astype(ml_dtypes.bfloat16 if name == "bf16" else np.float16).view(np.uint16)
    table = E4M3 if name == "e4m3" else E5M2
    return np.array([table.index(v) for v in numbers.ravel()], np.uint8).reshape(shape)


def packed(x: np.ndarray, axis: int) -> np.ndarray:
    """Two codes of 4 bits a byte along an axis, the first in the low half."""
    first, second = (np.take(x, range(i, x.shape[axis], 2), axis) for i in (0, 1))
    return (first | second << 4).astype(np.uint8)


def scaled(x: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """Numbers [rows, K] times 2**(scale - 127) for each 32."""
    if scale is None:
        return x
    factors = np.where(scale == 255, np.nan, np.ldexp(1.0, scale.astype(int) - 127))
    return x * np.repeat(factors, 32, -1)


def scales(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(125, 130, (rows, K // 32)).astype(np.uint8)


def call(run, a, b, formats, *, scale=(None, None), pack=(True, True), more="", start=""):
    """tl.dot_scaled of codes a [M, K] and b [K, N], which are packed here where the format is e2m1."""
    held = [
        packed(x, axis if is_k else 1 - axis) if name == "e2m1" else x
        for x, name, is_k, axis in zip((a, b), formats, pack, (1, 0), strict=True)
    ]
    inputs = {"a": held[0], "b": held[1]} | {n: s for n, s in zip("st", scale, strict=True) if s is not None}
    body = "\n".join(f"{name} = tl.reshape({name}, {x.shape})" for name, x in inputs.items())
    texts = ["None" if s is None else name for name, s in zip("st", scale, strict=True)]
    shape = (a.shape[0], b.shape[1])
    body += f"\nz = tl.dot_scaled(a, {texts[0]}, {formats[0]!r}, b, {texts[1]}, {formats[1]!r}{start}{more}"
    body += f", lhs_k_pack={pack[0]}, rhs_k_pack={pack[1]})"
    flat = {name: x.ravel() for name, x in inputs.items()}
    size = shape[0] * shape[1]
    return compute(run, f"tl.reshape(z, ({size},))", "float32", body=body, size=size, **flat).reshape(shape)


@functools.cache
def example(formats, is_scaled=(True, True)):
    a, b = codes(formats[0], (M, K), 1), codes(formats[1], (K, N), 2)
    scale = tuple(scales(n, seed) if s else None for n, seed, s in zip((M, N), (3, 4), is_scaled, strict=True))
    want = scaled(decode(formats[0], a), scale[0]) @ scaled(decode(formats[1], b).T, scale[1]).T
    return a, b, scale, want


@on_each_machine
@pytest.mark.parametrize("lhs", FORMATS)
@pytest.mark.parametrize("rhs", FORMATS)
def test_product_is_that_of_the_scaled_elements(run, lhs, rhs):
    a, b, scale, want = example((lhs, rhs))
    np.testing.assert_array_equal(call(run, a, b, (lhs, rhs), scale=scale), want)


@on_each_machine
@pytest.mark.parametrize("is_scaled", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("formats", [("e2m1", "bf16"), ("fp16", "e2m1"), ("e4m3", "e5m2")])
def test_either_scale_may_be_left_out(run, formats, is_scaled):
    a, b, scale, want = example(formats, is_scaled)
    np.testing.assert_array_equal(call(run, a, b, formats, scale=scale), want)


@on_each_machine
@pytest.mark.parametrize("pack", [(False, True), (True, False), (False, False)])
def test_e2m1_may_be_packed_along_the_other_axis(run, pack):
    a, b, scale, want = example(("e2m1", "e2m1"))
    np.testing.assert_array_equal(call(run, a, b, ("e2m1", "e2m1"), scale=scale, pack=pack), want)


@on_each_machine
@pytest.mark.parametrize("other", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["e2m1", "e4m3", "e5m2"])
def test_every_finite_code_has_its_number(run, name, other):
    """Each code times one, at its own place: rows of lhs against the unit matrix."""
    every = np.resize(np.array(FINITE.get(name, range(16)), np.uint8), (8, 32))
    unit = np.eye(32).astype(ml_dtypes.bfloat16 if other == "bf16" else np.float16).view(np.uint16)
    np.testing.assert_array_equal(call(run, every, unit, (name, other)), decode(name, every))


@on_each_machine
def test_elements_may_come_in_their_own_dtype(run):
    a, b, scale, want = example(("e4m3", "bf16"))
    body = "z = tl.dot_scaled(tl.reshape(a, (16, 64)), tl.reshape(s, (16, 2)), 'e4m3', tl.reshape(b, (64, 32)),"
    body += " tl.reshape(t, (32, 2)), 'bf16')"
    own = {"a": a.view(ml_dtypes.float8_e4m3fn), "b": b.view(ml_dtypes.bfloat16), "s": scale[0], "t": scale[1]}
    flat = {name: x.ravel() for name, x in own.items()}
    got = compute(run, f"tl.reshape(z, ({M * N},))", "float32", body=body, size=M * N, **flat)
    np.testing.assert_array_equal(got.reshape(M, N), want)


@on_each_machine
def test_a_scale_of_255_is_nan_for_its_group_alone(run):
    a, b, scale, _ = example(("e2m1", "e4m3"))
    left, right = (s.copy() for s in scale)
    left[3, 1] = right[5, 0] = 255
    got = call(run, a, b, ("e2m1", "e4m3"), scale=(left, right))
    want = scaled(decode("e2m1", a), left) @ scaled(decode("e4m3", b).T, right).T
    np.testing.assert_array_equal(got, want)
    assert np.isnan(got[3]).all() and np.isnan(got[:, 5]).all() and np.isnan(got).sum() == M + N - 1


@on_each_machine
def test_nan_scale_makes_nan_of_zero(run):
    zero, one = np.zeros((1, 32), np.uint8), np.full((32, 1), 2, np.uint8)
    got = call(run, zero, one, ("e2m1", "e2m1"), scale=(np.full((1, 1), 255, np.uint8), None))
    assert np.isnan(got).all()


@on_each_machine
@pytest.mark.parametrize(
    ("scale", "others", "want"),
    [(0, 2.0**100, 2.0**-27), (1, 2.0**100, 2.0**-26), (254, 2.0**-100, 2.0**27), (253, 2.0**-100, 2.0**26)],
)
def test_the_smallest_and_largest_scales_are_exact(run, scale, others, want):
    one = np.array([[2] + [0] * 31], np.uint8)
    column = np.full((32, 1), others, ml_dtypes.bfloat16).view(np.uint16)
    got = call(run, one, column, ("e2m1", "bf16"), scale=(np.full((1, 1), scale, np.uint8), None))
    assert got[0, 0] == want


@on_each_machine
@pytest.mark.parametrize(("code", "want"), [(3, 1.5 * 2.0**27), (4, np.inf), (12, -np.inf)])
def test_a_scaled_element_beyond_the_range_is_infinite(run, code, want):
    """1.5 * 2**127 is a bf16, 2 * 2**127 is not."""
    one = np.array([[code] + [0] * 31], np.uint8)
    column = np.full((32, 1), 2.0**-100, ml_dtypes.bfloat16).view(np.uint16)
    got = call(run, one, column, ("e2m1", "bf16"), scale=(np.full((1, 1), 254, np.uint8), None))
    assert got[0, 0] == want


@on_each_machine
def test_beside_fp16_scales_are_halves(run):
    """2**-24 and 2**15 are the smallest and largest f16; 2**-26 rounds to zero, 2**16 to infinity."""
    one, column = np.array([[2] + [0] * 31] * 4, np.uint8), np.ones((32, 1), np.float16).view(np.uint16)
    column[1:] = 0
    one[:, 1:] = 2
    scale = np.array([[127 - 24], [127 + 15], [127 - 26], [127 + 16]], np.uint8)
    got = call(run, one, column, ("e2m1", "fp16"), scale=(scale, None))
    np.testing.assert_array_equal(got[:, 0], [2.0**-24, 2.0**15, 0, np.nan])


@on_each_machine
def test_scaled_elements_are_rounded_once_to_half_precision(run):
    """Normal numbers of bf16 that scale 0 makes subnormal: within half of the smallest bf16, ties to even."""
    numbers = (1 + np.arange(128) / 128).astype(ml_dtypes.bfloat16).reshape(4, 32)
    unit = (np.eye(32) * 2.0**60).astype(ml_dtypes.bfloat16).view(np.uint16)
    got = call(run, numbers.view(np.uint16), unit, ("bf16", "bf16"), scale=(np.zeros((4, 1), np.uint8), None))
    exact = numbers.astype("f8") * 2.0**-127
    np.testing.assert_array_equal(got, np.rint(exact * 2.0**133) * 2.0**-133 * 2.0**60)


@on_each_machine
def test_product_is_added_to_the_accumulator(run):
    a, b, scale, want = example(("e2m1", "e2m1"))
    got = call(run, a, b, ("e2m1", "e2m1"), scale=scale, start=f", tl.full(({M}, {N}), 5.0, tl.float32)")
    np.testing.assert_array_equal(got, want + 5)


@on_each_machine
def test_fast_math_is_the_same_for_numbers(run):
    a, b, scale, want = example(("e5m2", "e2m1"))
    np.testing.assert_array_equal(call(run, a, b, ("e5m2", "e2m1"), scale=scale, more=", fast_math=True"), want)


@on_each_machine
def test_batches_multiply_one_by_one(run):
    """Both blocks of a batch at once give what they give one by one."""
    a, b, scale, want = example(("e2m1", "e4m3"))
    pairs = [x.reshape(2, x.shape[0] // 2, -1) for x in (packed(a, 1), b.T.copy(), scale[0], scale[1])]
    shapes = [pairs[0].shape, (2, K, N // 2), pairs[2].shape, pairs[3].shape]
    arrays = [pairs[0], pairs[1].swapaxes(1, 2), pairs[2], pairs[3]]
    a_, b_, s_, t_ = (f"tl.reshape({name}, {shape})" for name, shape in zip("abst", shapes, strict=True))
    body = f"z = tl.dot_scaled({a_}, {s_}, 'e2m1', {b_}, {t_}, 'e4m3')"
    flat = {name: np.ascontiguousarray(x).ravel() for name, x in zip("abst", arrays, strict=True)}
    size = M * N // 2
    got = compute(run, f"tl.reshape(z, ({size},))", "float32", body=body, size=size, **flat)
    halves = [want[: M // 2, : N // 2], want[M // 2 :, N // 2 :]]
    np.testing.assert_array_equal(got.reshape(2, M // 2, N // 2), halves)


def test_kernels_of_triton_find_it():
    assert triton_language.dot_scaled is tl.dot_scaled


HEAD = """\
@gm.kernel(grid=1)
def k(p: gm.ptr[gm.u8], n: gm.i32):
    x = tl.load(p + tl.arange(0, 1024))
    y, w = tl.reshape(x, (32, 32)), tl.reshape(x, (16, 64))
    s = tl.load(p + tl.arange(0, 32))[:, None]
    t = tl.load(p + tl.arange(0, 32)).reshape(16, 2)
"""
MISUSE = {
    "tl.dot_scaled(y, None, 'e3m2', y, None, 'e4m3')": "lhs_format is `e3m2`, no known format",
    "tl.dot_scaled(y, None, 'e4m3', y, None, None)": "rhs_format is None, no known format",
    "tl.dot_scaled(x, None, 'e4m3', y, None, 'e4m3')": "lhs needs two or three axes, got u8[1024]",
    "tl.dot_scaled(y, None, 'bf16', y, None, 'e4m3')": "lhs holds u8, which is not what 'bf16' is held as",
    "tl.dot_scaled(y, None, 'e4m3', y.to(tl.float32), None, 'e4m3')": "rhs holds f32, which is not what 'e4m3'",
    "tl.dot_scaled(y.to(tl.int8), None, 'e2m1', y, None, 'e2m1')": "lhs holds i8, which is not what 'e2m1'",
    "tl.dot_scaled(y, None, 'e4m3', y, None, 'e5m2', rhs_k_pack=False)": "rhs is 'e5m2', whose elements are not packed",
    "tl.dot_scaled(y, None, 'e2m1', y, None, 'e4m3')": "elements [32, 64] and [32, 32] do not multiply",
    "tl.dot_scaled(y, s.to(tl.int32), 'e4m3', y, None, 'e4m3')": "lhs_scale is i32[32, 1], and must be u8[32, 1]",
    "tl.dot_scaled(y, 127, 'e4m3', y, None, 'e4m3')": "lhs_scale is `127`, and must be u8[32, 1]",
    "tl.dot_scaled(y, None, 'e4m3', y, t, 'e4m3')": "rhs_scale is u8[16, 2], and must be u8[32, 1]",
    "tl.dot_scaled(w, t, 'e4m3', tl.trans(w), tl.trans(t), 'e4m3')": "rhs_scale is u8[2, 16], and must be u8[16, 2]",
    "tl.dot_scaled(tl.trans(w), s, 'e4m3', w, None, 'e4m3')": "lhs has K = 16, no multiple of 32",
    "tl.dot_scaled(y, None, 'e4m3', y, None, 'e4m3', tl.zeros((32, 16), tl.float32))": "acc is f32[32, 16]",
    "tl.dot_scaled(y, None, 'e4m3', y, None, 'e4m3', tl.zeros((32, 32), tl.float16))": "acc is f16[32, 32]",
    "tl.dot_scaled(y, None, 'e4m3', y, None, 'e4m3', 1.0)": "acc is `1.0`, the product f32[32, 32]",
    "tl.dot_scaled(y, None, 'e4m3', y, None, 'e4m3', out_dtype=tl.float16)": "returns f32, not `f16`",
    "tl.dot_scaled(y, None, 'e4m3', y)": "missing a required argument",
}


@pytest.mark.parametrize("call", MISUSE)
def test_misuse_is_an_error_with_a_fix(call):
    from gristmill.compiler.frontend import build
    from gristmill.specialisation import VARIANTS

    kernel = kernel_of(f"{HEAD}    {call}\n")
    with pytest.raises(KernelError) as caught:
        build(kernel, kernel.specialisations()[0], VARIANTS[0])
    assert MISUSE[call] in str(caught.value)
    assert caught.value.fix
