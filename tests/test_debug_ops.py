"""Printing, checks and barriers: what they say, on which machine, and in which builds."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from assembled import assemble_text, ptx_of
from gristmill.build.cache import make_key
from gristmill.compiler.checks import asks_for_checks
from gristmill.compiler.interpreter import InterpreterError, run_kernel
from gristmill.errors import KernelError
from host import run_on_host
from machines import bfloat16, compute, kernel_of, needs_host, on_each_in_order, on_each_machine
from ptx import needs_ptxas

# ---- printing ------------------------------------------------------------------------------------------------------


def printing(calls: str, *, x: str = "f32", grid: str = "1", size: int = 2) -> str:
    return f"""
    @gm.kernel(grid={grid})
    def k(x: gm.ptr[gm.{x}], n: gm.i32):
        i = tl.arange(0, {size})
        v = tl.load(x + i)
        {calls}
    """


def lines_of(run, capfd, source: str, x) -> list[str]:
    run(kernel_of(source), None, np.asarray(x), 5)
    return capfd.readouterr().out.splitlines()


NUMBERS = {
    "f32": ([1.5, np.nan], ["1.5", "nan"]),
    "f64": ([0.1, -np.inf], ["0.10000000000000001", "-inf"]),
    "f16": ([-0.0, 65504], ["-0", "65504"]),
    "bf16": ([3.140625, 1e-38], ["3.1406", "1.001e-38"]),
    "i8": ([-128, 127], ["-128", "127"]),
    "u8": ([0, 255], ["0", "255"]),
    "i16": ([-32768, 5], ["-32768", "5"]),
    "u32": ([4294967295, 0], ["4294967295", "0"]),
    "i64": ([-(2**63), 2**63 - 1], ["-9223372036854775808", "9223372036854775807"]),
    "u64": ([2**64 - 1, 1], ["18446744073709551615", "1"]),
    "bool_": ([False, True], ["0", "1"]),
}
HEXADECIMAL = {
    "f32": ([1.5, -0.0], ["0x3fc00000", "0x80000000"]),
    "bf16": ([1, -2], ["0x3f80", "0xc000"]),
    "i8": ([-1, 16], ["0xff", "0x10"]),
    "i64": ([-1, 5], ["0x" + "f" * 16, "0x" + "0" * 15 + "5"]),
}
NUMPY = {"f16": "f2", "bf16": bfloat16, "f32": "f4", "f64": "f8", "bool_": "?"}


def numbers(dtype: str, values: list) -> np.ndarray:
    return np.array(values, NUMPY.get(dtype) or f"{dtype[0]}{int(dtype[1:]) // 8}")


@on_each_machine
@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_dtype_prints(run, capfd, dtype):
    values, want = NUMBERS[dtype]
    got = lines_of(run, capfd, printing('tl.device_print("v", v)', x=dtype), numbers(dtype, values))
    assert got == [f"pid (0, 0, 0) idx ({i}) v: {text}" for i, text in enumerate(want)]


@on_each_machine
@pytest.mark.parametrize("dtype", HEXADECIMAL)
def test_hexadecimal_digits_are_the_bits(run, capfd, dtype):
    values, want = HEXADECIMAL[dtype]
    got = lines_of(run, capfd, printing('tl.device_print("v", v, hex=True)', x=dtype), numbers(dtype, values))
    assert got == [f"pid (0, 0, 0) idx ({i}) v: {text}" for i, text in enumerate(want)]


@on_each_in_order
def test_programs_coordinates_and_operands_are_named(run, capfd):
    calls = 'tl.device_print("100% of", n, v[:, None] + tl.arange(0, 2)[None, :])\n        tl.device_print("done")'
    got = lines_of(run, capfd, printing(calls, grid="(2, 1, 1)"), np.array([10, 20], np.float32))
    want = []
    for pid in ("pid (0, 0, 0)", "pid (1, 0, 0)"):
        want.append(f"{pid} 100% of (operand 0): 5")
        want += [f"{pid} idx ({i}, {j}) 100% of (operand 1): {10 * (i + 1) + j}" for i in (0, 1) for j in (0, 1)]
        want.append(f"{pid} done")
    assert got == want


@on_each_machine
def test_printing_happens_in_branches_and_between_stores(run, capfd):
    calls = """if n > 4:
            tl.store(x + i, 7.0)
            tl.debug_barrier()
            tl.device_print("now", tl.load(x + i))
        else:
            tl.device_print("never")"""
    got = lines_of(run, capfd, printing(calls), np.zeros(2, np.float32))
    assert got == [f"pid (0, 0, 0) idx ({i}) now: 7" for i in range(2)]


@on_each_machine
def test_pythons_print_is_the_devices(run, capfd):
    got = lines_of(run, capfd, printing('print("n", n, hex=True)'), np.zeros(2, np.float32))
    assert got == ["pid (0, 0, 0) n: 0x00000005"]


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_ptx_prints_by_the_drivers_function_and_assembles(target):
    calls = 'tl.device_print("v%", v, i)\n        tl.device_print("n", n > 3, hex=True)\n        tl.device_print("end")'
    text = ptx_of(printing(calls, size=512), target)
    assert len(re.findall(r"\bvprintf,", text)) == 4 + 4 + 1 + 1
    format = b"pid (%lld, %lld, %lld) idx (%lld) v%% (operand 0): %.9g\n"
    assert ", ".join(map(str, format)) in text
    small = ptx_of(printing('tl.device_print("v", v)'), target, name="small")
    assert re.search(r"@%p\d+ bra", small), "one thread of each element prints"
    assemble_text([text, small], target)


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_every_dtype_prints_in_ptx(target):
    calls = (
        'tl.device_print("v", v)\n        tl.device_print("bits", v, hex=True)\n        tl.device_print("at", x + i)'
    )
    texts = [ptx_of(printing(calls, x=dtype), target, name=f"prints_{dtype}") for dtype in NUMBERS]
    assert [len(re.findall(r"\bvprintf,", text)) for text in texts] == [3] * len(texts)
    assemble_text(texts, target)


REFUSED = {
    "tl.device_print(v)": "prefix is a text, got f32\\[2\\]",
    "tl.device_print('a\\nb', v)": "characters that do not print",
    "tl.device_print('v', v, hexadecimal=True)": "unexpected keyword|got an unexpected",
    "tl.device_print('v', 'text')": "must be a tile or a number",
    "tl.device_print('v', v.to(tl.float8e5))": "cannot print f8e5m2|f8",
    "tl.device_assert(x)": "the condition is a pointer",
    "tl.device_assert(v > 0, 5)": "msg is a text, got `5`",
    "tl.device_assert(v > 0, 'positive', mask=i)": "mask must be bools",
    "tl.device_assert(v > 0, 'positive', mask=tl.arange(0, 4) > 1)": "do not broadcast",
    "tl.debug_barrier(1)": "too many positional",
    "tl.static_assert(v > 0)": "known at build time",
}


@pytest.mark.parametrize("call", REFUSED)
def test_misuse_is_refused(call):
    with pytest.raises(KernelError, match=REFUSED[call]) as caught:
        run_kernel(kernel_of(printing(call)), None, np.ones(2, np.float32), 5)
    assert caught.value.fix


def test_static_print_prints_while_the_kernel_is_compiled(capfd):
    source = printing('tl.static_print("tile", v, i.dtype, 3, sep=" | ", end="!\\\\n")').replace("\\\\n", "\\n")
    lines_of(run_kernel, capfd, source.replace("0, 2", "0, 4"), np.ones(4, np.float32))
    kernel = kernel_of(source)
    assert capfd.readouterr().out == ""
    run_kernel(kernel, None, np.ones(2, np.float32), 5)
    assert capfd.readouterr().out == "tile | f32[2] | i32 | 3!\n"


# ---- checks --------------------------------------------------------------------------------------------------------

CHECKED = """
@gm.kernel(grid=3)
def k(x: gm.ptr[gm.f32], n: gm.i32):
    i = tl.program_id(0) * 4 + tl.arange(0, 4)
    v = tl.load(x + i)
    tl.device_assert(v < 10, "100% too large", mask=i < n)
    tl.store(x + i, v + 1)
"""


def test_interpreter_checks_always_and_names_the_place():
    x = np.arange(12, dtype=np.float32)
    run_kernel(kernel_of(CHECKED), None, x, 10)
    assert x.tolist() == list(range(1, 13))
    with pytest.raises(
        InterpreterError, match=r"device_assert of program \(2, 0, 0\) failed at \[1\]: 100% too large"
    ) as e:
        run_kernel(kernel_of(CHECKED), None, np.arange(1, 13, dtype=np.float32), 10)
    assert "tl.device_assert" in e.value.position.text
    with pytest.raises(InterpreterError, match=r"program \(0, 0, 0\) failed\n"):
        run_kernel(kernel_of(printing("tl.device_assert(n - 5)")), None, np.ones(2, np.float32), 5)


@needs_host
def test_a_build_that_asks_for_no_checks_has_none():
    x = np.full(12, 50, np.float32)
    run_on_host(kernel_of(CHECKED), None, x, 12)
    assert x.tolist() == [51] * 12
    text = ptx_of(CHECKED, "sm_80")
    assert "__assertfail" not in text
    assert "setp.lt.f32" not in text


PROGRAM = """
import sys
import numpy as np
from host import run_on_host
from machines import kernel_of
x = np.arange(int(sys.argv[1]), int(sys.argv[1]) + 12, dtype=np.float32)
run_on_host(kernel_of({source!r}), None, x, 10)
print(x.sum())
"""


@needs_host
def test_a_failing_check_on_the_cpu_ends_the_process_with_place_and_message(monkeypatch):
    monkeypatch.setenv("GRISTMILL_DEBUG", "1")
    monkeypatch.setenv("PYTHONPATH", ":".join(p for p in [str(Path(__file__).parent), *sys.path] if p))
    program = PROGRAM.format(source=CHECKED)
    right, wrong = (
        subprocess.run([sys.executable, "-c", program, n], capture_output=True, text=True, check=False) for n in "01"
    )
    assert right.returncode == 0, right.stderr
    assert right.stdout == "78.0\n"
    assert wrong.returncode == -signal.SIGABRT
    line = next(n for n, text in enumerate(textwrap.dedent(CHECKED).strip().splitlines(), 5) if "device_assert" in text)
    assert re.search(rf"\.py:{line}: device_assert of program \(2, 0, 0\) failed: 100% too large\n", wrong.stderr)


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_checks_in_ptx_call_the_drivers_function_and_assemble(monkeypatch, target):
    monkeypatch.setenv("GRISTMILL_DEBUG", "1")
    text = ptx_of(CHECKED, target, name="checked")
    assert len(re.findall(r"\b__assertfail,", text)) == 1
    assert ", ".join(map(str, b"100% too large")) in text
    assemble_text([text], target)


def test_variable_asks_for_checks_and_parts_the_cache():
    assert [asks_for_checks({"GRISTMILL_DEBUG": v}) for v in ("", "0", "1", "yes")] == [False, False, True, True]
    assert not asks_for_checks({})
    assert make_key("code", "c", "d", "checked") != make_key("code", "c", "d", "")


# ---- barriers ------------------------------------------------------------------------------------------------------


@on_each_machine
def test_barrier_changes_no_value(run):
    body = "tl.store(x_ + tl.arange(0, 128), x * 2)\ntl.debug_barrier()\ny = tl.load(x_ + 127 - tl.arange(0, 128))"
    got = compute(run, "y", body=body, x=np.arange(128, dtype=np.float32))
    assert got.tolist() == [2.0 * (127 - i) for i in range(128)]


def test_barrier_stays_between_accesses_in_ptx():
    source = printing(
        "tl.store(x + i, v * 2)\n        tl.debug_barrier()\n        tl.store(x + 128 + i, tl.load(x + 127 - i))",
        size=128,
    )
    order = re.findall(r"(ld\.global|st\.global|bar\.sync)", ptx_of(source, "sm_90a"))
    assert order == ["ld.global", "st.global", "bar.sync", "ld.global", "st.global"]
