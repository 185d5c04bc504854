"""Authors' inline PTX: a thread's elements in groups, packed into registers, and what comes out unpacked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op, Pointer
from gristmill.compiler.machine import V
from gristmill.compiler.targets.threads import Held
from gristmill.dtypes import Dtype
from gristmill.language.assembly import per_register


def run(m: Any, op: Op, tiles: Sequence[V | Held]) -> list[V | Held]:
    """Run an op's assembly on every register. A group that is not full repeats its
    last element."""
    pack, held = op.attributes["pack"], [t for t in tiles if isinstance(t, Held)]
    columns = [list(t.registers) if isinstance(t, Held) else [t] for t in tiles]
    count = len(columns[0])
    found: list[list[V]] = [[] for _ in op.results]
    for start in range(0, count, pack):
        groups = [[c[min(start + i, count - 1)] for i in range(pack)] for c in columns]
        for registers, elements in zip(found, _group(m, op, groups), strict=True):
            registers += elements[: count - start]
    results = [Held(held[0].layout, r) if held else r[0] for r in found]
    return results


def _group(m: Any, op: Op, groups: Sequence[Sequence[V]]) -> list[list[V]]:
    pack, dtypes = op.attributes["pack"], [v.type.dtype for v in op.results]
    words = [word for group in groups for word in _packed(m, group)]
    kinds = [_kind(m, d, per_register(d.bits, pack)) for d in dtypes for _ in range(pack // per_register(d.bits, pack))]
    result = kinds[0] if len(kinds) == 1 else "{ " + ", ".join(kinds) + " }"
    effect = "sideeffect " if op.row.effect else ""
    name, arguments = m.fresh(), ", ".join(words)
    text, constraints = _escaped(op.attributes["asm"]), _escaped(op.attributes["constraints"].replace(" ", ""))
    m.say(f'{name} = call {result} asm {effect}"{text}", "{constraints}"({arguments})')
    outputs = [name] if len(kinds) == 1 else [_extracted(m, result, name, i) for i in range(len(kinds))]
    return _unpacked(m, list(zip(outputs, kinds, strict=True)), dtypes, pack)


def _escaped(text: str) -> str:
    return "".join(c if 32 <= ord(c) < 127 and c not in '"\\' else f"\\{ord(c):02X}" for c in text)


def _kind(m: Any, dtype: Dtype | Pointer, share: int) -> str:
    """The type of a register: that of a single element, or an integer for several."""
    if share > 1:
        return f"i{share * dtype.bits}"
    return "i16" if dtype.bits == 8 else str(m.element_type(dtype))


def _packed(m: Any, group: Sequence[V]) -> list[str]:
    """Typed registers that hold a group's elements, the first in the lowest bits."""
    dtype = group[0].dtype
    share = per_register(dtype.bits, len(group))
    if share == 1:
        return [m.typed(m.cast(m.bitcast(x, dt.u8), dt.u16) if dtype.bits == 8 else x) for x in group]
    words = []
    for start in range(0, len(group), share):
        vector = m._pack(group[start : start + share])
        words.append(m.typed(m.emit(f"bitcast {m.typed(vector)} to {_kind(m, dtype, share)}", _integer(dtype, share))))
    return words


def _integer(dtype: Dtype | Pointer, share: int) -> Dtype:
    return {16: dt.u16, 32: dt.u32}[share * dtype.bits]


def _extracted(m: Any, type: str, name: str, i: int) -> str:
    result = m.fresh()
    m.say(f"{result} = extractvalue {type} {name}, {i}")
    return str(result)


def _unpacked(m: Any, outputs: list[tuple[str, str]], dtypes: Sequence[Any], pack: int) -> list[list[V]]:
    found, at = [], 0
    for dtype in dtypes:
        share = per_register(dtype.bits, pack)
        elements: list[V] = []
        for name, kind in outputs[at : at + pack // share]:
            elements += _elements(m, name, kind, dtype, share)
        at += pack // share
        found.append(elements)
    return found


def _elements(m: Any, name: str, kind: str, dtype: Dtype, share: int) -> list[V]:
    if share == 1 and dtype.bits == 8:
        return [m.bitcast(m.cast(V(name, dt.u16), dt.u8), dtype)]
    if share == 1:
        return [V(name, dtype)]
    vector = m.emit(f"bitcast {kind} {name} to {m.type_of(dtype, share)}", dtype, share)
    return [m._element(vector, i) for i in range(share)]
