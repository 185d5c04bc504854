"""Files of kernels: how they are executed, what they may import, and how pairs of kernels are checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gristmill as gm
from gristmill.declare import Kernel, check_pairs, load_kernels
from gristmill.errors import DeclarationError

HEAD = 'import gristmill as gm\n\nD = gm.dtype_var("D", gm.Float)\n\n\n'


def load(folder: Path, text: str, name: str = "k.py") -> list[Kernel]:
    (folder / name).write_text(text)
    return load_kernels(folder / name, folder)


def kernel(name: str, decorator: str, signature: str = "x: gm.ptr[D]") -> str:
    return f"@gm.kernel({decorator})\ndef {name}({signature}):\n    pass\n\n\n"


def test_kernels_come_in_order_of_definition(tmp_path):
    found = load(tmp_path, HEAD + kernel("b", "grid=1") + kernel("a", "grid=1"))
    assert [k.name for k in found] == ["b", "a"]


def test_file_and_source_are_the_authors(tmp_path):
    text = HEAD + "@gm.kernel(\n    grid=1,\n)\ndef k(x: gm.ptr[D]):\n    '''Doc.'''\n"
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "k.py").write_text(text)
    (found,) = load_kernels(tmp_path / "kernels" / "k.py", tmp_path)
    assert (found.file, found.line, found.doc) == ("kernels/k.py", 6, "Doc.")
    assert found.source == text[len(HEAD) :]


def test_source_of_a_nested_kernel_is_dedented(tmp_path):
    text = HEAD + "def make():\n    @gm.kernel(grid=1)\n    def k(x: gm.ptr[D]):\n        pass\n\nmake()\n"
    (found,) = load(tmp_path, text)
    assert found.source == "@gm.kernel(grid=1)\ndef k(x: gm.ptr[D]):\n    pass\n"


def test_file_is_read_again_after_a_change(tmp_path):
    assert [k.name for k in load(tmp_path, HEAD + kernel("before", "grid=1"))] == ["before"]
    assert [k.name for k in load(tmp_path, HEAD + "\n\n" + kernel("after", "grid=1"))] == ["after"]


def test_modules_beside_the_file_can_be_imported_and_are_forgotten(tmp_path):
    for folder, value in ((tmp_path / "one", 128), (tmp_path / "two", 256)):
        folder.mkdir()
        (folder / "common.py").write_text(HEAD + f"BLOCK = {value}\n" + kernel("other", "grid=1"))
        text = (
            HEAD
            + "from common import BLOCK\n\n"
            + kernel("k", "BLOCK=[BLOCK], grid=1", "x: gm.ptr[D], BLOCK: gm.constexpr")
        )
        (found,) = load(folder, text)
        assert found.constants == (("BLOCK", (value,)),)
    assert "common" not in sys.modules
    assert str(tmp_path / "two") not in sys.path


def test_module_beside_the_file_hides_no_installed_one(tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError\n")
    assert load(tmp_path, "import json\n\njson.dumps({})\n" + HEAD + kernel("k", "grid=1"))


def test_file_without_kernels_has_none(tmp_path):
    assert load(tmp_path, "x = 1\n") == []


def test_helper_functions_stay_what_they_are(tmp_path):
    @gm.jit
    def twice(x):
        return 2 * x

    assert twice(3) == 6


def test_error_in_an_imported_module_is_reported_there(tmp_path):
    (tmp_path / "broken.py").write_text("x = (\n")
    with pytest.raises(DeclarationError, match=r"^broken.py:1:5: error: syntax error"):
        load(tmp_path, "import broken\n")


def test_import_of_the_package_is_light():
    heavy = "['numpy', 'llvmlite', 'gristmill.declare', 'gristmill.kernels', 'ast', 'inspect']"
    code = f"import sys, gristmill; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_public_names_are_there():
    assert set(gm.__all__) <= set(dir(gm))
    for name in gm.__all__:
        assert getattr(gm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gm.nothing


# ---- pairs ---------------------------------------------------------------------------------------------------------

SIGNATURE = "x: gm.ptr[D], BLOCK: gm.constexpr"


def pair(forward: str, backward: str, signature: str = SIGNATURE) -> str:
    return (
        HEAD
        + kernel("f", f'{forward}, grid=1, backward="b"', SIGNATURE)
        + kernel("b", f"{backward}, grid=1", signature)
    )


def test_pair_of_the_same_choices_is_accepted(tmp_path):
    check_pairs(load(tmp_path, pair("BLOCK=[64, 128]", "BLOCK=[128, 64], num_warps=8")))


@pytest.mark.parametrize(
    ("forward", "backward", "signature", "difference"),
    [
        ("BLOCK=[64], dtypes=[gm.f32, gm.f16]", "BLOCK=[64], dtypes=[gm.f32]", SIGNATURE, "D is f32, f16 and f32"),
        ("BLOCK=[64, 128]", "BLOCK=[64]", SIGNATURE, "BLOCK is 64, 128 and 64"),
        ("BLOCK=[64]", "B=[64]", "x: gm.ptr[D], B: gm.constexpr", "constants BLOCK and B"),
        ("BLOCK=[64]", "", "x: gm.ptr[gm.f32]", "dtypes D and none"),
        (
            "BLOCK=[64, 128]",
            "BLOCK=[64, 128], where=lambda D, BLOCK: D.bits < 64 or BLOCK < 128",
            SIGNATURE,
            "only one of them has f64__128",
        ),
    ],
)
def test_pair_that_differs_is_refused(tmp_path, forward, backward, signature, difference):
    text = pair(forward, backward, signature).replace("(, ", "(")
    with pytest.raises(DeclarationError) as caught:
        check_pairs(load(tmp_path, text))
    assert caught.value.message == f"`f` and its backward `b` differ: {difference}"
    assert caught.value.position.text[caught.value.position.column - 1 :].startswith('"b"')


def test_missing_backward_is_reported(tmp_path):
    with pytest.raises(DeclarationError) as caught:
        check_pairs(load(tmp_path, HEAD + kernel("f", 'grid=1, backward="g"') + kernel("b", "grid=1")))
    assert str(caught.value) == "\n".join(
        [
            "k.py:6:29: error: there is no kernel `g`",
            '    6 | @gm.kernel(grid=1, backward="g")',
            "                                    ^^^",
            "  fix: define it, or name one of b",
        ]
    )


def test_kernels_of_one_name_in_two_files_are_refused(tmp_path):
    kernels = [k for name in ("a.py", "b.py") for k in load(tmp_path, HEAD + kernel("k", "grid=1"), name)]
    with pytest.raises(DeclarationError, match=r"^b.py:7:5: error: kernel `k` is already defined at a.py:7"):
        check_pairs(kernels)


def test_kernels_of_one_symbol_are_refused(tmp_path):
    text = HEAD + kernel("k", "grid=1, dtypes=[gm.f32]") + kernel("k__f32", "grid=1", "x: gm.ptr[gm.f32]")
    with pytest.raises(DeclarationError, match="would have one symbol, k__f32__a32"):
        check_pairs(load(tmp_path, text))


def test_kernel_under_a_wrapper_is_the_authors_function(tmp_path):
    wrapper = (
        "import functools\n\n\ndef wrap(f):\n    @functools.wraps(f)\n    def g(*a):\n        pass\n    return g\n\n"
    )
    (found,) = load(tmp_path, HEAD + wrapper + "@gm.kernel(grid=1)\n@wrap\ndef k(x: gm.ptr[D]):\n    pass\n")
    assert found.source.endswith("def k(x: gm.ptr[D]):\n    pass\n")


def test_file_with_a_null_byte_is_reported_by_name(tmp_path):
    with pytest.raises(
        DeclarationError, match=r"^k.py:1:1: error: syntax error: source code string cannot contain null"
    ):
        load(tmp_path, "x = 1\0\n")
