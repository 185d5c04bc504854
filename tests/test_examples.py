"""Every example of the documentation is run: files of kernels, scripts, and commands with what they print."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gristmill.build.settings import CUDA_TARGETS, plan_cubins
from gristmill.cli import main, make_parser
from gristmill.compiler.compile import lower_variant
from gristmill.compiler.interpreter import run_kernel
from gristmill.compiler.passes import PIPELINE
from gristmill.compiler.targets import ROWS, find_target
from gristmill.declare import load_kernels
from pages import BLOCKS, DOCS, Block

pytestmark = pytest.mark.skipif(not BLOCKS, reason="needs a checkout")

WRONG = ("kernels/mistake.py",)  # shown with the error that it is
TARGETS = ("sm_80", "sm_90a", "x86-64-v3")
FILES = [block for block in BLOCKS if block.file and block.file not in WRONG]
COMMAND = re.compile(r"^(?:.* && )?python -m gristmill (.*)$", re.M)
RUN_HERE = ("explain", "simulate")  # of those that need neither a wheel nor a project
LANGUAGES = {"": "commands", "c": "test_c_library", "cmake": "test_plugin", "toml": "test_plugin, test_tuning"}


def has_wheel() -> bool:
    try:
        import gristmill.kernels  # noqa: F401
    except ImportError:
        return False
    return True


def has_device() -> bool:
    if not importlib.util.find_spec("torch"):
        return False
    import torch

    return bool(torch.cuda.is_available())


def marks_of(block: Block) -> list[pytest.MarkDecorator]:
    """What a script needs: a wheel with Gristmill's own kernels, and a CUDA device with torch."""
    marks = []
    if "from gristmill.kernels import" in block.text or block.text in TUNED:
        marks.append(pytest.mark.skipif(not has_wheel(), reason="gristmill.kernels is not built"))
    if '"cuda"' in block.text:
        marks += [pytest.mark.gpu, pytest.mark.skipif(not has_device(), reason="no CUDA device")]
    return marks


def given_to(block: Block, folder: Path) -> dict[str, Any]:
    """The names that a script takes as given, as its page says around it."""
    if block.text in TUNED:  # `scale` stands for a kernel that was built with `key=`: here a product of matrices
        from gristmill.kernels import matmul

        x = np.ones((16, 16), np.float32)
        return {"scale": SimpleNamespace(tune=lambda x, y, alpha: matmul.tune(x, x, y)), "x": x, "y": np.empty_like(x)}
    if "with record(" in block.text:  # `model` is a program that launches a kernel of Triton
        from test_triton_door import COPY, launch_copies

        (folder / "kernels").mkdir(exist_ok=True)
        (folder / "kernels" / "mine.py").write_text(COPY)
        return {"model": lambda x: launch_copies(), "x": None}
    return {}


SCRIPTS = [block for block in BLOCKS if block.language == "python" and not block.file]
TUNED = [block.text for block in SCRIPTS if "scale.tune(" in block.text]
script_params = [pytest.param(block, id=str(block), marks=marks_of(block)) for block in SCRIPTS]


@pytest.fixture
def page_folder(tmp_path, monkeypatch):
    """A function that makes a folder with a page's files the current one."""

    def enter(page: str) -> Path:
        for block in (b for b in BLOCKS if b.page == page and b.file):
            (tmp_path / block.file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.file).write_text(block.text)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return enter


def shown_after(block: Block) -> str:
    """Return the text that a page shows behind a block as what comes of it, or nothing."""
    follows = next((b for b in BLOCKS if (b.page, b.number) == (block.page, block.number + 1)), None)
    return follows.text if follows and follows.language == "text" and not block.file else ""


def assert_shows(output: str, shown: str) -> None:
    """The lines that are shown stand in the output in order, with nothing left out but at `...`."""
    at = 0
    for part in re.split(r"^ *\.\.\.\n", shown, flags=re.M):
        lines = [line.strip() for line in part.strip().splitlines()]
        pattern = r"[^\n]*\n\s*".join(map(re.escape, lines))
        match = re.compile(pattern).search(output, at)
        assert match, f"is not in the output any more:\n{part}"
        at = match.end()


# ---- tests ---------------------------------------------------------------------------------------------------------


def test_each_block_is_of_a_kind_that_is_run():
    assert {block.language for block in BLOCKS} <= {*LANGUAGES, "python", "text"}
    assert len(FILES) >= 5 and len(SCRIPTS) >= 6


@pytest.mark.parametrize("block", FILES, ids=str)
def test_files_of_kernels_compile(block, page_folder):
    for kernel in load_kernels(page_folder(block.page) / block.file):
        for specialisation in kernel.specialisations()[:2]:
            for target in map(find_target, TARGETS):
                seen = []
                lower_variant(
                    kernel, specialisation, specialisation.variants[0], target, lambda s, _, to=seen: to.append(s)
                )
                assert seen[-1] == "llvm"


@pytest.mark.parametrize("block", [b for b in FILES if b.file == "kernels/scale.py"], ids=str)
def test_scaling_computes_what_it_says(block, page_folder):
    (scale,) = load_kernels(page_folder(block.page) / block.file)
    x = np.arange(5000, dtype=np.float32)
    y = np.full_like(x, np.nan)
    run_kernel(scale, None, x, y, 2.0)
    np.testing.assert_array_equal(y, 2 * x)


def test_the_padded_product_computes_what_it_says(page_folder):
    (product,) = load_kernels(page_folder("padding.md") / "kernels" / "product.py")
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((70, 67), (67, 65)))
    out = np.full((70, 65), np.nan, np.float16)
    run_kernel(product, None, a, b, out)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64), rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("block", script_params)
def test_scripts_run(block, page_folder, capsys):
    folder = page_folder(block.page)
    exec(compile(block.text, str(block), "exec"), given_to(block, folder))
    if shown := shown_after(block):
        assert_shows(capsys.readouterr().out, shown)


@pytest.mark.parametrize("block", [b for b in BLOCKS if not b.language and COMMAND.search(b.text)], ids=str)
def test_commands_run_and_print_what_is_shown(block, page_folder, capsys):
    """Those that need a wheel, a project or a file of the reader's must at least be commands that there are."""
    folder, shown = page_folder(block.page), shown_after(block)
    for arguments in (shlex.split(line.partition(" && ")[0]) for line in COMMAND.findall(block.text)):
        make_parser().parse_args(arguments)
        if arguments[0] in RUN_HERE and (folder / arguments[1]).exists():
            assert main(arguments) == (arguments[1] in WRONG)
    printed = capsys.readouterr()
    if shown:
        assert_shows(printed.out + printed.err, shown)


def test_the_page_about_targets_lists_them_and_the_default_cubins():
    page = (DOCS / "targets.md").read_text()
    for target in ROWS:
        (line,) = re.findall(rf"^\| .*`{target.name}`.*\|$", page.partition("## Cubins")[0], re.M)
        assert target.kind == "host" or f"{target.ptx_version // 10}.{target.ptx_version % 10}" in line
    for cubin in plan_cubins(CUDA_TARGETS):
        assert f"\n| `{cubin.arch}` | `{cubin.source}` |" in page


def test_the_page_about_the_compiler_lists_the_passes_in_order():
    page = (DOCS / "compiler.md").read_text().partition("## Passes")[2].partition("## Lowering")[0]
    said = {("cuda", "host"): "both", ("cuda",): "CUDA"}
    last = {name: said[kinds] for name, _, kinds in PIPELINE if (name, kinds) != ("access", ("cuda",))}
    assert re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.M) == list(last.items())


def test_a_text_that_is_not_printed_is_noticed():
    assert_shows("one\ntwo\nthree\n", "one\n...\nthree\n")
    for shown in ("one\nthree\n", "three\n...\none\n", "four\n"):
        with pytest.raises(AssertionError, match="not in the output"):
            assert_shows("one\ntwo\nthree\n", shown)
