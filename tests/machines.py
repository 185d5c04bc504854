"""Runs kernels on a machine by name, so that one test states a rule for all of them."""

from __future__ import annotations

import itertools
import tempfile
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.compiler.interpreter import run_kernel
from gristmill.compiler.simt.run import run_simulated
from gristmill.declare import Kernel, load_kernels
from gristmill.dtypes import Dtype, dt_numpy, parse_dtype
from host import levels, run_on_host

Run = Callable[..., Any]


def run_on_cuda(*arguments: Any, **named: Any) -> Any:
    """Run a kernel on the first CUDA device."""
    from device import run_on_device

    arrays = [a for a in (*arguments, *named.values()) if isinstance(a, np.ndarray)]
    if not all(a.flags.c_contiguous for a in arrays):
        pytest.skip("arrays go to the device as they lie, without gaps")
    return run_on_device(*arguments, **named)


RUNNERS: dict[str, Run] = {"interpreter": run_kernel, "host": run_on_host, "simt": run_simulated}
if Path("/dev/nvidiactl").exists():
    RUNNERS["cuda"] = run_on_cuda
needs_host = pytest.mark.skipif(
    not levels(), reason="needs LLVM, a C compiler and a processor that there is a target for"
)
MARKS: dict[str, Any] = {"host": needs_host, "cuda": pytest.mark.gpu}
MACHINES = {name: pytest.param(run, id=name, marks=MARKS.get(name, ())) for name, run in RUNNERS.items()}
on_each_machine = pytest.mark.parametrize("run", list(MACHINES.values()))
on_each_in_order = pytest.mark.parametrize("run", [run for name, run in MACHINES.items() if name != "cuda"])
"""Gives a test `run(kernel, specialisation | None, *arrays, grid=None, **named)`, which changes arrays in place."""

RAGGED = ("129", "2 x 129", "2 x 129 x 40", "1 x 1 x 129 x 64, 5 keys")
"""Names of cases of which each kernel has one: what is 129 may have any size."""

KERNELS_DIR = Path(__file__).parent.parent / "kernels"
bfloat16 = ml_dtypes.bfloat16

_HEAD = """\
import gristmill as gm
import gristmill.language as tl


"""


def array(dtype: str, *values: float) -> np.ndarray:
    """Return an array of a dtype of the language, named as `gristmill.dtypes` does."""
    return np.array(values).astype(dt_numpy(getattr(dt, dtype)))


def same(got: np.ndarray, *want: float) -> None:
    """Assert that the numbers are equal; NaN equals NaN."""
    np.testing.assert_array_equal(np.asarray(got, np.float64), np.array(want, np.float64))


@cache
def shipped_kernels() -> dict[str, Kernel]:
    """Return the kernels of the repository by name."""
    files = sorted(KERNELS_DIR.glob("*.py"))
    return {kernel.name: kernel for file in files for kernel in load_kernels(file, KERNELS_DIR.parent)}


@cache
def kernels_of(source: str, folder: Path | None = None) -> dict[str, Kernel]:
    """Return the kernels that a source text declares, by name; it is given the two imports."""
    folder = folder or _scratch()
    file = folder / f"text{next(_numbers)}.py"
    file.write_text(_HEAD + textwrap.dedent(source).strip("\n") + "\n")
    return {kernel.name: kernel for kernel in load_kernels(file, folder)}


_numbers = itertools.count()


@cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="gristmill-kernels-"))


def kernel_of(source: str) -> Kernel:
    """Return the last kernel of a source text."""
    return list(kernels_of(source).values())[-1]


def compute(
    run: Run,
    expression: str,
    dtype: Any = None,
    *,
    body: str = "",
    size: int | None = None,
    head: str = "",
    **inputs: Any,
) -> np.ndarray:
    """Evaluate an expression on tiles named as `inputs`, in a kernel of one program.

    Arrays, of one power of two of elements, are loaded; Python numbers become scalar parameters (i32, f32 or bool).
    `body` are statements before, `head` functions beside the kernel. The result has `size` elements (by default as many
    as the inputs) and must have the dtype `dtype` (by default the first input's): it is not converted.
    """
    arrays = {name: np.asarray(value) for name, value in inputs.items() if isinstance(value, (np.ndarray, list))}
    scalars = {name: value for name, value in inputs.items() if name not in arrays}
    count = max((a.size for a in arrays.values()), default=1)
    wanted = parse_dtype(dtype or next(iter(arrays.values())).dtype)
    source = _program(expression, body, head, arrays, scalars, wanted, count, size or count)
    out = np.full(size or count, 77).astype(dt_numpy(wanted))
    run(kernel_of(source), None, *arrays.values(), out, *scalars.values(), grid=(1,))
    return out


def _program(
    expression: str, body: str, head: str, arrays: Any, scalars: Any, wanted: Dtype, count: int, size: int
) -> str:
    parameters = [f"{name}_: gm.ptr[gm.{_name(parse_dtype(a.dtype))}]" for name, a in arrays.items()]
    parameters += [f"out: gm.ptr[gm.{_name(wanted)}]"]
    parameters += [f"{name}: gm.{_SCALARS[type(value)]}" for name, value in scalars.items()]
    loads = [f"{name} = tl.load({name}_ + tl.arange(0, {a.size}))" for name, a in arrays.items()]
    statements = [
        *loads,
        *textwrap.dedent(body).strip("\n").splitlines(),
        f"result = {expression}",
        f'tl.static_assert(result.dtype == gm.{_name(wanted)}, f"the result is {{result.dtype}}")',
        f"tl.store(out + tl.arange(0, {size}), result)",
    ]
    text = f"@gm.kernel(grid=1)\ndef program({', '.join(parameters)}):\n" + textwrap.indent(
        "\n".join(statements), "    "
    )
    return textwrap.dedent(head) + "\n\n" + text


_SCALARS = {int: "i32", float: "f32", bool: "bool_"}


def _name(dtype: Dtype) -> str:
    return "bool_" if dtype.name == "bool" else dtype.name
