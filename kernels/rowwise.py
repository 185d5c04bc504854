"""What kernels that work on rows share: how a row of any length is cut into tiles, and how many warps share it."""

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import rowwise

# ONE_PASS: the whole row is one tile: of a warp, of a block, or of the blocks of a cluster. Devices without clusters,
# and CPUs, have no code for the longest tiles, and take the last configuration, which suits all rows: the first BLOCK
# columns are a tile, the rest is read in tiles of TILE, once for what must be known of the whole row and once more for
# the result. Of f64 these are half as many: a thread of 512 has 128 registers.
ON_CUDA = {"ONE_PASS": True, "device": "cuda"}
ON_HOPPER = ON_CUDA | {"warpgroups": True}  # one block of 1024 threads would hold such a row, and no results


def configurations(warps_of_16384=8):
    """The tiles, the best one for a row first; with eight warps one of 16,384 waits in shared memory."""
    return [
        gm.Config(BLOCK=256, TILE=256, ONE_PASS=True, num_warps=1),
        gm.Config(BLOCK=1024, TILE=1024, ONE_PASS=True, num_warps=1),
        gm.Config(BLOCK=2048, TILE=2048, num_warps=2, **ON_CUDA),
        gm.Config(BLOCK=4096, TILE=4096, ONE_PASS=True, num_warps=4),
        gm.Config(BLOCK=8192, TILE=8192, num_warps=8, **ON_CUDA),
        gm.Config(BLOCK=16384, TILE=16384, num_warps=warps_of_16384, **ON_CUDA),
        gm.Config(BLOCK=32768, TILE=32768, num_warps=8, **ON_HOPPER),
        gm.Config(BLOCK=65536, TILE=65536, num_warps=8, **ON_CUDA),
        gm.Config(BLOCK=131072, TILE=131072, num_warps=8, **ON_CUDA),
        gm.Config(BLOCK=16384, TILE=8192, ONE_PASS=False, num_warps=16),
        gm.Config(BLOCK=8192, TILE=4096, ONE_PASS=False, num_warps=16),
    ]


CONFIGS = configurations()


def in_use(D, BLOCK, ONE_PASS):
    """f64 has fewer configurations: its rows are as many bytes longer, and as much rarer."""
    if D.itemsize == 8:
        return BLOCK in (256, 4096, 8192)
    return ONE_PASS or BLOCK == 16384


def rows(n, n_cols):
    """The grid: one program a row."""
    return n // n_cols


def fits(n_cols, BLOCK, ONE_PASS):
    """Whether a row is short enough for a configuration."""
    return ~ONE_PASS | (n_cols <= BLOCK)


def parts(dtype, BLOCK, ONE_PASS):
    """Into how many parts a row of one tile is cut: as many as a cluster has blocks, of 32 KB, 8 at most."""
    return min(8, BLOCK * dtype.itemsize // 32768) if ONE_PASS and BLOCK > 16384 else 1


def computed_in(dtype):
    """The dtype in which values of `dtype` are computed."""
    return tl.float32 if dtype.bits < 32 else dtype


def same_shape(*arrays, ranges=None, **others):
    """Cases in which `arrays` are rows x columns; `others` give further shapes, as functions of rows and columns.

    Arrays in `ranges` are clipped to their range.
    """

    def shapes(rows, columns):
        return dict.fromkeys(arrays, (rows, columns)) | {name: shape(rows, columns) for name, shape in others.items()}

    return rowwise(shapes, **(ranges or {}))
