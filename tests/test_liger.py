"""The kernels of liger-kernel, as they are shipped, through the Triton door: tile IR, PTX, and values."""

from __future__ import annotations

import re
import subprocess
from functools import partial
from pathlib import Path

import pytest

import gristmill as gm
import gristmill.language as tl
import liger
import liger_attention  # noqa: F401  (declares cases)
import liger_losses  # noqa: F401  (declares cases)
import liger_mhc  # noqa: F401  (declares cases)
import liger_mlp  # noqa: F401  (declares cases)
import liger_moe  # noqa: F401  (declares cases)
import liger_norms  # noqa: F401  (declares cases)
import liger_products  # noqa: F401  (declares cases)
from gristmill.compiler.compile import compile_variant
from gristmill.compiler.frontend import build
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS
from gristmill.errors import KernelError, SimulationError
from gristmill.specialisation import VARIANTS
from liger_cases import CASES
from machines import RUNNERS, on_each_machine
from ptx import PTXAS, needs_ptxas
from published import DECORATED

pytestmark = pytest.mark.skipif(liger.folder() is None, reason="needs the wheel of liger-kernel, from pip or a file")
REFUSED = {"softmax_multi_block_forward_kernel": r"max\(\)"}
"""What no Triton compiles either: this kernel passes a tile as an axis, and its caller never takes it."""
COMPILED = [name for name in CASES if name not in REFUSED]


def ready(title):
    """Return a case's kernel; skip where it needs an operation that the language does not have."""
    kernel = CASES.declared(title)
    try:
        for specialisation in kernel.specialisations():
            build(kernel, specialisation, VARIANTS[0])
    except KernelError as error:
        missing = re.match(r"`(?:tl|triton\.language)(?:\.\w+)*` has no `(\w+)`", error.message)
        if missing and not hasattr(tl, missing[1]):
            pytest.skip(f"waits for tl.{missing[1]}")
        raise
    return kernel


@pytest.mark.parametrize("title", COMPILED)
def test_tile_ir_builds_in_every_variant(title):
    kernel = ready(title)
    for specialisation in kernel.specialisations():
        for variant in VARIANTS:
            assert build(kernel, specialisation, variant).body.statements


@pytest.mark.parametrize("title", REFUSED)
def test_what_triton_refuses_is_an_error_at_its_line(title):
    kernel = CASES.declared(title)
    with pytest.raises(KernelError, match=REFUSED[title]) as caught:
        build(kernel, kernel.specialisations()[0], VARIANTS[0])
    assert caught.value.position.file.endswith(f"{CASES[title].file}.py")


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("title", COMPILED)
def test_ptx_assembles(title, target, tmp_path):
    kernel = ready(title)
    for number, variant in ((0, VARIANTS[0]), (-1, VARIANTS[-1])):
        assemble(
            compile_variant(kernel, kernel.specialisations()[number], variant, TARGETS[target]).code, target, tmp_path
        )


def assemble(code, target, folder):
    source = folder / "code.ptx"
    source.write_bytes(code)
    command = [str(PTXAS.path), f"-arch={target}", str(source), "-o", str(folder / "out.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def race_is_found(title):
    kernel, races = ready(title), 0
    for specialisation in kernel.specialisations():
        try:
            run_simulated(kernel, specialisation, **CASES.outcome(title, specialisation)[0])
        except SimulationError as error:
            races += "race" in str(error)
    assert races


RACES = ("liger_cross_entropy_kernel",)  # reads the label's element, and stores it without a barrier between


@on_each_machine
@pytest.mark.parametrize("title", COMPILED)
def test_values_agree_with_numpy(run, title):
    if run is RUNNERS["simt"] and title in RACES:
        return race_is_found(title)
    kernel = ready(title)
    for specialisation in kernel.specialisations():
        CASES.agrees(run, title, specialisation)


PRODUCTS = [title for title in COMPILED if CASES[title].file in liger.PRODUCTS]


@pytest.mark.parametrize("title", PRODUCTS)
def test_products_agree_on_targets_without_instructions_of_warpgroups(title):
    CASES.agrees(partial(run_simulated, target="sm_80"), title, CASES.declared(title).specialisations()[-1])


def called(title):
    """A case's kernel in the blocks that its own configurations, or its caller, would choose."""
    chosen = CASES[title]
    kernel, given = getattr(liger.load(chosen.file), chosen.kernel), dict(chosen.declaration)
    tuned = getattr(kernel, "configs", None)
    names = tuned[0].kwargs if tuned else {}
    constants = {name: values for name, values in given["constants"].items() if name not in names}
    constants |= {name: values for name, values in liger.PRODUCTS[chosen.file].items() if name in constants}
    if tuned:
        given["configs"] = [gm.Config(num_warps=c.num_warps, num_stages=c.num_stages, **c.kwargs) for c in tuned]
    return gm.specialise(kernel, name=title, **given | {"constants": constants, "dtypes": given["dtypes"][-1:]})


@needs_ptxas
@pytest.mark.parametrize("title", PRODUCTS)
def test_products_in_their_own_blocks(title, pytestconfig, tmp_path):
    if not pytestconfig.getoption("--thorough"):
        pytest.skip("runs with --thorough")
    kernel = called(title)
    CASES.agrees(run_simulated, title, kernel.specialisations()[0], kernel)
    for specialisation in kernel.specialisations():
        try:
            assemble(compile_variant(kernel, specialisation, VARIANTS[0], TARGETS["sm_90a"]).code, "sm_90a", tmp_path)
        except KernelError as error:
            assert "bytes of shared memory" in error.message


def test_every_kernel_of_the_files_has_a_case():
    files = {case.file for case in CASES.values()}
    declared_kernels = {(case.file, case.kernel) for case in CASES.values()}
    for name in files:
        kernels = {key for key, value in vars(liger.load(name)).items() if type(value).__name__ in DECORATED}
        helpers = {"silu", "_keyed_add", "_l2_swizzle"}
        missing = {key for key in kernels - helpers if (name, key) not in declared_kernels}
        assert not missing, f"{name}: {missing}"
        assert Path(liger.folder(), "liger_kernel", "ops", f"{name}.py").is_file()
