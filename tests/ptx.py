"""Compiles kernels for CUDA in several processes, assembles many entries at once, and reads what ptxas says of each."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gristmill.build.ptxas import find_ptxas, join_entries
from gristmill.declare import Kernel
from gristmill.specialisation import Specialisation, Variant
from kept import compiler_version, kept
from machines import shipped_kernels

PTXAS = find_ptxas()
needs_ptxas = pytest.mark.skipif(not PTXAS, reason="needs ptxas: pip install nvidia-cuda-nvcc-cu12==12.9.*")


@dataclass(frozen=True)
class Entry:
    """One variant of a specialisation compiled for a CUDA target; `lowered` is what the compiler says of it."""

    specialisation: Specialisation
    variant: Variant
    lowered: Any
    text: str

    @property
    def symbol(self) -> str:
        return str(self.lowered.symbol)


@dataclass(frozen=True)
class Usage:
    """What ptxas says that an entry takes; `local_bytes` are spills and arrays, of one thread."""

    registers: int
    local_bytes: int


def compile_entries(kernel: Kernel, target: str, specialisations: Sequence[Specialisation]) -> list[Entry]:
    """Compile every variant of those of the specialisations that are built for a target, in several processes."""
    every = kernel.specialisations()
    served = [s for s in specialisations if s.serves("cuda")]
    tasks = [(kernel.name, every.index(s), v, target) for s in served for v in range(len(s.variants))]
    return [entry for entry in _pool().map(_compile, tasks, chunksize=2) if entry]


@cache
def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=multiprocessing.get_context("fork"))


def _compile(task: tuple[str, int, int, str]) -> Entry | None:
    from gristmill.compiler.compile import generate, is_replaceable, lower_variant
    from gristmill.compiler.targets import TARGETS

    name, index, number, target_name = task
    kernel, target = shipped_kernels()[name], TARGETS[target_name]
    specialisation = kernel.specialisations()[index]
    variant = specialisation.variants[number]
    lowered = lower_variant(kernel, specialisation, variant, target, _ignore)
    if lowered.overflows and is_replaceable(kernel, specialisation, target):
        return None
    contents = (lowered.text, repr(target), compiler_version())
    file = kept(".ptx", contents, lambda path: path.write_bytes(generate(lowered, target, _ignore).code))
    return Entry(specialisation, variant, lowered, file.read_text())


def _ignore(stage: str, thing: Any) -> None:
    return None


def assemble(entries: Sequence[Entry], arch: str) -> dict[str, Usage]:
    """Assemble entries in one call and return what each takes. Fails with ptxas's own words."""
    assert PTXAS
    text = join_entries([entry.text.encode() for entry in entries])[0]

    def run(path: Path) -> None:
        source = path.with_suffix(".ptx")
        source.write_bytes(text)
        command = [str(PTXAS.path), "-v", "-O3", f"-arch={arch}", str(source), "-o", str(path.with_suffix(".cubin"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        source.unlink()
        assert done.returncode == 0, done.stderr
        path.with_suffix(".cubin").unlink()
        path.write_text(done.stderr)

    return read_report(kept(".txt", (text.decode(), arch, PTXAS.version), run).read_text())


def read_report(report: str) -> dict[str, Usage]:
    """Return what `ptxas -v` says of each entry."""
    parts = re.split(r"Compiling entry function '(\w+)' for '\w+'", report)[1:]
    return {name: _usage(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _usage(text: str) -> Usage:
    stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", text)
    registers = re.search(r"Used (\d+) registers", text)
    assert stack and registers, text
    return Usage(int(registers[1]), max(int(stack[1]), int(stack[2])))


COUNTED = (
    ("ld.global", r"ld\.(?:\w+\.)*global[\w.:]*?(?:\.(v\d))?\.([busf]\d+)"),
    ("st.global", r"st\.(?:\w+\.)*global[\w.:]*?(?:\.(v\d))?\.([busf]\d+)"),
    ("ld.shared", r"ld\.shared[\w.:]*?(?:\.(v\d))?\.([busf]\d+)"),
    ("st.shared", r"st\.shared[\w.:]*?(?:\.(v\d))?\.([busf]\d+)"),
)


def count_instructions(text: str) -> dict[str, int]:
    """Count memory instructions by their width in bits, and those that exchange, wait or are slow."""
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        instruction = re.sub(r"^@\S+\s+", "", line.strip().removeprefix("{").strip())
        for name, pattern in COUNTED:
            if match := re.match(pattern, instruction):
                counts[f"{name} {int((match[1] or 'v1')[1:]) * int(match[2][1:])}"] += 1
        for name in ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "div", "bar", "barrier", "shfl", "mapa", "atom"):
            counts[name] += instruction.startswith(name + ".")
    return {name: n for name, n in sorted(counts.items()) if n}
