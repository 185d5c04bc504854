"""Kernels on rows of every tile, and of those that the blocks of a cluster share: full ones, tails in any part."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gristmill.cases import spec_of
from machines import on_each_machine, shipped_kernels

LENGTHS = [1025, 2048, 5120, 8192, 12_000, 16_385, 32_768, 40_001, 65_535, 65_536, 98_304, 131_072]
KERNELS = shipped_kernels()


def normalised(run, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `layer_norm_forward` makes of the rows, and what it should."""
    weight, bias = np.random.default_rng(1).standard_normal((2, x.shape[1])).astype(x.dtype)
    y = np.full_like(x, np.nan)
    run(KERNELS["layer_norm_forward"], None, x, weight, bias, y)
    given = [a.astype(np.float64) for a in (x, weight, bias)]
    return y.astype(np.float64), spec_of(KERNELS["layer_norm_forward"]).reference(*given, 1e-5)


@on_each_machine
@pytest.mark.parametrize("columns", LENGTHS)
def test_layer_norm_of_wide_rows(run, columns):
    x = np.random.default_rng(columns).standard_normal((2, columns)).astype(ml_dtypes.bfloat16)
    got, want = normalised(run, x)
    assert np.max(np.abs(got - want) / (np.abs(want) + 2**-6)) < 2**-8


@on_each_machine
@pytest.mark.parametrize("columns", [32_768, 65_536, 131_072])
@pytest.mark.parametrize("places", [slice(0, 3), slice(20_000, None), slice(-5, None)], ids=["first", "most", "last"])
def test_parts_that_differ_are_weighed_by_their_length(run, columns, places):
    x = np.random.default_rng(0).standard_normal((1, columns)).astype(np.float32)
    x[:, places] += 1000.0
    got, want = normalised(run, x)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.max(np.abs(want)))


@on_each_machine
@pytest.mark.parametrize("columns", [40_000, 65_536, 131_072])
@pytest.mark.parametrize("value", [0.0, 3.5, -1e6])
def test_equal_elements_have_no_spread(run, columns, value):
    x = np.full((1, columns), value, np.float32)
    y, zeros = np.empty_like(x), np.zeros(columns, np.float32)
    run(KERNELS["layer_norm_forward"], None, x, zeros + 1, zeros, y)
    assert np.array_equal(y, np.zeros_like(x))


@on_each_machine
@pytest.mark.parametrize("special", [np.inf, np.nan])
def test_one_special_number_spoils_its_row_alone(run, special):
    x = np.ones((2, 65_536), np.float32)
    x[1, 50_000] = special
    y, zeros = np.empty_like(x), np.zeros(65_536, np.float32)
    with np.errstate(invalid="ignore"):
        run(KERNELS["layer_norm_forward"], None, x, zeros + 1, zeros, y)
    assert not y[0].any()
    assert np.isnan(y[1]).all()


@on_each_machine
@pytest.mark.parametrize("columns", LENGTHS)
@pytest.mark.parametrize("name", ["softmax_forward", "softmax_backward", "rms_norm_forward"])
def test_other_kernels_of_wide_rows(run, name, columns):
    spec, random = spec_of(KERNELS[name]), np.random.default_rng(columns)
    given = [random.standard_normal((2, columns)).astype(np.float32)]
    if name == "softmax_backward":
        given.append((random.random((2, columns)) / columns).astype(np.float32))
    if name == "rms_norm_forward":
        given.append(random.standard_normal(columns).astype(np.float32))
    y = np.full((2, columns), np.nan, np.float32)
    run(KERNELS[name], None, *given, y)
    more = [1e-5] if name == "rms_norm_forward" else []
    want = spec.reference(*(a.astype(np.float64) for a in given), *more)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5 * np.max(np.abs(want)) * (name == "softmax_backward"))
