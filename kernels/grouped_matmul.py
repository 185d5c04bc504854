"""Products of groups of rows, each with a matrix of its own: the layers of a mixture of experts."""

import math

import numpy as np
from batched_matmul import block_of, stack
from matmul import ACCURACY, matrix, place_of
from tiles import GENERAL, LARGE, SMALL, WIDE, count, in_use, is_along, next_turn, store_tile, summed_in

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, spec

D = gm.dtype_var("D", [gm.f16, gm.bf16, gm.f32])

CONFIGS = [
    gm.Config(**tile, W_TURNED=is_turned) for is_turned in (False, True) for tile in (WIDE, LARGE, SMALL, GENERAL)
]


def programs(rows, n, groups, BLOCK_M, BLOCK_N):
    """The grid: as many as the device runs at once, of tiles of which each group has one that is not full at most."""
    return gm.minimum((rows // BLOCK_M + gm.minimum(groups, rows)) * gm.cdiv(n, BLOCK_N), gm.sm_count)


def suits(
    rows, n, groups, depth, x_size, x_column, w_size, w_groups, w_rows, w_row, w_column, out_size, out_columns,
    out_column, BLOCK_M, BLOCK_N, W_TURNED,
):  # fmt: skip
    """Whether shapes go together, rows of x and out and the rows of w, or its columns, are contiguous."""
    has_sizes = (x_size == rows * depth) & (w_size == groups * depth * n) & (out_size == rows * n)
    agrees = (w_groups == groups) & (w_rows == depth) & (out_columns == n)
    is_w = gm.where(W_TURNED, is_along(w_row, depth, w_size), is_along(w_column, n, w_size))
    is_dense = is_along(x_column, depth, x_size) & is_w & is_along(out_column, n, out_size)
    return has_sizes & agrees & is_dense & is_worth(rows, n, groups, BLOCK_M, BLOCK_N)


def is_worth(rows, n, groups, BLOCK_M, BLOCK_N):
    """Whether groups, if they are alike, fill most of a tile, and tiles the device."""
    is_full = (rows * 4 >= groups * BLOCK_M * 3) & (count(rows, n, BLOCK_M, BLOCK_N) >= gm.sm_count)
    return (BLOCK_M == 64) | is_full


@gm.kernel(configs=CONFIGS, where=in_use, grid=programs, pick=suits)
def grouped_matmul(
    x: gm.ptr[D],
    w: gm.ptr[D],
    ends: gm.ptr[gm.i32],
    out: gm.ptr[D],
    rows: gm.shape["x", 0],
    n: gm.shape["w", 2],
    groups: gm.size["ends"],
    depth: gm.shape["x", 1],
    x_size: gm.size["x"],
    x_row: gm.stride["x", 0],
    x_column: gm.stride["x", 1],
    w_size: gm.size["w"],
    w_groups: gm.shape["w", 0],
    w_rows: gm.shape["w", 1],
    w_group: gm.stride["w", 0],
    w_row: gm.stride["w", 1],
    w_column: gm.stride["w", 2],
    out_size: gm.size["out"],
    out_columns: gm.shape["out", 1],
    out_row: gm.stride["out", 0],
    out_column: gm.stride["out", 1],
    BLOCK_M: gm.constexpr,
    BLOCK_N: gm.constexpr,
    STEP_BYTES: gm.constexpr,
    W_TURNED: gm.constexpr,
):
    """out[i] = x[i] @ w[g] for each row i of group g, which are those from ends[g - 1], or 0, to before ends[g].

    The shapes are [rows, depth], [groups, depth, n], [groups] and [rows, n]; ends are i32, all else has one dtype. Rows
    behind the last end are left as they are. A group is empty if its end is not behind all those before it; an end
    beyond the rows counts as their number. Elements of a row are side by side, or those of a column of w
    (`w.swapaxes(1, 2)` of an array [groups, n, depth]). Sums and accuracy as those of `matmul`.
    """
    STEP: tl.constexpr = STEP_BYTES // D.itemsize
    left = matrix(x, rows, depth, x_row, x_column, BLOCK_M, STEP, False)
    right = stack(w, groups, depth, n, w_group, w_row, w_column, STEP, BLOCK_N, W_TURNED)
    first, before = 0, 0  # the group's first row, and how many tiles there are before it
    for group in range(groups):
        end = tl.maximum(tl.load(ends + group), first)
        last = tl.minimum(end, rows)
        tiles = tl.cdiv(tl.maximum(last - first, 0), BLOCK_M) * tl.cdiv(n, BLOCK_N)
        for tile in range(next_turn(before), tiles, tl.num_programs(0)):
            row, column = place_of(tile, last - first, n, BLOCK_M, BLOCK_N)
            sums = tl.zeros((BLOCK_M, BLOCK_N), summed_in(D))
            for start in range(0, depth, STEP):
                y = block_of(right, group, start, column, STEP, BLOCK_N, W_TURNED)
                sums = tl.dot(left.load([first + row, start]), y, sums)
            store_tile(out, first + row, column, last, n, out_row, sums)
        first = end
        before += tiles


# ---- reference and cases -------------------------------------------------------------------------------------------


def case(sizes, n, depth, use="test"):
    """A call with groups of so many rows."""
    rows, groups, ends = sum(sizes), len(sizes), np.cumsum(sizes)
    name = f"{rows} x {n} x {depth}" + (f" in {groups} groups" if use == "bench" else "")
    shapes = {"x": (rows, depth), "w": (groups, depth, n), "ends": (groups,), "out": (rows, n)}
    return Case(name, shapes, use, ranges={"ends": (ends, ends)})


CASES = [
    case((2,), 129, 40),
    case((1,) * 65, 7, 33),
    *(case(sizes, n, depth) for sizes in [(1,), (3, 0, 70, 1), (0, 64, 0)] for n, depth in [(1, 1), (72, 40)]),
    case((5, 3), 7, 0),
    case((2, 2), 0, 4),
    case((0, 0), 3, 4),
    case((100, 0, 300), 500, 500, "demo"),
    *(case([512] * 8, *sizes, "bench") for sizes in [(4096, 4096), (2048, 7168)]),
    case([64] * 64, 2048, 2048, "bench"),
]


def cost(shapes, itemsize):
    """What is read and written once, and two operations for each product of elements."""
    size = sum(math.prod(shape) * itemsize(name) for name, shape in shapes.items())
    return Cost(size, 2 * math.prod(shapes["out"]) * shapes["x"][1])


def reference(x, w, ends):
    out = np.zeros((len(x), w.shape[2]))
    ends = np.maximum.accumulate(np.clip(ends, 0, len(x)))
    for first, end, each in zip([0, *ends[:-1]], ends, w, strict=True):
        out[first:end] = x[first:end] @ each
    return out


spec(grouped_matmul, reference=reference, cases=CASES, cost=cost, whole=["x", "w", "ends"], tolerance=ACCURACY)
