"""What is timed: a kernel in one dtype on one of its bench cases, and who competes for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gristmill.cases import CPU_SIDE, Case, Spec, spec_of
from gristmill.declare import Specialisation, load_kernels

ROOT = Path(__file__).resolve().parents[2]
Arrays = Mapping[str, Any]
ARITHMETIC = 8
"""Operations for each byte from which on work is measured by them."""


@dataclass(frozen=True, eq=False)
class Work:
    """One row of a benchmark."""

    spec: Spec
    case: Case
    specialisation: Specialisation

    @property
    def kernel(self) -> str:
        return self.spec.kernel.name

    @property
    def dtype(self) -> str:
        return "-".join(dtype.name for _, dtype in self.specialisation.dtypes)

    @property
    def bytes(self) -> int:
        """What must move through memory."""
        return self.spec.cost(self.case, self.specialisation).bytes

    @property
    def flops(self) -> int:
        """What must be computed."""
        return self.spec.cost(self.case, self.specialisation).flops

    @property
    def is_arithmetic(self) -> bool:
        """Whether computing it takes longer than moving it, or nearly."""
        return self.flops > ARITHMETIC * self.bytes

    @property
    def title(self) -> str:
        return f"{self.kernel} {self.dtype} {self.case.name}"

    def dtype_of(self, array: str) -> str:
        """Return the name of an array's dtype."""
        declared = self.spec.kernel.parameter(array).dtype
        chosen = {name: dtype.name for name, dtype in self.specialisation.dtypes}
        return chosen.get(declared.name, declared.name)

    def positional(self, arrays: Arrays) -> list[Any]:
        """Return the arrays in the order of the kernel's parameters."""
        return [arrays[p.name] for p in self.spec.kernel.parameters if p.kind == "pointer"]


@dataclass(frozen=True, eq=False)
class Contestant:
    """Something that does the work: one call for each set of buffers; `bytes` if it moves others than the work."""

    name: str
    calls: Sequence[Callable[[], Any]]
    bytes: int | None = None


@dataclass
class Result:
    """What came out for one contestant; `error` is a share of the tolerance, `note` says why there is no time.

    `flops` is 0 for work that is measured by its bytes.
    """

    kernel: str
    dtype: str
    case: str
    device: str
    contestant: str
    bytes: int
    median_us: float = math.nan
    p10_us: float = math.nan
    p90_us: float = math.nan
    gb_s: float = math.nan
    copy_share: float = math.nan
    error: float | None = None
    note: str = ""
    flops: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def tflop_s(self) -> float:
        return self.flops / self.median_us / 1e6


def load_specs() -> dict[str, Spec]:
    """Return the specs of the repository's kernels by name."""
    folder = ROOT / "kernels"
    return {k.name: spec_of(k) for file in sorted(folder.glob("*.py")) for k in load_kernels(file, ROOT)}


def plan(names: Sequence[str], dtypes: Sequence[str], is_cpu: bool, columns: Sequence[int] = ()) -> list[Work]:
    """Return the work for kernels: their large cases for CUDA, the square ones for the CPU.

    By default all kernels but those of attention, which `tools/bench attention` measures.
    """
    specs = load_specs()
    if unknown := sorted(set(names) - set(specs)):
        raise SystemExit(f"there is no kernel {', '.join(unknown)}; there are {', '.join(specs)}")
    chosen = [specs[name] for name in names or specs if names or not name.startswith("attention")]
    return [work for spec in chosen for work in _works(spec, dtypes, is_cpu, columns)]


def _works(spec: Spec, dtypes: Sequence[str], is_cpu: bool, columns: Sequence[int]) -> Iterator[Work]:
    rows = {s.dtypes: s for s in reversed(spec.kernel.specialisations())}
    by_name = {"-".join(dtype.name for _, dtype in names): row for names, row in rows.items()}
    for name in [name for name in dtypes if name in by_name]:
        for case in spec.cases_for("bench"):
            work = Work(spec, case, by_name[name])
            shape = next(iter(case.shapes.values()))
            is_square = case.name == f"{CPU_SIDE} x {CPU_SIDE}"
            if is_square == is_cpu and (not columns or shape[-1] in columns):
                yield work
