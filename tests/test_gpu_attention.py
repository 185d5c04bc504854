"""Attention on a CUDA device whose sums are rescaled lazily: about as near to float64 as the exact one."""

from __future__ import annotations

import math

import pytest

import gpu
from gpu import kernels, torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not hasattr(kernels, "attention_forward"), reason="the wheel has no attention"),
]
real_driver = gpu.real_driver

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
SIZES = [(1, 2, 128), (2, 3, 1000), (1, 4, 4096), (3, 48, 704), (1, 1, 77)]  # batch, heads, length
MOST = 1.4  # times the exact one's error: weights are rounded where they are up to 256 times as large
WIDE_SCORE = 50.0


def arrays(size, head, dtype, is_wide):
    """Return q, k and v of N(0, 1), or with scores that reach +-50 and grow from key to key."""
    random = torch.Generator(gpu.DEVICE).manual_seed(0)
    q, k, v = (torch.randn(*size, head, device=gpu.DEVICE, generator=random) for _ in range(3))
    if is_wide:
        k *= torch.linspace(0.1, 1, size[2], device=gpu.DEVICE)[:, None]
        q *= WIDE_SCORE * math.sqrt(head) / (q[0, 0] @ k[0, 0].T).abs().max()
    return [x.to(dtype) for x in (q, k, v)]


def attend(q, k, v, causal, is_lazy):
    out = torch.full_like(q, float("nan"))
    lse = torch.full(q.shape[:3], float("nan"), device=q.device)
    kernels.attention_forward(q, k, v, out, lse, 1 / math.sqrt(q.shape[-1]), causal=causal, LAZY=is_lazy)
    return out, lse


def defined(q, k, v, causal):
    """Return the mean and the logarithm of the first and the last head's, in float64."""
    q, k, v = (torch.stack([x[0, 0], x[-1, -1]]).double() for x in (q, k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def distance(found, want):
    own = torch.stack([found[0, 0], found[-1, -1]]).double()
    return float(torch.linalg.vector_norm(own - want) / torch.linalg.vector_norm(want))


@pytest.mark.parametrize("is_wide", [False, True], ids=["normal", "wide"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_lazy_sums_are_as_near_as_exact_ones(size, head, dtype, causal, is_wide):
    given = arrays(size, head, DTYPES[dtype], is_wide)
    want, logarithm = defined(*given, causal)
    (exact, _), (lazy, lse) = (attend(*given, causal, is_lazy) for is_lazy in (False, True))
    assert not lazy.isnan().any()
    assert distance(lazy, want) <= MOST * distance(exact, want)
    assert float((torch.stack([lse[0, 0], lse[-1, -1]]) - logarithm).abs().max()) <= 1e-5 * WIDE_SCORE
    assert torch.equal(attend(*given, causal, True)[0], lazy)


def test_queries_that_see_nothing_give_zeros():
    q, k, v = arrays((1, 2, 512), 128, torch.float16, is_wide=False)
    out, lse = torch.full_like(q, float("nan")), torch.full(q.shape[:3], float("nan"), device=q.device)
    kernels.attention_forward(q, k[:, :, :256], v[:, :, :256], out, lse, 0.1, causal=2, LAZY=True)
    assert (out[:, :, :256] == 0).all()
    assert (lse[:, :, :256] == -math.inf).all()
    assert out[:, :, 256:].isfinite().all()


def test_there_is_no_choice_for_f32():
    q, k, v = arrays((1, 1, 128), 64, torch.float32, is_wide=False)
    with pytest.raises(Exception, match="LAZY"):
        attend(q, k, v, 0, True)
