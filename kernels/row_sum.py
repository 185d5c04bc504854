"""Sums along rows."""

from rowwise import computed_in, same_shape

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Tolerance, spec, streaming

D = gm.dtype_var("D", gm.Float)


# A row is read once, so that nothing is gained from having it in one tile.
CONFIGS = [
    gm.Config(BLOCK=1024, num_warps=1),
    gm.Config(BLOCK=4096, num_warps=4),
    gm.Config(BLOCK=8192, num_warps=8),
]


def suits(n_cols, BLOCK):
    """Whether a row is short enough for a tile; the last one takes all."""
    return (n_cols <= BLOCK) | (BLOCK == 8192)


@gm.kernel(configs=CONFIGS, grid=lambda n_rows: n_rows, pick=suits)
def row_sum(
    x: gm.ptr[D, "n_rows * n_cols"],
    out: gm.ptr[D, "n // n_cols"],
    n: gm.size["x"],
    n_cols: gm.shape["x", -1],
    n_rows: gm.size["out"],
    BLOCK: gm.constexpr,
):
    """out = sum of x along the last axis; out has one element a row, and the dtype of x; empty rows give 0.

    f16 and bf16 are summed in f32 and rounded once. f32 within 1e-5 of the sum of magnitudes.
    """
    C = computed_in(D)
    x += tl.program_id(0) * n_cols
    total = tl.zeros((BLOCK,), C)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x + cols, mask=cols < n_cols).to(C)
    tl.store(out + tl.program_id(0), tl.sum(total))


spec(
    row_sum,
    reference=lambda x: x.sum(-1),
    cases=same_shape("x", out=lambda rows, columns: (rows,)),
    cost=streaming(flops=1),
    tolerance=Tolerance(f32=1e-5, f64=1e-13, absolute=1e-6),
)
