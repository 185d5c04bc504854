"""Triton's tutorials on products of matrices: the numbers on every machine, and code that assembles for each target."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import gristmill as gm
import tutorial_products as tutorials
from assembled import assemble_text
from gristmill.compiler.compile import compile_variant
from gristmill.compiler.targets import TARGETS
from gristmill.declare import Kernel
from gristmill.dtypes import dt_numpy
from gristmill.specialisation import VARIANTS
from machines import on_each_in_order, on_each_machine
from ptx import needs_ptxas
from test_dot_scaled import codes, decode, packed, scaled

MOST = {gm.f16: 1e-3, gm.bf16: 8e-3, gm.f32: 1e-6, gm.f8e4m3: 1e-3, gm.f8e5m2: 1e-3}
DTYPES = [pytest.param(dtype, id=dtype.name) for dtype in MOST]
EIGHT_BITS = (gm.f8e4m3, gm.f8e5m2)
TILE = {"BLOCK_M": [64], "BLOCK_N": [64], "BLOCK_K": [32], "GROUP_M": [2]}
TILES = {"grid": lambda M, N, BLOCK_M, BLOCK_N: gm.cdiv(M, BLOCK_M) * gm.cdiv(N, BLOCK_N)}
PROGRAMS = 3


def tile_of(dtype):
    """Steps of 64 bytes along the depth: instructions of warpgroups take no less."""
    return TILE | {"BLOCK_K": [64 if dtype in EIGHT_BITS else 32]}


def result_of(dtype):
    return dtype if dtype in (gm.f16, gm.bf16, gm.f32) else gm.f16


def arrays(dtype, is_turned):
    """Types of a [M, K], b [K, N] or, turned, the transpose of an array [N, K], and c; with strides and sizes."""
    fixed, free = ("bk", "bn") if is_turned else ("bn", "bk")
    signature = {"a_ptr": gm.ptr[dtype], "b_ptr": gm.ptr[dtype], "c_ptr": gm.ptr[result_of(dtype)]}
    signature |= {f"stride_{name}": gm.stride[f"{name[0]}_ptr", 0] for name in ("am", "cm")}
    signature |= {f"stride_{free}": gm.stride["b_ptr", int(is_turned)], "M": gm.shape["a_ptr", 0]}
    signature |= {"N": gm.shape["b_ptr", 1], "K": gm.shape["a_ptr", 1]}
    return signature, {"stride_ak": [1], f"stride_{fixed}": [1], "stride_cn": [1]}


@cache
def tutorial(dtype, is_turned=False, activation="") -> Kernel:
    signature, constants = arrays(dtype, is_turned)
    return gm.specialise(
        tutorials.matmul_kernel, name="tutorial", signature=signature,
        constants=constants | tile_of(dtype) | {"ACTIVATION": [activation]}, configs=[gm.Config(num_stages=3)], **TILES,
    )  # fmt: skip


@cache
def autotuned() -> Kernel:
    """The same with the configurations of its `triton.autotune`."""
    signature, constants = arrays(gm.f16, False)
    constants["ACTIVATION"] = [""]
    return gm.specialise(
        tutorials.matmul_kernel, name="autotuned", signature=signature, constants=constants, **TILES
    )  # fmt: skip


@cache
def persistent(dtype, halves=False) -> Kernel:
    signature = {"a_ptr": gm.ptr[dtype], "b_ptr": gm.ptr[dtype], "c_ptr": gm.ptr[result_of(dtype)]}
    signature |= {"M": gm.shape["a_ptr", 0], "N": gm.shape["b_ptr", 0], "K": gm.shape["a_ptr", 1]}
    constants = {**tile_of(dtype), "NUM_SMS": [PROGRAMS], "HALVES": [halves], "WARP_SPECIALIZE": [True]}
    return gm.specialise(
        tutorials.persistent_kernel, name="persistent", signature=signature, constants=constants, grid=PROGRAMS,
        configs=[gm.Config(num_stages=3)],
    )  # fmt: skip


@cache
def described() -> Kernel:
    blocks = {"a_desc": ("BLOCK_M", "BLOCK_K"), "b_desc": ("BLOCK_N", "BLOCK_K"), "c_desc": ("BLOCK_M", "BLOCK_N")}
    signature = {name: gm.descriptor[gm.f16, *block] for name, block in blocks.items()}
    signature |= {"M": gm.shape["a_desc", 0], "N": gm.shape["b_desc", 0], "K": gm.shape["a_desc", 1]}
    return gm.specialise(
        tutorials.descriptor_kernel, name="described", signature=signature, constants=TILE, **TILES,
        configs=[gm.Config(num_stages=3)],
    )  # fmt: skip


@cache
def persistent_pointers() -> Kernel:
    signature, constants = arrays(gm.f16, False)
    return gm.specialise(
        tutorials.persistent_pointers_kernel, name="persistent_pointers", signature=signature,
        constants=constants | TILE | {"NUM_SMS": [PROGRAMS]}, grid=PROGRAMS, configs=[gm.Config(num_stages=3)],
    )  # fmt: skip


@cache
def grouped() -> Kernel:
    signature = dict.fromkeys(("a", "b", "c", "a2", "b2", "c2"), gm.ptr[gm.f16])
    signature |= dict.fromkeys(("group_a_ptrs", "group_b_ptrs", "group_c_ptrs"), gm.ptr[gm.i64])
    signature |= dict.fromkeys(("sizes", "pitches"), gm.ptr[gm.i32])
    constants = {"DTYPE": gm.f16, "NUM_SM": [PROGRAMS], "BLOCK_M": [32], "BLOCK_N": [32], "BLOCK_K": [32]}
    return gm.specialise(
        tutorials.two_products_kernel, name="grouped", signature=signature, constants=constants, grid=PROGRAMS,
        configs=[gm.Config(num_stages=2)],
    )  # fmt: skip


@cache
def block_scaled(a_format: str, b_format: str) -> Kernel:
    signature = dict.fromkeys(("a_ptr", "a_scale", "b_ptr", "b_scale"), gm.ptr[gm.u8]) | {"c_ptr": gm.ptr[gm.f16]}
    signature |= {"M": gm.shape["c_ptr", 0], "N": gm.shape["c_ptr", 1], "K": gm.i32}
    constants = {"BLOCK_M": [128], "BLOCK_N": [128], "BLOCK_K": [128], "VEC_SIZE": [32]}
    constants |= {"A_FORMAT": [a_format], "B_FORMAT": [b_format]}
    constants |= {f"{side}_PACK": [1 + (f == "e2m1")] for side, f in zip("AB", (a_format, b_format), strict=True)}
    return gm.specialise(
        tutorials.block_scaled_kernel, name="block_scaled", signature=signature, constants=constants, num_warps=8,
        **TILES,
    )  # fmt: skip


def numbers(rows, columns, dtype, is_turned=False):
    if is_turned:
        return numbers(columns, rows, dtype).T
    return np.random.default_rng(rows + columns).standard_normal((rows, columns)).astype(dt_numpy(dtype))


def empty(m, n, dtype):
    return np.full((m, n), np.nan).astype(dt_numpy(result_of(dtype)))


def assert_near(c, want, dtype):
    assert np.linalg.norm(c.astype("f8") - want) <= MOST[dtype] * np.linalg.norm(want)


def wide_product(a, b):
    return a.astype("f8") @ b.astype("f8")


# ---- numbers -------------------------------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize("dtype", DTYPES)
def test_tutorial_multiplies(run, dtype):
    """Sizes that tiles do not divide; 8-bit floats with b as the transpose of an array, as the tutorial does."""
    for m, n, k in [(128, 192, 96), (70, 90, 50), (1, 1, 1)]:
        a, b, c = numbers(m, k, dtype), numbers(k, n, dtype, dtype in EIGHT_BITS), empty(m, n, dtype)
        run(tutorial(dtype, dtype in EIGHT_BITS), None, a, b, c)
        assert_near(c, wide_product(a, b), dtype)


@on_each_machine
def test_tutorial_applies_its_activation(run):
    a, b, c = numbers(70, 50, gm.f16), numbers(50, 90, gm.f16), empty(70, 90, gm.f16)
    run(tutorial(gm.f16, activation="leaky"), None, a, b, c)
    want = wide_product(a, b)
    assert_near(c, np.where(want >= 0, want, 0.01 * want), gm.f16)


@on_each_machine
@pytest.mark.parametrize("halves", [False, True], ids=["whole", "halves"])
def test_persistent_programs_go_from_tile_to_tile(run, halves):
    for m, n, k in [(200, 136, 96), (70, 88, 48)]:
        a, b, c = numbers(m, k, gm.f16), numbers(n, k, gm.f16), empty(m, n, gm.f16)
        run(persistent(gm.f16, halves), None, a, b, c)
        assert_near(c, wide_product(a, b.T), gm.f16)


@on_each_machine
def test_descriptors_that_the_caller_makes(run):
    """The second time rows are farther apart than they are long."""
    for m, n, k, pitch in [(200, 136, 96, 96), (70, 88, 48, 64)]:
        a, b, c = numbers(m, pitch, gm.f16)[:, :k], numbers(n, k, gm.f16), empty(m, n, gm.f16)
        run(described(), None, a, b, c)
        assert_near(c, wide_product(a, b.T), gm.f16)


@on_each_machine
def test_persistent_programs_that_read_through_pointers(run):
    """What lies beyond the columns is promised to follow them: rows have a multiple of 8 of them."""
    a, b, c = numbers(200, 50, gm.f16), numbers(50, 88, gm.f16), empty(200, 88, gm.f16)
    run(persistent_pointers(), None, a, b, c)
    assert_near(c, wide_product(a, b), gm.f16)


@on_each_in_order
def test_products_whose_addresses_lie_in_memory(run):
    shapes = [(64, 96, 32), (32, 64, 96)]
    operands = [(numbers(m, k, gm.f16), numbers(k, n, gm.f16), empty(m, n, gm.f16)) for m, n, k in shapes]
    addresses = [np.zeros(2, np.int64) for _ in range(3)]
    pitches = np.array([(k, n, n) for _, n, k in shapes], np.int32)
    run(grouped(), None, *operands[0], *operands[1], *addresses, np.array(shapes, np.int32), pitches)
    for a, b, c in operands:
        assert_near(c, wide_product(a, b), gm.f16)


def by_chunks(scale):
    """Scales [rows, groups] as tensor cores take them: 128 rows and 4 groups side by side, as [32, 4, 4]."""
    rows, groups = scale.shape
    parts = scale.reshape(rows // 128, 4, 32, groups // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(parts).ravel()


@on_each_machine
@pytest.mark.parametrize("formats", [("e2m1", "e2m1"), ("e4m3", "e4m3"), ("e4m3", "e2m1")], ids="-".join)
def test_blocks_that_share_scales(run, formats):
    m, n, k = 128, 256, 256
    numbers_of = [codes(name, (rows, k), rows) for name, rows in zip(formats, (m, n), strict=True)]
    scales = [np.random.default_rng(rows).integers(125, 130, (rows, k // 32)).astype(np.uint8) for rows in (m, n)]
    held = [packed(x, 1) if name == "e2m1" else x for name, x in zip(formats, numbers_of, strict=True)]
    c = empty(m, n, gm.f16)
    run(block_scaled(*formats), None, held[0], by_chunks(scales[0]), held[1], by_chunks(scales[1]), c, K=k)
    a, b = (scaled(decode(name, x), s) for name, x, s in zip(formats, numbers_of, scales, strict=True))
    assert_near(c, a @ b.T, gm.f16)


# ---- code ----------------------------------------------------------------------------------------------------------

KERNELS = {
    **{f"tutorial {d.name}": (lambda d=d: tutorial(d, d in EIGHT_BITS)) for d in MOST},
    "autotuned": autotuned, "persistent": lambda: persistent(gm.f16), "halves": lambda: persistent(gm.f16, True),
    "persistent f8e5m2": lambda: persistent(gm.f8e5m2), "persistent pointers": persistent_pointers, "grouped": grouped,
    "described": described,
    "scaled e2m1": lambda: block_scaled("e2m1", "e2m1"), "scaled e4m3": lambda: block_scaled("e4m3", "e2m1"),
}  # fmt: skip


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
def test_code_takes_tensor_cores_and_reads_ahead(name, target):
    """What is decoded before it is multiplied is neither read ahead nor does it leave registers for all of it."""
    kernel = KERNELS[name]()
    is_decoded = "scaled" in name or "tutorial f8" in name or (target == "sm_80" and "f8" in name)
    for specialisation in kernel.specialisations():
        code = compile_variant(kernel, specialisation, VARIANTS[0], TARGETS[target]).code.decode()
        assert "mma" in code
        assert "cp.async" in code or is_decoded
        (usage,) = assemble_text([code], target).values()
        assert usage.local_bytes <= (64 if "scaled" in name else 0)
