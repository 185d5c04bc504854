"""The built products on a CUDA device: as near to float64 as torch's, the same bits each time, in every layout."""

from __future__ import annotations

import itertools

import pytest

import gpu
from gpu import kernels, torch

pytestmark = pytest.mark.gpu
real_driver = gpu.real_driver

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
SIZES = [
    (1, 1, 1),
    (33, 65, 7),
    (64, 64, 64),
    (100, 72, 40),
    (256, 512, 1024),
    (1000, 1000, 1000),
    (1024, 1024, 4096),
    (16, 4096, 4096),
    (777, 1000, 333),
    (520, 2008, 1016),
    (2432, 1792, 512),
]
MOST = 1.1  # times the error of torch, or what is allowed anyway
ALLOWED = {torch.float16: 1e-15, torch.bfloat16: 1e-15, torch.float32: 1e-6, torch.float64: 1e-14}


@pytest.fixture
def random():
    return torch.Generator(gpu.DEVICE).manual_seed(0)


def matrix(rows, columns, dtype, random, pitch=0, is_turned=False):
    """Return normal numbers with rows `pitch` apart and NaN between them, or the transpose of such a matrix."""
    if is_turned:
        return matrix(columns, rows, dtype, random, pitch).t()
    whole = torch.full((rows, max(pitch, columns)), float("nan"), dtype=dtype, device=gpu.DEVICE)
    whole[:, :columns] = torch.randn(rows, columns, device=gpu.DEVICE, generator=random, dtype=torch.float32)
    return whole[:, :columns]


def product(a, b):
    """Return what the kernel gives three times; it must be the same."""
    seen = []
    for _ in range(3):
        out = torch.full((a.shape[0], b.shape[1]), float("nan"), dtype=a.dtype, device=a.device)
        kernels.matmul(a, b, out)
        seen.append(out)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    return seen[0]


def distance(found, want):
    return float(torch.linalg.vector_norm(found.double() - want) / torch.linalg.vector_norm(want))


def assert_near(found, theirs, want):
    """Assert that an error is no larger than torch's, or than what sums of f32 and f64 may have."""
    assert not found.isnan().any()
    assert distance(found, want) <= max(MOST * distance(theirs, want), ALLOWED[found.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_are_as_near_as_those_of_torch(dtype, size, random):
    m, n, depth = size
    for a_turned, b_turned in [(False, False), (False, True), (True, False), (True, True)]:
        a = matrix(m, depth, DTYPES[dtype], random, is_turned=a_turned)
        b = matrix(depth, n, DTYPES[dtype], random, is_turned=b_turned)
        assert_near(product(a, b), torch.mm(a, b), a.double() @ b.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_gaps_between_rows_are_neither_read_nor_written(dtype, random):
    a = matrix(200, 72, DTYPES[dtype], random, pitch=96)
    b = matrix(72, 136, DTYPES[dtype], random, pitch=80, is_turned=True)
    whole = torch.full((200, 144), float("nan"), dtype=a.dtype, device=a.device)
    kernels.matmul(a, b, whole[:, :136])
    assert_near(whole[:, :136], torch.mm(a, b), a.double() @ b.double())
    assert whole[:, 136:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_of_any_strides(dtype, random):
    a = matrix(200, 72, DTYPES[dtype], random)[::2, ::3]
    b = matrix(24, 1, DTYPES[dtype], random).expand(24, 65)
    assert_near(product(a, b), torch.mm(a, b), a.double() @ b.double())


@pytest.mark.parametrize("shift", [0, 1])
def test_operands_may_start_anywhere(shift, random):
    buffers = [torch.randn(64 * 64 + 1, device=gpu.DEVICE, generator=random).half() for _ in range(2)]
    a, b = (x[shift : shift + 64 * 64].view(64, 64) for x in buffers)
    assert_near(product(a, b), torch.mm(a, b), a.double() @ b.double())
    assert kernels.matmul.info(a, b, torch.empty_like(a))["variant"] == ("g64" if shift else "a32")


@pytest.mark.parametrize("turned", [(a, b) for a in (False, True) for b in (False, True)], ids=str)
@pytest.mark.parametrize("sizes", [(100, 72, 40), (520, 1032, 264), (2048, 2048, 1024)], ids=str)
def test_f32_exact_and_of_eleven_bits_in_every_order(sizes, turned, random):
    m, n, depth = sizes
    a = matrix(m, depth, torch.float32, random, is_turned=turned[0])
    b = matrix(depth, n, torch.float32, random, is_turned=turned[1])
    want = a.double() @ b.double()
    for precision, most in (("exact", 4e-7), ("tf32", 1.5e-3)):
        for _ in range(3):
            out = torch.full_like(want, float("nan"), dtype=torch.float32)
            kernels.matmul(a, b, out, PRECISION=precision)
            assert (out.double() - want).norm() <= most * want.norm()


def test_every_configuration_has_sizes_for_which_it_is_taken(random):
    seen = set()
    sizes = [(16, 64, 1024), *((n, n, 1024) for n in (512, 1024, 1088, 1536, 1664, 4096)), (4096, 4096, 512)]
    sizes += [(2432, 1792, 1024), (4096, 4096, 256), (1000, 1000, 1000), (200, 33, 65)]
    for dtype, (m, n, depth) in itertools.product(DTYPES.values(), sizes):
        for a_turned, b_turned in itertools.product((False, True), repeat=2):
            a = matrix(m, depth, dtype, random, is_turned=a_turned)
            b = matrix(depth, n, dtype, random, is_turned=b_turned)
            out = product(a, b)
            assert_near(out, torch.mm(a, b), a.double() @ b.double())
            seen.add(kernels.matmul.info(a, b, out)["specialisation"])
    of_all = {"ANY_STRIDES": False, "PRECISION": "exact"}
    rows = [row for row in kernels.matmul.instances if row.constants | of_all == row.constants]
    wanted = {row.id for row in rows if any(code["image"] == "cubin sm_90a" for code in row.info()["code"])}
    if gpu.DEVICE == "cuda" and torch.cuda.get_device_properties(0).multi_processor_count == 132:
        assert seen == wanted


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("size", [200, 1024])
def test_tf32_takes_eleven_bits_of_each_element(size, is_turned, random):
    a, b = matrix(size, 264, torch.float32, random), matrix(264, size, torch.float32, random, is_turned=is_turned)
    out, want = torch.full((size, size), float("nan"), device=a.device), a.double() @ b.double()
    kernels.matmul(a, b, out, PRECISION="tf32")
    assert 1e-5 < float((out - want).norm() / want.norm()) < 1.2e-3


def test_gradients_are_products(random):
    a, b = (matrix(*shape, torch.float32, random).requires_grad_() for shape in ((70, 40), (40, 24)))
    dout = matrix(70, 24, torch.float32, random)
    torch.mm(a, b).backward(dout)
    da, db = torch.empty_like(a), torch.empty_like(b)
    kernels.matmul.backward(dout, a.detach(), b.detach(), da, db)
    torch.testing.assert_close(da, a.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(db, b.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [(1,), (3, 50), (2, 4, 64)], ids=str)
def test_layers_are_as_near_as_those_of_torch(dtype, rows, random):
    n, depth = 264, 136
    x = matrix(torch.Size(rows).numel(), depth, DTYPES[dtype], random).reshape(*rows, depth)
    w, bias = matrix(n, depth, DTYPES[dtype], random), matrix(1, n, DTYPES[dtype], random)[0]
    out = torch.full((*rows, n), float("nan"), dtype=x.dtype, device=x.device)
    kernels.linear(x, w, bias, out)
    assert_near(out, torch.nn.functional.linear(x, w, bias), x.double() @ w.double().t() + bias.double())


@pytest.mark.parametrize("shapes", [((4, 5), (6, 7), (4, 7)), ((4, 5), (5, 7), (7, 4)), ((4, 5), (5, 7), (4, 8))])
def test_shapes_that_do_not_go_together(shapes):
    a, b, out = (torch.zeros(shape, device=gpu.DEVICE) for shape in shapes)
    with pytest.raises(ValueError, match="matmul"):
        kernels.matmul(a, b, out)


def test_dtypes_that_do_not_go_together():
    a, b = torch.zeros(4, 4, device=gpu.DEVICE), torch.zeros(4, 4, device=gpu.DEVICE, dtype=torch.float16)
    with pytest.raises(TypeError, match="`b` has the wrong dtype"):
        kernels.matmul(a, b, a.clone())
