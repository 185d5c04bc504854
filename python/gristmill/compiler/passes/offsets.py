"""Addresses as one pointer and offsets of 32 bits, of which threads that copy much keep many."""

from __future__ import annotations

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op, Statement, Value
from gristmill.compiler.op import emit
from gristmill.language import elementwise as ew


def rebased(pointers: Value, made: dict[Value, Statement]) -> Value:
    """The same addresses as one pointer and offsets, which take half the registers while they have 32 bits."""
    found = _base_and_offsets(pointers, made)
    if found is None:
        return pointers
    base, offsets = found
    dtype = base.type.dtype
    return emit("offset", offsets.type.with_dtype(dtype), emit("splat", offsets.type.with_dtype(dtype), base), offsets)


def _base_and_offsets(pointers: Value, made: dict[Value, Statement]) -> tuple[Value, Value] | None:
    """A scalar pointer and the offsets from it; None where they are more, or other, than 32-bit offsets."""
    op = made.get(pointers)
    if not isinstance(op, Op):
        return None
    if op.row.is_address and op.operands[-1].type.dtype == dt.i32:
        own, before = op.operands[-1], op.operands[0]
        found = _base_and_offsets(before, made)
        if found is None and _is_uniform(before, made) is not None:
            return _is_uniform(before, made), own  # type: ignore[return-value]
        return None if found is None else (found[0], ew.add(found[1], own))
    if op.row.is_view and len(op.operands) == 1 and op.operands[0].type.shape:
        found = _base_and_offsets(op.operands[0], made)
        if found is not None:
            kind = op.results[0].type.with_dtype(dt.i32)
            return found[0], emit(op.name, kind, found[1], **op.attributes)
    return None


def _is_uniform(pointers: Value, made: dict[Value, Statement]) -> Value | None:
    """The scalar that a tile repeats."""
    op = made.get(pointers)
    if isinstance(op, Op) and op.row.is_view and op.operands[0].type.is_scalar:
        return op.operands[0]
    return None
