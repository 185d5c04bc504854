"""Matrix products of microscaling blocks, whose groups of 32 elements share a scale (OCP Microscaling Formats, v1.0).

Every machine computes them as Triton does where there is no instruction: decoded to bf16 or f16, scaled, multiplied.
"""

from __future__ import annotations

from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Value
from gristmill.compiler.op import op
from gristmill.dtypes import Dtype
from gristmill.errors import KernelError
from gristmill.language import bits
from gristmill.language import elementwise as ew
from gristmill.language.matrix import dot
from gristmill.language.rearrange import interleave
from gristmill.language.shape import broadcast_to, expand_dims, reshape, trans
from gristmill.language.types import as_value, cast_to, describe, spell
from gristmill.language.words import with_dtype

GROUP = 32  # elements along K that one scale is for
NAN_SCALE = 255
PACKED = "e2m1"
# What elements of a format are held as: the dtype itself or its bits.
HELD = {
    PACKED: (dt.u8,),
    "e4m3": (dt.f8e4m3, dt.u8),
    "e5m2": (dt.f8e5m2, dt.u8),
    "bf16": (dt.bf16, dt.u16),
    "fp16": (dt.f16, dt.u16),
}


@op("matrix")
def dot_scaled(
    lhs: Any,
    lhs_scale: Any,
    lhs_format: Any,
    rhs: Any,
    rhs_scale: Any,
    rhs_format: Any,
    acc: Any = None,
    fast_math: Any = False,
    lhs_k_pack: Any = True,
    rhs_k_pack: Any = True,
    out_dtype: Any = dt.f32,
) -> Value:
    """The f32 product of microscaling blocks [M, K] and [K, N], or batches of them, added to `acc` if there is one.

    Formats are "e4m3", "e5m2", "bf16" and "fp16", in blocks of that dtype or of its bits (u8, u16), and "e2m1": two
    elements a u8, the first in the low half, along K or, with `k_pack=False`, along M or N. A scale is u8 and stands
    for 2**(scale - 127), 255 for NaN, or None; each is for 32 elements along K: [M, K // 32] and [N, K // 32].

    Elements and scales become bf16, or f16 where a format is "fp16", in which scales above 2**15 are infinite and
    those below 2**-24 zero; their products are rounded once to that dtype, and multiplied as by `dot`. `fast_math`
    says that no scale is NaN.
    """
    half = dt.f16 if "fp16" in (lhs_format, rhs_format) else dt.bf16
    a = _scaled(_decoded("lhs", lhs, lhs_format, lhs_k_pack, half), "lhs", lhs_scale, fast_math)
    b = _scaled(_decoded("rhs", rhs, rhs_format, rhs_k_pack, half), "rhs", rhs_scale, fast_math)
    _check_product(a, b, acc, out_dtype)
    return dot(a, b, acc)


def _error(side: str, what: str, fix: str) -> KernelError:
    return KernelError(f"dot_scaled(): {side} {what}", fix=fix)


def _check_product(a: Value, b: Value, acc: Any, out_dtype: Any) -> None:
    left, right = a.type.shape, b.type.shape
    if len(left) != len(right) or left[:-2] != right[:-2] or left[-1] != right[-2]:
        fix = "lhs has as many columns as rhs has rows; e2m1 has two elements for each u8 along the axis of its packing"
        raise KernelError(f"dot_scaled(): elements {list(left)} and {list(right)} do not multiply", fix=fix)
    if out_dtype != dt.f32:
        fix = "leave `out_dtype` out and cast the result"
        raise KernelError(f"dot_scaled(): returns f32, not {describe(out_dtype)}", fix=fix)
    shape = (*left[:-1], right[-1])
    if acc is not None and (not isinstance(acc, Value) or (acc.type.dtype, acc.type.shape) != (dt.f32, shape)):
        fix = f"start with `tl.zeros({shape}, tl.float32)`"
        raise KernelError(f"dot_scaled(): acc is {describe(acc)}, the product f32{list(shape)}", fix=fix)


# ---- elements ------------------------------------------------------------------------------------------------------


def _decoded(side: str, x: Any, name: Any, is_packed_along_k: Any, half: Dtype) -> Value:
    """The elements in half precision."""
    held = HELD.get(name) if isinstance(name, str) else None
    if held is None:
        known = ", ".join(repr(n) for n in HELD)
        raise _error(f"{side}_format", f"is {describe(name)}, no known format", f"use one of {known}")
    x = as_value(x, "dot_scaled()")
    if len(x.type.shape) not in (2, 3):
        fix = "use blocks of two axes: lhs [M, K] and rhs [K, N]"
        raise _error(side, f"needs two or three axes, got {x.type}", fix)
    if x.type.dtype not in held:
        fix = f"pass it as {' or '.join(spell(d) for d in held)}, or change `{side}_format`"
        raise _error(side, f"holds {x.type.dtype.name}, which is not what {name!r} is held as", fix)
    if name == PACKED:
        return _unpacked(x, is_last=(side == "lhs") == bool(is_packed_along_k), half=half)
    if not is_packed_along_k:
        what = f"is {name!r}, whose elements are not packed"
        raise _error(side, what, f"leave `{side}_k_pack` out: it is of 'e2m1'")
    return cast_to(with_dtype(x, held[0]), half)


def _unpacked(x: Value, *, is_last: bool, half: Dtype) -> Value:
    """The elements of e2m1 along the last axis or the one before, in place of the bytes that hold two."""
    x = x if is_last else trans(x)
    both = interleave(_small_float(bits.and_(x, 15), half), _small_float(bits.shr(x, 4), half))
    return both if is_last else trans(both)


def _small_float(code: Value, half: Dtype) -> Value:
    """What the 4 bits of an e2m1 mean: sign, two bits of exponent with bias 1, one of mantissa."""
    mantissa_bits, one_half = (7, 0x3F00) if half == dt.bf16 else (10, 0x3800)
    code = cast_to(code, dt.u16)
    size = bits.and_(code, 7)
    normal = ew.add(bits.shl(size, mantissa_bits - 1), one_half)
    magnitude = ew.where(ew.lt(size, 2), ew.mul(size, one_half), normal)
    return with_dtype(bits.or_(magnitude, bits.shl(bits.and_(code, 8), 12)), half)


# ---- scales --------------------------------------------------------------------------------------------------------


def _scaled(x: Value, side: str, scale: Any, is_fast: Any) -> Value:
    """The elements of one side times the scales of their groups."""
    if scale is None:
        return x
    shape = x.type.shape if side == "lhs" else (*x.type.shape[:-2], x.type.shape[-1], x.type.shape[-2])
    scale = _check_scale(side, scale, shape)
    factors = cast_to(_scale_value(scale, bool(is_fast)), x.type.dtype)
    groups = (*factors.type.shape, GROUP)
    repeated = reshape(broadcast_to(expand_dims(factors, -1), groups), shape)
    return ew.mul(x, repeated if side == "lhs" else trans(repeated))


def _check_scale(side: str, scale: Any, shape: tuple[int, ...]) -> Value:
    """Check the scales of elements that have this shape, K last."""
    if shape[-1] % GROUP:
        what = f"has K = {shape[-1]}, no multiple of {GROUP}"
        raise _error(side, what, f"use blocks of {GROUP} elements or more along K, or None for `{side}_scale`")
    wanted = (*shape[:-1], shape[-1] // GROUP)
    if not isinstance(scale, Value) or (scale.type.dtype, scale.type.shape) != (dt.u8, wanted):
        axes = "[M, K // 32]" if side == "lhs" else "[N, K // 32], not transposed"
        what = f"is {describe(scale)}, and must be u8{list(wanted)}"
        raise _error(f"{side}_scale", what, f"load its bytes as {axes}, or pass None")
    return scale


def _scale_value(scale: Value, is_fast: bool) -> Value:
    """2**(scale - 127) as bf16, where scale 0 is half the smallest normal number."""
    exponent = bits.shl(cast_to(scale, dt.u16), 7)
    number = ew.maximum(exponent, 0x40)
    return with_dtype(number if is_fast else ew.where(ew.eq(scale, NAN_SCALE), 0x7FC0, number), dt.bf16)
