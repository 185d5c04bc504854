"""Arithmetic, comparisons, bits, selection and casts."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill import symbolic
from gristmill.compiler.facts import (
    Facts,
    Span,
    add_facts,
    compare_facts,
    multiply_facts,
    remainder_facts,
    subtract_facts,
)
from gristmill.compiler.ir import Value
from gristmill.compiler.op import OpRow, emit, op
from gristmill.errors import KernelError
from gristmill.language.registers import formula
from gristmill.language.special import fmod
from gristmill.language.types import (
    as_value,
    broadcast_pair,
    broadcast_value,
    cast_to,
    common_shape,
    describe,
    is_number,
    promoted,
    promoted_all,
)


def _offset_pointer(pointer: Value, elements: Any, what: str) -> Value:
    elements = as_value(elements, what)
    if not (elements.type.dtype.is_int or elements.type.dtype == dt.bool_):
        fix = "offsets count elements: use an integer"
        raise KernelError(f"{what}: a pointer takes an integer offset, got {describe(elements)}", fix=fix)
    pointer, elements = broadcast_pair(pointer, elements, what)
    return emit("offset", pointer.type, pointer, elements)


@op("pointer", is_cheap=True, is_address=True)
def offset(pointer: Any, elements: Any) -> Value:
    """The address `elements` elements after `pointer`; what `+` means on pointers."""
    return _offset_pointer(pointer, elements, "offset()")


@offset.reference
def _(pointer: Any, elements: Any) -> Any:
    return pointer.moved(elements)


@offset.facts
def _(op: Any, pointer: Facts, elements: Facts) -> Facts:
    return add_facts(pointer, elements, op.operands[0].type.dtype.element.itemsize)


@offset.lower
def _(m: Any, pointer: Any, elements: Any) -> Any:
    return m.offset(pointer, elements)


def _is_pointer(x: Any) -> bool:
    return isinstance(x, Value) and x.type.is_pointer


@op("arithmetic", is_cheap=True, expression=symbolic.Op.ADD)
def add(x: Any, y: Any) -> Value:
    """x + y; integers wrap in their own width; a pointer moves by an integer number of elements."""
    for pointer, elements in ((x, y), (y, x)):
        if _is_pointer(pointer):
            return _offset_pointer(pointer, elements, "+")
    a, b = promoted(x, y, what="+")
    return emit("add", a.type, a, b)


@add.reference
def _(x: Any, y: Any) -> Any:
    return x + y if x.dtype != np.bool_ else x ^ y


@add.facts
def _(op: Any, x: Facts, y: Facts) -> Facts:
    return add_facts(x, y)


@add.span
def _(op: Any, x: Span, y: Span) -> Span:
    return Span(x.terms + y.terms, x.low + y.low, x.high + y.high)


add.ends_function = lambda op, x, y: (add(x[0], y[0]), add(x[1], y[1]))
add.sign_function = lambda op, x, y: x and y and op.operands[0].type.dtype.is_int


@add.lower
def _(m: Any, x: Any, y: Any) -> Any:
    return m.add(x, y)


def _negative_offset(elements: Any) -> Any:
    """Minus an offset, in 64 bits: a narrower or unsigned one would wrap."""
    if is_number(elements):
        return -elements
    is_integer = (
        isinstance(elements, Value) and isinstance(elements.type.dtype, dt.Dtype) and elements.type.dtype.is_int
    )
    return neg(cast_to(elements, dt.i64)) if is_integer else elements


@op("arithmetic", is_cheap=True, expression=symbolic.Op.SUB)
def sub(x: Any, y: Any) -> Value:
    """x - y; integers wrap; a pointer moves back by an integer number of elements."""
    if _is_pointer(x):
        return _offset_pointer(x, _negative_offset(y), "-")
    a, b = promoted(x, y, what="-")
    return emit("sub", a.type, a, b)


@sub.reference
def _(x: Any, y: Any) -> Any:
    return x - y if x.dtype != np.bool_ else x ^ y


@sub.facts
def _(op: Any, x: Facts, y: Facts) -> Facts:
    return subtract_facts(x, y)


sub.ends_function = lambda op, x, y: (sub(x[0], y[1]), sub(x[1], y[0]))


@sub.lower
def _(m: Any, x: Any, y: Any) -> Any:
    return m.subtract(x, y)


@op("arithmetic", is_cheap=True, expression=symbolic.Op.MUL)
def mul(x: Any, y: Any) -> Value:
    """x * y; integers wrap in their own width."""
    a, b = promoted(x, y, what="*")
    return emit("mul", a.type, a, b)


@mul.reference
def _(x: Any, y: Any) -> Any:
    return x * y


@mul.facts
def _(op: Any, x: Facts, y: Facts) -> Facts:
    return multiply_facts(x, y)


mul.sign_function = lambda op, x, y: x and y


@mul.lower
def _(m: Any, x: Any, y: Any) -> Any:
    return m.multiply(x, y)


def _quotient(name: str, x: Any, y: Any, what: str) -> Value:
    """Emit a division of floats, to which integers are converted."""
    a, b = promoted(x, y, what=what, is_division=True)
    if not a.type.dtype.is_float:
        a, b = cast_to(a, dt.f32), cast_to(b, dt.f32)
    return emit(name, a.type, a, b)


@op("arithmetic")
def truediv(x: Any, y: Any) -> Value:
    """x / y in f32, or f64 if either is; integers are converted to f32; within 2 ulp."""
    return _quotient("truediv", x, y, what="/")


@truediv.reference
def _(x: Any, y: Any) -> Any:
    return x / y


@truediv.lower
def _(m: Any, x: Any, y: Any) -> Any:
    return m.divide(x, y)


@op("arithmetic")
def div_rn(x: Any, y: Any) -> Value:
    """x / y in f32 or f64, correctly rounded."""
    return _quotient("div_rn", x, y, what="div_rn()")


@div_rn.reference
def _(x: Any, y: Any) -> Any:
    return x / y


@div_rn.lower
def _(m: Any, x: Any, y: Any) -> Any:
    return m.divide_exactly(x, y)


@op("arithmetic")
def div_approx(x: Any, y: Any) -> Value:
    """x / y; f32 within 2 ulp for |y| from 2**-126 to 2**126, beyond it 0 or NaN; other dtypes as `/`."""
    return _quotient("div_approx", x, y, what="div_approx()")


@div_approx.reference
def _(x: Any, y: Any) -> Any:
    return x / y


@div_approx.lower
def _(m: Any, x: Any, y: Any) -> Any:
    return m.divide_roughly(x, y)


@op("arithmetic", is_cheap=True, divides=True, expression=symbolic.Op.FLOORDIV)
def floordiv(x: Any, y: Any) -> Value:
    """x // y of integers, truncated towards zero as in C (not floored); the lowest // -1 wraps, and x // 0 is x."""
    a, b = promoted(x, y, what="//", is_division=True)
    if a.type.dtype.is_float:
        raise KernelError(f"//: needs integers, got {a.type}", fix="use `tl.floor(x / y)` for floats")
    return emit("floordiv", a.type, a, b)


@floordiv.reference
def _(x: Any, y: Any) -> Any:
    by = np.where(y == 0, 1, y).astype(y.dtype)
    if x.dtype.kind != "i":
        return x // by
    wrapped = np.where(by == -1, np.negative(x), x)
    quotient = np.trunc(np.where(by == -1, 1, x).astype(np.longdouble) / np.where(by == -1, 1, by)).astype(x.dtype)
    return np.where(by == -1, wrapped, quotient).astype(x.dtype)


floordiv.sign_function = lambda op, x, y: x and y


@floordiv.lower
def _(m: Any, x: Any, y: Any) -> Any:
    return m.quotient(x, y)


@op("arithmetic", is_cheap=True, divides=True)
def mod(x: Any, y: Any) -> Value:
    """The remainder of x / y with the sign of x, as in C; exact, of floats too; of integers x % 0 is 0."""
    a, b = promoted(x, y, what="%", is_division=True)
    return emit("mod", a.type, a, b)


@mod.reference
def _(x: Any, y: Any) -> Any:
    return np.fmod(x, y)


@mod.facts
def _(op: Any, x: Facts, y: Facts) -> Facts:
    return remainder_facts(x, y)


mod.sign_function = lambda op, x, y: x


@mod.lower
def _(m: Any, x: Any, y: Any) -> Any:
    return _float_remainder(m, x, y) if x.dtype.is_float else m.remainder(x, y)


_float_remainder = formula("fmod", fmod)


@op("arithmetic", is_cheap=True)
def neg(x: Any) -> Value:
    """-x; unsigned integers wrap."""
    x = as_value(x)
    if not isinstance(x.type.dtype, dt.Dtype) or x.type.dtype == dt.bool_:
        raise KernelError(f"-: needs numbers, got {x.type}", fix="cast it first, as in `x.to(tl.int32)`")
    return emit("neg", x.type, x)


@neg.reference
def _(x: Any) -> Any:
    return np.negative(x)


@neg.facts
def _(op: Any, x: Facts) -> Facts:
    return Facts(x.each, 1, x.constancy, None if x.constant is None else -x.constant)


@neg.lower
def _(m: Any, x: Any) -> Any:
    return m.negative(x)


@op("arithmetic")
def abs_(x: Any) -> Value:
    """The absolute value; of the lowest integer, itself."""
    x = as_value(x, "abs()")
    if x.type.is_pointer:
        raise KernelError(f"abs(): needs numbers, got {x.type}", fix="load the elements first")
    return x if x.type.dtype.kind in ("uint", "bool") else emit("abs", x.type, x)


@abs_.reference
def _(x: Any) -> Any:
    return np.abs(x)


@abs_.lower
def _(m: Any, x: Any) -> Any:
    return m.absolute(x)


@op("arithmetic")
def fma(x: Any, y: Any, z: Any) -> Value:
    """x * y + z, rounded once; floats. f16 and bf16 are computed in f32 and rounded again."""
    a, b, c = promoted_all(x, y, z, what="fma()")
    if not a.type.dtype.is_float:
        raise KernelError(f"fma(): needs floating tiles, got {a.type}", fix="write `x * y + z` for integers")
    if a.type.dtype.bits < 32:
        wide = [cast_to(t, dt.f32) for t in (a, b, c)]
        return cast_to(emit("fma", wide[0].type, *wide), a.type.dtype)
    return emit("fma", a.type, a, b, c)


@fma.reference
def _(x: Any, y: Any, z: Any) -> Any:
    return (x.astype(np.longdouble) * y + z).astype(x.dtype)


@fma.lower
def _(m: Any, x: Any, y: Any, z: Any) -> Any:
    return m.fma(x, y, z)


class PropagateNan(Enum):
    """What `maximum`, `minimum` and `clamp` make of a NaN beside a number: NONE the number, ALL NaN."""

    NONE = "none"
    ALL = "all"


NAN_RULES = {"none": False, "all": True}


def _extremum(name: str, numpy_ignoring: Any, numpy_keeping: Any) -> OpRow:
    def infer(x: Any, y: Any, propagate_nan: Any = "none") -> Value:
        keep = NAN_RULES.get(str(getattr(propagate_nan, "name", propagate_nan)).lower())
        if keep is None:
            raise KernelError(f"{name}(): propagate_nan must be 'none' or 'all'", fix="use `propagate_nan='all'`")
        a, b = promoted(x, y, what=f"{name}()")
        return emit(name, a.type, a, b, keep_nan=keep)

    infer.__name__ = name
    infer.__doc__ = f"The {name} of x and y; of a number and NaN the number, or with `propagate_nan='all'` NaN."
    row = op("arithmetic")(infer)
    row.reference(lambda x, y, *, keep_nan: (numpy_keeping if keep_nan else numpy_ignoring)(x, y))
    row.facts(lambda op, x, y: Facts(min(x.each, y.each), 1, min(x.constancy, y.constancy)))
    row.lower(lambda m, x, y, *, keep_nan: getattr(m, name)(x, y, keep_nan=keep_nan))
    return row


maximum = _extremum("maximum", np.fmax, np.maximum)
minimum = _extremum("minimum", np.fmin, np.minimum)
maximum.ends_function = lambda op, x, y: (maximum(x[0], y[0]), maximum(x[1], y[1]))
minimum.ends_function = lambda op, x, y: (minimum(x[0], y[0]), minimum(x[1], y[1]))
maximum.sign_function = lambda op, x, y: x or y
minimum.sign_function = lambda op, x, y: x and y


@op("arithmetic")
def clamp(x: Any, min: Any, max: Any, propagate_nan: Any = "none") -> Value:
    """x limited to [min, max], which are numbers; a NaN in x becomes min, or stays NaN with `propagate_nan='all'`.

    The three are promoted together. Where min > max the result is max.
    """
    a, low, high = promoted_all(x, min, max, what="clamp()")
    return minimum(maximum(a, low, propagate_nan), high, propagate_nan)


@clamp.reference
def _(x: Any, low: Any, high: Any, *, keep_nan: bool = False) -> Any:
    return np.minimum(np.maximum(x, low), high) if keep_nan else np.fmin(np.fmax(x, low), high)


def _comparison(name: str, predicate: str, compare: Callable[[Any, Any], Any]) -> OpRow:
    def infer(x: Any, y: Any) -> Value:
        a, b = promoted(x, y, what=predicate)
        return emit(name, a.type.with_dtype(dt.bool_), a, b)

    infer.__name__ = name
    infer.__doc__ = f"x {predicate} y as bools; with a NaN {'true' if predicate == '!=' else 'false'}."
    row = op("comparison", is_cheap=True)(infer)
    row.reference(lambda x, y: compare(x, y))
    row.facts(lambda op, x, y: compare_facts(predicate, x, y))
    row.lower(lambda m, x, y: m.compare(predicate, x, y))
    row.predicate = predicate
    return row


lt = _comparison("lt", "<", np.less)
le = _comparison("le", "<=", np.less_equal)
gt = _comparison("gt", ">", np.greater)
ge = _comparison("ge", ">=", np.greater_equal)
eq = _comparison("eq", "==", np.equal)
ne = _comparison("ne", "!=", np.not_equal)


@op("selection", is_choice=True)
def where(condition: Any, x: Any, y: Any) -> Value:
    """x where `condition` holds and y elsewhere; the three broadcast, x and y are brought to one dtype."""
    test = as_value(condition, "where()")
    if test.type.dtype != dt.bool_:
        test = ne(test, 0)
    if _is_pointer(x) and _is_pointer(y) and x.type.dtype == y.type.dtype:
        a, b = broadcast_pair(x, y, "where()")
    else:
        a, b = promoted(x, y, what="where()")
    shape = common_shape(test.type.shape, a.type.shape, "where()")
    test, a, b = (broadcast_value(t, shape) for t in (test, a, b))
    return emit("where", a.type, test, a, b)


@where.reference
def _(condition: Any, x: Any, y: Any) -> Any:
    return np.where(condition, x, y)


@where.ends
def _(op: Any, condition: Any, x: Any, y: Any) -> Any:
    """Of a condition that is the same for all elements; its own ends are one value then."""
    return tuple(where(condition[0], *pair) for pair in zip(x, y, strict=True))


where.sign_function = lambda op, condition, x, y: x and y


@where.lower
def _(m: Any, condition: Any, x: Any, y: Any) -> Any:
    return m.select(condition, x, y)
