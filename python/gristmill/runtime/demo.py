"""`gristmill demo`: each kernel on real input, on the CPU and on a CUDA device where there is one, against numpy."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gristmill.errors import GristmillError

if TYPE_CHECKING:
    from gristmill.cases import Case, Spec
    from gristmill.declare import Specialisation

SECONDS_A_ROW = 0.02
MOST_CALLS = 20
HEADER = ("kernel", "dtype", "device", "size", "image", "time", "error")


@dataclass(frozen=True)
class Row:
    """One line of the table; `error` is a share of the tolerance."""

    kernel: str
    dtype: str
    device: str
    size: str
    image: str
    microseconds: float
    error: float

    @property
    def is_right(self) -> bool:
        return self.error <= 1

    def cells(self) -> tuple[str, ...]:
        """Return the texts of the columns."""
        verdict = f"{self.error:.2f} {'ok' if self.is_right else 'WRONG'}"
        return (self.kernel, self.dtype, self.device, self.size, self.image, f"{self.microseconds:.1f} us", verdict)


class Device(Protocol):
    """Where the demo runs: how arrays get there and back, and how one waits for it."""

    name: str

    def can_hold(self, array: Any) -> bool: ...
    def put(self, array: Any) -> Any: ...
    def get(self, array: Any, like: Any) -> Any: ...
    def wait(self) -> None: ...


class Cpu:
    """NumPy arrays, used as they are."""

    name = "cpu"

    def can_hold(self, array: Any) -> bool:
        return True

    def put(self, array: Any) -> Any:
        return array.copy()

    def get(self, array: Any, like: Any) -> Any:
        return array

    def wait(self) -> None:
        pass


class Torch:
    """Tensors of PyTorch on the current CUDA device; dtypes that it has no name for in NumPy go as bytes."""

    name = "cuda"

    def __init__(self, torch: Any):
        self.torch = torch

    def can_hold(self, array: Any) -> bool:
        return hasattr(self.torch, array.dtype.name)

    def put(self, array: Any) -> Any:
        raw = self.torch.frombuffer(bytearray(array.tobytes()), dtype=self.torch.uint8).cuda()
        return raw.view(getattr(self.torch, array.dtype.name)).view(array.shape)

    def get(self, array: Any, like: Any) -> Any:
        return array.view(-1).view(self.torch.uint8).cpu().numpy().view(like.dtype).reshape(like.shape)

    def wait(self) -> None:
        self.torch.cuda.synchronize()


class Cupy:
    """Arrays of CuPy on the current CUDA device, which have the dtypes of NumPy itself."""

    name = "cuda"

    def __init__(self, cupy: Any):
        self.cupy = cupy

    def can_hold(self, array: Any) -> bool:
        return array.dtype.kind != "V" and array.dtype.isbuiltin == 1

    def put(self, array: Any) -> Any:
        return self.cupy.asarray(array)

    def get(self, array: Any, like: Any) -> Any:
        return self.cupy.asnumpy(array)

    def wait(self) -> None:
        self.cupy.cuda.runtime.deviceSynchronize()


def main() -> int:
    """Print the table; return 1 if a result is wrong. Raises GristmillError if numpy is missing."""
    _require_numpy()
    begun = time.perf_counter()
    devices, notes = find_devices()
    rows = list(_printed(run_kernels(devices)))
    wrong = sum(not row.is_right for row in rows)
    print("\n".join(["", *notes, summary(rows, wrong, time.perf_counter() - begun)]))
    return int(wrong > 0)


def summary(rows: Sequence[Row], wrong: int, seconds: float) -> str:
    """Return the last line."""
    verdict = f"{wrong} WRONG" if wrong else "all within the tolerance of the numpy reference"
    return f"{len({row.kernel for row in rows})} kernels, {len(rows)} runs, {verdict}; {seconds:.1f} s"


def find_devices(module: Any = None) -> tuple[list[Device], list[str]]:
    """Return the CPU and, if a module's kernels can use one, a CUDA device; and what to say about what is missing."""
    if module is None:
        from gristmill import kernels as module
    devices: list[Device] = [Cpu()]
    checks = [(status, text) for check, status, text in module.doctor() if check == "cuda:0"]
    if not checks:
        return devices, ["No CUDA device here (`python -m gristmill doctor` says why): the CPU only."]
    if errors := [text for status, text in checks if status == "error"]:
        return devices, [f"The CUDA device cannot be used: the CPU only.\n{error}" for error in errors]
    for name, make, is_usable in _LIBRARIES:
        if importlib.util.find_spec(name) and is_usable(library := importlib.import_module(name)):
            return [*devices, make(library)], []
    return devices, ["There is a CUDA device, but no torch or cupy with CUDA to make arrays on it: the CPU only."]


_LIBRARIES: tuple[tuple[str, Callable[[Any], Device], Callable[[Any], bool]], ...] = (
    ("torch", Torch, lambda torch: torch.cuda.is_available()),
    ("cupy", Cupy, lambda cupy: cupy.cuda.is_available()),
)


def run_kernels(devices: Sequence[Device]) -> Iterator[Row]:
    """Run the demo cases of every kernel in every dtype on each device that has arrays of these dtypes."""
    from gristmill import kernels
    from gristmill.runtime.specs import load_specs

    for spec in load_specs():
        dispatcher = getattr(kernels, spec.kernel.name, None)
        for specialisation in _first_of_each_dtype(spec) if dispatcher else ():
            for case in spec.cases_for("demo"):
                yield from _run_case(spec, case, specialisation, dispatcher, devices)


def _first_of_each_dtype(spec: Spec) -> Iterable[Specialisation]:
    has_bf16 = importlib.util.find_spec("ml_dtypes") is not None
    rows = {s.dtypes: s for s in reversed(spec.kernel.specialisations())}
    chosen = [s for s in reversed(rows.values()) if has_bf16 or "bf16" not in {d.name for _, d in s.dtypes}]
    return sorted(chosen, key=lambda s: [str(d.kind) + f"{d.bits:03}" for _, d in s.dtypes])


def _run_case(
    spec: Spec, case: Case, specialisation: Specialisation, dispatcher: Any, devices: Sequence[Device]
) -> Iterator[Row]:
    arguments = spec.arguments(case, specialisation)
    expected = spec.expected(arguments)
    for device in devices:
        if all(device.can_hold(arguments[name]) for name in case.shapes):
            yield run_on(device, spec, case, specialisation, dispatcher, arguments, expected)


def run_on(
    device: Device,
    spec: Spec,
    case: Case,
    specialisation: Specialisation,
    dispatcher: Any,
    arguments: dict[str, Any],
    expected: dict[str, Any],
) -> Row:
    """Run and time one case on one device, and compare what it wrote."""
    arrays = {name: device.put(arguments[name]) for name in case.shapes}
    ordered = [arrays[p.name] for p in spec.kernel.parameters if p.kind == "pointer"]
    microseconds = time_calls(lambda: dispatcher(*ordered, **case.scalars), device.wait)
    if spec.added:
        arrays |= {name: device.put(arguments[name]) for name in spec.added}
        dispatcher(*(arrays[p.name] for p in spec.kernel.parameters if p.kind == "pointer"), **case.scalars)
    got = {name: device.get(arrays[name], arguments[name]) for name in spec.outputs}
    error = max(spec.errors(got, expected).values())
    dtype = "/".join(d.name for _, d in specialisation.dtypes)
    image = dispatcher.info(*ordered, **case.scalars)["image"]
    return Row(spec.kernel.name, dtype, device.name, case.name, image, microseconds, error)


def time_calls(call: Callable[[], object], wait: Callable[[], None]) -> float:
    """Return the shortest of a few calls in microseconds, each waited for, after a first one that loads code."""
    call()
    wait()
    shortest, end = float("inf"), time.perf_counter() + SECONDS_A_ROW
    for _ in range(MOST_CALLS):
        begun = time.perf_counter()
        call()
        wait()
        shortest = min(shortest, time.perf_counter() - begun)
        if time.perf_counter() > end:
            break
    return 1e6 * shortest


_WIDTHS = (20, 6, 7, 14, 18, 12, 12)


def _printed(rows: Iterable[Row]) -> Iterator[Row]:
    """Print rows while they come."""
    print(_line(HEADER))
    for row in rows:
        print(_line(row.cells()), flush=True)
        yield row


def _line(cells: Sequence[str]) -> str:
    kernel, dtype, device, size, image, duration, error = (f"{c:<{w}}" for c, w in zip(cells, _WIDTHS, strict=True))
    return " ".join([kernel, dtype, device, size, image, duration.rstrip().rjust(12), error.rstrip().rjust(12)])


def _require_numpy() -> None:
    if importlib.util.find_spec("numpy") is None:
        message = "the demo needs numpy, for its input and its references"
        raise GristmillError(message, fix='pip install "gristmill[demo]"')
