"""The stub of a built module: what type checkers accept is what its dispatchers take."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.build.stubs import write_stub
from gristmill.declare import load_kernels
from gristmill.load import RESERVED_NAMES

TEXT = '''
import gristmill as gm

D = gm.dtype_var("D", gm.Float)

@gm.kernel(BLOCK=[256, 1024], CAUSAL=[True, False], MODE=["a", "b"], SCALE=[0.5], grid=1)
def full(x: gm.ptr[D], rate: D, count: gm.u32, flag: gm.bool_ = False, eps: gm.f32 = 1e-5, top: gm.f32 = float("inf"),
         n: gm.size["x"] = None, *, BLOCK: gm.constexpr, CAUSAL: gm.constexpr, MODE: gm.constexpr, SCALE: gm.constexpr):
    """One line \\\\ with a backslash.

    And ""\\"quotes""\\".
    """

@gm.kernel(grid=1)
def plain(x: gm.ptr[gm.f32]):
    pass
'''

SIGNATURE = """\
    def __call__(
        self,
        x: Array,
        rate: float,
        count: int,
        flag: bool = False,
        eps: float = 1e-05,
        top: float = ...,
        n: int | None = None,
        *,
        BLOCK: Literal[256, 1024] | None = None,
        CAUSAL: Literal[True, False] | None = None,
        MODE: Literal["a", "b"] | None = None,
        SCALE: float | None = None,
        grid: Grid | None = None,
        stream: object = None,
    ) -> None: ...
"""

USES = """\
from kernels import full, plain

full([1.0], 0.5, 3)
full([1.0], 0.5, 3, n=2, BLOCK=256, CAUSAL=True, MODE="b", SCALE=0.5, grid=(1, 2), stream=0)
plain([1.0], grid=3)
instance = full.dispatch("float32", 256, True, "a", SCALE=0.5)
instance.launch([1.0], grid=(12,))
instance[(12,)]([1.0])
names: tuple[str, ...] = full.supported_dtypes
sources: list[str] = [i.source for i in plain.instances]
if instance.backward is not None:
    instance.backward.ptx("sm_90a")
"""


@pytest.fixture
def stub(tmp_path: Path) -> str:
    (tmp_path / "k.py").write_text(TEXT)
    return write_stub(load_kernels(tmp_path / "k.py", tmp_path))


def check(folder: Path, stub: str, uses: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy")
    (folder / "kernels.pyi").write_text(stub)
    (folder / "uses.py").write_text(uses)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "kernels.pyi", "uses.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_signature_has_names_types_and_defaults(stub):
    assert SIGNATURE in stub


def test_names_of_a_built_module_are_those_that_kernels_may_not_have():
    public = {n.name for n in ast.parse(write_stub([])).body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    assert public == set(RESERVED_NAMES)


def test_exports_are_the_kernels_sorted(stub):
    assert stub.endswith('__all__ = [\n    "full",\n    "plain",\n]\n')


def test_docstring_is_the_authors(stub):
    scope: dict[str, object] = {}
    body = stub[stub.index("class _full") : stub.index("full: Final")]
    exec("from __future__ import annotations\nfrom typing import *\nDispatcher = object\n" + body, scope)
    assert scope["_full"].__doc__.split() == ["One", "line", "\\", "with", "a", "backslash.", "And", '"""quotes""".']


def test_stub_and_right_uses_check(tmp_path, stub):
    result = check(tmp_path, stub, USES)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    "use",
    ["full([1.0])", "full([1.0], 0.5, 3, BLOCK=128)", "full([1.0], 'a', 3)", "plain([1.0], BLOCK=1)", "full.nothing"],
)
def test_wrong_use_is_refused(tmp_path, stub, use):
    result = check(tmp_path, stub, f"from kernels import full, plain\n\n{use}\n")
    assert result.returncode == 1
    assert "uses.py:3: error" in result.stdout


def test_stub_of_no_kernels_checks(tmp_path):
    assert check(tmp_path, write_stub([]), "import kernels\n").returncode == 0
