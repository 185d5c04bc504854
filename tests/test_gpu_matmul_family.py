"""Batches, groups, gradients and layers with what follows on a CUDA device: as near to float64 as torch's products."""

from __future__ import annotations

import pytest

import gpu
from gpu import kernels, torch
from test_gpu_matmul import DTYPES, assert_near, distance, random

pytestmark = pytest.mark.gpu
real_driver = gpu.real_driver
__all__ = ["random"]

in_each_dtype = pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "f64"])
in_each_dtype_of_gradients = pytest.mark.parametrize("dtype", DTYPES)
either_way = pytest.mark.parametrize("is_turned", [False, True], ids=["rows", "turned"])


def normal(*shape, dtype, random, is_turned=False):
    """Return normal numbers; the last two axes are turned of a contiguous array if `is_turned`."""
    if is_turned:
        return normal(*shape[:-2], shape[-1], shape[-2], dtype=dtype, random=random).mT
    return torch.randn(shape, device=gpu.DEVICE, generator=random).to(DTYPES[dtype])


def unknown(*shape, dtype, like=None):
    """Return NaN, laid out as another tensor."""
    if like is not None:
        return torch.full_like(like, float("nan"))
    return torch.full(shape, float("nan"), dtype=DTYPES[dtype], device=gpu.DEVICE)


def same_each_time(call, *outputs):
    """Assert that three calls write the same bits."""
    seen = []
    for _ in range(3):
        for out in outputs:
            out.fill_(float("nan"))
        call()
        seen.append([out.clone() for out in outputs])
    for others in seen[1:]:
        assert all(torch.equal(x, y) for x, y in zip(seen[0], others, strict=True))


# ---- batches -------------------------------------------------------------------------------------------------------

BATCHES = [(1, 1, 1, 1), (3, 33, 65, 7), (16, 64, 64, 64), (5, 100, 72, 40), (300, 128, 128, 64), (8, 1000, 1000, 333)]
BATCHES += [(4, 1024, 1024, 512), (40, 256, 512, 128)]


@in_each_dtype
@either_way
@pytest.mark.parametrize("size", BATCHES, ids=str)
def test_batches_are_as_near_as_those_of_torch(dtype, is_turned, size, random):
    batch, m, n, depth = size
    a = normal(batch, m, depth, dtype=dtype, random=random)
    b = normal(batch, depth, n, dtype=dtype, random=random, is_turned=is_turned)
    out = unknown(batch, m, n, dtype=dtype)
    same_each_time(lambda: kernels.batched_matmul(a, b, out), out)
    assert_near(out, torch.bmm(a, b), a.double() @ b.double())


@in_each_dtype
@either_way
def test_one_matrix_for_all_of_a_batch(dtype, is_turned, random):
    """Of aligned code too: its tensor map has a stride of 0."""
    a = normal(12, 200, 128, dtype=dtype, random=random)
    b = normal(128, 264, dtype=dtype, random=random, is_turned=is_turned).expand(12, 128, 264)
    out = unknown(12, 200, 264, dtype=dtype)
    kernels.batched_matmul(a, b, out)
    assert_near(out, torch.bmm(a, b), a.double() @ b.double())
    shared, out = a[:1].expand(12, 200, 128), unknown(12, 200, 264, dtype=dtype)
    kernels.batched_matmul(shared, b, out)
    assert_near(out, torch.bmm(shared, b), shared.double() @ b.double())


@in_each_dtype
def test_heads_beside_each_other(dtype, random):
    tokens = normal(512, 8, 64, dtype=dtype, random=random)
    a, b = tokens.transpose(0, 1), normal(8, 64, 512, dtype=dtype, random=random)
    out = unknown(512, 8, 512, dtype=dtype)
    kernels.batched_matmul(a, b, out.transpose(0, 1))
    assert_near(out.transpose(0, 1), torch.bmm(a, b), a.double() @ b.double())


def test_batches_may_start_anywhere(random):
    buffer = torch.randn(2 * 64 * 64 + 1, device=gpu.DEVICE, generator=random).half()
    for shift in (0, 1):
        a = buffer[shift : shift + 2 * 64 * 64].view(2, 64, 64)
        out = torch.empty_like(a)
        kernels.batched_matmul(a, a, out)
        assert_near(out, torch.bmm(a, a), a.double() @ a.double())
        assert kernels.batched_matmul.info(a, a, out)["variant"] == ("g64" if shift else "a32")


# ---- groups --------------------------------------------------------------------------------------------------------

GROUPS = [[1], [3, 0, 70, 1], [128, 256, 0, 1000, 5, 0], [16] * 64, [700, 500, 1300]]


@in_each_dtype
@either_way
@pytest.mark.parametrize("sizes", GROUPS, ids=lambda sizes: f"{len(sizes)} of {sum(sizes)}")
@pytest.mark.parametrize(("n", "depth"), [(1, 1), (72, 40), (1000, 333), (768, 512)])
def test_groups_are_as_near_as_products_of_torch(dtype, is_turned, sizes, n, depth, random):
    rows = sum(sizes) + 3
    x = normal(rows, depth, dtype=dtype, random=random)
    w = normal(len(sizes), depth, n, dtype=dtype, random=random, is_turned=is_turned)
    ends = torch.tensor(sizes, device=gpu.DEVICE).cumsum(0).int()
    out = unknown(rows, n, dtype=dtype)
    kernels.grouped_matmul(x, w, ends, out)
    assert out[-3:].isnan().all()
    theirs = torch.cat([part @ w[i] for i, part in enumerate(x[:-3].split(sizes))])
    want = torch.cat([part.double() @ w[i].double() for i, part in enumerate(x[:-3].split(sizes))])
    assert_near(out[:-3], theirs, want)


@pytest.mark.parametrize("ends", [(5, 2, 900, 900), (-4, 300, 10_000, 20), (2**31 - 1, -(2**31), 0, 3)], ids=str)
def test_ends_that_are_no_ends_reach_no_row_beyond(ends, random):
    x, w = (normal(*shape, dtype="f16", random=random) for shape in ((640, 64), (4, 64, 128)))
    whole = unknown(642, 128, dtype="f16")
    kernels.grouped_matmul(x, w, torch.tensor(ends, device=gpu.DEVICE, dtype=torch.int32), whole[1:641])
    assert whole[0].isnan().all() and whole[641].isnan().all()


# ---- gradients -----------------------------------------------------------------------------------------------------

SIZES = [(1, 1, 1), (33, 65, 7), (100, 72, 40), (256, 512, 1024), (1000, 1000, 1000)]
SIZES += [(4096, 1024, 512), (512, 2048, 4096)]


@in_each_dtype_of_gradients
@either_way
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gradients_are_as_near_as_those_of_torch(dtype, is_turned, size, random):
    m, n, depth = size
    dout, a = (normal(m, k, dtype=dtype, random=random) for k in (n, depth))
    b = normal(depth, n, dtype=dtype, random=random, is_turned=is_turned)
    da, db = unknown(dtype=dtype, like=a), unknown(dtype=dtype, like=b)
    same_each_time(lambda: kernels.matmul_backward(dout, a, b, da, db), da, db)
    assert_near(da, torch.mm(dout, b.t()), dout.double() @ b.double().t())
    assert_near(db, torch.mm(a.t(), dout), a.double().t() @ dout.double())


def test_gradients_are_those_of_autograd(random):
    a, b = (normal(*shape, dtype="f32", random=random).requires_grad_() for shape in ((70, 40), (40, 24)))
    dout = normal(70, 24, dtype="f32", random=random)
    torch.mm(a, b).backward(dout)
    da, db = torch.empty_like(a), torch.empty_like(b)
    kernels.matmul_backward(dout, a.detach(), b.detach(), da, db)
    torch.testing.assert_close(da, a.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(db, b.grad, rtol=1e-5, atol=1e-5)


@in_each_dtype_of_gradients
@pytest.mark.parametrize("rows", [(1,), (3, 50), (2, 4, 64), (4, 512)], ids=str)
@pytest.mark.parametrize(("n", "depth"), [(264, 136), (65, 33), (1024, 768)])
def test_gradients_of_layers_are_as_near_as_those_of_torch(dtype, rows, n, depth, random):
    dout, x = (normal(*rows, k, dtype=dtype, random=random) for k in (n, depth))
    w = normal(n, depth, dtype=dtype, random=random)
    results = [unknown(dtype=dtype, like=x), unknown(dtype=dtype, like=w), unknown(n, dtype=dtype)]
    same_each_time(lambda: kernels.linear_backward(dout, x, w, *results), *results)
    flat, along = dout.reshape(-1, n), x.reshape(-1, depth)
    assert_near(results[0], dout @ w, dout.double() @ w.double())
    assert_near(results[1], flat.t() @ along, flat.double().t() @ along.double())
    assert_near(results[2], flat.sum(0), flat.double().sum(0))


# ---- layers and what follows ---------------------------------------------------------------------------------------

ACTIVATIONS = {
    "none": lambda v: v,
    "relu": torch.relu,
    "gelu": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


@in_each_dtype
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    "size", [((1,), 65, 33), ((3, 50), 264, 136), ((777,), 65, 33), ((8, 512), 1024, 512)], ids=str
)
def test_layers_and_what_follows_are_nearer_than_torchs_steps(dtype, activation, size, random):
    rows, n, depth = size
    x, residual = (normal(*rows, k, dtype=dtype, random=random) for k in (depth, n))
    w, bias = normal(n, depth, dtype=dtype, random=random), normal(n, dtype=dtype, random=random)
    out, function = unknown(*rows, n, dtype=dtype), ACTIVATIONS[activation]
    kernels.linear_activated(x, w, bias, residual, out, scale=0.5, ACTIVATION=activation)
    theirs = residual + 0.5 * function(torch.nn.functional.linear(x, w, bias))
    want = residual.double() + 0.5 * function(x.double() @ w.double().t() + bias.double())
    assert_near(out, theirs, want)
    kernels.linear_activated(x, w, bias, residual, residual, scale=0.5, ACTIVATION=activation)
    assert torch.equal(residual, out)
    assert distance(out, want) < 0.01
