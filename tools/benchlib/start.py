"""What a new process waits for: the import of the kernels, and the first result after it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from benchlib import machine, report, timing
from benchlib.work import Result

IMPORT_BAR_MS = 30.0
FIRST_RESULT_BAR_MS = 20.0

ON_CPU = """
import json, sys, time
begun = time.perf_counter()
import gristmill.kernels as kernels
imported = time.perf_counter()
import numpy as np
x = np.linspace(-3, 3, 4096, dtype=np.float32)
y = np.zeros_like(x)
ready = time.perf_counter()
kernels.gelu_forward(x, y)
done = time.perf_counter()
assert abs(y[-1] - 2.9964) < 1e-3
print(json.dumps({"import": imported - begun, "first CPU result": done - ready}))
"""

# Memory straight from the driver, seen through __cuda_array_interface__: nothing but the driver and the kernels.
ON_CUDA = """
import ctypes, json, time
begun = time.perf_counter()
import gristmill.kernels as kernels
imported = time.perf_counter()
cuda = ctypes.CDLL("libcuda.so.1")
def check(code): assert code == 0, code
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuInit(0)); check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)); check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(8192)))
check(cuda.cuMemsetD32_v2(memory, ctypes.c_uint(0x3f800000), ctypes.c_size_t(1024)))
class Array:
    def __init__(self, offset):
        data = (memory.value + offset, False)
        self.__cuda_array_interface__ = {"version": 3, "shape": (1024,), "typestr": "<f4", "data": data}
ready = time.perf_counter()
kernels.gelu_forward(Array(0), Array(4096))
out = (ctypes.c_float * 1024)()
check(cuda.cuMemcpyDtoH_v2(out, ctypes.c_uint64(memory.value + 4096), ctypes.c_size_t(4096)))
done = time.perf_counter()
assert abs(out[1023] - 0.841192) < 1e-5
names = {"context": ready - imported, "first CUDA result after the context": done - ready, "all, CUDA": done - begun}
print(json.dumps(names))
"""


def sample(script: str) -> dict[str, float]:
    """Return milliseconds by name, from a new process."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message")
    return {name: 1000 * seconds for name, seconds in json.loads(done.stdout).items()}


def repeat(script: str, count: int) -> dict[str, list[float]]:
    """Return milliseconds by name, over so many new processes after a first one that brings their files into memory."""
    rows = [sample(script) for _ in range(count + 1)][1:]
    return {name: [row[name] for row in rows] for name in rows[0]}


def main(options: argparse.Namespace) -> int:
    """Measure and print the time to start."""
    facts = machine.describe("cpu")
    print(machine.text(facts))
    count = 5 if options.quick else 15
    times = repeat(ON_CPU, count)
    if options.device != "cpu":
        try:
            times |= repeat(ON_CUDA, min(count, 5))
        except RuntimeError as error:
            print(f"no CUDA: {error}")
    for name, values in times.items():
        print(_line(name, values))
    results = [_result(name, values) for name, values in times.items()]
    report.save(options.json, report.as_json(facts, results))
    return 0


def _result(name: str, milliseconds: Sequence[float]) -> Result:
    device = "cuda" if "CUDA" in name or name == "context" else "cpu"
    return Result(
        "gelu_forward",
        "f32",
        f"start: {name}",
        device,
        "gristmill",
        0,
        *(1000 * t for t in timing.spread(milliseconds)),
    )


def _line(name: str, milliseconds: Sequence[float]) -> str:
    median, low, high = timing.spread(milliseconds)
    bar = {"import": IMPORT_BAR_MS, "first CPU result": FIRST_RESULT_BAR_MS}.get(name)
    verdict = "" if bar is None else f"  {'ok' if median <= bar else 'HIGH'} (bar {bar:.0f})"
    return f"{name:<36} {median:8.2f} ms [{low:.2f}, {high:.2f}]{verdict}"
