"""Matrix products on tensor cores: layouts against the instructions' maps, kernels against numpy, and their PTX."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.compiler.compile import compile_variants
from gristmill.compiler.layout import all_points
from gristmill.compiler.targets import TARGETS
from gristmill.compiler.tensor import UNITS, accumulator, left, panel_bytes, panels, right
from machines import bfloat16, kernel_of, on_each_machine

PRODUCT = """
D, R = gm.dtype_var("D", [gm.{dtype}]), gm.{result}


@gm.kernel(grid=lambda m, n: gm.cdiv(m, {m}) * gm.cdiv(n, {n}), num_warps={warps}, num_stages={stages})
def k(a: gm.ptr[D], b: gm.ptr[D], c: gm.ptr[R], m: gm.shape["a", 0], n: gm.shape["c", 1], depth: gm.shape["a", 1]):
    programs = tl.cdiv(n, {n})
    rows = tl.program_id(0) // programs * {m} + tl.arange(0, {m})
    columns = tl.program_id(0) % programs * {n} + tl.arange(0, {n})
    steps = tl.arange(0, {k})
    acc = tl.zeros(({m}, {n}), {sum})
    for start in range(0, depth, {k}):
        is_deep = start + steps < depth
        x = tl.load(a + rows[:, None] * depth + (start + steps)[None, :], mask=(rows[:, None] < m) & is_deep[None, :])
        {load}
        acc = tl.dot(x, y, acc{precision})
    {epilogue}
    tl.store(c + rows[:, None] * n + columns[None, :], acc, mask=(rows[:, None] < m) & (columns[None, :] < n))
"""
# B is [depth, n], or [n, depth] and turned.
PLAIN = (
    "y = tl.load(b + (start + steps)[:, None] * n + columns[None, :], mask=is_deep[:, None] & (columns[None, :] < n))"
)
TURNED = (
    "y = tl.load(b + columns[:, None] * depth + (start + steps)[None, :], "
    "mask=(columns[:, None] < n) & is_deep[None, :]).T"
)
DTYPES = {  # operands, sum, result
    "f16": ("float16", "f32", "float32"),
    "bf16": (bfloat16, "f32", "float32"),
    "f32": ("float32", "f32", "float32"),
    "f64": ("float64", "f64", "float64"),
    "i8": ("int8", "i32", "int32"),
    "u8": ("uint8", "i32", "int32"),
}


def kernel_for(dtype="f16", tile=(64, 64, 32), warps=4, load=PLAIN, precision="", epilogue="pass", stages=3):
    m, n, k = tile
    total = DTYPES[dtype][1]
    text = PRODUCT.format(
        dtype=dtype,
        result=total,
        sum={"f32": "tl.float32", "f64": "tl.float64", "i32": "tl.int32"}[total],
        m=m,
        n=n,
        k=k,
        warps=warps,
        load=load,
        precision=precision,
        epilogue=epilogue,
        stages=stages,
    )
    return kernel_of(text)


def run_product(run, kernel, dtype, shape, is_turned=False, seed=0, scale=None):
    m, n, depth = shape
    kind, _, result = DTYPES[dtype]
    rng = np.random.default_rng(seed)
    low = 0 if dtype == "u8" else -8
    a, b = (rng.integers(low, 8, size).astype(kind) for size in ((m, depth), (n, depth) if is_turned else (depth, n)))
    if scale:
        a, b = (rng.standard_normal(x.shape).astype(kind) for x in (a, b))
    c = np.full((m, n), 77, result)
    run(kernel, None, a, b, c)
    want = a.astype("f8") @ (b.T if is_turned else b).astype("f8")
    return c, want


@on_each_machine
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("load", [PLAIN, TURNED], ids=["plain", "turned"])
def test_product_of_each_dtype_with_operands_either_way(run, dtype, load):
    """Small integers: sums are exact in every dtype. No size is a multiple of the tile's."""
    c, want = run_product(run, kernel_for(dtype, load=load), dtype, (100, 72, 40), load is TURNED)
    assert (c == want).all()


@on_each_machine
@pytest.mark.parametrize("tile", [(16, 8, 16), (16, 16, 128), (128, 16, 16), (32, 128, 64), (64, 64, 64)])
@pytest.mark.parametrize("warps", [1, 2, 8])
def test_product_of_tiles_of_any_shape(run, tile, warps):
    c, want = run_product(run, kernel_for(tile=tile, warps=warps), "f16", (128, 128, 128))
    assert (c == want).all()


@on_each_machine
def test_what_follows_is_computed_in_the_layout_of_the_sums(run):
    epilogue = "acc = tl.maximum(acc * 2.0 + tl.max(acc, 1)[:, None] - rows[:, None].to(tl.float32), 0.0)"
    c, want = run_product(run, kernel_for(epilogue=epilogue), "f16", (64, 64, 64))
    want = np.maximum(want * 2 + want.max(1, keepdims=True) - np.arange(64)[:, None], 0)
    assert (c == want).all()


@on_each_machine
@pytest.mark.parametrize(
    ("precision", "most"), [("", 1e-6), (", input_precision='tf32'", 2e-3), (", input_precision='ieee'", 1e-6)]
)
def test_f32_has_the_precision_that_is_asked_for(run, precision, most):
    kernel = kernel_for("f32", (32, 32, 32), precision=precision)
    c, want = run_product(run, kernel, "f32", (64, 64, 256), scale=1.0)
    error = np.linalg.norm(c - want) / np.linalg.norm(want)
    assert error < most


@on_each_machine
def test_an_empty_depth_gives_zeros(run):
    c, _ = run_product(run, kernel_for(), "f16", (16, 16, 0))
    assert (c == 0).all()


@on_each_machine
def test_the_sum_of_one_product_is_an_operand_of_the_next(run):
    kernel = kernel_of("""
@gm.kernel(grid=1, num_warps=2)
def k(a: gm.ptr[gm.f16], c: gm.ptr[gm.f32]):
    places = tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    x = tl.load(a + places)
    y = tl.dot(x, x)
    tl.store(c + places, tl.dot(y.to(tl.float16), tl.trans(x), y))
""")
    a, c = np.random.default_rng(0).integers(-3, 3, (32, 32)).astype("f2"), np.zeros((32, 32), "f4")
    run(kernel, None, a, c)
    x = a.astype("f8")
    assert (c == x @ x @ x.T + x @ x).all()


# ---- layouts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(UNITS), ids=str)
@pytest.mark.parametrize("shape", [(16, 8), (64, 64), (128, 16), (16, 256)])
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_sums_and_operands_go_together(dtype, shape, warps):
    """Every thread's sums need just the rows and columns that its warp has of the operands."""
    unit = UNITS[dtype]
    sums = accumulator(unit, shape, warps)
    assert sums.is_onto() and sums.threads == 32 * warps
    rows, columns = left(unit, sums, unit.k), right(unit, sums, unit.k)
    assert rows.is_onto() and columns.is_onto()
    for warp in range(warps):
        own = {p for r, lane, w, _ in all_points(sums) if w == warp for p in [sums.at(r, lane, w)]}
        assert {p[0] for p in own} == {rows.at(r, lane, w)[0] for r, lane, w, _ in all_points(rows) if w == warp}
        assert {p[1] for p in own} == {columns.at(r, lane, w)[1] for r, lane, w, _ in all_points(columns) if w == warp}


def test_sums_lie_as_the_instruction_gives_them():
    sums = accumulator(UNITS[dt.f16], (16, 8), 1)
    for register, lane, *_ in all_points(sums):
        row = lane // 4 + 8 * (register >> 1)
        assert sums.at(register, lane) == (row, lane % 4 * 2 + register % 2)


@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("shape", [(64, 64), (8, 16), (128, 32), (16, 8)])
@pytest.mark.parametrize("inner", [0, 1])
def test_rows_of_a_matrix_load_lie_in_different_banks(shape, itemsize, inner):
    arrangement = panels(shape, inner, itemsize, panel_bytes(shape[inner] * itemsize))
    elements = shape[0] * shape[1]
    assert sorted(map(arrangement.offset, range(elements))) == list(range(elements))
    if shape[inner] * itemsize >= 16:
        chunks = [arrangement.offset(r * (shape[1] if inner else 1)) * itemsize // 16 % 8 for r in range(8)]
        assert len(set(chunks)) == 8


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("f16", "m16n8k16.row.col.f32.f16"),
        ("bf16", "m16n8k16.row.col.f32.bf16"),
        ("f32", "m16n8k8.row.col.f32.tf32"),
        ("i8", "m16n8k32.row.col.s32.s8"),
        ("f64", "m8n8k4.row.col.f64.f64"),
    ],
)
def test_products_are_instructions_of_tensor_cores(dtype, name):
    kernel = kernel_for(dtype)
    (first, *_) = compile_variants(kernel, kernel.specialisations()[0], TARGETS["sm_80"])
    assert name in first.code.decode()
    assert "ldmatrix" in first.code.decode() or dtype in ("f64",)


@on_each_machine
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("load", [PLAIN, TURNED], ids=["plain", "turned"])
def test_a_product_of_eight_rows_is_the_transpose_of_one_of_eight_columns(run, dtype, load):
    kernel = kernel_for(dtype, (8, 64, 32), load=load)
    c, want = run_product(run, kernel, dtype, (8, 72, 72), load is TURNED)
    assert (c == want).all()
    code = compile_variants(kernel, kernel.specialisations()[0], TARGETS["sm_80"])[0].code.decode()
    assert "mma.sync" in code
