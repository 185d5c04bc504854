"""Attention in Triton, as its papers give the algorithm: the peer that a user of Triton would write.

Forward: a program for a block of queries passes over the keys with a running maximum and sum; with `CAUSAL` first over
the blocks that it sees whole, then over those that the diagonal cuts. Backward: one kernel for the gradients of keys
and values, and one for that of queries, each with the scores computed anew. Lengths are multiples of the blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from benchlib.attention_cases import LOG2_E, Arrays

ROWS_OF = {"q": "M", "out": "M", "dout": "M", "dq": "M", "k": "N", "v": "N", "dk": "N", "dv": "N"}
"""Which block an array is read or written by: of queries, or of keys."""


def fit_blocks(arguments: dict[str, Any]) -> None:
    """Give descriptors the blocks of the configuration that is about to run."""
    for name, rows in ROWS_OF.items():
        if isinstance(arguments.get(name), TensorDescriptor):
            arguments[name].block_shape = [arguments[rows], arguments["HEAD"]]


def quickly(call: Callable[[], Any], quantiles: Any) -> Any:
    """Time a configuration: long enough to tell which is best."""
    return triton.testing.do_bench(call, warmup=2, rep=10, quantiles=quantiles)


def tuned(*tiles: tuple[int, int, int, int], key: tuple[str, ...] = ("HEAD", "CAUSAL")) -> Any:
    """Return the decorator that chooses among (M, N, warps, stages) for each `key`; dtypes share the choice."""
    configs = [
        triton.Config({"M": m, "N": n}, num_warps=warps, num_stages=stages, pre_hook=fit_blocks)
        for m, n, warps, stages in tiles
    ]
    return triton.autotune(configs, key=list(key), do_bench=quickly)


@triton.jit
def _pass_over(
    sums, total, most, x, k, v, start, low, high, rows, factor, N: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    for column in tl.range(low, high, N):
        s = tl.dot(x, k.load([start + column, 0]).T)
        if MASKED:
            s = tl.where(rows[:, None] >= column + tl.arange(0, N)[None, :], s, -float("inf"))
        top = tl.maximum(most, tl.max(s, 1) * factor)
        p = tl.math.exp2(s * factor - top[:, None])
        fall = tl.math.exp2(most - top)
        total = total * fall + tl.sum(p, 1)
        sums = tl.dot(p.to(x.dtype), v.load([start + column, 0]), sums * fall[:, None])
        most = top
    return sums, total, most


@tuned(
    (128, 128, 8, 2),
    (128, 128, 8, 3),
    (128, 64, 8, 3),
    (128, 64, 4, 3),
    (64, 128, 4, 3),
    (64, 64, 4, 3),
    key=("length", "HEAD", "CAUSAL"),
)
@triton.jit
def forward_kernel(
    q, k, v, out, lse, factor, length, HEAD: tl.constexpr, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    start = tl.program_id(1) * length
    row = tl.program_id(0) * M
    rows = row + tl.arange(0, M)
    x = q.load([start + row, 0])
    most = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([M, HEAD], tl.float32)
    whole = row // N * N if CAUSAL else length
    sums, total, most = _pass_over(sums, total, most, x, k, v, start, 0, whole, rows, factor, N, False)
    if CAUSAL:
        sums, total, most = _pass_over(sums, total, most, x, k, v, start, whole, row + M, rows, factor, N, True)
    out.store([start + row, 0], (sums / total[:, None]).to(x.dtype))
    tl.store(lse + start + rows, most + tl.math.log2(total))


@triton.jit
def delta_kernel(out, dout, delta, HEAD: tl.constexpr, M: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    places = rows[:, None] * HEAD + tl.arange(0, HEAD)[None, :]
    products = tl.load(out + places).to(tl.float32) * tl.load(dout + places).to(tl.float32)
    tl.store(delta + rows, tl.sum(products, 1))


@triton.jit
def _keys_pass(
    dk, dv, x, y, q, dout, lse, delta, start, low, high, columns, factor, M: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    for row in tl.range(low, high, M):
        rows = row + tl.arange(0, M)
        queries = q.load([start + row, 0])
        s = tl.dot(x, queries.T)
        p = tl.math.exp2(s * factor - tl.load(lse + start + rows)[None, :])
        if MASKED:
            p = tl.where(rows[None, :] >= columns[:, None], p, 0.0)
        gradients = dout.load([start + row, 0])
        dv = tl.dot(p.to(x.dtype), gradients, dv)
        ds = p * (tl.dot(y, gradients.T) - tl.load(delta + start + rows)[None, :])
        dk = tl.dot(ds.to(x.dtype), queries, dk)
    return dk, dv


@tuned((64, 128, 8, 2), (64, 128, 8, 3), (32, 128, 4, 3), (64, 64, 4, 2))
@triton.jit
def keys_kernel(
    q, k, v, dout, dk, dv, lse, delta, factor, scale, length,
    HEAD: tl.constexpr, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(1) * length
    column = tl.program_id(0) * N
    columns = column + tl.arange(0, N)
    x, y = k.load([start + column, 0]), v.load([start + column, 0])
    dx, dy = tl.zeros([N, HEAD], tl.float32), tl.zeros([N, HEAD], tl.float32)
    whole = column + N if CAUSAL else 0
    if CAUSAL:
        dx, dy = _keys_pass(dx, dy, x, y, q, dout, lse, delta, start, column, whole, columns, factor, M, True)
    dx, dy = _keys_pass(dx, dy, x, y, q, dout, lse, delta, start, whole, length, columns, factor, M, False)
    dk.store([start + column, 0], (dx * scale).to(x.dtype))
    dv.store([start + column, 0], dy.to(x.dtype))


@triton.jit
def _queries_pass(
    dq, x, gradients, k, v, lse, delta, start, low, high, rows, factor, N: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    for column in tl.range(low, high, N):
        keys = k.load([start + column, 0])
        p = tl.math.exp2(tl.dot(x, keys.T) * factor - lse[:, None])
        if MASKED:
            p = tl.where(rows[:, None] >= column + tl.arange(0, N)[None, :], p, 0.0)
        ds = p * (tl.dot(gradients, v.load([start + column, 0]).T) - delta[:, None])
        dq = tl.dot(ds.to(x.dtype), keys, dq)
    return dq


@tuned((128, 64, 8, 2), (128, 64, 8, 3), (128, 32, 4, 3), (64, 64, 4, 2))
@triton.jit
def queries_kernel(
    q, k, v, dout, dq, lse, delta, factor, scale, length,
    HEAD: tl.constexpr, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(1) * length
    row = tl.program_id(0) * M
    rows = row + tl.arange(0, M)
    x, gradients = q.load([start + row, 0]), dout.load([start + row, 0])
    own_lse, own_delta = tl.load(lse + start + rows), tl.load(delta + start + rows)
    dx = tl.zeros([M, HEAD], tl.float32)
    whole = row // N * N if CAUSAL else length
    dx = _queries_pass(dx, x, gradients, k, v, own_lse, own_delta, start, 0, whole, rows, factor, N, False)
    if CAUSAL:
        dx = _queries_pass(dx, x, gradients, k, v, own_lse, own_delta, start, whole, row + M, rows, factor, N, True)
    dq.store([start + row, 0], (dx * scale).to(x.dtype))


@triton.jit
def read_kernel(x, y, out, n, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK, num_stages=4):
        places = start.to(tl.int64) + tl.arange(0, BLOCK)
        keep = places < n
        total += tl.load(x + places, mask=keep, other=0) ^ tl.load(y + places, mask=keep, other=0)
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


def reading(x: Any, y: Any) -> Callable[[], None]:
    """Return a call that reads two equally large tensors once, and does next to nothing else."""
    import torch

    words = [tensor.reshape(-1).view(torch.int32) for tensor in (x, y)]
    programs = 2 * torch.cuda.get_device_properties(x.device).multi_processor_count
    out = torch.empty(programs, dtype=torch.int32, device=x.device)
    return lambda: read_kernel[(programs,)](*words, out, words[0].numel(), BLOCK=4096, num_warps=8)


def rows_of(tensor: Any) -> TensorDescriptor:
    """Return a descriptor of [batch, heads, length, HEAD] as one matrix of all rows; a configuration has the block."""
    flat = tensor.view(-1, tensor.shape[-1])
    return TensorDescriptor.from_tensor(flat, [64, flat.shape[1]])


def launch_of(kernel: Any, block: str, arguments: tuple[Any, ...], length: int, heads: int, **constants: Any) -> Any:
    """Compile all configurations at once, and return the call; its grid has the blocks of `block` and the heads."""
    compile_together(kernel, (*arguments, length), constants)
    return lambda: kernel[lambda chosen: (triton.cdiv(length, chosen[block]), heads)](*arguments, length, **constants)


def compile_together(kernel: Any, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """Compile a kernel's configurations side by side; those that cannot be compiled fail again when they are timed."""
    if not hasattr(kernel.fn, "warmup") or triton.knobs.runtime.interpret:
        return
    named = dict(zip(kernel.arg_names, arguments, strict=False)) | constants
    with (
        ThreadPoolExecutor(os.cpu_count()) as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),
    ):
        for config in kernel.configs:
            fit_blocks(named | config.kwargs)
            kernel.fn.warmup(*arguments, grid=(1,), **constants, **config.all_kwargs())


def forward(arrays: Arrays, scale: float, is_causal: bool) -> Callable[[], Arrays]:
    """Return the call that writes `out`, and to memory of its own the logarithms to base 2 for gradients."""
    q, out = arrays["q"], arrays["out"]
    batch, heads, length, head = q.shape
    matrices = tuple(rows_of(arrays[name]) for name in ("q", "k", "v", "out"))
    numbers = (arrays["lse"].clone(), scale * LOG2_E)
    launch = launch_of(forward_kernel, "M", (*matrices, *numbers), length, batch * heads, HEAD=head, CAUSAL=is_causal)

    def call() -> Arrays:
        launch()
        return {"out": out}

    return call


def backward(arrays: Arrays, scale: float, is_causal: bool, out: Any, lse: Any) -> Callable[[], Arrays]:
    """Return the call that writes dq, dk and dv; it starts from contiguous forward results, `lse` to base 2."""
    dout, delta = arrays["dout"], lse.new_empty(lse.shape)
    batch, heads, length, head = dout.shape
    launches = list(_gradients(arrays, lse, delta, scale, is_causal))

    def call() -> Arrays:
        delta_kernel[(batch * heads * length // 32,)](out, dout, delta, HEAD=head, M=32)
        for launch in launches:
            launch()
        return {name: arrays[name] for name in ("dq", "dk", "dv")}

    return call


def _gradients(arrays: Arrays, lse: Any, delta: Any, scale: float, is_causal: bool) -> Iterator[Callable[[], Any]]:
    batch, heads, length, head = arrays["q"].shape
    constants = {"HEAD": head, "CAUSAL": is_causal}
    for kernel, block, outputs in ((keys_kernel, "N", ("dk", "dv")), (queries_kernel, "M", ("dq",))):
        matrices = tuple(rows_of(arrays[name]) for name in ("q", "k", "v", "dout", *outputs))
        numbers = (lse, delta, scale * LOG2_E, scale)
        yield launch_of(kernel, block, (*matrices, *numbers), length, batch * heads, **constants)
