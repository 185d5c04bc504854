"""`gristmill demo`: what it runs, what it finds wrong, and that it works from an installed wheel."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import gristmill
from gristmill.cases import Spec
from gristmill.cli import main
from gristmill.dtypes import dt_numpy
from gristmill.runtime import demo, specs

DEVICE = ("cuda:0", "ok", "Stub GPU")


class Dispatcher:
    """Stands in for a built kernel: computes by its reference, a little wrong if asked."""

    def __init__(self, spec: Spec, factor: float = 1.0):
        self.spec = spec
        self.factor = factor

    def __call__(self, *arrays: np.ndarray) -> None:
        names = [p.name for p in self.spec.kernel.parameters if p.kind == "pointer"]
        given = dict(zip(names, arrays, strict=True))
        for name, value in self.spec.expected(given).items():
            given[name][...] = (value if self.factor == 1 else value * self.factor).astype(given[name].dtype)

    def info(self, *arrays: object) -> dict[str, str]:
        return {"image": "host x86-64-v3"}


@pytest.fixture
def kernels(monkeypatch):
    """A module of kernels with `gelu_forward` and `vector_add`."""
    module = ModuleType("gristmill.kernels")
    by_name = {spec.kernel.name: spec for spec in specs.load_specs()}
    for name in ("gelu_forward", "vector_add"):
        setattr(module, name, Dispatcher(by_name[name]))
    module.doctor = lambda: [("cpu", "ok", "fine"), ("driver", "warning", "no CUDA driver")]
    monkeypatch.setitem(sys.modules, "gristmill.kernels", module)
    monkeypatch.setattr(gristmill, "kernels", module, raising=False)
    monkeypatch.setattr(demo, "SECONDS_A_ROW", 0.0)
    return module


def test_every_dtype_of_every_kernel_is_run(kernels, capsys):
    assert main(["demo"]) == 0
    header, *rows, _, note, summary = capsys.readouterr().out.splitlines()
    assert header.split() == ["kernel", "dtype", "device", "size", "image", "time", "error"]
    assert {tuple(row.split()[:2]) for row in rows} == {
        *(("gelu_forward", dtype.name) for dtype in gristmill.Float.members),
        *(("vector_add", dtype.name) for dtype in gristmill.Num.members),
    }
    assert all(row.endswith(" ok") for row in rows)
    assert note.startswith("No CUDA device here")
    assert summary.startswith("2 kernels, 16 runs, all within the tolerance of the numpy reference; ")


def test_a_wrong_result_is_named_and_fails(kernels, capsys):
    kernels.gelu_forward.factor = 1.0001
    assert main(["demo"]) == 1
    lines = capsys.readouterr().out.splitlines()
    wrong = [line.split()[:2] for line in lines if line.endswith("WRONG")]
    assert wrong == [["gelu_forward", "f32"], ["gelu_forward", "f64"]]
    assert "WRONG" in lines[-1]


def test_bf16_is_left_out_where_numpy_lacks_it(kernels, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ml_dtypes" else find(name))
    assert main(["demo"]) == 0
    assert "bf16" not in capsys.readouterr().out


def test_without_numpy_it_says_what_to_install(kernels, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["demo"]) == 1
    assert 'fix: pip install "gristmill[demo]"' in capsys.readouterr().err


def test_a_device_needs_a_library_of_arrays(kernels, monkeypatch):
    kernels.doctor = lambda: [DEVICE]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    devices, (note,) = demo.find_devices()
    assert [device.name for device in devices] == ["cpu"]
    assert "no torch or cupy" in note


def test_a_device_without_an_image_is_reported(kernels):
    kernels.doctor = lambda: [DEVICE, ("cuda:0", "error", "no image fits this device")]
    devices, (note,) = demo.find_devices()
    assert [device.name for device in devices] == ["cpu"]
    assert "no image fits this device" in note


def test_a_library_with_cuda_is_used(kernels, monkeypatch):
    kernels.doctor = lambda: [DEVICE]
    for name, is_available in (("torch", False), ("cupy", True)):
        library = ModuleType(name)
        library.cuda = SimpleNamespace(is_available=lambda answer=is_available: answer)
        monkeypatch.setitem(sys.modules, name, library)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    devices, notes = demo.find_devices()
    assert [type(device) for device in devices] == [demo.Cpu, demo.Cupy]
    assert notes == []


@pytest.mark.parametrize("dtype", gristmill.Num.members, ids=lambda d: d.name)
def test_tensors_hold_the_bits_of_arrays(dtype, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    array = np.arange(6).reshape(2, 3).astype(dt_numpy(dtype))
    device = demo.Torch(torch)
    assert device.can_hold(array)
    tensor = device.put(array)
    assert tuple(tensor.shape) == (2, 3)
    assert device.get(tensor, array).tobytes() == array.tobytes()
    assert demo.Cupy(None).can_hold(array) == (dtype.name != "bf16")


class Adding(Dispatcher):
    """Adds to its outputs."""

    def __call__(self, *arrays: np.ndarray) -> None:
        arrays[-1][...] += self.spec.expected({"x": arrays[0]})["y"].astype(arrays[-1].dtype)


def test_what_a_kernel_adds_to_is_zeros_before_the_call_that_is_compared(monkeypatch):
    monkeypatch.setattr(demo, "SECONDS_A_ROW", 0.0)
    found = next(spec for spec in specs.load_specs() if spec.kernel.name == "relu_forward")
    spec, case = replace(found, added=("y",)), found.cases_for("demo")[0]
    row = next(s for s in found.kernel.specialisations() if s.dtypes[0][1].name == "f32")
    given = spec.arguments(case, row)
    assert (given["y"] == 0).all()
    ran = demo.run_on(demo.Cpu(), spec, case, row, Adding(spec), given, spec.expected(given))
    assert ran.error <= 1


def test_each_call_is_waited_for():
    events = []
    demo.time_calls(lambda: events.append("call"), lambda: events.append("wait"))
    assert events == ["call", "wait"] * (len(events) // 2)


def is_installed() -> bool:
    try:
        files = importlib.metadata.distribution("gristmill").files or ()
    except importlib.metadata.PackageNotFoundError:
        return False
    return any("kernels/source/" in str(file) for file in files)


@pytest.mark.skipif(not is_installed(), reason="no wheel is installed")
def test_the_installed_wheel_runs_it_without_a_compiler():
    code = (
        "import sys; from gristmill.cli import main; s = main(['demo']); print('llvmlite' in sys.modules); sys.exit(s)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "False"
