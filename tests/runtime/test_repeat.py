"""Calls like an earlier one skip the choice and the checks, and do what a full call would."""

import ctypes
import random
import struct

import numpy as np
import pytest
from fakes import ADDRESS, CUDA, CudaArray, DLTensor, PyCapsule_New, make_tensor

READ = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(DLTensor))
STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
OTHER = ADDRESS + 2**44
ROUNDS = 20  # enough to be remembered whatever the tests before have left
SIZES = {"scale__f32__256": [8, 8, 4], "scale__f64__256": [8, 8, 8], "scale__bf16__256": [8, 8, 2]}


class Api(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("unused", ctypes.c_void_p * 4),
        ("read", READ),
        ("stream", STREAM),
    ]


class Tensors:
    """Arrays with an exchange API in Python, which counts `reads`.

    `before_read` is called with each one's number, `before_stream` before it tells the stream.
    """

    def __init__(self):
        self.described: dict[int, DLTensor] = {}
        self.keep: list[object] = []
        self.reads, self.stream, self.before_read = 0, 0, lambda read: None
        self.before_stream = lambda: None
        self.api = Api(1, 3, (ctypes.c_void_p * 4)(), READ(self._read), STREAM(self._stream))
        capsule = PyCapsule_New(ctypes.addressof(self.api), b"dlpack_exchange_api", None)
        self.type = type("Tensor", (), {"__dlpack_c_exchange_api__": capsule})

    def _read(self, identity, out):
        self.reads += 1
        self.before_read(self.reads)
        ctypes.memmove(out, ctypes.byref(self.described[identity]), ctypes.sizeof(DLTensor))
        return 0

    def _stream(self, _kind, _device, out):
        self.before_stream()
        out[0] = self.stream
        return 0

    def __call__(self, *shape, dtype="f32", pointer=ADDRESS, strides=None, device=0):
        made = self.type()
        dense = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        steps = dense if strides is None else strides
        self.described[id(made)] = make_tensor(shape, dtype, pointer, steps, (CUDA, device))
        self.keep.append(made)
        return made


@pytest.fixture
def tensors(native, stub):
    for entry, sizes in SIZES.items():
        for variant, size in (("a32", 4), ("g32", 4), ("g64", 8)):
            stub.set_parameters(f"{entry}__{variant}", [*sizes, size])
    made = Tensors()
    yield made
    ALL.append(made)  # the launcher remembers types and their API for the life of the process


ALL: list[Tensors] = []


def settle(call, times=ROUNDS):
    for _ in range(times):
        call()


def last(stub):
    launch = stub.launches[-1]
    return launch.entry, launch.grid, launch.parameters


def scale_launch(n, pointers, factor, entry="scale__f32__256__a32"):
    numbers = struct.pack("<f", factor), struct.pack("<i", n)
    return entry, (-(-n // 256), 1, 1), [*(struct.pack("<Q", p) for p in pointers), *numbers]


def test_a_call_like_the_last_reads_its_arrays_once(native, stub, tensors):
    settle(lambda: native.scale(tensors(1000), tensors(1000, pointer=OTHER), 2.0))
    before = tensors.reads
    native.scale(tensors(1000, pointer=ADDRESS + 64), tensors(1000, pointer=OTHER + 128), -0.5)
    assert tensors.reads == before + 2
    assert last(stub) == scale_launch(1000, (ADDRESS + 64, OTHER + 128), -0.5)


@pytest.mark.parametrize("lengths", [[1, 255, 256, 257, 1000, 4096], range(1, 16), range(1000, 1100, 3)])
def test_shapes_in_turns_are_told_apart(native, stub, tensors, lengths):
    for _ in range(5):
        for n in lengths:
            native.scale(tensors(n), tensors(n, pointer=OTHER), float(n))
            assert last(stub) == scale_launch(n, (ADDRESS, OTHER), n)


def test_shapes_in_turns_are_remembered_even_when_there_have_been_others(native, stub, tensors):
    for n in range(2000, 2100):
        native.scale(tensors(n), tensors(n, pointer=OTHER))
    lengths = range(3000, 3010)
    for _ in range(30):
        for n in lengths:
            native.scale(tensors(n), tensors(n, pointer=OTHER))
    before = tensors.reads
    for n in lengths:
        native.scale(tensors(n), tensors(n, pointer=OTHER))
    assert tensors.reads - before == 2 * len(lengths)


@pytest.mark.parametrize(("x", "y"), [(4, 0), (0, 4), (8, 8)])
def test_alignment_is_looked_at_each_time(native, stub, tensors, x, y):
    for _ in range(ROUNDS):
        native.scale(tensors(1000), tensors(1000, pointer=OTHER))
        assert last(stub)[0] == "scale__f32__256__a32"
        native.scale(tensors(1000, pointer=ADDRESS + x), tensors(1000, pointer=OTHER + y))
        assert last(stub)[0] == "scale__f32__256__g32"


def test_byte_offset_counts(native, stub, tensors):
    x, y = tensors(1000), tensors(1000, pointer=OTHER)
    settle(lambda: native.scale(x, y))
    tensors.described[id(x)].byte_offset = 4
    native.scale(x, y, 2.0)
    assert last(stub) == scale_launch(1000, (ADDRESS + 4, OTHER), 2.0, "scale__f32__256__g32")


def test_dtypes_are_looked_at_each_time(native, stub, tensors):
    for _ in range(ROUNDS):
        for dtype in ("f32", "f64", "bf16"):
            native.scale(tensors(1000, dtype=dtype), tensors(1000, dtype=dtype, pointer=OTHER))
            assert last(stub)[0] == f"scale__{dtype}__256__a32"
    with pytest.raises(TypeError, match="wrong dtype"):
        native.scale(tensors(1000), tensors(1000, dtype="f64", pointer=OTHER))


def test_offsets_of_64_bits_begin_where_they_did(native, stub, tensors):
    limit = 2**31 - 2**20
    for _ in range(ROUNDS):
        for n, variant in ((limit - 1, "a32"), (limit, "g64")):
            native.scale(tensors(n), tensors(n, pointer=OTHER))
            assert last(stub)[:2] == (f"scale__f32__256__{variant}", (-(-n // 256), 1, 1))


def test_strides_are_looked_at_each_time(native, stub, tensors):
    for _ in range(ROUNDS):
        for stride, entry in ((64, "a32"), (65, "g32"), (2**31, "g64")):
            native.row_scale(tensors(4, 60, strides=(stride, 1)), tensors(4, 60, pointer=OTHER))
            assert last(stub)[0] == f"row_scale_64_{entry}"
    with pytest.raises(ValueError, match="not contiguous"):
        native.row_scale(tensors(4, 60), tensors(4, 60, strides=(61, 1), pointer=OTHER))


def test_each_device_has_its_own_context_and_function(native, stub, tensors):
    for _ in range(ROUNDS):
        for device in (0, 1):
            native.scale(tensors(8, device=device), tensors(8, pointer=OTHER, device=device))
            assert (stub.launches[-1].context, stub.launches[-1].by) == (device, "function")
    with pytest.raises(ValueError, match="another device"):
        native.scale(tensors(8), tensors(8, pointer=OTHER, device=1))


def test_a_foreign_current_context_is_put_back(native, stub, tensors):
    settle(lambda: native.scale(tensors(8), tensors(8, pointer=OTHER)))
    stub.library.stub_push_context(1)
    stub.library.stub_clear_log()
    native.scale(tensors(8), tensors(8, pointer=OTHER))
    assert stub.launches[0].context == 0
    assert (stub.log[0], stub.log[-1]) == ("push 0", "pop")


def test_the_stream_is_asked_for_each_time(native, stub, tensors):
    for stream in (0, 0x30, 0x30, 0x40, 0x50, 0):
        tensors.stream = stream
        native.scale(tensors(8), tensors(8, pointer=OTHER))
        assert stub.launches[-1].stream == stream
    native.scale(tensors(8), tensors(8, pointer=OTHER), stream=0x60)
    assert stub.launches[-1].stream == 0x60


def test_numbers_are_read_as_in_a_full_call(native, stub, tensors):
    x, y = tensors(8), tensors(8, pointer=OTHER)
    settle(lambda: native.scale(x, y, 1.5))
    for value, factor in ((3, 3), (True, 1), (None, 2), (np.float32(0.25), 0.25), (np.float64(-1), -1), (-1.0, -1)):
        native.scale(x, y, value)
        assert last(stub) == scale_launch(8, (ADDRESS, OTHER), factor)
    count = len(stub.launches)
    for value, error in (("2", TypeError), (1j, TypeError), (x, TypeError), (10**400, (TypeError, ValueError))):
        with pytest.raises(error):
            native.scale(x, y, value)
    assert len(stub.launches) == count


def test_numbers_that_decide_are_compared(native, stub, tensors):
    out = tensors(64, dtype="i64")
    for _ in range(ROUNDS):
        for n0, n1 in ((2, 3), (2, 4), (5, 3)):
            native.program_ids(out, n0, n1)
            assert stub.launches[-1].grid == (n0, n1, 2)
    for n0, n1, error in ((2**31, 3, "out of range"), (9, 4, "too small"), (2, -3, "negative")):
        with pytest.raises(ValueError, match=error):
            native.program_ids(out, n0, n1)
    count = len(stub.launches)
    native.program_ids(out, 0, 3)
    assert len(stub.launches) == count


def test_sizes_that_are_given_are_compared(native, stub, tensors):
    x, y = tensors(1000), tensors(1000, pointer=OTHER)
    for _ in range(ROUNDS):
        for n in (1000, 500):
            native.scale(x, y, 1.0, n)
            assert last(stub) == scale_launch(n, (ADDRESS, OTHER), 1.0)
        native.scale(x, y, 1.0)
        assert last(stub) == scale_launch(1000, (ADDRESS, OTHER), 1.0)
    with pytest.raises(ValueError, match="does not fit"):
        native.scale(x, y, 1.0, 1001)


def test_what_a_full_call_refuses_is_refused(native, stub, tensors):
    x, y = tensors(1000), tensors(1000, pointer=OTHER)
    settle(lambda: native.scale(x, y))
    count = len(stub.launches)
    for arguments, error in (
        ((x, tensors(999, pointer=OTHER)), "too small"),
        ((x, tensors(1000, pointer=ADDRESS + 16)), "partly overlaps"),
        ((x, tensors(1000, pointer=ADDRESS - 3984)), "partly overlaps"),
        ((x, tensors(1000, pointer=0)), "without memory"),
        ((x, tensors(1000, pointer=OTHER, strides=(0,))), "not contiguous"),
        ((x,), "needs `y`"),
        ((x, None), "needs `y`"),
        ((x, 3), "cannot be an argument"),
        ((None, y), "needs `x`"),
        ((x, y, 1.0, None, 5), "takes 4 arguments"),
    ):
        with pytest.raises((TypeError, ValueError), match=error):
            native.scale(*arguments)
    assert len(stub.launches) == count
    native.scale(x, tensors(1000))
    assert last(stub) == scale_launch(1000, (ADDRESS, ADDRESS), 2.0)


def test_empty_arrays_launch_nothing(native, stub, tensors):
    settle(lambda: native.scale(tensors(0, pointer=0), tensors(0, pointer=0)))
    assert stub.launches == []


def test_an_instance_and_its_kernel_are_told_apart(native, stub, tensors):
    large = native.scale.dispatch("f32", 1024)
    x, y = tensors(3000), tensors(3000, pointer=OTHER)
    for _ in range(ROUNDS):
        native.scale(x, y)
        assert stub.launches[-1].entry == "scale__f32__256__a32"
        large.launch(x, y)
        assert (stub.launches[-1].entry, stub.launches[-1].grid) == ("scale__f32__1024__a32", (12, 1, 1))
        native.scale(x, y, BLOCK=1024)
        assert stub.launches[-1].entry == "scale__f32__1024__a32"
        large[5](x, y)
        assert stub.launches[-1].grid == (5, 1, 1)


def test_calls_from_within_a_read_do_not_mix(run_python):
    """Python code that runs while arrays are read replaces what is remembered; freed memory is overwritten."""
    script = """
from test_repeat import *
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
stub.set_parameters("scale__f32__256__a32", [8, 8, 4, 4])
tensors = Tensors()
x, y = tensors(1000), tensors(1000, pointer=OTHER)
def nested(read):
    tensors.before_read = lambda read: None
    settle(lambda: native.scale(tensors(1000, pointer=ADDRESS + 4), tensors(1000, pointer=OTHER), 9.0))
for skipped in (0, 1, 0, 1):
    settle(lambda: native.scale(x, y, 1.0))
    first = tensors.reads + 1 + skipped
    tensors.before_read = lambda read: nested(read) if read == first else None
    native.scale(x, y, 3.0)
    print(last(stub) == scale_launch(1000, (ADDRESS, OTHER), 3.0), tensors.reads > first + 20)
"""
    environment = {"MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    assert run_python(script, **environment).splitlines() == ["True True"] * 4


def test_a_function_is_renewed_after_a_reset(native, stub, tensors):
    x, y = tensors(8), tensors(8, pointer=OTHER)
    for is_made_again in (0, 1, 1, 0):
        settle(lambda: native.scale(x, y))
        assert stub.launches[-1].by == "function"
        stub.library.stub_reset_context(0, is_made_again)
        stub.library.stub_clear_log()
        settle(lambda: native.scale(x, y))
        assert [launch.by for launch in stub.launches] == ["kernel", *["function"] * (ROUNDS - 1)]
        assert stub.log.count("retain 0") == (not is_made_again)


def test_a_stream_of_another_context_takes_the_kernel(run_python):
    script = """
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
def call():
    native.scale(CudaArray((8,)), CudaArray((8,), pointer=ADDRESS + 4096), stream=0x77)
call()
stub.fail("cuLaunchKernelEx", 400, times=1)
call(), call()
print([launch.by for launch in stub.launches])
stub.fail("cuLaunchKernelEx", 400)
try:
    call()
except RuntimeError as error:
    print("INVALID_HANDLE" in str(error))
"""
    assert run_python(script).splitlines() == ["['function', 'kernel', 'kernel']", "True"]


def test_driver_errors_of_a_known_call_are_explained(native, stub, tensors):
    x, y = tensors(8), tensors(8, pointer=OTHER)
    settle(lambda: native.scale(x, y))
    stub.fail("cuLaunchKernelEx", 700, times=1)
    with pytest.raises(RuntimeError, match=r"(?s)launching scale__f32__256 on cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS"):
        native.scale(x, y)
    native.scale(x, y)


def test_a_known_call_in_a_forked_child_is_refused(run_python):
    script = """
import os
from test_repeat import OTHER, ROUNDS, Tensors
tensors = Tensors()
x, y = tensors(8), tensors(8, pointer=OTHER)
for _ in range(ROUNDS):
    native.scale(x, y)
if os.fork() == 0:
    try:
        native.scale(x, y)
    except RuntimeError as error:
        print("spawn" in str(error), flush=True)
    os._exit(0)
os.wait()
"""
    assert run_python(script).strip() == "True"


def outcome(stub, kernel, *arguments):
    count = len(stub.launches)
    try:
        kernel(*arguments)
    except (TypeError, ValueError) as error:
        assert len(stub.launches) == count
        return type(error).__name__, str(error)
    return [(launch.entry, launch.grid, launch.context, launch.parameters) for launch in stub.launches[count:]]


def test_random_calls_do_what_they_do_through_another_protocol(native, stub, tensors):
    """Arrays with only `__cuda_array_interface__` are never remembered."""
    draw = random.Random(5)
    for _ in range(600):
        stub.library.stub_clear_log()
        device, dtype = draw.choice((0, 0, 0, 1)), draw.choice(("f32", "f32", "f64"))
        n, m = draw.choice((1, 256, 1000)), draw.choice((0, 0, 0, 0, 1, -1))
        x = ADDRESS + draw.choice((0, 0, 0, 16, 4))
        y = draw.choice((OTHER, OTHER, x, ADDRESS + 4000, ADDRESS + 512))
        rest = draw.choice(((), (2.0,), (draw.uniform(-9, 9),), (None,), (7,), ("1",), (1.0, n), (1.0, n // 2)))
        stub.library.stub_set_pointer_device(device)
        mine = [tensors(k, dtype=dtype, pointer=p, device=device) for k, p in ((n, x), (n + m, y))]
        others = [CudaArray((k,), dtype, p) for k, p in ((n, x), (n + m, y))]
        assert outcome(stub, native.scale, *mine, *rest) == outcome(stub, native.scale, *others, *rest)


def test_nineteen_parameters_are_packed_as_in_a_full_call(native, stub, tensors):
    sizes = [8, 8, 8, 8, 1, 8, 1, 2, 1, 4, 8, 2, 4, 2, 4, 4, 4, 4, 4]
    stub.set_parameters("many_a32", sizes)
    draw = random.Random(6)
    for _ in range(50):
        numbers = (
            draw.randint(-128, 127),
            draw.uniform(-1e3, 1e3),
            draw.random() < 0.5,
            draw.uniform(-9, 9),
            draw.randint(0, 255),
            draw.randint(-(2**31), 2**31 - 1),
            draw.choice((0, 2**63, 2**64 - 1)),
            draw.uniform(-9, 9),
            *draw.choice(((), (draw.uniform(-9, 9),), (None, draw.randint(-(2**15), 2**15 - 1)))),
        )
        pointers = [ADDRESS + 2**20 * i + 16 * draw.randrange(99) for i in range(4)]
        kinds = ("f32", "f32", "f32", "u8")
        for wanted in ("known", "full"):
            make = tensors if wanted == "known" else (lambda n, dtype, pointer: CudaArray((n,), dtype, pointer))
            arrays = [make(512, dtype=kind, pointer=p) for kind, p in zip(kinds, pointers, strict=True)]
            native.many(*arrays, *numbers)
        assert stub.launches[-1] == stub.launches[-2]
    for place, bad in ((0, 128), (4, -1), (5, 2**31), (6, -1), (6, 2**64), (2, 2)):
        wrong = [bad if i == place else number for i, number in enumerate(numbers)]
        with pytest.raises((TypeError, ValueError)):
            native.many(*[tensors(512, dtype=k, pointer=p) for k, p in zip(kinds, pointers, strict=True)], *wrong)
