"""What the README shows: its kernel is compiled and run, its commands are those of CI."""

import re
from pathlib import Path

import numpy as np
import pytest

from gristmill.compiler.interpreter import run_kernel
from gristmill.compiler.op import ROWS
from gristmill.load import load_kernels
from machines import compute, on_each_machine

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = ("pip install '.[demo]' && python -m gristmill demo", "pip install '.[test]' && python -m pytest")


@pytest.fixture(scope="module")
def scale(tmp_path_factory):
    (text,) = re.findall(r"```python\n(# kernels/scale\.py\n.*?)```", README, re.S)
    file = tmp_path_factory.mktemp("kernels") / "scale.py"
    file.write_text(text)
    (kernel,) = load_kernels(file)
    return kernel


def test_the_kernel_of_ten_lines_computes_what_it_says(scale):
    x = np.arange(5000, dtype=np.float32)
    y = np.full_like(x, np.nan)
    run_kernel(scale, None, x, y, 2.0)
    np.testing.assert_array_equal(y, 2 * x)


def test_the_kernel_is_short(scale):
    assert len(scale.source.splitlines()) <= 10


@pytest.mark.parametrize("command", COMMANDS)
def test_ci_runs_the_commands_as_they_stand(command):
    assert f"```\n{command}\n```" in README
    assert command in (ROOT / ".ci" / "run").read_text()


@pytest.fixture(scope="module")
def new_rows():
    """What a test adds to the op table leaves it again."""
    before = set(ROWS)
    yield
    for name in ROWS.keys() - before:
        del ROWS[name]


@on_each_machine
def test_an_operation_is_one_block(run, new_rows):
    """The README's operation, declared as it stands, on every machine."""
    (text,) = re.findall(r"```python\n(@op\(.*?)```", README, re.S)
    head = "from gristmill.compiler.op import emit, op\nfrom gristmill.language.types import need_float, promoted\n"
    x, y = np.array([1, -2.5, np.inf, 0], np.float32), np.array([2, 2.5, 1, -0.0], np.float32)
    got = compute(run, "midpoint(x, y)", head=head + text, x=x, y=y)
    np.testing.assert_array_equal(got, [1.5, 0, np.inf, 0])
