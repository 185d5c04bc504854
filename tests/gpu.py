"""Kernels' cases as CUDA tensors: each between guards that no kernel may touch, and read back as numpy arrays.

Importing it skips a module of tests where there is no torch, no built kernels or no CUDA device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gristmill.cases import Case, Spec, spec_of
from gristmill.declare import Specialisation
from machines import shipped_kernels

torch: Any = pytest.importorskip("torch")
try:
    from gristmill import kernels
except ImportError:
    pytest.skip("gristmill.kernels is not built", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

DEVICE = "cuda"
SPECS = {name: spec_of(k) for name, k in shipped_kernels().items() if hasattr(kernels, name)}
GUARD_BYTES = 256
GUARD = 0xA5

TORCH_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "bool": torch.bool,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}


Tensor = Any


@dataclass(frozen=True)
class Placed:
    """A tensor inside a larger piece of memory."""

    tensor: Tensor
    memory: Tensor

    def is_guard_intact(self) -> bool:
        """Return whether the bytes before and behind the tensor are as they were."""
        start = (self.tensor.storage_offset() if self.tensor.numel() else 0) * self.tensor.element_size()
        bytes_ = self.tensor.numel() * self.tensor.element_size()
        outside = (self.memory[:start], self.memory[start + bytes_ :])
        return all(bool((piece == GUARD).all()) for piece in outside)

    def read(self, dtype: np.dtype) -> np.ndarray:
        """Return the elements as a numpy array of this dtype."""
        return read(self.tensor, dtype)


def read(tensor: Tensor, dtype: Any) -> np.ndarray:
    """Return a contiguous tensor as a numpy array of a dtype of the same size, which may be one of ml_dtypes."""
    raw = tensor.reshape(-1).view(torch.uint8).cpu().numpy()
    return raw.view(dtype).reshape(tuple(tensor.shape))


def place(array: np.ndarray, shift: int = 0) -> Placed:
    """Copy an array to the device, to start on 256 bytes and `shift` elements; one that is turned stays so."""
    if array.ndim == 2 and not array.flags.c_contiguous and array.T.flags.c_contiguous:
        turned = place(array.T, shift)
        return Placed(turned.tensor.T, turned.memory)
    start = GUARD_BYTES + shift * array.itemsize
    bytes_ = np.full(start + array.nbytes + GUARD_BYTES, GUARD, np.uint8)
    bytes_[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    memory = torch.from_numpy(bytes_).to(DEVICE)
    piece = memory[start : start + array.nbytes]
    return Placed(piece.view(TORCH_DTYPES[array.dtype.name]).view(array.shape), memory)


def tensor_of(array: np.ndarray) -> Tensor:
    """Copy an array to the device."""
    return place(array).tensor


@dataclass(frozen=True)
class Outcome:
    """What a call gave: the largest error as a share of the tolerance, and which variant ran."""

    error: float
    variant: str
    is_guard_intact: bool

    @property
    def is_right(self) -> bool:
        return self.error <= 1 and self.is_guard_intact


def run_case(spec: Spec, case: Case, specialisation: Specialisation, shifts: Iterable[int] = (0,)) -> list[Outcome]:
    """Run a case on tensors shifted by so many elements from 16-byte alignment; the reference is computed once."""
    arguments = spec.arguments(case, specialisation)
    expected = spec.expected(arguments)
    return [_run(spec, case, arguments, expected, shift) for shift in shifts]


def _run(spec: Spec, case: Case, arguments: dict[str, Any], expected: dict[str, Any], shift: int) -> Outcome:
    dispatcher = getattr(kernels, spec.kernel.name)
    placed = {name: place(arguments[name], shift) for name in case.shapes}
    tensors = [placed[p.name].tensor for p in spec.kernel.parameters if p.kind == "pointer"]
    dispatcher(*tensors, **case.scalars)
    got = {name: placed[name].read(arguments[name].dtype) for name in spec.outputs}
    unchanged = all(
        placed[name].read(arguments[name].dtype).tobytes() == arguments[name].tobytes()
        for name in case.shapes
        if name not in spec.outputs
    )
    error = max(spec.error(got[name], expected[name]) for name in spec.outputs)
    variant = dispatcher.info(*tensors, **case.scalars)["variant"]
    return Outcome(error, variant, unchanged and all(p.is_guard_intact() for p in placed.values()))


def poisoned(like: Tensor) -> Tensor:
    """Return a tensor like another, of numbers that no result is."""
    return torch.full_like(like, 77)


def gelu(x: Tensor) -> Tensor:
    """Return what torch computes."""
    return torch.nn.functional.gelu(x, approximate="tanh")


def assert_gelu(x: Tensor, y: Tensor) -> None:
    """Assert that y is gelu(x)."""
    torch.testing.assert_close(y, gelu(x.double()).to(y.dtype), rtol=1e-5, atol=1e-6)


@pytest.fixture(autouse=True)
def real_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what tests of the runtime leave: the name of their fake driver."""
    monkeypatch.delenv("GRISTMILL_LIBCUDA", raising=False)


@pytest.fixture
def x() -> Tensor:
    """5000 normal numbers."""
    return torch.randn(5000, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))


class Interface:
    """An array that others see only through `__cuda_array_interface__`."""

    def __init__(self, tensor: Tensor, **others: Any):
        self.owner = tensor
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "typestr": "<f4",
            "data": (tensor.data_ptr(), False),
            "strides": None,
        } | others


def image_kind() -> str:
    """Return "cubin" if the wheel has one for this device, else "PTX"."""
    major, minor = torch.cuda.get_device_capability()
    targets = {image["target"] for image in kernels.info()["images"] if image["kind"] == "cubin"}
    fitting = {f"sm_{major}{minor}{suffix}" for suffix in ("", "a", "f")} | {f"sm_{major}{n}" for n in range(minor)}
    return "cubin" if targets & fitting else "PTX"
