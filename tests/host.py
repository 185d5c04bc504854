"""Runs kernels as machine code of this processor: compiled, linked by the C compiler, called through ctypes."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.compiler.interpreter import _choose, _evaluate, _fill, obstacle_of, suitable_variant, without
from gristmill.compiler.targets import TARGETS, Target
from gristmill.declare import Kernel
from gristmill.dtypes import Dtype, dt_numpy
from gristmill.specialisation import VARIANTS, Specialisation, Variant
from kept import compiler_version, kept

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
NEEDS = {
    "x86-64-v2": {"sse4.2", "ssse3", "popcnt"},
    "x86-64-v3": {"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}

Entry = Callable[[bytes, Any, int, int], None]


@cache
def levels() -> tuple[str, ...]:
    """Return the host targets whose code this processor runs, the best one last; none without LLVM and a C compiler."""
    if not CC or not importlib.util.find_spec("llvmlite"):
        return ()
    import llvmlite.binding as llvm

    if platform.machine() == "aarch64":
        return ("aarch64",)
    has = {name for name, there in llvm.get_host_cpu_features().items() if there}
    found = []
    for level, needed in NEEDS.items():
        if not needed <= has:
            break
        found.append(level)
    return tuple(found)


def runner(level: str) -> Callable[..., Specialisation]:
    """Return what `run_kernel` of the interpreter is, on one host target."""
    return partial(run_on_host, level=level)


def run_on_host(
    kernel: Kernel,
    specialisation: Specialisation | None = None,
    *arguments: Any,
    grid: Sequence[int] | None = None,
    variant: Variant | None = None,
    level: str = "",
    **named: Any,
) -> Specialisation:
    """Call a kernel as its dispatcher would, with machine code; arguments are those of the interpreter's `run_kernel`.

    The aligned variant runs where the arrays allow it.
    """
    constants = {name: named.pop(name) for name in kernel.constant_names if name in named}
    values = _fill(kernel, dict(zip((p.name for p in kernel.parameters), arguments, strict=False)) | named)
    target = TARGETS[level or levels()[-1]]

    def promised(candidate: Specialisation) -> dict[str, int]:
        return entry(kernel, candidate, VARIANTS[0], target)[1]

    obstacle = without(variant) or (lambda candidate: obstacle_of(kernel, values, partial(promised, candidate)))
    chosen = _choose(kernel, values, constants, obstacle, specialisation, "host")
    sizes = tuple(grid) if grid is not None else tuple(_evaluate(code, kernel, values, chosen) for code in kernel.grid)
    if all(size > 0 for size in sizes):
        _check_dtypes(kernel, chosen, values)
        variant = variant or suitable_variant(kernel, values, partial(promised, chosen))
        call(entry(kernel, chosen, variant, target)[0], pack(kernel, chosen, variant, values), sizes)
    return chosen


def call(function: Entry, block: bytes, grid: Sequence[int]) -> None:
    """Run all programs of a grid."""
    sizes = (*grid, 1, 1, 1)[:3]
    function(block, (ctypes.c_int64 * 3)(*sizes), 0, math.prod(sizes))


def pack(kernel: Kernel, specialisation: Specialisation, variant: Variant, values: Mapping[str, Any]) -> bytes:
    """Lay out parameters as host functions read them: each aligned to its own size."""
    block = b""
    for field in fields(kernel, specialisation, variant, values):
        block += bytes(-len(block) % len(field)) + field
    return block


def fields(
    kernel: Kernel, specialisation: Specialisation, variant: Variant, values: Mapping[str, Any]
) -> Iterator[bytes]:
    """The bytes of each parameter."""
    for parameter in kernel.parameters:
        value = values[parameter.name]
        if parameter.kind == "pointer":
            yield np.uint64(value.ctypes.data).tobytes()
        elif parameter.kind == "scalar":
            yield np.asarray(value).astype(dt_numpy(_dtype(parameter.dtype, specialisation))).tobytes()
        else:
            yield int(value).to_bytes(variant.index_bits // 8, "little", signed=True)


def _dtype(dtype: Any, specialisation: Specialisation) -> Dtype:
    return dtype if isinstance(dtype, Dtype) else dict(specialisation.dtypes)[dtype.name]


def _check_dtypes(kernel: Kernel, specialisation: Specialisation, values: Mapping[str, Any]) -> None:
    for p in kernel.parameters:
        if p.kind == "pointer":
            wanted = dt_numpy(_dtype(p.dtype, specialisation))
            assert values[p.name].dtype == wanted, f"`{p.name}` has dtype {values[p.name].dtype}, not {wanted}"


@cache
def entry(
    kernel: Kernel, specialisation: Specialisation, variant: Variant, target: Target
) -> tuple[Entry, dict[str, int]]:
    """Return the compiled function and the divisibility that it needs of index parameters."""
    from gristmill.compiler.compile import lower_variant

    lowered = lower_variant(kernel, specialisation, variant, target, lambda stage, thing: None)
    function = ctypes.CDLL(str(_library(lowered, target)))[lowered.symbol]
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    function.restype = None
    return function, lowered.divisibility


def _library(lowered: Any, target: Target) -> Path:
    """Return the file of the linked code."""
    from gristmill.compiler.compile import generate

    def link(library: Path) -> None:
        code = library.with_suffix(".o")
        code.write_bytes(generate(lowered, target, lambda stage, thing: None).code)
        subprocess.run([str(CC), "-shared", "-nostartfiles", "-o", str(library), str(code), "-lm"], check=True)
        code.unlink()

    return kept(".so", (lowered.text, repr(target), compiler_version()), link)
