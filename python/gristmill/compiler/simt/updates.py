"""Atomic updates of global memory: each thread's in a step of its own, in the order of the threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.simt.memory import GlobalMemory, Places
from gristmill.compiler.simt.numbers import from_bits, round_to_bf16, to_bits
from gristmill.compiler.simt.reports import spread
from gristmill.dtypes import Dtype
from gristmill.errors import SimulationError

NUMBERS: dict[str, Callable[[Any, Any], Any]] = {"add": np.add, "max": np.maximum, "min": np.minimum}
BITS: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "xchg": lambda old, new: new,
    "cas": lambda old, expected, new: np.where(old == expected, new, old),
}


def update(memory: GlobalMemory, kind: str, addresses: Any, operands: Sequence[Any], mask: Any, dtype: Dtype) -> Any:
    """Update an element of each thread where the mask holds; return what was there, 0 elsewhere.

    `kind` is add, max, min, and, or, xor, xchg, or cas, whose operands are what is expected and the new number.
    """
    bits = [spread(to_bits(x, dtype), memory.index) for x in operands]
    found = np.zeros(memory.index.shape, f"u{dtype.itemsize}")
    for place in memory.places(addresses, mask, 1, dtype, "atomic update"):
        if not place.array.memory.array.flags.writeable:
            message = f"atomic update: `{place.array.name}` is read-only"
            raise SimulationError(message, fix="pass an array that can be written")
        race = place.array.watched.updating(place.first + place.array.shift, place.threads)
        if race is not None:
            raise memory.race(place.array, race)
        found[place.chosen] = _in_turn(place, kind, [x[place.chosen] for x in bits], dtype)
    return from_bits(found, dtype)


def _in_turn(place: Places, kind: str, operands: Sequence[Any], dtype: Dtype) -> Any:
    """Take the first thread at each element, then the second ones, until none is left."""
    words, found = place.array.words, np.zeros(len(place.first), place.array.words.dtype)
    waiting = np.arange(len(place.first))
    while len(waiting):
        _, firsts = np.unique(place.first[waiting], return_index=True)
        turn = waiting[firsts]
        found[turn] = words[place.first[turn]]
        words[place.first[turn]] = _updated(kind, found[turn], [x[turn] for x in operands], dtype)
        waiting = np.delete(waiting, firsts)
    return found


def _updated(kind: str, old: Any, operands: Sequence[Any], dtype: Dtype) -> Any:
    if kind in BITS:
        return BITS[kind](old, *operands)
    number = NUMBERS[kind](from_bits(old, dtype), from_bits(operands[0], dtype))
    return to_bits(round_to_bf16(number) if dtype == dt.bf16 else number, dtype)
