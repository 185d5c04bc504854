"""The two devices that can be measured: one thread of the CPU, and the current CUDA device."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from typing import Any

from benchlib import buffers, timing
from benchlib.contest import COPY, Arena, Peers
from benchlib.work import Contestant, Work

CEILING_BYTES = 1 << 30
CPU_CACHE_BYTES = 16 << 20


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def cpu_arena() -> Arena:
    """Return the arena of this process's CPU threads; peers use as many as GRISTMILL_NUM_THREADS says."""
    from benchlib.numpy_peers import numpy_peers

    peers: list[Peers] = [numpy_peers]
    if is_installed("torch"):
        peers.append(_torch_on_cpu())
    return Arena("cpu", timing.cpu_batch, CPU_CACHE_BYTES, buffers.cpu_arrays, peers, _cpu_copy)


def _torch_on_cpu() -> Peers:
    import torch

    from benchlib.torch_peers import torch_peers

    torch.set_num_threads(int(os.environ.get("GRISTMILL_NUM_THREADS", "1")))

    def peers(work: Work, arrays: Any) -> Any:
        return torch_peers(work, {name: torch.from_numpy(a) for name, a in arrays.items() if a.dtype.kind == "f"})

    return lambda work, arrays: peers(work, arrays) if "bf16" not in work.dtype else {}


def _cpu_copy(work: Work) -> Contestant:
    import numpy as np

    source = np.ones(work.bytes // 2, np.uint8)
    target = np.zeros_like(source)
    return Contestant(COPY, [lambda: np.copyto(target, source)], 2 * source.size)


def cuda_arena() -> Arena:
    """Return the arena of the current CUDA device; needs torch."""
    import torch

    from benchlib.torch_peers import torch_peers

    peers: list[Peers] = [torch_peers]
    try:
        from benchlib.triton_peers import triton_peers

        peers.append(triton_peers)
    except ImportError as error:
        print(f"no Triton here: {error}", flush=True)
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    copy = fastest_copy()
    return Arena("cuda", timing.cuda_batch, cache, buffers.torch_arrays, peers, lambda work: copy, is_sustained=True)


def fastest_copy() -> Contestant:
    """Return the fastest way here to copy a gigabyte within the device's memory: the ceiling for everything else."""
    import torch

    source = torch.randn(CEILING_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    size = 2 * CEILING_BYTES
    copies = {"torch": lambda: target.copy_(source), "driver": driver_copy(target, source)}
    times = timing.shuffled_rounds(timing.cuda_batch, {name: [call] for name, call in copies.items()}, timing.Effort())
    medians = {name: timing.spread(values)[0] for name, values in times.items()}
    best = min(medians, key=lambda name: medians[name])
    for name, median in medians.items():
        print(f"copy of 1 GB by {name}: {size / median / 1e3:.0f} GB/s read and written", flush=True)
    return Contestant(COPY, [copies[best]], size)


def driver_copy(target: Any, source: Any) -> Any:
    """Return a call of cuMemcpyDtoDAsync between two tensors, on the current stream."""
    import torch

    copy = ctypes.CDLL("libcuda.so.1").cuMemcpyDtoDAsync_v2
    copy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    size = target.numel() * target.element_size()

    def call() -> None:
        code = copy(target.data_ptr(), source.data_ptr(), size, torch.cuda.current_stream().cuda_stream)
        if code:
            raise RuntimeError(f"cuMemcpyDtoDAsync: error {code}")

    return call
