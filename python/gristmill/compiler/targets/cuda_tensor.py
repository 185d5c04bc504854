"""Tensor cores on CUDA: matrix loads and products of warps, as inline PTX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Pointer
from gristmill.compiler.machine import V
from gristmill.compiler.targets import cuda_text
from gristmill.compiler.tensor import Unit
from gristmill.dtypes import Dtype

TF32_BITS, HALF_UNIT = 0xFFFFE000, 0x1000  # what tensor cores take of f32, and half of the last of those bits
NAMES = {dt.f32: "tf32", dt.i8: "s8", dt.u8: "u8"}
SUMS = {dt.f32: "f32", dt.i32: "s32", dt.f64: "f64"}
LETTERS = {"i32": "r", "float": "f", "double": "d"}
PREFETCH_VERSION = 74  # of PTX
PURE = "convergent nounwind memory(none)"


def matrix_load(m: Any, memory: V, index: V, count: int, is_turned: bool, dtype: Dtype) -> list[V]:
    """Read 8 x 8 matrices of 16-bit elements, or as many bytes, by `ldmatrix`."""
    place = m.emit(f"ptrtoint {m.shared_place(memory, index, dtype)} to i32", dt.u32)
    results = _list(range(count))
    turned = ".trans" if is_turned else ""
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 {results}, [${count}];"
    constraints = ",".join([*["=r"] * count, "r", "~{memory}"])
    code = f'asm sideeffect "{text}", "{constraints}"'
    words = cuda_text.call(m, code, dt.u32, count, [place], "convergent nounwind")
    return [m.bitcast(word, dt.f32) for word in words] if dtype == dt.f32 else words


def matrix_store(m: Any, memory: V, index: V, words: Sequence[V], is_turned: bool, dtype: Dtype) -> None:
    """Write 8 x 8 matrices of 16-bit elements by `stmatrix`."""
    place = m.emit(f"ptrtoint {m.shared_place(memory, index, dtype)} to i32", dt.u32)
    turned, count = ".trans" if is_turned else "", len(words)
    text = f"stmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 [$0], {_list(range(1, 1 + count))};"
    arguments = ", ".join(map(m.typed, (place, *words)))
    constraints = ",".join(["r"] * (1 + count))
    m.say(f'call void asm sideeffect "{text}", "{constraints},~{{memory}}"({arguments}) convergent nounwind')


def multiply_matrices(m: Any, unit: Unit, a: Sequence[V], b: Sequence[V], sums: Sequence[V]) -> list[V]:
    """Return sums + a @ b by `mma.sync`."""
    operand = NAMES.get(unit.operand, unit.operand.name)
    shape, summed = f"m{unit.m}n{unit.n}k{unit.k}", SUMS[unit.summed]
    parts, start = [], len(sums)
    for words in (a, b):
        parts.append(_list(range(start, start + len(words))))
        start += len(words)
    own = _list(range(len(sums)))
    text = (
        f"mma.sync.aligned.{shape}.row.col.{summed}.{operand}.{operand}.{summed} {own}, {parts[0]}, {parts[1]}, {own};"
    )
    kind = m.element_type(unit.summed)
    letters = [f"={LETTERS[kind]}"] * len(sums)
    word = "d" if unit.operand == dt.f64 else "r"
    ties = [str(i) for i in range(len(sums))]
    constraints = ",".join([*letters, *[word] * (len(a) + len(b)), *ties])
    words = [x if word == "d" else m.bitcast(x, dt.u32) for x in (*a, *b)]
    return cuda_text.call(m, f'asm "{text}", "{constraints}"', unit.summed, len(sums), [*words, *sums], PURE)


def round_tf32(m: Any, x: V) -> V:
    """Round to the 10 bits of tf32, to nearest, ties away from zero."""
    word = m.emit(f'call i32 asm "cvt.rna.tf32.f32 $0, $1;", "=r,f"({m.typed(x)}) nounwind memory(none)', dt.u32)
    return m.bitcast(word, dt.f32)


def rest_of_tf32(m: Any, x: V) -> V:
    """x less its upper 19 bits, and half a unit of its own 10th bit; of infinities the NaN's bits overflow to -0."""
    upper = m.bit_and(m.bitcast(x, dt.u32), m.constant(dt.u32, TF32_BITS))
    rest = m.bitcast(m.subtract(x, m.bitcast(upper, dt.f32)), dt.u32)
    return m.bitcast(m.add(rest, m.constant(dt.u32, HALF_UNIT)), dt.f32)


def join_elements(m: Any, elements: Sequence[V]) -> V:
    """Elements in a word, the first in its lowest bits."""
    if len(elements) == 1:
        return elements[0]
    return m.emit(f"bitcast {m.typed(m._pack(elements))} to i32", dt.u32)


def copy_ahead(m: Any, memory: V, index: V, pointer: V, width: int, guard: V | None, mask: V | None) -> None:
    """Begin a copy by `cp.async`; a false mask reads nothing and writes zeros, a false guard does nothing."""
    assert isinstance(pointer.dtype, Pointer)
    element = pointer.dtype.element
    size = width * element.itemsize
    place = m.emit(f"ptrtoint {m.shared_place(memory, index, element)} to i32", dt.u32)
    operands, letters = [place, pointer], ["r", "l"]
    source_size, condition = "", ""
    if mask is not None:
        source_size = f", ${len(operands)}"
        operands.append(m.select(mask, m.constant(dt.u32, size), m.constant(dt.u32, 0)))
        letters.append("r")
    if guard is not None:
        condition = f"@${len(operands)} "
        operands.append(guard)
        letters.append("b")
    cache = "cg" if size == 16 else "ca"
    prefetch = ".L2::128B" if m.function.ptx_version >= PREFETCH_VERSION else ""
    text = f"{condition}cp.async.{cache}.shared.global{prefetch} [$0], [$1], {size}{source_size};"
    constraints = ",".join([*letters, "~{memory}"])
    m.say(f'call void asm sideeffect "{text}", "{constraints}"({", ".join(map(m.typed, operands))})')


def commit_copies(m: Any) -> None:
    """End a group of copies."""
    m.say('call void asm sideeffect "cp.async.commit_group;", "~{memory}"()')


def wait_for_copies(m: Any, pending: int) -> None:
    """Wait for all groups but the last `pending`."""
    m.say(f'call void asm sideeffect "cp.async.wait_group {pending};", "~{{memory}}"()')


def _list(numbers: Sequence[int]) -> str:
    return "{" + ",".join(f"${i}" for i in numbers) + "}"
