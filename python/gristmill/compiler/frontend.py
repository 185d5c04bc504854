"""From a kernel's Python source to tile IR, for one specialisation."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.expressions import is_constexpr
from gristmill.compiler.functions import holds_tiles
from gristmill.compiler.ir import Block, Function, Pointer, Tile, Value, verify
from gristmill.compiler.op import Builder, building
from gristmill.compiler.scope import MAX_CALL_DEPTH, Scope, source_of
from gristmill.compiler.statements import execute_function
from gristmill.declare import DtypeVar, Kernel, Specialisation, Variant
from gristmill.described import DescriptorType
from gristmill.errors import KernelError
from gristmill.language import internal, stages  # noqa: F401  (declare the ops that passes insert)
from gristmill.language.descriptors import make_tensor_descriptor
from gristmill.language.index import set_index_dtype
from gristmill.language.structure import describe_structure
from gristmill.language.types import describe, is_number
from gristmill.specialisation import LaunchOption


def build(kernel: Kernel, specialisation: Specialisation, variant: Variant, has_windows: bool = False) -> Function:
    """Compile a kernel's source for one choice of dtypes, constants and promises.

    `has_windows`: blocks of descriptors are loaded by ops of their own, otherwise through pointers. Raises KernelError,
    with the position in the author's file, for what the language does not allow.
    """
    index = dt.i32 if variant.index_bits == 32 else dt.i64
    dtypes = dict(specialisation.dtypes)
    parameters = {p.name: Value(_parameter_type(p, dtypes, index), p.name) for p in kernel.parameters}
    block = Block(list(parameters.values()))
    builder = Builder(block, has_windows=has_windows)
    set_index_dtype(index)
    fixed = {name: _fixed(value, specialisation) for name, value in kernel.fixed}
    names: dict[str, Any] = {**_named_dtypes(kernel, dtypes), **fixed, **dict(specialisation.constants), **parameters}
    names |= _descriptors(kernel, builder, parameters, dict(specialisation.constants))
    scope = Scope(source_of(kernel.function), kernel.function, builder, names, inline)
    builder.inline = lambda function, arguments: inline(scope, function, list(arguments), {})
    with building(builder):
        returned = execute_function(scope, scope.source.tree.body)
    if returned is not None:
        place = next(n for n in ast.walk(scope.source.tree) if isinstance(n, ast.Return) and n.value)
        position = scope.source.position(place)
        raise KernelError("a kernel returns nothing", fix="store the result to a pointer", position=position)
    function = Function(specialisation.symbol(variant), block, 1 << (specialisation.num_warps - 1).bit_length())
    function.absent_warps = function.num_warps - specialisation.num_warps
    function.grid_axes = len(kernel.grid) or function.grid_axes
    function.num_stages, function.is_padded = specialisation.num_stages, builder.is_padded
    function.blocks_per_sm, function.num_ctas = specialisation.blocks_per_sm, specialisation.num_ctas
    if variant.is_aligned:
        function.facts = {v: 16 for v in block.arguments if v.type.is_pointer}
    function.never_negative = {parameters[p.name] for p in kernel.parameters if p.kind in ("size", "shape")}
    verify(function)
    return function


def _parameter_type(parameter: Any, dtypes: dict[str, dt.Dtype], index: dt.Dtype) -> Tile:
    if parameter.kind in ("size", "shape", "stride"):
        return Tile(index)
    declared = parameter.dtype
    dtype = dtypes[declared.name] if isinstance(declared, DtypeVar) else declared
    return Tile(Pointer(dtype) if parameter.kind == "pointer" else dtype)


def _descriptors(
    kernel: Kernel, builder: Builder, parameters: dict[str, Value], constants: dict[str, Any]
) -> dict[str, Any]:
    """Make the tensor descriptors of arrays that the kernel takes as such."""
    found = {}
    for name, described in kernel.fixed:
        if isinstance(described, DescriptorType):
            builder.position = kernel.site.of_annotation(name)
            block = described.block_shape(constants)
            sizes, steps = ([parameters[f"{name}_{what}{i}"] for i in range(len(block))] for what in ("size", "step"))
            with building(builder):
                found[name] = make_tensor_descriptor(parameters[name], sizes, [*steps[:-1], 1], block)
    return found


def _named_dtypes(kernel: Kernel, dtypes: dict[str, dt.Dtype]) -> dict[str, dt.Dtype]:
    """Dtype variables may be used in the body by the name under which the module has them, as in `x.to(D)`."""
    space = {**kernel.function.__globals__, **inspect.getclosurevars(kernel.function).nonlocals}
    found = {n: dtypes[v.name] for n, v in space.items() if isinstance(v, DtypeVar) and v.name in dtypes}
    return found if kernel.site.call else {**dtypes, **found}


def _fixed(value: Any, specialisation: Specialisation) -> Any:
    if isinstance(value, LaunchOption):
        return getattr(specialisation, value.name)
    return dict(specialisation.dtypes)[value.name] if isinstance(value, DtypeVar) else value


def inline(scope: Scope, helper: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
    """Compile a call to a helper function in place, and return what it returns.

    Where Triton says `jit`, constants among the parameters are a hint.
    """
    function = _plain(helper)
    if scope.depth >= MAX_CALL_DEPTH:
        raise KernelError(f"`{function.__name__}` calls itself without an end", fix="use a loop")
    try:
        bound = inspect.signature(function).bind(*arguments, **named)
    except TypeError as error:
        fix = f"call it as `{function.__name__}{inspect.signature(function)}`"
        raise KernelError(f"{function.__name__}(): {error}", fix=fix) from None
    bound.apply_defaults()
    _check_gathered(function, bound)
    if not getattr(helper, "takes_hints", False):
        _check_constants(function, bound)
    position = scope.builder.position
    inner = Scope(source_of(function), function, scope.builder, dict(bound.arguments), inline, scope.depth + 1)
    try:
        return execute_function(inner, inner.source.tree.body)
    except KernelError as error:
        if position is not None:
            error.calls.append(position)
        raise
    finally:
        scope.builder.position = position


def _check_gathered(function: Callable[..., Any], bound: inspect.BoundArguments) -> None:
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and bound.arguments.get(name):
            what = f"{function.__name__}(): `**{name}` cannot gather arguments"
            raise KernelError(what, fix="give the helper a parameter for each")


def _check_constants(function: Callable[..., Any], bound: inspect.BoundArguments) -> None:
    for name, parameter in bound.signature.parameters.items():
        value = bound.arguments.get(name)
        if is_constexpr(parameter.annotation) and holds_tiles(value) and not is_number(value):
            what = f"{function.__name__}(): `{name}` must be known at build time, got {describe_structure(value)}"
            raise KernelError(what, fix="pass a literal or a `gm.constexpr` parameter, or drop the annotation")


def _plain(function: Any) -> Callable[..., Any]:
    """The Python function of an author's helper, marked or not."""
    found = getattr(function, "function", function)
    if not isinstance(found, types.FunctionType):
        raise KernelError(f"{describe(function)} is no helper function", fix="pass a function of the kernel's module")
    return found
