"""Attention whose sums are rescaled lazily: against float64, on each machine; where it is a choice."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

import gristmill as gm
from gristmill.cases import Case, spec_of
from gristmill.compiler.compile import compile_variant
from gristmill.compiler.interpreter import _choose, _fill
from gristmill.compiler.ir import For, walk
from gristmill.compiler.layout import flatten, rank
from gristmill.compiler.prepare import prepare
from gristmill.compiler.targets import TARGETS
from gristmill.errors import GristmillError
from gristmill.specialisation import VARIANTS, Specialisation
from gristmill.symbolic import evaluate
from machines import on_each_in_order, shipped_kernels

KERNEL = shipped_kernels()["attention_forward"]
SPEC = spec_of(KERNEL)
TILES = [s for s in KERNEL.specialisations() if dict(s.constants)["LAZY"]]
EXACT = {dict(s.constants)["BLOCK_M"]: s for s in KERNEL.specialisations() if "__f16__64__" in s.id and s not in TILES}
WIDE_SCORE = 50.0


def of(dtype: str, head: int, rows: int = 128) -> Specialisation:
    """A tile whose sums are rescaled lazily."""
    wanted = {"HEAD": head, "BLOCK_M": rows}
    return next(s for s in TILES if s.dtypes[0][1].name == dtype and wanted.items() <= dict(s.constants).items())


def case(queries: int, head: int, keys: int | None = None, **scalars: Any) -> Case:
    keys = keys or queries
    shapes = {"q": (1, 2, queries, head), "k": (1, 1, keys, head), "v": (1, 1, keys, head)}
    shapes |= {"out": shapes["q"], "lse": shapes["q"][:3]}
    return Case(f"{queries} x {keys}", shapes, scalars={"scale": 1 / math.sqrt(head), **scalars})


def widened(arguments: dict[str, Any]) -> None:
    """Let scores reach +-50, and grow from key to key, so that most steps raise the greatest."""
    q, k = (arguments[name].astype("f8") for name in ("q", "k"))
    k *= np.linspace(0.1, 1, k.shape[2])[:, None]
    largest = np.abs(arguments["scale"] * q @ k.swapaxes(2, 3)).max()
    arguments["q"] = (q * WIDE_SCORE / largest).astype(arguments["q"].dtype)
    arguments["k"] = k.astype(arguments["k"].dtype)


def errors(run: Any, given: Case, specialisation: Specialisation, is_wide: bool = False) -> dict[str, float]:
    """As shares of what the kernel's specification allows."""
    arguments = SPEC.arguments(given, specialisation)
    if is_wide:
        widened(arguments)
    expected = SPEC.expected(arguments)
    run(KERNEL, specialisation, **arguments)
    return SPEC.errors(arguments, expected)


SHAPES = {  # dtype, queries, head, and what else: tiles of warpgroups are for lengths that are aligned
    "full": ("f16", 136, 64, {"keys": 400}),
    "causal": ("bf16", 304, 64, {"causal": 1}),
    "wide heads": ("f16", 144, 128, {"keys": 304, "causal": 2}),
    "some see nothing": ("f16", 152, 64, {"keys": 64, "causal": 2}),
    "a window": ("bf16", 200, 128, {"causal": 1, "window": 40}),
}


@on_each_in_order
@pytest.mark.parametrize("is_wide", [False, True], ids=["normal", "wide"])
@pytest.mark.parametrize("name", SHAPES)
def test_means_are_those_of_the_definition(run, name, is_wide):
    dtype, queries, head, more = SHAPES[name]
    found = errors(run, case(queries, head, **more), of(dtype, head), is_wide)
    assert max(found.values()) <= 1, found


@on_each_in_order
@pytest.mark.parametrize("is_wide", [False, True], ids=["normal", "wide"])
def test_the_tall_tile(run, is_wide):
    found = errors(run, case(200, 64, keys=304, causal=1), of("f16", 64, 192), is_wide)
    assert max(found.values()) <= 1, found


@on_each_in_order
def test_what_is_no_number_stays_with_its_row(run):
    """And a greatest product that is infinite, or less than all others by more than any weight."""
    arguments = SPEC.arguments(case(136, 64, keys=304), of("f16", 64))
    arguments["q"][0, 0, 3] = np.nan
    arguments["q"][0, 1, 5], arguments["k"][0, 0, 7, 0] = 0, 60000
    arguments["q"][0, 1, 5, 0] = 60000
    exact = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    run(KERNEL, of("f16", 64), **arguments)
    run(KERNEL, EXACT[128], **exact)
    for name in ("out", "lse"):
        lazy, want = arguments[name].astype("f8"), exact[name].astype("f8")
        np.testing.assert_array_equal(np.isnan(lazy), np.isnan(want))
        np.testing.assert_allclose(lazy, want, rtol=2e-3, atol=2e-3)
    assert np.isnan(arguments["out"][0, 0, 3].astype("f8")).all()


@on_each_in_order
@pytest.mark.parametrize("scores", [(0, 7, 9), (9, 7, 0), (0, 9, 30), (-40, -33, -20), (0, 8, 16)], ids=str)
def test_rows_whose_greatest_grows_by_less_and_by_more_than_256_times(run, scores):
    """Each block of keys has one score, in powers of two, and a value of its own."""
    arguments = SPEC.arguments(case(128, 64, keys=3 * 128, scale=math.log(2)), of("f16", 64))
    for name in ("q", "k"):
        arguments[name][:] = 0
    arguments["q"][..., 0] = 1
    arguments["k"][0, 0, :, 0] = np.repeat(scores, 128)
    arguments["v"][0, 0] = np.repeat([1, 2, 4], 128)[:, None]
    expected = SPEC.expected(arguments)
    run(KERNEL, of("f16", 64), **arguments)
    found = SPEC.errors(arguments, expected)
    assert max(found.values()) <= 1, found


# ---- the choice ------------------------------------------------------------------------------------------------------


def chosen(dtype: Any, head: int, queries: int, **given: Any) -> dict[str, Any]:
    arguments = SPEC.arguments(case(queries, head), KERNEL.specialisations()[0])
    arrays = {name: arguments[name].astype(dtype) for name in ("q", "k", "v", "out")}
    values = _fill(KERNEL, arrays | {"lse": arguments["lse"], "scale": 0.125})
    return dict(_choose(KERNEL, values, {"HEAD": head, **given}).constants)


@pytest.mark.parametrize(("head", "queries"), list(product((64, 128), (40, 304, 1024))))
def test_calls_that_name_no_way_are_exact(head, queries):
    for given in ({}, {"LAZY": False}, {"LAZY": True}):
        assert chosen(np.float16, head, queries, **given)["LAZY"] == given.get("LAZY", False)


@pytest.mark.parametrize(("keys", "skips"), [(128, False), (8064, False), (8192, True), (20000, True)])
def test_wide_heads_skip_where_keys_are_many(keys, skips):
    """Then few steps have a new greatest weight."""
    values = {"queries": 4096, "keys": keys, "causal": 0}
    numbers = [values.get(p.name, 0) for p in KERNEL.parameters]
    of_groups = [s for s in KERNEL.specialisations() if s.warpgroups is not False and s.dtypes[0][1] == gm.f16]
    rows = [s for s in of_groups if {("HEAD", 128), ("LAZY", False)} <= set(s.constants)]
    best = max(rows, key=lambda s: evaluate(KERNEL.prefer, numbers, [v for _, v in s.constants]))
    assert dict(best.constants)["SKIPS"] == skips and dict(best.constants)["BLOCK_N"] == 128


@pytest.mark.parametrize(("dtype", "head"), [(np.float32, 64), (np.float16, 32), (np.float16, 256)])
def test_elsewhere_there_is_no_choice(dtype, head):
    with pytest.raises(GristmillError, match="LAZY") as caught:
        chosen(dtype, head, 300, LAZY=True)
    assert "True" in str(caught.value)


def code_of(specialisation: Specialisation, target: str) -> str:
    return compile_variant(KERNEL, specialisation, VARIANTS[0], TARGETS[target]).code.decode()


@pytest.mark.parametrize("tile", TILES, ids=lambda s: s.id)
def test_warpgroups_vote_and_multiply_inside_a_branch(tile):
    lazy = code_of(tile, "sm_90a")
    assert lazy.count("vote.sync.any") == 1, "there is nothing to rescale in the first step"
    products = lazy.count("wgmma.mma_async")
    exact = next(s for s in KERNEL.specialisations() if s.id == tile.id.replace("true__true", "true__false"))
    skipping = code_of(exact, "sm_90a")
    assert (skipping.count("vote.sync.any"), skipping.count("wgmma.mma_async")) == (1, products)


def test_warps_that_do_not_ask_have_no_branch():
    brief = next(s for s in KERNEL.specialisations() if s.id.startswith("attention_forward__f16__128__128__128__false"))
    assert "vote.sync" not in code_of(brief, "sm_90a")


def test_weights_are_computed_in_one_run_behind_the_branch():
    """Tensor cores are waited for before it: ptxas would do so anyway, where a run of instructions begins."""
    function = prepare(KERNEL, of("f16", 128), VARIANTS[0], TARGETS["sm_90a"], lambda stage, thing: None)[0]
    blocks = [loop.body for loop in walk(function.body) if isinstance(loop, For)]
    (names,) = ([s.name for s in b.statements] for b in blocks if any(s.name == "change" for s in b.statements))
    behind = names[names.index("change") :]
    assert names[: names.index("change")].count("settle") == 2
    assert {"fma", "exp2", "sum", "cast", "words"} <= set(behind)
    assert not {"settle", "if", "product"} & set(behind)


def test_layouts_have_all_elements():
    """Also of tiles that have as many columns as there are words of weights."""
    function = prepare(KERNEL, of("f16", 64), VARIANTS[0], TARGETS["sm_90a"], lambda stage, thing: None)[0]
    for value, layout in function.layouts.items():
        bases = [flatten(basis, layout.shape) for basis in (*layout.reg, *layout.lane, *layout.warp)]
        assert 1 << rank(bases) == value.type.elements, f"{value.type} {layout}"
