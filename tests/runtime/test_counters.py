"""Counters that programs draw their tiles from: a launch passes one as the last parameter, behind the tensor maps."""

import ctypes
import itertools
import struct

import numpy as np
import pytest
from fakes import ADDRESS, Stub
from test_repeat import ALL, OTHER, Tensors, settle
from test_tensor_maps import F16, OWN, B, Map, Y, arrays, full, maps_of

COUNTER_BYTES = 128  # in a cache line of its own
PER_THREAD = 2  # the stream that each thread has of its own
streams = itertools.count(0x1000)  # none that another test has used


def describe_parameters(stub: Stub) -> None:
    stub.set_parameters("drawn_a32", [*OWN, 128, 128, 8])
    stub.set_parameters("drawn_g32", [*OWN, 8])
    stub.set_parameters("full_a32", [8] * 9 + [4] * 87 + [128] * 8 + [8])


@pytest.fixture
def drawn(native, stub):
    describe_parameters(stub)
    return native.drawn


@pytest.fixture
def tensors(native, stub):
    made = Tensors()
    made.stream = next(streams)
    yield made
    ALL.append(made)


def counters(stub):
    """Return the last parameter of each launch."""
    return [struct.unpack("<Q", launch.parameters[-1])[0] for launch in stub.launches]


def counter_of(stub, call):
    call()
    return counters(stub)[-1]


def test_a_counter_comes_behind_maps(drawn, stub):
    drawn(*arrays(full, rows=5, columns=96, stride=128), 2, stream=next(streams))
    (launch,) = stub.launches
    assert launch.entry == "drawn_a32" and launch.maps == maps_of(5, 96, 128, parts=2)
    numbers = (struct.pack("<i", number) for number in (2, 5, 96, 128))
    assert launch.parameters[:7] == [*(struct.pack("<Q", p) for p in (ADDRESS, B, Y)), *numbers]
    assert [len(parameter) for parameter in launch.parameters[7:]] == [128, 128, 8]


def test_a_counter_comes_behind_the_parameters_where_there_are_no_maps(drawn, stub, tensors):
    settle(lambda: drawn(*arrays(tensors, a=ADDRESS + 8)))
    assert {(launch.entry, len(launch.parameters)) for launch in stub.launches} == {("drawn_g32", 8)}
    assert len(set(counters(stub))) == 1


def test_counters_are_zeros_of_the_devices_memory(drawn, stub):
    found = {counter_of(stub, lambda: drawn(*arrays(full), stream=next(streams))) for _ in range(1100)}
    assert len(found) == 1100
    assert all(ctypes.string_at(counter, COUNTER_BYTES) == bytes(COUNTER_BYTES) for counter in found)
    ordered = sorted(found)
    assert all(two - one >= COUNTER_BYTES for one, two in itertools.pairwise(ordered))
    assert all(counter % COUNTER_BYTES == 0 for counter in found)
    assert stub.library.stub_streams() == 0


def test_launches_on_a_stream_share_a_counter(drawn, stub):
    first, second = next(streams), next(streams)
    for stream in (first, second, first, second):
        drawn(*arrays(full), stream=stream)
    drawn(*arrays(full, a=ADDRESS + 8), stream=first)
    one, two, *rest = counters(stub)
    assert one != two and rest == [one, two, one]


def test_each_device_has_its_own(drawn, stub, tensors):
    for device in (0, 1, 0, 1):
        drawn(*arrays(lambda *shape, device=device, **more: tensors(*shape, device=device, **more)))
    assert [launch.context for launch in stub.launches] == [0, 1, 0, 1]
    one, two, *rest = counters(stub)
    assert one != two and rest == [one, two]


def test_threads_have_their_own_of_the_stream_of_a_thread(drawn, stub):
    import threading

    def call():
        drawn(*arrays(full), stream=PER_THREAD)

    call()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    call()
    one, two, three = counters(stub)
    assert one == three != two


def test_known_calls_pass_the_counter_of_their_stream(drawn, stub, tensors):
    stream, other = tensors.stream, next(streams)
    settle(lambda: drawn(*arrays(tensors)))
    before = tensors.reads
    drawn(*arrays(tensors, a=ADDRESS + 64))
    assert tensors.reads == before + 3, "the call is not a known one"
    assert len(set(counters(stub))) == 1 and stub.launches[-1].maps == maps_of(a=ADDRESS + 64)
    of_stream = counters(stub)[-1]
    for tensors.stream in (other, stream, other, stream):
        drawn(*arrays(tensors))
    a, b, c, d = counters(stub)[-4:]
    assert a == c != of_stream and b == d == of_stream
    assert stub.launches[-1].maps == maps_of()


def test_a_captured_launch_has_a_counter_for_good(drawn, stub, tensors):
    stream = tensors.stream
    settle(lambda: drawn(*arrays(tensors)))
    of_stream = counters(stub)[-1]
    stub.library.stub_clear_log()
    stub.library.stub_set_capturing(1)
    for _ in range(600):
        drawn(*arrays(tensors))
        drawn(*arrays(full), stream=stream)
    captured = counters(stub)
    assert len(set(captured)) == 1200 and of_stream not in captured
    assert all(ctypes.string_at(counter, COUNTER_BYTES) == bytes(COUNTER_BYTES) for counter in captured)
    stub.library.stub_set_capturing(0)
    assert counter_of(stub, lambda: drawn(*arrays(tensors))) == of_stream
    fresh = counter_of(stub, lambda: drawn(*arrays(full), stream=next(streams)))
    assert fresh not in captured


@pytest.mark.parametrize("is_made_again", [0, 1])
def test_a_context_that_is_reset_has_new_ones(drawn, stub, tensors, is_made_again):
    settle(lambda: drawn(*arrays(tensors)))
    old = counters(stub)[-1]
    stub.library.stub_reset_context(0, is_made_again)
    settle(lambda: drawn(*arrays(tensors)))
    assert stub.launches[-1].by == "function"
    (new,) = set(counters(stub)) - {old}
    assert counters(stub)[-1] == new
    assert ctypes.string_at(new, COUNTER_BYTES) == bytes(COUNTER_BYTES)


def test_the_first_counter_may_be_wanted_after_a_reset(run_python):
    script = """
from test_counters import *
stub = Stub(ctypes.CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
describe_parameters(stub)
stub.set_parameters("mapped_a32", [*OWN, 128, 128])
native.mapped(*arrays(full))
stub.library.stub_reset_context(0, 0)
stub.library.stub_clear_log()
native.drawn(*arrays(full))
print(len(counters(stub)), stub.log.count("retain 0"), ctypes.string_at(counters(stub)[0], 128) == bytes(128))
"""
    assert run_python(script).strip() == "1 1 True"


@pytest.mark.parametrize("function", ["cuMemAlloc", "cuStreamCreate", "cuStreamSynchronize"])
def test_memory_that_there_is_not_is_explained(run_python, function):
    script = f"""
from test_counters import *
stub = Stub(ctypes.CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
describe_parameters(stub)
stub.fail("{function}", 2, times=1)
try:
    native.drawn(*arrays(full))
except RuntimeError as error:
    print("launching drawn__f16 on cuda:0: CUDA_ERROR_OUT_OF_MEMORY" in str(error), len(stub.launches))
print(stub.library.stub_allocations(), stub.library.stub_streams())
native.drawn(*arrays(full))
print(len(counters(stub)), stub.library.stub_allocations(), stub.library.stub_streams())
"""
    assert run_python(script).splitlines() == ["True 0", "0 0", "1 1 0"]


# ---- as many parameters as there may be ------------------------------------------------------------------------------


def test_96_parameters_8_maps_and_a_counter_are_passed(drawn, native, stub, tensors):
    numbers = [7 * i - 300 for i in range(87)]
    for make in (full, tensors):
        for shift in range(0, 16 * 20, 16):
            places = [ADDRESS + 2**30 * i + shift for i in range(8)]
            made = [make(8, 64, dtype="f16", pointer=place) for place in places]
            native.full(*made, make(87, dtype="i64", pointer=OTHER), *numbers, stream=tensors.stream)
            launch = stub.launches[-1]
            assert (launch.entry, len(launch.parameters)) == ("full_a32", 96 + 8 + 1)
            addresses = [struct.pack("<Q", place) for place in (*places, OTHER)]
            assert launch.parameters[:96] == addresses + [struct.pack("<i", number) for number in numbers]
            assert launch.maps == [Map(place, F16, (64, 8), (128,), (64, 8), 3) for place in places]
    assert len(set(counters(stub))) == 1


def test_96_parameters_reach_code_for_the_cpu(native):
    out, numbers = np.zeros(87, np.int64), [7 * i - 300 for i in range(87)]
    native.full(*(np.zeros((8, 64), np.float16) for _ in range(8)), out, *numbers)
    assert out.tolist() == numbers


@pytest.mark.parametrize("grid", [(2, 3), (2, 1, 3)])
def test_a_grid_of_several_axes_is_refused(drawn, tensors, grid):
    """One counter tells where programs along one axis go on."""
    with pytest.raises(ValueError, match=r"drawn: its programs draw tiles from one counter(.|\n)*one axis"):
        drawn(*arrays(tensors), grid=grid)
