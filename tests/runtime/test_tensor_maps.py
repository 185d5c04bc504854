"""Tensor maps that a launch passes behind the kernel's own parameters: made of each call's arrays, or avoided."""

import random
import struct

import pytest
from fakes import ADDRESS, CudaArray, Map, Stub
from test_repeat import ALL, OTHER, ROUNDS, Tensors, settle

OWN = [8, 8, 8, 4, 4, 4, 4]
B, Y = OTHER, OTHER + 2**42
F16, U8 = 6, 0


@pytest.fixture
def mapped(native, stub):
    describe_parameters(stub)
    return native.mapped


@pytest.fixture
def tensors(native, stub):
    made = Tensors()
    yield made
    ALL.append(made)


def describe_parameters(stub: Stub) -> None:
    stub.set_parameters("mapped_a32", [*OWN, 128, 128])
    stub.set_parameters("mapped_g32", OWN)


def arrays(make, rows=3, columns=64, stride=None, a=ADDRESS, b=B):
    """Return what `mapped` takes; `make` is `tensors`, or `full` for a type whose calls are never remembered."""
    strides = (columns if stride is None else stride, 1)
    y = make(8, dtype="f16", pointer=Y)
    return make(rows, columns, dtype="f16", pointer=a, strides=strides), make(4096, dtype="u8", pointer=b), y


def full(*shape, dtype, pointer, strides=None):
    steps = None if strides is None else tuple(2 * stride for stride in strides)
    return CudaArray(shape, dtype, pointer, strides=steps)


def maps_of(rows=3, columns=64, stride=None, a=ADDRESS, b=B, parts=1):
    pitch = columns if stride is None else stride
    return [
        Map(a, F16, (columns, rows), (2 * pitch,), (64, 128), 3),
        Map(b, U8, (columns, parts), (2 * columns,), (16, 1), 0),
    ]


def last(stub):
    return stub.launches[-1].entry, stub.launches[-1].maps


def count_made(stub, call):
    """Return how many maps the driver makes meanwhile."""
    before = stub.log.count("map")
    call()
    return stub.log.count("map") - before


def test_maps_follow_the_kernels_own_parameters(mapped, stub):
    mapped(*arrays(full, rows=5, columns=96, stride=128), 2)
    launch = stub.launches[-1]
    assert launch.entry == "mapped_a32"
    assert launch.parameters[:7] == [
        *(struct.pack("<Q", address) for address in (ADDRESS, B, Y)),
        *(struct.pack("<i", number) for number in (2, 5, 96, 128)),
    ]
    assert launch.maps == maps_of(5, 96, 128, parts=2)


def test_every_way_in_passes_maps(mapped, stub):
    a, b, y = arrays(full)
    instance = mapped.dispatch("f16")
    mapped(a, b, y)
    mapped(a, b, y=y, stream=7)
    instance.launch(a, b, y)
    instance[2, 3](a, b, y)
    assert [launch.maps for launch in stub.launches] == [maps_of()] * 4
    assert stub.launches[-1].grid == (2, 3, 1)


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        pytest.param({"rows": 0}, 1, id="no rows"),
        pytest.param({"columns": 0}, 1, id="no columns"),
        pytest.param({}, 0, id="no parts"),
        pytest.param({}, -1, id="parts below 0"),
        pytest.param({"stride": 68}, 1, id="pitch that 16 bytes do not divide"),
        pytest.param({"stride": -64}, 1, id="pitch below 0"),
        pytest.param({"columns": 4, "stride": 64}, 1, id="pitch of the other map"),
        pytest.param({"a": ADDRESS + 8}, 1, id="address"),
    ],
)
def test_arrays_that_cannot_have_a_map_take_general_code(mapped, stub, tensors, shape, parts):
    for make in (full, tensors):
        for _ in range(ROUNDS):
            mapped(*arrays(make, **shape), parts)
            assert last(stub) == ("mapped_g32", [])
        mapped(*arrays(make))
        assert last(stub) == ("mapped_a32", maps_of())


def test_a_call_says_how_many_maps_it_takes(mapped):
    assert mapped.info(*arrays(full))["tensor_maps"] == 2
    told = mapped.info(*arrays(full, rows=0))
    assert (told["variant"], "tensor_maps" in told) == ("g32", False)


def test_other_targets_code_takes_none(run_python):
    script = """
from test_tensor_maps import *
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
stub.set_device(8, 0, count=1)
stub.set_parameters("mapped_a32", OWN)
for rows in (3, 0):
    native.mapped(*arrays(full, rows=rows))
    print(*last(stub), "map" in stub.log)
"""
    assert run_python(script).splitlines() == ["mapped_a32 [] False"] * 2


def test_a_driver_that_makes_none_gets_general_code(run_python):
    script = """
from test_tensor_maps import *
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
stub.hide("cuTensorMapEncodeTiled")
describe_parameters(stub)
native.mapped(*arrays(full))
native.scale(array(8), array(8, offset=4096))
print(*last(stub), stub.launches[0].entry)
"""
    assert run_python(script).strip() == "scale__f32__256__a32 [] mapped_g32"


def test_a_driver_that_refuses_is_explained(mapped, stub, tensors):
    settle(lambda: mapped(*arrays(tensors)))
    count = len(stub.launches)
    for make in (full, tensors):
        stub.fail("cuTensorMapEncodeTiled", 1, times=1)
        with pytest.raises(RuntimeError, match=r"mapped: making the tensor map of `a`: CUDA_ERROR_INVALID_VALUE"):
            mapped(*arrays(make, a=ADDRESS + 4096))
    assert len(stub.launches) == count
    mapped(*arrays(tensors))
    assert last(stub) == ("mapped_a32", maps_of())


def test_a_known_call_makes_maps_only_of_arrays_that_moved(mapped, stub, tensors):
    settle(lambda: mapped(*arrays(tensors)))
    for places, made in (({}, 0), ({"a": ADDRESS + 64}, 1), ({"b": B + 16}, 1), ({"a": Y + 2**20, "b": ADDRESS}, 2)):
        assert count_made(stub, lambda places=places: mapped(*arrays(tensors, **places))) == made
        assert last(stub) == ("mapped_a32", maps_of(**places))
    assert count_made(stub, lambda: mapped(*arrays(tensors))) == 0
    assert last(stub) == ("mapped_a32", maps_of())


def test_byte_offset_counts_in_a_known_call(mapped, stub, tensors):
    a, b, y = arrays(tensors)
    settle(lambda: mapped(a, b, y))
    tensors.described[id(a)].byte_offset = 48
    mapped(a, b, y)
    assert last(stub) == ("mapped_a32", maps_of(a=ADDRESS + 48))


def test_shapes_in_turns_have_their_own_maps(mapped, stub, tensors):
    for _ in range(ROUNDS):
        for rows, columns, stride in ((3, 64, 64), (4, 64, 64), (3, 64, 128), (3, 128, 128)):
            mapped(*arrays(tensors, rows, columns, stride))
            assert last(stub) == ("mapped_a32", maps_of(rows, columns, stride))


def test_numbers_that_a_map_reads_are_compared(mapped, stub, tensors):
    for _ in range(ROUNDS):
        for parts in (1, 2, 7):
            mapped(*arrays(tensors), parts)
            assert last(stub) == ("mapped_a32", maps_of(parts=parts))


def test_sizes_that_are_given_count(mapped, stub, tensors):
    for _ in range(ROUNDS):
        for rows in (3, 2):
            mapped(*arrays(tensors), 1, rows)
            assert last(stub) == ("mapped_a32", maps_of(rows))


def test_maps_are_made_again_after_a_reset(mapped, stub, tensors):
    settle(lambda: mapped(*arrays(tensors)))
    for make in (full, tensors):
        stub.library.stub_reset_context(0, 0)
        stub.library.stub_clear_log()
        mapped(*arrays(make, a=ADDRESS + 4096))
        assert last(stub) == ("mapped_a32", maps_of(a=ADDRESS + 4096))
        assert stub.log.count("retain 0") == 1


def test_a_call_from_within_the_stream_does_not_mix(run_python):
    """Python code that is asked for the stream replaces what is remembered; freed memory is overwritten."""
    script = """
from test_tensor_maps import *
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
describe_parameters(stub)
tensors = Tensors()
def nested():
    tensors.before_stream = lambda: None
    settle(lambda: native.mapped(*arrays(tensors, a=ADDRESS + 8)))
for _ in range(4):
    settle(lambda: native.mapped(*arrays(tensors)))
    tensors.before_stream = nested
    native.mapped(*arrays(tensors, b=B + 64))
    print(last(stub) == ("mapped_a32", maps_of(b=B + 64)))
"""
    environment = {"MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    assert run_python(script, **environment).splitlines() == ["True"] * 4


def test_random_calls_do_what_they_do_through_another_protocol(mapped, stub, tensors):
    """Arrays with only `__cuda_array_interface__` are never remembered."""
    draw = random.Random(7)
    for _ in range(400):
        stub.library.stub_clear_log()
        rows, columns, parts = draw.choice((0, 1, 3)), draw.choice((8, 64)), draw.choice((1, 1, 2, 0))
        stride = columns + draw.choice((0, 0, 8, 4))
        places = {"a": ADDRESS + draw.choice((0, 0, 16, 2)), "b": B + draw.choice((0, 0, 1024))}
        for make in (tensors, full):
            mapped(*arrays(make, rows, columns, stride, **places), parts)
        known, checked = ((it.entry, it.parameters, it.maps) for it in stub.launches)
        assert known == checked
        entry, maps = last(stub)
        assert maps == (maps_of(rows, columns, stride, **places, parts=parts) if entry == "mapped_a32" else [])
