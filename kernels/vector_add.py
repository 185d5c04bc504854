"""Sums of two arrays."""

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Tolerance, elementwise, spec, streaming

D = gm.dtype_var("D", gm.Num)
BLOCKS = [2048]


@gm.kernel(BLOCK=BLOCKS, grid=lambda n, BLOCK: gm.cdiv(n, BLOCK))
def vector_add(a: gm.ptr[D], b: gm.ptr[D], out: gm.ptr[D], n: gm.size["a"], BLOCK: gm.constexpr):
    """out = a + b, element by element; arrays of one shape and dtype. Floats round once, integers wrap."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    tl.store(out + offsets, tl.load(a + offsets, mask=keep) + tl.load(b + offsets, mask=keep), mask=keep)


def add(a, b):
    return a + b


spec(
    vector_add,
    reference=add,
    cases=elementwise("a", "b", "out"),
    cost=streaming(flops=1),
    tolerance=Tolerance(f32=6e-8, f64=0.0, half_ulps=0.0),
)
