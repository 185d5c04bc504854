"""Tuning on a CUDA device: the caller's tensors stay as they are, results agree, and calls take what was fastest."""

from __future__ import annotations

import pytest

import gpu
from gpu import kernels, torch
from gristmill.runtime.tune import Effort, measure

pytestmark = pytest.mark.gpu
real_driver = gpu.real_driver

SHORT = Effort(rounds=6, first=3, seconds=2.0)


@pytest.fixture
def operands():
    """Return a, b and a poisoned out of a product whose sizes no other test has."""
    random = torch.Generator(gpu.DEVICE).manual_seed(0)
    a, b = (
        torch.randn(shape, device=gpu.DEVICE, dtype=torch.float16, generator=random)
        for shape in ((520, 264), (264, 776))
    )
    return a, b, torch.full((520, 776), float("nan"), device=gpu.DEVICE, dtype=torch.float16)


def test_configurations_agree_and_have_times(operands):
    a, b, out = operands
    before = [t.clone() for t in operands]
    tuned = measure(kernels.matmul.trial(a, b, out), SHORT)
    timed = [row for row in tuned.rows if row.us is not None]
    assert len(timed) == len(tuned.rows) > 3, str(tuned)
    assert all(0 < row.us < 1e4 for row in timed)
    assert tuned.row.place.device == torch.cuda.get_device_name()
    assert all(torch.equal(t, was) or t.isnan().all() for t, was in zip(operands, before, strict=True))


def test_the_device_is_timed_and_not_the_queue(operands):
    large = [torch.randn(4096, 4096, device=gpu.DEVICE, dtype=torch.float16) for _ in range(3)]
    small, big = (kernels.matmul.trial(*tensors) for tensors in (operands, large))
    for trial in (small, big):
        trial.check(0)
    assert min(big.time(0) for _ in range(5)) > 2 * 4096**3 / 1.5e15 * 1e6  # no device computes 1500 TFLOP/s in f16
    assert min(big.time(0) for _ in range(5)) > 3 * min(small.time(0) for _ in range(5))


def test_a_tuned_call_takes_what_was_fastest_and_is_right(operands):
    a, b, out = operands
    tuned = kernels.matmul.tune(a, b, out)
    told = kernels.matmul.info(a, b, out)
    assert (told["specialisation"], told["chosen_by"]) == (tuned.row.take, "tuned table")
    kernels.matmul(a, b, out)
    want = a.double() @ b.double()
    assert torch.linalg.vector_norm(out.double() - want) <= 1e-3 * torch.linalg.vector_norm(want)


def test_no_memory_is_kept(operands):
    free = torch.cuda.mem_get_info()[0]
    for _ in range(3):
        measure(kernels.matmul.trial(*operands), SHORT)
    assert torch.cuda.mem_get_info()[0] >= free - (4 << 20)


def test_a_capture_cannot_be_tuned_in(operands):
    kernels.matmul(*operands)
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(RuntimeError, match="cannot be tuned in a capture"):
        kernels.matmul.trial(*operands)
