"""Chained products where warps multiply (sm_80): weights stay in registers, and matrices of many are copied ahead."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from gristmill.cases import spec_of
from gristmill.compiler.compile import compile_variants, lower_variant
from gristmill.compiler.ir import For, Op, walk
from gristmill.compiler.layout import unflatten
from gristmill.compiler.passes import units
from gristmill.compiler.prepare import prepare
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS
from gristmill.compiler.tensor import UNITS, accumulator
from gristmill.errors import DeclarationError
from gristmill.specialisation import VARIANTS, Config
from machines import bfloat16, kernel_of, shipped_kernels
from test_attention_backward import FUSED, ORDERED, assert_gradients, inputs, run_gradients, scalars
from test_held import DTYPES, chained, numbers
from test_pipeline import ops

run_by_warps = partial(run_simulated, target="sm_80")
FORWARD, VARLEN = (shipped_kernels()[f"attention_{name}"] for name in ("forward", "varlen_forward"))


def prepared(kernel, specialisation=None, target="sm_80"):
    chosen = specialisation or kernel.specialisations()[0]
    return prepare(kernel, chosen, VARIANTS[0], TARGETS[target], lambda stage, function: None)[0]


def of_warps(kernel, dtype, head):
    """The specialisation that is for warps alone."""
    wanted = (dtype, head, False)
    return next(
        s for s in kernel.specialisations() if (s.dtypes[0][1].name, dict(s.constants)["HEAD"], s.warpgroups) == wanted
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "depth", "step", "columns", "warps"), [(64, 64, 64, 64, 4), (128, 32, 32, 64, 4)])
def test_products_of_products_are_exact_and_nothing_between_them_is_shared(dtype, rows, depth, step, columns, warps):
    rng = np.random.default_rng(rows + step)
    q, x, y = (numbers(rng, *s, dtype=dtype) for s in ((rows, depth), (3 * step, depth), (3 * step, columns)))
    out, kernel = np.full((rows, columns), np.nan, "f4"), chained(dtype, rows, depth, step, columns, warps)
    run_by_warps(kernel, None, q, x, y, out)
    s = q.astype("f8") @ x.astype("f8").T
    np.testing.assert_array_equal(out, np.where(s > 0, 2 * s + 1, -s) @ y.astype("f8"))
    for loop in [s for s in walk(prepared(kernel).body) if isinstance(s, For)]:
        inside = [s for s in loop.body.statements if isinstance(s, Op)]
        assert [op.attributes["is_held"] for op in inside if op.row.anchor_layout] == [False, True]
        assert not [op for op in inside if op.row.is_relayout or "is_turned" in op.attributes]


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("warps", [1, 2, 4])
def test_warps_that_have_rows_have_whole_ones(rows, warps):
    layout = accumulator(UNITS[next(iter(UNITS))], (rows, 64), warps, has_rows=True)
    found = {}
    for position in range(layout.elements):
        row, column = unflatten(position, layout.shape)
        found.setdefault(row, set()).add(layout.preimage((row, column))[2])
    assert all(len(owners) == 1 for owners in found.values())


ATTENTION = [
    ((1, 2, 1, 136, 200), {"causal": 2}, np.float16, 64),
    ((1, 2, 2, 136, 136), {"causal": 1}, np.float16, 128),
    ((2, 1, 1, 72, 96), {"window": 20}, bfloat16, 32),
]


@pytest.mark.parametrize(("shape", "mask", "dtype", "head"), ATTENTION, ids=str)
def test_attention_by_warps(shape, mask, dtype, head):
    given, how = inputs((*shape, head), dtype), scalars(head, **mask)
    q, k, v = (given[name] for name in "qkv")
    out, lse = np.full(q.shape, np.nan, dtype), np.full(q.shape[:3], np.nan, np.float32)
    chosen = run_by_warps(FORWARD, None, q, k, v, out, lse, *how.values())
    assert chosen.warpgroups is False
    want, sums = spec_of(FORWARD).reference(*(x.astype("f8") for x in (q, k, v)), **how)
    assert np.abs(out - want).max() <= (2e-3 if dtype == np.float16 else 2e-2)
    np.testing.assert_allclose(lse, sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [FUSED, ORDERED], ids=["fused", "ordered"])
@pytest.mark.parametrize(("shape", "mask", "dtype", "head"), ATTENTION, ids=str)
def test_gradients_by_warps(kernel, shape, mask, dtype, head):
    if kernel is ORDERED and head == 32:
        return  # it has heads of 64 and 128 elements
    given, how = inputs((*shape, head), dtype), scalars(head, **mask)
    got = run_gradients(
        run_by_warps, kernel, given, how, only=of_warps(kernel, "f16" if dtype == np.float16 else "bf16", head)
    )
    assert_gradients(got, given, how)


@pytest.mark.parametrize(
    ("kernel", "head"), [(FORWARD, 64), (FORWARD, 128), (FUSED, 64), (FUSED, 128)], ids=lambda x: getattr(x, "name", x)
)
def test_what_loops_of_attention_load_is_copied_ahead(kernel, head):
    chosen = of_warps(kernel, "f16", head)
    (code, *_) = compile_variants(kernel, chosen, TARGETS["sm_80"])
    assert code.code.count(b"cp.async.cg.shared.global") and b"mma.sync" in code.code
    assert not compile_variants(kernel, chosen, TARGETS["sm_90a"])


# ---- axes of one element -------------------------------------------------------------------------------------------

BLOCKS = """
@gm.kernel(grid=1)
def k(x: gm.ptr[gm.f32], out: gm.ptr[gm.f32], i: gm.i32, j: gm.i32, n: gm.shape["x", 2], row: gm.stride["x", 2],
      head: gm.stride["x", 1], batch: gm.stride["x", 0]):
    blocks = tl.make_tensor_descriptor(x, [2, 3, n, 16], [batch, head, row, 1], [1, 1, 32, 16])
    tile = blocks.load([i, j, 8, 0]).{shape}
    places = tl.arange(0, 32)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out + places, tile.reshape(32, 16))
"""


@pytest.mark.parametrize(
    ("shape", "left"),
    [("reshape(32, 16)", (32, 16)), ("reshape(1, 32, 16)", (1, 32, 16)), ("reshape(16, 32)", (1, 1, 32, 16))],
)
def test_axes_of_one_element_are_dropped_before_a_load(shape, left):
    kernel, x = (
        kernel_of(BLOCKS.format(shape=shape)),
        np.random.default_rng(1).standard_normal((2, 3, 40, 16)).astype("f4"),
    )
    loads = [s for s in walk(prepared(kernel).body) if isinstance(s, Op) and s.row.effect == "read"]
    assert {load.results[0].type.shape for load in loads} == {left}
    for i, j in ((0, 0), (1, 2)):
        out = np.full((32, 16), np.nan, "f4")
        run_by_warps(kernel, None, x, out, i, j)
        np.testing.assert_array_equal(out.reshape(-1), x[i, j, 8:40].reshape(-1))


def test_only_axes_of_one_element_count():
    assert units._dropped((1, 1, 32, 16), (32, 16)) == (0, 1)
    assert units._dropped((1, 2, 32, 16), (2, 32, 16)) == (0,)
    assert units._dropped((1, 32, 16), (16, 32)) == ()
    assert units._dropped((2, 16), (32,)) == ()


# ---- configurations ------------------------------------------------------------------------------------------------


def test_a_configuration_may_be_for_devices_with_warpgroups_or_without():
    assert repr(Config(BLOCK=64, warpgroups=False)) == "gm.Config(BLOCK=64, warpgroups=False)"
    with pytest.raises(DeclarationError, match=r"warpgroups=1\.5"):
        Config(BLOCK=64, warpgroups=1.5)


@pytest.mark.parametrize(("target", "served"), [("sm_80", False), ("sm_90a", True)])
def test_configurations_for_others_are_not_compiled(target, served):
    chosen = [s for s in FORWARD.specialisations() if s.warpgroups is not None and s.dtypes[0][1].name == "f16"]
    for specialisation in chosen:
        lowered = lower_variant(FORWARD, specialisation, VARIANTS[0], TARGETS[target], lambda stage, thing: None)
        assert lowered.overflows == (specialisation.warpgroups is not served)


def test_products_of_variable_lengths_hold_their_weights(head=128):
    chosen = next(s for s in VARLEN.specialisations() if dict(s.constants)["HEAD"] == head and s.only_aligned)
    products = ops(prepared(VARLEN, chosen), "product")
    assert any(op.attributes["is_held"] for op in products) and all(op.attributes["has_rows"] for op in products)
