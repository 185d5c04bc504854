"""Products of matrices, on tensor cores where there are some."""

import math

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, Tolerance, spec

D = gm.dtype_var("D", gm.Float)

GROUP = tl.constexpr(8)  # tiles below each other that programs in a row compute: they share what they read of B
STEP_BYTES = tl.constexpr(128)  # of a row of an operand that one step of the loop takes
TILES = [
    {"BLOCK_M": 128, "BLOCK_N": 256, "num_warps": 8, "num_stages": 4},
    {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 4},
    {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 4},
]
LAYOUTS = [{"A_TURNED": a, "B_TURNED": b, "ANY_STRIDES": False} for a in (False, True) for b in (False, True)]
CONFIGS = [gm.Config(**tile, **layout) for layout in LAYOUTS for tile in TILES]
# Strides of no contiguous array, turned or not, come element by element: one configuration is enough for them.
CONFIGS += [gm.Config(**TILES[-1], A_TURNED=False, B_TURNED=False, ANY_STRIDES=True)]


def fits(D, BLOCK_M, BLOCK_N):
    """Whether a tile's sums and steps fit: wide elements take smaller tiles."""
    return BLOCK_M * BLOCK_N * D.itemsize <= {2: 65536, 4: 65536, 8: 32768}[D.itemsize]


def in_use(D, BLOCK_M, BLOCK_N, A_TURNED, ANY_STRIDES):
    """What fits; where `a` is turned, which is rarer, one tile for all shapes."""
    columns = 64 if D.itemsize > 2 or ANY_STRIDES else 128
    return fits(D, BLOCK_M, BLOCK_N) and (not A_TURNED or columns == BLOCK_N)


def tiles(m, n, BLOCK_M, BLOCK_N):
    """The grid: one program a tile."""
    return gm.cdiv(m, BLOCK_M), gm.cdiv(n, BLOCK_N)


def suits(
    m, n, depth, a_size, a_row, a_column, b_size, b_rows, b_row, b_column, out_size, out_rows, out_columns, out_row,
    out_column, BLOCK_M, BLOCK_N, A_TURNED, B_TURNED, ANY_STRIDES,
):  # fmt: skip
    """Whether shapes go together, strides are those of a configuration, and no later tile is faster."""
    is_matrix = (a_size == m * depth) & (b_size == depth * n) & (out_size == m * n)
    agrees = (b_rows == depth) & (out_rows == m) & (out_columns == n)
    a = gm.where(A_TURNED, (a_row == 1) | (m <= 1), (a_column == 1) | (depth <= 1))
    b = gm.where(B_TURNED, (b_row == 1) | (depth <= 1), (b_column == 1) | (n <= 1))
    is_dense = a & b & ((out_column == 1) | (n <= 1))
    is_even = (a_row * a_column % 8 == 0) & (b_row * b_column % 8 == 0) & (out_row % 8 == 0)  # of two, one is 1
    return is_matrix & agrees & (ANY_STRIDES | (is_dense & (A_TURNED | is_fastest(m, n, is_even, BLOCK_M, BLOCK_N))))


def is_fastest(m, n, is_even, BLOCK_M, BLOCK_N):
    """Whether a tile takes no longer than those after it; the last one is for all shapes.

    The largest is for rows that start on 16 bytes: there would not be registers enough for others.
    """
    large, medium, small = time(m, n, 128, 256, 100), time(m, n, 128, 128, 108), time(m, n, 64, 64, 150)
    is_medium = (BLOCK_M == 64) | (medium <= small)
    return gm.where(BLOCK_N == 256, is_even & (large <= gm.minimum(medium, small)), is_medium)


def time(m, n, rows, columns, cost):
    """What a product takes in tiles of rows x columns: rounds of all multiprocessors, times the cost of a tile."""
    rounds = gm.cdiv(gm.cdiv(m, rows) * gm.cdiv(n, columns), gm.sm_count)
    return rounds * (rows * columns * cost)


@gm.kernel(configs=CONFIGS, where=in_use, grid=tiles, pick=suits)
def matmul(
    a: gm.ptr[D],
    b: gm.ptr[D],
    out: gm.ptr[D],
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
    out_size: gm.size["out"],
    out_rows: gm.shape["out", 0],
    out_columns: gm.shape["out", 1],
    out_row: gm.stride["out", 0],
    out_column: gm.stride["out", 1],
    BLOCK_M: gm.constexpr,
    BLOCK_N: gm.constexpr,
    A_TURNED: gm.constexpr,
    B_TURNED: gm.constexpr,
    ANY_STRIDES: gm.constexpr,
):
    """out = a @ b for matrices of shapes [m, depth], [depth, n] and [m, n], of one dtype.

    Rows may be farther apart than they are long, and a or b the transpose of such an array (`w.T`); other strides are
    slower. Sums are f32, or f64 for f64, and rounded once; the products of f32 have its accuracy. The gradients are
    `matmul(dout, b.T, da)` and `matmul(a.T, dout, db)`.
    """
    row, column = tile_of(tl.program_id(1) * tl.num_programs(0) + tl.program_id(0))
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = product(
        a, a_row, a_column, b, b_row, b_column, rows, columns, m, n, depth, D, A_TURNED, B_TURNED, ANY_STRIDES
    )
    store(out, rows, columns, m, n, out_row, out_column, sums, ANY_STRIDES)


def tiles_of_rows(n, out_size, BLOCK_M, BLOCK_N):
    """As `tiles`, for all rows of an array of any rank."""
    return tiles(out_size // n, n, BLOCK_M, BLOCK_N)


def suits_rows(n, depth, x_size, w_size, w_depth, bias_size, out_size, out_columns, BLOCK_M, BLOCK_N):
    """As `suits`, for contiguous arrays of which only the last axis counts."""
    is_layer = (w_size == n * depth) & (w_depth == depth) & (bias_size == n)
    agrees = (x_size * n == out_size * depth) & (out_columns == n)
    is_even = (n % 8 == 0) & (depth % 8 == 0)
    return is_layer & agrees & is_fastest(out_size // n, n, is_even, BLOCK_M, BLOCK_N)


@gm.kernel(configs=[gm.Config(**tile) for tile in TILES], where=fits, grid=tiles_of_rows, pick=suits_rows)
def linear(
    x: gm.ptr[D],
    w: gm.ptr[D],
    bias: gm.ptr[D],
    out: gm.ptr[D],
    n: gm.shape["w", 0],
    depth: gm.shape["x", -1],
    x_size: gm.size["x"],
    w_size: gm.size["w"],
    w_depth: gm.shape["w", 1],
    bias_size: gm.size["bias"],
    out_size: gm.size["out"],
    out_columns: gm.shape["out", -1],
    BLOCK_M: gm.constexpr,
    BLOCK_N: gm.constexpr,
):
    """out = x @ w.T + bias along the last axis, for contiguous arrays of one dtype.

    The shapes are [..., depth], [n, depth], [n] and [..., n]. Sums are as those of `matmul`, rounded once with the
    bias. The gradients by x and w are `matmul(dout, w, dx)` and `matmul(dout.T, x, dw)`, of rows in one matrix.
    """
    m = out_size // n
    row, column = tile_of(tl.program_id(1) * tl.num_programs(0) + tl.program_id(0))
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = product(x, depth, 1, w, 1, depth, rows, columns, m, n, depth, D, False, True, False)
    terms = tl.load(bias + columns, mask=columns < n).to(sums.dtype)
    store(out, rows, columns, m, n, n, 1, sums + terms[None, :], False)


def tile_of(program):
    """The row and column of a program's tile: down GROUP rows, then to the next column."""
    size = GROUP * tl.num_programs(1)
    first = program // size * GROUP
    height = tl.minimum(tl.num_programs(0) - first, GROUP)
    place = program % size
    return first + place % height, place // height


def product(a, a_row, a_column, b, b_row, b_column, rows, columns, m, n, depth, dtype, A_TURNED, B_TURNED, ANY_STRIDES):
    """The sums of one tile."""
    STEP: tl.constexpr = STEP_BYTES // dtype.itemsize
    sums = tl.zeros((rows.shape[0], columns.shape[0]), tl.float64 if dtype == tl.float64 else tl.float32)
    for start in range(0, depth, STEP):
        steps = start + tl.arange(0, STEP)
        x = part(a, rows, steps, m, depth, a_row, a_column, A_TURNED, ANY_STRIDES)
        y = part(b, steps, columns, depth, n, b_row, b_column, B_TURNED, ANY_STRIDES)
        sums = tl.dot(x, y, sums)
    return sums


def part(p, rows, columns, m, n, row, column, TURNED, ANY_STRIDES):
    """The tile of a matrix at `rows` and `columns`, 0 outside of it; read along what is contiguous."""
    if ANY_STRIDES:
        places = rows[:, None] * row + columns[None, :] * column
        return tl.load(p + places, mask=(rows[:, None] < m) & (columns[None, :] < n))
    if TURNED:
        places = columns[:, None] * column + (rows[None, :] + regular(m))
        return tl.load(p + places, mask=(columns[:, None] < n) & (rows[None, :] < m)).T
    places = rows[:, None] * row + (columns[None, :] + regular(n))
    return tl.load(p + places, mask=(rows[:, None] < m) & (columns[None, :] < n))


def regular(length):
    """0, for an address: code for aligned rows then counts on `length` too, so that no access is cut by its mask."""
    return length * 0


def store(out, rows, columns, m, n, row, column, value, ANY_STRIDES):
    """Write a tile of the result, but for what is outside of it."""
    keep = (rows[:, None] < m) & (columns[None, :] < n)
    if ANY_STRIDES:
        tl.store(out + rows[:, None] * row + columns[None, :] * column, value, mask=keep)
    else:
        tl.store(out + rows[:, None] * row + (columns[None, :] + regular(n)), value, mask=keep)


# ---- reference and cases -------------------------------------------------------------------------------------------


def case(m, n, depth, use="test", turned=()):
    sizes = f"{m} x {n} x {depth}" if not m == n == depth else f"{m} cubed"
    name = " ".join([sizes, *(f"{array}.T" for array in turned)])
    return Case(name, {"a": (m, depth), "b": (depth, n), "out": (m, n)}, use, turned=turned)


def layer(rows, n, depth, use="test"):
    shapes = {"x": (*rows, depth), "w": (n, depth), "bias": (n,), "out": (*rows, n)}
    return Case(" x ".join(map(str, (*rows, n, depth))), shapes, use)


SMALL = [(1, 1, 1), (2, 129, 40), (2, 1000, 40), (7, 33, 65), (65, 7, 33), (100, 72, 40), (64, 64, 128)]
SMALL += [(5, 7, 0), (0, 3, 4), (3, 0, 4)]
LARGE = [(1024,) * 3, (2048,) * 3, (4096,) * 3, (8192,) * 3, (4096, 4096, 1024), (16, 8192, 8192), (1000,) * 3]
CASES = [
    *(case(*sizes) for sizes in SMALL),
    *(case(100, 72, 40, turned=turned) for turned in [("a",), ("b",), ("a", "b")]),
    case(500, 500, 500, "demo"),
    *(case(*sizes, "bench", turned) for sizes in LARGE for turned in [(), ("b",)]),
]
LAYERS = [
    *(layer(sizes[:1], *sizes[1:]) for sizes in SMALL),
    layer((3, 5), 64, 72),
    layer((100, 10), 500, 500, "demo"),
    *(layer(rows, *sizes, "bench") for rows, *sizes in [((8, 512), 4096, 4096), ((16,), 8192, 8192)]),
]


def cost(shapes, itemsize):
    """What is read and written once, and two operations for each product of elements."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    depth = shapes["a" if "a" in shapes else "x"][-1]
    return Cost(sum(sizes.values()) * itemsize("out"), 2 * sizes["out"] * depth)


# Sums that cancel keep the error of their terms, whose last bits tensor cores cut off.
ACCURACY = Tolerance(f32=2e-6, f64=1e-14, absolute=6e-6)


spec(matmul, reference=lambda a, b: a @ b, cases=CASES, cost=cost, whole=["b"], tolerance=ACCURACY)
spec(
    linear,
    reference=lambda x, w, bias: x @ w.T + bias,
    cases=LAYERS,
    cost=cost,
    whole=["w", "bias"],
    tolerance=ACCURACY,
)
