"""Every operation of the catalogue, in every dtype that it takes: the machines agree on what it gives."""

from __future__ import annotations

import warnings
import zlib
from functools import cache
from typing import Any

import numpy as np
import pytest

from gristmill.compiler import catalogue
from gristmill.compiler.catalogue import EXAMPLES, Operation, operations
from gristmill.compiler.interpreter import run_kernel
from gristmill.declare import Kernel
from gristmill.dtypes import dt_numpy, parse_dtype
from machines import MACHINES, RUNNERS, kernels_of

SIZE = 16
CALLS, MANY_CALLS = 40, 900  # blocks of 16 elements in each dtype; so many with --thorough
NO_VALUE = {
    "assume", "debug_barrier", "device_assert", "device_print", "static_assert", "static_print", "store",
    "store_tensor_descriptor",
}  # fmt: skip
# Relative error between machines: a few roundings in the dtype that is computed in, and one in the result's.
TOLERANCE = {"f64": 1e-12, "f32": 4e-6, "f16": 2e-3, "bf16": 1.6e-2, "f8e4m3": 0.13, "f8e5m2": 0.26}

HEAD = """
def add(a, b):
    return a + b


def put(q, r):
    if isinstance(r, tuple):
        for i in tl.static_range(len(r)):
            put_one(q + i * 16, r[i])
    else:
        put_one(q, r)


def put_one(q, r):
    if len(r.shape) == 0:
        tl.store(q, r.to(tl.float64))
    else:
        flat = tl.ravel(r)
        tl.store(q + tl.arange(0, flat.shape[0]), flat.to(tl.float64))
"""
KERNEL = """
@gm.kernel(grid=lambda n: n // 16)
def {name}_(p: gm.ptr[D], q: gm.ptr[gm.f64], n: gm.size["p"]):
    p += tl.program_id(0) * 16
    q += tl.program_id(0) * 64
    x = tl.load(p + tl.arange(0, 16))
    r = {example}
    put(q, r)
"""


def by_name() -> dict[str, Operation]:
    return {operation.name: operation for operation in operations()}


OPERATIONS = by_name()


@cache
def kernels() -> dict[str, Kernel]:
    parts = [HEAD]
    for operation in OPERATIONS.values():
        if operation.name in NO_VALUE:
            continue
        dtypes = ", ".join("gm.bool_" if d == "bool" else f"gm.{d}" for d in operation.dtypes)
        kernel = KERNEL.format(name=operation.name, example=operation.example)
        parts.append(kernel.replace("ptr[D]", f"ptr[{operation.name}_D]"))
        parts.insert(1, f'{operation.name}_D = gm.dtype_var("{operation.name}_D", [{dtypes}])\n')
    return kernels_of("\n".join(parts))


def elements(dtype: str, seed: int, count: int) -> np.ndarray:
    """Numbers of all sizes; for floats also special ones, so few that most blocks have none."""
    rng = np.random.default_rng(seed)
    kind = dt_numpy(parse_dtype(dtype))
    if kind.kind in "iu":
        info = np.iinfo(kind)
        small = rng.integers(max(info.min, -20), 20, count)
        large = rng.integers(info.min, info.max, count, dtype=kind, endpoint=True)
        return np.where(rng.random(count) < 0.7, small.astype(kind), large)
    if kind.kind == "b":
        return rng.random(count) < 0.5
    numbers = (rng.integers(-64, 64, count) / 16).astype(kind)
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-7, -3e-8, 300.0]).astype(kind)
    return np.where(rng.random(count) < 0.02, rng.choice(special, count), numbers)


CASES = [(name, dtype) for name, o in OPERATIONS.items() if name not in NO_VALUE for dtype in o.dtypes]


def run_on(run: Any, kernel: Kernel, dtype: str, x: np.ndarray) -> np.ndarray:
    chosen = next(s for s in kernel.specialisations() if s.dtypes[0][1].name == dtype)
    out = np.zeros(x.size * 4)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        run(kernel, chosen, x.copy(), out)
    return out


@pytest.mark.parametrize("run", [machine for name, machine in MACHINES.items() if name != "interpreter"])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_machine_agrees_with_the_interpreter(run, name, dtype, pytestconfig):
    if run is RUNNERS.get("cuda") and name == "inline_asm_elementwise":
        pytest.skip("the example's assembly is empty: its fallback is what other machines run")
    kernel = kernels()[f"{name}_"]
    count = SIZE * (MANY_CALLS if pytestconfig.getoption("--thorough") else CALLS)
    x = elements(dtype, zlib.crc32(f"{name} {dtype}".encode()), count)
    if name in ("associative_scan", "reduce") and dtype.startswith("f8"):
        # Sums saturate: with infinities their order would tell.
        x[np.isinf(x.astype("f4"))] = 1
    want, got = run_on(run_kernel, kernel, dtype, x), run_on(run, kernel, dtype, x)
    rough = TOLERANCE.get(dtype, TOLERANCE["f32"])
    scale = np.maximum(np.abs(np.nan_to_num(want, posinf=0, neginf=0)), 1e-6)
    close = np.abs(got - want) <= rough * np.maximum(scale, np.nan_to_num(np.abs(x.astype("f8"))).sum() * rough)
    same = (got == want) | (np.isnan(got) & np.isnan(want)) | close
    assert same.all(), f"{x.reshape(-1, SIZE)[np.flatnonzero(~same)[0] // 64]}: {got[~same][:4]}, not {want[~same][:4]}"


def test_every_operation_is_documented_and_has_an_example():
    assert set(catalogue.MACHINES) == set(RUNNERS) - {"cuda"}
    for operation in OPERATIONS.values():
        assert operation.doc.endswith("."), operation.name
        assert operation.dtypes or operation.name in ("dot_scaled",), f"{operation.name} takes no dtype"
        assert operation.example.startswith("tl."), operation.name
    assert set(EXAMPLES) <= set(OPERATIONS)
