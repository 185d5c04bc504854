"""Products of batches and groups, gradients, and layers with what follows: against float64, on each machine."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from gristmill.cases import spec_of
from gristmill.compiler.compile import compile_variant, lower_variant
from gristmill.compiler.interpreter import _choose, _fill
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS
from gristmill.errors import GristmillError
from gristmill.specialisation import VARIANTS
from machines import MACHINES, bfloat16, shipped_kernels

KERNELS = shipped_kernels()
BATCHED, GROUPED, ACTIVATED = (KERNELS[name] for name in ("batched_matmul", "grouped_matmul", "linear_activated"))
BACKWARD, LAYER_BACKWARD = KERNELS["matmul_backward"], KERNELS["linear_backward"]
MOST = {np.float16: 6e-4, bfloat16: 5e-3, np.float32: 1e-6, np.float64: 1e-15}  # ||error|| / ||result||, rounding too
RUNS = [MACHINES["interpreter"], MACHINES["host"]]
RUNS += [pytest.param(partial(run_simulated, target=name), id=name) for name in ("sm_80", "sm_90a")]
on_each = pytest.mark.parametrize("run", RUNS)
on_each_device = pytest.mark.parametrize("run", RUNS[2:])
DTYPES = [pytest.param(d, id=np.dtype(d).name) for d in MOST]
in_each_dtype = pytest.mark.parametrize("dtype", DTYPES[:3])
in_each_dtype_of_gradients = pytest.mark.parametrize("dtype", DTYPES)
either_way = pytest.mark.parametrize("is_turned", [False, True], ids=["rows", "turned"])
rng = np.random.default_rng(0)


def array(*shape, dtype=np.float32, gap=0, is_turned=False):
    """Return normal numbers whose rows are `gap` further apart than they are long, NaN between; or columns are."""
    if is_turned:
        return array(*shape[:-2], shape[-1], shape[-2], dtype=dtype, gap=gap).swapaxes(-1, -2)
    whole = np.full((*shape[:-1], shape[-1] + gap), np.nan, dtype)
    whole[..., : shape[-1]] = rng.standard_normal(shape)
    return whole[..., : shape[-1]]


def poison(*shape, dtype=np.float32, gap=0, is_turned=False):
    out = array(*shape, dtype=dtype, gap=gap, is_turned=is_turned)
    out[...] = np.nan
    return out


def wide(x):
    return x.astype("f8")


def assert_near(out, want, times=1):
    """Assert that the error is that of `matmul`, and that nothing is written between rows."""
    assert np.linalg.norm(wide(out) - want) <= times * MOST[out.dtype.type] * np.linalg.norm(want)
    between = out.base if out.base is not None else out
    assert np.isnan(wide(between)).sum() == between.size - out.size


def chosen(kernel, **arrays):
    return dict(_choose(kernel, _fill(kernel, arrays), {}).constants)


def halves_of(kernel):
    return [s for s in kernel.specialisations() if s.dtypes[0][1].name == "f16"]


# ---- batches -------------------------------------------------------------------------------------------------------


@on_each
@in_each_dtype
@either_way
@pytest.mark.parametrize("gap", [0, 8], ids=["dense", "gaps"])
def test_batches_either_way_with_gaps_or_without(run, dtype, is_turned, gap):
    a, b = array(3, 20, 40, dtype=dtype, gap=gap), array(3, 40, 72, dtype=dtype, gap=gap, is_turned=is_turned)
    out = poison(3, 20, 72, dtype=dtype, gap=gap)
    ran = run(BATCHED, None, a, b, out)
    assert_near(out, wide(a) @ wide(b))
    assert dict(ran.constants)["B_TURNED"] == is_turned


@on_each
def test_batches_of_sizes_that_no_tile_divides(run):
    for batch, m, n, depth in [(1, 1, 1, 1), (5, 1, 65, 33), (2, 65, 7, 65), (2, 66, 65, 1)]:
        a, b, out = array(batch, m, depth), array(batch, depth, n), poison(batch, m, n)
        run(BATCHED, None, a, b, out)
        assert_near(out, wide(a) @ wide(b), 2)


@on_each
@either_way
def test_one_matrix_for_all_of_a_batch(run, is_turned):
    many, one = array(4, 40, 24, dtype=np.float16), array(24, 40, dtype=np.float16, is_turned=is_turned)
    b, out = np.broadcast_to(one, (4, 24, 40)), poison(4, 40, 40, dtype=np.float16)
    run(BATCHED, None, many, b, out)
    assert_near(out, wide(many) @ wide(one))
    a, out = np.broadcast_to(array(16, 40, dtype=np.float16), (4, 16, 40)), poison(4, 16, 24, dtype=np.float16)
    run(BATCHED, None, a, many, out)
    assert_near(out, wide(a) @ wide(many))


@on_each
def test_matrices_in_any_order_and_distance(run):
    """Heads beside each other, as attention has them; every other one, from the last."""
    tokens = array(10, 4, 16)
    a, b = tokens.swapaxes(0, 1), array(8, 16, 12)[::-2]
    out = np.full((10, 4, 12), np.nan, np.float32)
    run(BATCHED, None, a, b, out.swapaxes(0, 1))
    assert_near(out, (wide(a) @ wide(b)).swapaxes(0, 1))


@on_each
def test_batches_without_depth_are_zeros_and_empty_ones_nothing(run):
    out = poison(2, 5, 7)
    run(BATCHED, None, np.zeros((2, 5, 0), np.float32), np.zeros((2, 0, 7), np.float32), out)
    assert (out == 0).all()
    for batch, m, n in ((0, 3, 4), (2, 0, 3), (2, 3, 0)):
        run(BATCHED, None, array(batch, m, 4), array(batch, 4, n), poison(batch, m, n))


@on_each_device
@pytest.mark.parametrize("specialisation", halves_of(BATCHED), ids=lambda s: s.id)
def test_every_tile_of_batches_gives_the_same(run, specialisation):
    is_turned = dict(specialisation.constants)["B_TURNED"]
    a, b = array(2, 72, 136, dtype=np.float16), array(2, 136, 136, dtype=np.float16, is_turned=is_turned)
    out = poison(2, 72, 136, dtype=np.float16)
    run(BATCHED, specialisation, a, b, out, grid=(3,))
    assert_near(out, wide(a) @ wide(b))


@on_each
@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 4, 5), (2, 6, 7), (2, 4, 7)),
        ((2, 4, 5), (3, 5, 7), (2, 4, 7)),
        ((2, 4, 5), (2, 5, 7), (2, 7, 4)),
        ((2, 4, 5), (2, 5, 7), (2, 4, 8)),
        ((2, 4, 5), (2, 5, 7), (4, 2, 7)),
        ((2, 4, 5), (1, 5, 7), (2, 4, 7)),
    ],
    ids=str,
)
def test_batches_whose_shapes_do_not_go_together(run, shapes):
    out = np.full(shapes[2], 77, np.float32)
    with pytest.raises(GristmillError, match="no specialisation"):
        run(BATCHED, None, *(np.ones(shape, np.float32) for shape in shapes[:2]), out)
    assert (out == 77).all()


def test_rows_of_batches_must_be_contiguous():
    x = np.ones((2, 4, 8), np.float32)[..., ::2]
    with pytest.raises(GristmillError, match="no specialisation"):
        run_simulated(BATCHED, None, x, np.ones((2, 4, 4), np.float32), poison(2, 4, 4))


# ---- groups --------------------------------------------------------------------------------------------------------


def np_grouped(x, w, ends):
    return spec_of(GROUPED).reference(wide(x), wide(w), ends)


@on_each
@in_each_dtype
@either_way
def test_groups_of_any_sizes(run, dtype, is_turned):
    ends = np.cumsum([3, 0, 70, 1, 0], dtype=np.int32)
    x, w = array(80, 40, dtype=dtype, gap=8), array(5, 40, 72, dtype=dtype, gap=8, is_turned=is_turned)
    out = poison(80, 72, dtype=dtype, gap=8)
    ran = run(GROUPED, None, x, w, ends, out)
    assert dict(ran.constants)["W_TURNED"] == is_turned
    assert np.isnan(wide(out[74:])).all(), "rows behind the last end are left as they are"
    out[74:] = 0
    assert_near(out, np_grouped(x, w, ends))


@on_each
@pytest.mark.parametrize(
    "ends", [(5, 2, 9, 9), (-4, 3, 100, 20), (10, 10, 10, 10), (2**31 - 1, -(2**31), 0, 3)], ids=str
)
def test_ends_that_are_no_ends_reach_no_row_beyond(run, ends):
    x, w, out = array(10, 8), array(4, 8, 12), np.full((12, 12), np.nan, np.float32)
    run(GROUPED, None, x, w, np.array(ends, np.int32), out[1:11])
    assert np.isnan(out[[0, 11]]).all()
    want = np_grouped(x, w, np.array(ends))
    np.testing.assert_allclose(np.nan_to_num(out[1:11]), want, atol=1e-5)
    assert np.isnan(out[1:11]).all(1).sum() == 10 - min(10, max(ends))


@on_each
@pytest.mark.parametrize("programs", [1, 5, 64])
def test_programs_take_turns_over_all_groups(run, programs):
    ends = np.cumsum([70, 0, 1, 64, 130, 3], dtype=np.int32)
    x, w, out = array(268, 8), array(6, 8, 70), poison(268, 70)
    run(GROUPED, None, x, w, ends, out, grid=(programs,))
    assert_near(out, np_grouped(x, w, ends), 2)


@on_each_device
@pytest.mark.parametrize("specialisation", halves_of(GROUPED), ids=lambda s: s.id)
def test_every_tile_of_groups_gives_the_same(run, specialisation):
    ends = np.array([60, 72], np.int32)
    is_turned = dict(specialisation.constants)["W_TURNED"]
    x, w = array(72, 72, dtype=np.float16), array(2, 72, 136, dtype=np.float16, is_turned=is_turned)
    out = poison(72, 136, dtype=np.float16)
    run(GROUPED, specialisation, x, w, ends, out, grid=(3,))
    assert_near(out, np_grouped(x, w, ends))


@on_each
def test_groups_without_depth_are_zeros_and_empty_ones_nothing(run):
    out = poison(5, 7)
    ends = np.array([2, 5], np.int32)
    run(GROUPED, None, np.zeros((5, 0), np.float32), np.zeros((2, 0, 7), np.float32), ends, out)
    assert (out == 0).all()
    for rows, groups, n in ((0, 2, 4), (3, 0, 4), (3, 2, 0)):
        out = poison(rows, n)
        run(GROUPED, None, array(rows, 4), array(groups, 4, n), np.full(groups, rows, np.int32), out)
        assert np.isnan(out).all()


@on_each
@pytest.mark.parametrize(
    "shapes",
    [
        ((4, 5), (2, 6, 7), (2,), (4, 7)),
        ((4, 5), (2, 5, 7), (3,), (4, 7)),
        ((4, 5), (2, 5, 7), (2,), (5, 7)),
        ((4, 5), (2, 5, 7), (2,), (4, 8)),
        ((4, 5), (2, 5, 7), (2,), (7, 4)),
    ],
    ids=str,
)
def test_groups_whose_shapes_do_not_go_together(run, shapes):
    x, w, out = (np.full(shapes[i], 77, np.float32) for i in (0, 1, 3))
    with pytest.raises(GristmillError, match="no specialisation"):
        run(GROUPED, None, x, w, np.full(shapes[2], 4, np.int32), out)
    assert (out == 77).all()


# ---- gradients -----------------------------------------------------------------------------------------------------


def gradient_arrays(m, n, depth, dtype=np.float32, gap=0, is_turned=False):
    """dout, a and b; then da and db, poisoned."""
    made = (array(m, n, dtype=dtype, gap=gap), array(m, depth, dtype=dtype, gap=gap))
    b = array(depth, n, dtype=dtype, gap=gap, is_turned=is_turned)
    db = poison(depth, n, dtype=dtype, gap=gap, is_turned=is_turned)
    return *made, b, poison(m, depth, dtype=dtype, gap=gap), db


def assert_gradients(run, arrays, times=1, **named):
    dout, a, b, da, db = arrays
    ran = run(BACKWARD, named.pop("only", None), *arrays, **named)
    assert_near(da, wide(dout) @ wide(b).T, times)
    assert_near(db, wide(a).T @ wide(dout), times)
    return ran


@on_each
@in_each_dtype_of_gradients
@either_way
@pytest.mark.parametrize("gap", [0, 8], ids=["dense", "gaps"])
def test_gradients_either_way_with_gaps_or_without(run, dtype, is_turned, gap):
    ran = assert_gradients(run, gradient_arrays(40, 72, 24, dtype, gap, is_turned))
    assert dict(ran.constants)["B_TURNED"] == is_turned


@on_each
@either_way
def test_gradients_of_sizes_that_no_tile_divides(run, is_turned):
    for sizes in [(1, 1, 1), (33, 1, 7), (7, 65, 1), (66, 65, 3)]:
        assert_gradients(run, gradient_arrays(*sizes, is_turned=is_turned), 3)


@on_each_device
@pytest.mark.parametrize("specialisation", halves_of(BACKWARD), ids=lambda s: s.id)
def test_every_tile_of_gradients_gives_the_same(run, specialisation):
    is_turned = dict(specialisation.constants)["B_TURNED"]
    arrays = gradient_arrays(136, 72, 136, np.float16, is_turned=is_turned)
    assert_gradients(run, arrays, only=specialisation, grid=(3,))


@on_each
def test_gradients_by_nothing_are_zeros(run):
    for m, n, depth in ((0, 3, 4), (3, 0, 4), (3, 4, 0)):
        *given, da, db = gradient_arrays(m, n, depth)
        run(BACKWARD, None, *given, da, db)
        assert (da == 0).all() and (db == 0).all()


@on_each
@pytest.mark.parametrize("wrong", range(5), ids=["dout", "a", "b", "da", "db"])
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_whose_shapes_do_not_go_together(run, wrong, axis):
    shapes = [list(x.shape) for x in gradient_arrays(4, 6, 5)]
    shapes[wrong][axis] += 1
    arrays = [np.full(shape, 77, np.float32) for shape in shapes]
    with pytest.raises(GristmillError, match="no specialisation"):
        run(BACKWARD, None, *arrays)
    assert (arrays[3] == 77).all() and (arrays[4] == 77).all()


def test_gradient_of_a_turned_matrix_is_turned():
    *arrays, db = gradient_arrays(4, 6, 5, is_turned=True)
    with pytest.raises(GristmillError, match="no specialisation"):
        run_simulated(BACKWARD, None, *arrays, np.ascontiguousarray(db))


def layer_arrays(rows, n, depth, dtype=np.float32):
    """dout, x and w; then dx, dw and dbias, poisoned."""
    shapes = ((*rows, n), (*rows, depth), (n, depth), (*rows, depth), (n, depth), (n,))
    return [array(*shape, dtype=dtype) if i < 3 else np.full(shape, np.nan, dtype) for i, shape in enumerate(shapes)]


def assert_layer_gradients(run, arrays, times=1, **named):
    dout, x, w = (wide(given) for given in arrays[:3])
    run(LAYER_BACKWARD, named.pop("only", None), *arrays, **named)
    wanted = spec_of(LAYER_BACKWARD).reference(dout, x, w)
    for found, want in zip(arrays[3:], wanted, strict=True):
        assert_near(found, want, times)


@on_each
@in_each_dtype_of_gradients
@pytest.mark.parametrize("rows", [(33,), (2, 3, 11), ()], ids=str)
def test_gradients_of_a_layer_of_any_rank(run, dtype, rows):
    assert_layer_gradients(run, layer_arrays(rows, 72, 40, dtype))


@on_each
def test_sums_of_many_rows_are_those_of_wide_numbers(run):
    """Of numbers which f16 could not add."""
    arrays = layer_arrays((600,), 8, 8, np.float16)
    arrays[0][...] = 100
    run(LAYER_BACKWARD, None, *arrays)
    assert (arrays[-1] == 60_000).all()


@on_each_device
@pytest.mark.parametrize("specialisation", halves_of(LAYER_BACKWARD), ids=lambda s: s.id)
def test_every_tile_of_a_layers_gradients_gives_the_same(run, specialisation):
    arrays = layer_arrays((264,), 72, 40, np.float16)
    assert_layer_gradients(run, arrays, only=specialisation, grid=(3,))


@on_each
def test_gradients_of_a_layer_by_nothing_are_zeros(run):
    for rows, n, depth in (((0,), 3, 4), ((3,), 0, 4), ((2, 3), 4, 0)):
        dout, *_, dx, dw, dbias = arrays = layer_arrays(rows, n, depth)
        run(LAYER_BACKWARD, None, *arrays)
        assert (dx == 0).all() and (dw == 0).all()
        np.testing.assert_allclose(dbias, dout.reshape(-1, n).sum(0) if n else [], rtol=1e-5, atol=1e-6)


@on_each
@pytest.mark.parametrize("wrong", range(6), ids=["dout", "x", "w", "dx", "dw", "dbias"])
def test_layers_gradients_whose_shapes_do_not_go_together(run, wrong):
    arrays = layer_arrays((4, 6), 5, 3)
    arrays[wrong] = np.full((*arrays[wrong].shape[:-1], arrays[wrong].shape[-1] + 1), 77, np.float32)
    with pytest.raises(GristmillError, match="no specialisation"):
        run(LAYER_BACKWARD, None, *arrays)
    with pytest.raises(GristmillError, match="not contiguous"):
        run(LAYER_BACKWARD, None, np.ones((5, 24), np.float32).T, *layer_arrays((24,), 5, 3)[1:])


# ---- layers and what follows ---------------------------------------------------------------------------------------

ACTIVATIONS = ("none", "relu", "gelu", "silu")


def activated_arrays(rows, n, depth, dtype=np.float32):
    """x, w, bias and residual; then out, poisoned."""
    shapes = ((*rows, depth), (n, depth), (n,), (*rows, n))
    return [*(array(*shape, dtype=dtype) for shape in shapes), np.full(shapes[3], np.nan, dtype)]


def np_activated(x, w, bias, residual, scale, activation):
    return spec_of(ACTIVATED).reference(*map(wide, (x, w, bias, residual)), scale, activation)


@on_each
@in_each_dtype
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_layer_with_what_follows(run, dtype, activation):
    *given, out = activated_arrays((2, 17), 72, 40, dtype)
    run(ACTIVATED, None, *given, out, scale=-1.5, ACTIVATION=activation)
    assert_near(out, np_activated(*given, -1.5, activation), 3)


@on_each
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_sum_with_the_residual_in_place(run, dtype):
    *given, _ = activated_arrays((70,), 72, 40, dtype)
    want = np_activated(*given, 1.0, "silu")
    run(ACTIVATED, None, *given, given[3], ACTIVATION="silu")
    assert_near(given[3], want, 2)


@on_each
def test_layer_of_large_and_special_values(run):
    """Activations at their ends, infinities and NaN: with weights that hand x on."""
    values = np.array([0, -0.0, 1e-30, 90, -90, 1e30, -1e30, np.inf, np.nan], np.float32)
    x, w = np.outer(np.ones(3, np.float32), np.ones(1, np.float32)), np.ones((len(values), 1), np.float32)
    out, residual = np.full((3, len(values)), 77, np.float32), np.zeros((3, len(values)), np.float32)
    for activation in ACTIVATIONS:
        run(ACTIVATED, None, x, 0 * w, values, residual, out, ACTIVATION=activation)
        with np.errstate(invalid="ignore", over="ignore"):
            want = np_activated(x, 0 * w, values, residual, 1.0, activation)
            np.testing.assert_allclose(out, want.astype(np.float32), rtol=1e-5)


@on_each_device
@pytest.mark.parametrize("specialisation", halves_of(ACTIVATED), ids=lambda s: s.id)
def test_every_tile_of_layers_gives_the_same(run, specialisation):
    *given, out = activated_arrays((72,), 136, 72, np.float16)
    run(ACTIVATED, specialisation, *given, out, scale=0.5)
    assert_near(out, np_activated(*given, 0.5, dict(specialisation.constants)["ACTIVATION"]), 2)


@on_each
def test_layer_without_depth_is_what_follows_its_bias(run):
    *given, out = activated_arrays((5, 2), 7, 0)
    run(ACTIVATED, None, *given, out, ACTIVATION="relu")
    np.testing.assert_array_equal(out, np.maximum(given[2], 0) + given[3])
    for rows, n in (((0,), 3), ((3, 0), 3), ((3,), 0)):
        run(ACTIVATED, None, *activated_arrays(rows, n, 4))


@on_each
@pytest.mark.parametrize("wrong", range(5), ids=["x", "w", "bias", "residual", "out"])
def test_layer_whose_shapes_do_not_go_together(run, wrong):
    arrays = activated_arrays((4, 6), 5, 3)
    arrays[wrong] = np.ones((*arrays[wrong].shape[:-1], arrays[wrong].shape[-1] + 1), np.float32)
    with pytest.raises(GristmillError, match="no specialisation"):
        run(ACTIVATED, None, *arrays)


def test_activation_that_there_is_not():
    with pytest.raises(GristmillError, match="no specialisation"):
        run_simulated(ACTIVATED, None, *activated_arrays((4,), 5, 3), ACTIVATION="tanh")


# ---- choice and code -----------------------------------------------------------------------------------------------


def test_tiles_go_by_the_size_of_all_products_together():
    def sides(kernel, **arrays):
        constants = chosen(kernel, **arrays)
        return constants["BLOCK_M"], constants["BLOCK_N"]

    def matrices(*shape):
        return np.empty(shape, np.float16)

    square = matrices(256, 512, 512)
    assert sides(BATCHED, a=square, b=square, out=square) == (128, 256)
    narrow = matrices(256, 512, 72)
    assert sides(BATCHED, a=square, b=narrow, out=narrow) == (128, 128)
    small = matrices(4096, 64, 64)
    assert sides(BATCHED, a=small, b=small, out=small) == (64, 64)
    x = matrices(4096, 512)
    for groups, side in ((8, 128), (64, 64)):
        w, ends = matrices(groups, 512, 4096), np.zeros(groups, np.int32)
        assert sides(GROUPED, x=x, w=w, ends=ends, out=matrices(4096, 4096))[0] == side
    large = matrices(4096, 4096)
    assert sides(BACKWARD, dout=large, a=large, b=large, da=large, db=large) == (128, 256)
    wide = dict.fromkeys(("dout", "a", "b", "da", "db"), large.astype("f4"))
    assert sides(BACKWARD, **wide) == (128, 128)
    exact = dict.fromkeys(("dout", "a", "b", "da", "db"), large.astype("f8"))
    assert sides(BACKWARD, **exact)[0] == 64


@pytest.mark.parametrize("kernel", [BATCHED, GROUPED, BACKWARD], ids=lambda k: k.name)
def test_blocks_of_halves_are_copied_by_the_hardware(kernel):
    for specialisation in halves_of(kernel):
        code = compile_variant(kernel, specialisation, VARIANTS[0], TARGETS["sm_90a"])
        operands = {"x", "w"} if kernel is GROUPED else {"a", "b"}
        assert {m.parameter for m in code.tensor_maps} >= operands
        assert b"wgmma.mma_async" in code.code
        assert b"cp.async.ca" not in code.code and b"cp.async.cg" not in code.code


# ---- what fits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linear_activated", "linear_backward", "matmul_backward", "grouped_matmul"])
def test_tiles_that_warpgroups_multiply_fit_a_block(name):
    """What is stored while other tiles are moved counts against the stages of loops."""
    kernel = shipped_kernels()[name]
    large = [s for s in kernel.specialisations() if s.only_aligned and dict(s.constants)["BLOCK_N"] >= 128]
    for specialisation in {(s.dtypes, dict(s.constants)["BLOCK_N"]): s for s in large}.values():
        if specialisation.warpgroups is False or specialisation.dtypes[0][1].name == "f64":
            continue
        lowered = lower_variant(kernel, specialisation, VARIANTS[0], TARGETS["sm_90a"], lambda stage, thing: None)
        assert not lowered.overflows and lowered.shared_bytes <= TARGETS["sm_90a"].shared_bytes, specialisation.id
