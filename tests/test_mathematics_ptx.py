"""PTX of mathematical functions and random numbers: ptxas accepts it, it calls nothing and keeps to registers."""

from __future__ import annotations

import re
from functools import cache

import pytest

from gristmill.compiler.targets import TARGETS
from gristmill.language.extra import libdevice
from gristmill.specialisation import VARIANTS
from machines import kernels_of
from ptx import Entry, assemble, needs_ptxas

pytest.importorskip("llvmlite")

INTEGERS = {"brev": 1, "byte_perm": 3, "clz": 1, "ffs": 1, "mulhi": 2, "popc": 1, "umulhi": 2}
BITS = {
    "double_as_longlong": "f64", "float_as_int": "f32", "float_as_uint": "f32", "int_as_float": "i32",
    "longlong_as_double": "i64", "uint_as_float": "u32",
}  # fmt: skip
TWO = ("atan2", "copysign", "div_rn", "fast_dividef", "fast_powf", "fmax", "fmin", "fmod", "hypot", "nextafter", "pow")
RANDOM = ("rand", "randint", "randn")
TARGETS_TRIED = ("sm_80", "sm_90a")
LOCAL_BYTES = 0


def plan() -> dict[tuple[str, str], int]:
    """Each function and dtype with the number of its operands."""
    found = {(name, dtype): count for name, count in INTEGERS.items() for dtype in ("i32", "u64")}
    del found["byte_perm", "u64"]
    found |= dict.fromkeys(BITS.items(), 1)
    for name in libdevice.__all__:
        if name not in INTEGERS and name not in BITS:
            dtypes = ("f32",) if name.startswith("fast_") else ("f16", "f32", "f64")
            dtypes = dtypes[-2:] if name == "nextafter" else dtypes
            found |= {(name, d): 3 if name == "fma" else 1 + (name in TWO) for d in dtypes}
    return found


PLAN = plan()


def source() -> str:
    parts = []
    for (name, dtype), count in PLAN.items():
        pointers = ", ".join(f"x{i}: gm.ptr[gm.{dtype}]" for i in range(count))
        loads = ", ".join(f"tl.load(x{i} + i)" for i in range(count))
        parts.append(
            f"@gm.kernel(grid=1)\ndef {name}_of_{dtype}({pointers}, out: gm.ptr[gm.f64]):\n    i = tl.arange(0, 128)\n"
            f"    tl.store(out + i, tl.extra.libdevice.{name}({loads}))\n"
        )
    parts += [
        f"@gm.kernel(grid=1)\ndef {name}_of_i64(x: gm.ptr[gm.i64], seed: gm.i64, out: gm.ptr[gm.f64]):\n"
        f"    i = tl.arange(0, 128)\n    tl.store(out + i, tl.{name}(seed, tl.load(x + i)))\n"
        for name in RANDOM
    ]
    return "\n\n".join(parts)


@cache
def entries(target: str) -> dict[str, Entry]:
    from gristmill.compiler.compile import generate, lower_variant

    found = {}
    for name, kernel in kernels_of(source()).items():
        (specialisation,) = kernel.specialisations()
        lowered = lower_variant(kernel, specialisation, VARIANTS[1], TARGETS[target], _ignore)
        text = generate(lowered, TARGETS[target], _ignore).code.decode()
        found[name] = Entry(specialisation, VARIANTS[1], lowered, text)
    return found


def _ignore(stage: str, thing: object) -> None:
    return None


@needs_ptxas
@pytest.mark.parametrize("target", TARGETS_TRIED)
def test_every_function_assembles_and_stays_in_registers(target):
    made = entries(target)
    assert len(made) == len(PLAN) + len(RANDOM)
    used = assemble(list(made.values()), target)
    assert {name for name, e in made.items() if used[e.symbol].local_bytes > LOCAL_BYTES} == set()
    assert {name for name, e in made.items() if used[e.symbol].registers > 64} == set()


@pytest.mark.parametrize("target", TARGETS_TRIED)
def test_functions_call_nothing_from_outside(target):
    assert {name for name, e in entries(target).items() if ".extern .func" in e.text} == set()


INSTRUCTIONS = {
    "umulhi_of_i32": r"mul\.hi\.u32", "mulhi_of_i32": r"mul\.hi\.s32", "mulhi_of_u64": r"mul\.hi\.u64",
    "popc_of_i32": r"popc\.b32", "clz_of_u64": r"clz\.b64", "brev_of_i32": r"brev\.b32", "byte_perm_of_i32": r"prmt",
    "fast_sinf_of_f32": r"sin\.approx", "fast_cosf_of_f32": r"cos\.approx", "fast_expf_of_f32": r"ex2\.approx",
    "fast_logf_of_f32": r"lg2\.approx", "fast_dividef_of_f32": r"div\.approx", "rint_of_f32": r"cvt\.rni",
}  # fmt: skip


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_hardware_instruction_is_used(name):
    assert re.search(INSTRUCTIONS[name], entries("sm_80")[name].text)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_large_angles_are_reduced_only_where_there_are_some(dtype):
    """The multiplication by 2/pi is behind a branch."""
    text = entries("sm_80")[f"sin_of_{dtype}"].text
    branch, product = (re.search(word, text) for word in (r"@%p\d+ bra", r"mul\.hi\.u(32|64)"))
    assert branch
    assert product
    assert branch.start() < product.start()
