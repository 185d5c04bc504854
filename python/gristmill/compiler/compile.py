"""The compiler, from a kernel and a specialisation to code: read `compile_variant` and you know it.

Every stage's result goes to one watcher, `watch(stage, thing)`; dumps, `explain`, golden tests and timings are
watchers. Stages: "tile" (the frontend's tile IR), one for each pass, "llvm", "ptx" (CUDA) or "object" (host).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gristmill.compiler import emit
from gristmill.compiler.ir import Function, Op, Value, addressed, sources, walk
from gristmill.compiler.prepare import is_replaceable, prepare
from gristmill.compiler.targets import Target
from gristmill.compiler.targets.cuda import CudaMachine
from gristmill.compiler.targets.host import HostMachine
from gristmill.declare import Kernel
from gristmill.errors import KernelError
from gristmill.specialisation import Specialisation, Variant
from gristmill.tensor_map import TensorMap

Watch = Callable[[str, Any], None]


@dataclass(frozen=True)
class Artifact:
    """Code for one variant of a specialisation on one target, and what the launcher must know of it.

    `code` is PTX text or an object file; variants with equal `symbol` share it. `threads` and `shared_bytes` are a
    block's, `ctas` the blocks of a cluster. `divisibility` names index parameters that must be multiples of a number
    for the code to be right; `tensor_maps` come behind the kernel's parameters, and if it `draws` its tiles the address
    of a counter behind those.
    """

    symbol: str
    target: Target
    code: bytes
    threads: int
    shared_bytes: int
    written: tuple[str, ...]
    read: tuple[str, ...]
    divisibility: dict[str, int]
    ctas: int
    tensor_maps: tuple[TensorMap, ...]
    draws: bool
    ptx_version: int | None


def compile_variants(
    kernel: Kernel, specialisation: Specialisation, target: Target, watch: Watch | None = None
) -> list[Artifact]:
    """Compile a specialisation for each of its variants, in order; variants whose code is equal are merged.

    Returns nothing where its tiles overflow a block of the target and another specialisation can serve instead.
    """
    made: dict[str, Artifact] = {}
    artifacts = []
    for variant in specialisation.variants_on(target.kind):
        lowered = lower_variant(kernel, specialisation, variant, target, watch or _ignore)
        if lowered.overflows and is_replaceable(kernel, specialisation, target):
            return []
        key = lowered.text.replace(lowered.symbol, "")
        if key not in made:
            made[key] = generate(lowered, target, watch or _ignore)
        artifacts.append(replace(made[key], divisibility=lowered.divisibility))
    return artifacts


def compile_variant(
    kernel: Kernel, specialisation: Specialisation, variant: Variant, target: Target, watch: Watch | None = None
) -> Artifact:
    """Compile one variant of a specialisation: source, tile IR, passes, LLVM IR, code."""
    return generate(lower_variant(kernel, specialisation, variant, target, watch or _ignore), target, watch or _ignore)


@dataclass(frozen=True)
class Lowered:
    """One entry as LLVM IR without a module around it."""

    symbol: str
    text: str
    threads: int
    shared_bytes: int
    written: tuple[str, ...]
    read: tuple[str, ...]
    divisibility: dict[str, int]
    ctas: int
    tensor_maps: tuple[TensorMap, ...]
    draws: bool
    overflows: bool


def lower_variant(
    kernel: Kernel, specialisation: Specialisation, variant: Variant, target: Target, watch: Watch
) -> Lowered:
    """Build the tile IR, run the passes, and lower it on the target's machine."""
    function, divisibility = prepare(kernel, specialisation, variant, target, watch)
    if target.kind == "cuda" and not is_replaceable(kernel, specialisation, target):
        _check_shared(function)
    machine = CudaMachine(function) if target.kind == "cuda" else HostMachine(function, target)
    text = machine.text()
    watch("llvm", text)
    written, read = _touched(function)
    promised = {v.name: d for v, d in divisibility.items()}
    shape = (function.block_threads, machine.shared_bytes)
    launched = (function.num_blocks * function.num_ctas, tuple(function.maps))
    draws = function.tickets is not None
    return Lowered(function.name, text, *shape, written, read, promised, *launched, draws, function.overflows)


def generate(lowered: Lowered, target: Target, watch: Watch) -> Artifact:
    """Compile lowered text with LLVM."""
    module = emit.module_text(lowered.text, target)
    if target.kind == "cuda":
        ptx = emit.emit_ptx(module, target)
        watch("ptx", ptx)
        code, version = ptx.encode(), target.ptx_version
    else:
        code, version = emit.emit_object(module, target), None
        watch("object", code)
    names = ("threads", "shared_bytes", "written", "read", "divisibility", "ctas", "tensor_maps", "draws")
    return Artifact(lowered.symbol, target, code, **{n: getattr(lowered, n) for n in names}, ptx_version=version)


def _ignore(stage: str, thing: Any) -> None:
    return None


def _check_shared(function: Function) -> None:
    """Raise at the op that takes the most if a block needs more shared memory than the target has."""
    if function.used_bytes > function.shared_bytes:
        largest = max(
            (s for s in walk(function.body) if isinstance(s, Op) and s.places), key=lambda op: op.places[-1].end
        )
        message = f"a block needs {function.used_bytes} bytes of shared memory, the target has {function.shared_bytes}"
        raise KernelError(message, fix="take smaller blocks, and more programs", position=largest.position)


def _touched(function: Function) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The pointer parameters that are stored through, and those that are loaded through."""
    made = {value: links for program in function.programs for value, links in sources(program).items()}
    touched: dict[str, set[Value]] = {"read": set(), "write": set()}
    for op in (s for program in function.programs for s in walk(program)):
        if isinstance(op, Op) and op.row.touches_memory:
            for kind in ("read", "write") if op.row.effect == "update" else (op.row.effect,):
                touched[kind] |= addressed(op.operands[0], made, function)
    written, read = ([p.name for p in function.parameters if p in touched[kind]] for kind in ("write", "read"))
    return tuple(written), tuple(read)
