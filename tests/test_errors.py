"""What is wrong in a kernel's body is reported at its place, with the author's line, carets and a fix."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gristmill.compiler.frontend import build
from gristmill.declare import load_kernels
from gristmill.errors import KernelError
from gristmill.specialisation import VARIANTS
from machines import kernel_of

HEAD = """\
import gristmill as gm
import gristmill.language as tl


def half(v):
    return scale(v, 0.5)


def scale(v, by):
    return tl.exp(v * by)


@gm.kernel(BLOCK=[128], grid=1)
def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.i32], n: gm.i32, BLOCK: gm.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
"""


def read_goldens() -> dict[str, tuple[str, str]]:
    text = (Path(__file__).parent / "data" / "kernel_errors.txt").read_text()
    found = {}
    for part in text.split("=== ")[1:]:
        name, _, rest = part.partition("\n")
        body, _, expected = rest.partition("\n---\n")
        found[name] = (body, expected.rstrip("\n"))
    return found


GOLDENS = read_goldens()


def compile_body(folder: Path, body: str, head: str = HEAD) -> None:
    file = folder / "k.py"
    file.write_text(head + textwrap.indent(body, "    ") + "\n")
    (kernel,) = load_kernels(file, folder)
    build(kernel, kernel.specialisations()[0], VARIANTS[0])


def test_what_the_goldens_are_built_on_compiles(tmp_path):
    compile_body(tmp_path, "tl.store(y + i, half(v) + scale(v, by=2.0))")


@pytest.mark.parametrize("name", GOLDENS)
def test_mistake_is_reported_with_position_and_fix(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    body, expected = GOLDENS[name]
    with pytest.raises(KernelError) as caught:
        compile_body(tmp_path, body)
    assert str(caught.value) == expected
    assert caught.value.fix


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("w = v + 1 // 0", "cannot compute at build time: "),
        ('if "a" < 3:\n    w = v', "cannot compute at build time: "),
        ("w = min()", "cannot compute at build time: "),
        ("w = tl.store(x + i, v) + 1", "cannot compute at build time: "),
    ],
)
def test_exception_of_python_is_reported_at_its_line(tmp_path, body, message):
    with pytest.raises(KernelError) as caught:
        compile_body(tmp_path, body)
    assert caught.value.message.startswith(message)
    assert caught.value.position.line == 17


def test_error_in_a_helper_shows_the_chain_of_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KernelError) as caught:
        compile_body(tmp_path, "w = half(x)")
    assert [call.line for call in caught.value.calls] == [6, 17]
    assert caught.value.position.line == 10


def test_error_in_a_helper_of_another_file_names_that_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text("import gristmill.language as tl\n\n\ndef part(v):\n    return tl.exp(v)\n")
    with pytest.raises(KernelError) as caught:
        compile_body(
            tmp_path, "w = part(i)", HEAD.replace("import gristmill", "from parts import part\nimport gristmill", 1)
        )
    lines = str(caught.value).splitlines()
    assert lines[0] == "parts.py:5:12: error: exp(): needs a floating tile, got i32[128]"
    assert lines[3] == "  called from k.py:18"


def test_error_in_an_op_written_in_the_language_shows_where_it_was_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KernelError) as caught:
        compile_body(tmp_path, "w = tl.sigmoid(i)")
    assert "needs a floating tile" in caught.value.message
    assert caught.value.calls[-1].file == "k.py"
    assert caught.value.calls[-1].line == 17


def test_helper_that_calls_itself_without_end_is_reported():
    source = """
    def forever(v):
        return forever(v) + 1


    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32]):
        tl.store(x, forever(tl.load(x)))
    """
    kernel = kernel_of(source)
    with pytest.raises(KernelError, match="`forever` calls itself without an end"):
        build(kernel, kernel.specialisations()[0], VARIANTS[0])


def test_equal_functions_of_two_files_keep_their_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        with pytest.raises(KernelError) as caught:
            compile_body(tmp_path / folder, "w = nothing")
        assert caught.value.position.file == f"{folder}/k.py"


def test_columns_count_characters_of_the_file(tmp_path):
    with pytest.raises(KernelError) as caught:
        compile_body(tmp_path, 'tl.static_assert(BLOCK > 1, "größer — ok"); w = missing')
    position = caught.value.position
    assert position.text[position.column - 1 : position.end - 1] == "missing"


def test_kernel_inside_a_function_reports_its_own_indentation():
    def declare():
        import gristmill as gm
        import gristmill.language as tl

        @gm.kernel(grid=1)
        def k(x: gm.ptr[gm.f32]):
            tl.store(x, missing)  # noqa: F821

        return k

    kernel = declare()
    with pytest.raises(KernelError) as caught:
        build(kernel, kernel.specialisations()[0], VARIANTS[0])
    position = caught.value.position
    assert position.text[position.column - 1 : position.end - 1] == "missing"
    assert position.file.endswith("tests/test_errors.py")
