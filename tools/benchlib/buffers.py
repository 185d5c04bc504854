"""Arrays for a row of a benchmark: filled as its case says, in several sets so that no call finds the last one's data.

On CUDA they are torch tensors filled on the device, on the CPU numpy arrays.
"""

from __future__ import annotations

import math
from typing import Any

from benchlib.work import Arrays, Work
from gristmill.dtypes import dt_numpy

CACHES = 4
"""How many times the last cache all sets together exceed it."""


def set_count(work: Work, cache_bytes: int) -> int:
    """Return how many sets of buffers to take turns with; arithmetic may find its data in the cache."""
    if work.is_arithmetic:
        return 2
    return max(2, math.ceil(CACHES * cache_bytes / max(work.bytes, 1)))


def scale_of(work: Work) -> float:
    """Return the standard deviation of the inputs."""
    return 1.0 if work.case.values == "normal" else 4.0


def cpu_arrays(work: Work, seed: int) -> Arrays:
    """Return numpy arrays; outputs hold a number that no result is, or 0 where the kernel adds."""
    import numpy as np

    random = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for name in work.case.shapes:
        shape = work.case.stored(name)
        dtype = dt_numpy(next(d for d in _dtypes(work) if d.name == work.dtype_of(name)))
        if name in work.spec.outputs:
            arrays[name] = np.full(shape, 0 if name in work.spec.added else 77, dtype)
            continue
        values = random.standard_normal(shape, np.float32) * np.float32(scale_of(work))
        low, high = work.case.ranges.get(name, (-math.inf, math.inf))
        arrays[name] = np.clip(values, low, high).astype(dtype)
    return turned(work, arrays)


def turned(work: Work, arrays: dict[str, Any]) -> Arrays:
    """Return the arrays, those transposed that the case has as transposes."""
    return {name: array.T if name in work.case.turned else array for name, array in arrays.items()}


def _dtypes(work: Work) -> list[Any]:
    import gristmill.dtypes

    return list(gristmill.dtypes.ALL)


def torch_dtype(name: str) -> Any:
    """Return torch's dtype for one of ours."""
    import torch

    of_bytes = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
    if name in of_bytes:
        return of_bytes[name]
    words = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "bool": "bool"}
    kind = name.rstrip("0123456789")
    return getattr(torch, words[kind] + name[len(kind) :])


def torch_arrays(work: Work, seed: int, device: str = "cuda") -> Arrays:
    """Return tensors on a device; outputs are NaN, or 77 where there is none, or 0 where the kernel adds."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    arrays: dict[str, Any] = {}
    for name in work.case.shapes:
        shape = work.case.stored(name)
        dtype = torch_dtype(work.dtype_of(name))
        if name in work.spec.outputs:
            arrays[name] = ready(work, name, torch.empty(shape, dtype=dtype, device=device))
        elif dtype.is_floating_point:
            drawn = torch.float32 if dtype.itemsize == 1 else dtype
            tensor = torch.randn(shape, dtype=drawn, device=device, generator=generator)
            tensor.mul_(scale_of(work))
            tensor = tensor.clamp_(*work.case.ranges[name]) if name in work.case.ranges else tensor
            arrays[name] = tensor.to(dtype)
        else:
            drawn_numbers = torch.randint(-100, 100, shape, device=device, generator=generator)
            limits = [torch.as_tensor(limit, device=device) for limit in work.case.ranges.get(name, ())]
            arrays[name] = (drawn_numbers.clamp(*limits) if limits else drawn_numbers).to(dtype)
    return turned(work, arrays)


def ready(work: Work, name: str, tensor: Any) -> Any:
    """Make an output ready for a call, and return it: poisoned, or zeros where the kernel adds to what is there."""
    tensor = poison(tensor)
    if name in work.spec.added:
        tensor[...] = 0
    return tensor


def poison(tensor: Any) -> Any:
    """Fill a tensor or array with what no result is, and return it."""
    is_float = tensor.is_floating_point() if hasattr(tensor, "is_floating_point") else tensor.dtype.kind not in "iub"
    value = math.nan if is_float else 77
    if hasattr(tensor, "fill_"):
        return tensor.fill_(value)
    tensor[...] = value
    return tensor
