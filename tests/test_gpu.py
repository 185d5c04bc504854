"""Every kernel on a CUDA device in every dtype; what info says there; bad input."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

import gpu
from gpu import SPECS, Interface, Spec, assert_gelu, image_kind, kernels, poisoned, run_case, tensor_of, torch

pytestmark = pytest.mark.gpu
real_driver, x = gpu.real_driver, gpu.x

PAIRS = [(spec, s) for spec in SPECS.values() for s in {s.dtypes: s for s in reversed(spec.kernel.expanded)}.values()]
NAMES = [f"{spec.kernel.name}-{'-'.join(d.name for _, d in s.dtypes)}" for spec, s in PAIRS]


# ---- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "specialisation"), PAIRS, ids=NAMES)
def test_kernel_agrees_with_its_reference_and_touches_nothing_else(spec: Spec, specialisation):
    outcomes = {c.name: run_case(spec, c, specialisation, shifts=(0, 1)) for c in spec.cases_for("test")}
    wrong = {name: [o for o in pair if not o.is_right] for name, pair in outcomes.items()}
    assert {name: pair for name, pair in wrong.items() if pair} == {}
    variants = {o.variant for pair in outcomes.values() for o in pair}
    assert variants == {variant.name for variant in spec.kernel.expanded[-1].variants[:2]}


@pytest.mark.parametrize(("spec", "specialisation"), PAIRS, ids=NAMES)
def test_repeated_launches_give_the_same_bits(spec, specialisation):
    case = spec.cases_for("demo")[0]
    arguments = spec.arguments(case, specialisation)
    dispatcher = getattr(kernels, spec.kernel.name)
    tensors = {name: tensor_of(arguments[name]) for name in case.shapes}
    ordered = [tensors[p.name] for p in spec.kernel.parameters if p.kind == "pointer"]
    seen = set()
    for _ in range(10):
        for name in spec.outputs:
            tensors[name].fill_(0 if name in spec.added else 77)
        dispatcher(*ordered, **case.scalars)
        names = [name for name in spec.outputs if name not in spec.added]
        seen.add(b"".join(gpu.read(tensors[name], arguments[name].dtype).tobytes() for name in names))
    assert len(seen) == 1


@pytest.mark.parametrize("spec", [s for s in SPECS.values() if "n_cols" in {p.name for p in s.kernel.parameters}])
def test_every_configuration_that_fits_gives_the_same(spec):
    case = next(c for c in spec.cases if c.name == "2 x 129")
    for dispatched in getattr(kernels, spec.kernel.name).instances:
        dtypes = set(dispatched.dtypes.items())
        specialisation = next(s for s in spec.kernel.expanded if {(v, d.name) for v, d in s.dtypes} == dtypes)
        arguments = spec.arguments(case, specialisation)
        placed = {name: gpu.place(arguments[name]) for name in case.shapes}
        dispatched.launch(*(placed[p.name].tensor for p in spec.kernel.parameters if p.kind == "pointer"))
        got = {name: placed[name].read(arguments[name].dtype) for name in spec.outputs}
        assert max(spec.errors(arguments | got, spec.expected(arguments)).values()) <= 1, dispatched.id


def needs_memory(gigabytes: float):
    free = torch.cuda.mem_get_info()[0] if gpu.DEVICE == "cuda" else 0
    if free < gigabytes * 1e9:
        pytest.skip(f"needs {gigabytes} GB of device memory, {free / 1e9:.1f} are free")


@pytest.fixture
def freed():
    yield
    torch.cuda.empty_cache()


@pytest.mark.usefixtures("freed")
def test_addition_of_more_than_2_31_elements():
    needs_memory(10)
    n = 2**31 + 4099
    a, b = (torch.randint(-128, 128, (n,), dtype=torch.int8, device=gpu.DEVICE) for _ in range(2))
    out = poisoned(a)
    assert kernels.vector_add.info(a, b, out)["variant"] == "g64"
    kernels.vector_add(a, b, out)
    pieces = zip(*(t.split(1 << 28) for t in (a, b, out)), strict=True)
    assert all(torch.equal(c, a + b) for a, b, c in pieces)


@pytest.mark.usefixtures("freed")
@pytest.mark.parametrize(("name", "shape"), [("gelu_forward", (2**31 + 4099,)), ("softmax_forward", (2_147_500, 1000))])
def test_more_than_2_31_elements_give_what_their_parts_give(name, shape):
    needs_memory(20)
    kernel = getattr(kernels, name)
    x = torch.randn(shape, dtype=torch.float16, device=gpu.DEVICE)
    y = poisoned(x)
    assert kernel.info(x, y)["variant"] == "g64"
    kernel(x, y)
    length = shape[0] // 7
    for x_part, y_part in zip(x.split(length), y.split(length), strict=True):
        expected = torch.empty_like(x_part)
        kernel(x_part, expected)
        torch.testing.assert_close(y_part, expected, rtol=2e-3, atol=1.2e-7)  # sums in another order: one ulp


def test_in_place(x):
    expected, rows = torch.empty_like(x), x.reshape(5, 1000)
    kernels.gelu_forward(x, expected)
    y = x.clone()
    kernels.gelu_forward(y, y)
    assert torch.equal(y, expected)
    normal, expected_rows = rows.clone(), torch.empty_like(rows)
    kernels.softmax_forward(rows, expected_rows)
    kernels.softmax_forward(normal, normal)
    assert torch.equal(normal, expected_rows)


def test_rows_in_place_that_are_read_in_tiles():
    x = torch.randn(2, 100_003, device=gpu.DEVICE)
    y = torch.empty_like(x)
    kernels.softmax_forward(x, y)
    kernels.softmax_forward(x, x)
    assert torch.equal(x, y)


def test_tensors_of_any_rank_and_with_gradients():
    x = torch.nn.Parameter(torch.randn(3, 4, 5, device=gpu.DEVICE))
    y = torch.empty(3, 4, 5, device=gpu.DEVICE)
    kernels.gelu_forward(x, y)
    assert_gelu(x.detach(), y)
    scalar, result = torch.tensor(0.5, device=gpu.DEVICE), torch.tensor(0.0, device=gpu.DEVICE)
    kernels.gelu_forward(scalar, result)
    assert_gelu(scalar, result)


# ---- what is known of images and devices ---------------------------------------------------------------------------


def test_info_names_the_image_that_runs(x):
    info = kernels.gelu_forward.info(x, poisoned(x))
    assert info["image"].split()[0] == image_kind()
    assert info["device"] == "cuda:0"
    assert info["threads"] == 32 * kernels.gelu_forward.dispatch("f32").num_warps
    assert math.prod(info["grid"]) == -(-x.numel() // kernels.gelu_forward.dispatch("f32").constants["BLOCK"])
    assert info["image"] in kernels.gelu_forward.info(device=0)["images"].values()


def test_doctor_finds_the_device():
    checks = [(check, status) for check, status, _ in kernels.doctor()]
    assert ("cuda:0", "ok") in checks
    assert [check for check, status in checks if status == "error"] == []


# ---- bad input: an error, nothing written, and the context as good as before ---------------------------------------

BAD_CALLS = {
    "mixed devices": (lambda x, y: (x.cpu(), y), {}, ValueError, "`y` is on another device"),
    "numpy and CUDA": (lambda x, y: (x, np.zeros(5000, "f")), {}, ValueError, "`y` is on another device"),
    "transposed": (lambda x, y: (x.reshape(50, 100).t(), y), {}, ValueError, "`x` is not contiguous"),
    "every second": (lambda x, y: (x, y[::2]), {}, ValueError, "`y` is not contiguous"),
    "expanded output": (lambda x, y: (x[:5], y[:1].expand(5)), {}, ValueError, "`y` (is not contiguous|has elements)"),
    "small output": (lambda x, y: (x, y[:-1]), {}, ValueError, "`y` is too small"),
    "overlap": (lambda x, y: (y[1:], y[:-1]), {}, ValueError, "`y` partly overlaps `x`"),
    "integers": (lambda x, y: (x.int(), y.int()), {}, TypeError, "no specialisation has these dtypes"),
    "two dtypes": (lambda x, y: (x.half(), y), {}, TypeError, "`y` has the wrong dtype"),
    "complex": (lambda x, y: (x.to(torch.complex64), y), {}, TypeError, "complex64"),
    "negated view": (lambda x, y: (torch._neg_view(x), y), {}, ValueError, "negated view"),
    "no array": (lambda x, y: (x, "y"), {}, TypeError, "`y` cannot be an argument"),
    "one argument": (lambda x, y: (x,), {}, TypeError, "needs `y`"),
    "four arguments": (lambda x, y: (x, y, 5000, 1, 2), {}, TypeError, "gelu_forward"),
    "unknown name": (lambda x, y: (x, y), {"alpha": 1}, TypeError, "alpha"),
    "n beyond x": (lambda x, y: (x, y), {"n": 5001}, ValueError, "`n` does not fit `x`"),
    "negative n": (lambda x, y: (x, y), {"n": -1}, ValueError, "`n` does not fit `x`"),
    "constant": (lambda x, y: (x, y), {"BLOCK": 999}, ValueError, "no specialisation has these constants"),
    "stream": (lambda x, y: (x, y), {"stream": "main"}, TypeError, "`stream` is no CUDA stream"),
    "read-only": (lambda x, y: (Interface(x), Interface(y, data=(y.data_ptr(), True))), {}, ValueError, "read-only"),
    "meta": (lambda x, y: (x.to("meta"), y), {}, (TypeError, ValueError), "`x`"),
}


@pytest.mark.parametrize(("arrays", "named", "error", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_input_is_an_error_and_writes_nothing(x, arrays, named, error, message):
    y = poisoned(x)
    with pytest.raises(error, match=message):
        kernels.gelu_forward(*arrays(x, y), **named)
    torch.cuda.synchronize()
    assert bool((y == 77).all())
    kernels.gelu_forward(x, y)
    assert_gelu(x, y)


def test_a_row_too_short_for_its_weights(x):
    rows, y = x.reshape(5, 1000), poisoned(x).reshape(5, 1000)
    with pytest.raises(ValueError, match="`weight` is too small"):
        kernels.rms_norm_forward(rows, torch.ones(999, device=gpu.DEVICE), y)
    assert bool((y == 77).all())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_told_what_is_wrong(x):
    y = poisoned(x)
    kernels.gelu_forward(x, y)
    torch.cuda.synchronize()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kernels.gelu_forward(x, y)
            text = "no error"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    assert text.startswith("RuntimeError: CUDA was initialised before this process was forked")
    assert "spawn" in text
    kernels.gelu_forward(x, y)
    assert_gelu(x, y)
