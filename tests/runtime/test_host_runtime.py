"""Kernels on the CPU: values, threads, fork, import without a driver."""

import os
import threading
import time

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize("n", [0, 1, 2, 3, 31, 127, 128, 129, 255, 256, 257, 1000, 4097, 65537])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scale_at_every_length(native, n, dtype):
    x = np.arange(n, dtype=dtype)
    y = np.full(n + 1, -1, dtype)
    native.scale(x, y[:n], factor=3)
    np.testing.assert_array_equal(y[:n], 3 * x)
    assert y[n] == -1


def test_bfloat16_of_ml_dtypes(native):
    x = np.arange(300).astype(ml_dtypes.bfloat16)
    y = np.zeros_like(x)
    native.scale(x, y)
    np.testing.assert_array_equal(y.astype(np.float32), 2 * x.astype(np.float32))


def test_length_zero_runs_nothing_and_needs_no_memory(native):
    native.scale(np.zeros(0, np.float32), np.zeros(0, np.float32))


def test_every_program_runs_once_on_threads(native):
    out = np.zeros(2 * 5 * 7, np.int64)
    native.program_ids(out, 5, 7, delay_us=200)
    p = np.arange(out.size)
    np.testing.assert_array_equal(out, p % 5 + 1000 * (p // 5 % 7) + 1000000 * (p // 35))


def test_large_grids_are_shared_out(native):
    """70 programs of 2 ms: alone they take 140 ms."""
    out = np.zeros(70, np.int64)
    start = time.perf_counter()
    native.program_ids(out, 5, 7, delay_us=2000)
    assert time.perf_counter() - start < 0.115


def test_large_work_releases_the_gil(native):
    ticks = []
    thread = threading.Thread(target=lambda: [ticks.append(time.sleep(0.002)) for _ in range(200)])
    thread.start()
    native.program_ids(np.zeros(200, np.int64), 10, 10, delay_us=2000)
    seen = len(ticks)
    thread.join()
    assert seen > 5


def test_calls_from_many_threads(native):
    def work(seed):
        for i in range(30):
            x = np.arange(50000, dtype=np.float32) + seed + i
            y = np.zeros_like(x)
            native.scale(x, y)
            results.append(bool((y == 2 * x).all()))

    results = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 120
    assert all(results)


def test_pool_works_in_a_forked_child(native):
    out = np.zeros(70, np.int64)
    native.program_ids(out, 5, 7, delay_us=500)
    child = os.fork()
    if child == 0:
        fresh = np.zeros(70, np.int64)
        start = time.perf_counter()
        native.program_ids(fresh, 5, 7, delay_us=2000)
        is_quick = time.perf_counter() - start < 0.115
        os._exit(0 if (fresh == out).all() and is_quick else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_one_thread_gives_the_same(run_python):
    script = "import numpy as np; out = np.zeros(70, np.int64); native.program_ids(out, 5, 7, delay_us=100)\n"
    one = run_python(script + "print(out.tolist(), native.info()['threads'])", GRISTMILL_NUM_THREADS="1")
    four = run_python(script + "print(out.tolist(), native.info()['threads'])", GRISTMILL_NUM_THREADS="4")
    assert one.replace("] 1", "] 4") == four


def test_import_and_cpu_calls_need_no_driver(run_python):
    script = """
import numpy as np
x = np.ones(10, np.float32); y = np.zeros(10, np.float32)
native.scale(x, y); native.info(); native.scale.info(); help(native.scale)
assert (y == 2).all()
print([line[1] for line in native.doctor() if line[0] == "driver"])
try:
    native.scale(CudaArray((10,)), CudaArray((10,)))
except RuntimeError as error:
    print(error)
"""
    text = run_python(script, libcuda="/nonexistent/libcuda.so.1")
    assert "['warning']" in text
    assert "no CUDA driver: /nonexistent/libcuda.so.1 could not be opened" in text
    assert "fix: " in text


def test_packed_parameters(native):
    """19 parameters of all kinds: each aligned to its own size; the fixture's host function copies them to `out`."""
    a, b, c = (np.zeros((n, 2), np.float32) for n in (3, 4, 5))
    out = np.zeros(104, np.uint8)
    scalars = {
        "s_i8": -1,
        "s_f64": 1.5,
        "s_bool": True,
        "s_f16": -2.0,
        "s_u8": 255,
        "s_i32": -(2**31),
        "s_u64": 2**64 - 1,
        "s_bf16": 1.0,
    }
    native.many(a, b, c, out, **scalars)
    fields = [
        ("a", "u8"),
        ("b", "u8"),
        ("c", "u8"),
        ("out", "u8"),
        ("i8", "i1"),
        ("f64", "f8"),
        ("bool", "u1"),
        ("f16", "f2"),
        ("u8", "u1"),
    ]
    fields += [("i32", "i4"), ("u64", "u8"), ("bf16", "u2"), ("f32", "f4"), ("i16", "i2")] + [
        (name, "i4") for name in ("na", "nb", "nc", "nout", "rows")
    ]
    row = out.view(np.dtype([*fields], align=True))[0] if out.size == np.dtype(fields, align=True).itemsize else None
    assert row is not None
    assert row["a"] == a.ctypes.data
    assert row["out"] == out.ctypes.data
    assert (row["i8"], row["f64"], row["bool"], row["f16"], row["u8"]) == (-1, 1.5, 1, -2.0, 255)
    assert (row["i32"], row["u64"], row["bf16"], row["f32"], row["i16"]) == (-(2**31), 2**64 - 1, 0x3F80, 0.5, -7)
    assert [row[name] for name in ("na", "nb", "nc", "nout", "rows")] == [6, 8, 10, 104, 3]


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.0, 65504.0, 65520.0, 1e-8, 5.96e-8, 3e-5, float("inf"), -float("inf"), 1 / 3, 2.0**-25]
)
def test_half_scalars_round_as_numpy(native, value):
    out = np.zeros(104, np.uint8)
    x = np.zeros((1, 1), np.float32)
    native.many(x, x, x, out, 0, 0.0, False, value, 0, 0, 0, value)
    with np.errstate(over="ignore"):
        assert out[50:52].view(np.float16)[0].tobytes() == np.float16(value).tobytes()
        assert out[72:74].tobytes() == np.float32(value).astype(ml_dtypes.bfloat16).tobytes()


def test_rows_with_strides(native):
    x = np.arange(40, dtype=np.float32).reshape(4, 10)
    y = np.zeros((4, 6), np.float32)
    native.row_scale(x[:, 2:8], y)
    np.testing.assert_array_equal(y, 2 * x[:, 2:8])
    flipped = np.zeros((4, 10), np.float32)
    native.row_scale(x[::-1], flipped)
    np.testing.assert_array_equal(flipped, 2 * x[::-1])


def test_two_dtype_variables(native):
    x = np.arange(10, dtype=np.float32)
    y = np.zeros(3, np.float32)
    native.gather(x, np.array([7, 0, 2], np.int64), y)
    np.testing.assert_array_equal(y, [7, 0, 2])


def test_no_code_for_the_cpu(native):
    with pytest.raises(RuntimeError, match=r"(?s)new_only: built for CUDA only.*fix: add `x86-64"):
        native.new_only(np.zeros(4, np.float16))
