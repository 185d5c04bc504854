"""From LLVM IR text to PTX or an object file. LLVM ends the process on some errors: run this in a worker."""

from __future__ import annotations

import functools
import re
from typing import Any

import llvmlite.binding as llvm

from gristmill.compiler.targets import Target
from gristmill.errors import BuildError

CUDA_TRIPLE = "nvptx64-nvidia-cuda"
DRIVER_FUNCTIONS = {"vprintf", "__assertfail"}  # that the driver links


@functools.cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # 32-bit addresses of shared memory; must be set before a target machine is made.
    llvm.set_option("gristmill", "-nvptx-short-ptr")


@functools.cache
def _target_machine(target: Target) -> Any:
    _initialise()
    if target.kind == "cuda":
        cpu, features, reloc = target.name, f"+ptx{target.ptx_version}", "default"
        triple = CUDA_TRIPLE
    else:
        cpu, features, reloc, triple = target.cpu, target.features, "pic", target.triple
    found = llvm.Target.from_triple(triple)
    return found.create_target_machine(cpu=cpu, features=features, opt=3, reloc=reloc, codemodel="default")


def module_text(body: str, target: Target) -> str:
    """Put the target's header before functions."""
    triple = CUDA_TRIPLE if target.kind == "cuda" else target.triple
    return f'target triple = "{triple}"\ntarget datalayout = "{_target_machine(target).target_data}"\n\n{body}'


def optimise(text: str, target: Target) -> Any:
    """Parse, verify and optimise a module."""
    machine = _target_machine(target)
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise BuildError(f"LLVM rejects the IR for {target.name}: {error}") from None
    options = llvm.create_pipeline_tuning_options(3)
    options.loop_unrolling = target.kind == "cuda"
    options.slp_vectorization = target.kind == "host"
    options.loop_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def emit_ptx(text: str, target: Target) -> str:
    """Compile a module to PTX text.

    Raises BuildError if the output asks for a function that does not exist or another version than the target's.
    """
    ptx = str(_target_machine(target).emit_assembly(optimise(text, target)))
    version = re.search(r"^\.version (\d+)\.(\d+)$", ptx, re.M)
    called = set(re.findall(r"^\.extern \.func\s+(?:\([^)]*\)\s*)?(\w+)", ptx, re.M))
    is_complete = called <= DRIVER_FUNCTIONS
    if not is_complete or not version or int(version[1]) * 10 + int(version[2]) != target.ptx_version:
        raise BuildError(f"LLVM emitted PTX that is not for {target.name}:\n" + "\n".join(ptx.splitlines()[:24]))
    return ptx


def emit_object(text: str, target: Target) -> bytes:
    """Compile a module to a relocatable object file."""
    return bytes(_target_machine(target).emit_object(optimise(text, target)))
