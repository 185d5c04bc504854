"""Kernels as machine code: every level and variant, nothing touched outside arrays, any part of a grid, in place."""

from __future__ import annotations

import ctypes
import mmap
import os
import traceback
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gristmill.cases import Case, Spec, spec_of
from gristmill.compiler.interpreter import _choose, _evaluate, _fill, run_kernel
from gristmill.compiler.targets import TARGETS
from gristmill.declare import Kernel
from gristmill.specialisation import VARIANTS, Specialisation, Variant
from host import entry, levels, pack, run_on_host, runner
from machines import RAGGED, kernel_of, needs_host, shipped_kernels

pytestmark = needs_host
KERNELS = shipped_kernels()
PAIRS = [(k, s) for k in KERNELS.values() for s in {s.dtypes: s for s in reversed(k.expanded)}.values()]
NAMES = [f"{k.name}-{'-'.join(d.name for _, d in s.dtypes)}" for k, s in PAIRS]
on_each_pair = pytest.mark.parametrize(("kernel", "first"), PAIRS, ids=NAMES)


def ragged(spec: Spec) -> Case:
    return next(c for c in spec.cases if c.name in RAGGED)


def resized(case: Case, old: int, new: int) -> Case:
    shapes = {name: tuple(new if size == old else size for size in shape) for name, shape in case.shapes.items()}
    return replace(case, name=f"{case.name} with {new}", shapes=shapes)


def worst(spec: Spec, arguments: dict, expected: dict) -> float:
    return max(spec.errors(arguments, expected).values())


# ---- levels and variants -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", levels())
@on_each_pair
def test_every_level_agrees_with_the_reference(kernel, first, level):
    spec = spec_of(kernel)
    for case in (ragged(spec), resized(ragged(spec), 129, 1000), resized(ragged(spec), 129, 4097)):
        arguments = spec.arguments(case, first)
        expected = spec.expected(arguments)
        runner(level)(kernel, None, **arguments)
        assert worst(spec, arguments, expected) <= 1, case.name


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
@on_each_pair
def test_every_variant_agrees_with_the_reference(kernel, first, variant):
    """1000 columns are as many as every aligned variant needs."""
    spec = spec_of(kernel)
    case = resized(ragged(spec), 129, 1000)
    arguments = spec.arguments(case, first)
    expected = spec.expected(arguments)
    run_on_host(kernel, None, **arguments, variant=variant)
    assert worst(spec, arguments, expected) <= 1


# ---- arrays between pages that may not be touched ------------------------------------------------------------------


def guarded(array: np.ndarray, at_end: bool) -> np.ndarray:
    """Return a copy that ends, or starts, at a page that no one may touch."""
    page = mmap.PAGESIZE
    inner = -(-max(1, array.nbytes) // page) * page
    memory = mmap.mmap(-1, inner + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for fence in (start, start + page + inner):
        assert protect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0) == 0
    offset = page + (inner - array.nbytes if at_end else 0)
    copy = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    copy[...] = array
    return copy


def in_child(function: Callable[[], None]) -> str:
    """Run a function in a process of its own and say how it ended: "" if well."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-4000:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        message = pipe.read()
    status = os.waitpid(child, 0)[1]
    return message if os.WIFEXITED(status) else f"signal {os.WTERMSIG(status)}"


def test_guard_ends_the_process_that_touches_it():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], n: gm.size["x"], first: gm.i32):
        tl.store(x + first, tl.load(x + n))
    """
    kernel = kernel_of(source.replace(", first: gm.i32", "").replace("x + first", "x"))
    x = np.zeros(8, np.float32)
    run_on_host(kernel, None, np.zeros(9, np.float32)[:8])
    assert in_child(lambda: run_on_host(kernel, None, guarded(x, at_end=True)) and None).startswith("signal")


@on_each_pair
@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
def test_kernel_touches_nothing_outside_its_arrays(kernel, first, at_end):
    spec = spec_of(kernel)
    cases = [resized(ragged(spec), 129, size) for size in (1, 2, 3, 31, 127, 128, 1000, 1023, 1025, 4097)]

    def run_all() -> None:
        for case in cases:
            arguments = spec.arguments(case, first)
            expected = spec.expected(arguments)
            placed = {n: guarded(a, at_end) if isinstance(a, np.ndarray) else a for n, a in arguments.items()}
            run_on_host(kernel, None, **placed)
            assert worst(spec, placed, expected) <= 1, case.name

    assert in_child(run_all) == ""


# ---- the grid ------------------------------------------------------------------------------------------------------


def prepared(
    kernel: Kernel, specialisation: Specialisation, variant: Variant, **arguments: object
) -> tuple[Callable[..., None], bytes, tuple[int, ...]]:
    values = _fill(kernel, dict(arguments))
    chosen = _choose(kernel, values, {})
    function = entry(kernel, chosen, variant, TARGETS[levels()[-1]])[0]
    grid = tuple(_evaluate(code, kernel, values, chosen) for code in kernel.grid)
    return function, pack(kernel, chosen, variant, values), grid


@pytest.mark.parametrize("grid", [(7,), (3, 4), (2, 3, 5), (1, 1, 9)])
@pytest.mark.parametrize("cuts", [(), (1,), (3, 4), (0, 5, 5)], ids=str)
def test_a_grid_may_be_run_in_parts(grid, cuts):
    source = f"""
    @gm.kernel(grid={grid})
    def k(y: gm.ptr[gm.i32]):
        i = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
        tl.store(y + i, tl.load(y + i) * 10 + tl.program_id(0) + 1)
    """
    kernel, y = kernel_of(source), np.zeros(np.prod(grid), np.int32)
    function, block, _ = prepared(kernel, kernel.specialisations()[0], VARIANTS[1], y=y)
    ends = [*cuts, y.size]
    for begin, end in zip([0, *cuts], ends, strict=True):
        function(block, (ctypes.c_int64 * 3)(*(*grid, 1, 1)[:3]), begin, end)
    assert y.tolist() == [i % grid[0] + 1 for i in range(y.size)]


def test_scalars_of_every_dtype_arrive():
    names = ("bool_", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64")
    values = (True, -3, -300, -70_000, -(1 << 40), 200, 60_000, 1 << 31, (1 << 63) + 5, 1.5, -2.5, 1e10, 1e100)
    arrays = ", ".join(f"y{n}: gm.ptr[gm.{n}]" for n in names)
    scalars = ", ".join(f"s{n}: gm.{n}" for n in names)
    stores = "\n".join(f"    tl.store(y{n}, s{n})" for n in names)
    kernel = kernel_of(f"@gm.kernel(grid=1)\ndef k({arrays}, {scalars}):\n{stores}\n")
    for run in (run_kernel, run_on_host):
        outs = [np.zeros(1, a) for a in map(numpy_dtype, names)]
        run(kernel, None, *outs, *values)
        assert [o[0] == np.asarray(v).astype(o.dtype) for o, v in zip(outs, values, strict=True)] == [True] * len(names)


def numpy_dtype(name: str) -> np.dtype:
    from gristmill import dtypes as dt
    from gristmill.dtypes import dt_numpy

    return dt_numpy(getattr(dt, name))


# ---- in place ------------------------------------------------------------------------------------------------------


@on_each_pair
def test_output_may_be_an_input(kernel, first):
    """What each program reads, it has read before it writes."""
    spec = spec_of(kernel)
    for size in (129, 1000, 4097):
        arguments = spec.arguments(resized(ragged(spec), 129, size), first)
        outputs = spec.outputs
        plain = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in arguments.items()}
        run_on_host(kernel, None, **plain)
        for name in spec.inputs:
            same = [o for o in outputs if _alike(arguments.get(name), arguments[o])]
            for output in same[:1]:
                shared = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in arguments.items()}
                shared[output] = shared[name]
                run_on_host(kernel, None, **shared)
                assert shared[output].tobytes() == plain[output].tobytes(), (name, output, size)


def _alike(a: object, b: np.ndarray) -> bool:
    return isinstance(a, np.ndarray) and (a.shape, a.dtype) == (b.shape, b.dtype)
