"""Numbers that kernels are written with: rounded once to their dtype, by nothing but numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gristmill
from gristmill import dtypes as dt
from machines import compute, on_each_machine

TINY = 2.0**-40  # lost in f32 beside 1, which leaves the tie below
LARGEST = {"float16": 65504.0, "float8e4nv": 448.0, "float8e5": 57344.0}
# A number just beside what lies halfway between two of the dtype, where f32 would round it, and the nearer of the two.
BESIDE_TIES = {
    "float16": [
        (1 + 2**-11 + TINY, 1 + 2**-10),
        (1 + 3 * 2**-11 - TINY, 1 + 2**-10),
        (2**-25 * (1 + TINY), 2**-24),
        (65520 * (1 - TINY), 65504.0),
    ],
    "bfloat16": [
        (1 + 2**-8 + TINY, 1 + 2**-7),
        (1 + 3 * 2**-8 - TINY, 1 + 2**-7),
        (2**-134 * (1 + 2.0**-30), 2**-133),
        ((2 - 2**-8) * 2.0**127 * (1 - TINY), (2 - 2**-7) * 2.0**127),
    ],
    "float8e4nv": [(1 + 2**-4 + TINY, 1.125), (1 + 3 * 2**-4 - TINY, 1.125), (2**-10 * (1 + TINY), 2**-9)],
    "float8e5": [(1 + 2**-3 + TINY, 1.25), (1 + 3 * 2**-3 - TINY, 1.25), (2**-17 * (1 + TINY), 2**-16)],
}
CASES = [(name, *pair) for name, pairs in BESIDE_TIES.items() for pair in pairs]


@on_each_machine
@pytest.mark.parametrize(("name", "number", "nearest"), CASES)
def test_a_cast_of_f64_is_rounded_once(run, name, number, nearest):
    got = compute(run, f"x.to(tl.{name})", dt.parse_dtype(name), x=np.array([number, -number]))
    assert got.astype("f8").tolist() == [nearest, -nearest]


@on_each_machine
@pytest.mark.parametrize("text", ["tl.full((1,), {0}, tl.{1})", "tl.cast({0}, tl.{1}) + tl.zeros((1,), tl.{1})"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("name", "number", "nearest"), CASES)
def test_a_constant_is_rounded_once(run, name, number, nearest, sign, text):
    got = compute(run, text.format(repr(sign * number), name), dt.parse_dtype(name), x=np.zeros(1))
    assert got.astype("f8").tolist() == [sign * nearest]


@on_each_machine
@pytest.mark.parametrize("name", BESIDE_TIES)
def test_a_number_beside_a_tile_is_rounded_once_to_the_tiles_dtype(run, name):
    number, nearest = BESIDE_TIES[name][0]
    got = compute(run, f"x.to(tl.{name}) * 0 + {number!r}", dt.parse_dtype(name), x=np.ones(1))
    assert got.astype("f8").tolist() == [nearest]


@on_each_machine
@pytest.mark.parametrize("name", ["float8e4nv", "float8e5"])
@pytest.mark.parametrize("number", ["1e6", "1e300", "float('inf')"])
def test_a_constant_of_an_8_bit_float_saturates_as_a_cast_does(run, name, number):
    dtype = dt.parse_dtype(name)
    for sign, want in (("", LARGEST[name]), ("-", -LARGEST[name])):
        got = compute(run, f"tl.full((1,), {sign}{number}, tl.{name})", dtype, x=np.zeros(1))
        assert got.astype("f8").tolist() == [want]
    assert np.isnan(compute(run, f"tl.full((1,), float('nan'), tl.{name})", dtype, x=np.zeros(1)).astype("f8"))


KERNELS = """\
import gristmill as gm
import gristmill.language as tl

D = gm.dtype_var("D", [gm.f8e4m3, gm.f8e5m2, gm.bf16])


@gm.kernel(grid=1)
def k(x: gm.ptr[D], n: gm.i32):
    i = tl.arange(0, 128)
    v = tl.load(x + i, mask=i < n, other=0.3)
    tl.store(x + i, tl.where(v > 1.3, tl.full((128,), 1e6, D), v + 0.1), mask=i < n)
"""
BUILD = """\
import sys

sys.modules["ml_dtypes"] = None  # importing it fails
from gristmill.compiler.compile import lower_variant
from gristmill.compiler.targets import TARGETS
from gristmill.declare import load_kernels
from gristmill.specialisation import VARIANTS

(kernel,) = load_kernels(sys.argv[1])
for specialisation in kernel.specialisations():
    for target in ("sm_80", "sm_90a", *(name for name, t in TARGETS.items() if t.kind == "host")):
        for variant in VARIANTS:
            lowered = lower_variant(kernel, specialisation, variant, TARGETS[target], lambda *_: None)
            print(specialisation.id, target, lowered.symbol)
"""


def test_small_floats_build_without_ml_dtypes(tmp_path):
    """A build installs only what pyproject.toml requires for it."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    source = Path(gristmill.__file__).parent.parent
    command = [sys.executable, "-c", BUILD, str(tmp_path / "kernels.py")]
    done = subprocess.run(command, env={"PYTHONPATH": str(source)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len({line.split()[0] for line in lines}) == 3
