"""Specialisations that have code for aligned calls only: what takes them, and what goes on to the next one."""

import random

import numpy as np
import pytest
from fakes import ADDRESS, array
from test_repeat import ALL, OTHER, ROUNDS, Tensors
from test_tensor_maps import OWN, arrays, full, last, maps_of

ROWS, ROWS64 = [8, 8, 4, 4, 4], [8, 8, 8, 8, 8]
FAR = 2**31


@pytest.fixture
def even_rows(native, stub):
    for entry in ("even_256_a32", "even_64_a32", "even_64_g32"):
        stub.set_parameters(entry, ROWS)
    stub.set_parameters("even_64_g64", ROWS64)
    return native.even_rows


@pytest.fixture
def tiles(native, stub):
    stub.set_parameters("tiles_256_a32", [*OWN, 128, 128])
    for variant in ("a32", "g32"):
        stub.set_parameters(f"tiles_64_{variant}", OWN)
    return native.tiles


@pytest.fixture
def tensors(native, stub):
    made = Tensors()
    yield made
    ALL.append(made)


def rows(columns=8, stride=8, x=0, y=0):
    return array(3, columns, strides=(4 * stride, 4), offset=4096 + x), array(3, columns, offset=2**40 + y)


@pytest.mark.parametrize(
    ("call", "entry"),
    [
        pytest.param({}, "even_256_a32", id="aligned"),
        pytest.param({"columns": 256, "stride": 256}, "even_256_a32", id="aligned, longer"),
        pytest.param({"x": 4}, "even_64_g32", id="address"),
        pytest.param({"y": 8}, "even_64_g32", id="address of the output"),
        pytest.param({"stride": 9}, "even_64_g32", id="stride"),
        pytest.param({"stride": FAR}, "even_64_g64", id="offsets"),
    ],
)
def test_calls_that_are_not_aligned_take_the_next_one(even_rows, stub, call, entry):
    even_rows(*rows(**call))
    assert [launch.entry for launch in stub.launches] == [entry]
    assert even_rows.info(*rows(**call))["entry_point"] == entry


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ({"x": 4}, "`x` starts 4 bytes behind a multiple of 16"),
        ({"y": 8}, "`y` starts 8 bytes behind a multiple of 16"),
        ({"stride": 9}, "`stride` is 9, no multiple of 4"),
        ({"stride": FAR}, r"`x`, f32\[3, 8\] with strides \(2147483648, 1\), is beyond offsets of 32 bits"),
    ],
)
def test_named_constants_and_instances_say_what_is_not_aligned(even_rows, stub, call, found):
    what = r"(?s)even_rows__f32__256: compiled for aligned calls only \(`aligned=True`\), and this call is not.*found: "
    with pytest.raises(ValueError, match=what + found + r".*fix: leave the constants out"):
        even_rows(*rows(**call), BLOCK=256)
    instance = even_rows.dispatch("f32", 256)
    for launch in (instance.launch, instance[3]):
        with pytest.raises(ValueError, match=what + found + r".*fix: call `even_rows\(\.\.\.\)`"):
            launch(*rows(**call))
    assert not stub.launches
    even_rows(*rows(), BLOCK=256)
    instance.launch(*rows())
    assert [launch.entry for launch in stub.launches] == ["even_256_a32"] * 2


def test_a_call_that_no_other_suits_says_what_to_declare(even_rows):
    with pytest.raises(ValueError, match=r"(?s)even_rows__f32__256: .*fix: add a configuration without `aligned=True`"):
        even_rows(*rows(columns=65, stride=65))
    with pytest.raises(ValueError, match="no specialisation suits these sizes"):
        even_rows(*rows(columns=257, stride=260))


def test_a_call_that_writes_nothing_is_never_refused(even_rows, stub):
    empty = array(0, 8, offset=4), array(0, 8, offset=2**20)
    even_rows(*empty)
    even_rows(*empty, BLOCK=256)
    even_rows.dispatch("f32", 256).launch(*empty)
    assert not stub.launches


def test_the_cpu_chooses_alike(native):
    buffer = np.arange(100, dtype=np.float32)
    start = -buffer.ctypes.data % 16 // 4
    for shift, chosen in ((0, "even_rows__f32__256"), (1, "even_rows__f32__64")):
        x, y = buffer[start + shift :][:24].reshape(3, 8), np.zeros((3, 8), np.float32)
        assert y.ctypes.data % 16 == 0
        assert native.even_rows.info(x, y)["specialisation"] == chosen
        native.even_rows(x, y)
        np.testing.assert_array_equal(y, 2 * x)


def test_arrays_that_cannot_have_a_map_take_the_next_one(tiles, stub, tensors):
    for make in (full, tensors):
        for _ in range(ROUNDS):
            for call, variant in (({"rows": 0}, "a32"), ({"stride": 68}, "a32"), ({"a": ADDRESS + 8}, "g32")):
                tiles(*arrays(make, **call))
                assert last(stub) == (f"tiles_64_{variant}", [])
            tiles(*arrays(make))
            assert last(stub) == ("tiles_256_a32", maps_of())


def test_an_array_that_cannot_have_a_map_is_named(tiles):
    found = r"`a`, f16\[3, 64\] with strides \(68, 1\), cannot have a tensor map"
    with pytest.raises(ValueError, match=rf"(?s)tiles__f16__256: .*found: {found}"):
        tiles(*arrays(full, stride=68), BLOCK=256)


def test_random_calls_do_what_they_do_through_another_protocol(tiles, stub, tensors):
    """Arrays with only `__cuda_array_interface__` are never remembered."""
    draw, seen = random.Random(3), set()
    for _ in range(400):
        stub.library.stub_clear_log()
        columns, parts = draw.choice((8, 64)), draw.choice((1, 1, 2, 0))
        stride = columns + draw.choice((0, 0, 8, 4))
        places = {"a": ADDRESS + draw.choice((0, 0, 16, 2)), "b": OTHER + draw.choice((0, 0, 1024))}
        for make in (tensors, full):
            tiles(*arrays(make, 3, columns, stride, **places), parts)
        known, checked = ((it.entry, it.parameters, it.maps) for it in stub.launches)
        assert known == checked
        assert not known[2] or known[2] == maps_of(3, columns, stride, **places, parts=parts)
        seen.add(known[0])
    assert seen == {"tiles_256_a32", "tiles_64_a32", "tiles_64_g32"}


def test_it_says_what_it_has(native, stub):
    first, second = native.even_rows.instances
    assert (first.only_aligned, second.only_aligned) == (True, False)
    assert first.ptx("sm_80") == second.ptx("sm_80", "g64")
    with pytest.raises(ValueError, match=r"(?s)even_rows__f32__256: has no variant `g32`.*compiled for aligned calls"):
        first.ptx("sm_80", "g32")
    assert [image["kind"] for image in first.images] == ["cubin", "cubin", "ptx", "host"]
    assert native.even_rows.info()["specialisations"] == ["even_rows__f32__256", "even_rows__f32__64"]


def test_preloading_loads_what_there_is(native, stub):
    stub.library.stub_clear_log()
    native.tiles.preload(1)
    assert sum(line.startswith("function") for line in stub.log) == 4
