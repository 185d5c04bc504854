"""Attention within sequences of any lengths, one behind the other: against float64, on each machine."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.cases import spec_of
from gristmill.compiler.compile import lower_variant
from gristmill.compiler.interpreter import _choose, _fill
from gristmill.compiler.targets import TARGETS
from gristmill.errors import GristmillError
from gristmill.specialisation import VARIANTS
from machines import bfloat16, shipped_kernels
from test_attention_decode import ERRORS, word
from test_windows_shapes import RUNS

KERNEL = shipped_kernels()["attention_varlen_forward"]
DEFINITION = spec_of(shipped_kernels()["attention_forward"]).reference
on_each = pytest.mark.parametrize("run", [run for name, run in RUNS.items() if name != "cuda"])
interpreted = RUNS["interpreter"].values[0]
rng = np.random.default_rng(0)
BETWEEN = 3  # tokens before the first sequence and behind the last


def ends_of(lengths):
    return BETWEEN + np.cumsum([0, *lengths], dtype=np.int32)


def tokens_of(lengths, heads, head=64, dtype=np.float16):
    """Tokens of sequences; NaN before and behind them."""
    found = rng.standard_normal((sum(lengths) + 2 * BETWEEN, heads, head)).astype(dtype)
    found[:BETWEEN] = found[len(found) - BETWEEN :] = np.nan
    return found


@np.errstate(divide="ignore")  # the logarithm of no weight
def defined(q, k, v, ends, k_ends, scale, causal=0, window=0):
    """What attention_forward is of each sequence; NaN elsewhere."""
    out, lse = np.full(q.shape, np.nan), np.full(q.shape[1::-1], np.nan)
    for own, seen in zip(*(map(slice, e[:-1], e[1:]) for e in (ends, k_ends)), strict=True):
        rows = [x.astype("f8").swapaxes(0, 1)[None] for x in (q[own], k[seen], v[seen])]
        mean, lse[:, own] = (x[0] for x in DEFINITION(*rows, scale, causal, window))
        out[own] = mean.swapaxes(0, 1)
    return out, lse


def attend(run, q, k, v, ends, k_ends, scale=0.125, specialisation=None, **how):
    out, lse = np.full(q.shape, np.nan, q.dtype), np.full(q.shape[1::-1], np.nan, np.float32)
    run(KERNEL, specialisation, q, k, v, ends, k_ends, out, lse, scale, **how)
    return out, lse


def assert_near(got, want):
    """Assert that values are near, and that nothing else is written."""
    (out, lse), (mean, logarithm) = got, want
    np.testing.assert_array_equal(np.isnan(out.astype("f8")), np.isnan(mean))
    error = np.linalg.norm(np.nan_to_num(out.astype("f8") - mean))
    assert error <= ERRORS[out.dtype.type] * np.linalg.norm(np.nan_to_num(mean))
    np.testing.assert_allclose(lse, logarithm, rtol=2e-6, atol=2e-6)


def check(run, queries, keys, heads, groups, head=64, dtype=np.float16, scale=0.125, **how):
    q, (k, v) = tokens_of(queries, heads, head, dtype), (tokens_of(keys, groups, head, dtype) for _ in range(2))
    given = q, k, v, ends_of(queries), ends_of(keys)
    got = attend(run, *given, scale, **how)
    how.pop("specialisation", None)
    how.pop("grid", None)
    assert_near(got, defined(*given, scale, **how))


@on_each
@pytest.mark.parametrize(("dtype", "head"), [(d, 64) for d in ERRORS] + [(np.float16, 128)], ids=word)
def test_sequences_of_any_length(run, dtype, head):
    check(run, [1, 0, 66, 33], [1, 5, 66, 0], 2, 1, head, dtype)


@on_each
@pytest.mark.parametrize(("causal", "window"), [(1, 0), (2, 0), (2, 20), (0, 9)])
def test_each_sequence_has_its_own_diagonal(run, causal, window):
    check(run, [20, 70], [40, 50], 1, 1, causal=causal, window=window)


@on_each
def test_heads_share_keys(run):
    check(run, [17, 1], [33, 2], 8, 2)


@on_each
def test_neighbours_that_are_not_numbers_stay_where_they_are(run):
    """NaN in every other sequence; the others' are as without them."""
    lengths, (a, b) = [5, 40, 7], (BETWEEN + 5, BETWEEN + 45)
    q, k, v = (tokens_of(lengths, 1) for _ in range(3))
    ends = ends_of(lengths)
    want = defined(q, k, v, ends, ends, 0.125)
    for x in (q, k, v):
        x[:a] = x[b:] = np.nan
    out, lse = attend(run, q, k, v, ends, ends)
    assert np.isnan(out[:a].astype("f4")).all() and np.isnan(out[b:].astype("f4")).all()
    nothing = np.full_like(want[0], np.nan), np.full_like(want[1], np.nan)
    nothing[0][a:b], nothing[1][:, a:b] = want[0][a:b], want[1][:, a:b]
    assert_near((out, lse), nothing)


@on_each
def test_large_products_weigh_by_what_they_differ_by(run):
    """Products of 2^20 + j: rounded once more, they would lose a tenth of a power of two."""
    q, k, v = (tokens_of([3, 40], 1, dtype=np.float32) for _ in range(3))
    q[BETWEEN:-BETWEEN] = k[BETWEEN:-BETWEEN] = 0
    q[BETWEEN:-BETWEEN, :, 0], k[BETWEEN:-BETWEEN, 0, 0] = 1024, 1024 + rng.integers(0, 4, 43) / 1024
    given = q, k, v, ends_of([3, 40]), ends_of([3, 40]), 1.0
    assert_near(attend(run, *given), defined(*given))


TILES = [s for s in KERNEL.specialisations() if "f16__64" in s.id or "f32__128" in s.id or "__f16__128" in s.id]


@on_each
@pytest.mark.parametrize("tile", TILES, ids=lambda s: s.id)
def test_every_tile_gives_the_same(run, tile):
    dtype = {"f16": np.float16, "bf16": bfloat16, "f32": np.float32}[tile.dtypes[0][1].name]
    head = dict(tile.constants)["HEAD"]
    check(run, [70, 30], [70, 40], 1, 1, head, dtype, specialisation=tile, causal=2, grid=(2,))


@on_each
def test_heads_before_tokens_and_gaps_between_rows(run):
    lengths = [20, 33]
    q, k, v = (tokens_of(lengths, 2, 72).swapaxes(0, 1).copy().swapaxes(0, 1)[..., :64] for _ in range(3))
    out = np.full((2, len(q), 72), np.nan, np.float16).swapaxes(0, 1)[..., :64]
    lse, ends = np.full((2, len(q)), np.nan, np.float32), ends_of(lengths)
    run(KERNEL, None, q, k, v, ends, ends, out, lse, 0.125)
    assert_near((out, lse), defined(q, k, v, ends, ends, 0.125))
    assert np.isnan(out.base[..., 64:].astype("f4")).all()


@on_each
def test_ends_before_beginnings_are_empty_and_those_beyond_all_tokens_count_as_their_number(run):
    q, k, v = (rng.standard_normal((30, 1, 64)).astype(np.float16) for _ in range(3))
    ends = np.array([0, 20, 10, 1000], np.int32)
    got = attend(run, q, k, v, ends, ends)
    parts = [slice(0, 20), slice(10, 30)]
    wanted = [defined(q, k, v, *[np.array([s.start, s.stop])] * 2, 0.125) for s in parts]
    seconds = got[0][20:], got[1][:, 20:]  # which the second sequence alone writes
    assert_near(seconds, (wanted[1][0][20:], wanted[1][1][:, 20:]))
    firsts = got[0][:10], got[1][:, :10]
    assert_near(firsts, (wanted[0][0][:10], wanted[0][1][:, :10]))


def test_calls_without_sequences_write_nothing():
    q = rng.standard_normal((5, 1, 64)).astype(np.float16)
    out, lse = attend(interpreted, q, q, q, np.zeros(1, np.int32), np.zeros(1, np.int32))
    assert np.isnan(out.astype("f4")).all() and np.isnan(lse).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": (9, 3, 64), "v": (9, 3, 64)},
        {"v": (9, 1, 64)},
        {"v": (8, 2, 64)},
        {"k_ends": (4,)},
        {"q_ends": (0,), "k_ends": (0,)},
        {"out": (7, 4, 64)},
        {"out": (4, 6, 64)},
        {"lse": (4, 7)},
    ],
    ids=str,
)
def test_shapes_that_do_not_go_together(wrong):
    shapes = {"q": (6, 4, 64), "k": (9, 2, 64), "v": (9, 2, 64), "q_ends": (3,), "k_ends": (3,)}
    shapes |= {"out": (6, 4, 64), "lse": (4, 6)} | wrong
    kinds = {"q_ends": np.int32, "k_ends": np.int32, "lse": np.float32}
    given = {name: np.zeros(shape, kinds.get(name, np.float16)) for name, shape in shapes.items()}
    with pytest.raises(GristmillError, match="no specialisation"):
        interpreted(KERNEL, None, **given, scale=1.0)


@pytest.mark.parametrize(("lengths", "rows"), [([200, 100], 128), ([20] * 20, 64)])
def test_tiles_are_chosen_by_how_long_sequences_are(lengths, rows):
    q, ends = tokens_of(lengths, 1), ends_of(lengths)
    lse = np.zeros((1, len(q)), np.float32)
    given = {"q": q, "k": q, "v": q, "q_ends": ends, "k_ends": ends, "out": q, "lse": lse, "scale": 1.0}
    assert dict(_choose(KERNEL, _fill(KERNEL, given), {}).constants)["BLOCK_M"] == rows


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_wide_access_asks_for_nothing_but_strides(target):
    """Sequences begin at any token."""
    lowered = lower_variant(
        KERNEL, KERNEL.specialisations()[0], VARIANTS[0], TARGETS[target], lambda stage, thing: None
    )
    assert lowered.divisibility and set(lowered.divisibility) <= {
        p.name for p in KERNEL.parameters if p.kind == "stride"
    }
