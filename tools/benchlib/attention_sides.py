"""Who competes in attention: each side makes a call for some arrays, which launches all of the work and no more.

A call returns the outputs by name. What a side needs beforehand, such as the forward results that gradients start
from, is computed when the call is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchlib.attention_cases import BACKWARD, DECODE, FORWARD, LOG2_E, Arrays, Problem
from benchlib.contest import COPY, OURS
from benchlib.work import load_specs

LAZY = f"{OURS} lazy"  # the forward whose sums are rescaled where weights would exceed 256
CUDNN = "cuDNN"
FLASH = "FlashAttention-2"
TRITON = "triton"
TORCH = "torch"  # with the backend that it chooses
READ = "reading K and V"
Call = Callable[[], Arrays]
NEEDED = {FORWARD: (FORWARD,), BACKWARD: (FORWARD, "attention_delta", BACKWARD), DECODE: (DECODE,)}
"""What our side takes from the installed kernels."""


def missing(kernel: str) -> list[str]:
    """Return the kernels that our side needs and the installed wheel lacks."""
    from gristmill import kernels

    return [name for name in NEEDED[kernel] if not hasattr(kernels, name)]


def sides_of(problem: Problem, arrays: Arrays) -> dict[str, Callable[[], Call]]:
    """Return by name what makes each side's call for these arrays."""
    ours = {FORWARD: our_forward, BACKWARD: our_backward, DECODE: our_decode}[problem.kernel]
    torch_side = torch_backward if problem.kernel == BACKWARD else torch_forward
    makers: dict[str, Callable[[], Call]] = {OURS: partial(ours, problem, arrays)}
    makers |= {LAZY: partial(our_forward, problem, arrays, LAZY=True)} if problem.kernel == FORWARD else {}
    makers |= {name: partial(torch_side, name, problem, arrays) for name in (CUDNN, FLASH)}
    if problem.kernel != DECODE:
        return makers | {TRITON: partial(triton_call, problem, arrays)}
    return makers | {READ: partial(reading, arrays), COPY: partial(copying, arrays)}


def computes(name: str) -> bool:
    """Return whether a side does the work, and not only moves as many bytes."""
    return name not in (READ, COPY)


def our_forward(problem: Problem, arrays: Arrays, **constants: bool) -> Call:
    """Return the call of attention_forward, which writes `lse`, too."""
    from gristmill import kernels

    tensors = [arrays[name] for name in ("q", "k", "v", "out", "lse")]

    def call() -> Arrays:
        kernels.attention_forward(*tensors, problem.scale, int(problem.is_causal), **constants)
        return {"out": arrays["out"], "lse": arrays["lse"]}

    return call


def our_backward(problem: Problem, arrays: Arrays) -> Call:
    """Return the call that takes all steps: dq is summed in f32, from zeros, and converted at the end."""
    import torch

    from gristmill import kernels

    our_forward(problem, arrays)()
    q, k, v, out, dout, dq, dk, dv = (arrays[name] for name in ("q", "k", "v", "out", "dout", "dq", "dk", "dv"))
    out, lse = out.clone(), arrays["lse"].clone()
    delta = torch.empty_like(lse)
    sums = torch.empty_like(dq, dtype=torch.float32)

    def call() -> Arrays:
        sums.zero_()
        kernels.attention_delta(out, dout, delta)
        kernels.attention_backward(q, k, v, dout, lse, delta, sums, dk, dv, problem.scale, int(problem.is_causal))
        dq.copy_(sums)
        return {"dq": dq, "dk": dk, "dv": dv}

    return call


def our_decode(problem: Problem, arrays: Arrays) -> Call:
    """Return the call of attention_decode, and of attention_combine where parts of the keys are joined."""
    import torch

    from gristmill import kernels

    specs = load_specs()
    q, parts = arrays["q"], parts_of(problem, arrays)
    values = arrays | {
        "scale": problem.scale,
        "lengths": torch.full((problem.batch,), problem.length, dtype=torch.int32, device=q.device),
        "partial": torch.empty((parts, *q.shape), dtype=torch.float32, device=q.device),
        "partial_lse": torch.empty((parts, *q.shape[:3]), dtype=torch.float32, device=q.device),
    }
    steps = [name for name in (DECODE, "attention_combine") if name in specs and hasattr(kernels, name)]
    launches = [(getattr(kernels, name), by_name(specs[name].kernel, values)) for name in steps]
    written = [name for name in ("out", "lse") if any(name in arguments for _, arguments in launches)]

    def call() -> Arrays:
        for kernel, arguments in launches:
            kernel(**arguments)
        return {name: arrays[name] for name in written}

    return call


def parts_of(problem: Problem, arrays: Arrays) -> int:
    """Return in how many parts keys are dealt out: so many that programs fill the multiprocessors about twice."""
    import torch

    device = arrays["q"].device
    count = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    wanted = 2 * count // (problem.batch * (problem.groups or problem.heads))
    return max(1, min(wanted, problem.length // 256))


def by_name(kernel: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return a kernel's arguments out of what there is; those with defaults may be left out."""
    wanted = [p for p in kernel.parameters if p.kind in ("pointer", "scalar")]
    if unknown := [p.name for p in wanted if p.name not in values and p.default is None]:
        raise LookupError(f"{kernel.name} takes {', '.join(unknown)}, which tools/bench does not know")
    return {p.name: values[p.name] for p in wanted if p.name in values}


def reading(arrays: Arrays) -> Call:
    """Return the call that reads keys and values once, by Triton."""
    from benchlib import attention_triton

    read = attention_triton.reading(arrays["k"], arrays["v"])
    return lambda: read() or {}


def copying(arrays: Arrays) -> Call:
    """Return the call that copies the keys: it moves as many bytes as reading keys and values does."""
    target = arrays["k"].clone()
    return lambda: {"copy": target.copy_(arrays["k"])}


def torch_forward(name: str, problem: Problem, arrays: Arrays) -> Call:
    """Return torch's call with one of its backends, or the one that it chooses."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    backend = {CUDNN: SDPBackend.CUDNN_ATTENTION, FLASH: SDPBackend.FLASH_ATTENTION, TORCH: chosen}[name]
    q, k, v = (arrays[name] for name in ("q", "k", "v"))
    is_grouped = k.shape[1] != q.shape[1]

    def call() -> Arrays:
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(
                q, k, v, is_causal=problem.is_causal, scale=problem.scale, enable_gqa=is_grouped
            )
        return {"out": out}

    return call


def torch_backward(name: str, problem: Problem, arrays: Arrays) -> Call:
    """Return the call that torch's automatic gradients make with one of the backends."""
    import torch

    aten, scale, is_causal = torch.ops.aten, problem.scale, problem.is_causal
    q, k, v, dout = (arrays[name] for name in ("q", "k", "v", "dout"))
    if name == CUDNN:
        kept = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, is_causal, False, scale=scale)
        out, lse, starts_q, starts_k, most_q, most_k, seed, offset, _ = kept
        ends = (starts_q, starts_k, most_q, most_k, 0.0, is_causal)
        operation = aten._scaled_dot_product_cudnn_attention_backward
        arguments = (dout, q, k, v, out, lse, seed, offset, None, *ends)
    else:
        out, lse, starts_q, starts_k, most_q, most_k, seed, offset, _ = flash_forward(problem, arrays)
        ends = (starts_q, starts_k, most_q, most_k, 0.0, is_causal)
        operation = aten._scaled_dot_product_flash_attention_backward
        arguments = (dout, q, k, v, out, lse, *ends, seed, offset)
    return lambda: dict(zip(("dq", "dk", "dv"), operation(*arguments, scale=scale), strict=True))


def flash_forward(problem: Problem, arrays: Arrays) -> tuple[Any, ...]:
    """Return what FlashAttention-2 computes before gradients: out and lse first."""
    import torch

    tensors = [arrays[name] for name in ("q", "k", "v")]
    operation = torch.ops.aten._scaled_dot_product_flash_attention
    return operation(*tensors, 0.0, problem.is_causal, False, scale=problem.scale)


def triton_call(problem: Problem, arrays: Arrays) -> Call:
    """Return the call of the Triton kernels; gradients start from FlashAttention-2's results."""
    from benchlib import attention_triton

    if problem.kernel != BACKWARD:
        return attention_triton.forward(arrays, problem.scale, problem.is_causal)
    out, lse = (tensor.contiguous() for tensor in flash_forward(problem, arrays)[:2])
    return attention_triton.backward(arrays, problem.scale, problem.is_causal, out, lse * LOG2_E)
