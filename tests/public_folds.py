"""Public cases of reductions, scans and sorts."""

from __future__ import annotations

import numpy as np

from machines import compute, kernel_of
from public_runs import padded, runs


@runs("R07")
def argmax_beside_nan(run, d):
    x = np.ascontiguousarray(d["x"]).ravel()
    return {"i": compute(run, "tl.argmax(tl.reshape(x, (4, 4)), 1)", "i32", size=4, x=x)}


@runs("R13")
def stable_sort_with_indices(run, d):
    """Each element goes to the number of those before it: larger ones, and equal ones that stand earlier."""
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f16], values: gm.ptr[gm.f16], index: gm.ptr[gm.i32], n: gm.size["x"]):
        i = tl.arange(0, 8)
        v = tl.load(x + i, mask=i < n, other=-float("inf"))
        is_before = (v[:, None] > v[None, :]) | ((v[:, None] == v[None, :]) & (i[:, None] < i[None, :]))
        place = tl.sum(is_before.to(tl.int32), 0)
        tl.store(values + place, v, mask=i < n)
        tl.store(index + place, i, mask=i < n)
    """
    values, index = np.zeros(7, np.float16), np.full(7, -1, np.int32)
    run(kernel_of(source), None, d["x"], values, index)
    ordered = compute(run, "tl.sort(x, descending=True)", x=np.append(d["x"], np.float16(-np.inf)))
    assert (ordered[:7] == values).all()
    return {"values": values, "index": index}


@runs("R15")
def sort_with_nan_of_either_sign(run, d):
    x = np.concatenate([d["x"], np.full(96, np.nan, np.float32)])
    return {"y": compute(run, "tl.sort(x)", x=x)[:160]}


@runs("R72")
def cumulative_sums_of_ones(run, d):
    body = "y = x\nfor i in range(2):\n    y = tl.cumsum(x, 0)"
    return {name: compute(run, "y", body=body, x=padded(x))[: len(x)] for name, x in d.items()}


@runs("R75")
def cumulative_sums_of_many_rows(run, d):
    source = """
    @gm.kernel(grid=lambda m: gm.cdiv(m, 1024))
    def k(x: gm.ptr[gm.i32], y: gm.ptr[gm.i32], m: gm.shape["x", 0]):
        row = tl.program_id(0) * 1024 + tl.arange(0, 1024)[:, None]
        column = tl.arange(0, 4)[None, :]
        place, keep = row * 3 + column, (row < m) & (column < 3)
        tl.store(y + place, tl.cumsum(tl.load(x + place, mask=keep), 1), mask=keep)
    """
    y = np.zeros_like(d["x"])
    run(kernel_of(source), None, d["x"], y)
    return {"y": y}


@runs("R80")
def reverse_scan_of_pairs(run, d):
    head = "def then(f, x, g, y):\n    return f * g, g * x + y"
    body = "f, y = tl.associative_scan((a, x), 0, then, reverse=True)"
    shift = {"a": np.roll(padded(d["a"]), 28), "x": np.roll(padded(d["b"]), 28)}
    return {name: compute(run, key, head=head, body=body, **shift)[28:] for name, key in (("f", "f"), ("x", "y"))}


@runs("R82")
def scan_by_what_is_not_associative(run, d):
    head = "def halved(a, b):\n    return a / 2 + b\n\ndef weighted(w, x, v, y):\n    return w * v, x * v + y"
    first, second = (compute(run, "tl.associative_scan(x, 0, halved)", head=head, x=d["x"]) for _ in range(2))
    assert (first == second).all()
    body = "w, y = tl.associative_scan((x * 0.5, x), 0, weighted)"
    assert compute(run, "y", head=head, body=body, x=d["x"])[:3].tolist() == [1, 1.5, 1.75]
