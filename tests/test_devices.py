"""Configurations for one kind of devices: declared, compiled for these alone, and chosen there."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.build.enumerate import enumerate_jobs
from gristmill.compiler.compile import compile_variants
from gristmill.compiler.explain import explain
from gristmill.compiler.prepare import is_replaceable
from gristmill.compiler.targets import TARGETS
from gristmill.errors import DeclarationError
from gristmill.specialisation import Config
from machines import kernel_of, on_each_machine

SOURCE = """
CONFIGS = [
    gm.Config(BLOCK=256, num_warps=2, {first}),
    gm.Config(BLOCK=128, num_warps=1, {second}),
    gm.Config(BLOCK=64, num_warps=1),
]

@gm.kernel(configs=CONFIGS, grid=lambda n, BLOCK: gm.cdiv(n, BLOCK))
def k(x: gm.ptr[gm.f32], n: gm.size["x"], BLOCK: gm.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + BLOCK, mask=i < n)
"""
OWN = {"first": 'device="cuda"', "second": 'device="cpu"'}


@pytest.fixture
def own():
    return kernel_of(SOURCE.format(**OWN))


def test_code_is_compiled_for_the_devices_alone(own):
    names = ("sm_80", "sm_90a", "x86-64-v3", "aarch64")
    found = {name: [job.specialisation.id for job in enumerate_jobs([own], [TARGETS[name]])] for name in names}
    assert found["sm_80"] == found["sm_90a"] == ["k__256__w2", "k__64__w1"]
    assert found["x86-64-v3"] == found["aarch64"] == ["k__128__w1", "k__64__w1"]


def test_a_cpu_has_general_code_for_wide_offsets_alone(own):
    """They cost it nothing."""
    last = own.specialisations()[2]
    names = [[code.symbol.split("__")[3] for code in compile_variants(own, last, TARGETS[t])] for t in TARGETS]
    assert dict(zip(TARGETS, names, strict=True)) == {
        t: ["a32", "g64"] if target.kind == "host" else ["a32", "g32", "g64"] for t, target in TARGETS.items()
    }


@on_each_machine
def test_a_call_takes_the_first_for_its_device(run, own):
    x = np.zeros(300, np.float32)
    chosen = run(own, None, x)
    block = dict(chosen.constants)["BLOCK"]
    kinds = {"run_on_host": 128, "run_simulated": 256, "run_on_cuda": 256}
    assert block == kinds.get(run.__name__, 256)
    assert (x == block).all()


def test_what_serves_instead_is_for_the_same_devices():
    """The last for a kind of devices has none behind it that could take its calls."""
    text = SOURCE.format(**OWN).replace("num_warps=1),\n]", 'num_warps=1, device="cpu"),\n]')
    kernel = kernel_of(text.replace("gm.cdiv(n, BLOCK))", "gm.cdiv(n, BLOCK), pick=lambda n: n > 0)"))
    first, second, last = kernel.specialisations()
    assert [[s.serves(kind) for kind in ("cuda", "host")] for s in (first, second)] == [[True, False], [False, True]]
    cuda, cpu = TARGETS["sm_90a"], TARGETS["x86-64-v3"]
    assert [is_replaceable(kernel, *it) for it in ((first, cuda), (second, cpu), (last, cpu))] == [False, True, False]


def test_explain_takes_one_for_the_target(own, tmp_path):
    file = tmp_path / "k.py"
    file.write_text("import gristmill as gm\nimport gristmill.language as tl\n" + SOURCE.format(**OWN))
    assert "i32[256]" in explain(file, target="sm_80")
    assert "i32[128]" in explain(file, target="x86-64-v3")


def test_general_code_is_wanted_on_each_device():
    """What is for aligned calls alone is followed by code for all calls on the same devices."""
    aligned = {"first": "aligned=True", "second": 'device="cuda"'}
    kernel_of(SOURCE.format(**aligned))
    source = SOURCE.format(**aligned).replace("num_warps=1),\n]", 'num_warps=1, device="cuda"),\n]')
    with pytest.raises(DeclarationError, match=r"no configuration behind .* serves calls that are not aligned"):
        kernel_of(source)
    kernel_of(source.replace("aligned=True", 'aligned=True, device="cuda"'))


def test_a_device_is_cuda_or_cpu():
    with pytest.raises(DeclarationError, match=r"`device='gpu'` is not possible[\s\S]*one of 'cuda', 'cpu'"):
        Config(device="gpu")
    assert repr(Config(BLOCK=1, device="cpu")) == "gm.Config(BLOCK=1, device='cpu')"
