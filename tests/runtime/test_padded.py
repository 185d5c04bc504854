"""Matrices whose rows are not aligned: copied around the launch, where the kernel says that it is worth it."""

import pytest
from fakes import ADDRESS, CudaArray

ROOM = 7 << 40  # where the stub's memory lies
Y = ADDRESS + (1 << 32)


@pytest.fixture
def matrices(native, stub):
    stub.set_parameters("matrices_a32", [8, 8, 4, 4, 4, 4, 128])
    stub.set_parameters("matrices_g64", [8] * 6)
    return native.matrices


def matrix(rows, columns, pitch=None, pointer=ADDRESS, order="rows"):
    strides = (2 * (pitch or columns), 2) if order == "rows" else (2, 2 * (pitch or rows))
    return CudaArray((rows, columns), "f16", pointer, strides=strides)


def queued(stub):
    """What was queued in streams, in order."""
    words = ("allocate", "copy", "launch", "free")
    return [line.split(" grid=")[0] for line in stub.log if line.startswith(words)]


def test_rows_that_are_not_aligned_are_copied_around_the_launch(matrices, stub):
    matrices(matrix(30, 65), matrix(30, 70, pitch=71, pointer=Y))
    pitch, size = 256, 30 * 256
    assert queued(stub) == [
        f"allocate {2 * size} stream=0",
        f"copy {ADDRESS:x}/130 to {ROOM:x}/{pitch} 30x130 stream=0",
        "launch matrices_a32",
        f"copy {ROOM + size:x}/{pitch} to {Y:x}/142 30x140 stream=0",
        f"free {ROOM:x} stream=0",
    ]
    assert stub.launches[-1].maps[0].address == ROOM
    assert [int.from_bytes(p, "little") for p in stub.launches[-1].parameters[:6]] == [
        ROOM,
        ROOM + size,
        30,
        65,
        128,
        128,
    ]


def test_aligned_matrices_stay_where_they_are(matrices, stub):
    matrices(matrix(30, 65), matrix(30, 64, pointer=Y))
    assert [line.split()[0] for line in queued(stub)] == ["allocate", "copy", "launch", "free"]
    matrices(matrix(30, 65, pitch=72), matrix(30, 64, pointer=Y))
    assert queued(stub)[4:] == ["launch matrices_a32"]


def test_memory_that_begins_between_chunks_is_copied(matrices, stub):
    matrices(matrix(30, 64, pointer=ADDRESS + 2), matrix(30, 64, pointer=Y))
    assert queued(stub)[1] == f"copy {ADDRESS + 2:x}/128 to {ROOM:x}/128 30x128 stream=0"


def test_copies_are_queued_in_the_calls_stream(matrices, stub):
    matrices(matrix(30, 65), matrix(30, 64, pointer=Y), stream=0x77)
    assert all("stream=0x77" in line for line in queued(stub) if not line.startswith("launch"))


def test_calls_are_padded_again_and_again(matrices, stub):
    for _ in range(4):
        matrices(matrix(30, 65), matrix(30, 65, pointer=Y))
    assert [line.split()[0] for line in queued(stub)] == ["allocate", "copy", "launch", "copy", "free"] * 4
    assert stub.log.count("pool device=0") <= 1


@pytest.mark.parametrize(
    "arrays",
    [
        pytest.param([(30, 33), (30, 33)], id="few elements"),
        pytest.param([(30, 65, 60), (30, 65)], id="rows that overlap"),
        pytest.param([(0, 65), (30, 65)], id="no rows"),
    ],
)
def test_calls_that_copies_do_not_help_take_general_code(matrices, stub, arrays):
    (first, second) = arrays
    matrices(matrix(*first), matrix(*second, pointer=Y))
    assert queued(stub) == ["launch matrices_g64"]


@pytest.mark.parametrize("function", ["cuMemAllocFromPoolAsync", "cuMemPoolCreate"])
def test_without_memory_general_code_serves(run_python, function):
    script = f"""
from test_padded import *
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
stub.set_parameters("matrices_g64", [8] * 6)
stub.fail("{function}", 2)
native.matrices(matrix(30, 65), matrix(30, 65, pointer=Y))
print(queued(stub))
"""
    assert run_python(script).strip() == "['launch matrices_g64']"


def test_other_targets_want_other_multiples(run_python):
    """On sm_80 the columns are to divide by 8: copies do not help; strides alone would do on sm_90a."""
    script = """
from test_padded import *
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
stub.set_device(8, 0, count=1)
stub.set_parameters("matrices_g64", [8] * 6)
native.matrices(matrix(30, 65), matrix(30, 65, pointer=Y))
print(queued(stub))
"""
    assert run_python(script).strip() == "['launch matrices_g64']"


def test_a_call_says_what_is_copied(matrices):
    told = matrices.info(matrix(30, 65), matrix(30, 70, pitch=72, pointer=Y))
    assert (told["padded"], told["variant"]) == (("a",), "a32")
    assert "padded" not in matrices.info(matrix(30, 64), matrix(30, 64, pointer=Y))
