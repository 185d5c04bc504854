"""Every kernel of the repository, in every dtype, against its reference: interpreted and as machine code."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gristmill.cases import Case, Spec, spec_of
from gristmill.declare import Kernel, Specialisation, check_pairs
from gristmill.dtypes import dt_numpy
from machines import RAGGED, RUNNERS, on_each_machine, shipped_kernels

PAIRS = [(kernel, dtypes) for kernel in shipped_kernels().values() for dtypes in {s.dtypes: 0 for s in kernel.expanded}]
NAMES = [f"{kernel.name}-{'-'.join(d.name for _, d in dtypes)}" for kernel, dtypes in PAIRS]


def first(kernel: Kernel, dtypes: object) -> Specialisation:
    return next(s for s in kernel.specialisations() if s.dtypes == dtypes)


def largest_error(run, spec: Spec, case: Case, specialisation: Specialisation, **named) -> float:
    arguments = spec.arguments(case, specialisation)
    expected = spec.expected(arguments)
    run(spec.kernel, None, **arguments, **named)
    return max(spec.errors(arguments, expected).values())


@on_each_machine
@pytest.mark.parametrize(("kernel", "dtypes"), PAIRS, ids=NAMES)
def test_kernel_agrees_with_its_reference(run, kernel, dtypes):
    spec = spec_of(kernel)
    errors = {c.name: largest_error(run, spec, c, first(kernel, dtypes)) for c in spec.cases_for("test")}
    assert {name: error for name, error in errors.items() if not error <= 1} == {}


ROW_KERNELS = [kernel for kernel in shipped_kernels().values() if "ONE_PASS" in kernel.constant_names]


@on_each_machine
@pytest.mark.parametrize("kernel", ROW_KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("shape", [(3, 1), (2, 8191), (2, 8193), (1, 65_537)], ids=str)
def test_row_that_is_read_in_tiles_agrees_with_the_reference(run, kernel, shape):
    spec = spec_of(kernel)
    example = next(c for c in spec.cases if c.name == "2 x 129")
    shapes = {name: tuple({2: shape[0], 129: shape[1]}[n] for n in s) for name, s in example.shapes.items()}
    case = Case(str(shape), shapes, values="wide")
    assert largest_error(run, spec, case, kernel.specialisations()[0], ONE_PASS=False) <= 1


@on_each_machine
@pytest.mark.parametrize("kernel", ROW_KERNELS, ids=lambda k: k.name)
def test_row_with_special_values_that_is_read_in_tiles(run, kernel):
    spec = spec_of(kernel)
    case = next(c for c in spec.cases if c.values == "special rows")
    for dtypes in {s.dtypes for s in kernel.expanded}:
        assert largest_error(run, spec, case, first(kernel, dtypes), ONE_PASS=False) <= 1


@on_each_machine
def test_unaligned_views_give_the_same(run):
    for kernel, dtypes in PAIRS:
        spec = spec_of(kernel)
        case = next(c for c in spec.cases if c.name in RAGGED)
        arguments = spec.arguments(case, first(kernel, dtypes))
        shifted = {name: shift(a) if isinstance(a, np.ndarray) else a for name, a in arguments.items()}
        run(kernel, None, **arguments)
        run(kernel, None, **shifted)
        for name in spec.outputs:
            assert are_alike(arguments[name], shifted[name], run), kernel.name


def are_alike(x: np.ndarray, y: np.ndarray, run: Any) -> bool:
    """The same bits; on a device, whose assembler fuses products and sums as it likes, nearly so: halves by an ulp."""
    if x.tobytes() == y.tobytes():
        return True
    ulp, x, y = max(4 * np.finfo("f4").eps, float(ml_dtypes.finfo(x.dtype).eps)), x.astype("f8"), y.astype("f8")
    largest = np.abs(x[np.isfinite(x)]).max(initial=0)  # of the terms of sums that cancel out
    return run is RUNNERS.get("cuda") and np.allclose(x, y, rtol=ulp, atol=ulp * largest)


def shift(array: np.ndarray) -> np.ndarray:
    """Return a copy that starts one element into its buffer."""
    buffer = np.empty(array.size + 1, array.dtype)
    buffer[1:] = array.ravel()
    return buffer[1:].reshape(array.shape)


def test_kernels_of_the_issue_are_there():
    activations = ("relu", "gelu", "silu", "tanh", "sigmoid", "softmax")
    wanted = {f"{name}_{way}" for name in activations for way in ("forward", "backward")}
    others = {"vector_add", "layer_norm_forward", "rms_norm_forward", "row_sum", "matmul"}
    assert set(shipped_kernels()) >= wanted | others


def test_gradients_are_paired():
    kernels = shipped_kernels()
    check_pairs(list(kernels.values()))
    for name, kernel in kernels.items():
        if name.replace("forward", "backward") in kernels and name.endswith("_forward"):
            assert kernel.backward == name.replace("forward", "backward")


@pytest.mark.parametrize("kernel", ROW_KERNELS, ids=lambda k: k.name)
def test_rows_of_every_length_have_a_configuration(kernel):
    from gristmill.compiler.interpreter import _choose

    for columns in (1, 256, 257, 1024, 4096, 16_384, 16_385, 131_072, 1 << 22):
        values = {p.name: columns if p.kind == "shape" else 0 for p in kernel.parameters}
        values |= {p.name: np.empty(0, np.float32) for p in kernel.parameters if p.kind == "pointer"}
        constants = dict(_choose(kernel, values, {}).constants)
        assert columns <= constants["BLOCK"] or not constants["ONE_PASS"]


@pytest.mark.parametrize("kernel", shipped_kernels().values(), ids=lambda k: k.name)
def test_kernel_says_what_it_is(kernel):
    spec = spec_of(kernel)
    assert kernel.doc[0].islower()
    assert kernel.doc.splitlines()[0].endswith(".")
    assert "shape" in kernel.doc or "row" in kernel.doc
    assert {case.use for case in spec.cases} == {"test", "demo", "bench"}
    cost = spec.cost(spec.cases_for("bench")[0], kernel.specialisations()[0])
    assert cost.bytes > 0
    assert cost.flops > 0


# ---- accuracy ------------------------------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize("name", ["gelu_forward", "silu_forward", "tanh_forward", "sigmoid_forward"])
@pytest.mark.parametrize("reach", [5, 10, 90])
def test_f32_is_within_2e_6_of_the_value(run, name, reach):
    spec = spec_of(shipped_kernels()[name])
    x = np.linspace(-reach, reach, 100_001).astype(np.float32)
    y = np.full_like(x, 77)
    run(spec.kernel, None, x, y)
    want = spec.expected({"x": x})["y"]
    is_normal = np.abs(want) > np.finfo(np.float32).smallest_normal
    np.testing.assert_allclose(y[is_normal], want[is_normal], rtol=2e-6, atol=0)
    np.testing.assert_allclose(y, want, rtol=2e-6, atol=2e-45)


@on_each_machine
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["gelu_forward", "silu_forward", "tanh_forward", "sigmoid_forward", "relu_forward"])
def test_halves_are_within_one_ulp_of_the_rounded_value_for_every_input(run, name, dtype):
    spec = spec_of(shipped_kernels()[name])
    wanted = dt_numpy(next(d for _, d in (s.dtypes[0] for s in spec.kernel.expanded) if d.name == dtype))
    x = np.arange(1 << 16, dtype=np.uint16).view(wanted)
    y = np.full_like(x, 77)
    run(spec.kernel, None, x, y)
    with np.errstate(all="ignore"):
        want = spec.expected({"x": x})["y"].astype(wanted)
    steps = np.abs(ordered(y) - ordered(want))
    both_nan = np.isnan(y.astype(np.float32)) & np.isnan(want.astype(np.float32))
    assert steps[~both_nan].max() <= 1


def ordered(halves: np.ndarray) -> np.ndarray:
    """Return integers in the order of the numbers, one apart for neighbours."""
    bits = halves.view(np.uint16).astype(np.int32)
    return np.where(bits & 0x8000, -(bits & 0x7FFF), bits)


@on_each_machine
@pytest.mark.parametrize("columns", [100_000, 131_072])
def test_row_sum_of_many_f32_is_within_1e_5(run, columns):
    x = np.random.default_rng(0).random((2, columns), np.float32)
    out = np.zeros(2, np.float32)
    run(shipped_kernels()["row_sum"], None, x, out)
    np.testing.assert_allclose(out, x.sum(1, dtype=np.float64), rtol=1e-5)


@on_each_machine
@pytest.mark.parametrize("columns", [4, 5000, 40_000])
@pytest.mark.parametrize("mean", [0, 1500, -1e6])
def test_layer_norm_holds_far_from_zero(run, columns, mean):
    x = (np.random.default_rng(0).standard_normal((2, columns)) + mean).astype(np.float32)
    x[1, : columns // 8] = mean / 2
    y = np.zeros_like(x)
    weight, bias = np.ones(columns, np.float32), np.zeros(columns, np.float32)
    run(shipped_kernels()["layer_norm_forward"], None, x, weight, bias, y)
    want = spec_of(shipped_kernels()["layer_norm_forward"]).reference(x.astype(np.float64), 1.0, 0.0, 1e-5)
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=3e-7 * max(1, abs(mean)) + 1e-5)
