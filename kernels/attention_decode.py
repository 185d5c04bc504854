"""Attention of few queries over a cache of keys, contiguous or in pages: parts of the keys side by side."""

import math

import numpy as np
from attention import (
    ACCURACY,
    FIRST,
    LAST,
    factor_of,
    inverse_of,
    is_laid,
    logarithm,
    np_seen,
    np_weighted,
    seen,
    weights,
)
from tiles import is_along

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, spec

D = gm.dtype_var("D", [gm.f16, gm.bf16, gm.f32])

ROWS = 16  # queries of a program: what an instruction of a tensor core takes
KEYS = 64  # of which parts have whole blocks
# Few warps wait little for each other; where loads are narrow, more have registers for the addresses.
CONFIGS = [
    gm.Config(STEP=32, num_warps=2, num_stages=3, aligned=True, device="cuda"),
    gm.Config(STEP=32, num_warps=4, num_stages=3, narrow=False),
    gm.Config(STEP=32, num_warps=8, num_stages=3, narrow=False),
    gm.Config(STEP=16, num_warps=4, num_stages=3, narrow=False),
]


def fits(D, STEP, num_warps):
    """Wide elements have shorter steps, and no program of few warps: they would not stay in registers."""
    return (D.itemsize == 2) == (STEP == 32) and num_warps < 8


def fits_pages(D, HEAD, STEP, num_warps):
    """As `fits`; wide heads have more warps, since rows of pages have addresses of their own."""
    if STEP == 32 and num_warps > 2:
        return D.itemsize == 2 and (num_warps == 8) == (HEAD == 128)
    return fits(D, STEP, num_warps)


def programs(heads, queries, groups, batch, parts):
    """The grid: for each part, the rows of each group."""
    rows = heads // gm.maximum(groups, 1) * queries
    return batch * groups * parts * gm.cdiv(rows, ROWS)


def goes_together(batch, heads, queries, width, groups, q_size, q_column, lengths_size, parts, partial_size,
                  partial_width, lse_size, HEAD):  # fmt: skip
    """Whether the queries and the results have shapes that go together, and elements of a head are side by side."""
    is_q = is_laid(q_size, (heads, queries, width), q_column, batch, (heads, queries, HEAD))
    is_out = (partial_size == parts * q_size) & (partial_width == HEAD) & (lse_size * HEAD == partial_size)
    return is_q & is_out & (parts > 0) & (lengths_size == batch) & (heads % gm.maximum(groups, 1) == 0)


def suits(
    batch, heads, queries, width, groups, keys, parts, q_size, q_column, k_size, k_batch_size, k_width, k_column,
    v_size, v_groups, v_keys, v_width, v_column, lengths_size, partial_size, partial_width, lse_size, HEAD,
):  # fmt: skip
    """Whether shapes go together, and elements of a head are side by side."""
    wanted = (groups, keys, HEAD)
    is_k = is_laid(k_size, (groups, keys, k_width), k_column, batch, wanted) & (k_batch_size == batch)
    is_v = is_laid(v_size, (v_groups, v_keys, v_width), v_column, batch, wanted)
    others = goes_together(
        batch, heads, queries, width, groups, q_size, q_column, lengths_size, parts, partial_size, partial_width,
        lse_size, HEAD,
    )  # fmt: skip
    return is_k & is_v & others


@gm.kernel(configs=CONFIGS, HEAD=[64, 128], where=fits, grid=programs, pick=suits)
def attention_decode(
    q: gm.ptr[D],
    k: gm.ptr[D],
    v: gm.ptr[D],
    lengths: gm.ptr[gm.i32],
    partial: gm.ptr[gm.f32],
    partial_lse: gm.ptr[gm.f32],
    scale: gm.f32,
    causal: gm.i32 = 0,
    window: gm.i32 = 0,
    batch: gm.shape["q", 0] = None,
    heads: gm.shape["q", 1] = None,
    queries: gm.shape["q", 2] = None,
    width: gm.shape["q", 3] = None,
    groups: gm.shape["k", 1] = None,
    keys: gm.shape["k", 2] = None,
    parts: gm.shape["partial", 0] = None,
    q_size: gm.size["q"] = None,
    q_batch: gm.stride["q", 0] = None,
    q_head: gm.stride["q", 1] = None,
    q_row: gm.stride["q", 2] = None,
    q_column: gm.stride["q", 3] = None,
    k_size: gm.size["k"] = None,
    k_batch_size: gm.shape["k", 0] = None,
    k_width: gm.shape["k", 3] = None,
    k_batch: gm.stride["k", 0] = None,
    k_head: gm.stride["k", 1] = None,
    k_row: gm.stride["k", 2] = None,
    k_column: gm.stride["k", 3] = None,
    v_size: gm.size["v"] = None,
    v_groups: gm.shape["v", 1] = None,
    v_keys: gm.shape["v", 2] = None,
    v_width: gm.shape["v", 3] = None,
    v_batch: gm.stride["v", 0] = None,
    v_head: gm.stride["v", 1] = None,
    v_row: gm.stride["v", 2] = None,
    v_column: gm.stride["v", 3] = None,
    lengths_size: gm.size["lengths"] = None,
    partial_size: gm.size["partial"] = None,
    partial_width: gm.shape["partial", 4] = None,
    lse_size: gm.size["partial_lse"] = None,
    HEAD: gm.constexpr = None,
    STEP: gm.constexpr = None,
):
    """parts of attention_forward for few queries and many keys, which `attention_combine` joins.

    The shapes are [batch, heads, queries, HEAD] for q, [batch, groups, keys, HEAD] for k and v, [batch] for lengths,
    and for what is written contiguous [parts, batch, heads, queries, HEAD] and [parts, batch, heads, queries], both
    f32. Sequence i has lengths[i] keys, i32, at most `keys`; places behind them are never read. All but the elements of
    a head may lie any distance apart. `scale`, `causal`, `window` and groups of heads are those of attention_forward;
    with `causal=2` the last query sees all keys of its sequence.

    The keys that a sequence's queries see are dealt out in parts of whole blocks of 64, a program each. A part without
    keys is 0, and -inf in partial_lse. Programs should fill the device's multiprocessors about twice:
    parts = max(1, min(2 * sm_count // (batch * groups), keys // 256)). Up to 16 rows, those of queries * heads //
    groups, read the keys together; the next 16 read them again.
    """
    i, group, part, rows = place_of(heads // groups * queries, groups, parts)
    length = tl.minimum(tl.load(lengths + i), keys)
    x = queries_of(q + i * q_batch, rows, group, heads // groups, queries, q_head, q_row, HEAD)
    start, stop = part_of(part, parts, length, queries, causal, window)
    factor = factor_of(scale)
    k_at, v_at = k + i * k_batch + group * k_head, v + i * v_batch + group * v_head
    most, total, sums = nothing(STEP, HEAD)
    for at in range(start, stop, STEP):
        columns, d = (at + tl.arange(0, STEP))[:, None], tl.arange(0, HEAD)[None, :]
        inside = length - columns > 0
        y = tl.load(k_at + columns * k_row + d, mask=inside)
        z = tl.load(v_at + columns * v_row + d, mask=inside)
        keep = keep_of(rows % queries, at, length, queries, causal, window, STEP)
        p, fall, most, total = weights_of(tl.dot(x, y.T), keep, factor, most, total)
        sums = tl.dot(p.to(D), z, sums * fall)
    first = (part * batch + i) * heads * queries + group * (heads // groups) * queries
    store_part(partial, partial_lse, first, rows, heads // groups * queries, most, total, sums)


def place_of(height, groups, parts):
    """What a program is for: a sequence, a group of heads, a part of the keys, and rows of the group.

    Neighbours read the same keys, if they are not the only ones, or those that follow.
    """
    tiles = tl.cdiv(height, ROWS)
    place, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    place, part = place // parts, place % parts
    return place // groups, place % groups, part, tile * ROWS + tl.arange(0, ROWS)


def queries_of(q, rows, group, share, queries, head_stride, row_stride, HEAD):
    """The rows of a group: all queries of its first head, of its next one, and so on; zeros behind them."""
    member = rows // queries
    places = (group * share + member) * head_stride + rows % queries * row_stride
    return tl.load(q + places[:, None] + tl.arange(0, HEAD)[None, :], mask=share - member[:, None] > 0)


def part_of(part, parts, length, queries, causal, window):
    """From where to where a part has keys that some query sees; it starts at a block."""
    shift = tl.where(causal == LAST, length - queries, 0)
    low, high = seen(0, queries, KEYS, length, shift, causal, window)
    size = tl.cdiv(tl.cdiv(tl.maximum(high - low, 0), KEYS), parts) * KEYS
    return low + part * size, tl.minimum(low + part * size + size, high)


def keep_of(row, start, length, queries, causal, window, STEP):
    """Which keys of a block each query sees."""
    shift = tl.where(causal == LAST, length - queries, 0)
    return is_seen(row[:, None], (start + tl.arange(0, STEP))[None, :], length, shift, causal, window)


def is_seen(row, column, keys, shift, causal, window):
    """Whether queries see keys, by `limits`: in cheap steps from numbers, which threads take where they need it."""
    rises, moves = tl.where(window > 0, 1, 0), tl.where((causal > 0) | (window > 0), 1, 0)
    first = tl.where(window > 0, shift - window + 1, 0)
    last = tl.where(causal > 0, shift + 1, tl.where(window > 0, shift + window, keys))
    return (column >= row * rises + first) & (column < row * moves + last) & (column < keys)


def nothing(STEP, HEAD):
    """The greatest product, the sum of weights by their place in a block, and the weighted sums, of no keys."""
    total, sums = tl.zeros((ROWS, STEP), tl.float32), tl.zeros((ROWS, HEAD), tl.float32)
    return tl.full((ROWS,), -float("inf"), tl.float32), total, sums


def weights_of(s, keep, factor, most, total):
    """The weights of a block of keys, what those before it are multiplied by, and what becomes of `nothing`."""
    p, fall, most = weights(tl.where(keep, s, -float("inf")), most, factor)
    return p, fall[:, None], most, total * fall[:, None] + p


def store_part(partial, partial_lse, first, rows, height, most, total, sums):
    """Write the mean of the values, and the logarithm of the sum of exponentials."""
    weight = tl.sum(total, 1)
    inside = rows < height
    places = tl.where(inside, first + rows, 0)  # promises nothing: lengths need not be multiples for it
    tl.store(partial_lse + places, logarithm(most, weight), mask=inside)
    sums *= inverse_of(weight)[:, None]
    d = tl.arange(0, sums.shape[1])
    tl.store(partial + places[:, None] * sums.shape[1] + d[None, :], sums, mask=inside[:, None])


# ---- a cache of pages ----------------------------------------------------------------------------------------------


def suits_pages(
    batch, heads, queries, width, pages, page, groups, parts, q_size, q_column, k_size, k_width, k_column, v_size,
    v_page_size, v_groups, v_width, v_column, table_size, table_rows, table_columns, table_column, lengths_size,
    partial_size, partial_width, lse_size, HEAD,
):  # fmt: skip
    """Whether shapes go together, pages have a power of two of keys, and elements of a head are side by side."""
    wanted = (page, groups, HEAD)
    is_k = is_laid(k_size, (page, groups, k_width), k_column, pages, wanted)
    is_v = is_laid(v_size, (v_page_size, v_groups, v_width), v_column, pages, wanted)
    is_table = (table_rows == batch) & is_along(table_column, table_columns, table_size)
    others = goes_together(
        batch, heads, queries, width, groups, q_size, q_column, lengths_size, parts, partial_size, partial_width,
        lse_size, HEAD,
    )  # fmt: skip
    return is_k & is_v & is_table & (page > 0) & (gm.next_power_of_2(page) == page) & others


@gm.kernel(configs=CONFIGS, HEAD=[64, 128], where=fits_pages, grid=programs, pick=suits_pages)
def attention_decode_paged(
    q: gm.ptr[D],
    k: gm.ptr[D],
    v: gm.ptr[D],
    table: gm.ptr[gm.i32],
    lengths: gm.ptr[gm.i32],
    partial: gm.ptr[gm.f32],
    partial_lse: gm.ptr[gm.f32],
    scale: gm.f32,
    causal: gm.i32 = 0,
    window: gm.i32 = 0,
    batch: gm.shape["q", 0] = None,
    heads: gm.shape["q", 1] = None,
    queries: gm.shape["q", 2] = None,
    width: gm.shape["q", 3] = None,
    pages: gm.shape["k", 0] = None,
    page: gm.shape["k", 1] = None,
    groups: gm.shape["k", 2] = None,
    parts: gm.shape["partial", 0] = None,
    q_size: gm.size["q"] = None,
    q_batch: gm.stride["q", 0] = None,
    q_head: gm.stride["q", 1] = None,
    q_row: gm.stride["q", 2] = None,
    q_column: gm.stride["q", 3] = None,
    k_size: gm.size["k"] = None,
    k_width: gm.shape["k", 3] = None,
    k_page: gm.stride["k", 0] = None,
    k_row: gm.stride["k", 1] = None,
    k_head: gm.stride["k", 2] = None,
    k_column: gm.stride["k", 3] = None,
    v_size: gm.size["v"] = None,
    v_page_size: gm.shape["v", 1] = None,
    v_groups: gm.shape["v", 2] = None,
    v_width: gm.shape["v", 3] = None,
    v_page: gm.stride["v", 0] = None,
    v_row: gm.stride["v", 1] = None,
    v_head: gm.stride["v", 2] = None,
    v_column: gm.stride["v", 3] = None,
    table_size: gm.size["table"] = None,
    table_rows: gm.shape["table", 0] = None,
    table_columns: gm.shape["table", 1] = None,
    table_row: gm.stride["table", 0] = None,
    table_column: gm.stride["table", 1] = None,
    lengths_size: gm.size["lengths"] = None,
    partial_size: gm.size["partial"] = None,
    partial_width: gm.shape["partial", 4] = None,
    lse_size: gm.size["partial_lse"] = None,
    HEAD: gm.constexpr = None,
    STEP: gm.constexpr = None,
):
    """attention_decode where keys and values lie in pages of any order.

    The shapes are [pages, keys of a page, groups, HEAD] for k and v, a power of two of keys, and [batch, most pages]
    for the i32 table: key j of sequence i is in page table[i, j // keys of a page]. Entries behind the last page of a
    sequence are never read, nor are places behind its last key. All else is as in attention_decode.
    """
    i, group, part, rows = place_of(heads // groups * queries, groups, parts)
    bits = (tl.log2(page.to(tl.float32)) + 0.5).to(tl.int32)
    length = tl.minimum(tl.load(lengths + i), table_columns * page)
    x = queries_of(q + i * q_batch, rows, group, heads // groups, queries, q_head, q_row, HEAD)
    start, stop = part_of(part, parts, length, queries, causal, window)
    factor = factor_of(scale)
    k_at, v_at = k + group * k_head, v + group * v_head
    most, total, sums = nothing(STEP, HEAD)
    number = page_of(table, i * table_row, start, stop, bits, STEP)
    y = rows_of_page(k_at, number, start, stop, page, k_page, k_row, STEP, HEAD)
    z = rows_of_page(v_at, number, start, stop, page, v_page, v_row, STEP, HEAD)
    number = page_of(table, i * table_row, start + STEP, stop, bits, STEP)
    for at in range(start, stop, STEP):
        # Each is read for the next step as soon as its registers are free.
        s = tl.dot(x, y.T)
        y = rows_of_page(k_at, number, at + STEP, stop, page, k_page, k_row, STEP, HEAD)
        keep = keep_of(rows % queries, at, length, queries, causal, window, STEP)
        p, fall, most, total = weights_of(s, keep, factor, most, total)
        sums = tl.dot(p.to(D), z, sums * fall)
        z = rows_of_page(v_at, number, at + STEP, stop, page, v_page, v_row, STEP, HEAD)
        number = page_of(table, i * table_row, at + 2 * STEP, stop, bits, STEP)
    first = (part * batch + i) * heads * queries + group * (heads // groups) * queries
    store_part(partial, partial_lse, first, rows, heads // groups * queries, most, total, sums)


def page_of(table, first, at, stop, bits, STEP):
    """The numbers of the pages in which a block of keys lies; a page has 2**bits keys."""
    columns = (at + tl.arange(0, STEP))[:, None]
    inside = stop - columns > 0
    return tl.load(table + tl.where(inside, first + (columns >> bits), 0), mask=inside)


def rows_of_page(p, number, at, stop, page, page_stride, row_stride, STEP, HEAD):
    """A block of keys or values, zeros behind the last one of the part."""
    columns = (at + tl.arange(0, STEP))[:, None]
    places = number * page_stride + (columns & page - 1) * row_stride + tl.arange(0, HEAD)[None, :]
    return tl.load(p + places, mask=stop - columns > 0)


# ---- references and cases ------------------------------------------------------------------------------------------


def reference(q, k, v, lengths, scale, causal, window, parts):
    """By the definition, in float64: each part with its own sum."""
    groups, keys = k.shape[1:3]
    out, lse = np.zeros((parts, *q.shape)), np.zeros((parts, *q.shape[:3]))
    for i, length in enumerate(np.clip(lengths, 0, keys)):
        own = [np.repeat(x[i, :, :length], q.shape[1] // max(1, groups), axis=0) for x in (k, v)]
        for part, keep in enumerate(kept(q.shape[2], length, causal, window, parts)):
            out[part, i], lse[part, i] = np_weighted(q[i], *own, scale, keep)
    return out, lse


def reference_paged(q, k, v, table, lengths, scale, causal, window, parts):
    """That of the keys and values that the pages hold."""
    rows = [[x[t].reshape(-1, *x.shape[2:]).swapaxes(0, 1) for t in table] for x in (k, v)]
    empty = (0, k.shape[2], table.shape[1] * k.shape[1], k.shape[3])
    k, v = (np.stack(x) if x else np.zeros(empty) for x in rows)
    return reference(q, k, v, lengths, scale, causal, window, parts)


def kept(queries, length, causal, window, parts):
    """Which keys each query sees in each part: parts have as many blocks of those that any query sees."""
    keep, column = np_seen(queries, length, causal, window), np.arange(length)
    seen = np.flatnonzero(keep.any(0))
    low, high = (seen[0] // KEYS * KEYS, seen[-1] + 1) if len(seen) else (0, 0)
    size = -(-(high - low) // (KEYS * parts)) * KEYS
    starts = [low + part * size for part in range(parts)]
    return [keep & (column >= start) & (column < start + size) for start in starts]


def case(batch, heads, queries, head, keys, lengths=None, groups=None, parts=1, page=0, use="test", **scalars):
    """A call; of pages if they have a size: those of sequences lie in reverse, with one between that none uses."""
    groups = groups or heads
    lengths = [keys] * batch if lengths is None else lengths
    name = f"{batch} x {heads} x {queries} x {head}, {keys} keys"
    others = [f"{parts} parts"] * (parts > 1) + [f"{groups} groups"] * (groups != heads)
    others += [f"pages of {page}"] * (page > 0 and use != "test")
    name = ", ".join([name, *others, *(f"{name} {value}" for name, value in scalars.items())])
    rows, results = (batch, heads, queries, head), (parts, batch, heads, queries, head)
    shapes, ranges = {"q": rows, "k": (batch, groups, keys, head)}, {"lengths": (lengths, lengths)}
    if page:
        most = -(-keys // page)
        table = np.arange(batch * most)[::-1].reshape(batch, most) + 1
        shapes |= {"k": (batch * most + 1, page, groups, head), "v": (batch * most + 1, page, groups, head)}
        shapes["table"], ranges["table"] = table.shape, (table, table)
    shapes |= {"v": shapes["k"], "lengths": (batch,), "partial": results, "partial_lse": results[:4]}
    scalars = {"scale": 1 / math.sqrt(head), "parts": parts, **scalars}
    return Case(name, shapes, use, scalars=scalars, ranges=ranges)


def calls(page=0):
    """Cases of arrays, or of pages of a size."""
    timed = {"page": page * 4, "use": "bench"}
    return [
        case(1, 1, 129, 64, 5, page=page),
        case(3, 2, 1, 64, 130, [130, 0, 1], groups=1, parts=2, page=page),
        case(1, 8, 4, 64, 200, [147], groups=2, parts=3, page=page, causal=LAST),
        case(1, 6, 3, 64, 300, groups=1, parts=5, page=page, causal=LAST, window=70),
        case(1, 2, 5, 64, 70, parts=4, page=page, causal=FIRST),
        case(1, 2, 2, 64, 140, page=page, window=66),
        case(2, 1, 1, 64, 0, page=page),
        case(0, 2, 1, 64, 5, page=page),
        case(4, 8, 1, 64, 1000, groups=2, parts=4, page=page, use="demo"),
        case(64, 32, 1, 128, 8192, groups=8, **timed),
        case(16, 32, 1, 128, 8192, groups=8, parts=2, **timed),
        case(1, 32, 1, 128, 32768, groups=8, parts=33, **timed),
        case(64, 16, 1, 64, 4096, groups=16, **timed),
        case(16, 64, 4, 128, 8192, groups=8, parts=2, causal=LAST, **timed),
    ]


def cost(shapes, itemsize):
    """What is read and written once, and two operations for each product of elements, as if every key was there."""
    size = sum(math.prod(shape) * itemsize(name) for name, shape in shapes.items())
    keys = shapes["table"][1] * shapes["k"][1] if "table" in shapes else shapes["k"][2]
    return Cost(size, 4 * math.prod(shapes["q"]) * keys)


HOW = {"cost": cost, "tolerance": ACCURACY}
INPUTS = ["q", "k", "v", "lengths"]
PAGED = [*calls(16), case(3, 4, 1, 64, 70, [70, 0, 1], groups=2, page=1)]
spec(attention_decode, reference=reference, cases=calls(), whole=INPUTS, **HOW)
spec(attention_decode_paged, reference=reference_paged, cases=PAGED, whole=[*INPUTS, "table"], **HOW)
