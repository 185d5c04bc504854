"""Attention over caches of keys, contiguous or in pages, in parts that are joined: against float64, on each machine."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from gristmill.cases import spec_of
from gristmill.compiler.compile import generate, lower_variant
from gristmill.compiler.targets import TARGETS
from gristmill.errors import GristmillError
from gristmill.specialisation import VARIANTS
from machines import bfloat16, shipped_kernels
from ptx import count_instructions
from test_windows_shapes import RUNS

KERNELS = shipped_kernels()
DECODE, PAGED, COMBINE = (KERNELS[f"attention_{name}"] for name in ("decode", "decode_paged", "combine"))
DEFINITION = spec_of(KERNELS["attention_forward"]).reference
ERRORS = {np.float16: 1e-3, bfloat16: 8e-3, np.float32: 1e-6}  # ||error|| / ||result||, the result's rounding too
on_each = pytest.mark.parametrize("run", [run for name, run in RUNS.items() if name != "cuda"])
rng = np.random.default_rng(0)


def word(value):
    return np.dtype(value).name if isinstance(value, type) else str(value)


def normal(*shape, dtype=np.float16):
    return rng.standard_normal(shape).astype(dtype)


def cache_of(lengths, groups, keys, head=64, dtype=np.float16):
    """Keys or values; NaN behind those of each sequence."""
    found = normal(len(lengths), groups, keys, head, dtype=dtype)
    for own, length in zip(found, lengths, strict=True):
        own[:, length:] = np.nan
    return found


def in_pages(x, page, lengths):
    """The pages of a cache in any order among others that are NaN, and their table; entries behind are far outside."""
    batch, groups, keys, head = x.shape
    most = -(-keys // page)
    numbers = np.random.default_rng(1).permutation(2 * batch * most)[: batch * most].reshape(batch, most)
    pages = np.full((2 * batch * most, page, groups, head), np.nan, x.dtype)
    padded = np.full((batch, groups, most * page, head), np.nan, x.dtype)
    padded[:, :, :keys] = x
    pages[numbers] = padded.reshape(batch, groups, most, page, head).transpose(0, 2, 3, 1, 4)
    table = numbers.astype(np.int32)
    for row, length in zip(table, lengths, strict=True):
        row[-(-length // page) :] = 1 << 30
    return pages, table


def parts_of(run, q, k, v, lengths, parts=1, table=None, scale=0.125, **how):
    """What is written for each part."""
    partial = np.full((parts, *q.shape), np.nan, np.float32)
    lse = np.full((parts, *q.shape[:3]), np.nan, np.float32)
    given = [q, k, v, *([] if table is None else [table]), np.array(lengths, np.int32), partial, lse, scale]
    run(DECODE if table is None else PAGED, None, *given, **how)
    return partial, lse


def joined(run, partial, partial_lse, dtype):
    out = np.full(partial.shape[1:], np.nan, dtype)
    lse = np.full(partial_lse.shape[1:], np.nan, np.float32)
    run(COMBINE, None, partial, partial_lse, out, lse)
    return out, lse


@np.errstate(divide="ignore")  # the logarithm of no weight
def defined(q, k, v, lengths, scale=0.125, causal=0, window=0):
    """What attention_forward is of each sequence and its keys."""
    wide = [x.astype("f8") for x in (q, k, v)]
    found = [
        DEFINITION(wide[0][i : i + 1], *(x[i : i + 1, :, :n] for x in wide[1:]), scale, causal, window)
        for i, n in enumerate(lengths)
    ]
    return tuple(np.concatenate(x) for x in zip(*found, strict=True))


def assert_near(got, want):
    (out, lse), (mean, logarithm) = got, want
    assert np.linalg.norm(out.astype("f8") - mean) <= ERRORS[out.dtype.type] * np.linalg.norm(mean)
    np.testing.assert_allclose(lse, logarithm, rtol=2e-6, atol=2e-6)


LENGTHS = [97, 0, 1]


@on_each
@pytest.mark.parametrize(("dtype", "head"), [(d, 64) for d in ERRORS] + [(np.float16, 128)], ids=word)
def test_sequences_of_any_length_whose_heads_share_keys(run, dtype, head):
    q = normal(3, 8, 1, head, dtype=dtype)
    k, v = (cache_of(LENGTHS, 2, 100, head, dtype) for _ in range(2))
    got = joined(run, *parts_of(run, q, k, v, LENGTHS, parts=2), dtype)
    assert_near(got, defined(q, k, v, LENGTHS))
    assert (got[0][1] == 0).all() and (got[1][1] == -np.inf).all()


@on_each
@pytest.mark.parametrize(("page", "dtype"), [(1, bfloat16), (16, np.float32), (128, np.float16)], ids=word)
def test_pages_give_what_a_contiguous_cache_does(run, page, dtype):
    q = normal(3, 2, 1, 64, dtype=dtype)
    k, v = (cache_of(LENGTHS, 1, 100, dtype=dtype) for _ in range(2))
    pages, table = in_pages(np.concatenate([k, v], -1), page, LENGTHS)
    whole = parts_of(run, q, k, v, LENGTHS, parts=2)
    for a, b in zip(whole, parts_of(run, q, *np.split(pages, 2, -1), LENGTHS, 2, table), strict=True):
        np.testing.assert_allclose(a, b, 1e-6, 1e-7)  # a program's warps, and so the order of sums, may differ
    assert np.isfinite(whole[0]).all()


@on_each
def test_parts_without_keys_weigh_nothing(run):
    lengths = [70, 0, 128]
    q, (k, v) = normal(3, 2, 1, 64), (cache_of(lengths, 1, 130) for _ in range(2))
    partial, lse = parts_of(run, q, k, v, lengths, parts=5)
    has_keys = np.array([[True, False, True]] * 2 + [[False] * 3] * 3)
    assert (np.isfinite(lse).all(axis=(2, 3)) == has_keys).all() and (lse[~has_keys] == -np.inf).all()
    assert (partial[~has_keys] == 0).all()
    assert_near(joined(run, partial, lse, np.float16), defined(q, k, v, lengths))


@on_each
def test_joined_parts_are_as_one(run):
    lengths = [200, 129]
    q, k, v = normal(2, 2, 1, 64, dtype=np.float32), *(cache_of(lengths, 1, 200, dtype=np.float32) for _ in range(2))
    one, one_lse = parts_of(run, q, k, v, lengths)
    out, lse = joined(run, *parts_of(run, q, k, v, lengths, parts=3), np.float32)
    np.testing.assert_allclose(out, one[0], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(lse, one_lse[0], rtol=2e-6)


@on_each
def test_large_products_weigh_by_what_they_differ_by(run):
    """Products of 2^20 + j: rounded once more, they would lose a tenth of a power of two."""
    q, k, v = np.zeros((1, 2, 1, 64), "f4"), np.zeros((1, 1, 70, 64), "f4"), normal(1, 1, 70, 64, dtype=np.float32)
    q[..., 0], k[..., 0] = 1024, 1024 + rng.integers(0, 4, 70) / 1024
    want = defined(q, k, v, [70], 1.0)
    pages, table = in_pages(np.concatenate([k, v], -1), 16, [70])
    for got in (
        parts_of(run, q, k, v, [70], scale=1.0),
        parts_of(run, q, *np.split(pages, 2, -1), [70], 1, table, 1.0),
    ):
        assert_near((got[0][0], got[1][0]), want)


@on_each
@pytest.mark.parametrize(("causal", "window"), [(0, 0), (1, 0), (2, 70), (0, 40)])
def test_queries_and_heads_of_more_than_one_tile(run, causal, window):
    """Five queries of four heads: 20 rows."""
    lengths = [100, 3]
    q, (k, v) = normal(2, 4, 5, 64), (cache_of(lengths, 1, 120) for _ in range(2))
    how = {"causal": causal, "window": window}
    got = joined(run, *parts_of(run, q, k, v, lengths, parts=2, **how), np.float16)
    assert_near(got, defined(q, k, v, lengths, **how))


@on_each
def test_pages_with_several_queries_and_a_window(run):
    lengths = [110, 40]
    q, (k, v) = normal(2, 4, 3, 64), (cache_of(lengths, 1, 110) for _ in range(2))
    pages, table = in_pages(np.concatenate([k, v], -1), 32, lengths)
    how = {"causal": 2, "window": 50}
    got = joined(run, *parts_of(run, q, *np.split(pages, 2, -1), lengths, 2, table, **how), np.float16)
    assert_near(got, defined(q, k, v, lengths, **how))


@on_each
def test_heads_beside_each_other_and_gaps_between(run):
    lengths = [70, 33]
    q = normal(2, 2, 4, 64).swapaxes(1, 2)
    k, v = (cache_of(lengths, 2, 80, 72).transpose(0, 2, 1, 3).copy().swapaxes(1, 2)[..., :64] for _ in range(2))
    partial, partial_lse = parts_of(run, q, k, v, lengths, parts=2)
    out, lse = np.full((2, 2, 4, 64), np.nan, np.float16).swapaxes(1, 2), np.full((2, 4, 2), np.nan, np.float32)
    run(COMBINE, None, partial, partial_lse, out, lse)
    assert_near((out, lse), defined(q, k, v, lengths))


@on_each
def test_lengths_beyond_the_cache_count_as_its_keys_and_negative_ones_as_none(run):
    q, k, v = normal(2, 1, 1, 64), normal(2, 1, 40, 64), normal(2, 1, 40, 64)
    got = joined(run, *parts_of(run, q, k, v, [1000, -5]), np.float16)
    assert_near(got, defined(q, k, v, [40, 0]))


@on_each
def test_scales_of_zero_and_below(run):
    q, k, v = normal(1, 1, 1, 64), normal(1, 1, 40, 64), normal(1, 1, 40, 64)
    out, lse = joined(run, *parts_of(run, q, k, v, [40], scale=0.0), np.float16)
    assert_near((out, lse), defined(q, k, v, [40], scale=0.0))
    out, lse = joined(run, *parts_of(run, q, k, v, [40], scale=-1.0), np.float16)
    assert np.isnan(out).all() and np.isnan(lse).all()


@on_each
def test_weights_far_apart_are_joined_without_overflow(run):
    lse = np.array([1000, -1000, 999, -np.inf], np.float32).reshape(4, 1, 1, 1)
    partial = np.arange(4, dtype=np.float32)[:, None, None, None, None] + np.zeros((4, 1, 1, 1, 64), np.float32)
    out, total = joined(run, partial, lse, np.float32)
    np.testing.assert_allclose(out, 2 / (1 + np.e), rtol=1e-5)
    np.testing.assert_allclose(total, 1000 + np.log1p(np.exp(-1.0)), rtol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": (2, 3, 40, 64), "v": (2, 3, 40, 64)},
        {"v": (2, 2, 41, 64)},
        {"v": (2, 2, 40, 128)},
        {"q": (2, 4, 1, 32)},
        {"lengths": (3,)},
        {"partial": (2, 2, 4, 1, 128)},
        {"partial": (0, 2, 4, 1, 64), "partial_lse": (0, 2, 4, 1)},
        {"partial_lse": (1, 2, 4, 1)},
    ],
    ids=str,
)
def test_shapes_that_do_not_go_together(wrong):
    shapes = {"q": (2, 4, 1, 64), "k": (2, 2, 40, 64), "v": (2, 2, 40, 64), "lengths": (2,)}
    shapes |= {"partial": (2, 2, 4, 1, 64), "partial_lse": (2, 2, 4, 1)} | wrong
    kinds = {"lengths": np.int32, "partial": np.float32, "partial_lse": np.float32}
    given = {name: np.zeros(shape, kinds.get(name, np.float16)) for name, shape in shapes.items()}
    with pytest.raises(GristmillError, match="no specialisation"):
        RUNS["interpreter"].values[0](DECODE, None, **given, scale=1.0)


def test_pages_of_another_number_of_keys():
    pages, table = np.zeros((3, 24, 1, 64), np.float16), np.zeros((1, 2), np.int32)
    with pytest.raises(GristmillError, match="no specialisation"):
        parts_of(RUNS["interpreter"].values[0], normal(1, 1, 1, 64), pages, pages, [3], table=table)


# ---- how memory is read --------------------------------------------------------------------------------------------


@cache
def lowered(kernel, dtype, head, target):
    every = [s for s in kernel.specialisations() if dict(s.constants)["HEAD"] == head]
    chosen = next(s for s in every if s.dtypes[0][1].name == dtype)
    return lower_variant(kernel, chosen, VARIANTS[0], TARGETS[target], lambda stage, thing: None)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kernel", [DECODE, PAGED, COMBINE], ids=lambda k: k.name)
def test_wide_access_asks_for_nothing_but_strides(kernel, target):
    """A length, such as one query, a batch of 3 or a table of 5 pages, does not cost it."""
    asked = lowered(kernel, "f16", 128, target).divisibility
    strides = {p.name for p in kernel.parameters if p.kind == "stride"}
    assert asked and set(asked) - strides <= {"page"}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_keys_and_values_are_read_16_bytes_at_a_time(dtype, target):
    """Contiguous ones are copied ahead to shared memory, pages come a step ahead through registers."""
    size = {"f32": 4}.get(dtype, 2)
    threads, keys = (128, 16) if dtype == "f32" else (64, 32)
    step, queries = 2 * keys * 128 * size // (16 * threads), 16 * 128 * size // (16 * threads)  # of a thread
    text = generate(lowered(DECODE, dtype, 128, target), TARGETS[target], lambda stage, thing: None).code.decode()
    copies, counts = text.count("cp.async.cg.shared.global"), count_instructions(text)
    assert copies >= step and copies % step == 0
    assert counts["ld.global 128"] == queries
    assert counts["ld.global 32"] <= 2  # the length, which warps that only copy read too
    assert {name for name in counts if "ld.global" in name} == {"ld.global 32", "ld.global 128"}
    text = generate(lowered(PAGED, dtype, 128, target), TARGETS[target], lambda stage, thing: None).code.decode()
    counts = count_instructions(text)
    assert counts["ld.global 128"] == 2 * step + queries
    assert {name for name in counts if "ld.global" in name} == {"ld.global 32", "ld.global 128"}
