"""Tensor cores of the simulated device: a warp's words become matrices, and its sums words again."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.layout import Layout
from gristmill.compiler.simt.numbers import from_bits, to_bits
from gristmill.compiler.tensor import Unit
from gristmill.dtypes import Dtype

LANES = np.arange(32)
TF32_BITS, HALF_UNIT = np.uint32(0xFFFFE000), 0x1000


def rows_to_words(rows: Any, count: int, is_turned: bool) -> list[Any]:
    """Words of `count` matrices: `rows` has for each thread the 16 bytes at the place it gives."""
    warps = rows.reshape(-1, 32, 16)
    words = []
    for matrix in range(count):
        own = np.ascontiguousarray(warps[:, 8 * matrix : 8 * matrix + 8])
        if is_turned:
            own = np.ascontiguousarray(own.view(np.uint16).swapaxes(1, 2))
        words.append(own.view(np.uint32).reshape(-1))
    return words


def words_to_rows(words: Sequence[Any], is_turned: bool) -> Any:
    """The 8 halves of the row whose place each thread gives, of matrices that `words` hold; 0 where it gives none."""
    rows = np.zeros((words[0].size // 32, 32, 8), np.uint16)
    for matrix, word in enumerate(words):
        own = np.ascontiguousarray(word).view(np.uint32).reshape(-1, 32).view(np.uint16).reshape(-1, 8, 8)
        rows[:, 8 * matrix : 8 * matrix + 8] = own.swapaxes(1, 2) if is_turned else own
    return rows.reshape(-1, 8)


@functools.cache
def _places(unit: Unit) -> tuple[Any, Any, Any]:
    """For word, element of the word and lane: row and column in the left operand, the right one, and the sums."""
    size = unit.word_elements
    high, low = LANES // 4, LANES % 4 * size
    left = np.zeros((unit.words[0], size, 32, 2), int)
    right = np.zeros((unit.words[1], size, 32, 2), int)
    sums = np.zeros((unit.words[2], 32, 2), int)
    for element in range(size):
        for word in range(unit.words[0]):
            left[word, element] = np.stack([high + 8 * (word & 1), low + element + 4 * size * (word >> 1)], -1)
        for word in range(unit.words[1]):
            right[word, element] = np.stack([low + element + 4 * size * word, high], -1)
    for word in range(unit.words[2]):
        sums[word] = np.stack([high + 8 * (word >> 1), LANES % 4 * 2 + (word & 1)], -1)
    return left, right, sums


def multiply(unit: Unit, a: Sequence[Any], b: Sequence[Any], sums: Sequence[Any]) -> list[Any]:
    """Return each warp's sums + a @ b, products exact and sums rounded once; registers have a number a thread."""
    left, right, own = _places(unit)
    x, y = (
        _matrix(unit, words, places, shape)
        for words, places, shape in ((a, left, (unit.m, unit.k)), (b, right, (unit.k, unit.n)))
    )
    before = np.zeros((x.shape[0], unit.m, unit.n), x.dtype)
    for register, places in zip(sums, own, strict=True):
        before[:, places[:, 0], places[:, 1]] = register.reshape(-1, 32)
    after = before + x @ y
    return [rounded(after[:, places[:, 0], places[:, 1]].reshape(-1), unit.summed) for places in own]


def rounded(numbers: Any, dtype: Any) -> Any:
    """Sums as registers hold them."""
    if dtype.is_int:
        return numbers.astype(np.int64).astype(np.int32)
    return numbers.astype(np.float32 if dtype == dt.f32 else np.float64)


def _matrix(unit: Unit, words: Sequence[Any], places: Any, shape: tuple[int, int]) -> Any:
    """The operand of each warp in f64, or i64."""
    kind = np.int64 if unit.operand.is_int else np.float64
    matrix = np.zeros((words[0].size // 32, *shape), kind)
    for word, of_word in zip(words, places, strict=True):
        for element, place in zip(_elements(unit, word), of_word, strict=True):
            matrix[:, place[:, 0], place[:, 1]] = element.astype(kind).reshape(-1, 32)
    return matrix


def _elements(unit: Unit, word: Any) -> list[Any]:
    if unit.operand == dt.f64:
        return [word]
    if unit.operand == dt.f32:
        return [cut_tf32(word)]
    bits = np.ascontiguousarray(word).view(f"u{unit.operand.itemsize}").reshape(-1, unit.word_elements)
    return [from_bits(np.ascontiguousarray(bits[:, i]), unit.operand) for i in range(unit.word_elements)]


def cut_tf32(each: Any) -> Any:
    """The part of f32 that tensor cores multiply."""
    return (np.ascontiguousarray(each).view(np.uint32) & TF32_BITS).view(np.float32)


def round_tf32(each: Any) -> Any:
    """Round f32 to the 10 bits of tf32, ties away from zero; infinities and NaN stay."""
    bits = np.asarray(each, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & TF32_BITS).view(np.float32)
    return np.where(np.isfinite(each), rounded, each)


def rest_of_tf32(each: Any) -> Any:
    """What cutting leaves, and half a unit of its own last bit; -0 of infinities."""
    x = np.asarray(each, np.float32)
    rest = (x - cut_tf32(x).reshape(x.shape)).view(np.uint32) + np.uint32(HALF_UNIT)
    return np.where(np.isinf(x), np.float32(-0.0), rest.view(np.float32))


def join(elements: Sequence[Any], dtype: Dtype) -> Any:
    """Elements of each thread in a word, the first in its lowest bits."""
    bits = [
        np.asarray(to_bits(x, dtype)).astype(np.uint32) << np.uint32(dtype.bits * i) for i, x in enumerate(elements)
    ]
    return functools.reduce(np.bitwise_or, bits)


def matrix_of(tile: Any, memory: Any, start: Any, used: tuple[int | None, int | None]) -> Any:
    """A tile in shared memory as a matrix, read by all threads of a warpgroup, each its part of the elements.

    Of rows and columns `used`, which are fewer than the tile has, the others are not read, and 0; None: all.
    """
    rows, padded = tile.shape
    elements = [r * padded + c for r in range(used[0] or rows) for c in range(used[1] or padded)]
    positions = np.array(elements)
    places = np.array([tile.arrangement.offset(position) for position in elements])
    threads = memory.memory.threads
    matrix = np.zeros(rows * padded, memory.load(np.zeros_like(threads) + start)[0].dtype)
    for first in range(0, len(elements), len(threads)):
        own = (first + threads) % len(elements)
        matrix[positions[own]] = memory.load(places[own] + start)[0]
    return matrix.reshape(tile.shape)


def matrix_of_words(layout: Layout, registers: Sequence[Any], dtype: Any, index: Any) -> Any:
    """The matrix that all threads hold as instructions take it, of halves, two in a word, or of f32, in f64."""
    count = 4 // dtype.itemsize
    matrix = np.full((*layout.shape, count), np.nan)
    for register, words in enumerate(registers):
        if dtype == dt.f32:
            elements = cut_tf32(words).reshape(-1, 1)
        else:
            elements = from_bits(np.ascontiguousarray(words, np.uint32).view(np.uint16).reshape(-1, count), dtype)
        matrix[coordinates(layout, register, index)] = elements.astype(np.float64)
    return matrix.reshape(layout.shape[0], -1)


def coordinates(layout: Layout, register: int, index: Any) -> tuple[Any, Any]:
    """Rows and columns of each thread's register."""
    bits = len(layout.lane), len(layout.warp)
    rows, columns = (np.full(index.shape, layout.at(register)[axis]) for axis in (0, 1))
    for i in range(sum(bits)):
        basis = (*layout.lane, *layout.warp)[i]
        is_set = index >> i & 1
        rows, columns = rows ^ is_set * basis[0], columns ^ is_set * basis[1]
    return rows, columns
