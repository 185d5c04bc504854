"""Operations on the bits of integers: products' upper halves, counting and reordering."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Pointer, Value
from gristmill.compiler.op import OpRow, emit, op
from gristmill.language.functions import check_int
from gristmill.language.types import cast_to, promoted

UNSIGNED = {32: dt.u32, 64: dt.u64}


def with_dtype(x: Value, dtype: dt.Dtype | Pointer) -> Value:
    """The bits of x as another dtype of its width."""
    return x if x.type.dtype == dtype else emit("cast", x.type.with_dtype(dtype), x, to=dtype, bitcast=True)


def _integers(x: Any, y: Any, what: str) -> tuple[Value, Value]:
    a, b = promoted(x, y, what=f"{what}()")
    check_int(a, what)
    return a, b


@op("bits")
def mulhi(x: Any, y: Any) -> Value:
    """The upper half of the product x y of i32, u32, i64 or u64."""
    a, b = _integers(x, y, "mulhi")
    return emit("mulhi", a.type, a, b)


@mulhi.reference
def _(x: Any, y: Any) -> Any:
    return _upper_half(x, y)


@mulhi.lower
def _(m: Any, x: Any, y: Any) -> Any:
    return m.multiply_high(x, y)


@op("bits")
def umulhi(x: Any, y: Any) -> Value:
    """The upper half of the product x y of 32 or 64 bits, both taken as unsigned; in the dtype of the operands."""
    a, b = _integers(x, y, "umulhi")
    unsigned = UNSIGNED[a.type.dtype.bits]
    return with_dtype(mulhi(with_dtype(a, unsigned), with_dtype(b, unsigned)), a.type.dtype)


@umulhi.reference
def _(x: Any, y: Any) -> Any:
    unsigned = f"u{x.dtype.itemsize}"
    return _upper_half(x.view(unsigned), y.view(unsigned)).view(x.dtype)


def _upper_half(x: Any, y: Any) -> Any:
    product = np.asarray(x.astype(object) * y.astype(object))
    return np.asarray(product >> 8 * x.dtype.itemsize).astype(x.dtype)


def _bits_of(x: Any) -> Any:
    """The bits along a new last axis, highest first."""
    raw = np.ascontiguousarray(np.atleast_1d(x)).astype(x.dtype.newbyteorder(">")).view(np.uint8)
    return np.unpackbits(raw.reshape(*np.shape(np.atleast_1d(x)), -1), axis=-1)


def _leading_zeros(x: Any) -> Any:
    bits = _bits_of(x)
    found = np.where(bits.any(axis=-1), bits.argmax(axis=-1), bits.shape[-1])
    return found.reshape(np.shape(x))


def _reversed(x: Any) -> Any:
    packed = np.packbits(_bits_of(x)[..., ::-1], axis=-1)
    return packed.view(x.dtype.newbyteorder(">")).astype(x.dtype).reshape(np.shape(x))


def _count(name: str, doc: str, reference: Any, word: str) -> OpRow:
    def infer(x: Any) -> Value:
        x = check_int(x, name)
        unsigned = UNSIGNED[x.type.dtype.bits]
        return cast_to(emit(name, x.type.with_dtype(unsigned), with_dtype(x, unsigned)), dt.i32)

    infer.__name__, infer.__doc__ = name, doc
    row = op("bits", name=name)(infer)
    row.reference(lambda x: reference(x).astype(x.dtype))
    row.lower(lambda m, x: getattr(m, word)(x))
    return row


popc = _count(
    "popc",
    "The number of ones in 32 or 64 bits, as i32.",
    lambda x: _bits_of(x).sum(-1).reshape(x.shape),
    "count_ones",
)
clz = _count(
    "clz", "The zeros above the highest one of 32 or 64 bits, as i32; of 0 the width.", _leading_zeros, "leading_zeros"
)


@op("bits")
def brev(x: Any) -> Value:
    """The 32 or 64 bits of x in reverse order."""
    x = check_int(x, "brev")
    return emit("brev", x.type, x)


@brev.reference
def _(x: Any) -> Any:
    return _reversed(x)


@brev.lower
def _(m: Any, x: Any) -> Any:
    return m.reverse_bits(x)


@op("bits")
def ffs(x: Any) -> Value:
    """The place of the lowest one in 32 or 64 bits, counted from 1, as i32; of 0 it is 0."""
    from gristmill.language.bits import and_
    from gristmill.language.elementwise import neg, sub

    x = check_int(x, "ffs")
    width = x.type.dtype.bits
    return sub(width, clz(and_(x, neg(x))))


@ffs.reference
def _(x: Any) -> Any:
    return (8 * x.dtype.itemsize - _leading_zeros(x & -x)).astype(np.int32)


@op("bits")
def byte_perm(x: Any, y: Any, s: Any) -> Value:
    """Four of the eight bytes of x (0 to 3) and y (4 to 7), picked by the low 3 bits of s's first four hex digits."""
    x, y, s = (check_int(v, "byte_perm", (32,)) for v in (x, y, s))
    own = x.type.dtype
    a, b = promoted(with_dtype(x, dt.u32), with_dtype(y, dt.u32), what="byte_perm()")
    a, c = promoted(a, with_dtype(s, dt.u32), what="byte_perm()")
    b, c = promoted(b, c, what="byte_perm()")
    return with_dtype(emit("byte_perm", a.type, a, b, c), own)


@byte_perm.reference
def _(x: Any, y: Any, s: Any) -> Any:
    both = x.astype(np.uint64) | y.astype(np.uint64) << np.uint64(32)
    result = np.zeros_like(both)
    for i in range(4):
        digit = (s >> (4 * i) & 7).astype(np.uint64)
        result |= (both >> (digit * np.uint64(8)) & np.uint64(255)) << np.uint64(8 * i)
    return result.astype(np.uint32)


@byte_perm.lower
def _(m: Any, x: Any, y: Any, s: Any) -> Any:
    wide = [m.cast(v, dt.u64) for v in (x, y)]
    both = m.bit_or(wide[0], m.shift_left(wide[1], m.constant(dt.u64, 32)))
    result = m.constant(dt.u32, 0)
    for i in range(4):
        digit = m.bit_and(m.shift_right(s, m.constant(dt.u32, 4 * i)), m.constant(dt.u32, 7))
        places = m.cast(m.shift_left(digit, m.constant(dt.u32, 3)), dt.u64)
        byte = m.bit_and(m.cast(m.shift_right(both, places), dt.u32), m.constant(dt.u32, 255))
        result = m.bit_or(result, m.shift_left(byte, m.constant(dt.u32, 8 * i)))
    return result


@byte_perm.lower(on="cuda")
def _(m: Any, x: Any, y: Any, s: Any) -> Any:
    digits = m.bit_and(s, m.constant(dt.u32, 0x7777))
    return m.call("llvm.nvvm.prmt", dt.u32, x, y, digits)
