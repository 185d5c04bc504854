"""What kernels of more than one product share: few tiles, which of them takes least time, and how to take turns."""

import gristmill as gm
import gristmill.language as tl

# A CPU takes the large tile, and the one for all calls.
CUDA = {"device": "cuda"}
GROUPS, WARPS = CUDA | {"warpgroups": True}, CUDA | {"warpgroups": False}
WIDE = {"BLOCK_M": 128, "BLOCK_N": 256, "STEP_BYTES": 128, "num_warps": 8, "num_stages": 4, "aligned": True, **GROUPS}
LARGE = {"BLOCK_M": 128, "BLOCK_N": 128, "STEP_BYTES": 128, "num_warps": 8, "num_stages": 6, "aligned": True}
SMALL = {"BLOCK_M": 64, "BLOCK_N": 64, "STEP_BYTES": 128, "num_warps": 4, "num_stages": 6, "aligned": True, **CUDA}
# For all calls: elements that are not aligned come one by one, and more of them at once would not stay in registers.
GENERAL = SMALL | {"STEP_BYTES": 64, "num_warps": 8, "aligned": False, "narrow": False, "device": ""}


def in_use(D, BLOCK_N, STEP_BYTES):
    """Wide elements, which are rarer, and whose code is longer, have the tile for all calls, and f32 a larger one."""
    return (D.itemsize == 2) | (STEP_BYTES == 64) | ((D.itemsize == 4) & (BLOCK_N == 128))


def count(m, n, rows, columns):
    """How many tiles of rows x columns a matrix has."""
    return gm.cdiv(m, rows) * gm.cdiv(n, columns)


def is_fastest(tiles, BLOCK_M, BLOCK_N):
    """Whether no smaller tile takes less time, of each of which there are `tiles(rows, columns)`."""
    small, large, wide = (time(tiles(*tile), *tile) for tile in ((64, 64), (128, 128), (128, 256)))
    is_wide = (BLOCK_N == 256) & (wide <= gm.minimum(large, small))
    return (BLOCK_M == 64) | is_wide | ((BLOCK_N == 128) & (large <= small))


def time(tiles, rows, columns):
    """What so many tiles take: rounds of all multiprocessors, times the cost of a tile, as in `time` of `matmul`."""
    cost = {64: 150, 128: 104, 256: 100}[columns]
    return gm.cdiv(tiles, gm.sm_count) * (rows * columns * cost)


def is_along(stride, length, size):
    """Whether elements along an axis are side by side; strides of empty arrays, and of one element, say nothing."""
    return (stride == 1) | (length <= 1) | (size == 0)


def next_turn(before):
    """This program's first tile of those that follow `before` others, all of which programs take in turn."""
    count = tl.num_programs(0)
    return (tl.program_id(0) + count - before % count) % count


def summed_in(dtype):
    """The dtype of sums of products."""
    return tl.float64 if dtype == tl.float64 else tl.float32


def padded(size):
    """The power of two that holds a tile's rows or columns."""
    return 256 if size > 128 else size


def store_tile(p, row, column, m, n, stride, tile):
    """Write what is inside of a matrix of m rows and n columns, through pointers."""
    rows, columns = row + tl.arange(0, tile.shape[0]), column + tl.arange(0, tile.shape[1])
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(p + rows[:, None] * stride + columns[None, :], tile, mask=inside)
