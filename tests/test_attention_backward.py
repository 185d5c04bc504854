"""Gradients of attention: those of the forward's definition, on each machine, fused and in order."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from gristmill.cases import spec_of
from gristmill.compiler.compile import compile_variant
from gristmill.compiler.interpreter import run_kernel
from gristmill.compiler.targets import TARGETS
from gristmill.errors import GristmillError
from gristmill.specialisation import VARIANTS
from host import run_on_host
from machines import bfloat16, needs_host, on_each_in_order, shipped_kernels
from test_windows_shapes import on_each, run_windows

KERNELS = shipped_kernels()
FORWARD, DELTA, FUSED, ORDERED = (
    KERNELS[f"attention_{name}"] for name in ("forward", "delta", "backward", "backward_ordered")
)
forward = spec_of(FORWARD).reference
either_kernel = pytest.mark.parametrize("kernel", [FUSED, ORDERED], ids=["fused", "ordered"])
MOST = {np.float16: 1e-3, bfloat16: 8e-3, np.float32: 2e-6}  # ||error|| / ||gradient||, of weights rounded to a dtype
RESULTS = ("dq", "dk", "dv")


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def inputs(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> dict[str, np.ndarray]:
    """q, k, v and dout of batch, heads, groups, queries, keys and elements of a head."""
    batch, heads, groups, queries, keys, head = shape
    rows, columns = (batch, heads, queries, head), (batch, groups, keys, head)
    random = np.random.default_rng(seed)
    shapes = {"q": rows, "k": columns, "v": columns, "dout": rows}
    return {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def saved(given: dict[str, np.ndarray], how: dict[str, Any]) -> dict[str, np.ndarray]:
    """Lse and delta, as a forward pass leaves them."""
    out, lse = forward(*(wide(given[name]) for name in "qkv"), **how)
    return {"lse": lse.astype(np.float32), "delta": (out * wide(given["dout"])).sum(-1).astype(np.float32)}


def results(kernel: Any, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Zeros to add to, else poison."""
    made = {f"d{name}": np.full(given[name].shape, np.nan, given[name].dtype) for name in "qkv"}
    return made | ({"dq": np.zeros(given["q"].shape, np.float32)} if kernel is FUSED else {})


def scalars(head: int, causal: int = 0, window: int = 0, scale: float | None = None) -> dict[str, Any]:
    return {"scale": float(np.float32(scale or head**-0.5)), "causal": causal, "window": window}


def run_gradients(run: Any, kernel: Any, given: dict[str, np.ndarray], how: dict[str, Any], **named: Any) -> dict:
    got = results(kernel, given)
    with np.errstate(divide="ignore"):
        run(kernel, named.pop("only", None), **given, **saved(given, how), **got, **how, **named)
    return got


def expected(given: dict[str, np.ndarray], how: dict[str, Any]) -> dict[str, np.ndarray]:
    """The gradients that the kernels' reference gives for the forward's reference, all in float64."""
    q, k, v, dout = (wide(given[name]) for name in ("q", "k", "v", "dout"))
    with np.errstate(divide="ignore", invalid="ignore"):
        out, lse = forward(q, k, v, **how)
        found = spec_of(FUSED).reference(q, k, v, dout, lse, (out * dout).sum(-1), **how)
    return dict(zip(RESULTS, found, strict=True))


def assert_gradients(got: dict[str, np.ndarray], given: dict[str, np.ndarray], how: dict[str, Any]) -> None:
    most = MOST[given["q"].dtype.type]
    for name, want in expected(given, how).items():
        error = np.linalg.norm(wide(got[name]) - want)
        assert error <= most * np.linalg.norm(want), (name, error / np.linalg.norm(want))


# ---- what is right -------------------------------------------------------------------------------------------------

MASKS = [{}, {"causal": 1}, {"causal": 2}, {"window": 2}, {"causal": 1, "window": 2}, {"causal": 2, "window": 3}]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 6), (7, 4)])
def test_reference_is_the_slope_of_the_forwards(mask, queries, keys):
    """By differences of sum(out * dout), along one direction in all of q, in all of k, and in all of v."""
    given = {name: wide(x) for name, x in inputs((2, 4, 2, queries, keys, 8)).items()}
    along = inputs((2, 4, 2, queries, keys, 8), np.float64, seed=1)
    how, step = scalars(8, **mask), 1e-5

    def loss(name: str, distance: float) -> float:
        moved = given | {name: given[name] + distance * along[name]}
        with np.errstate(divide="ignore"):
            return float((forward(*(moved[n] for n in "qkv"), **how)[0] * given["dout"]).sum())

    for name, gradient in expected(given, how).items():
        slope = (loss(name[1:], step) - loss(name[1:], -step)) / (2 * step)
        np.testing.assert_allclose((gradient * along[name[1:]]).sum(), slope, rtol=1e-7, atol=1e-8)


SHAPES = [  # batch, heads, groups, queries, keys, elements of a head; mask; dtype; which rows of a block
    ((1, 4, 2, 40, 72, 64), {"causal": 2}, np.float16, max),
    ((1, 1, 1, 72, 64, 128), {}, bfloat16, max),
    ((1, 2, 1, 37, 21, 64), {"causal": 2}, bfloat16, min),
    ((2, 1, 1, 33, 66, 64), {"window": 20}, np.float32, max),
    ((1, 1, 1, 20, 9, 128), {"causal": 1}, np.float32, max),
]
NAMES = {np.float16: "f16", bfloat16: "bf16", np.float32: "f32"}


def all_rows(kernel: Any, dtype: Any, head: int) -> set[int]:
    """Rows of the blocks that CUDA devices have code for."""
    own = [s for s in kernel.specialisations() if s.serves("cuda") and s.dtypes[0][1].name == NAMES[dtype]]
    return {dict(s.constants)["ROWS"] for s in own if dict(s.constants)["HEAD"] == head}


@on_each
@either_kernel
@pytest.mark.parametrize(("shape", "mask", "dtype", "choose"), SHAPES, ids=str)
def test_gradients_of_each_dtype_and_block(run, kernel, shape, mask, dtype, choose):
    """The third has queries that see nothing."""
    given, how = inputs(shape, dtype), scalars(shape[-1], **mask)
    block = {} if run is run_on_host else {"ROWS": choose(all_rows(kernel, dtype, shape[-1]))}  # a CPU has one
    got = run_gradients(run, kernel, given, how, **block)
    assert_gradients(got, given, how)


@on_each
@pytest.mark.parametrize(
    ("shape", "mask", "dtype"),
    [
        ((1, 2, 1, 40, 150, 32), {"causal": 2}, np.float16),
        ((1, 1, 1, 37, 50, 32), {"window": 30}, np.float32),
        ((1, 2, 1, 40, 50, 256), {"causal": 1}, bfloat16),
    ],
    ids=str,
)
def test_narrow_and_wide_heads_have_fused_gradients(run, shape, mask, dtype):
    given, how = inputs(shape, dtype), scalars(shape[-1], **mask)
    assert_gradients(run_gradients(run, FUSED, given, how), given, how)


EDGES = [{"window": window, "causal": causal} for causal in (0, 1, 2) for window in (0, 2, 31, 64, 65, 150)]


@needs_host
@either_kernel
@pytest.mark.parametrize(("queries", "keys"), [(150, 131), (70, 193), (193, 66)])
def test_every_edge_of_a_mask_between_blocks(kernel, queries, keys):
    given = inputs((1, 1, 1, queries, keys, 64))
    for mask in EDGES:
        how = scalars(64, **mask)
        assert_gradients(run_gradients(run_on_host, kernel, given, how), given, how)


@on_each_in_order
@either_kernel
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_keys_behind_the_last_count_nothing_however_small_the_sums(run, kernel, dtype):
    """Every product is -200: a row of zeros instead of a key would weigh e^200, which no number is."""
    given = inputs((1, 1, 1, 8, 5, 64), dtype)
    given |= {"q": np.full_like(given["q"], 5), "k": np.full_like(given["k"], -5)}
    how = scalars(64)
    assert saved(given, how)["lse"].max() < -190
    got = run_gradients(run, kernel, given, how)
    assert all(np.isfinite(x).all() for x in got.values())
    np.testing.assert_allclose(wide(got["dv"]), expected(given, how)["dv"], rtol=2e-3, atol=1e-3)


@on_each_in_order
@either_kernel
def test_what_sees_nothing_and_what_nothing_sees_have_no_gradients(run, kernel):
    given = inputs((1, 1, 1, 40, 20, 64))
    got = run_gradients(run, kernel, given, scalars(64, causal=2))
    assert (got["dq"][:, :, :20] == 0).all() and (got["dq"][:, :, 20:] != 0).any()
    given = inputs((1, 1, 1, 20, 40, 64))
    got = run_gradients(run, kernel, given, scalars(64, causal=1))
    assert all((got[name][:, :, 20:] == 0).all() and (got[name][:, :, :20] != 0).any() for name in ("dk", "dv"))


@on_each_in_order
def test_fused_gradients_are_added_to_what_is_there(run):
    given, how = inputs((1, 1, 1, 9, 7, 64)), scalars(64)
    got, again = results(FUSED, given), run_gradients(run, FUSED, given, how)
    got["dq"][...] = 1000
    run(FUSED, None, **given, **saved(given, how), **got, **how)
    np.testing.assert_allclose(got["dq"] - 1000, again["dq"], atol=2e-4)


# ---- where arrays lie ----------------------------------------------------------------------------------------------


def beside(x: np.ndarray, others: int = 2) -> np.ndarray:
    """Return a copy that lies as [batch, rows, heads, elements], before others, which are NaN, at each row."""
    batch, heads, rows, head = x.shape
    whole = np.full((batch, rows, 1 + others, heads, head), np.nan, x.dtype)
    view = whole[:, :, 0].swapaxes(1, 2)
    view[...] = x
    return view


def is_untouched(view: np.ndarray) -> bool:
    assert view.base is not None
    return bool(np.isnan(wide(view.base[:, :, 1:])).all())


@on_each_in_order
@either_kernel
def test_heads_may_lie_beside_each_other(run, kernel):
    """As a layer of [batch, rows, 3, heads, elements] leaves them, or others: the same bits as of contiguous arrays."""
    given, how = inputs((2, 2, 1, 24, 64, 64), np.float16), scalars(64, causal=1)
    plain = run_gradients(run, kernel, given, how)
    moved = {name: beside(x, others) for others, (name, x) in enumerate(given.items(), 1)}
    got = {name: beside(x, others) for others, (name, x) in enumerate(results(kernel, given).items(), 5)}
    run(kernel, None, **moved, **saved(given, how), **got, **how)
    for name in RESULTS:
        assert np.ascontiguousarray(got[name]).tobytes() == plain[name].tobytes(), name
        assert is_untouched(got[name])


@on_each_in_order
@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32])
def test_delta_of_heads_that_lie_beside_each_other(run, dtype):
    given = inputs((2, 3, 3, 37, 37, 64), dtype)
    out, dout = beside(given["q"]), given["dout"]
    delta = np.full((2, 3, 37), np.nan, np.float32)
    run(DELTA, None, out, dout, delta)
    np.testing.assert_allclose(delta, (wide(out) * wide(dout)).sum(-1), rtol=1e-5, atol=1e-5)


# ---- order ---------------------------------------------------------------------------------------------------------


def bits(got: dict[str, np.ndarray]) -> bytes:
    return b"".join(got[name].tobytes() for name in RESULTS)


def test_ordered_gradients_have_the_same_bits_in_whatever_order_programs_run():
    given, how = inputs((1, 2, 1, 40, 70, 64), np.float16), scalars(64)
    seen = {bits(run_gradients(run_windows, ORDERED, given, how, shuffle=seed)) for seed in (1, 2)}
    seen |= {bits(run_gradients(run_windows, ORDERED, given, how, grid=(2,)))}
    assert len(seen) == 1


@needs_host
@either_kernel
@pytest.mark.parametrize("programs", [1, 3, 40])
def test_programs_take_turns_over_all_blocks(kernel, programs):
    given, how = inputs((2, 2, 1, 70, 150, 64)), scalars(64, causal=1)
    assert_gradients(run_gradients(run_on_host, kernel, given, how, grid=(programs,)), given, how)


def test_only_fused_gradients_are_added_in_memory():
    for kernel, is_added in ((FUSED, True), (ORDERED, False)):
        code = compile_variant(kernel, kernel.specialisations()[0], VARIANTS[0], TARGETS["sm_90a"]).code
        drawing = b"atom.relaxed.gpu.global.add.u32"  # the numbers of tiles
        found = set(re.findall(rb"\b(?:red|atom|cp\.reduce)\.[\w.]+", code)) - {drawing}
        assert bool(found) == is_added
        assert all(name.startswith(b"cp.reduce.async.bulk.tensor") for name in found), found


# ---- calls that are wrong ------------------------------------------------------------------------------------------


@either_kernel
@pytest.mark.parametrize("wrong", ["q", "k", "v", "dout", "lse", "delta", *RESULTS])
def test_shapes_that_do_not_go_together(kernel, wrong):
    given, how = inputs((2, 2, 2, 3, 4, 64)), scalars(64)
    arrays = given | saved(given, how) | results(kernel, given)
    for axis in range(arrays[wrong].ndim):
        shape = list(arrays[wrong].shape)
        shape[axis] += 1
        with pytest.raises(GristmillError, match="no specialisation"):
            run_kernel(kernel, None, **(arrays | {wrong: np.ones(shape, arrays[wrong].dtype)}), **how)


@either_kernel
@pytest.mark.parametrize("wrong", ["q", "k", "v", "dout", *RESULTS])
def test_arrays_of_one_size_but_another_shape(kernel, wrong):
    given, how = inputs((2, 2, 2, 4, 4, 64)), scalars(64)
    arrays = given | saved(given, how) | results(kernel, given)
    for shape in ((1, 2, 4, 128), (2, 4, 2, 64), (4, 2, 2, 64), (2, 1, 4, 128)):
        with pytest.raises(GristmillError, match="no specialisation"):
            run_kernel(kernel, None, **(arrays | {wrong: arrays[wrong].reshape(shape)}), **how)


@either_kernel
def test_heads_that_groups_do_not_divide(kernel):
    for heads, groups in ((3, 2), (2, 4), (2, 0)):
        rows, columns = np.ones((1, heads, 3, 64), np.float32), np.ones((1, groups, 3, 64), np.float32)
        given = {"q": rows, "k": columns, "v": columns, "dout": rows}
        lines = dict.fromkeys(("lse", "delta"), np.ones((1, heads, 3), np.float32))
        with pytest.raises(GristmillError, match="no specialisation"):
            run_kernel(kernel, None, **given, **lines, **results(kernel, given), **scalars(64))
