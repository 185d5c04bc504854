"""A C library of kernels as ctypes sees it: the structures of its header, and calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

DTYPES = ("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool", "f8e4m3", "f8e5m2")
STATUS = ("OK", "TYPE", "VALUE", "RUNTIME")
CPU, CUDA = 0, 1
DEFAULT, ARRAY, INTEGER, REAL = range(4)


class Array(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    ]


class Argument(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int),
        ("array", Array),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
    ]


class Constant(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class Place(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_int),
        ("ordinal", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("grid", ctypes.POINTER(ctypes.c_int64)),
    ]


def lengths(values: Sequence[int] | None):
    return None if values is None else (ctypes.c_int64 * len(values))(*values)


def array(data: int, dtype: str, shape: Sequence[int], strides: Sequence[int] | None = None) -> Argument:
    return Argument(ARRAY, Array(data, DTYPES.index(dtype), len(shape), lengths(shape), lengths(strides)), 0, 0)


def real(value: float) -> Argument:
    return Argument(REAL, Array(), 0, value)


def integer(value: int) -> Argument:
    return Argument(INTEGER, Array(), value, 0)


class Library:
    """The functions of a library whose names begin with `prefix`; those that fail raise RuntimeError."""

    def __init__(self, path: Path, prefix: str):
        self._library = ctypes.CDLL(str(path))
        self._prefix = prefix
        self._function("error").restype = ctypes.c_char_p

    def find(self, name: str, dtypes: Sequence[str] = (), **constants: str) -> ctypes.c_void_p:
        kernel = ctypes.c_void_p()
        numbers = (ctypes.c_int * len(dtypes))(*map(DTYPES.index, dtypes))
        pairs = (Constant * len(constants))(*(Constant(n.encode(), v.encode()) for n, v in constants.items()))
        sizes = (ctypes.c_size_t(len(dtypes)), ctypes.c_size_t(len(constants)))
        self._call("find", name.encode(), numbers, sizes[0], pairs, sizes[1], ctypes.byref(kernel))
        return kernel

    def launch(self, kernel: ctypes.c_void_p, *arguments: Argument, place: Place | None = None) -> None:
        packed = (Argument * len(arguments))(*arguments)
        count = ctypes.c_size_t(len(arguments))
        self._call("launch", kernel, packed, count, ctypes.byref(place) if place else None)

    def preload(self, kernel: ctypes.c_void_p, ordinal: int) -> None:
        self._call("preload", kernel, ordinal)

    def _function(self, name: str):
        return getattr(self._library, f"{self._prefix}_{name}")

    def _call(self, name: str, *arguments: object) -> None:
        if status := self._function(name)(*arguments):
            raise RuntimeError(f"{STATUS[status]}: {self._function('error')().decode()}")
