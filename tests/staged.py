"""Tile IR after the passes of a kind of machine, and what to look for in it."""

from __future__ import annotations

from typing import Any

from gristmill.compiler.frontend import build
from gristmill.compiler.ir import Function, Op, Pointer, verify, walk
from gristmill.compiler.passes import PIPELINE, access
from gristmill.compiler.targets import TARGETS
from gristmill.declare import Kernel
from gristmill.specialisation import VARIANTS, Specialisation
from machines import kernel_of, shipped_kernels

ALIGNED, GENERAL, WIDE = VARIANTS
KINDS = ("cuda", "host")


def parameter_names(kernel: Kernel) -> set[str]:
    return {p.name for p in kernel.parameters}


KERNELS = shipped_kernels()
STREAMING = [k for k in KERNELS.values() if "BLOCK" in k.constant_names]
FLAT = [k for k in STREAMING if "n_cols" not in parameter_names(k)]
ROWS = [k for k in KERNELS.values() if "ONE_PASS" in k.constant_names]


def named(kernel: Kernel) -> str:
    return kernel.name


def run_passes(
    kernel: Kernel, specialisation: Specialisation | None = None, *, variant: Any = ALIGNED, kind: str = "cuda"
) -> Function:
    """Return the tile IR after the passes for a kind of machine."""
    function = build(kernel, specialisation or kernel.specialisations()[0], variant)
    if variant.is_aligned:
        function.facts |= access.promise(function)
    function.shared_bytes = TARGETS["sm_80"].shared_bytes
    for _, run, kinds in PIPELINE:
        if kind in kinds:
            run(function)
            verify(function)
    return function


def ops(function: Function, *names: str) -> list[Op]:
    return [s for s in walk(function.body) if isinstance(s, Op) and (not names or s.name in names)]


def accesses(function: Function) -> list[Op]:
    return [op for op in ops(function, "load", "store") if op.operands[0].type.shape]


def is_masked(op: Op) -> bool:
    return len(op.operands) > (1 if op.name == "load" else 2)


def count(function: Function, kind: type) -> int:
    return sum(isinstance(s, kind) for s in walk(function.body))


def element_bytes(op: Op) -> int:
    pointer = op.operands[0].type.dtype
    assert isinstance(pointer, Pointer)
    return pointer.element.itemsize


def plain_function(source: str, variant: Any = ALIGNED) -> Function:
    """Return what the frontend makes of a kernel that has no dtype variables and constants."""
    return build(kernel_of(source), Specialisation("k", (), ()), variant)


def indented(lines: str) -> str:
    return "".join(f"    {line}\n" for line in lines.splitlines())
