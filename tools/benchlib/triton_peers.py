"""The same work done by small Triton kernels, written as Triton's public tutorials teach.

They are the kernels that a user would have instead: one program a block, or a row in one block, with the tutorials'
rules for block size and warps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from benchlib.work import Arrays, Work

Call = Callable[[], Any]
ELEMENTS = 1024


@triton.jit
def add_kernel(a, b, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    tl.store(out + offsets, tl.load(a + offsets, mask=keep) + tl.load(b + offsets, mask=keep), mask=keep)


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    v = tl.load(x + offsets, mask=keep).to(tl.float32)
    z = 1.5957691216057308 * (v + 0.044715 * v * v * v)
    tl.store(y + offsets, v * tl.sigmoid(z), mask=keep)


@triton.jit
def silu_kernel(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    v = tl.load(x + offsets, mask=keep).to(tl.float32)
    tl.store(y + offsets, v * tl.sigmoid(v), mask=keep)


@triton.jit
def softmax_kernel(x, y, columns, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * columns
    offsets = tl.arange(0, BLOCK)
    keep = offsets < columns
    v = tl.load(x + start + offsets, mask=keep, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + start + offsets, e / tl.sum(e, axis=0), mask=keep)


@triton.jit
def looping_softmax_kernel(x, y, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    keep = offsets < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        start = row.to(tl.int64) * columns
        v = tl.load(x + start + offsets, mask=keep, other=-float("inf")).to(tl.float32)
        e = tl.exp(v - tl.max(v, axis=0))
        tl.store(y + start + offsets, e / tl.sum(e, axis=0), mask=keep)


@triton.jit
def layer_norm_kernel(x, weight, bias, y, columns, eps, BLOCK: tl.constexpr):
    x += tl.program_id(0).to(tl.int64) * columns
    y += tl.program_id(0).to(tl.int64) * columns
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.load(x + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        v = tl.load(x + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
        v = tl.where(offsets < columns, v - mean, 0.0)
        squares += v * v
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        keep = offsets < columns
        w = tl.load(weight + offsets, mask=keep).to(tl.float32)
        b = tl.load(bias + offsets, mask=keep).to(tl.float32)
        v = tl.load(x + offsets, mask=keep, other=0.0).to(tl.float32)
        tl.store(y + offsets, (v - mean) * scale * w + b, mask=keep)


@triton.jit
def rms_norm_kernel(x, weight, y, columns, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * columns
    offsets = tl.arange(0, BLOCK)
    keep = offsets < columns
    v = tl.load(x + start + offsets, mask=keep, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(v * v, axis=0) / columns + eps)
    tl.store(y + start + offsets, v * scale * tl.load(weight + offsets, mask=keep).to(tl.float32), mask=keep)


MATMUL_TILES = [
    (128, 256, 64, 8, 3),
    (128, 128, 64, 4, 4),
    (128, 128, 32, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 4, 4),
]
MATMUL_CONFIGS = [
    triton.Config({"M": m, "N": n, "K": k, "GROUP": 8}, num_warps=warps, num_stages=stages)
    for m, n, k, warps, stages in MATMUL_TILES
]


@triton.autotune(configs=MATMUL_CONFIGS, key=["m", "n", "depth", "b_row"])
@triton.jit
def matmul_kernel(
    a, b, out, m, n, depth, a_row, a_column, b_row, b_column, out_row,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(m, M)
    size = GROUP * tl.cdiv(n, N)
    first = tl.program_id(0) // size * GROUP
    height = min(tiles_m - first, GROUP)
    rows = (first + tl.program_id(0) % size % height) * M + tl.arange(0, M)
    columns = tl.program_id(0) % size // height * N + tl.arange(0, N)
    steps = tl.arange(0, K)
    x_places = a + (rows % m)[:, None] * a_row + steps[None, :] * a_column
    y_places = b + steps[:, None] * b_row + (columns % n)[None, :] * b_column
    sums = tl.zeros((M, N), tl.float32)
    for step in range(tl.cdiv(depth, K)):
        left = depth - step * K
        x = tl.load(x_places, mask=steps[None, :] < left, other=0.0)
        y = tl.load(y_places, mask=steps[:, None] < left, other=0.0)
        sums = tl.dot(x, y, sums)
        x_places += K * a_column
        y_places += K * b_row
    places = out + rows[:, None] * out_row + columns[None, :]
    tl.store(places, sums.to(out.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


def warps_for(block: int) -> int:
    """Return the warps for a row in one block: more where the row is long."""
    return next(warps for limit, warps in ((2048, 4), (4096, 8), (32_768, 16), (1 << 30, 32)) if block <= limit)


def _streaming(kernel: Any, *names: str) -> Callable[[Arrays], dict[str, Call]]:
    def make(a: Arrays) -> dict[str, Call]:
        tensors = [a[name] for name in names]
        n = tensors[0].numel()
        grid = (triton.cdiv(n, ELEMENTS),)
        return {"triton": lambda: kernel[grid](*tensors, n, BLOCK=ELEMENTS)}

    return make


def _softmax(a: Arrays) -> dict[str, Call]:
    x, y = a["x"], a["y"]
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)

    def one_row() -> None:
        softmax_kernel[(rows,)](x, y, columns, BLOCK=block, num_warps=warps_for(block))

    choice: list[tuple[int, int]] = []

    def looping() -> None:
        if not choice:
            choice.append(_looping_choice(x, y, block))
        programs, stages = choice[0]
        looping_softmax_kernel[(programs,)](x, y, rows, columns, BLOCK=block, STAGES=stages, num_warps=8)

    return {"triton": one_row, "triton (looping)": looping}


def _looping_choice(x: Any, y: Any, block: int) -> tuple[int, int]:
    """Return programs and stages as the tutorial chooses them: as many programs as the device holds at a time."""
    rows, columns = x.shape
    device = triton.runtime.driver.active.utils.get_device_properties(x.device.index)
    stages = 4 if device["max_shared_mem"] > 200_000 else 2
    compiled = looping_softmax_kernel.warmup(x, y, rows, columns, BLOCK=block, STAGES=stages, num_warps=8, grid=(1,))
    compiled._init_handles()
    resident = device["max_num_regs"] // (max(compiled.n_regs, 1) * 32 * 8)
    if compiled.metadata.shared:
        resident = min(resident, device["max_shared_mem"] // compiled.metadata.shared)
    return min(device["multiprocessor_count"] * max(resident, 1), rows), stages


def _layer_norm(a: Arrays) -> dict[str, Call]:
    x, weight, bias, y = (a[name] for name in ("x", "weight", "bias", "y"))
    rows, columns = x.shape
    block = min(65_536 // x.element_size(), triton.next_power_of_2(columns))
    warps = min(max(block // 256, 1), 8)
    return {
        "triton": lambda: layer_norm_kernel[(rows,)](x, weight, bias, y, columns, 1e-5, BLOCK=block, num_warps=warps)
    }


def _rms_norm(a: Arrays) -> dict[str, Call]:
    x, weight, y = (a[name] for name in ("x", "weight", "y"))
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    return {
        "triton": lambda: rms_norm_kernel[(rows,)](x, weight, y, columns, 1e-5, BLOCK=block, num_warps=warps_for(block))
    }


def _matmul(a: Arrays) -> dict[str, Call]:
    x, y, out = a["a"], a["b"], a["out"]
    if x.element_size() != 2:
        return {}
    (m, depth), (_, n) = x.shape, y.shape

    def grid(chosen: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, chosen["M"]) * triton.cdiv(n, chosen["N"]),)

    return {"triton": lambda: matmul_kernel[grid](x, y, out, m, n, depth, *x.stride(), *y.stride(), out.stride(0))}


OPERATIONS: dict[str, Callable[[Arrays], dict[str, Call]]] = {
    "vector_add": _streaming(add_kernel, "a", "b", "out"),
    "gelu_forward": _streaming(gelu_kernel, "x", "y"),
    "silu_forward": _streaming(silu_kernel, "x", "y"),
    "softmax_forward": _softmax,
    "layer_norm_forward": _layer_norm,
    "rms_norm_forward": _rms_norm,
    "matmul": _matmul,
}


def triton_peers(work: Work, arrays: Arrays) -> dict[str, Call]:
    """Return Triton's calls for the work on these tensors: none where there is no kernel for it."""
    make = OPERATIONS.get(work.kernel)
    return make(arrays) if make and "f64" not in work.dtype else {}
