"""Arrays without a GPU: fake CUDA arrays for each protocol, and the handle to the fake driver."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

PyCapsule_New = ctypes.pythonapi.PyCapsule_New
PyCapsule_New.restype = ctypes.py_object
PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

CODES = {"f16": (2, 16), "bf16": (4, 16), "f32": (2, 32), "f64": (2, 64), "i32": (0, 32), "i64": (0, 64), "u8": (1, 8)}
CODES |= {"complex64": (5, 64)}
TYPESTRS = {"f16": "<f2", "f32": "<f4", "f64": "<f8", "i32": "<i4", "i64": "<i8", "u8": "|u1", "complex64": "<c8"}
CPU, CUDA, CUDA_HOST, ROCM = 1, 2, 3, 10
ADDRESS = 0x7F0000000000
MAP_BYTES = 128


@dataclass(frozen=True)
class Launch:
    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int
    context: int
    by: str  # "function" or "kernel": what the driver was given
    is_early: bool  # whether it may start while the kernel before it ends
    parameters: list[bytes]

    @property
    def maps(self) -> list[Map]:
        """The tensor maps behind the kernel's own parameters."""
        return [_parse_map(part) for part in self.parameters if len(part) == MAP_BYTES]


@dataclass(frozen=True)
class Map:
    """A tensor map as the driver was asked for it; strides in bytes, dtype and swizzle by the driver's numbers."""

    address: int
    dtype: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


class Stub:
    """The fake driver (`csrc/stub/libcuda_stub.cpp`)."""

    def __init__(self, library: ctypes.CDLL):
        self.library = library
        library.stub_log.restype = ctypes.c_char_p
        self._kept = library.stub_allocations()

    def reset(self) -> None:
        self.library.stub_set_device(2, 9, 0)
        self.library.stub_set_capturing(0)
        self.library.stub_set_pointer_device(0)
        self.library.stub_clear_contexts()
        self.library.stub_clear_log()
        for function in (
            "cuInit",
            "cuLibraryLoadData",
            "cuLibraryGetKernel",
            "cuLaunchKernelEx",
            "cuPointerGetAttribute",
            "cuTensorMapEncodeTiled",
            "cuMemAlloc",
        ):
            self.fail(function, 0)

    def set_device(self, major: int, minor: int, count: int = 2) -> None:
        self.library.stub_set_device(count, major, minor)

    def fail(self, function: str, code: int, times: int = 0) -> None:
        self.library.stub_fail(function.encode(), code, times)

    def set_parameters(self, entry: str, sizes: Sequence[int]) -> None:
        self.library.stub_set_parameters(entry.encode(), (ctypes.c_int * len(sizes))(*sizes), len(sizes))

    def hide(self, function: str) -> None:
        """Be a driver without that function; before it is opened."""
        self.library.stub_hide(function.encode())

    @property
    def allocations(self) -> int:
        """How many there are; of those that the launcher keeps, only what came since this was made."""
        return self.library.stub_allocations() - self._kept

    @property
    def log(self) -> list[str]:
        return self.library.stub_log().decode(errors="replace").splitlines()

    @property
    def launches(self) -> list[Launch]:
        return [_parse(line) for line in self.log if line.startswith("launch ")]


def _parse(line: str) -> Launch:
    fields = dict(re.findall(r"(\w+)=(\S*)", line))
    numbers = {name: tuple(int(part) for part in fields[name].split(",")) for name in ("grid", "block")}
    parameters = [bytes.fromhex(part) for part in fields["parameters"].split(",")]
    shared_bytes, stream, context = int(fields["shared"]), int(fields["stream"], 16), int(fields["context"])
    entry, by, is_early = line.split()[1], fields["by"], fields["early"] == "1"
    return Launch(entry, numbers["grid"], numbers["block"], shared_bytes, stream, context, by, is_early, parameters)


def _parse_map(data: bytes) -> Map:
    magic, address, *numbers = struct.unpack("=8sQ9Q10I", data)
    extents, strides, (dtype, rank), box = numbers[:5], numbers[5:9], numbers[9:11], numbers[11:16]
    swizzle, l2_promotion, fill = numbers[16:]
    assert (magic, l2_promotion, fill) == (b"a map of", 2, 0)
    return Map(address, dtype, tuple(extents[:rank]), tuple(strides[: rank - 1]), tuple(box[:rank]), swizzle)


class CudaArray:
    """An array that has nothing but `__cuda_array_interface__`."""

    def __init__(self, shape: tuple[int, ...], dtype: str = "f32", pointer: int = ADDRESS, **extra: object):
        interface = {
            "shape": shape,
            "typestr": TYPESTRS[dtype],
            "data": (pointer, False),
            "version": 3,
            "strides": None,
        }
        self.__cuda_array_interface__ = interface | extra


class DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DLManaged(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class DLManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


def make_tensor(shape, dtype="f32", pointer=ADDRESS, strides=None, device=(CUDA, 0), byte_offset=0) -> DLTensor:
    """Return a DLTensor; `strides` in elements, None for a null pointer."""
    code, bits = CODES[dtype]
    rank = len(shape)
    lengths = (ctypes.c_int64 * rank)(*shape)
    steps = (ctypes.c_int64 * rank)(*strides) if strides is not None else None
    pointers = [
        ctypes.cast(part, ctypes.POINTER(ctypes.c_int64)) if part is not None else None for part in (lengths, steps)
    ]
    tensor = DLTensor(pointer, DLDevice(*device), rank, code, bits, 1, *pointers, byte_offset)
    tensor.keep = (lengths, steps)
    return tensor


class CapsuleArray:
    """An array that has nothing but `__dlpack__`.

    `deleted` counts calls of the deleter, `asked` holds the keywords of each export.
    """

    def __init__(self, shape, dtype="f32", *, is_versioned=True, flags=0, version=1, knows_version=True, **tensor):
        self.tensor = make_tensor(shape, dtype, **tensor)
        self.device = tensor.get("device", (CUDA, 0))
        self.is_versioned, self.flags, self.version, self.knows_version = is_versioned, flags, version, knows_version
        self.deleted = 0
        self.asked: list[dict[str, object]] = []
        self._deleter = DELETER(self._delete)

    def _delete(self, _managed: int) -> None:
        self.deleted += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **keywords: object) -> object:
        if "max_version" in keywords and not self.knows_version:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked.append(keywords)
        if self.is_versioned:
            self._managed = DLManagedVersioned(self.version, 0, None, self._deleter, self.flags, self.tensor)
        else:
            self._managed = DLManaged(self.tensor, None, self._deleter)
        name = b"dltensor_versioned" if self.is_versioned else b"dltensor"
        return PyCapsule_New(ctypes.addressof(self._managed), name, None)


class Exchange:
    """Makes arrays of a type with `__dlpack_c_exchange_api__`, as torch has (`tests/native/exchange_fixture.cpp`)."""

    def __init__(self, library: ctypes.CDLL):
        self.library = library
        self._keep: list[object] = []
        library.exchange_set_stream.argtypes = [ctypes.c_void_p]
        api = ctypes.addressof(ctypes.c_char.in_dll(library, "exchange_api"))
        capsule = PyCapsule_New(api, b"dlpack_exchange_api", None)
        self.type = type("ExchangeArray", (), {"__dlpack_c_exchange_api__": capsule})

    def array(self, shape, dtype="f32", **tensor) -> object:
        made, described = self.type(), make_tensor(shape, dtype, **tensor)
        self._keep += [made, described]
        self.library.exchange_register(ctypes.c_void_p(id(made)), ctypes.byref(described))
        return made

    def set_stream(self, stream: int) -> None:
        self.library.exchange_set_stream(stream)


def array(*shape, dtype="f32", offset=0, **extra):
    return CudaArray(shape, dtype, ADDRESS + offset, **extra)
