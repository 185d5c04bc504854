"""The parts of attention that programs computed side by side, joined."""

import math

import numpy as np
from attention import LOG2_E, inverse_of, is_laid, logarithm

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, Tolerance, spec

D = gm.dtype_var("D", [gm.f16, gm.bf16, gm.f32])

ELEMENTS = 512  # of a program


def suits(batch, heads, queries, width, parts, partial_size, partial_width, partial_lse_size, out_size,
                out_column, lse_size, HEAD):  # fmt: skip
    """Whether shapes go together, and elements of a head are side by side in out."""
    is_out = is_laid(out_size, (heads, queries, width), out_column, batch, (heads, queries, HEAD))
    is_partial = (partial_size == parts * out_size) & (partial_width == HEAD) & (parts > 0)
    return is_out & is_partial & (partial_lse_size * HEAD == partial_size) & (lse_size * HEAD == out_size)


@gm.kernel(
    HEAD=[64, 128],
    grid=lambda batch, heads, queries, HEAD: gm.cdiv(batch * heads * queries * HEAD, ELEMENTS),
    pick=suits,
)
def attention_combine(
    partial: gm.ptr[gm.f32],
    partial_lse: gm.ptr[gm.f32],
    out: gm.ptr[D],
    lse: gm.ptr[gm.f32],
    batch: gm.shape["out", 0],
    heads: gm.shape["out", 1],
    queries: gm.shape["out", 2],
    width: gm.shape["out", 3],
    parts: gm.shape["partial", 0],
    partial_size: gm.size["partial"],
    partial_width: gm.shape["partial", 4],
    partial_lse_size: gm.size["partial_lse"],
    out_size: gm.size["out"],
    out_batch: gm.stride["out", 0],
    out_head: gm.stride["out", 1],
    out_row: gm.stride["out", 2],
    out_column: gm.stride["out", 3],
    lse_size: gm.size["lse"],
    HEAD: gm.constexpr,
):
    """out and lse of attention_forward, joined from the parts that `attention_decode` wrote.

    The shapes are contiguous [parts, batch, heads, queries, HEAD] and [parts, batch, heads, queries], [batch, heads,
    queries, HEAD] and contiguous [batch, heads, queries]; all but out is f32, and all but the elements of a head of out
    may lie any distance apart. Each part weighs exp(partial_lse), one of -inf nothing.
    """
    count = batch * heads * queries
    rows, d = tl.program_id(0) * (ELEMENTS // HEAD) + tl.arange(0, ELEMENTS // HEAD), tl.arange(0, HEAD)
    inside = rows < count
    most = tl.full((ELEMENTS // HEAD,), -float("inf"), tl.float32)
    total = tl.zeros((ELEMENTS // HEAD,), tl.float32)
    sums = tl.zeros((ELEMENTS // HEAD, HEAD), tl.float32)
    for part in tl.range(parts, loop_unroll_factor=4):
        places = tl.where(inside, part * count + rows, 0)  # promises nothing: lengths need not be multiples for it
        near = tl.load(partial_lse + places, mask=inside, other=-float("inf"))
        values = tl.load(partial + places[:, None] * HEAD + d[None, :], mask=inside[:, None])
        top = tl.maximum(most, near)
        origin = tl.where(top == -float("inf"), 0.0, top)
        weight, fall = tl.exp2((near - origin) * LOG2_E), tl.exp2((most - origin) * LOG2_E)
        total = total * fall + weight
        sums = sums * fall[:, None] + values * weight[:, None]
        most = top
    tl.store(lse + rows, logarithm(most * LOG2_E, total), mask=inside)
    sums *= inverse_of(total)[:, None]
    head = rows // queries
    to = head // heads * out_batch + head % heads * out_head + rows % queries * out_row
    tl.store(out + to[:, None] + d[None, :], sums, mask=inside[:, None])


# ---- reference and cases -------------------------------------------------------------------------------------------


def reference(partial, partial_lse):
    most = np.max(partial_lse, 0)
    weight = np.exp(partial_lse - np.where(np.isinf(most), 0, most))
    total = weight.sum(0)
    return (partial * (weight / np.where(total > 0, total, 1))[..., None]).sum(0), np.log(total) + most


def case(batch, heads, queries, head, parts=3, use="test"):
    rows = (batch, heads, queries, head)
    shapes = {"partial": (parts, *rows), "partial_lse": (parts, *rows[:3]), "out": rows, "lse": rows[:3]}
    name = f"{batch * heads * queries}" + (f" of {head}, {parts} parts" if parts != 3 else "")
    return Case(name, shapes, use, values="wide")


CASES = [
    *(case(*sizes) for sizes in [(1, 1, 129, 64), (1, 1, 1000, 64), (0, 3, 1, 64)]),
    *(case(*sizes) for sizes in [(2, 3, 5, 64, 1), (1, 2, 2, 64, 9)]),
    case(4, 8, 1, 64, 8, "demo"),
    *(case(*sizes, "bench") for sizes in [(64, 32, 1, 128, 4), (1, 32, 1, 128, 66)]),
]


def cost(shapes, itemsize):
    """What is read and written once, and two operations for each element of a part."""
    size = sum(math.prod(shape) * itemsize(name) for name, shape in shapes.items())
    return Cost(size, 2 * math.prod(shapes["partial"]))


spec(
    attention_combine,
    reference=reference,
    cases=CASES,
    cost=cost,
    whole=["partial", "partial_lse"],
    tolerance=Tolerance(f32=4e-6, half_ulps=1.0, absolute=1e-6),
)
