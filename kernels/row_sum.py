"""Sums along rows."""

from rowwise import CONFIGS, computed_in, fits, same_shape

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Tolerance, spec, streaming

D = gm.dtype_var("D", gm.Float)


@gm.kernel(configs=CONFIGS, grid=lambda n_rows: n_rows, pick=fits)
def row_sum(
    x: gm.ptr[D, "n_rows * n_cols"],
    out: gm.ptr[D, "n // n_cols"],
    n: gm.size["x"],
    n_cols: gm.shape["x", -1],
    n_rows: gm.size["out"],
    BLOCK: gm.constexpr,
    ONE_PASS: gm.constexpr,
):
    """out = sum of x along the last axis; out has one element a row, and the dtype of x; empty rows give 0.

    f16 and bf16 are summed in f32 and rounded once. f32 within 1e-5 of the sum of magnitudes.
    """
    C = computed_in(D)
    x += tl.program_id(0) * n_cols
    cols = tl.arange(0, BLOCK)
    if ONE_PASS:
        total = tl.load(x + cols, mask=cols < n_cols).to(C)
    else:
        total = tl.zeros((BLOCK,), C)
        for start in range(0, n_cols, BLOCK):
            total += tl.load(x + start + cols, mask=start + cols < n_cols).to(C)
    tl.store(out + tl.program_id(0), tl.sum(total))


spec(
    row_sum,
    reference=lambda x: x.sum(-1),
    cases=same_shape("x", out=lambda rows, columns: (rows,)),
    cost=streaming(flops=1),
    tolerance=Tolerance(f32=1e-5, f64=1e-13, absolute=1e-6),
)
