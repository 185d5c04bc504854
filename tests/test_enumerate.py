"""What a build compiles, in which order, and which code serves which specialisation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gristmill.build.enumerate import enumerate_jobs, serving_jobs
from gristmill.declare import VARIANTS, load_kernels
from gristmill.errors import DeclarationError

TEXT = """
import gristmill as gm

D = gm.dtype_var("D", gm.Float)

CONFIGS = [gm.Config(B=64, num_warps=2), gm.Config(B=64, num_warps=4), gm.Config(B=32)]

@gm.kernel(D=[gm.f32, gm.f16], configs=CONFIGS, grid=1)
def tuned(x: gm.ptr[D], B: gm.constexpr):
    pass

@gm.kernel(grid=1)
def plain(x: gm.ptr[gm.f32]):
    pass
"""


@dataclass(frozen=True)
class Target:
    name: str
    kind: str


SM_80, V2, V3 = Target("sm_80", "cuda"), Target("x86-64-v2", "host"), Target("x86-64-v3", "host")


@pytest.fixture
def kernels(tmp_path):
    (tmp_path / "k.py").write_text(TEXT)
    return load_kernels(tmp_path / "k.py", tmp_path)


def test_every_specialisation_is_compiled_for_a_gpu(kernels):
    jobs = enumerate_jobs(kernels, [SM_80])
    assert [job.specialisation for job in jobs] == [s for k in kernels for s in k.specialisations()]
    assert all(job.serves == (job.specialisation,) for job in jobs)


def test_specialisations_that_differ_in_warps_only_share_host_code(kernels):
    jobs = enumerate_jobs(kernels, [V2])
    assert [[s.id for s in job.serves] for job in jobs] == [
        ["tuned__f32__64__w2", "tuned__f32__64__w4"],
        ["tuned__f32__32__w4"],
        ["tuned__f16__64__w2", "tuned__f16__64__w4"],
        ["tuned__f16__32__w4"],
        ["plain"],
    ]


def test_order_is_by_kernel_then_target(kernels):
    jobs = enumerate_jobs(kernels, [SM_80, V2, V3])
    found = list(dict.fromkeys((job.kernel.name, job.target.name) for job in jobs))
    assert found == [(k, t) for k in ("tuned", "plain") for t in ("sm_80", "x86-64-v2", "x86-64-v3")]
    assert jobs == enumerate_jobs(kernels, [SM_80, V2, V3])


def test_each_specialisation_is_served_on_each_target(kernels):
    targets = [SM_80, V2, V3]
    serving = serving_jobs(enumerate_jobs(kernels, targets))
    assert set(serving) == {(s.id, t.name) for k in kernels for s in k.specialisations() for t in targets}
    assert serving["tuned__f32__64__w4", "x86-64-v3"].specialisation.id == "tuned__f32__64__w2"
    assert serving["tuned__f32__64__w4", "sm_80"].specialisation.id == "tuned__f32__64__w4"


def test_symbols_are_unique_identifiers(kernels):
    symbols = [j.specialisation.symbol(v) for j in enumerate_jobs(kernels, [SM_80]) for v in VARIANTS]
    assert len(set(symbols)) == len(symbols)
    assert all(symbol.isidentifier() and symbol.isascii() for symbol in symbols)


def test_job_is_named_by_specialisation_and_target(kernels):
    assert enumerate_jobs(kernels, [V2])[0].name == "tuned__f32__64__w2 for x86-64-v2"


def test_kernels_of_one_name_are_refused(kernels, tmp_path):
    with pytest.raises(DeclarationError, match="is already defined"):
        enumerate_jobs([*kernels, *load_kernels(tmp_path / "k.py", tmp_path)], [SM_80])
