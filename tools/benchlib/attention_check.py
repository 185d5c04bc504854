"""Is what is timed right: two heads of every row against float64, as far from it as cuDNN, and no element left out."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from benchlib import check
from benchlib.attention_cases import BACKWARD, Arrays, Place, Problem
from benchlib.attention_sides import CUDNN, Call
from benchlib.buffers import poison
from benchlib.contest import OURS

ROWS = 2048  # of scores in float64 at a time
TIMES_CUDNN = 2.0
WITHOUT_CUDNN = {"f16": 1e-3, "bf16": 8e-3}
LSE_ERROR = 1e-3


def places_of(problem: Problem) -> list[Place]:
    """Return two heads by chance, as (batch, head); the same ones in every run."""
    chance = random.Random(problem.case)
    return [divmod(index, problem.heads) for index in chance.sample(range(problem.batch * problem.heads), 2)]


def references(problem: Problem, arrays: Arrays, places: Sequence[Place]) -> list[Arrays]:
    """Return the outputs of these heads in float64."""
    compute = gradients if problem.kernel == BACKWARD else attention
    inputs = [
        {name: arrays[name][problem.place_in(name, place)].double() for name in problem.inputs} for place in places
    ]
    return [compute(problem, given) for given in inputs]


def attention(problem: Problem, given: Arrays) -> Arrays:
    """Return `out` and `lse` of one head's q, k and v."""
    import torch

    outs, lses = [], []
    for row in range(0, problem.queries, ROWS):
        p, lse = _weights(problem, given, row)
        outs.append(p @ given["v"])
        lses.append(lse)
    return {"out": torch.cat(outs), "lse": torch.cat(lses)}


def gradients(problem: Problem, given: Arrays) -> Arrays:
    """Return `dq`, `dk` and `dv` of one head's q, k, v and dout."""
    import torch

    dk, dv, dqs = torch.zeros_like(given["k"]), torch.zeros_like(given["v"]), []
    for row in range(0, problem.queries, ROWS):
        p, _ = _weights(problem, given, row)
        q, dout = given["q"][row : row + ROWS], given["dout"][row : row + ROWS]
        delta = (dout * (p @ given["v"])).sum(-1, keepdim=True)
        ds = p * (dout @ given["v"].T - delta)
        dv += p.T @ dout
        dk += ds.T @ q
        dqs.append(ds @ given["k"])
    return {"dq": torch.cat(dqs) * problem.scale, "dk": dk * problem.scale, "dv": dv}


def _weights(problem: Problem, given: Arrays, row: int) -> tuple[Any, Any]:
    """Return softmax and logarithm of the sum of exponentials for some queries, from `row` on."""
    scores = given["q"][row : row + ROWS] @ given["k"].T
    scores *= problem.scale
    if problem.is_causal:
        scores.masked_fill_(scores.new_ones(scores.shape, dtype=bool).triu(row + 1), -math.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse[:, None]).exp_(), lse


def errors(
    problem: Problem, arrays: Arrays, call: Call, places: Sequence[Place], expected: Sequence[Arrays]
) -> dict[str, float]:
    """Run once into poisoned outputs; return ||got - expected|| / ||expected|| by output, inf where there are gaps.

    Of `lse` it is the largest difference.
    """
    for name in {"out", "lse", *problem.outputs}:
        poison(arrays[name])
    got = call()
    if any(check.has_gaps(got[name]) for name in got):
        return dict.fromkeys(got, math.inf)
    found = {name: _distance(got[name], name, places, expected) for name in problem.outputs}
    if "lse" in got:
        pairs = [(got["lse"][place].double(), right["lse"]) for place, right in zip(places, expected, strict=True)]
        found["lse"] = max(float((mine - right).abs().max()) for mine, right in pairs)
    return found


def _distance(got: Any, name: str, places: Sequence[Place], expected: Sequence[Arrays]) -> float:
    pairs = [(got[place].double(), right[name]) for place, right in zip(places, expected, strict=True)]
    apart = sum(float((mine - right).square().sum()) for mine, right in pairs)
    return (apart / max(sum(float(right.square().sum()) for _, right in pairs), 1e-300)) ** 0.5


def worst(problem: Problem, found: dict[str, dict[str, float]], name: str) -> tuple[float, float]:
    """Return a side's largest error, and the largest as a multiple of cuDNN's in the same output, NaN without that."""
    own, cudnn = found[name], found.get(CUDNN, {})
    largest = max(own[output] for output in problem.outputs)
    if not all(0 < cudnn.get(output, math.inf) < math.inf for output in problem.outputs):
        return largest, math.nan
    return largest, max(own[output] / cudnn[output] for output in problem.outputs)


def verdict(problem: Problem, found: dict[str, dict[str, float]], name: str) -> str:
    """Return why a side's result is wrong, or nothing."""
    largest, times = worst(problem, found, name)
    if math.isinf(largest):
        return "leaves gaps, or gives NaN"
    limit = WITHOUT_CUDNN[problem.dtype] if math.isnan(times) else TIMES_CUDNN
    if not (largest if math.isnan(times) else times) <= limit:
        return f"error {largest:.1e}" + ("" if math.isnan(times) else f", {times:.2f} times cuDNN's")
    if name.startswith(OURS) and not found[name].get("lse", 0.0) <= LSE_ERROR:
        return f"lse {found[name]['lse']:.1e} apart"
    return ""
