"""The attention and the products of unsloth, as they are shipped, through the Triton door: values, and PTX."""

from __future__ import annotations

from functools import partial

import pytest

import gristmill as gm
import unsloth_fp8  # noqa: F401  (declares cases)
import unsloth_grouped  # noqa: F401  (declares cases)
import unsloth_kernels
from assembled import assemble_text
from gristmill.compiler.compile import compile_variant
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS
from gristmill.errors import DeclarationError
from gristmill.specialisation import VARIANTS
from machines import on_each_machine
from ptx import needs_ptxas
from published import DECORATED
from unsloth_cases import CASES

pytestmark = pytest.mark.skipif(
    unsloth_kernels.folder() is None, reason="needs the wheel of unsloth, from pip or a file"
)
on_each_case = pytest.mark.parametrize("title", CASES)


@on_each_machine
@on_each_case
def test_values_agree_with_numpy(run, title, pytestconfig):
    """Of the first and the last dtype, of all with --thorough."""
    every = CASES.declared(title).specialisations()
    for specialisation in every if pytestconfig.getoption("--thorough") else dict.fromkeys((every[0], every[-1])):
        CASES.agrees(run, title, specialisation)


@on_each_case
def test_values_agree_on_targets_without_instructions_of_warpgroups(title):
    CASES.agrees(partial(run_simulated, target="sm_80"), title, CASES.declared(title).specialisations()[-1])


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@on_each_case
def test_ptx_assembles(title, target):
    kernel = CASES.declared(title)
    for specialisation, variant in (
        (kernel.specialisations()[0], VARIANTS[0]),
        (kernel.specialisations()[-1], VARIANTS[-1]),
    ):
        code = compile_variant(kernel, specialisation, variant, TARGETS[target]).code.decode()
        assert assemble_text([code], target)


@needs_ptxas
@pytest.mark.parametrize("title", [title for title in CASES if CASES[title].file == "large_head_attention"])
def test_heads_of_512_in_their_own_blocks(title, pytestconfig):
    if not pytestconfig.getoption("--thorough"):
        pytest.skip("runs with --thorough")
    given = {name: value for name, value in CASES[title].declaration.items() if name != "configs"}
    given |= {"constants": given["constants"] | {"HEAD_DIM": [512]}, "dtypes": [gm.bf16]}
    kernel = gm.specialise(getattr(unsloth_kernels.load("large_head_attention"), CASES[title].kernel), **given)
    CASES.agrees(run_simulated, title, kernel.specialisations()[0], kernel)
    for specialisation in kernel.specialisations():
        code = compile_variant(kernel, specialisation, VARIANTS[0], TARGETS["sm_90a"]).code.decode()
        assert assemble_text([code], "sm_90a")


def test_every_kernel_of_attention_and_of_grouped_products_has_a_case():
    declared = {(case.file, case.kernel) for case in CASES.values()}
    for name in {file for file, _ in declared} - {"fp8"}:
        found = {key for key, value in vars(unsloth_kernels.load(name)).items() if type(value).__name__ in DECORATED}
        assert {key for key in found if (name, key) not in declared and not key.startswith("_autotuned")} == set()


@pytest.mark.parametrize("kernel", ["forward", "dX", "dW", "dW_per_expert"])
def test_what_prunes_configurations_at_a_launch_says_where_to_list_them(kernel):
    file = "forward" if kernel == "forward" else "backward"
    tuned = getattr(
        unsloth_kernels.load(f"{unsloth_kernels.GROUPED}/{file}"), f"_autotuned_grouped_gemm_{kernel}_kernel"
    )
    with pytest.raises(DeclarationError, match="cannot run `prune_configs_by`") as caught:
        gm.specialise(tuned, signature={}, grid=1)
    assert "configs=[gm.Config(...)]" in caught.value.fix
