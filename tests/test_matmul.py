"""matmul: every dtype, layout and odd size against float64, and calls that cannot mean anything."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.compiler.compile import compile_variant, compile_variants
from gristmill.compiler.interpreter import _choose, _fill
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS
from gristmill.dtypes import f32, parse_dtype
from gristmill.errors import GristmillError
from gristmill.specialisation import VARIANTS
from machines import bfloat16, on_each_in_order, shipped_kernels

KERNEL = shipped_kernels()["matmul"]
MOST = {np.float16: 6e-4, bfloat16: 5e-3, np.float32: 1e-6, np.float64: 1e-15}  # ||error|| / ||product||, rounding too
DTYPES = [pytest.param(d, id=np.dtype(d).name) for d in MOST]
SIZES = [1, 7, 33, 65]
rng = np.random.default_rng(0)


def matrix(rows, columns, dtype, pitch=0, is_turned=False):
    """Return normal numbers in an array whose rows are `pitch` apart, NaN between them; or in its transpose."""
    if is_turned:
        return matrix(columns, rows, dtype, pitch).T
    whole = np.full((rows, max(pitch, columns)), np.nan, dtype)
    whole[:, :columns] = rng.standard_normal((rows, columns))
    return whole[:, :columns]


def poison(m, n, dtype, pitch=0):
    return np.full((m, max(pitch, n)), np.nan, dtype)


def error(out, a, b):
    want = a.astype("f8") @ b.astype("f8")
    return np.linalg.norm(out.astype("f8") - want) / max(np.linalg.norm(want), 1e-300)


def assert_product(run, a, b, pitch=0, most=None, **named):
    """Assert that `run` computes a @ b, and writes nothing between the rows of the result."""
    (m, _), (_, n) = a.shape, b.shape
    whole = poison(m, n, a.dtype, pitch)
    chosen = run(KERNEL, None, a, b, whole[:, :n], **named)
    assert error(whole[:, :n], a, b) <= (most or MOST[a.dtype.type])
    assert np.isnan(whole[:, n:].astype("f8")).all()
    return chosen


def chosen_for(a, b, out):
    return dict(_choose(KERNEL, _fill(KERNEL, {"a": a, "b": b, "out": out}), {}).constants)


# ---- right calls ---------------------------------------------------------------------------------------------------


@on_each_in_order
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize("pitch", [0, 8], ids=["dense", "gaps"])
def test_operands_either_way_with_gaps_or_without(run, dtype, turned, pitch):
    m, n, depth = 104, 72, 40
    a = matrix(m, depth, dtype, pitch and 112, turned[0])
    b = matrix(depth, n, dtype, pitch and 80, turned[1])
    chosen = dict(assert_product(run, a, b, pitch and 88).constants)
    assert (chosen["A_TURNED"], chosen["B_TURNED"], chosen["ANY_STRIDES"]) == (*turned, False)


@on_each_in_order
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_that_no_tile_divides(run, dtype):
    for m, n, depth in [(1, 1, 1), (1, 65, 33), (33, 1, 7), (7, 33, 1), (65, 7, 65), (33, 65, 129)]:
        assert_product(run, matrix(m, depth, dtype), matrix(depth, n, dtype), most=3 * MOST[dtype])


TILES = {
    (c["BLOCK_M"], c["BLOCK_N"], c["PER_TWO"], c["PRECISION"]) for s in KERNEL.expanded if (c := dict(s.constants))
}


@on_each_in_order
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("tile", sorted(TILES), ids=str)
def test_every_tile_gives_the_same(run, tile, is_turned):
    named = dict(zip(("BLOCK_M", "BLOCK_N", "PER_TWO", "PRECISION"), tile, strict=True)) | {"B_TURNED": is_turned}
    found = [s for s in KERNEL.expanded if named.items() <= dict(s.constants).items()]
    if not found:
        assert tile[-1] == "tf32"
        return
    dtype = np.float32 if tile[-1] == "tf32" else np.float16
    a, b, out = matrix(136, 136, dtype), matrix(136, 264, dtype, is_turned=is_turned), poison(136, 264, dtype)
    run(KERNEL, found[0], a, b, out)
    assert error(out, a, b) <= (3e-3 if tile[-1] == "tf32" else MOST[np.float16])


@on_each_in_order
def test_no_depth_gives_zeros_and_no_rows_or_columns_nothing(run):
    out = poison(5, 7, np.float32)
    run(KERNEL, None, np.zeros((5, 0), np.float32), np.zeros((0, 7), np.float32), out)
    assert (out == 0).all()
    for m, n in ((0, 3), (3, 0), (0, 0)):
        run(KERNEL, None, matrix(m, 4, np.float32), matrix(4, n, np.float32), poison(m, n, np.float32))


@on_each_in_order
@pytest.mark.parametrize("dtype", DTYPES)
def test_views_of_any_strides(run, dtype):
    a, b = matrix(80, 66, dtype)[::2, ::-1], matrix(66, 90, dtype)[:, ::3]
    assert dict(assert_product(run, a, b).constants)["ANY_STRIDES"]
    repeated = np.broadcast_to(matrix(1, 30, dtype), (66, 30))
    assert dict(assert_product(run, a, repeated).constants)["ANY_STRIDES"]
    out = poison(30, 40, dtype).T
    run(KERNEL, None, a, b, out)
    assert error(out, a, b) <= MOST[dtype]


@on_each_in_order
def test_what_lies_beyond_the_edges_does_not_reach_the_product(run):
    """Also where a pitch lets the aligned code run: gaps hold NaN."""
    a, b = matrix(64, 48, np.float16, 64), matrix(48, 24, np.float16, 64)
    assert_product(run, a, b, 32)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_loops_longer_than_the_pipeline_on_each_target(target, dtype):
    depth = 7 * 128 // np.dtype(dtype).itemsize + 8
    for is_turned in (False, True):
        a, b = matrix(64, depth, dtype), matrix(depth, 72, dtype, 0, is_turned)
        assert_product(run_simulated, a, b, most=2 * MOST[dtype], target=target)


def test_programs_may_run_in_any_order():
    a, b = matrix(600, 16, np.float32), matrix(16, 136, np.float32)
    assert_product(run_simulated, a, b, shuffle=1, most=2e-6)


# ---- layers --------------------------------------------------------------------------------------------------------

LINEAR = shipped_kernels()["linear"]


def layer(rows, n, depth, dtype=np.float32):
    """Return arrays of a layer, the last one poisoned."""
    x, w, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((*rows, depth), (n, depth), (n,)))
    return x, w, bias, np.full((*rows, n), np.nan, dtype)


@on_each_in_order
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [(33,), (2, 3, 11), ()], ids=str)
def test_layer_of_any_rank(run, dtype, rows):
    x, w, bias, out = layer(rows, 72, 40, dtype)
    run(LINEAR, None, x, w, bias, out)
    want = x.astype("f8") @ w.astype("f8").T + bias.astype("f8")
    assert np.linalg.norm(out.astype("f8") - want) <= MOST[dtype] * np.linalg.norm(want)


@on_each_in_order
def test_layer_without_depth_is_its_bias_and_one_without_rows_nothing(run):
    x, w, bias, out = layer((5, 2), 7, 0)
    run(LINEAR, None, x, w, bias, out)
    assert (out == bias).all()
    for rows, n in (((0,), 3), ((3, 0), 3), ((3,), 0)):
        run(LINEAR, None, *layer(rows, n, 4))


@on_each_in_order
@pytest.mark.parametrize("wrong", range(4), ids=["x", "w", "bias", "out"])
def test_layer_whose_shapes_do_not_go_together(run, wrong):
    arrays = list(layer((4, 6), 5, 3))
    arrays[wrong] = np.ones((*arrays[wrong].shape[:-1], arrays[wrong].shape[-1] + 1), np.float32)
    with pytest.raises(GristmillError, match="no specialisation"):
        run(LINEAR, None, *arrays)
    with pytest.raises(GristmillError, match="not contiguous"):
        run(LINEAR, None, np.ones((3, 6), np.float32).T, *layer((4, 6), 5, 3)[1:])


# ---- choice --------------------------------------------------------------------------------------------------------


def test_small_products_take_small_tiles():
    a, b = np.empty((64, 64), np.float16), np.empty((64, 64), np.float16)
    assert chosen_for(a, b, a)["BLOCK_M"] == 64
    large = np.empty((4096, 4096), np.float16)
    assert chosen_for(large, large, large)["BLOCK_N"] == 256
    assert chosen_for(large, large.T, large)["BLOCK_N"] == 256
    odd = np.empty((4096, 4095), np.float16)  # rows of no multiple of 16 bytes: one tile serves them
    for a, b, out in ((large[:, :4095], large[:4095], large), (odd, large[:4095], large), (large, odd, odd)):
        assert chosen_for(a, b, out)["BLOCK_N"] == 64


def test_stride_of_an_axis_with_one_element_says_nothing():
    whole = np.empty((64, 64), np.float16)
    row, column = whole[:1, ::2].T[:1], whole[::2, :1]
    assert row.strides == (4, 128)
    assert not chosen_for(column, row, whole[:32, :1])["ANY_STRIDES"]
    assert not chosen_for(whole[:1, :32], column, row)["ANY_STRIDES"]
    assert chosen_for(whole[::2, ::2], column, column)["ANY_STRIDES"]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("specialisation", KERNEL.specialisations(), ids=lambda s: s.id)
def test_aligned_code_copies_ahead_in_words_of_16_bytes(specialisation, target):
    constants = dict(specialisation.constants)
    if constants["ANY_STRIDES"] or (constants["PER_TWO"] != 2 and target == "sm_80"):
        return  # element by element; not built, since threads would hold too many sums
    code = compile_variant(KERNEL, specialisation, VARIANTS[0], TARGETS[target]).code.decode()
    assert "cp.async" in code
    assert not any(f"], {size}" in line for line in code.splitlines() if "cp.async.c" in line for size in ("4,", "8,"))
    is_double = specialisation.dtypes[0][1].bits == 64
    is_for_others = specialisation.dtypes[0][1] == f32 and specialisation.num_warps == 8 and constants["BLOCK_N"] == 64
    if not is_for_others:
        assert ("wgmma.mma_async" in code) == (not is_double and target == "sm_90a")


@pytest.mark.parametrize("size", [64, 512, 1024, 2048, 4096])
def test_f32_is_exact_unless_a_call_says_otherwise(size):
    a = np.empty((size, size), np.float32)
    values = _fill(KERNEL, {"a": a, "b": a, "out": a})
    for given in ({}, {"PRECISION": "exact"}, {"PRECISION": "tf32"}):
        taken = dict(_choose(KERNEL, values, given).constants)
        assert taken["PRECISION"] == given.get("PRECISION", "exact")


def test_only_lengths_along_contiguous_axes_decide_on_alignment():
    """Odd numbers of rows have fast code, and odd lengths too where the hardware copies blocks."""
    chosen = next(s for s in KERNEL.expanded if dict(s.constants)["BLOCK_N"] == 64)
    pitches = dict.fromkeys(("a_row", "b_row", "out_row"), 8)
    for target, lengths in (("sm_80", ("n", "depth")), ("sm_90a", ())):
        (aligned, *_) = compile_variants(KERNEL, chosen, TARGETS[target])
        assert aligned.divisibility == pitches | dict.fromkeys(lengths, 8)


# ---- wrong calls ---------------------------------------------------------------------------------------------------


@on_each_in_order
@pytest.mark.parametrize(
    "shapes",
    [
        ((4, 5), (6, 7), (4, 7)),
        ((4, 5), (5, 7), (7, 4)),
        ((4, 5), (5, 7), (4, 8)),
        ((4, 5), (5, 7), (5, 7)),
        ((4, 5), (2, 5, 7), (4, 7)),
        ((2, 4, 5), (5, 7), (4, 7)),
        ((4, 5), (5, 7), (4, 7, 2)),
    ],
    ids=str,
)
def test_shapes_that_do_not_go_together(run, shapes):
    out = np.full(shapes[2], 77, np.float32)
    with pytest.raises(GristmillError, match="no specialisation"):
        run(KERNEL, None, *(np.ones(shape, np.float32) for shape in shapes[:2]), out)
    assert (out == 77).all()


@on_each_in_order
def test_dtypes_that_do_not_go_together(run):
    x = np.ones((4, 4), np.float16)
    with pytest.raises((GristmillError, AssertionError), match="dtype"):
        run(KERNEL, None, x, x.astype(np.float32), x)
    with pytest.raises(GristmillError, match="no specialisation"):
        run(KERNEL, None, *(np.ones((4, 4), np.int32) for _ in range(3)))


def test_dtypes_are_those_of_floats():
    assert {d for s in KERNEL.expanded for _, d in s.dtypes} == {parse_dtype(np.dtype(d)) for d in MOST}
