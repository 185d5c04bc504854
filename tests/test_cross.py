"""Builds for other machines than this one: code for every target, and kernels for aarch64 run by an emulator."""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gristmill.build.cache import Cache
from gristmill.build.ptxas import find_ptxas
from gristmill.build.run import build_module
from gristmill.build.settings import parse_targets
from gristmill.cases import spec_of
from gristmill.compiler.interpreter import _choose, _evaluate, _fill, without
from gristmill.compiler.targets import ROWS, TARGETS
from gristmill.errors import BuildError
from gristmill.specialisation import VARIANTS
from host import fields
from machines import RAGGED, shipped_kernels
from test_build import settings_for

CC = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
is_native = platform.machine() == "aarch64"
needs_emulator = pytest.mark.skipif(
    is_native or not (CC and EMULATOR), reason="needs gcc-aarch64-linux-gnu and qemu-user"
)
WIDE = VARIANTS[-1]  # that takes any arguments, and that every kernel has
RUN = [
    ("vector_add", "i8"),
    ("gelu_forward", "f16"),
    ("row_sum", "f64"),
    ("softmax_forward", "bf16"),
    ("layer_norm_forward", "f32"),
    ("adamw_step", "bf16"),
    ("linear", "f16"),
    ("scaled_matmul", "f8e4m3"),
]
KERNEL = """\
import gristmill as gm
import gristmill.language as tl


@gm.kernel(grid=1)
def half(x: gm.ptr[gm.f32]):
    offsets = tl.arange(0, 64)
    tl.store(x + offsets, tl.load(x + offsets) * 0.5)
"""


@needs_emulator
@pytest.mark.parametrize(("name", "dtype"), RUN)
def test_code_for_aarch64_agrees_with_the_reference(tmp_path, name, dtype):
    kernel = shipped_kernels()[name]
    first = next(s for s in kernel.expanded if s.dtypes[0][1].name == dtype and not s.only_aligned)
    spec = spec_of(kernel)
    case = next(c for c in spec.cases if c.name in RAGGED)
    arguments = spec.arguments(case, first)
    expected = spec.expected(arguments)
    emulate(tmp_path, kernel, _fill(kernel, dict(arguments)))
    assert max(spec.errors(arguments, expected).values()) <= 1


def emulate(folder: Path, kernel, values: dict) -> None:
    """Compile the kernel's code for any arguments, link it into a program, and run that on the arrays."""
    from gristmill.compiler.compile import compile_variants

    target = TARGETS["aarch64"]
    chosen = _choose(kernel, values, {}, without(WIDE), None)
    code = compile_variants(kernel, chosen, target)[chosen.variants_on("host").index(WIDE)]
    (folder / "kernel.o").write_bytes(code.code)
    source = Path(__file__).parent / "data" / "run_kernel.c"
    options = ["-static", f"-DENTRY={code.symbol}", "-o", folder / "program"]
    subprocess.run([CC, *options, source, folder / "kernel.o", "-lm"], check=True)
    grid = [_evaluate(expression, kernel, values, chosen) for expression in kernel.grid]
    sent = numbers(*(grid + [1, 1])[:3], len(kernel.parameters))
    arrays = []
    for parameter, field in zip(kernel.parameters, fields(kernel, chosen, WIDE, values), strict=True):
        is_array = parameter.kind == "pointer"
        if is_array:
            array = values[parameter.name]
            arrays.append(array if array.flags.c_contiguous else array.T)
        data = arrays[-1].tobytes() if is_array else field
        sent += numbers(is_array, len(data)) + data
    done = subprocess.run([EMULATOR, folder / "program"], input=sent, capture_output=True, check=True)
    offset = 0
    for array in arrays:
        flat = np.frombuffer(done.stdout, np.uint8, array.nbytes, offset)
        array.reshape(-1).view(np.uint8)[:] = flat
        offset += array.nbytes
    assert offset == len(done.stdout)


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_one_machine_builds_for_every_target(tmp_path, processor):
    hosts = tuple(row.name for row in ROWS if row.kind == "host" and row.triple.startswith(processor))
    targets = tuple(row.name for row in ROWS if row.kind == "cuda") + hosts
    settings = settings_for(tmp_path, targets=targets, ptxas=find_ptxas())
    settings.sources[0].write_text(KERNEL)
    build_module(settings, cache=Cache(None))
    tables = (settings.out / "tables.cpp").read_text()
    assert all(f"HostLevel::{name.replace('-', '_')}" in tables for name in hosts)
    subprocess.run(["ar", "x", settings.out / "libhost.a"], cwd=tmp_path, check=True)
    machines = {path.read_bytes()[18] for path in tmp_path.glob("*.o")}
    assert machines == {{"x86_64": 62, "aarch64": 183}[processor]}  # of ELF


def test_the_default_is_the_processor_that_is_compiled_for():
    assert parse_targets("", "aarch64") == ("sm_80", "sm_90a", "aarch64")
    assert parse_targets("sm_80;aarch64", "aarch64") == ("sm_80", "aarch64")


@pytest.mark.parametrize(("targets", "processor"), [("x86-64-v3", "aarch64"), ("sm_80;aarch64;x86-64-v2", "x86_64")])
def test_a_target_of_another_processor_says_what_to_name(targets, processor):
    with pytest.raises(BuildError, match=rf"is not code for {processor}\n  fix: "):
        parse_targets(targets, processor)
