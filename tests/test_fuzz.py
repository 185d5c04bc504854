"""Random kernels give the same numbers on every machine; `tools/fuzz` runs more of them."""

from __future__ import annotations

import pytest

from fuzzing import disagreement
from machines import RUNNERS, needs_host


@needs_host
@pytest.mark.parametrize("seed", range(200))
def test_machines_agree_on_a_random_kernel(seed):
    machines = {name: run for name, run in RUNNERS.items() if name != "cuda"}
    assert disagreement(seed, machines) == ""


@pytest.mark.gpu
@pytest.mark.skipif("cuda" not in RUNNERS, reason="no CUDA device")
@pytest.mark.parametrize("seed", range(120))
def test_device_agrees_on_a_random_kernel(seed):
    assert disagreement(seed, {name: RUNNERS[name] for name in ("interpreter", "cuda")}) == ""
