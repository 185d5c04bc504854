"""Show what became of a kernel at one stage of the compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.compiler.compile import generate, lower_variant
from gristmill.compiler.ir import Function, print_function
from gristmill.compiler.passes import PIPELINE
from gristmill.compiler.targets import Target, find_target
from gristmill.declare import Kernel
from gristmill.dtypes import parse_dtype
from gristmill.errors import DeclarationError
from gristmill.load import load_kernels
from gristmill.specialisation import VARIANTS, Specialisation, Variant


def stages_of(target: Target) -> list[str]:
    """The stages that a kernel goes through on a target."""
    passes = dict.fromkeys(name for name, _, kinds in PIPELINE if target.kind in kinds)
    return ["tile", *passes, "llvm", "ptx" if target.kind == "cuda" else "object"]


def explain(
    file: str | Path,
    *,
    kernel: str | None = None,
    target: str = "sm_90a",
    stage: str = "tile",
    dtypes: Sequence[object] = (),
    constants: Mapping[str, Any] | None = None,
    variant: str = "a32",
) -> str:
    """Return the text of `stage`: the tile IR from the frontend or after a pass, LLVM IR, or the target's code.

    `dtypes` (of the dtype variables, in order) and `constants` choose the specialisation; without them it is the first.
    Raises DeclarationError for a kernel, stage, variant or specialisation that does not exist.
    """
    chosen, row = _kernel(load_kernels(Path(file)), kernel), find_target(target)
    _check_stage(stage, row)
    specialisation = _specialisation(chosen, dtypes, constants or {}, row)
    seen: dict[str, str] = {}

    def watch(name: str, thing: Any) -> None:
        seen[name] = print_function(thing) if isinstance(thing, Function) else _text(thing)

    lowered = lower_variant(chosen, specialisation, _variant(variant), row, watch)
    if stage not in seen:
        generate(lowered, row, watch)
    return seen[stage]


def _text(thing: Any) -> str:
    return f"{len(thing)} bytes of object code\n" if isinstance(thing, bytes) else str(thing)


def _kernel(kernels: list[Kernel], name: str | None) -> Kernel:
    for kernel in kernels:
        if kernel.name == name or (name is None and len(kernels) == 1):
            return kernel
    if name is None:
        raise DeclarationError(
            "the file has several kernels", fix="choose with --kernel: " + ", ".join(k.name for k in kernels)
        )
    raise DeclarationError(f"there is no kernel `{name}`", fix="use one of " + ", ".join(k.name for k in kernels))


def _check_stage(stage: str, target: Target) -> None:
    if stage not in stages_of(target):
        fix = "use one of " + ", ".join(stages_of(target))
        raise DeclarationError(f"there is no stage `{stage}` for {target.name}", fix=fix)


def _variant(name: str) -> Variant:
    for variant in VARIANTS:
        if variant.name == name:
            return variant
    raise DeclarationError(f"there is no variant `{name}`", fix="use one of " + ", ".join(v.name for v in VARIANTS))


def _specialisation(
    kernel: Kernel, dtypes: Sequence[object], constants: Mapping[str, Any], target: Target
) -> Specialisation:
    parsed = {name: parse_dtype(value) for (name, _), value in zip(kernel.dtype_vars, dtypes, strict=False)}
    for candidate in kernel.specialisations():
        is_typed = parsed.items() <= dict(candidate.dtypes).items() and candidate.serves(target.kind)
        if is_typed and all(_same(dict(candidate.constants).get(n), v) for n, v in constants.items()):
            return candidate
    asked = ", ".join([*map(str, parsed.values()), *(f"{k}={v}" for k, v in constants.items())])
    known = ", ".join(s.id for s in kernel.specialisations())
    raise DeclarationError(f"`{kernel.name}` has no specialisation for {asked}", fix=f"there are {known}")


def _same(value: object, asked: object) -> bool:
    """Constants from a command line are text."""
    return str(value).lower() == str(asked).lower()
