"""What the page for users of Triton shows is loaded, compiled and run."""

import re
from pathlib import Path

import numpy as np
import pytest

from gristmill.declare import load_kernels
from machines import compute, on_each_machine

PAGE = (Path(__file__).parent.parent / "docs" / "coming-from-triton.md").read_text()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    (text,) = re.findall(r"```python\n(# kernels/rows\.py\n.*?)```", PAGE, re.S)
    file = tmp_path_factory.mktemp("kernels") / "rows.py"
    file.write_text(text)
    (kernel,) = load_kernels(file)
    return kernel


@on_each_machine
@pytest.mark.parametrize(("columns", "block"), [(1, 1024), (1000, 1024), (1025, 4096)])
def test_the_file_computes_what_it_says(run, kernel, columns, block):
    x = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    y = np.full_like(x, np.nan)
    chosen = run(kernel, None, x, y)
    assert dict(chosen.constants) == {"BLOCK": block, "WIDE": block > 2048}
    np.testing.assert_allclose(y, x - x.astype(np.float64).mean(-1, keepdims=True), atol=1e-6)


@on_each_machine
def test_two_constants_divide_as_they_do_at_run_time(run):
    assert compute(run, "a + (-7 // 2)", a=np.zeros(1, np.int32)).tolist() == [-3]
