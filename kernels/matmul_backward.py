"""Gradients of products: of both operands in one launch."""

import math

import numpy as np
from matmul import ACCURACY, matrix, place_of, product
from tiles import GENERAL, LARGE, SMALL, WIDE, count, in_use, is_along, is_fastest, next_turn, summed_in

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, spec

D = gm.dtype_var("D", gm.Float)

TILES = [WIDE, LARGE, SMALL, GENERAL]
CONFIGS = [gm.Config(**tile, B_TURNED=is_turned) for is_turned in (False, True) for tile in TILES]


def tiles_of(m, n, depth, BLOCK_M, BLOCK_N, B_TURNED):
    """How many tiles both gradients have; that of a turned b is computed as its transpose."""
    down, across = gm.where(B_TURNED, n, depth), gm.where(B_TURNED, depth, n)
    return count(m, depth, BLOCK_M, BLOCK_N) + count(down, across, BLOCK_M, BLOCK_N)


def programs(m, n, depth, BLOCK_M, BLOCK_N, B_TURNED):
    """The grid: programs go from tile to tile, first of one gradient, then of the other."""
    return gm.minimum(tiles_of(m, n, depth, BLOCK_M, BLOCK_N, B_TURNED), gm.sm_count)


def suits(
    m, n, depth, dout_size, dout_column, a_size, a_rows, a_column, b_size, b_rows, b_columns, b_row, b_column, da_size,
    da_rows, da_columns, da_column, db_size, db_rows, db_columns, db_row, db_column, BLOCK_M, BLOCK_N, B_TURNED,
):  # fmt: skip
    """Whether shapes go together, rows are contiguous, or columns of both b and db, and no smaller tile is faster."""
    has_sizes = (dout_size == m * n) & (a_size == m * depth) & (b_size == depth * n)
    has_results = (da_size == a_size) & (da_rows == m) & (da_columns == depth) & (db_size == b_size)
    agrees = (a_rows == m) & (b_rows == depth) & (b_columns == n) & (db_rows == depth) & (db_columns == n)
    are_rows = is_along(b_column, n, b_size) & is_along(db_column, n, db_size)
    are_columns = is_along(b_row, depth, b_size) & is_along(db_row, depth, db_size)
    is_dense = is_along(dout_column, n, dout_size) & is_along(a_column, depth, a_size)
    is_dense &= is_along(da_column, depth, da_size) & gm.where(B_TURNED, are_columns, are_rows)
    is_chosen = is_fastest(lambda *tile: tiles_of(m, n, depth, *tile, B_TURNED), BLOCK_M, BLOCK_N)
    return has_sizes & has_results & agrees & is_dense & is_chosen


@gm.kernel(configs=CONFIGS, where=in_use, grid=programs, pick=suits)
def matmul_backward(
    dout: gm.ptr[D],
    a: gm.ptr[D],
    b: gm.ptr[D],
    da: gm.ptr[D],
    db: gm.ptr[D],
    m: gm.shape["dout", 0],
    n: gm.shape["dout", 1],
    depth: gm.shape["a", 1],
    dout_size: gm.size["dout"],
    dout_row: gm.stride["dout", 0],
    dout_column: gm.stride["dout", 1],
    a_size: gm.size["a"],
    a_rows: gm.shape["a", 0],
    a_row: gm.stride["a", 0],
    a_column: gm.stride["a", 1],
    b_size: gm.size["b"],
    b_rows: gm.shape["b", 0],
    b_columns: gm.shape["b", 1],
    b_row: gm.stride["b", 0],
    b_column: gm.stride["b", 1],
    da_size: gm.size["da"],
    da_rows: gm.shape["da", 0],
    da_columns: gm.shape["da", 1],
    da_row: gm.stride["da", 0],
    da_column: gm.stride["da", 1],
    db_size: gm.size["db"],
    db_rows: gm.shape["db", 0],
    db_columns: gm.shape["db", 1],
    db_row: gm.stride["db", 0],
    db_column: gm.stride["db", 1],
    BLOCK_M: gm.constexpr,
    BLOCK_N: gm.constexpr,
    STEP_BYTES: gm.constexpr,
    B_TURNED: gm.constexpr,
):
    """da = dout @ b.T and db = a.T @ dout, the gradients of `matmul`, for matrices of one dtype.

    The shapes are [m, n], [m, depth], [depth, n], and those of a and b again. Rows are contiguous, any distance apart;
    b and db may both be transposes of such arrays (`w.T`). Sums and accuracy as those of `matmul`.
    """
    STEP: tl.constexpr = STEP_BYTES // D.itemsize
    if B_TURNED:
        gradients(
            dout, m, n, dout_row, a, depth, a_row, b, b_column, da, da_row, db, db_column, BLOCK_M, BLOCK_N, STEP, D
        )
    else:
        gradients_of_rows(
            dout, m, n, dout_row, a, depth, a_row, b, b_row, da, da_row, db, db_row, BLOCK_M, BLOCK_N, STEP, D
        )


def gradients_of_rows(
    dout, m, n, dout_row, a, depth, a_row, b, b_row, da, da_row, db, db_row, BLOCK_M, BLOCK_N, STEP, dtype
):  # fmt: skip
    """da = dout @ b.T and db = a.T @ dout."""
    by_rows = matrix(dout, m, n, dout_row, 1, BLOCK_M, STEP, False)
    by_columns = matrix(dout, m, n, dout_row, 1, STEP, BLOCK_N, False)
    left = matrix(a, depth, m, 1, a_row, BLOCK_M, STEP, True)
    right = matrix(b, n, depth, 1, b_row, STEP, BLOCK_N, True)
    to_da = matrix(da, m, depth, da_row, 1, BLOCK_M, BLOCK_N, False)
    to_db = matrix(db, depth, n, db_row, 1, BLOCK_M, BLOCK_N, False)
    tiles = tiles_in(m, depth, BLOCK_M, BLOCK_N)
    for tile in range(tl.program_id(0), tiles + tiles_in(depth, n, BLOCK_M, BLOCK_N), tl.num_programs(0)):
        if tile < tiles:
            row, column = place_of(tile, m, depth, BLOCK_M, BLOCK_N)
            sums = product(by_rows, right, row, column, n, BLOCK_M, BLOCK_N, STEP, dtype, False, True)
            to_da.store([row, column], sums.to(dtype))
        else:
            row, column = place_of(tile - tiles, depth, n, BLOCK_M, BLOCK_N)
            sums = product(left, by_columns, row, column, m, BLOCK_M, BLOCK_N, STEP, dtype, True, False)
            to_db.store([row, column], sums.to(dtype))


def gradients(dout, m, n, dout_row, x, depth, x_row, w, w_row, dx, dx_row, dw, dw_row, BLOCK_M, BLOCK_N, STEP, dtype):
    """dx = dout @ w and dw = dout.T @ x; returns how many tiles both have."""
    by_rows = matrix(dout, m, n, dout_row, 1, BLOCK_M, STEP, False)
    by_columns = matrix(dout, n, m, 1, dout_row, BLOCK_M, STEP, True)
    along = matrix(w, n, depth, w_row, 1, STEP, BLOCK_N, False)
    right = matrix(x, m, depth, x_row, 1, STEP, BLOCK_N, False)
    to_dx = matrix(dx, m, depth, dx_row, 1, BLOCK_M, BLOCK_N, False)
    to_dw = matrix(dw, n, depth, dw_row, 1, BLOCK_M, BLOCK_N, False)
    tiles = tiles_in(m, depth, BLOCK_M, BLOCK_N)
    all_tiles = tiles + tiles_in(n, depth, BLOCK_M, BLOCK_N)
    for tile in range(tl.program_id(0), all_tiles, tl.num_programs(0)):
        if tile < tiles:
            row, column = place_of(tile, m, depth, BLOCK_M, BLOCK_N)
            sums = product(by_rows, along, row, column, n, BLOCK_M, BLOCK_N, STEP, dtype, False, False)
            to_dx.store([row, column], sums.to(dtype))
        else:
            row, column = place_of(tile - tiles, n, depth, BLOCK_M, BLOCK_N)
            sums = product(by_columns, right, row, column, m, BLOCK_M, BLOCK_N, STEP, dtype, True, False)
            to_dw.store([row, column], sums.to(dtype))
    return all_tiles


def tiles_in(m, n, ROWS, COLUMNS):
    """How many tiles a matrix has."""
    return tl.cdiv(m, ROWS) * tl.cdiv(n, COLUMNS)


# A strip of columns is summed by one program: narrow, so that there is one for each, wide enough for whole sectors.
STRIP, ROWS = tl.constexpr(32), tl.constexpr(256)


def programs_of_rows(n, depth, dx_size, BLOCK_M, BLOCK_N):
    """As `programs`, for all rows of arrays of any rank; without depth there are only columns to sum."""
    tiles = tiles_of(dx_size // depth, n, depth, BLOCK_M, BLOCK_N, True)
    return gm.minimum(tiles + gm.cdiv(n, STRIP.value), gm.sm_count)


def suits_rows(
    n, depth, dout_size, dout_columns, x_size, w_size, w_columns, dx_size, dx_columns, dw_size, dw_rows, dw_columns,
    dbias_size, BLOCK_M, BLOCK_N,
):  # fmt: skip
    """As `suits`, for contiguous arrays of which only the last axis counts."""
    is_layer = (x_size * n == dout_size * depth) & (w_size == n * depth) & (w_columns == depth) & (dbias_size == n)
    has_results = (dx_size == x_size) & (dx_columns == depth) & (dw_size == w_size)
    agrees = (dout_columns == n) & (dw_rows == n) & (dw_columns == depth)
    is_chosen = is_fastest(lambda *tile: tiles_of(dx_size // depth, n, depth, *tile, True), BLOCK_M, BLOCK_N)
    return is_layer & has_results & agrees & is_chosen


@gm.kernel(configs=[gm.Config(**tile) for tile in TILES], where=in_use, grid=programs_of_rows, pick=suits_rows)
def linear_backward(
    dout: gm.ptr[D],
    x: gm.ptr[D],
    w: gm.ptr[D],
    dx: gm.ptr[D],
    dw: gm.ptr[D],
    dbias: gm.ptr[D],
    n: gm.shape["w", 0],
    depth: gm.shape["x", -1],
    dout_size: gm.size["dout"],
    dout_columns: gm.shape["dout", -1],
    x_size: gm.size["x"],
    w_size: gm.size["w"],
    w_columns: gm.shape["w", 1],
    dx_size: gm.size["dx"],
    dx_columns: gm.shape["dx", -1],
    dw_size: gm.size["dw"],
    dw_rows: gm.shape["dw", 0],
    dw_columns: gm.shape["dw", 1],
    dbias_size: gm.size["dbias"],
    BLOCK_M: gm.constexpr,
    BLOCK_N: gm.constexpr,
    STEP_BYTES: gm.constexpr,
):
    """dx = dout @ w, dw = dout.T @ x and dbias = sums of dout's columns, the gradients of `linear`.

    For contiguous arrays of one dtype and of shapes [..., n], [..., depth] and [n, depth]; then those of x and w again,
    and [n]. Sums are as those of `matmul`, those of dbias too, and rounded once.
    """
    STEP: tl.constexpr = STEP_BYTES // D.itemsize
    before = 0
    if depth > 0:
        m = dx_size // depth
        before = gradients(dout, m, n, n, x, depth, depth, w, depth, dx, depth, dw, depth, BLOCK_M, BLOCK_N, STEP, D)
    for strip in range(next_turn(before), tl.cdiv(n, STRIP), tl.num_programs(0)):
        columns = strip * STRIP + tl.arange(0, STRIP)
        sums = tl.zeros((ROWS, STRIP), summed_in(D))
        m = dout_size // n
        for row in range(0, m, ROWS):
            rows = row + tl.arange(0, ROWS)
            inside = (rows[:, None] < m) & (columns[None, :] < n)
            sums += tl.load(dout + rows[:, None] * n + columns[None, :], mask=inside).to(sums.dtype)
        tl.store(dbias + columns, tl.sum(sums.T, 1), mask=columns < n)


# ---- reference and cases -------------------------------------------------------------------------------------------


def case(m, n, depth, use="test", turned=()):
    sizes = f"{m} x {n} x {depth}" if not m == n == depth else f"{m} cubed"
    name = " ".join([sizes, *(f"{array}.T" for array in turned)])
    shapes = {"dout": (m, n), "a": (m, depth), "b": (depth, n), "da": (m, depth), "db": (depth, n)}
    return Case(name, shapes, use, turned=turned)


def layer(rows, n, depth, use="test"):
    shapes = {"dout": (*rows, n), "x": (*rows, depth), "w": (n, depth)}
    shapes |= {"dx": (*rows, depth), "dw": (n, depth), "dbias": (n,)}
    return Case(" x ".join(map(str, (*rows, n, depth))), shapes, use)


SIZES = [(2, 129, 40), (1, 1, 1), (7, 33, 65), (65, 7, 33), (72, 64, 128)]
EMPTY = [(0, 3, 4), (3, 0, 4), (5, 7, 0)]
CASES = [
    *(case(*sizes) for sizes in SIZES + EMPTY),
    *(case(*sizes, turned=("b", "db")) for sizes in [(7, 33, 65), (72, 64, 128)]),
    case(500, 500, 500, "demo"),
    *(case(n, n, n, "bench", turned) for n in (2048, 4096, 8192) for turned in [(), ("b", "db")]),
]
LAYERS = [
    *(layer(sizes[:1], *sizes[1:]) for sizes in SIZES + EMPTY),
    layer((3, 5), 64, 72),
    layer((100, 10), 500, 500, "demo"),
    *(layer(rows, 4096, 4096, "bench") for rows in [(8, 512), (2, 512)]),
]


def cost(shapes, itemsize):
    """What is read and written once, and two operations for each product of elements."""
    size = sum(map(math.prod, shapes.values()))
    depth = shapes["a" if "a" in shapes else "x"][-1]
    return Cost(size * itemsize("dout"), 4 * math.prod(shapes["dout"]) * depth)


def np_linear_backward(dout, x, w):
    rows = tuple(range(dout.ndim - 1))
    return dout @ w, np.tensordot(dout, x, (rows, rows)), dout.sum(rows)


spec(
    matmul_backward,
    reference=lambda dout, a, b: (dout @ b.T, a.T @ dout),
    cases=CASES,
    cost=cost,
    whole=["dout", "a", "b"],
    tolerance=ACCURACY,
)
spec(
    linear_backward,
    reference=np_linear_backward,
    cases=LAYERS,
    cost=cost,
    whole=["dout", "x", "w"],
    tolerance=ACCURACY,
)
