"""Launches of an installed Triton on a GPU, and the declarations that `record()` writes of them."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.compat import record
from gristmill.compiler.frontend import build
from gristmill.compiler.interpreter import run_kernel
from gristmill.declare import Kernel, load_kernels
from gristmill.porting import _with_imports
from gristmill.specialisation import VARIANTS

torch: Any = pytest.importorskip("torch")
triton: Any = pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def scaled_kernel(x_ptr, y_ptr, n, factor, OUT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, (x * factor).to(OUT), mask=i < n)


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 128}, num_warps=1, num_stages=2),
        triton.Config({"BLOCK": 256}, num_warps=2, num_stages=3),
    ],
    key=["n"],
)
@triton.jit
def added_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < n
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=keep) + 1, mask=keep)
"""
SIZES = (1000, 1025)


def load(file: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launch_scaled(kernel: Any, size: int, name: str) -> tuple[Any, Any]:
    x = torch.arange(size, dtype=torch.float32, device="cuda")
    y = torch.zeros(size, dtype=getattr(torch, name), device="cuda")
    dtype = getattr(triton.language, name)
    kernel[(triton.cdiv(size, 256),)](x, y, size, 0.5, OUT=dtype, BLOCK=256, num_warps=4)
    return x, y


def launch_added(kernel: Any, size: int) -> tuple[Any, Any]:
    x = torch.arange(size, dtype=torch.float32, device="cuda")
    y = torch.zeros_like(x)
    kernel[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](x, y, size)
    return x, y


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with kernels as they ran under Triton, `launched.py`, and the declarations of it, `recorded.py`."""
    place = tmp_path_factory.mktemp("recorded")
    (place / "launched.py").write_text(SOURCE)
    (place / "recorded.py").write_text(_with_imports(SOURCE))
    kernels = load(place / "launched.py")
    with record(place / "recorded.py"):
        for size, name in zip(SIZES, ("float16", "float32"), strict=True):
            x, y = launch_scaled(kernels.scaled_kernel, size, name)
            torch.testing.assert_close(y, (x * 0.5).to(y.dtype))
        for size in SIZES:
            x, y = launch_added(kernels.added_kernel, size)
            torch.testing.assert_close(y, x + 1)
    return place


@pytest.fixture(scope="module")
def declared(folder: Path) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in load_kernels(folder / "recorded.py", folder)}


def test_a_plain_launch_is_declared_with_its_dtypes_and_constants(declared):
    kernel = declared["scaled"]
    assert [s.id for s in kernel.specialisations()] == ["scaled__f16__256__w4", "scaled__f32__256__w4"]


def test_an_autotuned_launch_is_declared_with_the_configurations_that_were_tried(declared):
    kernel = declared["added"]
    assert sorted(s.id for s in kernel.specialisations()) == ["added__128__w1s2", "added__256__w2s3"]


@pytest.mark.parametrize("name", ["scaled", "added"])
def test_what_was_recorded_compiles(declared, name):
    for specialisation in declared[name].specialisations():
        for variant in VARIANTS:
            assert build(declared[name], specialisation, variant).body.statements


@pytest.mark.parametrize("size", SIZES)
def test_what_was_recorded_computes_the_same(declared, size):
    x, y = np.arange(size, dtype=np.float32), np.zeros(size, np.float32)
    run_kernel(declared["added"], None, x, y, size)
    np.testing.assert_array_equal(y, x + 1)
    for dtype in (np.float16, np.float32):
        z = np.zeros(size, dtype)
        run_kernel(declared["scaled"], None, x, z, size, 0.5)
        np.testing.assert_array_equal(z, (x * np.float32(0.5)).astype(dtype))


def test_a_warm_up_is_not_recorded(folder):
    kernel = load(folder / "launched.py").scaled_kernel
    with record() as recording:
        kernel.warmup(torch.float32, torch.float16, 10, 0.5, OUT=triton.language.float16, BLOCK=128, grid=(1,))
    assert not recording.launches


def test_launches_run_as_before_when_nothing_is_recorded(folder):
    kernels = load(folder / "launched.py")
    original = triton.runtime.jit.JITFunction.run
    with record() as recording:
        launch_scaled(kernels.scaled_kernel, 10, "float16")
        assert triton.runtime.jit.JITFunction.run is not original
    assert triton.runtime.jit.JITFunction.run is original
    x, y = launch_scaled(kernels.scaled_kernel, 20, "float16")
    torch.testing.assert_close(y, (x * 0.5).to(y.dtype))
    assert len(recording.launches["scaled_kernel"]) == 1
