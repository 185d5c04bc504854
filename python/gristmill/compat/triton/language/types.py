"""The names of Triton's types, for annotations; only `tl.constexpr`, which is Gristmill's, changes what is compiled."""

from __future__ import annotations

from typing import Any

from gristmill.dtypes import Dtype as dtype

__all__ = ["block_type", "const", "dtype", "pointer_type", "tensor", "void"]


class tensor:
    """Annotates a parameter or a result that is a tile."""


class const:
    """Annotates a pointer that is only read through; stores through it are found by the compiler anyway."""


class void:
    """What a function without a result returns."""


class pointer_type:
    """`tl.pointer_type(tl.float32)`: a pointer to elements of a dtype; `element_ty` is that dtype."""

    def __init__(self, element_ty: Any, address_space: int = 1, const: bool = False):
        self.element_ty = element_ty
        self.address_space = address_space
        self.const = const

    def __eq__(self, other: object) -> bool:
        return getattr(other, "element_ty", None) == self.element_ty

    def __hash__(self) -> int:
        return hash(("pointer", self.element_ty))


class block_type:
    """`tl.block_type(tl.float32, [128])`: a tile's dtype and shape."""

    def __init__(self, element_ty: Any, shape: Any):
        self.scalar = self.element_ty = element_ty
        self.shape = tuple(shape)
