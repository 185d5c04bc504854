"""Calls as the driver sees them: specialisation, variant, grid, parameters, stream, context; and the checks before."""

import re
import struct

import numpy as np
import pytest
from fakes import ADDRESS, CudaArray, array

SCALE = [8, 8, 4, 4]
SCALE64 = [8, 8, 4, 8]
ROWS = [8, 8, 4, 4, 4]
ROWS64 = [8, 8, 8, 8, 8]


def only_launch(stub):
    assert len(stub.launches) == 1, stub.log
    return stub.launches[0]


def test_launch_has_grid_block_and_packed_parameters(native, stub):
    stub.set_parameters("scale__f32__256__a32", SCALE)
    native.scale(array(1000), array(1000, offset=8192), 3.0)
    launch = only_launch(stub)
    assert (launch.entry, launch.grid, launch.block) == ("scale__f32__256__a32", (4, 1, 1), (128, 1, 1))
    assert launch.parameters == [
        struct.pack("<Q", ADDRESS),
        struct.pack("<Q", ADDRESS + 8192),
        struct.pack("<f", 3),
        struct.pack("<i", 1000),
    ]
    assert (launch.stream, launch.context) == (0, 0)


def test_constants_choose_the_specialisation(native, stub):
    native.scale(array(1000), array(1000, offset=8192), BLOCK=1024)
    assert only_launch(stub).entry == "scale__f32__1024__a32"
    assert only_launch(stub).block == (256, 1, 1)


@pytest.mark.parametrize(("offset_x", "offset_y"), [(4, 8192), (0, 8196), (8, 8192), (4, 8196)])
def test_unaligned_pointers_take_the_general_variant(native, stub, offset_x, offset_y):
    native.scale(array(1000, offset=offset_x), array(1000, offset=offset_y))
    assert only_launch(stub).entry == "scale__f32__256__g32"


@pytest.mark.parametrize(
    ("n", "entry"), [(2**31 - 2**20 - 1, "a32"), (2**31 - 2**20, "g64"), (2**31, "g64"), (2**33 + 5, "g64")]
)
def test_large_arrays_take_64_bit_offsets(native, stub, n, entry):
    stub.set_parameters("scale__f32__256__g64", SCALE64)
    native.scale(array(n), array(n, offset=2**40))
    launch = only_launch(stub)
    assert launch.entry == f"scale__f32__256__{entry}"
    assert launch.grid == (-(-n // 256), 1, 1)
    if entry == "g64":
        assert launch.parameters[3] == struct.pack("<q", n)


def test_a_long_stride_alone_takes_64_bit_offsets(native, stub):
    stub.set_parameters("row_scale_64_g64", ROWS64)
    stride = 2**31
    native.row_scale(array(2, 8, strides=(4 * stride, 4)), array(2, 8, offset=2**40))
    launch = only_launch(stub)
    assert launch.entry == "row_scale_64_g64"
    assert [struct.unpack("<q", part)[0] for part in launch.parameters[2:]] == [2, 8, stride]


@pytest.mark.parametrize(
    ("stride", "variant"), [(8, "a32"), (12, "a32"), (10, "g32"), (9, "g32"), (-8, "a32"), (-9, "g32")]
)
def test_divisibility_decides_between_aligned_and_general(native, stub, stride, variant):
    stub.set_parameters(f"row_scale_64_{variant}", ROWS)
    native.row_scale(array(3, 8, strides=(4 * stride, 4), offset=4096), array(3, 8, offset=65536))
    launch = only_launch(stub)
    assert launch.entry == f"row_scale_64_{variant}"
    assert [struct.unpack("<i", part)[0] for part in launch.parameters[2:]] == [3, 8, stride]


@pytest.mark.parametrize(("columns", "block"), [(1, 64), (64, 64), (65, 256), (256, 256)])
def test_pick_takes_the_first_that_suits(native, stub, columns, block):
    native.row_scale(array(5, columns), array(5, columns, offset=2**20))
    assert only_launch(stub).entry.startswith(f"row_scale_{block}_")
    assert only_launch(stub).grid == (5, 1, 1)


def test_pick_holds_for_explicit_constants_too(native, stub):
    with pytest.raises(
        ValueError, match=r"(?s)row_scale: no specialisation suits.*n_cols=65.*BLOCK=64.*fix: leave the constant out"
    ):
        native.row_scale(array(5, 65), array(5, 65, offset=2**20), BLOCK=64)
    assert not stub.launches


def test_size_zero_returns_without_launching(native, stub):
    native.scale(CudaArray((0,), pointer=0), CudaArray((0,), pointer=0))
    native.row_scale(CudaArray((0, 8), pointer=0), CudaArray((0, 8), pointer=0))
    native.row_scale(CudaArray((3, 0), pointer=0), CudaArray((3, 0), pointer=0))
    assert not stub.launches


def test_sm_count_in_the_grid(native, stub):
    stub.set_device(12, 0)
    with pytest.raises(RuntimeError):  # the device was first seen as sm_90
        native.new_only(array(1000, dtype="f16"))
    assert native.new_only.info(device=0)["images"] == {"new_only__f16": "cubin sm_120"}


def test_grid_of_three_axes(native, stub):
    native.program_ids(array(2 * 3 * 5, dtype="i64"), 3, 5)
    assert only_launch(stub).grid == (3, 5, 2)


@pytest.mark.parametrize(("n0", "n1"), [(1, 65536), (2, 70000)])
def test_grid_beyond_the_limit(native, stub, n0, n1):
    with pytest.raises(
        ValueError, match=r"(?s)program_ids: the grid is too large along axis 1.*found: \d+ programs.*up to 65535"
    ):
        native.program_ids(array(2 * n0 * n1, dtype="i64"), n0, n1)
    assert not stub.launches


def test_a_cluster_runs_one_program(native, stub):
    native.scale(array(1000, dtype="f64", offset=8), array(1000, dtype="f64", offset=2**20))
    launch = only_launch(stub)
    assert (launch.entry, launch.grid, launch.block) == ("scale__f64__256__g32", (8, 1, 1), (256, 1, 1))
    assert launch.shared_bytes == 1024


def test_only_code_that_waits_by_itself_may_start_before_the_kernel_before_it_ends(native, stub):
    native.scale(array(1000, dtype="f64", offset=8), array(1000, dtype="f64", offset=2**20))
    native.scale(array(1000), array(1000, offset=4096))
    assert [launch.is_early for launch in stub.launches] == [True, False]


def test_the_limit_of_the_grid_counts_clusters(native, stub):
    instance = native.scale.dispatch("f64", 256)
    x, y = array(8, dtype="f64", offset=8), array(8, dtype="f64", offset=4096)
    instance.launch(x, y, grid=(2**30 - 1, 5))
    assert only_launch(stub).grid == (2**31 - 2, 5, 1)
    with pytest.raises(ValueError, match=r"(?s)along axis 0.*found: 1073741824 programs.*up to 1073741823 on CUDA"):
        instance.launch(x, y, grid=2**30)
    only_launch(stub)


def test_negative_grid(native):
    with pytest.raises(ValueError, match="program_ids: the grid is negative"):
        native.program_ids(np.zeros(8, np.int64), -1, 3)


def test_streams(native, stub):
    class Protocol:
        def __cuda_stream__(self):
            return (0, 0x77)

    class TorchStream:
        cuda_stream = 0x78

    x, y = array(8), array(8, offset=4096)
    for stream in (0x55, Protocol(), TorchStream(), None):
        native.scale(x, y, stream=stream)
    native.scale.instances[0][1](x, y, stream=0x79)
    assert [launch.stream for launch in stub.launches] == [0x55, 0x77, 0x78, 0, 0x79]
    with pytest.raises(TypeError, match=r"(?s)`stream` is no CUDA stream.*found: str.*fix: "):
        native.scale(x, y, stream="main")


def test_stream_of_the_array_interface(native, stub):
    native.scale(array(8, stream=0x66), array(8, offset=4096))
    assert only_launch(stub).stream == 0x66
    stub.reset()
    native.scale(array(8, stream=0x66), array(8, offset=4096), stream=0x67)
    order = [line.split(" grid")[0] for line in stub.log]
    assert order[:2] == ["record 0x66", "wait 0x67"]
    assert only_launch(stub).stream == 0x67


def test_context_is_pushed_only_if_another_is_current(native, stub):
    native.scale(array(8), array(8, offset=4096))
    assert [line for line in stub.log if line in ("push 0", "pop")][-2:] == ["push 0", "pop"]
    stub.reset()
    stub.library.stub_push_context(0)
    native.scale(array(8), array(8, offset=4096))
    assert not [line for line in stub.log if line in ("push 0", "pop")]
    assert only_launch(stub).context == 0
    stub.reset()
    stub.library.stub_push_context(1)
    native.scale(array(8), array(8, offset=4096))
    assert only_launch(stub).context == 0


def test_launch_goes_to_the_arrays_device(native, stub):
    stub.library.stub_set_pointer_device(1)
    native.scale(array(8), array(8, offset=4096))
    assert only_launch(stub).context == 1


def test_context_reset_is_survived_once(native, stub):
    native.scale(array(8), array(8, offset=4096))
    stub.library.stub_clear_log()
    stub.fail("cuLaunchKernelEx", 709, times=1)
    native.scale(array(8), array(8, offset=4096))
    assert "retain 0" in stub.log
    assert len(stub.launches) == 1


def test_faults_of_earlier_kernels_are_explained(native, stub):
    stub.fail("cuLaunchKernelEx", 700)
    with pytest.raises(
        RuntimeError,
        match=r"(?s)launching scale__f32__256 on cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS.*an earlier kernel.*GRISTMILL_SYNC",
    ):
        native.scale(array(8), array(8, offset=4096))


def test_image_is_loaded_once_relaxed_and_preserved(run_python):
    script = """
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
for block in (256, 256, 1024):
    native.scale(CudaArray((8,)), CudaArray((8,), pointer=ADDRESS + 4096), BLOCK=block)
print("\\n".join(stub.log))
"""
    lines = run_python(script).splitlines()
    loads = [line for line in lines if line.startswith("load")]
    assert len(loads) == 1
    assert "cubin sm_90a" in loads[0]
    assert loads[0].endswith("options=1 capture=2")
    assert [line for line in lines if line.startswith("get")] == [
        "get scale__f32__256__a32",
        "get scale__f32__1024__a32",
    ]
    assert lines.count("init") == 1
    assert lines.count("retain 0") == 1


def test_preload_loads_every_entry(run_python):
    script = """
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
stub.set_device(9, 0, count=2)
native.row_scale.preload(device=1)
print(sum(line.startswith("function") for line in stub.log), [line for line in stub.log if line.startswith("retain")])
stub.library.stub_clear_log()
native.row_scale(CudaArray((2, 8)), CudaArray((2, 8), pointer=ADDRESS + 4096))
"""
    assert run_python(script).strip() == "6 ['retain 1']"


def test_synchronous_launches_for_debugging(run_python):
    script = """
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
native.scale(CudaArray((8,)), CudaArray((8,), pointer=ADDRESS + 4096))
stub.library.stub_set_capturing(1)
native.scale(CudaArray((8,)), CudaArray((8,), pointer=ADDRESS + 4096))
print(stub.log.count("synchronise"))
"""
    assert run_python(script, GRISTMILL_SYNC="1").strip() == "1"


def test_fork_after_cuda_is_refused(run_python):
    script = """
import os
native.info()
def use():
    native.scale(CudaArray((8,)), CudaArray((8,), pointer=ADDRESS + 4096))
def child():
    pid = os.fork()
    if pid == 0:
        try:
            use()
            print("works", flush=True)
        except RuntimeError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
child()
use()
child()
"""
    lines = run_python(script).splitlines()
    assert lines[0] == "works"
    assert "initialised before this process was forked" in lines[1]
    assert "spawn" in lines[2]


def test_import_and_info_do_not_initialise_cuda(run_python):
    script = """
import ctypes, os
native.info(); native.scale.info(); native.scale.instances[0].images; repr(native.scale); native.scale.dispatch("f32")
native.scale(memoryview(bytearray(8)).cast("f"), memoryview(bytearray(8)).cast("f"))
print(Stub(ctypes.CDLL(os.environ["GRISTMILL_LIBCUDA"])).log)
"""
    assert run_python(script).strip() == "[]"


# Bad input: nothing may be launched or written.

BAD = [
    ("no argument", lambda k, x, y: k.scale(), TypeError, r"scale: needs `x`, `y`"),
    ("one argument", lambda k, x, y: k.scale(x), TypeError, r"scale: needs `y`.*fix: call it as `scale\("),
    ("too many", lambda k, x, y: k.scale(x, y, 1.0, 8, 256), TypeError, r"scale: takes 4 arguments.*found: 5"),
    ("twice", lambda k, x, y: k.scale(x, y, x=x), TypeError, r"scale: `x` is given twice"),
    ("unknown name", lambda k, x, y: k.scale(x, y, blok=1), TypeError, r"scale: has no parameter `blok`"),
    ("no array", lambda k, x, y: k.scale(x, 5), TypeError, r"scale: `y` cannot be an argument.*found: int"),
    (
        "dtype",
        lambda k, x, y: k.scale(x.astype("i4"), y.astype("i4")),
        TypeError,
        r"no specialisation has these dtypes.*x i32\[8\].*built: f32, f64, bf16.*`gm.i32`",
    ),
    (
        "dtypes differ",
        lambda k, x, y: k.scale(x, y.astype("f8")),
        TypeError,
        r"`y` has the wrong dtype.*found: f64.*f32: dtype variable D",
    ),
    (
        "fixed dtype",
        lambda k, x, y: k.program_ids(x, 1, 1),
        TypeError,
        r"`out` has the wrong dtype.*found: f32.*supported: i64",
    ),
    (
        "combination",
        lambda k, x, y: k.gather(x.astype("f8"), x.astype("i8"), y.astype("f8")),
        TypeError,
        r"built: \(f32, i32\), \(f32, i64\), \(f64, i32\)",
    ),
    (
        "complex",
        lambda k, x, y: k.scale(x.astype("c8"), y),
        TypeError,
        r"found: elements of complex64.*supported: f32, f64, bf16",
    ),
    ("byte order", lambda k, x, y: k.scale(x.astype(">f4"), y), TypeError, r"byte-swapped float32"),
    (
        "constant",
        lambda k, x, y: k.scale(x, y, BLOCK=300),
        ValueError,
        r"asked: BLOCK=300.*built: scale__f32__256, scale__f32__1024.*`BLOCK=\[\.\.\., 300\]`",
    ),
    (
        "constant's type",
        lambda k, x, y: k.scale(x, y, BLOCK=[1]),
        TypeError,
        r"constant `BLOCK` has the wrong type.*found: list",
    ),
    (
        "strided",
        lambda k, x, y: k.scale(np.zeros(16, "f4")[::2], y),
        ValueError,
        r"`x` is not contiguous.*f32\[8\] with strides \(2\).*ascontiguousarray",
    ),
    (
        "inner stride",
        lambda k, x, y: k.row_scale(np.zeros((4, 4), "f4").T, np.zeros((4, 4), "f4")),
        ValueError,
        r"`x` is not contiguous.*not along axis 1",
    ),
    ("too small", lambda k, x, y: k.scale(x, y[:7]), ValueError, r"`y` is too small.*found: 7 elements.*at least 8"),
    ("beyond", lambda k, x, y: k.scale(x, y, n=9), ValueError, r"`n` does not fit `x`.*found: n=9.*supported: 0 to 8"),
    ("negative size", lambda k, x, y: k.scale(x, y, n=-1), ValueError, r"`n` does not fit `x`"),
    ("size's type", lambda k, x, y: k.scale(x, y, n=2.0), TypeError, r"`n` is no number.*found: float"),
    ("huge size", lambda k, x, y: k.scale(x, y, n=2**70), ValueError, r"`n` is out of range"),
    ("rank", lambda k, x, y: k.row_scale(np.float32(1).reshape(()), y), ValueError, r"`x` has too few dimensions"),
    (
        "wrong stride",
        lambda k, x, y: k.row_scale(x.reshape(2, 4), y, stride=5),
        ValueError,
        r"`stride` does not fit `x`.*its own stride, 4",
    ),
    ("read-only", lambda k, x, y: k.scale(x, frozen(y)), ValueError, r"`y` is read-only"),
    (
        "repeated",
        lambda k, x, y: k.program_ids(np.broadcast_to(np.zeros(1, "i8"), (8,)), 2, 2),
        ValueError,
        r"`out` is (not contiguous|read-only)",
    ),
    ("overlap", lambda k, x, y: k.scale(x[:-1], x[1:]), ValueError, r"`y` partly overlaps `x`"),
    ("scalar's type", lambda k, x, y: k.scale(x, y, "2"), TypeError, r"`factor` is no number.*found: str"),
    (
        "array for scalar",
        lambda k, x, y: k.scale(x, y, x),
        TypeError,
        r"`factor` is no number.*fix: pass `factor.item\(\)`",
    ),
    (
        "float for int",
        lambda k, x, y: k.program_ids(np.zeros(8, "i8"), 1.5, 2),
        TypeError,
        r"`n0` is no number of its type.*found: float",
    ),
    (
        "int range",
        lambda k, x, y: k.program_ids(np.zeros(8, "i8"), 2**31, 2),
        ValueError,
        r"`n0` is out of range.*values of i32",
    ),
    (
        "mixed devices",
        lambda k, x, y: k.scale(x, array(8)),
        ValueError,
        r"`y` is on another device.*on cuda:0; the others on the CPU",
    ),
    ("bad grid", lambda k, x, y: k.scale.instances[0].launch(x, y, grid=1.5), TypeError, r"`grid` is no grid"),
    (
        "other instance",
        lambda k, x, y: k.scale.dispatch("f64", 256).launch(x, y),
        TypeError,
        r"scale__f64__256: the arguments have other dtypes",
    ),
]


def frozen(x):
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(("call", "error", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_input(native, stub, call, error, message):
    x, y = np.arange(8, dtype=np.float32), np.full(8, 7, np.float32)
    with pytest.raises(error) as info:
        call(native, x, y)
    assert re.search(message, str(info.value), re.DOTALL), str(info.value)
    assert (y == 7).all()
    assert (x == np.arange(8)).all()
    assert not stub.launches


def test_same_buffer_in_and_out(native):
    x = np.arange(8, dtype=np.float32)
    native.scale(x, x)
    np.testing.assert_array_equal(x, 2 * np.arange(8))


def test_columns_of_one_matrix_do_not_overlap(native):
    both = np.arange(40, dtype=np.float32).reshape(4, 10)
    y = np.zeros((4, 5), np.float32)
    native.row_scale(both[:, :5], y)
    with pytest.raises(ValueError, match="`y` partly overlaps `x`"):
        native.row_scale(both[:, :5], both.reshape(-1)[5:25].reshape(4, 5))


def test_mixed_cuda_devices(native, stub):
    other = array(8, offset=4096)
    stub.library.stub_set_pointer_device(0)
    with pytest.raises(ValueError, match="`y` is on another device"):
        native.scale(array(8), np.zeros(8, np.float32))
    assert other
    assert not stub.launches


# Dispatchers and instances as objects.


def test_dynamic_shared_memory_is_allowed_once_and_asked_for(run_python):
    script = """
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
for _ in range(2):
    native.scale(CudaArray((8,), "f64"), CudaArray((8,), "f64", pointer=ADDRESS + 4096), BLOCK=256)
print("\\n".join(stub.log))
"""
    log = run_python(script)
    assert log.count("attribute 8=65536 of scale__f64__256__a32 on 0") == 1
    assert log.count(" shared=65536 ") == 2
