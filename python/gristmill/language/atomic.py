"""Atomics: each element of memory is read and changed in one step, whatever other programs do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Pointer, Value
from gristmill.compiler.op import OpRow, emit, op
from gristmill.errors import KernelError
from gristmill.language.memory import _element, _fit, _mask, _pointers
from gristmill.language.types import as_value, cast_to, constant, describe, is_number

SEMS = ("acq_rel", "acquire", "release", "relaxed")
SCOPES = ("gpu", "cta", "sys")
INTEGERS = (dt.i32, dt.i64, dt.u32, dt.u64)
SHORTS = (dt.i16, dt.u16)
HALVES = (dt.f16, dt.bf16)
FLOATS = (dt.f32, dt.f64)
TAKEN = {
    "add": (*INTEGERS, *HALVES, *FLOATS),
    "max": (*INTEGERS, *FLOATS),
    "min": (*INTEGERS, *FLOATS),
    "and": INTEGERS,
    "or": INTEGERS,
    "xor": INTEGERS,
    "xchg": (*INTEGERS, *FLOATS),
    "cas": (*SHORTS, *INTEGERS, *HALVES, *FLOATS),
}
ABOUT = """

`val` is cast to the pointed-to dtype. The result is what was there before; 0 where `mask` is false, and there the
address is not touched. Elements are updated in an order that is not told: each of two with one address counts.
`sem` orders other accesses around it: "acq_rel" (the default), "acquire", "release" or "relaxed"; `scope` says among
whom: "gpu" (the default), "cta" (this program) or "sys" (also the host). A result that is not used is not waited for:
nothing is acquired by it."""


def _extreme(kind: str) -> Callable[[Any, Any], Any]:
    better = max if kind == "max" else min
    other = min if kind == "max" else max

    def change(old: Any, x: Any) -> Any:
        if old.dtype.kind != "f":
            return better(old, x)
        bits, size = np.asarray(x), old.dtype.itemsize
        if bits.view(f"i{size}") >= 0:
            return np.asarray(better(np.asarray(old).view(f"i{size}"), bits.view(f"i{size}"))).view(old.dtype)
        return np.asarray(other(np.asarray(old).view(f"u{size}"), bits.view(f"u{size}"))).view(old.dtype)

    return change


# What each kind makes of one element: numpy scalars of its dtype, the old one first.
CHANGES: dict[str, Callable[..., Any]] = {
    "add": lambda old, x: old + x,
    "max": _extreme("max"),
    "min": _extreme("min"),
    "and": lambda old, x: old & x,
    "or": lambda old, x: old | x,
    "xor": lambda old, x: old ^ x,
    "xchg": lambda old, x: x,
    "cas": lambda old, expected, x: x if old.tobytes() == expected.tobytes() else old,
}


def _choice(value: Any, choices: tuple[str, ...], name: str, what: str) -> str:
    value = choices[0] if value is None else value
    if value not in choices:
        fix = f'use one of {", ".join(choices)}, as in `{name}="{choices[0]}"`'
        raise KernelError(f"{what}(): {name} cannot be {describe(value)}", fix=fix)
    return str(value)


def _check_dtype(kind: str, element: dt.Dtype, what: str) -> None:
    taken = TAKEN[kind]
    if element in taken:
        return
    fix = "keep what is updated in i32, as in `gm.ptr[gm.i32]`"
    if element.is_float:
        fix = "keep what is updated in f32" if dt.f32 in taken else "use integers"
    raise KernelError(f"{what}(): {element} is not one of {', '.join(d.name for d in taken)}", fix=fix)


def _operand(x: Any, element: dt.Dtype, pointers: Value, name: str, what: str) -> Value:
    tile = constant(x, element) if is_number(x) else cast_to(as_value(x, f"{what}()"), element)
    return _fit(tile, pointers, name, what)


def _emit(kind: str, pointer: Any, values: dict[str, Any], mask: Any, sem: Any, scope: Any) -> Value:
    what = f"atomic_{kind}"
    pointers = _pointers(pointer, what)
    element = _element(pointers)
    _check_dtype(kind, element, what)
    operands = [_operand(x, element, pointers, name, what) for name, x in values.items()]
    guard = _mask(mask, pointers, what)
    return emit(
        what,
        pointers.type.with_dtype(element),
        pointers,
        *operands,
        *([guard] if guard is not None else []),
        sem=_choice(sem, SEMS, "sem", what),
        scope=_choice(scope, SCOPES, "scope", what),
        in_pairs=element in HALVES and kind == "add",
    )


def _declare(kind: str, doc: str) -> OpRow:
    def infer(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> Value:
        return _emit(kind, pointer, {"val": val}, mask, sem, scope)

    infer.__name__ = f"atomic_{kind}"
    infer.__doc__ = doc + ABOUT
    row = op("atomic", kind="tile", effect="update")(infer)

    def reference(pointers: Any, val: Any, mask: Any = None, **hints: Any) -> Any:
        return pointers.update(CHANGES[kind], [val], mask)

    row.reference(reference)
    row.lower(lambda m, op, pointers, val, mask=None: _update(m, op, kind, pointers, [val], mask))
    return row


def _update(m: Any, op: Any, kind: str, pointers: Any, operands: list[Any], mask: Any) -> Any:
    return m.update(op, pointers, operands, mask, partial(_step, m, op, kind))


def _step(m: Any, op: Any, kind: str, pointer: Any, groups: list[list[Any]], mask: Any) -> list[Any]:
    order = (op.attributes["sem"], op.attributes["scope"])
    is_used = op.attributes.get("is_used", True)
    if len(groups[0]) == 2:
        return list(m.atomic_pair(pointer, groups[0], mask, *order, is_used=is_used))
    operands = [x for (x,) in groups]
    if kind in ("max", "min") and operands[0].dtype.is_float:
        return [_float_extreme(m, kind, pointer, operands[0], mask, order, is_used)]
    return [m.atomic(kind, pointer, operands, mask, *order, is_used=is_used)]


def _float_extreme(m: Any, kind: str, pointer: Any, x: Any, mask: Any, order: Any, is_used: bool) -> Any:
    """By the bits: as signed integers floats without a sign are in order, above those with one; as unsigned integers
    those with one are in the opposite order, above those without."""
    signed, unsigned = (dt.i32, dt.u32) if x.dtype.bits == 32 else (dt.i64, dt.u64)
    bits, zero = m.bitcast(x, signed), m.constant(signed, 0)
    found = []
    for predicate, word, dtype in ((">=", kind, signed), ("<", "min" if kind == "max" else "max", unsigned)):
        holds = m.compare(predicate, bits, zero)
        guard = holds if mask is None else m.bit_and(mask, holds)
        operand, place = m.bitcast(x, dtype), m.bitcast(pointer, Pointer(dtype))
        found.append(m.bitcast(m.atomic(word, place, [operand], guard, *order, is_used=is_used), signed))
    return m.bitcast(m.bit_or(*found), x.dtype)


BY_BITS = "\n\nOf floats by their bits: -0 is below 0, NaN above and -NaN below everything."
ADDITION = "Add `val` to the elements that `pointer` points to; on CUDA denormal f32 count as 0."

atomic_add = _declare("add", ADDITION)
atomic_max = _declare("max", "Put `val` where it is greater than what is there." + BY_BITS)
atomic_min = _declare("min", "Put `val` where it is less than what is there." + BY_BITS)
atomic_and = _declare("and", "Keep the bits that are also set in `val`.")
atomic_or = _declare("or", "Set the bits that are set in `val`.")
atomic_xor = _declare("xor", "Flip the bits that are set in `val`.")
atomic_xchg = _declare("xchg", "Put `val` in place of what is there.")


@op("atomic", kind="tile", effect="update")
def atomic_cas(pointer: Any, cmp: Any, val: Any, sem: Any = None, scope: Any = None) -> Value:
    """Put `val` where `cmp` is, bit for bit, what is there; the result is what was there before.

    Both are cast to the pointed-to dtype, of 16, 32 or 64 bits. `sem` and `scope` as for `atomic_add`.
    """
    return _emit("cas", pointer, {"cmp": cmp, "val": val}, None, sem, scope)


@atomic_cas.reference
def _(pointers: Any, cmp: Any, val: Any, **hints: Any) -> Any:
    return pointers.update(CHANGES["cas"], [cmp, val], None)


@atomic_cas.lower
def _(m: Any, op: Any, pointers: Any, cmp: Any, val: Any) -> Any:
    return _update(m, op, "cas", pointers, [cmp, val], None)
