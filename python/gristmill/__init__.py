"""Gristmill: block-level kernels written in Python, precompiled into wheels."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gristmill.adopt import specialise
    from gristmill.compiler.simt.run import simulate
    from gristmill.declare import (
        Config,
        Kernel,
        Specialisation,
        constexpr,
        dtype_var,
        jit,
        kernel,
        ptr,
        shape,
        size,
        stride,
    )
    from gristmill.described import descriptor
    from gristmill.dtypes import (
        AnyDtype as Dtype,
    )
    from gristmill.dtypes import (
        Bool,
        Float,
        Float8,
        Int,
        Num,
        bf16,
        bool_,
        f8e4m3,
        f8e5m2,
        f16,
        f32,
        f64,
        i8,
        i16,
        i32,
        i64,
        parse_dtype,
        u8,
        u16,
        u32,
        u64,
    )
    from gristmill.errors import BuildError, DeclarationError, GristmillError, KernelError, SimulationError
    from gristmill.symbolic import cdiv, maximum, minimum, next_power_of_2, sm_count, where

__version__ = "0.1.0"

_DECLARE = "Config Kernel Specialisation constexpr dtype_var jit kernel ptr shape size stride"
_DTYPES = "Bool Float Float8 Int Num bf16 bool_ f8e4m3 f8e5m2 f16 f32 f64 i8 i16 i32 i64 parse_dtype u8 u16 u32 u64"
_ERRORS = "BuildError DeclarationError GristmillError KernelError SimulationError"
_SYMBOLIC = "cdiv maximum minimum next_power_of_2 sm_count where"

_HOMES = {
    name: (module, name)
    for module, names in (("declare", _DECLARE), ("dtypes", _DTYPES), ("errors", _ERRORS), ("symbolic", _SYMBOLIC))
    for name in names.split()
}
_HOMES["specialise"] = ("adopt", "specialise")
_HOMES["descriptor"] = ("described", "descriptor")
_HOMES["Dtype"] = ("dtypes", "AnyDtype")
_HOMES["simulate"] = ("compiler.simt.run", "simulate")

__all__ = [
    "Bool",
    "BuildError",
    "Config",
    "DeclarationError",
    "Dtype",
    "Float",
    "Float8",
    "GristmillError",
    "Int",
    "Kernel",
    "KernelError",
    "Num",
    "SimulationError",
    "Specialisation",
    "__version__",
    "bf16",
    "bool_",
    "cdiv",
    "constexpr",
    "descriptor",
    "dtype_var",
    "f8e4m3",
    "f8e5m2",
    "f16",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "jit",
    "kernel",
    "maximum",
    "minimum",
    "next_power_of_2",
    "parse_dtype",
    "ptr",
    "shape",
    "simulate",
    "size",
    "sm_count",
    "specialise",
    "stride",
    "u8",
    "u16",
    "u32",
    "u64",
    "where",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gristmill' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    value: object = getattr(importlib.import_module(f"gristmill.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name, value in globals().items() if not isinstance(value, ModuleType))})
