"""Atomics on CUDA: inline PTX, predicated by the mask, in the order and scope that are asked for.

LLVM's `atomicrmw` is no way to them: it prints neither order nor scope, and makes loops of vectors and bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.machine import V
from gristmill.compiler.targets import exchange
from gristmill.dtypes import Dtype

Order = tuple[str, str]  # sem and scope, which are PTX's words
WITHOUT_ANSWER = {"acq_rel": "release", "acquire": "relaxed"}  # `red` knows no more; nobody looks at what it found
WORDS = {"xchg": "exch"}
LETTERS = {16: "h", 32: "r", 64: "l"}


def atomic(m: Any, kind: str, pointer: V, operands: Sequence[V], mask: V | None, order: Order, is_used: bool) -> V:
    """Update one element; without a use of the result, as `red`, which does not wait for it."""
    dtype = operands[0].dtype
    assert isinstance(dtype, Dtype)
    if kind == "add" and dtype == dt.bf16 and m.function.sm < 90:
        return exchange.add(m, pointer, operands[0], mask, lambda p: _read(m, p, order), _exchanger(m, order))
    words = [m.bitcast(x, _word(dtype.bits)) for x in operands]
    found = _instruction(m, kind, _type(kind, dtype), pointer, words, mask, order, is_used)
    return m.bitcast(found, dtype)


def atomic_pair(m: Any, pointer: V, pair: Sequence[V], mask: V | None, order: Order, is_used: bool) -> list[V]:
    """Add to two halves with one instruction, where there is one; each is a step of its own."""
    dtype = pair[0].dtype
    if dtype == dt.bf16 and m.function.sm < 90:
        second = m.offset(pointer, m.constant(dt.i32, 1))
        return [atomic(m, "add", p, [x], mask, order, is_used) for p, x in zip((pointer, second), pair, strict=True)]
    word = m.emit(f"bitcast {m.typed(m._pack(pair))} to i32", dt.u32)
    found = _instruction(m, "add", f"noftz.{dtype.name}x2", pointer, [word], mask, order, is_used)
    both = m.emit(f"bitcast {m.typed(found)} to {m.type_of(dtype, 2)}", dtype, 2)
    return [m._element(both, i) for i in range(2)]


def _word(bits: int) -> Dtype:
    return {16: dt.u16, 32: dt.u32, 64: dt.u64}[bits]


def _type(kind: str, dtype: Dtype) -> str:
    """PTX's type of an operation; addition is unsigned, whatever the sign."""
    if kind == "add":
        rounding = "noftz." if dtype.bits == 16 else ""
        return f"{rounding}{dtype.name}" if dtype.is_float else f"u{dtype.bits}"
    if kind in ("max", "min"):
        return f"{'s' if dtype.is_signed else 'u'}{dtype.bits}"
    return f"b{dtype.bits}"


def _instruction(
    m: Any, kind: str, type: str, pointer: V, words: Sequence[V], mask: V | None, order: Order, is_used: bool
) -> V:
    word, (sem, scope) = words[0].dtype, order
    assert isinstance(word, Dtype)
    letter, zero = LETTERS[word.bits], m.constant(word, 0)
    if not is_used and kind not in ("xchg", "cas"):
        opcode = f"red.{WITHOUT_ANSWER.get(sem, sem)}.{scope}.global.{kind}.{type}"
        _say(m, opcode, pointer, words[0], mask, letter)
        return zero
    operands, guards = [pointer, *words], [] if mask is None else [mask]
    places = ", ".join(f"${i}" for i in range(2, 2 + len(words)))
    guard = f"@${2 + len(words)} " if guards else ""
    text = f"{guard}atom.{sem}.{scope}.global.{WORDS.get(kind, kind)}.{type} $0, [$1], {places};"
    ties = ["b", "0"] if guards else []
    constraints = ",".join([f"={letter}", "l", *[letter] * len(words), *ties, "~{memory}"])
    arguments = ", ".join(m.typed(x) for x in [*operands, *guards, *([zero] if guards else [])])
    kind_of_word = m.element_type(word)
    return m.emit(f'call {kind_of_word} asm sideeffect "{text}", "{constraints}"({arguments})', word)


def _say(m: Any, opcode: str, pointer: V, word: V, mask: V | None, letter: str) -> None:
    guard, guards = ("", []) if mask is None else ("@$2 ", [mask])
    constraints = ",".join(["l", letter, *["b"] * len(guards), "~{memory}"])
    arguments = ", ".join(m.typed(x) for x in (pointer, word, *guards))
    m.say(f'call void asm sideeffect "{guard}{opcode} [$0], $1;", "{constraints}"({arguments})')


def _read(m: Any, pointer: V, order: Order) -> V:
    text = f"ld.relaxed.{order[1]}.global.b16 $0, [$1];"
    return m.emit(f'call i16 asm sideeffect "{text}", "=h,l,~{{memory}}"({m.typed(pointer)})', dt.u16)


def _exchanger(m: Any, order: Order) -> exchange.Exchange:
    def swap(pointer: V, old: V, new: V) -> tuple[V, V]:
        found = _instruction(m, "cas", "b16", pointer, [old, new], None, order, True)
        return found, m.compare("==", found, old)

    return swap
