"""Global memory access on CUDA: plain vector instructions without a mask, predicated inline PTX with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Pointer
from gristmill.compiler.machine import V
from gristmill.compiler.targets import cuda_text
from gristmill.dtypes import Dtype

EVICTION_VERSION = 74  # of PTX, the first with priorities; before it "likely read once" is as near as it comes


def wide_load(
    m: Any, pointer: V, width: int, mask: V | None, others: Sequence[V] | None, hints: dict[str, object]
) -> list[V]:
    """Read `width` consecutive elements, which lie on a multiple of their common size."""
    dtype = _element(pointer)
    if mask is None and not _modifiers(m, hints):
        return _plain_load(m, pointer, width, dtype, bool(hints.get("volatile")))
    words, bits = _words(dtype, width)
    zero = m.constant(_word_dtype(bits), 0)
    initial = _to_words(m, others, words, bits, dtype) if others else [zero] * words
    outputs = ",".join([f"={_letter(bits)}"] * words)
    guard, guards = ("", []) if mask is None else (f"@${words + 1} ", [mask])
    opcode = f"ld{_volatile(hints)}.global{_modifiers(m, hints)}{_vector(words)}.b{bits}"
    instruction = f"{guard}{opcode} {_list(range(words))}, [${words}];"
    ties = ",".join(str(i) for i in range(words))
    constraints = f"{outputs},l{',b' if guards else ''},{ties},~{{memory}}"
    code = f'asm sideeffect "{instruction}", "{constraints}"'
    loaded = cuda_text.call(m, code, _word_dtype(bits), words, [pointer, *guards, *initial])
    return _from_words(m, loaded, width, bits, dtype)


def wide_store(m: Any, pointer: V, elements: Sequence[V], mask: V | None, hints: dict[str, object]) -> None:
    """Write consecutive elements, which lie on a multiple of their common size."""
    dtype = _element(pointer)
    if mask is None and not _modifiers(m, hints):
        return _plain_store(m, pointer, elements, dtype)
    words, bits = _words(dtype, len(elements))
    values = _to_words(m, elements, words, bits, dtype)
    guard, guards = ("", []) if mask is None else (f"@${words + 1} ", [mask])
    instruction = f"{guard}st.global{_modifiers(m, hints)}{_vector(words)}.b{bits} [$0], {_list(range(1, words + 1))};"
    constraints = ",".join(["l", *[_letter(bits)] * words, *["b"] * len(guards), "~{memory}"])
    operands = ", ".join(m.typed(x) for x in (pointer, *values, *guards))
    m.say(f'call void asm sideeffect "{instruction}", "{constraints}"({operands})')


def keep(m: Any, elements: Sequence[V]) -> list[V]:
    """The elements side by side in as few registers as hold them."""
    dtype = elements[0].dtype
    assert isinstance(dtype, Dtype)
    return _to_words(m, elements, *_words(dtype, len(elements)), dtype)


def kept(m: Any, words: Sequence[V], like: Sequence[V]) -> list[V]:
    """The elements that `keep` put into `words`, which stay there until now; they are as many as `like`."""
    dtype = like[0].dtype
    assert isinstance(dtype, Dtype)
    count, bits = _words(dtype, len(like))
    outputs, ties = ",".join([f"={_letter(bits)}"] * count), ",".join(map(str, range(count)))
    same = cuda_text.call(m, f'asm sideeffect "", "{outputs},{ties}"', _word_dtype(bits), count, words)
    return _from_words(m, same, len(like), bits, dtype)


def _element(pointer: V) -> Dtype:
    assert isinstance(pointer.dtype, Pointer)
    return pointer.dtype.element


def _modifiers(m: Any, hints: dict[str, object]) -> str:
    """The cache operator, or else the eviction priority, as a PTX suffix; volatile access has neither."""
    if hints.get("volatile"):
        return ""
    cache, eviction = str(hints.get("cache_modifier") or ""), str(hints.get("eviction_policy") or "")
    if cache in (".ca", ".wb"):
        cache = ""
    if cache or eviction not in ("evict_first", "evict_last"):
        return cache
    if m.function.ptx_version < EVICTION_VERSION:
        return ".cs" if eviction == "evict_first" else ""
    return f".L1::{eviction}"


def _volatile(hints: dict[str, object]) -> str:
    return ".volatile" if hints.get("volatile") else ""


def _words(dtype: Dtype, width: int) -> tuple[int, int]:
    """How many registers of how many bits hold `width` elements."""
    size = width * dtype.itemsize
    if dtype.bits == 64:
        return width, 64
    return (size // 4, 32) if size >= 4 else (1, size * 8)


def _word_dtype(bits: int) -> Dtype:
    return {8: dt.u16, 16: dt.u16, 32: dt.u32, 64: dt.u64}[bits]


def _letter(bits: int) -> str:
    return {8: "h", 16: "h", 32: "r", 64: "l"}[bits]


def _vector(words: int) -> str:
    return f".v{words}" if words > 1 else ""


def _list(numbers: Sequence[int]) -> str:
    text = ",".join(f"${i}" for i in numbers)
    return "{" + text + "}" if len(numbers) > 1 else text


def _memory_element(m: Any, x: V) -> V:
    return m.cast(x, dt.u8) if x.dtype == dt.bool_ else x


def _plain_load(m: Any, pointer: V, width: int, dtype: Dtype, volatile: bool) -> list[V]:
    kept, lanes = dt.u8 if dtype == dt.bool_ else dtype, width if width > 1 else 0
    place = f"{m.typed(pointer)}, align {width * dtype.itemsize}"
    vector = m.emit(f"load {'volatile ' if volatile else ''}{m.type_of(kept, lanes)}, {place}", kept, lanes)
    elements = [m._element(vector, i) for i in range(width)] if lanes else [vector]
    return [m.cast(x, dtype) for x in elements]


def _plain_store(m: Any, pointer: V, elements: Sequence[V], dtype: Dtype) -> None:
    kept = [_memory_element(m, x) for x in elements]
    value = m._pack(kept) if len(kept) > 1 else kept[0]
    m.say(f"store {m.typed(value)}, {m.typed(pointer)}, align {len(kept) * dtype.itemsize}")


def _to_words(m: Any, elements: Sequence[V], words: int, bits: int, dtype: Dtype) -> list[V]:
    kept = [_memory_element(m, x) for x in elements]
    word = _word_dtype(bits)
    if len(kept) == words:
        return [_scalar_word(m, x, bits) for x in kept]
    vector = m._pack(kept)
    joined = m.emit(f"bitcast {m.typed(vector)} to {_words_type(m, word, words)}", word, words if words > 1 else 0)
    return [m._element(joined, i) for i in range(words)] if words > 1 else [joined]


def _words_type(m: Any, word: Dtype, words: int) -> str:
    return str(m.type_of(word, words if words > 1 else 0))


def _scalar_word(m: Any, x: V, bits: int) -> V:
    if bits == 8:
        return m.cast(m.bitcast(x, dt.u8), dt.u16)
    return m.bitcast(x, _word_dtype(bits))


def _from_words(m: Any, words: list[V], width: int, bits: int, dtype: Dtype) -> list[V]:
    kept = dt.u8 if dtype == dt.bool_ else dtype
    if len(words) == width:
        narrow = [m.cast(w, dt.u8) if bits == 8 else w for w in words]
        return [m.cast(m.bitcast(w, kept), dtype) for w in narrow]
    vector = m._pack(words) if len(words) > 1 else words[0]
    split = m.emit(f"bitcast {m.typed(vector)} to {m.type_of(kept, width)}", kept, width)
    return [m.cast(m._element(split, i), dtype) for i in range(width)]
