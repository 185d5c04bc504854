"""Atomics, printing, checks, inline PTX and hints on a CUDA device."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device import DRIVER, check, device_target, run_on_device
from gristmill.compiler.interpreter import run_kernel
from gristmill.compiler.targets import TARGETS
from gristmill.language.atomic import SCOPES, SEMS, TAKEN
from machines import array, bfloat16, compute, kernel_of, same
from test_atomics import DTYPES, SPECIAL, update
from test_debug_ops import CHECKED, NUMBERS, numbers, printing
from test_hints import CHOICES, HINTED
from test_inline_asm import PACKED, call

pytestmark = pytest.mark.gpu
SIZES = (1, 2, 16, 32, 64, 128, 256, 1024)
OLDEST = TARGETS["sm_80"]  # whose PTX every later device runs too


def both(source: str, *arguments, target=None) -> tuple[list, list]:
    """Run a kernel in the interpreter and on the device, each on copies of the arguments, and return all of them."""
    outcomes = []
    for run, named in ((run_kernel, {}), (run_on_device, {"target": target})):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        run(kernel_of(source), None, *copies, **named)
        outcomes.append(copies)
    return outcomes[0], outcomes[1]


def assert_same(source: str, *arguments, target=None) -> None:
    for want, got in zip(*both(source, *arguments, target=target), strict=True):
        np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(want, np.float64))


@pytest.mark.parametrize(("kind", "dtype"), DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("target", [None, OLDEST], ids=["best", "oldest"])
def test_each_element_is_updated_once_and_every_thread_knows_what_was_there(kind, dtype, size, target):
    words = "{p}, 3, x" if kind == "cas" else "{p}, x, mask=i % 5 != 3"
    source = update(dtype, f"atomic_{kind}({words})", size=size)
    random = np.random.default_rng(size)
    p, val = (random.integers(0, 8, size).astype(array(dtype, 0).dtype) for _ in range(2))
    at = random.permutation(size).astype(np.int32)
    assert_same(source, p, at, val, np.zeros_like(p), size, target=target)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("target", [None, OLDEST], ids=["best", "oldest"])
def test_special_numbers(dtype, target):
    # Additions of f32 in global memory take denormals for 0 (PTX ISA, "atom").
    special = SPECIAL if dtype == "f64" else [x for x in SPECIAL if x == 0 or not abs(x) < 1e-38]
    pairs = list(itertools.product(special, special))
    pairs += [(0.0, 0.0)] * (128 - len(pairs))
    a, b = (array(dtype, *column) for column in zip(*pairs, strict=True))
    source = update(dtype, "atomic_add({p}, x)", size=128)
    assert_same(source, a, np.arange(128, dtype=np.int32), b, np.zeros_like(a), 128, target=target)


@pytest.mark.parametrize(("kind", "dtype"), list(itertools.product(("max", "min"), ("f32", "f64"))))
def test_extremes_of_floats_follow_their_bits(kind, dtype):
    pairs = list(itertools.product([*SPECIAL, -np.nan], repeat=2))
    pairs += [(0.0, 0.0)] * (128 - len(pairs))
    a, b = (array(dtype, *column) for column in zip(*pairs, strict=True))
    source = update(dtype, f"atomic_{kind}({{p}}, x)", size=128)
    want, got = both(source, a, np.arange(128, dtype=np.int32), b, np.zeros_like(a), 128)
    assert got[0].tobytes() == want[0].tobytes()
    assert got[3].tobytes() == want[3].tobytes()


CROWD = """
@gm.kernel(grid=200)
def k(p: gm.ptr[gm.{dtype}], old: gm.ptr[gm.{dtype}]):
    i = tl.arange(0, {size})
    got = tl.atomic_add(p + i % {places}, 1, sem={sem!r}, scope={scope!r})
    tl.store(old + tl.program_id(0) * {size} + i, got)
"""


@pytest.mark.parametrize(("sem", "scope"), list(itertools.product(SEMS, SCOPES)))
def test_every_addition_of_a_crowd_counts_and_finds_another_number(sem, scope):
    p, old = np.zeros(4, np.int32), np.zeros(200 * 256, np.int32)
    if scope == "cta":  # among the threads of one program only
        run_on_device(
            kernel_of(CROWD.format(dtype="i32", size=256, places=4, sem=sem, scope=scope)), None, p, old, grid=(1,)
        )
        programs = 1
    else:
        run_on_device(kernel_of(CROWD.format(dtype="i32", size=256, places=4, sem=sem, scope=scope)), None, p, old)
        programs = 200
    assert p.tolist() == [programs * 64] * 4
    for place in range(4):
        assert sorted(old[: programs * 256][place::4].tolist()) == list(range(programs * 64))


@pytest.mark.parametrize(
    ("dtype", "most"), [("f16", 2048), ("bf16", 256), ("f32", 12800), ("f64", 12800), ("u64", 12800)]
)
@pytest.mark.parametrize("target", [None, OLDEST], ids=["best", "oldest"])
def test_additions_of_a_crowd_are_exact_while_the_dtype_is(dtype, most, target):
    places = max(4, 200 * 256 // most)
    places = 1 << (places - 1).bit_length()
    p, old = (np.zeros(size, array(dtype, 0).dtype) for size in (places, 200 * 256))
    run_on_device(
        kernel_of(CROWD.format(dtype=dtype, size=256, places=places, sem=None, scope=None)), None, p, old, target=target
    )
    assert np.asarray(p, np.float64).tolist() == [200 * 256 / places] * places


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("odd", [0, 1])
def test_halves_in_pairs_and_beside_each_other(dtype, odd):
    source = f"""
    @gm.kernel(grid=100)
    def k(p: gm.ptr[gm.{dtype}], v: gm.ptr[gm.{dtype}]):
        i = tl.arange(0, 512)
        tl.atomic_add(p + i + {odd}, tl.load(v + i))
    """
    p = np.zeros(514, array(dtype, 0).dtype)
    run_on_device(kernel_of(source), None, p, np.resize(array(dtype, 1, 2), 512))
    want = np.zeros(514)
    want[odd : odd + 512] = np.resize([100, 200], 512)
    same(p, *want)


def test_a_lock_keeps_programs_apart():
    source = """
    @gm.kernel(grid=300)
    def k(lock: gm.ptr[gm.i32], x: gm.ptr[gm.f32]):
        i = tl.arange(0, 256)
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(x + i, tl.load(x + i, volatile=True) + 1)
        tl.atomic_xchg(lock, 0)
    """
    lock, x = np.zeros(1, np.int32), np.zeros(256, np.float32)
    run_on_device(kernel_of(source), None, lock, x)
    assert lock.tolist() == [0]
    same(x, *[300] * 256)


@pytest.mark.parametrize(("release", "acquire"), [("release", "acquire"), ("acq_rel", "acq_rel")])
def test_what_all_threads_wrote_is_seen_behind_a_flag(release, acquire):
    source = f"""
    @gm.kernel(grid=2)
    def k(flag: gm.ptr[gm.i32], x: gm.ptr[gm.i32], y: gm.ptr[gm.i32], turns: gm.i32):
        i = tl.arange(0, 1024)
        for turn in range(turns):
            if tl.program_id(0) == 0:
                tl.store(x + turn * 1024 + (1023 - i), i + turn)
                tl.atomic_xchg(flag + turn, 1, sem="{release}")
            else:
                while tl.atomic_add(flag + turn, 0, sem="{acquire}") == 0:
                    pass
                tl.store(y + turn * 1024 + i, tl.load(x + turn * 1024 + i))
    """
    flag, x, y = np.zeros(64, np.int32), np.zeros(64 * 1024, np.int32), np.zeros(64 * 1024, np.int32)
    run_on_device(kernel_of(source), None, flag, x, y, 64)
    want = 1023 - np.arange(1024)[None, :] + np.arange(64)[:, None]
    np.testing.assert_array_equal(y.reshape(64, 1024), want)


def test_rows_and_columns():
    source = """
    @gm.kernel(grid=1)
    def k(p: gm.ptr[gm.i32], old: gm.ptr[gm.i32], sums: gm.ptr[gm.i32]):
        i, j = tl.arange(0, 16)[:, None], tl.arange(0, 8)[None, :]
        got = tl.atomic_add(p + j * 16 + i, i * j)
        tl.store(old + i * 8 + j, got)
        column = tl.sum(got, 0)
        tl.store(sums + tl.arange(0, 8), tl.atomic_max(sums + tl.arange(0, 8), column) + column)
    """
    assert_same(source, np.arange(128, dtype=np.int32), np.zeros(128, np.int32), np.full(8, 3, np.int32))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_dtype_prints(capfd, dtype):
    values, want = NUMBERS[dtype]
    run_on_device(kernel_of(printing('tl.device_print("v", v)', x=dtype)), None, numbers(dtype, values), 5)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == [f"pid (0, 0, 0) idx ({i}) v: {text}" for i, text in enumerate(want)]


PROGRAM = """
import numpy as np
from device import run_on_device
from machines import kernel_of
for first in (0, 1):
    run_on_device(kernel_of({source!r}), None, np.arange(first, first + 12, dtype=np.float32), 10)
    print("done", first, flush=True)
"""


def test_a_failing_check_is_told_with_its_place_and_ends_the_context(monkeypatch):
    monkeypatch.setenv("GRISTMILL_DEBUG", "1")
    monkeypatch.setenv("PYTHONPATH", ":".join(p for p in [str(Path(__file__).parent), *sys.path] if p))
    program = PROGRAM.format(source=CHECKED)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[0] == "done 0"
    assert "done 1" not in done.stdout
    assert "100% too large" in done.stdout + done.stderr
    assert "CUDA_ERROR_ASSERT" in done.stderr


MEANING = {"neg": np.negative, "not": np.invert}


@pytest.mark.parametrize(("dtype", "pack"), PACKED)
def test_inline_assembly_computes_each_element(dtype, pack):
    constraints, asm, _ = PACKED[dtype, pack]
    x = np.resize(array(dtype, 1, 2, 3, 100, 0, 7, 5), 512)
    got = compute(run_on_device, call(asm, constraints, "x", f"gm.{dtype}", pack), x=x)
    assert got.tobytes() == MEANING[asm[:3]](x).tobytes()


def test_inline_assembly_keeps_the_order_of_packed_elements():
    expression = call("mov.b32 $0, $1;", "=r,r", "x", "tl.uint8", 4)
    x = np.arange(256, dtype=np.uint8)
    assert compute(run_on_device, expression, x=x).tolist() == x.tolist()
    shifted = call("shl.b32 $0, $1, 16;", "=r,r", "x", "tl.bfloat16", 2)
    halves = np.arange(256).astype(bfloat16)
    got = compute(run_on_device, shifted, x=halves)
    same(got[1::2], *halves[0::2].astype(np.float64))
    same(got[0::2], *[0] * 128)


@pytest.mark.parametrize(("load", "store", "eviction", "volatile"), CHOICES)
@pytest.mark.parametrize("target", [None, OLDEST], ids=["best", "oldest"])
def test_cache_hints_change_no_value(load, store, eviction, volatile, target):
    named = {"load": load, "store": store, "eviction": eviction, "volatile": volatile}
    source = HINTED.format(dtype="f32", mask=", mask=i < n", **named)
    assert_same(source, np.arange(512, dtype=np.float32), np.full(512, 77, np.float32), 300, target=target)


def test_the_device_is_still_well():
    assert device_target().kind == "cuda"
    assert set(TAKEN) == {kind for kind, _ in DTYPES}
    check(DRIVER.cuCtxSynchronize())
