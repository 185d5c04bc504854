"""Arrays that a kernel takes as tensor descriptors: what `gm.descriptor[...]` in a signature stands for.

Such a parameter is an array at a call, from which sizes and strides follow; the kernel sees a descriptor made of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from gristmill import symbolic
from gristmill.dtypes import Dtype
from gristmill.errors import DeclarationError
from gristmill.positions import caller_position
from gristmill.signature import DtypeVar, IndexType

_FIX = 'write the dtype and the sizes of a block, as in `gm.descriptor[D, 1, "BLOCK_M", "BLOCK_K // 2"]`'


@dataclass(frozen=True)
class DescriptorType:
    """`gm.descriptor[D, "BLOCK_M", 64]`: an array of D whose blocks, one size for each axis, a descriptor accesses.

    Sizes are numbers, or texts in which constants are computed with.
    """

    dtype: Dtype | DtypeVar
    block: tuple[int | str, ...]

    def index_types(self, name: str) -> dict[str, IndexType]:
        """The index parameters of the array `name`: its sizes, and its strides."""
        axes = range(len(self.block))
        sizes = {f"{name}_size{axis}": IndexType("shape", name, axis) for axis in axes}
        return sizes | {f"{name}_step{axis}": IndexType("stride", name, axis) for axis in axes}

    def block_shape(self, constants: Mapping[str, object]) -> list[int]:
        """The sizes of a block. Raises DeclarationError, without a position, for names that are no constants."""
        names = {name: symbolic.lift(value) for name, value in constants.items() if isinstance(value, int)}
        return [symbolic.evaluate(symbolic.compile_code(symbolic.parse(str(size), names)), ()) for size in self.block]


class _Descriptor:
    def __getitem__(self, item: object) -> DescriptorType:
        dtype, *block = item if isinstance(item, tuple) else (item,)
        is_dtype = isinstance(dtype, (Dtype, DtypeVar))
        if not is_dtype or not block or not all(isinstance(n, (int, str)) and not isinstance(n, bool) for n in block):
            shown = ", ".join(map(repr, item if isinstance(item, tuple) else (item,)))
            message = f"`gm.descriptor[{shown}]` describes no array"
            raise DeclarationError(message, fix=_FIX, position=caller_position())
        return DescriptorType(dtype, tuple(block))

    def __repr__(self) -> str:
        return "gm.descriptor"


descriptor = _Descriptor()


def where_dense(pick: Any, described: Mapping[str, DescriptorType]) -> Any:
    """The condition `pick`, where also elements along the last axis of each described array lie side by side."""
    if not described or not (pick is None or callable(pick)):
        return pick
    lasts = [(f"{n}_size{len(t.block) - 1}", f"{n}_step{len(t.block) - 1}") for n, t in described.items()]
    given: dict[str, Any] = dict(inspect.signature(pick).parameters) if pick is not None else {}

    def condition(**values: Any) -> Any:
        is_dense = reduce(and_, [(values[step] == 1) | (values[size] <= 1) for size, step in lasts])
        return is_dense if pick is None else is_dense & pick(**{k: v for k, v in values.items() if k in given})

    return _with_parameters(condition, {*given, *(name for pair in lasts for name in pair)}, given)


def _with_parameters(function: Callable[..., Any], names: set[str], given: Mapping[str, Any]) -> Callable[..., Any]:
    kind = inspect.Parameter.KEYWORD_ONLY
    defaults = {name: given[name].default for name in names & set(given)}
    parameters = [inspect.Parameter(n, kind, default=defaults.get(n, inspect.Parameter.empty)) for n in sorted(names)]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function
