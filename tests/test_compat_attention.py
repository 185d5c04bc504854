"""Attention as public Triton kernels write it: numbers on every machine, and code that assembles."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import gristmill as gm
import tutorial_attention as tutorials
from assembled import assemble_text
from gristmill.compiler.compile import compile_variant
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS
from gristmill.dtypes import dt_numpy
from gristmill.specialisation import VARIANTS
from machines import on_each_machine
from ptx import needs_ptxas

MOST = {gm.f16: 2e-3, gm.bf16: 1.6e-2, gm.f32: 2e-6}
"""Errors by the norm: weights are rounded to the dtype before they are multiplied."""
on_each_dtype = pytest.mark.parametrize("dtype", [pytest.param(d, id=d.name) for d in (gm.f32, gm.bf16)])
on_both_masks = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
BATCH, HEADS, WIDTH, SCALE = 2, 2, 32, 0.2
LOG2_E = float(np.log2(np.e))


def heads(length, dtype, seed):
    """Heads [batch, head, row, column]."""
    return np.random.default_rng(seed).standard_normal((BATCH, HEADS, length, WIDTH)).astype(dt_numpy(dtype))


def result_of(dtype):
    return gm.f16 if dtype == gm.f8e5m2 else dtype


def like(x, dtype=None):
    return np.full(x.shape, np.nan).astype(dtype or x.dtype)


def reference(q, k, v, keep):
    """Attention in f64: the weights, the results and the logarithm to base 2 of the sums of weights."""
    q, k, v = (x.astype("f8") for x in (q, k, v))
    scores = np.where(keep, q @ k.swapaxes(-1, -2) * SCALE, -np.inf)
    largest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - largest)
    sums = powers.sum(-1, keepdims=True)
    return powers / sums, powers / sums @ v, ((largest + np.log(sums)) * LOG2_E)[..., 0]


def kept(length, causal):
    rows, keys = np.arange(length)[:, None], np.arange(length)
    return (keys <= rows) | (not causal)


def assert_near(got, want, dtype):
    assert np.linalg.norm(got.astype("f8") - want) <= MOST[dtype] * np.linalg.norm(want)


# ---- kernels -------------------------------------------------------------------------------------------------------


SMALL = (gm.Config(BLOCK_M=32, BLOCK_N=16, num_warps=4, num_stages=2),)


@cache
def pointers(dtype, causal, configs=SMALL):
    strides = {
        f"stride_{x}{axis}": gm.stride[array, i]
        for x, array, axes in (("q", "Q", "zhmk"), ("k", "K", "zhnk"), ("v", "V", "zhnk"), ("o", "Out", "zhmk"))
        for i, axis in enumerate(axes)
    }
    arrays = {
        **dict.fromkeys("QKV", gm.ptr[dtype]),
        "Out": gm.ptr[result_of(dtype)],
        "M": gm.ptr[gm.f32],
        "sm_scale": gm.f32,
    }
    sizes = {"Z": gm.shape["Q", 0], "H": gm.shape["Q", 1], "N_CTX": gm.shape["Q", 2]}
    return gm.specialise(
        tutorials.pointers_forward, name="pointers_forward", signature=arrays | strides | sizes,
        constants={"HEAD_DIM": [WIDTH], "CAUSAL": [causal]},
        grid=lambda N_CTX, Z, H, BLOCK_M: (gm.cdiv(N_CTX, BLOCK_M), Z * H),
        configs=list(configs) if configs else None,
    )  # fmt: skip


@cache
def descriptors(dtype, causal, host, halves=False, configs=SMALL):
    arrays = {"M": gm.ptr[gm.f32], "sm_scale": gm.f32, "Z": gm.i32, "H": gm.i32, "N_CTX": gm.i32}
    for name, block in (("q", "BLOCK_M"), ("k", "BLOCK_N"), ("v", "BLOCK_N"), ("o", "BLOCK_M")):
        arrays[f"desc_{name}"] = gm.descriptor[dtype, block, "HEAD_DIM"] if host else gm.ptr[dtype]
    return gm.specialise(
        tutorials.descriptors_forward, name="descriptors_forward", signature=arrays, num_warps=4,
        configs=list(configs),
        constants={
            "HEAD_DIM": [WIDTH], "STAGE": [3 if causal else 1], "DTYPE": dtype, "warp_specialize": [True],
            "HALVES": [halves],
        },
        grid=lambda N_CTX, Z, H, BLOCK_M: (gm.cdiv(N_CTX, BLOCK_M), Z * H),
    )  # fmt: skip


@on_each_machine
@on_each_dtype
@on_both_masks
def test_block_pointers_advance_over_keys(run, dtype, causal):
    for length in (64, 75, 1):
        q, k, v = (heads(length, dtype, seed) for seed in range(3))
        out, lse = like(q), like(q[..., 0], np.float32)
        run(pointers(dtype, causal), None, q, k, v, SCALE, lse, out)
        _, want, sums = reference(q, k, v, kept(length, causal))
        assert_near(out, want, dtype)
        np.testing.assert_allclose(lse, sums, atol=2e-3)


@on_each_machine
@on_both_masks
def test_weights_of_8_bits_are_off_by_their_rounding(run, causal):
    q, k, v = (heads(75, gm.f8e5m2, seed) for seed in range(3))
    out, lse = like(q, np.float16), like(q[..., 0], np.float32)
    run(pointers(gm.f8e5m2, causal), None, q, k, v, SCALE, lse, out)
    _, want, sums = reference(q, k, v, kept(75, causal))
    assert np.linalg.norm(out.astype("f8") - want) <= 2.0**-3 * np.linalg.norm(want)
    np.testing.assert_allclose(lse, sums, atol=2e-3)


def through_descriptors(run, kernel, dtype, causal, length):
    q, k, v = (heads(length, dtype, seed) for seed in range(3))
    flat = [np.ascontiguousarray(x).reshape(-1, WIDTH) for x in (q, k, v, like(q))]
    lse = like(q[..., 0], np.float32)
    named = dict(zip(("desc_q", "desc_k", "desc_v", "desc_o"), flat, strict=True))
    run(kernel, None, sm_scale=SCALE, M=lse, Z=BATCH, H=HEADS, N_CTX=length, **named)
    _, want, sums = reference(q, k, v, kept(length, causal))
    assert_near(flat[3].reshape(q.shape), want, dtype)
    np.testing.assert_allclose(lse, sums, atol=2e-3)


@on_each_machine
@on_each_dtype
@on_both_masks
@pytest.mark.parametrize("host", [False, True], ids=["here", "host"])
def test_descriptors_are_made_here_or_by_the_host(run, dtype, causal, host):
    through_descriptors(run, descriptors(dtype, causal, host), dtype, causal, 96)


@on_each_machine
@on_each_dtype
def test_sums_may_be_scaled_in_halves(run, dtype):
    through_descriptors(run, descriptors(dtype, True, True, True), dtype, True, 64)


LARGE = (gm.Config(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=3),)


@on_both_masks
@pytest.mark.parametrize("host", [False, True], ids=["here", "host"])
def test_warpgroups_multiply_what_the_hardware_copies(causal, host):
    """Where two loops share the descriptors, threads copy."""
    kernel = descriptors(gm.f16, causal, host, configs=LARGE)
    (specialisation,) = kernel.specialisations()
    code = compile_variant(kernel, specialisation, VARIANTS[0], TARGETS["sm_90a"]).code.decode()
    assert "wgmma" in code and (causal or "cp.async.bulk.tensor" in code)
    through_descriptors(run_simulated, kernel, gm.f16, causal, 128)


# ---- gradients -----------------------------------------------------------------------------------------------------


@cache
def backward(dtype, causal):
    arrays = dict.fromkeys(("Q", "K", "V", "DO", "DQ", "DK", "DV"), gm.ptr[dtype])
    arrays |= {"M": gm.ptr[gm.f32], "D": gm.ptr[gm.f32], "sm_scale": gm.f32}
    strides = {f"stride_{axis}": gm.stride["Q", i] for i, axis in enumerate(("z", "h", "tok"))}
    sizes = {"H": gm.shape["Q", 1], "N_CTX": gm.shape["Q", 2], "Z": gm.shape["Q", 0]}
    constants = {"BLOCK_M1": [32], "BLOCK_N1": [32], "BLOCK_M2": [32], "BLOCK_N2": [32], "BLK_SLICE_FACTOR": [2]}
    constants |= {"HEAD_DIM": [WIDTH], "CAUSAL": [causal], "stride_d": [1]}
    return gm.specialise(
        tutorials.backward, name="backward", signature=arrays | strides | sizes, constants=constants, num_warps=4,
        num_stages=3, grid=lambda N_CTX, Z, H, BLOCK_N1: (gm.cdiv(N_CTX, BLOCK_N1), 1, Z * H),
    )  # fmt: skip


@on_each_machine
@on_each_dtype
@on_both_masks
def test_gradients_of_keys_and_of_rows_in_one_program(run, dtype, causal):
    length = 96
    q, k, v, up = (heads(length, dtype, seed) for seed in range(4))
    scaled = (k.astype("f8") * SCALE * LOG2_E).astype(k.dtype)
    k = scaled.astype("f8") / (SCALE * LOG2_E)  # what the rounded keys stand for
    p, out, sums = reference(q, k, v, kept(length, causal))
    wide_up, wide_v = up.astype("f8"), v.astype("f8")
    delta = (out * wide_up).sum(-1)
    ds = p * (wide_up @ wide_v.swapaxes(2, 3) - delta[..., None])
    gradients = [like(x) for x in (q, k.astype(q.dtype), v)]
    row_sums = [x.astype(np.float32) for x in (sums, delta)]
    run(backward(dtype, causal), None, q, scaled, v, SCALE, up, *gradients, *row_sums)
    wanted = (ds @ k * SCALE, ds.swapaxes(2, 3) @ q.astype("f8") * SCALE, p.swapaxes(2, 3) @ wide_up)
    for got, want in zip(gradients, wanted, strict=True):
        assert_near(got, want, dtype)


# ---- sequences one after another -----------------------------------------------------------------------------------

KV_HEADS, GROUP, ELEMENTS, VALUES = 2, 2, 24, 40
LENGTHS = (37, 1, 50)
CHUNK = 16


@cache
def sequences(dtype, is_packed, has_gates, window):
    arrays = {**dict.fromkeys(("q", "k", "v", "o"), gm.ptr[dtype]), "lse": gm.ptr[gm.f32], "scale": gm.f32, "T": gm.i32}
    constants = {"H": [KV_HEADS], "HQ": [KV_HEADS * GROUP], "G": [GROUP], "K": [ELEMENTS], "V": [VALUES]}
    constants |= {"BT": [CHUNK], "BS": [16], "BK": [32], "BV": [32], "W": window and [window]}
    optional = {"g": (has_gates, gm.f32), "cu_seqlens": (is_packed, gm.i32), "indices": (is_packed, gm.i32)}
    for name, (is_there, element) in optional.items():
        (arrays if is_there else constants)[name] = gm.ptr[element] if is_there else None
    return gm.specialise(
        tutorials.sequences_forward, name="sequences_forward", signature=arrays, constants=constants, num_warps=4,
        num_stages=2, grid=lambda V, BV: (gm.cdiv(V, BV), 1, 1),
    )  # fmt: skip


@on_each_machine
@pytest.mark.parametrize("dtype", [gm.bf16, gm.f32], ids=["bf16", "f32"])
@pytest.mark.parametrize("is_packed", [False, True], ids=["equal", "packed"])
@pytest.mark.parametrize(("has_gates", "window"), [(False, None), (True, 20)])
def test_what_is_left_out_is_none(run, dtype, is_packed, has_gates, window):
    lengths = LENGTHS if is_packed else (37, 37)
    rng, count, many = np.random.default_rng(5), sum(lengths), KV_HEADS * GROUP
    q, k, v = (
        rng.standard_normal((count, *shape)).astype(dt_numpy(dtype))
        for shape in ((many, ELEMENTS), (KV_HEADS, ELEMENTS), (KV_HEADS, VALUES))
    )
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    chunks = [(n, i) for n, length in enumerate(lengths) for i in range(-(-length // CHUNK))]
    out, lse = np.full((count, many, VALUES), np.nan).astype(q.dtype), np.full((count, many), np.nan, np.float32)
    gates = (rng.standard_normal((count, many)) * 0.2).cumsum(0).astype(np.float32)
    named = {"g": gates} if has_gates else {}
    grid = (2, len(chunks), many) if is_packed else (2, -(-37 // CHUNK), 2 * many)
    if is_packed:
        named |= {"cu_seqlens": starts, "indices": np.array(chunks, np.int32)}
    kernel = sequences(dtype, is_packed, has_gates, window)
    run(kernel, None, q=q, k=k, v=v, o=out, lse=lse, scale=SCALE, T=37, grid=grid, **named)
    for first, last in pairwise(starts):
        want, sums = each_sequence(q[first:last], k[first:last], v[first:last], gates[first:last] * has_gates, window)
        assert_near(out[first:last], want, dtype)
        np.testing.assert_allclose(lse[first:last], sums, atol=2e-3 if dtype != gm.bf16 else 2e-2)


def each_sequence(q, k, v, gates, window):
    """Attention of one sequence [rows, heads, elements]: scores in units of log2, to which gates are added."""
    q, k, v = (x.astype("f8").swapaxes(0, 1) for x in (q, k, v))
    k, v = np.repeat(k, GROUP, 0), np.repeat(v, GROUP, 0)
    apart = np.arange(q.shape[1])[:, None] - np.arange(q.shape[1])
    by_row = gates.astype("f8").T
    scores = q @ k.swapaxes(1, 2) * SCALE * LOG2_E + by_row[:, :, None] - by_row[:, None, :]
    scores = np.where((apart >= 0) & (apart < (window or np.inf)), scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    powers = np.exp2(scores - largest)
    sums = powers.sum(-1, keepdims=True)
    return (powers / sums @ v).swapaxes(0, 1), (largest + np.log2(sums))[..., 0].T


# ---- code ----------------------------------------------------------------------------------------------------------

KERNELS = {
    "block pointers": lambda: pointers(gm.f16, True), "block pointers f8": lambda: pointers(gm.f8e5m2, False),
    "block pointers tuned": lambda: pointers(gm.bf16, True, None),
    "descriptors": lambda: descriptors(gm.f16, True, False),
    "descriptors of the host": lambda: descriptors(gm.bf16, False, True),
    "halves": lambda: descriptors(gm.f16, True, True, True), "gradients": lambda: backward(gm.f16, True),
    "sequences": lambda: sequences(gm.bf16, True, True, 20),
}  # fmt: skip


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
def test_code_takes_tensor_cores_and_hardly_spills(name, target):
    kernel = KERNELS[name]()
    for specialisation in kernel.specialisations():
        for variant in (VARIANTS[0], VARIANTS[-1]):
            code = compile_variant(kernel, specialisation, variant, TARGETS[target]).code.decode()
            assert "mma" in code
            (usage,) = assemble_text([code], target).values()
            assert usage.local_bytes <= 16
