"""y = alpha x + y, for rows of any pitch."""

import gristmill as gm
import gristmill.language as tl

D = gm.dtype_var("D", [gm.f32, gm.f64])


@gm.kernel(BLOCK=[256, 1024], grid=lambda columns, rows, BLOCK: (gm.cdiv(columns, BLOCK), rows))
def axpy(
    x: gm.ptr[D],
    y: gm.ptr[D],
    alpha: gm.f32,
    rows: gm.shape["x", 0],
    columns: gm.shape["x", 1],
    x_pitch: gm.stride["x", 0],
    y_pitch: gm.stride["y", 0],
    BLOCK: gm.constexpr,
):
    """y += alpha x; matrices of one shape and dtype."""
    row = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = column < columns
    x += row * x_pitch
    y += row * y_pitch
    tl.store(y + column, alpha * tl.load(x + column, mask=keep) + tl.load(y + column, mask=keep), mask=keep)
