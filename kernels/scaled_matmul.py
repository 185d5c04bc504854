"""Products of matrices of 8-bit floats or integers, whose scales are kept beside them."""

import math

import numpy as np
from matmul import matrix, place_of

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, Tolerance, spec

D = gm.dtype_var("D", [gm.f8e4m3, gm.f8e5m2, gm.i8])
E = gm.dtype_var("E", [gm.bf16, gm.f16])

STEP = tl.constexpr(128)  # of the depth: 8-bit products are added up in f32 as often
CONFIGS = [
    gm.Config(BLOCK_M=128, BLOCK_N=256, B_TURNED=True, num_warps=8, num_stages=4, aligned=True, device="cuda"),
    gm.Config(BLOCK_M=256, BLOCK_N=128, B_TURNED=True, num_warps=8, num_stages=4, aligned=True, device="cuda"),
    gm.Config(BLOCK_M=128, BLOCK_N=128, B_TURNED=True, num_warps=8, num_stages=6, aligned=True),
    gm.Config(BLOCK_M=64, BLOCK_N=64, B_TURNED=True, num_warps=4, num_stages=6, aligned=True, device="cuda"),
    gm.Config(BLOCK_M=64, BLOCK_N=64, B_TURNED=True, num_warps=8, num_stages=6, narrow=False),
    gm.Config(BLOCK_M=64, BLOCK_N=64, B_TURNED=False, num_warps=8, num_stages=3, narrow=False),
]


def programs(m, n, BLOCK_M, BLOCK_N):
    """The grid: programs go from tile to tile, as many as the device runs at once."""
    return gm.minimum(gm.cdiv(m, BLOCK_M) * gm.cdiv(n, BLOCK_N), gm.sm_count)


def in_use(D, E, BLOCK_M, BLOCK_N):
    """What is usual: f16 is the result of products of f8e4m3 alone, and f8e5m2, which is rarer, has fewer tiles.

    The large tile of integers is tall, so that a thread holds the scales of fewer columns beside its sums.
    """
    if (BLOCK_M, BLOCK_N) in [(128, 256), (256, 128)]:
        return (BLOCK_M == 256) == (D in [gm.i8]) and (E in [gm.bf16] or D in [gm.f8e4m3])
    return D in [gm.f8e4m3] or (E in [gm.bf16] and (D in [gm.i8] or (BLOCK_M, BLOCK_N) != (128, 128)))


def suits(
    m, n, depth, a_size, a_row, a_column, b_size, b_rows, b_row, b_column, a_scales, b_scales, out_size, out_rows,
    out_columns, out_row, out_column, B_TURNED,
):  # fmt: skip
    """Whether shapes go together, and rows of `a` and `out` and the columns of `b`, or its rows, are contiguous."""
    is_matrix = (a_size == m * depth) & (b_size == depth * n) & (out_size == m * n)
    agrees = (b_rows == depth) & (out_rows == m) & (out_columns == n)
    is_scaled = ((a_scales == 1) | (a_scales == m)) & ((b_scales == 1) | (b_scales == n))
    is_dense = ((a_column == 1) | (depth <= 1)) & ((out_column == 1) | (n <= 1))
    is_b = gm.where(B_TURNED, (b_row == 1) | (depth <= 1), (b_column == 1) | (n <= 1))
    return is_matrix & agrees & is_scaled & is_dense & is_b


def is_best(m, n, BLOCK_M, BLOCK_N):
    """Whether there are enough tiles for half of the multiprocessors."""
    return (BLOCK_M == 64) | (gm.cdiv(m, BLOCK_M) * gm.cdiv(n, BLOCK_N) * 2 > gm.sm_count)


KEY = ["m", "n", "depth", "b_row == 1"]


@gm.kernel(configs=CONFIGS, where=in_use, grid=programs, pick=suits, prefer=is_best, key=KEY)
def scaled_matmul(
    a: gm.ptr[D],
    b: gm.ptr[D],
    a_scale: gm.ptr[gm.f32],
    b_scale: gm.ptr[gm.f32],
    out: gm.ptr[E],
    m: gm.shape["a", 0],
    n: gm.shape["b", 1],
    depth: gm.shape["a", 1],
    a_size: gm.size["a"],
    a_row: gm.stride["a", 0],
    a_column: gm.stride["a", 1],
    b_size: gm.size["b"],
    b_rows: gm.shape["b", 0],
    b_row: gm.stride["b", 0],
    b_column: gm.stride["b", 1],
    a_scales: gm.size["a_scale"],
    b_scales: gm.size["b_scale"],
    out_size: gm.size["out"],
    out_rows: gm.shape["out", 0],
    out_columns: gm.shape["out", 1],
    out_row: gm.stride["out", 0],
    out_column: gm.stride["out", 1],
    BLOCK_M: gm.constexpr,
    BLOCK_N: gm.constexpr,
    B_TURNED: gm.constexpr,
):
    """out = (a @ b) * a_scale * b_scale for matrices of shapes [m, depth], [depth, n] and [m, n].

    a and b have one 8-bit dtype, out has f16 or bf16. A scale is one f32, or one for each row of a and each column of
    b. b is fastest as the transpose of an array [n, depth] (`w.T`). Products are exact; sums of floats over 128 of the
    depth have the precision of the tensor cores, and are added in f32, those of integers are exact.
    """
    left = matrix(a, m, depth, a_row, 1, BLOCK_M, STEP, False)
    right = matrix(b, depth, n, b_row, b_column, STEP, BLOCK_N, B_TURNED)
    to = matrix(out, m, n, out_row, 1, BLOCK_M, BLOCK_N, False)
    for tile in range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N), tl.num_programs(0)):
        row, column = place_of(tile, m, n, BLOCK_M, BLOCK_N)
        sums = tl.zeros((BLOCK_M, BLOCK_N), summed(D))
        for start in range(0, depth, STEP):
            y = right.load([column, start]).T if B_TURNED else right.load([start, column])
            sums = tl.dot(left.load([row, start]), y, sums)
        rows = scales(a_scale, row + tl.arange(0, BLOCK_M), m, a_scales)
        columns = scales(b_scale, column + tl.arange(0, BLOCK_N), n, b_scales)
        to.store([row, column], scaled(sums, rows[:, None], columns[None, :]))


def summed(dtype):
    """The dtype of sums of products."""
    return tl.int32 if dtype == tl.int8 else tl.float32


def scaled(sums, rows, columns):
    """Sums times the scales of rows and columns; of integers the scales' product first, which takes few registers."""
    if sums.dtype == tl.int32:
        return sums.to(tl.float32) * (rows * columns)
    return sums * rows * columns


def scales(p, places, n, count):
    """The scales of rows or columns, or one for all of them."""
    return tl.load(p + tl.where(count == 1, 0, places), mask=places < n)


# ---- reference and cases -------------------------------------------------------------------------------------------


def case(m, n, depth, use="test", turned=("b",), is_by_row=False):
    sizes = f"{m} x {n} x {depth}" if not m == n == depth else f"{m} cubed"
    name = " ".join([sizes, *(f"{array}.T" for array in turned), *(["by row"] if is_by_row else [])])
    shapes = {"a": (m, depth), "b": (depth, n), "out": (m, n)}
    shapes |= {"a_scale": (m if is_by_row else 1,), "b_scale": (n if is_by_row else 1,)}
    return Case(name, {name: shapes[name] for name in ("a", "b", "a_scale", "b_scale", "out")}, use, turned=turned)


CASES = [
    *(case(*sizes, is_by_row=by) for sizes in [(1, 1, 1), (7, 33, 65), (100, 72, 144), (64, 80, 256)] for by in (0, 1)),
    *(case(*sizes, turned=()) for sizes in [(2, 129, 40), (2, 1000, 40), (100, 72, 144)]),
    case(5, 7, 0),
    case(500, 500, 500, "demo"),
    *(case(n, n, n, "bench") for n in (4096, 8192)),
]


def cost(shapes, itemsize):
    """What is read and written once, and two operations for each product of elements."""
    size = sum(math.prod(shape) * itemsize(name) for name, shape in shapes.items())
    return Cost(size, 2 * math.prod(shapes["out"]) * shapes["a"][1])


def reference(a, b, a_scale, b_scale):
    return a.astype(np.float64) @ b.astype(np.float64) * np.reshape(a_scale, (-1, 1)) * np.reshape(b_scale, (1, -1))


spec(scaled_matmul, reference=reference, cases=CASES, cost=cost, whole=["b"], tolerance=Tolerance(absolute=1e-2))
