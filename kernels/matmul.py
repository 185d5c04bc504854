"""Products of matrices, on tensor cores where there are some."""

import math

from tiles import CUDA, GROUPS, WARPS, padded, summed_in

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, Tolerance, spec

D = gm.dtype_var("D", gm.Float)

GROUP = tl.constexpr(8)  # tiles below each other that are computed in a row: they share what they read of B
SMALL = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 6, "narrow": False}
BROAD = SMALL | {"num_warps": 8}  # for wide elements, which take more registers, but where
SLIM = SMALL | {"num_stages": 5, "aligned": True}  # f32 is aligned: a warpgroup multiplies it, and addresses take few
# PER_TWO: how many programs two multiprocessors run at once. Of four, one computes while another one stores. One is
# shared by both: they read the columns of b together, which pays where rows begin in the middle of 32 bytes.
PAIR = {"BLOCK_M": 128, "BLOCK_N": 128, "PER_TWO": 4, "num_warps": 4, "num_stages": 3, "aligned": True}
TILES = [
    {"BLOCK_M": 16, "BLOCK_N": 64, "num_warps": 4, "num_stages": 8, "aligned": True, **CUDA},
    {"BLOCK_M": 128, "BLOCK_N": 256, "num_warps": 8, "num_stages": 4, "aligned": True, **GROUPS},
    {"BLOCK_M": 256, "BLOCK_N": 128, "num_warps": 8, "num_stages": 4, "aligned": True, **GROUPS},
    {"BLOCK_M": 128, "BLOCK_N": 192, "num_warps": 8, "num_stages": 5, "aligned": True, **GROUPS},
    {"BLOCK_M": 144, "BLOCK_N": 128, "num_warps": 8, "num_stages": 5, "aligned": True, **GROUPS},
    {"BLOCK_M": 136, "BLOCK_N": 128, "num_warps": 8, "num_stages": 5, "aligned": True, **GROUPS},
    {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4, "num_stages": 8, "aligned": True, **CUDA},
    {**PAIR, "blocks_per_sm": 2, **GROUPS},
    {**PAIR, **WARPS},
    {**PAIR, "PER_TWO": 1, "num_stages": 6, "num_ctas": 2, **GROUPS},
    {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 6, "aligned": True, "warpgroups": True},
    SMALL,
    SLIM,
    BROAD,
]
TILES = [{"PER_TWO": 2, **tile} for tile in TILES]
CONFIGS = [gm.Config(**tile, A_TURNED=False, B_TURNED=b, ANY_STRIDES=False) for b in (False, True) for tile in TILES]
TURNED = [{**tile, "A_TURNED": True, "aligned": True, "warpgroups": None} for tile in TILES]
CONFIGS += [gm.Config(**tile, B_TURNED=b, ANY_STRIDES=False) for b in (False, True) for tile in TURNED]
# Other strides, and turned rows that are not aligned, come element by element: one configuration is enough for them.
CONFIGS += [gm.Config(**tile, PER_TWO=2, A_TURNED=False, B_TURNED=False, ANY_STRIDES=True) for tile in (SMALL, BROAD)]


def fits(D, BLOCK_M, BLOCK_N, PER_TWO, num_warps, num_stages):
    """Whether a tile's sums and steps fit: wide elements take smaller tiles, of fewer kinds."""
    size = BLOCK_M * BLOCK_N * D.itemsize
    if BLOCK_M * BLOCK_N == 4096:
        of_dtype = {2: [(4, 6)], 4: [(4, 5), (8, 6)], 8: [(8, 6)]}
        return (num_warps, num_stages) in of_dtype[D.itemsize]
    if D.itemsize == 2:
        return size <= 65536 and BLOCK_M != 256
    return PER_TWO == 2 and size == 65536


def in_use(D, BLOCK_M, BLOCK_N, PER_TWO, num_warps, num_stages, A_TURNED, B_TURNED, PRECISION):
    """What fits; where `a` is turned, which is rarer, one tile for all shapes. Only f32 has a choice of precision.

    The longer side of a tile of tf32 is that of the operand which warpgroups read along the depth, in place.
    """
    is_common = PER_TWO == 2 and BLOCK_M == BLOCK_N == (64 if D.itemsize == 8 else 128)
    is_rough = PRECISION == "tf32"
    is_fit = fits(D, BLOCK_M, BLOCK_N, PER_TWO, num_warps, num_stages)
    is_fit |= is_rough and (BLOCK_N if B_TURNED else BLOCK_M) == 256
    return is_fit and (D.itemsize == 4 or not is_rough) and (not A_TURNED or is_common)


def programs(m, n, BLOCK_M, BLOCK_N, PER_TWO):
    """The grid: programs go from tile to tile, as many as the device runs at once."""
    return gm.minimum(gm.cdiv(m, BLOCK_M) * gm.cdiv(n, BLOCK_N), gm.maximum(gm.sm_count * PER_TWO // 2, 1))


def suits(
    m, n, depth, a_size, a_row, a_column, b_size, b_rows, b_row, b_column, out_size, out_rows, out_columns, out_row,
    out_column, A_TURNED, B_TURNED, ANY_STRIDES,
):  # fmt: skip
    """Whether shapes go together, and strides are those of a configuration."""
    is_matrix = (a_size == m * depth) & (b_size == depth * n) & (out_size == m * n)
    agrees = (b_rows == depth) & (out_rows == m) & (out_columns == n)
    a = gm.where(A_TURNED, (a_row == 1) | (m <= 1), (a_column == 1) | (depth <= 1))
    b = gm.where(B_TURNED, (b_row == 1) | (depth <= 1), (b_column == 1) | (n <= 1))
    is_dense = a & b & ((out_column == 1) | (n <= 1))
    return is_matrix & agrees & (ANY_STRIDES | is_dense)


def rank(m, n, depth, a_row, a_column, b_row, b_column, BLOCK_M, BLOCK_N, PER_TWO, ANY_STRIDES):
    """The larger the less time a tile takes, which is many times as long where it is read element by element."""
    reading = cost_of_row(gm.maximum(a_row, a_column)), cost_of_row(gm.maximum(b_row, b_column))
    return -time_of(m, n, depth, *reading, BLOCK_M, BLOCK_N, PER_TWO) * gm.where(ANY_STRIDES, 64, 1)


def cost_of_row(pitch):
    """What it costs to read a row of a tile: twice as much where halves do not begin on 32 bytes, as 1000 of them."""
    return gm.where(pitch % 16 == 0, 4000, 8000)


def time_of(m, n, depth, of_row, of_column, BLOCK_M, BLOCK_N, PER_TWO):
    """What a product takes by a configuration."""
    several = gm.where(PER_TWO == 4, time_of_pairs(m, n, depth), time_of_shared(m, n, depth, of_row, of_column))
    return gm.where(PER_TWO == 2, time(m, n, depth, of_row, of_column, BLOCK_M, BLOCK_N), several)


def time(m, n, depth, of_row, of_column, rows, columns):
    """What a product takes in tiles of rows x columns: rounds of all multiprocessors, times the cost of a tile.

    An element costs more where instructions are narrow, or share less of what they read; what comes before and behind
    the depth of a tile takes as long as 64 of it, or 96 where it is large. Reading takes no time of its own, but as
    long as it takes.
    """
    cost = gm.where(
        rows == 128, gm.where(columns == 256, 100, gm.where(columns == 192, 102, 104)), gm.where(rows == 256, 100, 102)
    )
    cost = gm.where(rows == 64, gm.where(columns == 128, 115, 150), gm.where(rows == 16, 320, cost))
    rounds = gm.cdiv(gm.cdiv(m, rows) * gm.cdiv(n, columns), gm.sm_count)
    around = gm.where(rows * columns > 16384, 96, 64)
    return rounds * gm.maximum(rows * columns * cost, rows * of_row + columns * of_column) * (depth + around)


def time_of_shared(m, n, depth, of_row, of_column):
    """The same for programs of two multiprocessors, each of which has 64 rows, and reads 64 columns for both.

    They wait for each other when they begin and end.
    """
    rounds = gm.cdiv(2 * gm.cdiv(m, 128) * gm.cdiv(n, 128), gm.sm_count)
    return rounds * gm.maximum(64 * 128 * 115, 64 * of_row + 64 * of_column) * (depth + 264)


def time_of_pairs(m, n, depth):
    """The same for two programs a multiprocessor, of which one computes what the other one waits."""
    rounds = 2 * gm.cdiv(gm.cdiv(m, 128) * gm.cdiv(n, 128), 2 * gm.sm_count)
    return rounds * (128 * 128 * 118) * gm.maximum(depth, 1)


def is_worth_copies(m, n, depth):
    """Whether tiles of general code take longer than copies of matrices with aligned rows."""
    return m * n * depth >= 1 << 29


# What a tile costs depends on how operands lie: rows of one table have both.
KEY = ["m", "n", "depth", "a_column == 1", "b_column == 1"]


@gm.kernel(
    configs=CONFIGS,
    PRECISION=["exact", "tf32"],
    where=in_use,
    grid=programs,
    pick=suits,
    prefer=rank,
    key=KEY,
    padded=is_worth_copies,
    backward="matmul_backward",
)
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
    PER_TWO: gm.constexpr,
    A_TURNED: gm.constexpr,
    B_TURNED: gm.constexpr,
    ANY_STRIDES: gm.constexpr,
    PRECISION: gm.constexpr,
):
    """out = a @ b for matrices of shapes [m, depth], [depth, n] and [m, n], of one dtype.

    Rows may be farther apart than they are long, and a or b the transpose of such an array (`w.T`); other strides are
    slower. Large matrices whose rows are not aligned to 16 bytes are copied so that they are. Sums are f32, or f64 for
    f64, and rounded once. The products of f32 have its accuracy; with `PRECISION="tf32"` devices multiply 11 bits of
    each element, which is faster.
    """
    if ANY_STRIDES:
        places = (a_row, a_column, b_row, b_column, out_row, out_column)
        scattered(a, b, out, places, m, n, depth, BLOCK_M, BLOCK_N, D, precision_of(PRECISION))
    else:
        STEP: tl.constexpr = step_of(BLOCK_M, BLOCK_N, D)
        left = matrix(a, m, depth, a_row, a_column, BLOCK_M, STEP, A_TURNED)
        right = matrix(b, depth, n, b_row, b_column, STEP, BLOCK_N, B_TURNED)
        to = matrix(out, m, n, out_row, 1, BLOCK_M, BLOCK_N, False)
        for tile in range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N), tl.num_programs(0)):
            row, column = place_of(tile, m, n, BLOCK_M, BLOCK_N)
            how = precision_of(PRECISION)
            sums = product(left, right, row, column, depth, BLOCK_M, BLOCK_N, STEP, D, A_TURNED, B_TURNED, how)
            to.store([row, column], sums)


def precision_of(PRECISION):
    """What `tl.dot` calls it."""
    return "tf32x3" if PRECISION == "exact" else "tf32"


def programs_of_rows(n, out_size, BLOCK_M, BLOCK_N, PER_TWO):
    """As `programs`, for all rows of an array of any rank."""
    return programs(out_size // n, n, BLOCK_M, BLOCK_N, PER_TWO)


def suits_rows(n, depth, x_size, w_size, w_depth, bias_size, out_size, out_columns):
    """As `suits`, for contiguous arrays of which only the last axis counts."""
    is_layer = (w_size == n * depth) & (w_depth == depth) & (bias_size == n)
    agrees = (x_size * n == out_size * depth) & (out_columns == n)
    return is_layer & agrees


def rank_of_rows(n, depth, out_size, BLOCK_M, BLOCK_N, PER_TWO):
    """As `rank`, for all rows of an array of any rank."""
    return -time_of(out_size // n, n, depth, cost_of_row(depth), cost_of_row(depth), BLOCK_M, BLOCK_N, PER_TWO)


@gm.kernel(
    configs=[gm.Config(**tile) for tile in TILES],
    where=fits,
    grid=programs_of_rows,
    pick=suits_rows,
    prefer=rank_of_rows,
    key=["out_size // n", "n", "depth"],
    backward="linear_backward",
)
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
    PER_TWO: gm.constexpr,
):
    """out = x @ w.T + bias along the last axis, for contiguous arrays of one dtype.

    The shapes are [..., depth], [n, depth], [n] and [..., n]. Sums are as those of `matmul`, rounded once with the
    bias.
    """
    m = out_size // n
    STEP: tl.constexpr = step_of(BLOCK_M, BLOCK_N, D)
    left = matrix(x, m, depth, depth, 1, BLOCK_M, STEP, False)
    right = matrix(w, depth, n, 1, depth, STEP, BLOCK_N, True)
    to = matrix(out, m, n, n, 1, BLOCK_M, BLOCK_N, False)
    for tile in range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N), tl.num_programs(0)):
        row, column = place_of(tile, m, n, BLOCK_M, BLOCK_N)
        sums = product(left, right, row, column, depth, BLOCK_M, BLOCK_N, STEP, D, False, True)
        columns = column + tl.arange(0, padded(BLOCK_N))
        terms = tl.load(bias + columns, mask=columns < n).to(sums.dtype)
        to.store([row, column], sums + terms[None, :])


def place_of(tile, m, n, ROWS, COLUMNS):
    """The first row and column of a tile: tiles go down GROUP of them, then to the next column."""
    height = tl.cdiv(m, ROWS)
    size = GROUP * tl.cdiv(n, COLUMNS)
    first = tile // size * GROUP
    rest = tl.minimum(height - first, GROUP)
    place = tile % size
    return (first + place % rest) * ROWS, place // rest * COLUMNS


def step_of(ROWS, COLUMNS, dtype):
    """How far one step of the loop goes along the depth: longer where it has little to compute."""
    return (256 if ROWS * COLUMNS <= 4096 and dtype.itemsize == 2 else 128) // dtype.itemsize


def matrix(p, m, n, row, column, ROWS, COLUMNS, TURNED):
    """A descriptor of a matrix of m rows and n columns that is read along its rows or, `TURNED`, its columns."""
    if TURNED:
        return tl.make_tensor_descriptor(p, [n, m], [column + regular(m), 1], [COLUMNS, ROWS])
    return tl.make_tensor_descriptor(p, [m, n], [row + regular(n), 1], [ROWS, COLUMNS])


def regular(length):
    """0, for an address: code for aligned rows then counts on `length` too, so that no access is cut by its mask."""
    return length * 0


def product(left, right, row, column, depth, ROWS, COLUMNS, STEP, dtype, LEFT_TURNED, RIGHT_TURNED, PRECISION="tf32x3"):
    """The sums of one tile, by steps of the depth; some are computed as transposes, since instructions have 64 rows."""
    if is_swapped(ROWS):
        sums = tl.zeros((COLUMNS, padded(ROWS)), summed_in(dtype))
        for start in range(0, depth, STEP):
            y = right.load([column, start]) if RIGHT_TURNED else right.load([start, column]).T
            sums = tl.dot(y, left.load([row, start]).T, sums, PRECISION)
        return sums.T
    sums = tl.zeros((ROWS, padded(COLUMNS)), summed_in(dtype))
    for start in range(0, depth, STEP):
        x = left.load([start, row]).T if LEFT_TURNED else left.load([row, start])
        y = right.load([column, start]).T if RIGHT_TURNED else right.load([start, column])
        sums = tl.dot(x, y, sums, PRECISION)
    return sums


def is_swapped(rows):
    """Whether tiles of so many rows are computed as transposes."""
    return rows % 64 != 0


def scattered(a, b, out, places, m, n, depth, ROWS, COLUMNS, dtype, PRECISION):
    """The product of matrices whose elements lie anywhere: `places` are their strides along rows and columns."""
    a_row, a_column, b_row, b_column, out_row, out_column = places
    STEP: tl.constexpr = 64 // dtype.itemsize
    for tile in range(tl.program_id(0), tl.cdiv(m, ROWS) * tl.cdiv(n, COLUMNS), tl.num_programs(0)):
        row, column = place_of(tile, m, n, ROWS, COLUMNS)
        rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
        sums = tl.zeros((ROWS, COLUMNS), summed_in(dtype))
        for start in range(0, depth, STEP):
            steps = start + tl.arange(0, STEP)
            left = a + rows[:, None] * a_row + steps[None, :] * a_column
            right = b + steps[:, None] * b_row + columns[None, :] * b_column
            x = tl.load(left, mask=(rows[:, None] < m) & (steps[None, :] < depth))
            y = tl.load(right, mask=(steps[:, None] < depth) & (columns[None, :] < n))
            sums = tl.dot(x, y, sums, PRECISION)
        targets = rows[:, None] * out_row + columns[None, :] * out_column
        tl.store(out + targets, sums, mask=(rows[:, None] < m) & (columns[None, :] < n))


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
LARGE = [(size,) * 3 for size in (1024, 2048, 4096, 8192, 1536, 3072, 1000, 4095)]
LARGE += [(2432, 1792, 4096), (8192, 8192, 512), (4096, 4096, 1024), (1000, 3000, 777)]
LARGE += [(16, 8192, 8192), (64, 8192, 8192), (128, 4096, 4096)]
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
