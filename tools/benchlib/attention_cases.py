"""What attention is timed on: batches, lengths and heads, their arrays on a device, and what a call computes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchlib.buffers import torch_dtype

FORWARD, BACKWARD, DECODE = KERNELS = ("attention_forward", "attention_backward", "attention_decode")
DTYPES = ("f16", "bf16")
HEADS = (64, 128)
SIZES = ((4, 32, 4096), (1, 32, 16384), (16, 16, 512), (4, 32, 1024), (2, 16, 2048))
"""Batch, heads and length."""
QUICK_SIZES = ((4, 32, 4096), (4, 32, 1024))
CACHE = {"batch": 64, "heads": 32, "length": 8192, "head": 128, "groups": 8}
"""What one query for each sequence is timed on."""
BACKWARD_PRODUCTS = 2.5  # five products of matrices instead of two
WIDE_SCORE = 50.0
LOG2_E = 1.4426950408889634
Arrays = dict[str, Any]
Place = tuple[int, int]


@dataclass(frozen=True)
class Problem:
    """One row: q and out are [batch, heads, queries, head], k and v [batch, groups, length, head].

    There are as many queries as keys, and causal, each sees the keys up to its own; or in decoding, one query. `groups`
    is 0 where every head has keys and values of its own.
    """

    kernel: str
    dtype: str
    batch: int
    heads: int
    length: int
    head: int
    is_causal: bool = False
    groups: int = 0

    @property
    def queries(self) -> int:
        return 1 if self.kernel == DECODE else self.length

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head)

    @property
    def flops(self) -> int:
        """The operations of its products of matrices, causal, half of them; 0 in decoding, where reading counts."""
        whole = 4 * self.batch * self.heads * self.length**2 * self.head * (self.kernel != DECODE)
        return int(whole * (BACKWARD_PRODUCTS if self.kernel == BACKWARD else 1)) // (2 if self.is_causal else 1)

    @property
    def bytes(self) -> int:
        """The size of the arrays of halves: q, out and their gradients; k, v and theirs."""
        rows = self.batch * (self.heads * self.queries + (self.groups or self.heads) * self.length)
        return 2 * 2 * rows * self.head * (2 if self.kernel == BACKWARD else 1)

    @property
    def mask(self) -> str:
        return "causal" if self.is_causal else "full"

    @property
    def case(self) -> str:
        groups = f", {self.groups} groups" if self.groups else ""
        end = ", 1 query" if self.kernel == DECODE else f" {self.mask}"
        return f"{self.batch} x {self.heads} x {self.length} x {self.head}{groups}{end}"

    @property
    def title(self) -> str:
        return f"{self.kernel} {self.dtype} {self.case}"

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("q", "k", "v", "dout") if self.kernel == BACKWARD else ("q", "k", "v")

    @property
    def outputs(self) -> tuple[str, ...]:
        """What is compared with the reference."""
        return ("dq", "dk", "dv") if self.kernel == BACKWARD else ("out",)

    def shape_of(self, name: str) -> tuple[int, int, int, int]:
        """Return the shape of an array by its name."""
        if name in ("k", "v", "dk", "dv"):
            return (self.batch, self.groups or self.heads, self.length, self.head)
        return (self.batch, self.heads, self.queries, self.head)

    def place_in(self, name: str, place: Place) -> Place:
        """Return where an array has what belongs to the head at (batch, head)."""
        is_shared = self.groups and name in ("k", "v")
        return (place[0], place[1] * self.groups // self.heads) if is_shared else place


def plan(kernel: str, dtypes: Sequence[str], heads: Sequence[int], is_quick: bool) -> Iterator[Problem]:
    """Return the rows of a kernel."""
    if kernel == DECODE:
        yield from (Problem(kernel, dtype, **CACHE) for dtype in dtypes if CACHE["head"] in heads)
        return
    for dtype in dtypes:
        for head in heads:
            for is_causal in (False, True):
                for size in QUICK_SIZES if is_quick else SIZES:
                    yield Problem(kernel, dtype, *size, head, is_causal)


def arrays_of(problem: Problem, device: str, seed: int = 0) -> Arrays:
    """Return inputs of N(0, 1), and memory for all that is written."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    dtype = torch_dtype(problem.dtype)
    arrays = {
        name: torch.randn(problem.shape_of(name), dtype=dtype, device=device, generator=generator)
        for name in problem.inputs
    }
    for name in ("out", *problem.outputs):
        arrays[name] = torch.empty(problem.shape_of(name), dtype=dtype, device=device)
    arrays["lse"] = torch.empty(problem.shape_of("q")[:3], dtype=torch.float32, device=device)
    return arrays


def with_wide_scores(problem: Problem, arrays: Arrays, places: Sequence[Place]) -> Arrays:
    """Return the arrays with q so large that the scores of the heads at `places` reach +-50."""
    largest = 0.0
    for place in places:
        q, k = (arrays[name][problem.place_in(name, place)].float() for name in ("q", "k"))
        largest = max(largest, float((q @ k.T).abs().max()))
    new = {name: arrays[name] for name in problem.inputs}
    new |= {name: arrays[name].clone() for name in ("out", "lse", *problem.outputs)}
    return new | {"q": arrays["q"] * (WIDE_SCORE / (largest * problem.scale))}
