"""Tile IR as a target's machine gets it: built from source, told of the target, through the passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gristmill.compiler import frontend
from gristmill.compiler.checks import asks_for_checks
from gristmill.compiler.ir import Function, Value, verify
from gristmill.compiler.passes import PIPELINE, access, clusters, regular, swapped, turned, windows
from gristmill.compiler.targets import Target
from gristmill.declare import Kernel
from gristmill.specialisation import Specialisation, Variant


def prepare(
    kernel: Kernel,
    specialisation: Specialisation,
    variant: Variant,
    target: Target,
    watch: Callable[[str, Any], None],
) -> tuple[Function, dict[Value, int]]:
    """Build a variant and run the passes; also returns what index parameters must be multiples of.

    `watch(stage, function)` sees the function after each stage.
    """
    if target.has_groups and variant.is_aligned:
        for is_regular in (True, False):
            function, divisibility = _passed(kernel, specialisation, variant, target, watch, True, is_regular)
            if not windows.windows_of(function):
                return function, divisibility
    return _passed(kernel, specialisation, variant, target, watch)


def _passed(
    kernel: Kernel,
    specialisation: Specialisation,
    variant: Variant,
    target: Target,
    watch: Callable[[str, Any], None],
    has_windows: bool = False,
    is_regular: bool = False,
) -> tuple[Function, dict[Value, int]]:
    """As `prepare`; stops early where windows are left that the hardware cannot copy.

    `has_windows`: descriptors' blocks are windows; `is_regular`: those that are read through regular pointers, too.
    """
    function = frontend.build(kernel, specialisation, variant, has_windows)
    if target.kind == "host":
        function.name += f"__{target.level}"
    function.has_clusters, function.shared_bytes = target.has_clusters, target.shared_bytes_of(function.blocks_per_sm)
    function.has_groups = target.has_groups
    function.sm, function.ptx_version, function.is_checked = target.sm, target.ptx_version, asks_for_checks()
    if is_regular:
        regular.run(function)
    # A tile that is padded computes what nobody wants, unless tensor cores take it from windows.
    is_for_others = specialisation.warpgroups not in (None, target.has_groups)
    function.overflows = (function.is_padded or function.absent_warps > 0 or is_for_others) and target.kind == "cuda"
    if not (has_windows and target.has_clusters):
        function.num_ctas = 1
    if has_windows:
        clusters.run(function)
        swapped.run(function)
    if not windows.keep(function):
        return function, {}
    if target.kind == "cuda":
        turned.run(function)
    divisibility = access.promise(function) if variant.is_aligned else {}
    function.facts |= divisibility
    watch("tile", function)
    for name, run, kinds in PIPELINE:
        if target.kind in kinds:
            run(function)
            verify(function)
            watch(name, function)
            if name == "pipeline" and windows.windows_of(function):
                break
    return function, divisibility


def is_replaceable(kernel: Kernel, specialisation: Specialisation, target: Target) -> bool:
    """Whether a call may take a later specialisation in the same dtypes on this target.

    The kernel picks one that suits; for calls that are not aligned there must be another one anyway.
    """
    same = [s for s in kernel.specialisations() if s.dtypes == specialisation.dtypes and s.serves(target.kind)]
    return (bool(kernel.pick or kernel.prefer) or specialisation.only_aligned) and same[-1] != specialisation
