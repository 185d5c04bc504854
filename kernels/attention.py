"""Attention: each query's mean of the values, weighted by the softmax of its products with the keys."""

import math

import numpy as np
from tiles import CUDA, GROUPS, WARPS, is_along, padded

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, Tolerance, spec

D = gm.dtype_var("D", [gm.f16, gm.bf16, gm.f32])

HEADS = [32, 64, 128, 256]

LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
CACHE_BYTES = 32 << 20  # of keys and values that programs read again while they are near
STALE = 8  # by how much, in powers of two, weights may exceed 1 before sums are rescaled: halves hold 256
FREE, FIRST, LAST = 0, 1, 2  # `causal`: no, or so that the first keys and queries meet, or the last ones

# SKIPS: a warp rescales sums only in steps in which a row of its own has a new greatest weight, of which there are few
# where keys are many; wide heads with less of them lose more by asking than they save.
LARGE = {"BLOCK_M": 128, "BLOCK_N": 128, "SKIPS": True, "num_warps": 8, "num_stages": 2, "aligned": True, **GROUPS}
BRIEF = LARGE | {"SKIPS": False}
MANY_KEYS = 8192
MEDIUM = LARGE | {"BLOCK_N": 64, "SKIPS": False, **WARPS}  # where warps multiply, each whole rows
GENERAL = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 8, "num_stages": 1, "narrow": False, **CUDA}
SMALL = GENERAL | {"BLOCK_M": 32, "BLOCK_N": 32}  # for heads that fill the registers
SHORT = GENERAL | {"BLOCK_N": 32, "aligned": True}  # where addresses take few of them
ON_CPU = {"BLOCK_M": 256, "BLOCK_N": 64, "narrow": False, "device": "cpu"}
TALL = LARGE | {"BLOCK_M": 192, "num_warps": 12}  # three warpgroups, which is best for many queries of narrow heads
LAZY = [tile | {"LAZY": True} for tile in (TALL, LARGE)]  # which nobody gets who does not ask
EXACT = (TALL, LARGE, BRIEF, MEDIUM, SHORT, GENERAL, SMALL, ON_CPU)
CONFIGS = [gm.Config(**{"SKIPS": False, "LAZY": False, **tile}) for tile in (*LAZY, *EXACT)]


def in_use(D, HEAD, BLOCK_M, BLOCK_N, SKIPS, LAZY):
    """What fits; the tile that does not skip is for wide heads, and usual heads may be rescaled lazily."""
    is_brief = BLOCK_N == 128 and not SKIPS
    is_usual = HEAD == 128 if is_brief else HEAD in (64, 128) or not LAZY
    return fits(D, HEAD, BLOCK_M, BLOCK_N) and is_usual


def fits(D, HEAD, BLOCK_M, BLOCK_N):
    """Wide elements and wide heads have the tile for all calls; the tallest is for the usual ones of narrow heads."""
    is_wide = D.itemsize * HEAD >= 256
    if BLOCK_M == 64 and BLOCK_N == 32:
        return D.itemsize == 4 and HEAD in (64, 128)
    if BLOCK_M in (32, 64):
        return (BLOCK_M == 32) == is_wide
    return BLOCK_M == 256 or (D.itemsize == 2 and (HEAD == 64 or (HEAD <= 128 and BLOCK_M == 128)))


def programs(batch, heads, queries, BLOCK_M):
    """The grid: programs go from tile to tile, as many as the device runs at once."""
    return gm.minimum(batch * heads * gm.cdiv(queries, BLOCK_M), gm.sm_count)


def is_laid(size, lengths, column, batch, wanted):
    """Whether an array has the lengths wanted behind its first one, and elements of a head are side by side."""
    total = batch
    for length in wanted:
        total = total * length
    fits = (size == total) & is_along(column, wanted[-1], size)
    for length, each in zip(lengths, wanted, strict=True):
        fits &= length == each
    return fits


def suits(
    batch, heads, queries, width, groups, keys, q_size, q_column, k_size, k_width, k_column, v_size, v_groups, v_keys,
    v_width, v_column, out_size, out_heads, out_queries, out_width, out_column, lse_size, HEAD,
):  # fmt: skip
    """Whether shapes go together, and elements of a head are side by side."""
    of_queries, of_keys = (heads, queries, HEAD), (groups, keys, HEAD)
    is_right = (
        is_laid(q_size, (heads, queries, width), q_column, batch, of_queries)
        & is_laid(k_size, (groups, keys, k_width), k_column, batch, of_keys)
        & is_laid(v_size, (v_groups, v_keys, v_width), v_column, batch, of_keys)
        & is_laid(out_size, (out_heads, out_queries, out_width), out_column, batch, of_queries)
    )
    is_shared = (heads % gm.maximum(groups, 1) == 0) & ((groups > 0) | (heads == 0))
    return is_right & is_shared & (lse_size * HEAD == q_size)


def rank(queries, keys, causal, HEAD, BLOCK_M, SKIPS, LAZY):
    """2 for a tile that is full enough, and skips where that pays; tall ones compute more of what no query sees.

    Less than any other has where sums are rescaled lazily.
    """
    least = gm.where(BLOCK_M == 192, gm.where(causal > 0, 4096, 1024), 64)
    is_slow = SKIPS & (HEAD == 128) & (keys < MANY_KEYS)
    is_for_all = (BLOCK_M <= 64) | (BLOCK_M == 256)
    return gm.where(is_for_all, 1, gm.where(queries >= least, gm.where(is_slow, 1, 2), 0)) - gm.where(LAZY, 3, 0)


@gm.kernel(
    configs=CONFIGS,
    HEAD=HEADS,
    where=in_use,
    grid=programs,
    pick=suits,
    prefer=rank,
    backward="attention_backward",
)
def attention_forward(
    q: gm.ptr[D], k: gm.ptr[D], v: gm.ptr[D], out: gm.ptr[D], lse: gm.ptr[gm.f32], scale: gm.f32, causal: gm.i32 = 0,
    window: gm.i32 = 0, batch: gm.shape["q", 0] = None, heads: gm.shape["q", 1] = None,
    queries: gm.shape["q", 2] = None, width: gm.shape["q", 3] = None, groups: gm.shape["k", 1] = None,
    keys: gm.shape["k", 2] = None, q_size: gm.size["q"] = None, q_batch: gm.stride["q", 0] = None,
    q_head: gm.stride["q", 1] = None, q_row: gm.stride["q", 2] = None, q_column: gm.stride["q", 3] = None,
    k_size: gm.size["k"] = None, k_width: gm.shape["k", 3] = None, k_batch: gm.stride["k", 0] = None,
    k_head: gm.stride["k", 1] = None, k_row: gm.stride["k", 2] = None, k_column: gm.stride["k", 3] = None,
    v_size: gm.size["v"] = None, v_groups: gm.shape["v", 1] = None, v_keys: gm.shape["v", 2] = None,
    v_width: gm.shape["v", 3] = None, v_batch: gm.stride["v", 0] = None, v_head: gm.stride["v", 1] = None,
    v_row: gm.stride["v", 2] = None, v_column: gm.stride["v", 3] = None, out_size: gm.size["out"] = None,
    out_heads: gm.shape["out", 1] = None, out_queries: gm.shape["out", 2] = None,
    out_width: gm.shape["out", 3] = None, out_batch: gm.stride["out", 0] = None, out_head: gm.stride["out", 1] = None,
    out_row: gm.stride["out", 2] = None, out_column: gm.stride["out", 3] = None, lse_size: gm.size["lse"] = None,
    HEAD: gm.constexpr = None, BLOCK_M: gm.constexpr = None, BLOCK_N: gm.constexpr = None,
    SKIPS: gm.constexpr = None, LAZY: gm.constexpr = None,
):  # fmt: skip
    """out = softmax(scale * q @ k.T) @ v for each head, and lse = the logarithm of the sum of exponentials.

    The shapes are [batch, heads, queries, HEAD] for q and out, [batch, groups, keys, HEAD] for k and v, and contiguous
    [batch, heads, queries] for lse; heads are a multiple of groups, and neighbours share keys and values. All but the
    elements of a head may lie any distance apart, as in `x.swapaxes(1, 2)` of [batch, queries, heads, HEAD].

    With `causal=1` query i sees keys up to i, with `causal=2` up to i + keys - queries. With a `window` above 0 it
    sees so many of these at most, the last ones; without `causal`, those nearer than that on both sides. A query that
    sees nothing gives 0, and -inf in lse. `scale` must not be negative: out is NaN then. Sums are f32, weights are
    rounded to the dtype of v.

    With `LAZY=True` sums are rescaled only when the greatest weight of a row has grown 256 times, which takes less time
    and rounds otherwise: weights reach 256. That is for f16 and bf16, heads of 64 and 128 and aligned arrays on CUDA
    devices whose warpgroups multiply (sm_90a).
    """
    shift = tl.where(causal == 2, keys - queries, 0)
    window = tl.minimum(window, queries + keys)
    q_blocks = blocks_of(q, batch, heads, queries, q_batch, q_head, q_row, BLOCK_M, HEAD)
    k_blocks = blocks_of(k, batch, groups, keys, k_batch, k_head, k_row, BLOCK_N, HEAD)
    v_blocks = blocks_of(v, batch, groups, keys, v_batch, v_head, v_row, BLOCK_N, HEAD)
    to = blocks_of(out, batch, heads, queries, out_batch, out_head, out_row, BLOCK_M, HEAD)
    factor = factor_of(scale)
    height = tl.cdiv(queries, BLOCK_M)
    near = together(batch * heads, keys * HEAD * D.itemsize * 2, causal)
    for tile in range(tl.program_id(0), batch * heads * height, tl.num_programs(0)):
        head, row = place_of(tile, batch * heads, height, near, causal)
        row *= BLOCK_M
        steps = tl.arange(0, padded(BLOCK_M))
        rows = row + steps
        i, j = head // heads, head % heads
        group = j // (heads // groups)
        low, high = seen(row, BLOCK_M, BLOCK_N, keys, shift, causal, window)
        first, last = limits(rows, keys, shift, causal, window)
        x = q_blocks.load([i, j, row, 0]).reshape(padded(BLOCK_M), HEAD)
        most = tl.full((padded(BLOCK_M),), -float("inf"), tl.float32)
        total = tl.zeros((padded(BLOCK_M),), tl.float32)
        sums = tl.zeros((padded(BLOCK_M), HEAD), tl.float32)
        for start in range(low, high, BLOCK_N):
            columns = start + tl.arange(0, BLOCK_N)
            s = tl.dot(x, k_blocks.load([i, group, start, 0]).reshape(BLOCK_N, HEAD).T)
            keep = (columns[None, :] >= first[:, None]) & (columns[None, :] < last[:, None])
            p, fall, top = weights(tl.where(keep, s, -float("inf")), most, factor, LAZY)
            total = total * fall + tl.sum(p, 1)
            sums = rescaled(sums, fall, top > most, SKIPS)
            most = top
            sums = tl.dot(p.to(D), v_blocks.load([i, group, start, 0]).reshape(BLOCK_N, HEAD), sums)
        sums *= inverse_of(total)[:, None]
        to.store([i, j, row, 0], sums.to(D).reshape(1, 1, padded(BLOCK_M), HEAD))
        tl.store(lse + head * queries + rows, logarithm(most, total), mask=(steps < BLOCK_M) & (rows < queries))


def factor_of(scale):
    """What products are multiplied by, in powers of two; NaN for a negative scale."""
    return tl.where(scale >= 0, tl.maximum(scale * LOG2_E, 1e-30), float("nan"))


def weights(s, most, factor, IS_LAZY=False):
    """2 to the power of products times `factor`, less the greatest so far; what earlier ones fall by; the greatest.

    If it `IS_LAZY`, that is one that was the greatest, until another exceeds it by more than STALE.
    """
    top = tl.maximum(most, tl.max(s, 1) * factor)
    if IS_LAZY:
        top = tl.where(top - most > STALE, top, most)
    origin = tl.where(top == -float("inf"), 0.0, top)
    # Rounded once: large products would lose what they differ by.
    return tl.exp2(tl.fma(s, factor, -origin[:, None])), tl.exp2(most - origin), top


def rescaled(sums, fall, is_raised, SKIPS):
    """Sums times what their rows fall by; or, if it `SKIPS`, those of rows whose greatest was raised: others have 1."""
    if SKIPS:
        return tl.where(is_raised[:, None], sums * fall[:, None], sums)
    return sums * fall[:, None]


def inverse_of(total):
    """1 / total; 0 where nothing was summed."""
    return tl.where(total > 0, tl.extra.libdevice.fast_dividef(1.0, total), 0.0)


def logarithm(most, total):
    """The natural logarithm of 2 to the power of `most`, `total` times."""
    return (most + tl.extra.libdevice.fast_log2f(total)) * LN_2


def blocks_of(p, batch, heads, rows, batch_stride, head_stride, row_stride, ROWS, HEAD):
    """A descriptor of an array of [batch, heads, rows, HEAD] by blocks of rows of one head."""
    return tl.make_tensor_descriptor(
        p, [batch, heads, rows, HEAD], [batch_stride, head_stride, row_stride, 1], [1, 1, ROWS, HEAD]
    )


def together(heads, bytes_of_head, causal):
    """How many heads programs take in turn: as many as stay in the cache, where tiles of a head differ in length."""
    return tl.where(causal > 0, tl.minimum(tl.maximum(CACHE_BYTES // tl.maximum(bytes_of_head, 1), 1), heads), 1)


def place_of(tile, heads, height, near, causal):
    """The head and the number of a block of its queries: of some heads the longest blocks first."""
    group, place = tile // (height * near), tile % (height * near)
    last = heads % near  # of the last group, if it is not full: what no loop changes is fast to divide by
    is_full = (group + 1) * near <= heads
    row = tl.where(is_full, place // near, place // last)
    head = group * near + tl.where(is_full, place % near, place % last)
    return head, tl.where(causal > 0, height - 1 - row, row)


def limits(rows, keys, shift, causal, window):
    """The first key that each query sees, and the one behind the last."""
    first = tl.where(window > 0, rows + shift - window + 1, 0)
    last = tl.where(causal > 0, rows + shift + 1, tl.where(window > 0, rows + shift + window, keys))
    return first, tl.minimum(last, keys)


def seen(row, ROWS, COLUMNS, keys, shift, causal, window):
    """From where to where some query of a block sees keys; the first is that of a block of keys."""
    first, _ = limits(row, keys, shift, causal, window)
    _, last = limits(row + ROWS - 1, keys, shift, causal, window)
    return tl.maximum(first, 0) // COLUMNS * COLUMNS, last


# ---- reference and cases -------------------------------------------------------------------------------------------


def reference(q, k, v, scale, causal, window):
    """By the definition, in float64."""
    k, v = (np.repeat(x, q.shape[1] // max(1, k.shape[1]), axis=1) for x in (k, v))
    return np_weighted(q, k, v, scale, np_seen(q.shape[2], k.shape[2], causal, window))


def np_seen(queries, keys, causal, window):
    """Which keys each query sees."""
    shift = keys - queries if causal == LAST else 0
    distance = np.arange(keys)[None, :] - np.arange(queries)[:, None] - shift
    keep = np.full((queries, keys), True)
    if causal:
        keep &= distance <= 0
    if window > 0:
        keep &= (distance > -window) & (distance < window)
    return keep


def np_weighted(q, k, v, scale, keep):
    """What queries of [..., heads, queries, HEAD] see of as many heads of keys, and the logarithm of their sum."""
    s = np.where(keep, scale * q @ k.swapaxes(-2, -1), -np.inf)
    most = np.max(s, -1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isinf(most), 0, most))
    total = p.sum(-1, keepdims=True)
    return p @ v / np.where(total > 0, total, 1), (np.log(total) + most)[..., 0]


def case(batch, heads, queries, head, groups=None, keys=None, use="test", **scalars):
    groups, keys = groups or heads, queries if keys is None else keys
    size = f"{batch} x {heads} x {queries} x {head}"
    others = [f"{groups} groups"] * (groups != heads) + [f"{keys} keys"] * (keys != queries)
    name = ", ".join([size, *others, *(f"{name} {value}" for name, value in scalars.items())])
    rows, columns = (batch, heads, queries, head), (batch, groups, keys, head)
    shapes = {"q": rows, "k": columns, "v": columns, "out": rows, "lse": rows[:3]}
    return Case(name, shapes, use, scalars={"scale": 1 / math.sqrt(head), **scalars})


CASES = [
    case(1, 2, 129, 64),
    case(2, 1, 1, 64),
    case(1, 4, 77, 64, groups=2, keys=133),
    case(1, 1, 200, 64, causal=FIRST),
    case(1, 2, 60, 64, groups=1, keys=170, causal=LAST),
    case(1, 1, 170, 64, keys=60, causal=LAST),
    case(1, 1, 150, 64, causal=FIRST, window=40),
    case(1, 1, 150, 64, window=70),
    case(1, 1, 129, 64, keys=5),
    case(1, 3, 70, 32, causal=FIRST),
    case(1, 2, 40, 256, groups=1, keys=70),
    case(1, 1, 3, 64, keys=0),
    case(0, 1, 3, 64),
    case(1, 8, 500, 64, use="demo"),
    *(case(4, 32, 4096, head, use="bench", **how) for head in (64, 128) for how in ({}, {"causal": FIRST})),
    *(case(1, 32, 16384, head, use="bench", **how) for head in (64, 128) for how in ({}, {"causal": FIRST})),
    *(case(16, 16, 512, 128, use="bench", **how) for how in ({}, {"causal": FIRST})),
    *(case(4, 32, 1024, 128, use="bench", **how) for how in ({}, {"causal": FIRST})),
    *(case(2, 16, 2048, 128, use="bench", **how) for how in ({}, {"causal": FIRST})),
]


def cost(shapes, itemsize):
    """What is read and written once, and two operations for each product of elements, as if every key was seen."""
    batch, heads, queries, head = shapes["q"]
    size = sum(math.prod(shape) * itemsize(name) for name, shape in shapes.items())
    return Cost(size, 4 * batch * heads * queries * shapes["k"][2] * head)


ACCURACY = Tolerance(f32=4e-6, half_ulps=1.0, absolute=4e-3)

spec(attention_forward, reference=reference, cases=CASES, cost=cost, whole=["k", "v"], tolerance=ACCURACY)
