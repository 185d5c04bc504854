"""Element types of arrays and tiles, and the bounds that dtype variables range over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gristmill.errors import DeclarationError


@dataclass(frozen=True)
class Dtype:
    """An element type; `kind` is "float", "int", "uint" or "bool", `bits` its size in memory (bool: 8)."""

    name: str
    kind: str
    bits: int

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """Whether it is a signed or unsigned integer; bool is not."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind == "int"

    @property
    def code(self) -> int:
        """The number by which the built tables name it (`csrc/tables.hpp`)."""
        return ALL.index(self)

    def __repr__(self) -> str:
        return self.name


f16 = Dtype("f16", "float", 16)
bf16 = Dtype("bf16", "float", 16)
f32 = Dtype("f32", "float", 32)
f64 = Dtype("f64", "float", 64)
i8 = Dtype("i8", "int", 8)
i16 = Dtype("i16", "int", 16)
i32 = Dtype("i32", "int", 32)
i64 = Dtype("i64", "int", 64)
u8 = Dtype("u8", "uint", 8)
u16 = Dtype("u16", "uint", 16)
u32 = Dtype("u32", "uint", 32)
u64 = Dtype("u64", "uint", 64)
bool_ = Dtype("bool", "bool", 8)
f8e4m3 = Dtype("f8e4m3", "float", 8)
f8e5m2 = Dtype("f8e5m2", "float", 8)

ALL = (f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_, f8e4m3, f8e5m2)

_ALIASES = {
    "float16": f16, "half": f16, "bfloat16": bf16, "float32": f32, "float": f32, "float64": f64, "double": f64,
    "int8": i8, "int16": i16, "int32": i32, "int64": i64, "uint8": u8, "uint16": u16, "uint32": u32, "uint64": u64,
    "int1": bool_, "float8_e4m3fn": f8e4m3, "float8e4nv": f8e4m3, "float8_e5m2": f8e5m2, "float8e5": f8e5m2,
}  # fmt: skip
_BY_NAME = {d.name: d for d in ALL} | _ALIASES


EXTENDED = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}  # of ml_dtypes


def dt_numpy(dtype: Any) -> Any:
    """Return the numpy dtype of an element type; bf16 and f8 are those of ml_dtypes. Raises ImportError without it."""
    import numpy as np

    if dtype.name in EXTENDED:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, EXTENDED[dtype.name]))
    return np.dtype(np.bool_ if dtype == bool_ else f"{dtype.kind}{dtype.bits}")


def parse_dtype(spelling: object) -> Dtype:
    """Return the dtype that `spelling` means: a Dtype, "float32", "f32", `numpy.float32`, `torch.float32`.

    Raises DeclarationError if it means none.
    """
    if isinstance(spelling, Dtype):
        return spelling
    name = getattr(spelling, "name", None) or getattr(spelling, "__name__", None) or str(spelling)
    name = str(name).rpartition(".")[2]
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise DeclarationError(f"`{spelling}` is not a known dtype", fix="use one of " + ", ".join(d.name for d in ALL))


@dataclass(frozen=True)
class Bound:
    """A set of dtypes that a dtype variable may stand for."""

    name: str
    members: tuple[Dtype, ...]

    def __contains__(self, dtype: object) -> bool:
        return dtype in self.members

    def __repr__(self) -> str:
        return self.name


Float = Bound("Float", (f16, bf16, f32, f64))
Int = Bound("Int", (i8, i16, i32, i64, u8, u16, u32, u64))
Num = Bound("Num", Int.members + Float.members)
Bool = Bound("Bool", (bool_,))
AnyDtype = Bound("Dtype", Num.members + Bool.members)
Float8 = Bound("Float8", (f8e4m3, f8e5m2))
BOUNDS = (Float, Int, Num, Bool, AnyDtype, Float8)
