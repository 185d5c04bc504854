"""Is what is timed right: parts against the kernel's reference, every element written, and peers that do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchlib.buffers import ready
from benchlib.work import Arrays, Work

PART_ELEMENTS = 1 << 17
NUMPY_LACKS = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}  # what ml_dtypes calls them
PEER_DISTANCE = {"f16": 4e-3, "bf16": 2e-2, "f32": 2e-4, "f64": 1e-8}
"""The largest ||peer - ours|| / ||ours||: peers round where they like, but must compute the same function."""


def largest_error(work: Work, arrays: Arrays, call: Callable[[], Any]) -> float:
    """Run once into poisoned outputs; return the largest error in units of the tolerance, inf for a gap.

    The reference is computed for the first, the middle and the last elements or rows.
    """
    for name in work.spec.outputs:
        ready(work, name, arrays[name])
    call()
    if any(has_gaps(arrays[name]) for name in work.spec.outputs):
        return float("inf")
    inputs = [name for name in arrays if name not in work.spec.outputs]
    parts = _parts(work) if any(name not in work.spec.whole for name in inputs) else [slice(None)]
    return max(_part_error(work, arrays, part) for part in parts)


def has_gaps(array: Any) -> bool:
    """Return whether poison is left in an output of floats; inputs are finite, so that no result is NaN."""
    if hasattr(array, "isnan"):
        return array.is_floating_point() and any(
            bool(piece.isnan().any()) for piece in array.reshape(-1).split(1 << 27)
        )
    import numpy as np

    return array.dtype.kind not in "iub" and bool(np.isnan(array.astype(np.float32)).any())


def distance(ours: Any, theirs: Any) -> float:
    """Return ||theirs - ours|| / ||ours|| of two tensors or arrays of one shape."""
    if hasattr(ours, "numpy"):
        import torch

        norm = torch.linalg.vector_norm
        pieces = list(zip(ours.reshape(-1).split(1 << 26), theirs.reshape(-1).split(1 << 26), strict=True))
        apart = sum(float(norm(b.double() - a.double())) ** 2 for a, b in pieces)
        return float((apart / max(sum(float(norm(a.double())) ** 2 for a, _ in pieces), 1e-300)) ** 0.5)
    import numpy as np

    a, b = ours.astype(np.float64), np.asarray(theirs).astype(np.float64)
    return float(np.linalg.norm(b - a) / max(np.linalg.norm(a), 1e-300))


def _parts(work: Work) -> list[slice]:
    shape = max(work.case.shapes.values(), key=len)
    rows = shape[0]
    count = max(1, min(rows, PART_ELEMENTS * shape[0] // max(1, _size(shape))))
    starts = dict.fromkeys([0, (rows - count) // 2, rows - count])
    return [slice(start, start + count) for start in starts]


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _part_error(work: Work, arrays: Arrays, part: slice) -> float:
    rank = max(len(shape) for shape in work.case.shapes.values())
    is_cut = {
        name: name in work.spec.outputs or (array.ndim == rank and name not in work.spec.whole)
        for name, array in arrays.items()
    }
    cut = {name: to_numpy(a[part] if is_cut[name] else a, work.dtype_of(name)) for name, a in arrays.items()}
    arguments = cut | work.case.scalars
    return max(work.spec.errors(arguments, work.spec.expected(arguments)).values())


def to_numpy(array: Any, dtype: str) -> Any:
    """Return a tensor as a numpy array, of ml_dtypes' dtypes too."""
    if not hasattr(array, "cpu"):
        return array
    array = array.cpu().contiguous()
    if dtype not in NUMPY_LACKS:
        return array.numpy()
    import ml_dtypes
    import torch

    words = torch.int16 if array.element_size() == 2 else torch.int8
    return array.view(words).numpy().view(getattr(ml_dtypes, NUMPY_LACKS[dtype]))
