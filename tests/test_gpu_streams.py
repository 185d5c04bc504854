"""On a CUDA device: streams, threads, graphs, images from PTX, and the arrays of other frameworks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import gpu
from gpu import Interface, assert_gelu, gelu, image_kind, kernels, poisoned, torch

pytestmark = pytest.mark.gpu
real_driver, x = gpu.real_driver, gpu.x

TESTS = Path(__file__).parent
LONG_WAIT = 40_000_000
"""Cycles: about 20 ms, in which anything that is not ordered behind it is over."""


# ---- streams and threads -------------------------------------------------------------------------------------------


class CudaStream:
    """Another library's stream."""

    def __init__(self, stream):
        self.handle = stream.cuda_stream

    def __cuda_stream__(self):
        return 0, self.handle


def late_input(stream, source):
    """Return a tensor of zeros that becomes `source` on `stream`, after a while."""
    x = torch.zeros_like(source)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG_WAIT)
        x.copy_(source)
    return x


def test_the_current_stream_is_used(x):
    stream = torch.cuda.Stream()
    late, y = late_input(stream, x), poisoned(x)
    with torch.cuda.stream(stream):
        kernels.gelu_forward(late, y)
    stream.synchronize()
    assert_gelu(x, y)


@pytest.mark.parametrize("given", [lambda s: s.cuda_stream, CudaStream, lambda s: s], ids=["int", "protocol", "torch"])
def test_a_given_stream_is_used(x, given):
    stream = torch.cuda.Stream()
    y = poisoned(x)
    late = late_input(stream, x)
    kernels.gelu_forward(late, y, stream=given(stream))
    stream.synchronize()
    assert_gelu(x, y)


@pytest.mark.parametrize("stream", [0, 1, 2], ids=["null", "legacy", "per-thread"])
def test_the_default_streams_by_number(x, stream):
    y = poisoned(x)
    torch.cuda.synchronize()
    kernels.gelu_forward(x, y, stream=stream)
    torch.cuda.synchronize()
    assert_gelu(x, y)


def test_calls_return_before_the_work_is_done(x):
    y = poisoned(x)
    kernels.gelu_forward(x, y)
    torch.cuda.synchronize()
    torch.cuda._sleep(5 * LONG_WAIT)
    begun = time.perf_counter()
    kernels.gelu_forward(x, y)
    assert time.perf_counter() - begun < 0.02
    torch.cuda.synchronize()


def test_preloaded_kernels_do_not_wait_for_the_device(x):
    kernels.preload(0)
    rows = x[:4096].reshape(1, 4096)
    y = poisoned(rows)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(5 * LONG_WAIT)
    begun = time.perf_counter()
    for name in ("softmax_forward", "relu_forward", "sigmoid_forward"):
        getattr(kernels, name)(rows, y)
    waited = time.perf_counter() - begun
    torch.cuda.synchronize()
    assert waited < 0.03


def run_in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_a_thread_without_a_context(x):
    y = poisoned(x)
    torch.cuda.synchronize()
    run_in_thread(lambda: kernels.gelu_forward(x, y))
    run_in_thread(lambda: kernels.gelu_forward(x, y, stream=0))
    torch.cuda.synchronize()
    assert_gelu(x, y)


def test_threads_on_streams_of_their_own(x):
    def work(seed):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            source = x * seed
            y = poisoned(source)
            for _ in range(200):
                kernels.gelu_forward(source, y)
            stream.synchronize()
            return torch.allclose(y, gelu(source), rtol=1e-4, atol=1e-5)

    results = []
    threads = [threading.Thread(target=lambda seed=seed: results.append(work(seed))) for seed in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 3


# ---- graphs --------------------------------------------------------------------------------------------------------


def test_a_captured_call_is_replayed(x):
    kernels.gelu_forward.preload(0)
    source, y = x.clone(), poisoned(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.gelu_forward(source, y)
    for factor in (1.0, -0.5):
        source.copy_(x * factor)
        y.fill_(77)
        graph.replay()
        torch.cuda.synchronize()
        assert_gelu(x * factor, y)


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import torch
from gristmill import kernels

x = torch.randn(2, 5000, device="cuda")
y = torch.full_like(x, 77)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    kernels.softmax_forward(x, y)  # the first call of the process: the image is loaded inside the capture
x.neg_()
graph.replay()
torch.testing.assert_close(y, torch.softmax(x, -1), rtol=1e-5, atol=1e-8)
print(kernels.softmax_forward.info(x, y)["image"])
"""
CHECK_ALL = """
import gpu
from gristmill.cases import spec_of
from machines import shipped_kernels

wanted = ("129", "4097", "2 x 129", "2 x 4097", "1 x 131072", "2 x 129 x 40", "64 x 64 x 128")
for name, kernel in shipped_kernels().items():
    spec = spec_of(kernel)
    for dtypes in {{s.dtypes for s in kernel.expanded if s.dtypes[0][1].name in ("f32", "bf16", "i8")}}:
        specialisation = next(s for s in kernel.expanded if s.dtypes == dtypes)
        for case in [case for case in spec.cases_for("test") if case.name in wanted]:
            (outcome,) = gpu.run_case(spec, case, specialisation)
            assert outcome.is_right, (specialisation.id, case.name, outcome)
"""


def run_python(script, **environment):
    command = [sys.executable, "-c", script.format(tests=str(TESTS))]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_first_call_of_a_process_may_be_captured():
    assert run_python(SCRIPT).split()[0] == image_kind()


def test_kernels_compiled_from_ptx_by_the_driver():
    """What happens on a device that has no cubin in the wheel."""
    assert run_python(SCRIPT + CHECK_ALL, GRISTMILL_IMAGES="ptx").startswith("PTX")


# ---- other frameworks and protocols --------------------------------------------------------------------------------


def test_cuda_array_interface(x):
    y = poisoned(x)
    torch.cuda.synchronize()
    kernels.gelu_forward(Interface(x), Interface(y))
    torch.cuda.synchronize()
    assert_gelu(x, y)


def test_cuda_array_interface_is_ordered_after_the_stream_it_names(x):
    stream = torch.cuda.Stream()
    late, y = late_input(stream, x), poisoned(x)
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    kernels.gelu_forward(Interface(late, stream=stream.cuda_stream), Interface(y), stream=other)
    other.synchronize()
    assert_gelu(x, y)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_cupy(dtype):
    cupy = pytest.importorskip("cupy")
    x = cupy.linspace(-4, 4, 1001).astype(dtype)
    y = cupy.full_like(x, 77)
    kernels.gelu_forward(x, y)
    tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-10}[dtype]
    expected = gelu(torch.from_numpy(cupy.asnumpy(x).astype(np.float64))).numpy()
    np.testing.assert_allclose(cupy.asnumpy(y), expected, rtol=tolerance, atol=tolerance)


def test_the_current_stream_of_cupy_is_used(x):
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    late = late_input(torch.cuda.ExternalStream(stream.ptr), x)
    y = poisoned(x)
    a, b = cupy.asarray(late), cupy.asarray(y)
    torch.cuda.current_stream().synchronize()
    with stream:
        kernels.gelu_forward(a, b)
    stream.synchronize()
    assert_gelu(x, y)


@pytest.fixture(scope="module")
def jax():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        pytest.skip(f"JAX has no CUDA device: {error}")
    return jax


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_jax_arrays_as_input(jax, dtype):
    x = jax.numpy.linspace(-4, 4, 1001).astype(dtype)
    y = torch.full((1001,), 77, dtype=getattr(torch, dtype), device=gpu.DEVICE)
    kernels.gelu_forward(x, y)
    expected = gelu(torch.from_numpy(np.asarray(x.astype("float32"))).double())
    tolerance = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}[dtype]
    np.testing.assert_allclose(y.double().cpu(), expected, rtol=tolerance, atol=tolerance)


def test_jax_arrays_that_are_still_being_computed(jax):
    @jax.jit
    def slow(a):
        for _ in range(20):
            a = a @ a
            a = a / jax.numpy.max(jax.numpy.abs(a))
        return a

    start = jax.random.normal(jax.random.key(0), (4096, 4096))
    slow(start).block_until_ready()
    pending = slow(start)
    y = torch.full((4096, 4096), 77.0, device=gpu.DEVICE)
    kernels.relu_forward(pending, y)
    np.testing.assert_array_equal(y.cpu().numpy(), np.maximum(np.asarray(pending), 0))


def test_jax_arrays_are_no_outputs(jax, x):
    with pytest.raises(ValueError, match="`y` is read-only"):
        kernels.gelu_forward(x, jax.numpy.zeros(5000))
