"""Array arguments by every protocol: what is read, what is refused, and that all that is taken is given back."""

import array
import ctypes
import gc
import sys
import weakref
from typing import ClassVar

import numpy as np
import pytest
from fakes import ADDRESS, CUDA_HOST, ROCM, CapsuleArray, CudaArray, Exchange, make_tensor


@pytest.fixture(scope="session")
def exchange(native_folder):
    return Exchange(ctypes.CDLL(str(native_folder / "libfixture_exchange.so")))


def pointer(launch, index):
    return int.from_bytes(launch.parameters[index], "little")


@pytest.fixture(autouse=True)
def parameters(stub):
    for variant, size in (("a32", 4), ("g32", 4), ("g64", 8)):
        stub.set_parameters(f"scale__f32__256__{variant}", [8, 8, 4, size])


# Memory of the CPU.


def test_buffers(native):
    x, y = array.array("f", [1, 2, 3]), array.array("f", [0, 0, 0])
    native.scale(x, y)
    assert y.tolist() == [2, 4, 6]
    native.scale(memoryview(y), memoryview(bytearray(12)).cast("f"))
    with pytest.raises(ValueError, match="`y` is read-only"):
        native.scale(x, memoryview(bytes(12)).cast("f"))
    with pytest.raises(TypeError, match='elements of buffer format "c"'):
        native.scale(memoryview(bytes(12)).cast("c"), y)


def test_buffers_are_given_back(native):
    x, y = array.array("f", [1, 2, 3]), array.array("f", [0, 0, 0])
    native.scale(x, y)
    with pytest.raises(TypeError):
        native.scale(x, array.array("i", [1, 2, 3]))
    x.append(4)
    y.append(4)


def test_numpy_keeps_no_reference(native):
    x, y = np.zeros(8, np.float32), np.zeros(8, np.float32)
    native.scale(x, y)
    counts = sys.getrefcount(x), sys.getrefcount(y), sys.getrefcount(x.dtype)
    for _ in range(50):
        native.scale(x, y)
    with pytest.raises(ValueError, match="too small"):
        native.scale(x, y[:1])
    assert (sys.getrefcount(x), sys.getrefcount(y), sys.getrefcount(x.dtype)) == counts


def test_subclasses_of_numpy_arrays(native):
    class Mine(np.ndarray):
        pass

    x = np.arange(4, dtype=np.float32).view(Mine)
    y = np.zeros(4, np.float32).view(Mine)
    native.scale(x, y)
    assert (np.asarray(y) == 2 * np.arange(4)).all()


def test_capsules_of_the_cpu(native):
    x = np.arange(4, dtype=np.float32)
    y = np.zeros(4, np.float32)
    described = [
        CapsuleArray((4,), pointer=part.ctypes.data, device=(kind, 0)) for part, kind in ((x, 1), (y, CUDA_HOST))
    ]
    native.scale(*described)
    np.testing.assert_array_equal(y, 2 * x)
    assert [part.deleted for part in described] == [1, 1]
    assert "stream" not in described[0].asked[0]


def test_array_interface(native):
    class Mine:
        def __init__(self, x):
            self.x = x

        @property
        def __array_interface__(self):
            return self.x.__array_interface__

    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    native.scale(Mine(x), Mine(y))
    np.testing.assert_array_equal(y, 2 * x)


# CUDA, by __cuda_array_interface__.


def test_interface_of_cuda(native, stub):
    native.scale(CudaArray((8,)), CudaArray((8,), pointer=ADDRESS + 4096))
    assert [pointer(stub.launches[0], i) for i in (0, 1)] == [ADDRESS, ADDRESS + 4096]


BAD_INTERFACES = [
    ({"mask": CudaArray((8,))}, ValueError, "an array with a mask"),
    ({"data": (ADDRESS + 4096, True)}, ValueError, "`y` is read-only"),
    ({"strides": (8,)}, ValueError, r"`y` is not contiguous.*strides \(2\)"),
    ({"strides": (0,)}, ValueError, "`y` is not contiguous"),
    ({"typestr": ">f4"}, TypeError, 'elements of typestr ">f4"'),
    ({"typestr": "<V2"}, TypeError, 'elements of typestr "<V2"'),
    ({"data": (0, False)}, ValueError, r"f32\[8\] without memory"),
]


@pytest.mark.parametrize(("extra", "error", "message"), BAD_INTERFACES)
def test_bad_interfaces(native, stub, extra, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        native.scale(CudaArray((8,)), CudaArray((8,), **({"pointer": ADDRESS + 4096} | extra)))
    assert not stub.launches


# CUDA, by __dlpack__.


@pytest.mark.parametrize("options", [{}, {"is_versioned": False}, {"knows_version": False, "is_versioned": False}])
def test_capsules_are_used_once_and_deleted(native, stub, options):
    x, y = CapsuleArray((8,), **options), CapsuleArray((8,), pointer=ADDRESS + 4096, byte_offset=64, **options)
    native.scale(x, y)
    assert [pointer(stub.launches[0], i) for i in (0, 1)] == [ADDRESS, ADDRESS + 4096 + 64]
    assert (x.deleted, y.deleted) == (1, 1)
    assert len(x.asked) == 1


@pytest.mark.parametrize(("stream", "asked"), [(None, 1), (0, 1), (1, 1), (0x55, 0x55)])
def test_producers_are_told_the_stream(native, stub, stream, asked):
    x = CapsuleArray((8,))
    native.scale(x, CapsuleArray((8,), pointer=ADDRESS + 4096), stream=stream)
    assert x.asked[0]["stream"] == asked
    assert stub.launches[0].stream == (stream or 0)


BAD_CAPSULES = [
    ({"dtype": "complex64"}, TypeError, "elements of complex64"),
    ({"device": (ROCM, 0)}, ValueError, "a device of DLPack type 10"),
    ({"flags": 1}, ValueError, "`y` is read-only"),
    ({"version": 2}, TypeError, "DLPack version 2"),
    ({"pointer": None}, ValueError, "without memory"),
    ({"strides": (2,)}, ValueError, "`y` is not contiguous"),
    ({"device": (2, 1)}, ValueError, "`y` is on another device.*on cuda:1; the others on cuda:0"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_CAPSULES)
def test_bad_capsules_are_deleted_too(native, stub, options, error, message):
    x, y = CapsuleArray((8,)), CapsuleArray((8,), **({"pointer": ADDRESS + 4096} | options))
    with pytest.raises(error, match=f"(?s){message}"):
        native.scale(x, y)
    gc.collect()
    assert (x.deleted, y.deleted) == (1, len(y.asked))
    assert not stub.launches


def test_errors_of_the_producer_are_passed_on(native):
    class Refusing(CapsuleArray):
        def __dlpack__(self, **keywords):
            raise BufferError("Can't export tensors that require gradient\nand more")

    with pytest.raises(
        TypeError,
        match=r"(?s)`x` cannot be an argument.*through __dlpack__: Can't export tensors that require gradient\n",
    ):
        native.scale(Refusing((8,)), CapsuleArray((8,)))


def test_arrays_of_jax_are_no_outputs(native, stub):
    jax_like = type("ArrayImpl", (CapsuleArray,), {"__module__": "jaxlib._jax"})
    native.scale(jax_like((8,)), CapsuleArray((8,), pointer=ADDRESS + 4096))
    with pytest.raises(ValueError, match=r"`y` is read-only"):
        native.scale(CapsuleArray((8,)), jax_like((8,), pointer=ADDRESS + 4096))
    assert len(stub.launches) == 1


# CUDA, by the DLPack C exchange API.


def test_exchange(native, stub, exchange):
    exchange.set_stream(0x99)
    native.scale(exchange.array((8,)), exchange.array((8,), pointer=ADDRESS + 4096, strides=(1,)))
    launch = stub.launches[0]
    assert [pointer(launch, i) for i in (0, 1)] == [ADDRESS, ADDRESS + 4096]
    assert launch.stream == 0x99
    native.scale(exchange.array((8,)), exchange.array((8,), pointer=ADDRESS + 4096), stream=0x98)
    assert stub.launches[1].stream == 0x98


def test_capsules_beside_exchange_are_ready_on_its_stream(native, stub, exchange):
    exchange.set_stream(0x9A)
    x = CapsuleArray((8,))
    native.scale(x, exchange.array((8,), pointer=ADDRESS + 4096))
    assert x.asked[0]["stream"] == 0x9A
    assert stub.launches[0].stream == 0x9A


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((8, 1), (1, 77)), ((1, 8), (77, 1)), ((2, 4), (4, 1)), ((1, 1, 8), (5, 6, 1)), ((0, 3), (9, 9))],
)
def test_strides_of_axes_of_one_do_not_matter(native, stub, exchange, shape, strides):
    native.scale(exchange.array(shape, strides=strides), exchange.array(shape, pointer=ADDRESS + 4096))


@pytest.mark.parametrize(("shape", "strides"), [((2, 4), (1, 2)), ((8,), (-1,)), ((2, 4), (8, 1)), ((2, 4), (0, 1))])
def test_other_strides_are_refused(native, stub, exchange, shape, strides):
    with pytest.raises(ValueError, match="`x` is not contiguous"):
        native.scale(exchange.array(shape, strides=strides), exchange.array(shape, pointer=ADDRESS + 4096))
    assert not stub.launches


def test_expanded_rows_are_inputs_but_no_outputs(native, stub, exchange):
    y = exchange.array((4, 8), pointer=ADDRESS + 4096)
    native.row_scale(exchange.array((4, 8), strides=(0, 1)), y)
    assert len(stub.launches) == 1


def test_torch_on_the_cpu(native):
    torch = pytest.importorskip("torch")
    x, y = torch.arange(1000.0), torch.zeros(1000)
    native.scale(x, y)
    assert torch.equal(y, 2 * x)
    native.scale(torch.nn.Parameter(x), y, 3)
    assert torch.equal(y, 3 * x)
    half = torch.zeros(100, dtype=torch.bfloat16)
    native.scale(torch.arange(100).to(torch.bfloat16), half)
    assert torch.equal(half.float(), 2 * torch.arange(100).float())
    assert native.scale.dispatch(torch.float64).id == "scale__f64__256"


def test_torch_views_that_only_torch_can_read(native):
    torch = pytest.importorskip("torch")
    x, y = torch.arange(8.0), torch.full((8,), 7.0)
    z = torch.complex(x, x)
    bad = [
        (torch._neg_view(x), ValueError, r"lazily negated view.*fix: pass `x.resolve_neg\(\)`"),
        (z.conj().imag, ValueError, "lazily negated view"),
        (z.conj(), TypeError, "elements of complex64"),
        (x.to("meta"), Exception, "`x` cannot be an argument"),
        (x.to_sparse(), Exception, "`x` cannot be an argument"),
        (x[::2], ValueError, "`x` is not contiguous"),
    ]
    for view, error, message in bad:
        with pytest.raises(error, match=f"(?s){message}"):
            native.scale(view, y)
    assert (y == 7).all()
    with pytest.raises(ValueError, match="`y` is not contiguous"):
        native.scale(x, torch.zeros(1).expand(8))


def test_negated_views_are_seen_after_plain_tensors_at_their_address(native):
    """Tensors that were seen to be plain are remembered; one that takes the place of such a tensor is asked again."""
    torch = pytest.importorskip("torch")
    x, y = torch.arange(8.0), torch.zeros(8)
    for _ in range(20):
        for _ in range(3):
            native.scale(x.view(-1), y)
            native.scale(x, y)
        with pytest.raises(ValueError, match="lazily negated view"):
            native.scale(torch._neg_view(x), y)


def test_remembered_tensors_are_freed(native):
    torch = pytest.importorskip("torch")
    x, y = torch.arange(8.0), torch.zeros(8)
    for _ in range(4):
        native.scale(x, y)
    alive = weakref.ref(x)
    del x
    assert alive() is None


# Lazily negated tensors.


@pytest.fixture
def tensors(exchange):
    """Exchange arrays of a type with `is_neg`: `asked` counts its calls, `negated` holds ids for which it is true."""
    base = exchange.type

    class Tensor(base):
        asked = 0
        negated: ClassVar[set[int]] = set()

        def is_neg(self):
            Tensor.asked += 1
            return id(self) in Tensor.negated

    exchange.type = Tensor
    yield exchange
    exchange.type = base


def test_negated_tensors_are_refused(native, stub, tensors):
    x, y = tensors.array((8,)), tensors.array((8,), pointer=ADDRESS + 4096)
    tensors.type.negated.add(id(x))
    for _ in range(4):
        with pytest.raises(ValueError, match=r"(?s)lazily negated.*resolve_neg"):
            native.scale(x, y)
    assert stub.launches == []


def test_plain_tensors_are_not_asked_again_even_if_many_take_turns(native, stub, tensors):
    pairs = [(tensors.array((8,)), tensors.array((8,), pointer=ADDRESS + 4096)) for _ in range(200)]

    def asked_in_a_round():
        before = tensors.type.asked
        for x, y in pairs:
            native.scale(x, y)
        return tensors.type.asked - before

    assert asked_in_a_round() == 400
    for _ in range(24):
        asked_in_a_round()
    assert asked_in_a_round() < 40


def test_new_data_of_a_tensor_and_a_new_tensor_are_asked(native, stub, tensors):
    x, y = tensors.array((8,)), tensors.array((8,), pointer=ADDRESS + 4096)
    for _ in range(20):
        native.scale(x, y)
    before = tensors.type.asked
    native.scale(x, y)
    assert tensors.type.asked == before
    moved = make_tensor((8,), pointer=ADDRESS + 8192)
    tensors.library.exchange_register(ctypes.c_void_p(id(x)), ctypes.byref(moved))
    native.scale(x, y)
    assert tensors.type.asked == before + 1


def test_a_tensor_at_the_address_of_a_dead_one_is_asked(native, stub, exchange):
    negated = [False]
    kind = type(exchange.type.__name__, (exchange.type,), {"is_neg": lambda self: negated[0]})
    described, y = make_tensor((8,)), exchange.array((8,), pointer=ADDRESS + 4096)
    address = None
    for _ in range(50):
        negated[0] = False
        x = kind()
        exchange.library.exchange_register(ctypes.c_void_p(id(x)), ctypes.byref(described))
        for _ in range(12):
            native.scale(x, y)
        address = id(x)
        del x
        x = kind()
        if id(x) == address:
            negated[0] = True
            with pytest.raises(ValueError, match="lazily negated"):
                native.scale(x, y)
            return
    pytest.skip("no address came back")
