"""Products of many matrices of one shape."""

import math

from matmul import ACCURACY, place_of, regular
from tiles import GENERAL, LARGE, SMALL, WIDE, count, in_use, is_along, is_fastest, summed_in

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, spec

D = gm.dtype_var("D", gm.Float)

CONFIGS = [
    gm.Config(**tile, B_TURNED=is_turned) for is_turned in (False, True) for tile in (WIDE, LARGE, SMALL, GENERAL)
]


def programs(batch, m, n, BLOCK_M, BLOCK_N):
    """The grid: programs go from tile to tile, as many as the device runs at once."""
    return gm.minimum(batch * count(m, n, BLOCK_M, BLOCK_N), gm.sm_count)


def suits(
    batch, m, n, depth, a_size, a_column, b_size, b_rows, b_row, b_column, out_size, out_rows, out_columns, out_column,
    BLOCK_M, BLOCK_N, B_TURNED,
):  # fmt: skip
    """Whether shapes go together, rows of a and out and the rows of b, or its columns, are contiguous."""
    has_sizes = (a_size == batch * m * depth) & (b_size == batch * depth * n) & (out_size == batch * m * n)
    agrees = (b_rows == depth) & (out_rows == m) & (out_columns == n)
    is_a = is_along(a_column, depth, a_size)
    is_b = gm.where(B_TURNED, is_along(b_row, depth, b_size), is_along(b_column, n, b_size))
    is_dense = is_a & is_b & is_along(out_column, n, out_size)
    is_chosen = is_fastest(lambda *tile: batch * count(m, n, *tile), BLOCK_M, BLOCK_N)
    return has_sizes & agrees & is_dense & is_chosen


@gm.kernel(configs=CONFIGS, where=in_use, grid=programs, pick=suits)
def batched_matmul(
    a: gm.ptr[D],
    b: gm.ptr[D],
    out: gm.ptr[D],
    batch: gm.shape["a", 0],
    m: gm.shape["a", 1],
    n: gm.shape["b", 2],
    depth: gm.shape["a", 2],
    a_size: gm.size["a"],
    a_batch: gm.stride["a", 0],
    a_row: gm.stride["a", 1],
    a_column: gm.stride["a", 2],
    b_size: gm.size["b"],
    b_rows: gm.shape["b", 1],
    b_batch: gm.stride["b", 0],
    b_row: gm.stride["b", 1],
    b_column: gm.stride["b", 2],
    out_size: gm.size["out"],
    out_rows: gm.shape["out", 1],
    out_columns: gm.shape["out", 2],
    out_batch: gm.stride["out", 0],
    out_row: gm.stride["out", 1],
    out_column: gm.stride["out", 2],
    BLOCK_M: gm.constexpr,
    BLOCK_N: gm.constexpr,
    STEP_BYTES: gm.constexpr,
    B_TURNED: gm.constexpr,
):
    """out[i] = a[i] @ b[i] for arrays of shapes [batch, m, depth], [batch, depth, n] and [batch, m, n], of one dtype.

    Elements of a row are side by side, or those of a column of b (`b.swapaxes(1, 2)` of such an array); rows and
    matrices lie any distance apart, also none: `b` may be one matrix, expanded. Sums and accuracy as those of `matmul`.
    """
    STEP: tl.constexpr = STEP_BYTES // D.itemsize
    left = stack(a, batch, m, depth, a_batch, a_row, a_column, BLOCK_M, STEP, False)
    right = stack(b, batch, depth, n, b_batch, b_row, b_column, STEP, BLOCK_N, B_TURNED)
    to = stack(out, batch, m, n, out_batch, out_row, out_column, BLOCK_M, BLOCK_N, False)
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in range(tl.program_id(0), batch * tiles, tl.num_programs(0)):
        matrix = tile // tiles
        row, column = place_of(tile % tiles, m, n, BLOCK_M, BLOCK_N)
        sums = tl.zeros((BLOCK_M, BLOCK_N), summed_in(D))
        for start in range(0, depth, STEP):
            x = left.load([matrix, row, start]).reshape(BLOCK_M, STEP)
            sums = tl.dot(x, block_of(right, matrix, start, column, STEP, BLOCK_N, B_TURNED), sums)
        to.store([matrix, row, column], sums.to(D).reshape(1, BLOCK_M, BLOCK_N))


def stack(p, count, m, n, matrix, row, column, ROWS, COLUMNS, TURNED):
    """A descriptor of `count` matrices of m rows and n columns, as `matrix` of `matmul` is of one."""
    if TURNED:
        return tl.make_tensor_descriptor(p, [count, n, m], [matrix, column + regular(m), 1], [1, COLUMNS, ROWS])
    return tl.make_tensor_descriptor(p, [count, m, n], [matrix, row + regular(n), 1], [1, ROWS, COLUMNS])


def block_of(matrices, matrix, row, column, ROWS, COLUMNS, TURNED):
    """A block of one of the matrices of a `stack`."""
    if TURNED:
        return matrices.load([matrix, column, row]).reshape(COLUMNS, ROWS).T
    return matrices.load([matrix, row, column]).reshape(ROWS, COLUMNS)


# ---- reference and cases -------------------------------------------------------------------------------------------


def case(batch, m, n, depth, use="test"):
    name = f"{m} x {n} x {depth}" + (f", {batch} of them" if batch != 3 else "")
    return Case(name, {"a": (batch, m, depth), "b": (batch, depth, n), "out": (batch, m, n)}, use)


SIZES = [(3, 2, 129, 40), (2, 1, 1, 1), (5, 7, 33, 65), (3, 65, 7, 33), (2, 64, 72, 128)]
EMPTY = [(0, 3, 4, 5), (2, 5, 7, 0), (2, 0, 3, 4), (2, 3, 0, 4)]
CASES = [
    *(case(*sizes) for sizes in SIZES + EMPTY),
    case(10, 100, 120, 200, "demo"),
    *(case(*sizes, "bench") for sizes in [(16, 2048, 2048, 2048), (256, 512, 512, 128), (512, 128, 128, 1024)]),
]


def cost(shapes, itemsize):
    """What is read and written once, and two operations for each product of elements."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return Cost(sum(sizes.values()) * itemsize("out"), 2 * sizes["out"] * shapes["a"][-1])


spec(batched_matmul, reference=lambda a, b: a @ b, cases=CASES, cost=cost, tolerance=ACCURACY)
