"""What follows from a build's settings: targets, cubins, workers; and which files a kernel depends on."""

from __future__ import annotations

import pytest

from gristmill.build import settings as module
from gristmill.build.ptxas import Ptxas
from gristmill.build.settings import (
    Cubin,
    Settings,
    choose_ptxas,
    count_workers,
    default_targets,
    parse_targets,
    plan_cubins,
)
from gristmill.build.sources import compiler_files, generator_files, source_closure, source_digest
from gristmill.errors import BuildError


def make_settings(tmp_path, targets, ptxas=None):
    return Settings((), "pkg._kernels", tmp_path, tmp_path, targets=targets, ptxas=ptxas)


def test_the_default_has_the_levels_of_the_processor():
    assert default_targets("x86_64") == ("sm_80", "sm_90a", "x86-64-v2", "x86-64-v3", "x86-64-v4")
    assert default_targets("aarch64") == ("sm_80", "sm_90a", "aarch64")
    assert default_targets("riscv64") == ("sm_80", "sm_90a")


def test_targets_are_sorted_and_unique():
    assert parse_targets("x86-64-v3; sm_90a,sm_80;sm_80") == ("sm_80", "sm_90a", "x86-64-v3")
    assert parse_targets(" ; ") == default_targets()


def test_an_unknown_target_names_the_known_ones():
    with pytest.raises(BuildError, match=r"unknown target `sm_81`[\s\S]*fix: use one of sm_75, sm_80"):
        parse_targets("sm_81")


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (("sm_80", "sm_90a"), ["sm_80<sm_80", "sm_90a<sm_90a", "sm_100<sm_80", "sm_120<sm_80"]),
        (("sm_80",), ["sm_80<sm_80", "sm_90<sm_80", "sm_100<sm_80", "sm_120<sm_80"]),
        (("sm_90a",), ["sm_90a<sm_90a"]),
        (("sm_75",), ["sm_75<sm_75", "sm_80<sm_75", "sm_90<sm_75", "sm_100<sm_75", "sm_120<sm_75"]),
        (("sm_80", "sm_90", "sm_100a"), ["sm_80<sm_80", "sm_90<sm_90", "sm_100a<sm_100a", "sm_120<sm_90"]),
        ((), []),
    ],
)
def test_each_major_version_gets_a_cubin(targets, expected):
    assert [f"{cubin.arch}<{cubin.source}" for cubin in plan_cubins(targets)] == expected


def test_ptx_is_embedded_as_a_fallback_or_for_all(tmp_path):
    targets = ("sm_80", "sm_90a", "x86-64-v3")
    assert make_settings(tmp_path, targets).ptx_targets == ("sm_80", "sm_90a")
    with_cubins = make_settings(tmp_path, targets, Ptxas(tmp_path, "12.9"))
    assert with_cubins.ptx_targets == ("sm_80",)
    assert with_cubins.host_targets == ("x86-64-v3",)
    assert Cubin("sm_120", "sm_80") in with_cubins.cubins


def test_cubins_can_be_off_automatic_or_required(monkeypatch):
    assert choose_ptxas("OFF") is None
    monkeypatch.setattr(module, "find_ptxas", lambda: None)
    assert choose_ptxas("AUTO") is None
    with pytest.raises(BuildError, match=r"no ptxas[\s\S]*nvidia-cuda-nvcc-cu12==12\.9\.\*"):
        choose_ptxas("ON")
    with pytest.raises(BuildError, match="AUTO, ON or OFF, found `maybe`"):
        choose_ptxas("maybe")


def test_workers_come_from_the_environment():
    assert count_workers({"CMAKE_BUILD_PARALLEL_LEVEL": "3"}) == 3
    assert count_workers({"CMAKE_BUILD_PARALLEL_LEVEL": "many"}) >= 1
    assert count_workers({}) >= 1


def test_a_kernel_depends_on_what_its_file_imports(tmp_path):
    folder = tmp_path / "kernels"
    (folder / "parts").mkdir(parents=True)
    (folder / "a.py").write_text("import os, numpy\nimport gristmill as gm\nfrom helper import f\n")
    (folder / "helper.py").write_text("def f():\n    import parts.deep\n")
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "deep.py").write_text("import helper\n")
    (folder / "unrelated.py").write_text("")
    names = [path.relative_to(folder).as_posix() for path in source_closure(folder / "a.py")]
    assert names == ["a.py", "helper.py", "parts/__init__.py", "parts/deep.py"]


def test_the_digest_follows_imports_and_not_the_folder(tmp_path):
    digests = []
    for place, value in (("one", 1), ("two", 1), ("three", 2)):
        folder = tmp_path / place / "kernels"
        folder.mkdir(parents=True)
        (folder / "a.py").write_text("import helper\n")
        (folder / "helper.py").write_text(f"X = {value}\n")
        digests.append(source_digest(folder / "a.py", tmp_path / place))
    assert digests[0] == digests[1] != digests[2]


def test_the_compilers_files_are_part_of_the_key_and_front_ends_are_not():
    names = {path.name for path in compiler_files()}
    assert {"dtypes.py", "declare.py", "ir.py", "op.py"} <= names
    assert not names & {"cli.py", "__main__.py", "embed.py"}
    assert {"embed.py", "manifest.py"} <= {path.name for path in generator_files()}
