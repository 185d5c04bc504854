"""What a kernel's parameters are annotated with, and how a signature is read into Parameters."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TypeVar

from gristmill import dtypes
from gristmill.dtypes import Bound, Dtype
from gristmill.errors import DeclarationError, GristmillError, Position
from gristmill.positions import Site, all_arguments, caller_position
from gristmill.symbolic import Code

BOUNDS_FIX = (
    'bound it by one of gm.Dtype, gm.Num, gm.Int, gm.Float, gm.Bool, as in `gm.dtype_var("D", gm.Float)`, '
    "or list its dtypes in the decorator, as in `D=[gm.f32]`"
)


@dataclass(frozen=True)
class DtypeVar:
    """A dtype that a kernel is compiled for in several ways; without a bound the decorator lists its dtypes."""

    name: str
    bound: Bound | None

    def __repr__(self) -> str:
        return self.name


def dtype_var(name: str, bound: Bound | Iterable[object] | None = None) -> DtypeVar:
    """Name a dtype that a kernel is generic over.

    `bound` is gm.Float, gm.Int, gm.Num, gm.Bool, gm.Dtype, gm.Float8 or a list of dtypes.
    Raises DeclarationError for any other.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise _here(f"`{name!r}` cannot name a dtype variable", 'give it a name, as in `gm.dtype_var("D", gm.Float)`')
    return DtypeVar(name, _read_bound(name, bound))


def _read_bound(name: str, bound: object) -> Bound | None:
    if bound is None or isinstance(bound, Bound):
        return bound
    if isinstance(bound, Dtype):
        raise _here(f"`{bound}` is a dtype, not a bound", f"write `gm.{_attribute(bound)}` in place of `{name}`")
    if isinstance(bound, (list, tuple)) and bound:
        members = tuple(_read_dtype(d) for d in bound)
        return Bound("{" + ", ".join(d.name for d in members) + "}", members)
    raise _here(f"`{_show(bound)}` does not bound a dtype variable", BOUNDS_FIX)


def _attribute(dtype: Dtype) -> str:
    return "bool_" if dtype == dtypes.bool_ else dtype.name


def _read_dtype(spelling: object) -> Dtype:
    try:
        return dtypes.parse_dtype(spelling)
    except GristmillError as error:
        raise _here(error.message, error.fix) from None


def _here(message: str, fix: str | None) -> DeclarationError:
    return DeclarationError(message, fix=fix, position=caller_position())


def _show(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


@dataclass(frozen=True)
class PointerType:
    """`gm.ptr[D]` or `gm.ptr[D, "rows * columns"]`: an array, with the number of elements that it has at least."""

    dtype: Dtype | DtypeVar
    extent: str | None = None


@dataclass(frozen=True)
class IndexType:
    """`gm.size["x"]`, `gm.shape["x", 0]`, `gm.stride["x", 0]`: an integer that follows from the array `tensor`."""

    kind: str
    tensor: str
    axis: int | None = None


class _Pointer:
    def __getitem__(self, item: object) -> PointerType:
        dtype, extent = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        element = _element(dtype)
        if element is None:
            raise _here(f"`{_show(dtype)}` is not a dtype", "write a dtype or a dtype variable, as in `gm.ptr[gm.f32]`")
        if extent is not None and not isinstance(extent, str):
            raise _here(
                f"the extent `{extent!r}` is not text", 'write an expression, as in `gm.ptr[D, "n_rows * n_cols"]`'
            )
        return PointerType(element, extent)

    def __repr__(self) -> str:
        return "gm.ptr"


@dataclass(frozen=True)
class _Index:
    kind: str

    def __getitem__(self, item: object) -> IndexType:
        match self.kind, item:
            case "size", str(tensor):
                return IndexType("size", tensor)
            case "shape" | "stride", (str(tensor), int(axis)) if not isinstance(axis, bool):
                return IndexType(self.kind, tensor, axis)
        message = f"`gm.{self.kind}` takes {_INDEX_NAMES[self.kind]}, found `{_show(item)}`"
        raise _here(message, f"write `{_INDEX_EXAMPLES[self.kind]}`")

    def __repr__(self) -> str:
        return f"gm.{self.kind}"


class _Constexpr:
    def __repr__(self) -> str:
        return "gm.constexpr"


_INDEX_NAMES = {
    "size": "an array's name",
    "shape": "an array's name and an axis",
    "stride": "an array's name and an axis",
}
_INDEX_EXAMPLES = {"size": 'gm.size["x"]', "shape": 'gm.shape["x", 0]', "stride": 'gm.stride["x", 0]'}

ptr = _Pointer()
size = _Index("size")
shape = _Index("shape")
stride = _Index("stride")
constexpr = _Constexpr()


def _element(item: object) -> Dtype | DtypeVar | None:
    if isinstance(item, (Dtype, DtypeVar)):
        return item
    return from_type_parameter(item) if isinstance(item, TypeVar) else None


def from_type_parameter(variable: TypeVar) -> DtypeVar:
    """Return the dtype variable that a PEP 695 type parameter means: `D: gm.Float` or `D: (gm.f32, gm.f64)`."""
    bound = variable.__constraints__ or variable.__bound__
    return DtypeVar(variable.__name__, _read_bound(variable.__name__, bound))


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel that is passed at a call; constants are not.

    `kind` is "pointer", "scalar", or for what follows from the array named `tensor` "size", "shape" or "stride".
    `dtype` is that of the elements or the scalar. `extent` is code for the number of elements that the array must have
    at least; None for any. `is_strided` arrays need not be contiguous.
    """

    name: str
    kind: str
    dtype: Dtype | DtypeVar | None = None
    tensor: str | None = None
    axis: int | None = None
    default: int | float | bool | None = None
    extent: Code | None = None
    is_strided: bool = False

    @property
    def is_index(self) -> bool:
        """Whether it follows from an array, so that it may be left out at a call."""
        return self.tensor is not None


@dataclass(frozen=True)
class Signature:
    """The parameters of a kernel, its constants' names, and its dtype variables in order of appearance."""

    parameters: tuple[Parameter, ...]
    constant_names: tuple[str, ...]
    dtype_vars: tuple[DtypeVar, ...]


RESERVED_PARAMETERS = ("stream", "grid")
AXES = range(-32, 32)


def read_signature(
    function: FunctionType, site: Site, scope: Mapping[str, object]
) -> tuple[Signature, dict[str, object]]:
    """Read the annotations of a kernel's function; they are returned too, by parameter, for the extents.

    `scope` holds the names of the defining frame, for annotations that are text.
    Raises DeclarationError at the parameter that is wrong.
    """
    parameters: list[Parameter] = []
    constants: list[str] = []
    annotations: dict[str, object] = {}
    for argument in inspect.signature(function).parameters.values():
        annotation = annotations[argument.name] = _annotation(function, argument, site, scope)
        if annotation is constexpr or getattr(annotation, "__name__", None) == "constexpr":
            _check_constant(argument, site)
            constants.append(argument.name)
        else:
            parameters.append(read_parameter(argument, annotation, site))
    _check_order(parameters, constants, site)
    return complete(function, parameters, constants, site), annotations


def complete(function: FunctionType, parameters: list[Parameter], constants: list[str], site: Site) -> Signature:
    """Return a signature, after checking that arrays, what follows from them and dtype variables fit together."""
    if not any(p.kind == "pointer" for p in parameters):
        raise at(site.of_name(), "the kernel has no array", "annotate a parameter with `gm.ptr[...]`")
    parameters = [_linked(p, parameters, site) for p in parameters]
    return Signature(tuple(parameters), tuple(constants), _dtype_vars(function, parameters, site))


def _annotation(function: FunctionType, argument: inspect.Parameter, site: Site, scope: Mapping[str, object]) -> object:
    if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
        raise at(site.of_parameter(argument.name), "a kernel takes no variable arguments", "name every parameter")
    if argument.name in RESERVED_PARAMETERS:
        message = f"`{argument.name}` is an argument of every launch"
        raise at(site.of_parameter(argument.name), message, f"rename it, as in `{argument.name}_`")
    if argument.annotation is argument.empty:
        raise at(site.of_parameter(argument.name), f"`{argument.name}` has no annotation", _ANNOTATION_FIX)
    if not isinstance(argument.annotation, str):
        return argument.annotation
    return _evaluated(function, argument.annotation, site.of_annotation(argument.name), scope)


_ANNOTATION_FIX = (
    "write gm.ptr[D], gm.size[...], gm.shape[...], gm.stride[...], a dtype such as gm.i32, or gm.constexpr"
)


def _evaluated(function: FunctionType, text: str, position: Position, scope: Mapping[str, object]) -> object:
    names = dict(scope) | _enclosed(function)
    names |= {t.__name__: t for t in getattr(function, "__type_params__", ())}
    try:
        return eval(text, function.__globals__, names)
    except GristmillError as error:
        raise at(position, error.message, error.fix) from None
    except NameError as error:
        raise at(position, f"`{error.name}` is not defined", "define or import it at the top of the file") from None
    except Exception as error:
        raise at(position, f"`{text}` raises {type(error).__name__}: {error}", _ANNOTATION_FIX) from None


def _enclosed(function: FunctionType) -> dict[str, object]:
    """Return the variables of enclosing functions that have a value by now."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def at(position: Position, message: str, fix: str | None) -> DeclarationError:
    return DeclarationError(message, fix=fix, position=position)


def _check_constant(argument: inspect.Parameter, site: Site) -> None:
    if argument.default not in (argument.empty, None):
        fix = f"write `{argument.name}=[{argument.default!r}]` in the decorator and `= None` here"
        raise at(site.of_default(argument.name), f"constant `{argument.name}` takes its values from the decorator", fix)


def read_parameter(argument: inspect.Parameter, annotation: object, site: Site) -> Parameter:
    """Return what an annotation makes of a parameter. Raises DeclarationError at an annotation that means nothing."""
    name = argument.name
    default = None if argument.default is argument.empty else argument.default
    if isinstance(annotation, PointerType):
        _check_no_default(argument, site, "array")
        return Parameter(name, "pointer", annotation.dtype)
    if isinstance(annotation, IndexType):
        _check_no_default(argument, site, "index parameter")
        return Parameter(name, annotation.kind, tensor=annotation.tensor, axis=annotation.axis)
    if (dtype := _element(annotation)) is not None:
        if argument.default is not argument.empty:
            _check_default(name, dtype, default, site)
        return Parameter(name, "scalar", dtype, default=default)
    raise at(
        site.of_annotation(name),
        f"`{_show(annotation)}` does not annotate a parameter of a kernel",
        _fix_annotation(annotation),
    )


def _fix_annotation(annotation: object) -> str:
    if annotation is ptr:
        return "say of what, as in `gm.ptr[D]` or `gm.ptr[gm.f32]`"
    if isinstance(annotation, _Index):
        return f"say of what, as in `{_INDEX_EXAMPLES[annotation.kind]}`"
    if isinstance(annotation, Bound):
        return f'name a dtype variable, `D = gm.dtype_var("D", gm.{annotation})`, and write `D`'
    plain = {int: "write gm.i32 or gm.i64", float: "write gm.f32 or gm.f64", bool: "write gm.bool_"}
    return plain.get(annotation, _ANNOTATION_FIX) if isinstance(annotation, type) else _ANNOTATION_FIX


def _check_no_default(argument: inspect.Parameter, site: Site, what: str) -> None:
    if argument.default in (argument.empty, None) and (what != "array" or argument.default is argument.empty):
        return
    fix = "remove the default" if what == "array" else "write `= None`: it follows from the array"
    raise at(
        site.of_default(argument.name), f"{what} `{argument.name}` cannot have the default `{argument.default!r}`", fix
    )


def _check_default(name: str, dtype: Dtype | DtypeVar, default: object, site: Site) -> None:
    kinds = {"bool": bool, "int": int, "uint": int, "float": (int, float)}
    kind = dtype.kind if isinstance(dtype, Dtype) else "float"
    is_of_kind = isinstance(default, kinds[kind]) and (kind == "bool" or not isinstance(default, bool))  # type: ignore[arg-type]
    if not is_of_kind:
        raise at(site.of_default(name), f"`{default!r}` is not a value of {dtype}", f"write a default of {dtype}")
    if isinstance(default, int) and default not in _integers(dtype):
        raise at(site.of_default(name), f"`{default!r}` does not fit in {dtype}", _range_fix(_integers(dtype)))


def _integers(dtype: Dtype | DtypeVar) -> range:
    """Return the integers that a default may be: 53 bits at most, because tables hold defaults as doubles."""
    if not isinstance(dtype, Dtype) or not dtype.is_int:
        return range(-(2**53), 2**53 + 1)
    bits = min(dtype.bits - dtype.is_signed, 53)
    return range(-(2**bits) if dtype.is_signed else 0, 2**bits)


def _range_fix(values: range) -> str:
    return f"write a number from {values.start} to {values.stop - 1}"


def _check_order(parameters: list[Parameter], constants: list[str], site: Site) -> None:
    declared = [a.arg for a in all_arguments(site.node.args)]
    derived = {p.name for p in parameters if p.is_index} | set(constants)
    first = next((name for name in declared if name in derived), None)
    late = [
        p.name for p in parameters if p.name not in derived and first and declared.index(p.name) > declared.index(first)
    ]
    if late:
        message = f"`{late[0]}` comes after `{first}`, which may be left out at a call"
        raise at(site.of_parameter(late[0]), message, f"move `{late[0]}` before `{first}`")


def _linked(parameter: Parameter, parameters: list[Parameter], site: Site) -> Parameter:
    """Check that the array an index parameter follows from exists; mark arrays whose strides are parameters."""
    if parameter.kind == "pointer":
        is_strided = any(p.kind == "stride" and p.tensor == parameter.name for p in parameters)
        return replace(parameter, is_strided=is_strided)
    if parameter.tensor is None:
        return parameter
    arrays = [p.name for p in parameters if p.kind == "pointer"]
    if parameter.tensor not in arrays:
        message = f"`{parameter.tensor}` is not an array of the kernel"
        raise at(site.of_subscript(parameter.name, 0), message, closest(parameter.tensor, arrays))
    if parameter.axis is not None and parameter.axis not in AXES:
        raise at(site.of_subscript(parameter.name, 1), f"no array has an axis {parameter.axis}", _range_fix(AXES))
    return parameter


def closest(name: str, names: Iterable[str]) -> str:
    """Return a fix that offers the name most like `name`, or all of them."""
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean `{near[0]}`?" if near else "use one of " + ", ".join(names)


def _dtype_vars(function: FunctionType, parameters: list[Parameter], site: Site) -> tuple[DtypeVar, ...]:
    found: dict[str, DtypeVar] = {}
    for parameter in parameters:
        variable = parameter.dtype
        if not isinstance(variable, DtypeVar):
            continue
        if found.setdefault(variable.name, variable) != variable:
            message = f"two dtype variables are named `{variable.name}`"
            raise at(site.of_annotation(parameter.name), message, "give each its own name in `gm.dtype_var`")
    _check_followed(found, parameters, site)
    for declared in getattr(function, "__type_params__", ()):
        if declared.__name__ not in found:
            message = f"dtype variable `{declared.__name__}` is not used by any parameter"
            raise at(
                site.of_type_parameter(declared.__name__), message, f"write `gm.ptr[{declared.__name__}]`, or remove it"
            )
    return tuple(found.values())


def _check_followed(variables: Mapping[str, DtypeVar], parameters: list[Parameter], site: Site) -> None:
    """Check that each dtype variable is some array's: a call takes its dtypes from the arrays."""
    taken = {p.dtype.name for p in parameters if p.kind == "pointer" and isinstance(p.dtype, DtypeVar)}
    for parameter in parameters:
        if isinstance(parameter.dtype, DtypeVar) and parameter.dtype.name not in taken:
            message = f"`{parameter.dtype}` is the dtype of no array, so a call cannot tell it"
            raise at(site.of_annotation(parameter.name), message, "write a dtype, as in `gm.f32`")
