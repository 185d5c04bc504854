"""Attention within sequences of any lengths, which lie one after the other without padding."""

import math

import numpy as np
from attention import ACCURACY, FIRST, LAST, factor_of, inverse_of, is_laid, logarithm, seen, weights
from attention import reference as reference_of_one
from attention_decode import is_seen
from tiles import CUDA, next_turn

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Case, Cost, spec

D = gm.dtype_var("D", [gm.f16, gm.bf16, gm.f32])

LARGE = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3, "aligned": True, **CUDA}
GENERAL = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 8, "num_stages": 3, "narrow": False}
CONFIGS = [gm.Config(**tile) for tile in (LARGE, GENERAL, GENERAL | {"BLOCK_N": 16})]


def fits(D, BLOCK_N):
    """Wide elements have a tile of their own, which stays in registers."""
    return (D.itemsize == 2) == (BLOCK_N > 16)


def programs(tokens, heads, ends, BLOCK_M):
    """The grid: as many as the device runs at once; of tiles each sequence has one that is not full at most."""
    return gm.minimum((tokens // BLOCK_M + gm.minimum(ends, tokens)) * heads, gm.sm_count)


def suits(
    tokens, heads, width, k_tokens, groups, q_size, q_column, k_size, k_width, k_column, v_size, v_groups, v_width,
    v_column, ends, k_ends_size, out_size, out_heads, out_width, out_column, lse_size, HEAD,
):  # fmt: skip
    """Whether shapes go together, and elements of a head are side by side."""
    of_queries, of_keys = (heads, HEAD), (groups, HEAD)
    is_q = is_laid(q_size, (heads, width), q_column, tokens, of_queries)
    is_k = is_laid(k_size, (groups, k_width), k_column, k_tokens, of_keys)
    is_v = is_laid(v_size, (v_groups, v_width), v_column, k_tokens, of_keys)
    is_out = is_laid(out_size, (out_heads, out_width), out_column, tokens, of_queries)
    agrees = (ends == k_ends_size) & (ends > 0) & (lse_size * HEAD == q_size) & (heads % gm.maximum(groups, 1) == 0)
    return is_q & is_k & is_v & is_out & agrees


def is_fastest(tokens, ends, BLOCK_M):
    """Whether a tile is full enough, if sequences are alike."""
    return (BLOCK_M == 64) | (tokens >= 96 * ends)


@gm.kernel(configs=CONFIGS, HEAD=[64, 128], where=fits, grid=programs, pick=suits, prefer=is_fastest)
def attention_varlen_forward(
    q: gm.ptr[D],
    k: gm.ptr[D],
    v: gm.ptr[D],
    q_ends: gm.ptr[gm.i32],
    k_ends: gm.ptr[gm.i32],
    out: gm.ptr[D],
    lse: gm.ptr[gm.f32],
    scale: gm.f32,
    causal: gm.i32 = 0,
    window: gm.i32 = 0,
    tokens: gm.shape["q", 0] = None,
    heads: gm.shape["q", 1] = None,
    width: gm.shape["q", 2] = None,
    k_tokens: gm.shape["k", 0] = None,
    groups: gm.shape["k", 1] = None,
    q_size: gm.size["q"] = None,
    q_row: gm.stride["q", 0] = None,
    q_head: gm.stride["q", 1] = None,
    q_column: gm.stride["q", 2] = None,
    k_size: gm.size["k"] = None,
    k_width: gm.shape["k", 2] = None,
    k_row: gm.stride["k", 0] = None,
    k_head: gm.stride["k", 1] = None,
    k_column: gm.stride["k", 2] = None,
    v_size: gm.size["v"] = None,
    v_groups: gm.shape["v", 1] = None,
    v_width: gm.shape["v", 2] = None,
    v_row: gm.stride["v", 0] = None,
    v_head: gm.stride["v", 1] = None,
    v_column: gm.stride["v", 2] = None,
    ends: gm.size["q_ends"] = None,
    k_ends_size: gm.size["k_ends"] = None,
    out_size: gm.size["out"] = None,
    out_heads: gm.shape["out", 1] = None,
    out_width: gm.shape["out", 2] = None,
    out_row: gm.stride["out", 0] = None,
    out_head: gm.stride["out", 1] = None,
    out_column: gm.stride["out", 2] = None,
    lse_size: gm.size["lse"] = None,
    HEAD: gm.constexpr = None,
    BLOCK_M: gm.constexpr = None,
    BLOCK_N: gm.constexpr = None,
):
    """attention_forward within each of `batch` sequences, whose tokens lie one after the other.

    The shapes are [tokens, heads, HEAD] for q and out, [k tokens, groups, HEAD] for k and v, and contiguous [heads,
    tokens] for lse. q_ends and k_ends are batch + 1 numbers, i32, that begin with 0 (`cu_seqlens`): the queries of
    sequence i are those from q_ends[i] to before q_ends[i + 1], its keys those from k_ends[i] to before k_ends[i + 1].
    What no sequence has is neither read nor written. A sequence is empty if its end is not behind its beginning; ends
    beyond the tokens count as their number, and beginnings must not be negative.

    `scale`, `causal`, `window`, groups of heads and accuracy are those of attention_forward, for each sequence by
    itself.
    """
    share = heads // groups
    factor = factor_of(scale)
    d = tl.arange(0, HEAD)[None, :]
    before = 0  # how many tiles there are before the sequence
    for i in range(ends - 1):
        first_query, first_key = tl.load(q_ends + i), tl.load(k_ends + i)
        queries = tl.maximum(tl.minimum(tl.load(q_ends + i + 1), tokens) - first_query, 0)
        keys = tl.maximum(tl.minimum(tl.load(k_ends + i + 1), k_tokens) - first_key, 0)
        shift = tl.where(causal == LAST, keys - queries, 0)
        height = tl.cdiv(queries, BLOCK_M)
        for tile in range(next_turn(before), heads * height, tl.num_programs(0)):
            head, row = tile % heads, tile // heads
            row = tl.where(causal > 0, height - 1 - row, row) * BLOCK_M
            rows = row + tl.arange(0, BLOCK_M)
            low, high = seen(row, BLOCK_M, BLOCK_N, keys, shift, causal, window)
            inside = (queries - rows > 0)[:, None]
            x = tl.load(q + head * q_head + (first_query + rows)[:, None] * q_row + d, mask=inside)
            k_at, v_at = k + head // share * k_head, v + head // share * v_head
            most = tl.full((BLOCK_M,), -float("inf"), tl.float32)
            total = tl.zeros((BLOCK_M,), tl.float32)
            sums = tl.zeros((BLOCK_M, HEAD), tl.float32)
            for start in range(low, high, BLOCK_N):
                columns = start + tl.arange(0, BLOCK_N)
                is_own = (keys - columns > 0)[:, None]
                y = tl.load(k_at + (first_key + columns)[:, None] * k_row + d, mask=is_own)
                z = tl.load(v_at + (first_key + columns)[:, None] * v_row + d, mask=is_own)
                keep = is_seen(rows[:, None], columns[None, :], keys, shift, causal, window)
                s = tl.where(keep, tl.dot(x, y.T), -float("inf"))
                p, fall, most = weights(s, most, factor)
                total = total * fall + tl.sum(p, 1)
                sums = tl.dot(p.to(D), z, sums * fall[:, None])
            places = tl.where(rows < queries, head * tokens + first_query + rows, 0)
            tl.store(lse + places, logarithm(most, total), mask=rows < queries)
            sums *= inverse_of(total)[:, None]
            tl.store(out + head * out_head + (first_query + rows)[:, None] * out_row + d, sums, mask=inside)
        before += heads * height


# ---- reference and cases -------------------------------------------------------------------------------------------


def reference(q, k, v, q_ends, k_ends, scale, causal, window):
    """That of attention_forward for each sequence; what none has stays as tests fill results."""
    out, lse = np.full(q.shape, 77.0), np.full(q.shape[1::-1], 77.0)
    for i in range(len(q_ends) - 1):
        own, seen = (slice(x[i], max(x[i], x[i + 1])) for x in (q_ends, k_ends))
        rows = [x.swapaxes(0, 1)[None] for x in (q[own], k[seen], v[seen])]
        mean, logarithm = reference_of_one(*rows, scale, causal, window)
        out[own], lse[:, own] = mean[0].swapaxes(0, 1), logarithm[0]
    return out, lse


def case(queries, heads, head, keys=None, groups=None, use="test", **scalars):
    """A call with sequences of so many queries and keys; several, and two of each that none has, or one with all."""
    groups, keys, rest = groups or heads, keys or queries, 2 * (len(queries) > 1)
    ends, k_ends = ([sum(lengths[:i]) for i in range(len(lengths) + 1)] for lengths in (queries, keys))
    name = f"{len(queries)} x {heads} x {' + '.join(map(str, queries)) if len(queries) < 4 else ends[-1]} x {head}"
    others = [f"{groups} groups"] * (groups != heads) + [f"{' + '.join(map(str, keys))} keys"] * (keys != queries)
    name = ", ".join([name, *others, *(f"{name} {value}" for name, value in scalars.items())])
    rows, columns = (ends[-1] + rest, heads, head), (k_ends[-1] + rest, groups, head)
    shapes = {"q": rows, "k": columns, "v": columns, "q_ends": (len(ends),), "k_ends": (len(ends),)}
    shapes |= {"out": rows, "lse": rows[1::-1]}
    given = [[0, 1 << 30]] * 2 if len(queries) == 1 else [ends, k_ends]
    ranges = {name: (numbers, numbers) for name, numbers in zip(("q_ends", "k_ends"), given, strict=True)}
    return Case(name, shapes, use, scalars={"scale": 1 / math.sqrt(head), **scalars}, ranges=ranges)


MIXED = [512 * (1 + i % 8) for i in range(16)]
CASES = [
    case([129], 1, 64, keys=[5]),
    case([60, 0, 1], 1, 64),
    case([3, 65], 2, 64, keys=[70, 0], groups=1),
    case([1, 50, 40], 1, 64, keys=[70, 50, 141], causal=LAST),
    case([20, 90], 1, 64, causal=FIRST, window=40),
    case([40], 1, 64, keys=[90], window=36),
    case([], 2, 64),
    case([200, 300, 100], 8, 64, use="demo"),
    case([4096] * 4, 32, 128, use="bench"),
    *(case(MIXED, 32, 128, groups=8, use="bench", causal=causal) for causal in (0, FIRST)),
    case([512] * 64, 16, 64, use="bench", causal=FIRST),
]


def cost(shapes, itemsize):
    """What is read and written once, and two operations for each product of elements, as if sequences were alike."""
    size = sum(math.prod(shape) * itemsize(name) for name, shape in shapes.items())
    return Cost(size, 4 * math.prod(shapes["q"]) * shapes["k"][0] // max(1, shapes["q_ends"][0] - 1))


INPUTS = ["k", "v", "q_ends", "k_ends"]
spec(
    attention_varlen_forward,
    reference=reference,
    cases=CASES,
    cost=cost,
    whole=INPUTS,
    tolerance=ACCURACY,
)
