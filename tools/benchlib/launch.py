"""What a call costs on the host: beside a C loop around cuLaunchKernel with as many parameters, in one process.

Each sample is 400 launches after a synchronise, so that neither the queue's length nor the device's speed counts.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchlib import machine, report, timing
from benchlib.work import Result

LAUNCHES = 400
ELEMENTS = 1024
THREADS = 128
BARS = {"vector_add": 1.25, "adamw_step": 1.4}


class Driver:
    """The CUDA driver and the C loop, through ctypes."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.loop = ctypes.CDLL(str(compile_loop())).launch_loop
        self.loop.restype = ctypes.c_double
        self.loop.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int,
        ]
        self.launch = ctypes.cast(self.cuda.cuLaunchKernel, ctypes.c_void_p)

    def empty_kernel(self, types: Sequence[str]) -> ctypes.c_void_p:
        """Return a kernel that does nothing with parameters of these PTX types."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self.cuda.cuModuleLoadData(ctypes.byref(module), empty_ptx(types).encode()))
        self._check(self.cuda.cuModuleGetFunction(ctypes.byref(function), module, b"empty"))
        return function

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"the CUDA driver: error {code}")


def compile_loop() -> Path:
    """Compile the loop into a temporary folder."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise SystemExit("tools/bench launch needs a C compiler (cc)")
    library = Path(tempfile.mkdtemp(prefix="gristmill-bench-")) / "launch_loop.so"
    source = Path(__file__).with_name("launch_loop.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def empty_ptx(types: Sequence[str]) -> str:
    """Return the PTX of a kernel `empty` with parameters of these types."""
    parameters = ", ".join(f".param .{t} p{i}" for i, t in enumerate(types))
    return f".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty({parameters})\n{{ ret; }}\n"


def loop_sample(driver: Driver, values: Sequence[Any], types: Sequence[str]) -> Callable[[], float]:
    """Return a function that times the C loop over launches with these parameters, in microseconds each."""
    function = driver.empty_kernel(types)
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    stream = current_stream()

    def sample() -> float:
        nanoseconds = driver.loop(driver.launch, function, THREADS, stream, pointers, LAUNCHES)
        if nanoseconds < 0:
            raise RuntimeError(f"cuLaunchKernel: error {-nanoseconds:.0f}; {len(values)} parameters")
        return nanoseconds / 1000

    return sample


def call_sample(call: Callable[[], Any]) -> Callable[[], float]:
    """Return a function that times a Python call, in microseconds each."""

    def sample() -> float:
        begun = time.perf_counter()
        for _ in range(LAUNCHES):
            call()
        return 1e6 * (time.perf_counter() - begun) / LAUNCHES

    return sample


def current_stream() -> int:
    import torch

    return torch.cuda.current_stream().cuda_stream


def three_tensors(driver: Driver) -> dict[str, Callable[[], float]]:
    """Return samples for a kernel of three tensors: the bare loop first."""
    import torch

    from gristmill.kernels import vector_add

    a, b = torch.randn(2, ELEMENTS, device="cuda")
    out = torch.empty_like(a)
    values = [*(ctypes.c_uint64(t.data_ptr()) for t in (a, b, out)), ctypes.c_uint32(ELEMENTS)]
    samples = {
        "C loop": loop_sample(driver, values, ["u64"] * 3 + ["u32"]),
        "gristmill": call_sample(lambda: vector_add(a, b, out)),
        "torch": call_sample(lambda: torch.add(a, b, out=out)),
    }
    try:
        from benchlib.triton_peers import add_kernel

        samples["triton"] = call_sample(lambda: add_kernel[(1,)](a, b, out, ELEMENTS, BLOCK=ELEMENTS))
    except ImportError:
        pass
    return samples


SCALARS = (1e-3, 0.9, 0.999, 1e-8, 0.01, 0.1, 0.001, 1.0, 0.999)


def nineteen_arguments(driver: Driver) -> dict[str, Callable[[], float]]:
    """Return samples for a kernel of nine tensors and ten scalars: the bare loop first."""
    import torch

    import gristmill.kernels

    step = getattr(gristmill.kernels, "adamw_step", None)
    if step is None:
        print("19 arguments: this wheel has no adamw_step")
        return {}
    tensors = [torch.rand(ELEMENTS, device="cuda") for _ in range(9)]
    arguments = (*tensors, *SCALARS)
    values = [
        *(ctypes.c_uint64(t.data_ptr()) for t in tensors),
        *map(ctypes.c_double, SCALARS),
        ctypes.c_uint32(ELEMENTS),
    ]
    return {
        "C loop": loop_sample(driver, values, ["u64"] * 9 + ["f64"] * 9 + ["u32"]),
        "gristmill": call_sample(lambda: step(*arguments)),
    }


def measure(samples: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return microseconds for each, sampled in turns in a random order."""
    import torch

    for sample in samples.values():
        sample()
    times: dict[str, list[float]] = {name: [] for name in samples}
    order = list(samples)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            torch.cuda.synchronize()
            times[name].append(samples[name]())
    torch.cuda.synchronize()
    return times


def main(options: argparse.Namespace) -> int:
    """Measure and print the cost of calls."""
    facts = machine.describe("cuda")
    print(machine.text(facts))
    driver = Driver()
    results = []
    for kernel, samples in (("vector_add", three_tensors(driver)), ("adamw_step", nineteen_arguments(driver))):
        if samples:
            times = measure(samples, 15 if options.quick else 61)
            results += [_result(kernel, name, values) for name, values in times.items()]
            print(_text(kernel, times))
    report.save(options.json, report.as_json(facts, results))
    return 0


def _result(kernel: str, name: str, times: Sequence[float]) -> Result:
    return Result(kernel, "f32", f"launch, {ELEMENTS} elements", "cuda", name, 0, *timing.spread(times))


def _text(kernel: str, times: dict[str, list[float]]) -> str:
    bare = timing.spread(times["C loop"])[0]
    lines = [f"{kernel}, {ELEMENTS} elements, us a call [10th, 90th percentile], and times the C loop"]
    for name, values in times.items():
        median, low, high = timing.spread(values)
        lines.append(f"    {name:<10} {median:6.2f} [{low:.2f}, {high:.2f}]  {median / bare:.3f}")
    ratio = timing.spread(times["gristmill"])[0] / bare
    bar = BARS[kernel]
    return "\n".join(
        [*lines, f"{'ok  ' if ratio <= bar else 'HIGH'} {kernel}: {ratio:.3f} times the C loop (bar {bar})"]
    )
