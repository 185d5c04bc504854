"""Additions for which there is no instruction: compute the sum, and put it in place if nothing has changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.machine import V

Exchange = Callable[[V, V, V], tuple[V, V]]


def add(m: Any, pointer: V, x: V, mask: V | None, read: Callable[[V], V], exchange: Exchange) -> V:
    """Add a half. `read(pointer)` gives its bits; `exchange(pointer, old, new)` what it met, and whether it was old."""
    results: list[V] = []
    with where(m, mask, results):
        first, before = read(pointer), m.label
        again, end = m.new_label("again"), m.new_label("added")
        m.say(f"br label %{again}")
        m.begin_label(again)
        place, old = len(m.lines), V(m.fresh(), dt.u16)
        m.lines.append("")
        new = m.bitcast(m.add(m.bitcast(old, x.dtype), x), dt.u16)
        met, is_done = exchange(pointer, old, new)
        m.say(f"br i1 {is_done.text}, label %{end}, label %{again}")
        m.lines[place] = f"  {old.text} = phi i16 [ {first.text}, %{before} ], [ {met.text}, %{m.label} ]"
        m.begin_label(end)
        results.append(old)
    return m.bitcast(results[0], x.dtype)


@contextmanager
def where(m: Any, condition: V | None, results: list[V] | None = None) -> Iterator[None]:
    """Emit what follows under a condition; what it puts into `results` is 0 where that does not hold."""
    if condition is None:
        yield
        return
    then, end, before = m.new_label("then"), m.new_label("end"), m.label
    m.say(f"br i1 {condition.text}, label %{then}, label %{end}")
    m.begin_label(then)
    yield
    inside = m.label
    m.say(f"br label %{end}")
    m.begin_label(end)
    for i, x in enumerate(results or []):
        zero = V("zeroinitializer", x.dtype)
        results[i] = m.phi(x.dtype, 0, [(x, inside), (zero, before)])  # type: ignore[index]
