"""What the compiler hands on: stages to watchers, artifacts to the build, the same bytes every time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

import gristmill
from gristmill.compiler import emit
from gristmill.compiler.compile import Artifact, compile_variant, compile_variants
from gristmill.compiler.ir import Function
from gristmill.compiler.passes import PIPELINE
from gristmill.compiler.targets import TARGETS
from gristmill.declare import Kernel
from gristmill.errors import BuildError
from gristmill.specialisation import VARIANTS
from machines import kernel_of, shipped_kernels

CUDA, HOST = TARGETS["sm_90a"], TARGETS["x86-64-v3"]
BOTH = pytest.mark.parametrize("target", [CUDA, HOST], ids=lambda t: t.name)
KERNELS = shipped_kernels()


def compiled(kernel: Kernel, target=CUDA, index: int = 0) -> list[Artifact]:
    return compile_variants(kernel, kernel.specialisations()[index], target)


# ---- watchers ------------------------------------------------------------------------------------------------------


@BOTH
def test_watcher_sees_every_stage_in_order(target):
    kernel, seen = KERNELS["softmax_forward"], []
    compile_variant(kernel, kernel.specialisations()[0], VARIANTS[0], target, lambda stage, thing: seen.append(stage))
    passes = [name for name, _, kinds in PIPELINE if target.kind in kinds]
    assert seen == ["tile", *passes, "llvm", "ptx" if target.kind == "cuda" else "object"]


@BOTH
def test_watcher_sees_the_result_of_each_stage(target):
    kernel, seen = KERNELS["row_sum"], {}
    artifact = compile_variant(kernel, kernel.specialisations()[0], VARIANTS[0], target, seen.__setitem__)
    assert isinstance(seen["tile"], Function)
    assert f"@{artifact.symbol}(" in seen["llvm"]
    code = seen["ptx"].encode() if target.kind == "cuda" else seen["object"]
    assert artifact.code == code


def test_watching_changes_nothing():
    kernel = KERNELS["gelu_forward"]
    arguments = (kernel, kernel.specialisations()[0], VARIANTS[0], CUDA)
    assert compile_variant(*arguments, lambda stage, thing: str(thing)) == compile_variant(*arguments)


# ---- artifacts -----------------------------------------------------------------------------------------------------


@BOTH
def test_artifact_says_what_the_launcher_must_know(target):
    kernel = KERNELS["softmax_backward"]
    specialisation = next(s for s in kernel.specialisations() if s.dtypes[0][1].name == "f32")
    artifact = compile_variant(kernel, specialisation, VARIANTS[0], target)
    assert artifact.target is target
    assert artifact.written == ("dx",)
    assert artifact.read == ("dy", "y")
    assert artifact.divisibility == {"n_cols": 4}
    assert artifact.symbol == specialisation.symbol(VARIANTS[0]) + ("" if target.kind == "cuda" else "__v3")
    if target.kind == "cuda":
        assert artifact.threads == 32 * specialisation.num_warps
        assert artifact.ptx_version == 81
        assert artifact.code.startswith(b"//")
    else:
        assert artifact.ptx_version is None
        assert artifact.code.startswith(b"\x7fELF")


def test_array_that_is_read_and_written_is_both():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], z: gm.ptr[gm.f32], unused: gm.ptr[gm.f32], n: gm.i32):
        tl.store(y + 1, tl.load(y) + tl.load(x))
        q = z
        if n > 3:
            q = x
        tl.store(q, 1.0)
    """
    artifact = compiled(kernel_of(source))[0]
    assert artifact.read == ("x", "y")
    assert artifact.written == ("x", "y", "z")


def test_array_behind_a_pointer_that_a_loop_moves_is_touched():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.i32):
        p, q = x, y
        for i in range(0, n):
            tl.store(q, tl.load(p))
            p += 4
            q += 4
    """
    artifact = compiled(kernel_of(source))[0]
    assert (artifact.read, artifact.written) == (("x",), ("y",))


@pytest.mark.parametrize(
    "body",
    ["if n > 1:\n            q = y", "while n > 0:\n            q = y\n            n -= 1"],
    ids=["if", "while"],
)
def test_arrays_that_a_pointer_may_point_to_are_touched(body):
    source = f"""
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.i32):
        q = x
        {body}
        tl.store(q, 1.0)
    """
    artifact = compiled(kernel_of(source))[0]
    assert (artifact.read, artifact.written) == ((), ("x", "y"))


def test_shared_memory_is_what_a_reduction_over_warps_takes():
    used = {s.num_warps: 0 for s in KERNELS["row_sum"].specialisations()}
    for s in KERNELS["row_sum"].specialisations():
        used[s.num_warps] = compile_variant(KERNELS["row_sum"], s, VARIANTS[0], CUDA).shared_bytes
    assert used[1] == 0
    assert (
        compile_variant(KERNELS["row_sum"], KERNELS["row_sum"].specialisations()[0], VARIANTS[0], HOST).shared_bytes
        == 0
    )


def test_specialisation_that_overflows_a_block_is_left_to_one_that_can_serve():
    kernel = KERNELS["softmax_forward"]
    halves = [s for s in kernel.specialisations() if s.dtypes[0][1].name == "f16"]
    largest = max((s for s in halves if dict(s.constants)["ONE_PASS"]), key=lambda s: dict(s.constants)["BLOCK"])
    assert len(compile_variants(kernel, largest, CUDA)) == len(VARIANTS)
    assert compile_variants(kernel, largest, TARGETS["sm_80"]) == []
    assert len(compile_variants(kernel, halves[-1], TARGETS["sm_80"])) == len(VARIANTS)


# ---- merged variants -----------------------------------------------------------------------------------------------


def test_variants_with_equal_code_are_one_on_the_host():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], p: gm.i32):
        tl.store(y, tl.load(x + p) * 2)
    """
    artifacts = compiled(kernel_of(source), HOST)
    assert [a.symbol for a in artifacts] == ["k__a32__v3"] * 2
    assert {a.code for a in artifacts} == {artifacts[0].code}
    assert [a.divisibility for a in artifacts] == [{"p": 4}, {}]


def test_general_variants_without_index_parameters_are_one_on_cuda():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32]):
        tl.store(y, tl.load(x) * 2)
    """
    artifacts = compiled(kernel_of(source))
    assert [a.symbol for a in artifacts] == ["k__a32", "k__g32", "k__g32"]


def test_variants_of_elementwise_kernels_differ_on_cuda():
    artifacts = compiled(KERNELS["gelu_forward"])
    assert [a.symbol.rpartition("__")[2] for a in artifacts] == ["a32", "g32", "g64"]
    assert len({a.code for a in artifacts}) == 3


@BOTH
def test_each_variant_alone_is_the_code_of_all_together(target):
    kernel = KERNELS["row_sum"]
    specialisation = kernel.specialisations()[0]
    together = compile_variants(kernel, specialisation, target)
    for variant, artifact in zip(specialisation.variants_on(target.kind), together, strict=True):
        if artifact.symbol.endswith(variant.name) or f"__{variant.name}__" in artifact.symbol:
            assert compile_variant(kernel, specialisation, variant, target) == artifact


# ---- determinism ---------------------------------------------------------------------------------------------------

DIGESTS = """
import sys
sys.path.insert(0, {tests!r})
from test_compile import digests
print("\\n".join(digests()))
"""
HASHED = ("vector_add", "gelu_backward", "row_sum", "layer_norm_forward", "softmax_forward")


def digests() -> list[str]:
    """One line for each variant of a specialisation of some kernels on both machines."""
    lines = []
    for name in HASHED:
        for index in (0, len(KERNELS[name].specialisations()) // 3):
            for target in (CUDA, HOST):
                for a in compiled(KERNELS[name], target, index):
                    lines.append(f"{target.name} {a.symbol} {hashlib.sha256(a.code).hexdigest()} {a}"[:200])
    return lines


def test_code_is_the_same_in_processes_with_other_hashes():
    folder = Path(gristmill.__file__).parent.parent
    runs = []
    for seed in ("1", "4242"):
        paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        command = [sys.executable, "-c", DIGESTS.format(tests=str(Path(__file__).parent))]
        runs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    first, second = (run.communicate()[0].splitlines() for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert len(first) == len(HASHED) * 2 * (len(VARIANTS) + len(VARIANTS) - 1)  # a CPU has one general variant
    assert first == second


# ---- what LLVM refuses ---------------------------------------------------------------------------------------------


@BOTH
def test_text_that_llvm_refuses_is_a_build_error(target):
    text = emit.module_text("define void @k() {\n  ret i32 0\n}\n", target)
    with pytest.raises(BuildError, match=f"LLVM rejects the IR for {target.name}"):
        emit.optimise(text, target)


def test_ptx_that_needs_a_function_is_a_build_error():
    text = "declare float @sinf(float)\ndefine ptx_kernel void @k(ptr %p) {\n  %a = call float @sinf(float 0.5)\n"
    text += "  store float %a, ptr %p\n  ret void\n}\n"
    with pytest.raises(BuildError, match="not for sm_90a"):
        emit.emit_ptx(emit.module_text(text, CUDA), CUDA)
