"""Global memory as threads see it: bits, addresses and what may be touched.

An access names places: indices into one array's words. `GlobalMemory.places` finds them and reports addresses that are
outside an array or misaligned; what is then done with them (load, store, an atomic update) is a few lines each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.compiler.interpreter import Memory
from gristmill.compiler.ir import Pointer
from gristmill.compiler.simt.numbers import from_bits, same_bits, to_bits
from gristmill.compiler.simt.races import Clock, Race, Watched
from gristmill.compiler.simt.reports import Reports, spread
from gristmill.dtypes import Dtype
from gristmill.errors import SimulationError

REGION_BITS = 44  # of bytes: one array's share of the address space
MIDDLE = 1 << (REGION_BITS - 1)
PAGE = 4096  # that an array's alignment is kept in
MASK_FIX = "mask it, as in `mask=offsets < n`"
BARRIER_FIX = "let one thread's element be touched by one access only, or give the two phases kernels of their own"


class GlobalArray:
    """One array: `words` are its bits in address order, gaps included."""

    watched: Watched  # its own, or that of all arrays that overlap it, `shift` places further
    shift: int

    def __init__(self, memory: Memory, region: int):
        self.memory = memory
        self.name = memory.name
        self.size = memory.array.itemsize
        self.words = memory.elements
        self.address = (region << REGION_BITS) + MIDDLE + memory.array.ctypes.data % PAGE
        self.start = self.words.ctypes.data


@dataclass(frozen=True)
class Places:
    """Where an access goes in one array: `chosen` of all threads, with the index of each one's first element."""

    array: GlobalArray
    chosen: Any
    first: Any
    threads: Any


class GlobalMemory:
    """The arrays of a call; `describe(thread)` and `site(number)` put reports into words."""

    def __init__(self, threads: int, clock: Clock, reports: Reports):
        self.arrays: list[GlobalArray] = []
        self.index = np.arange(threads)
        self.clock = clock
        self.reports = reports

    def add(self, name: str, array: np.ndarray) -> int:
        """Give an array its place in the address space and return its address."""
        if not array.dtype.isnative or any(stride % array.itemsize for stride in array.strides):
            message = f"the elements of `{name}` do not lie in memory as a device reads them"
            raise SimulationError(message, fix=f"copy it, as in `np.ascontiguousarray({name}, {array.dtype.name!r})`")
        words = array.view(f"u{array.itemsize}")  # numpy cannot stride over the 8-bit floats of others
        self.arrays.append(GlobalArray(Memory(name, words), len(self.arrays) + 1))
        return self.arrays[-1].address

    def watch(self) -> None:
        """Begin to look for races; arrays that overlap, as in calls in place, are watched as one."""
        for group in _overlapping(self.arrays):
            start = min(array.start for array in group)
            places = max((array.start - start) // array.size + len(array.words) for array in group)
            watched = Watched(places, self.clock, are_values_enough=True)
            for array in group:
                array.watched, array.shift = watched, (array.start - start) // array.size

    def places(self, addresses: Any, mask: Any, width: int, dtype: Dtype, what: str) -> Iterator[Places]:
        """Yield the places of an access of `width` elements a thread, array by array; raises if one is not allowed."""
        addresses = spread(addresses, self.index)
        active = spread(True if mask is None else mask, self.index)
        regions = np.where(active, addresses >> REGION_BITS, 0)
        for region in np.unique(regions[active]):
            chosen = np.flatnonzero(active & (regions == region))
            if not 1 <= region <= len(self.arrays):
                message = f"{what}: an address is in no array ({self.reports.thread(chosen[0])})"
                raise SimulationError(message, fix=MASK_FIX)
            array = self.arrays[int(region) - 1]
            if array.size != dtype.itemsize:
                message = f"{what}: {dtype} in `{array.name}`, whose elements have {array.size} bytes"
                raise SimulationError(message, fix=f"pass a view, as in `{array.name}.view(...)`, and keep its dtype")
            self._check_alignment(addresses, chosen, array, width * dtype.itemsize, what)
            first = (addresses[chosen] - array.address) // array.size - array.memory.first
            self._check_bounds(first, chosen, array, width, what)
            yield Places(array, chosen, first, self.index[chosen])

    def _check_alignment(self, addresses: Any, chosen: Any, array: GlobalArray, size: int, what: str) -> None:
        wrong = np.flatnonzero(addresses[chosen] % size)
        if len(wrong):
            thread = chosen[wrong[0]]
            at = int(addresses[thread] - array.address)
            message = f"{what}: {size} bytes at once, {at} bytes into `{array.name}`, where no multiple of {size} lies"
            fix = "pass arrays and row lengths that keep what the kernel is promised, or take its general variant"
            raise SimulationError(f"{message} ({self.reports.thread(thread)})", fix=fix)

    def _check_bounds(self, first: Any, chosen: Any, array: GlobalArray, width: int, what: str) -> None:
        for i in range(width):
            inside = array.memory.has(first + i)
            if not inside.all():
                wrong = int(np.argmin(inside))
                message = array.memory.outside(int(first[wrong]) + i, what)
                raise SimulationError(f"{message} ({self.reports.thread(chosen[wrong])})", fix=MASK_FIX)

    def load(
        self, addresses: Any, mask: Any, others: Sequence[Any] | None, width: int, dtype: Dtype, readers: Any
    ) -> list[Any]:
        """Return `width` elements a thread; `others`, or 0, where the mask is false.

        Only in the threads where `readers` holds does it matter what is loaded.
        """
        loaded = [np.zeros(self.index.shape, f"u{dtype.itemsize}") for _ in range(width)]
        for place in self.places(addresses, mask, width, dtype, "load"):
            for i, bits in enumerate(loaded):
                index = place.first + i
                bits[place.chosen] = place.array.words[index]
                matters = readers[place.threads]
                race = place.array.watched.reading(index[matters] + place.array.shift, place.threads[matters])
                if race is not None:
                    raise self.race(place.array, race)
        numbers = [from_bits(bits, dtype) for bits in loaded]
        if others is None or mask is None:
            return numbers
        return [np.where(mask, number, other) for number, other in zip(numbers, others, strict=True)]

    def store(self, addresses: Any, mask: Any, elements: Sequence[Any], dtype: Dtype) -> None:
        """Write consecutive elements of each thread."""
        bits = [spread(to_bits(x, dtype), self.index) for x in elements]
        for place in self.places(addresses, mask, len(elements), dtype, "store"):
            if not place.array.memory.array.flags.writeable:
                message = f"store: `{place.array.name}` is read-only"
                raise SimulationError(message, fix="pass an array that can be written")
            for i, word in enumerate(bits):
                self._write(place, place.first + i, word[place.chosen], dtype)

    def _write(self, place: Places, index: Any, bits: Any, dtype: Dtype) -> None:
        words = place.array.words
        differs = ~same_bits(words[index], bits, dtype)
        race = place.array.watched.writing(index + place.array.shift, place.threads, differs)
        if race is None:
            words[index] = bits
            lost = ~same_bits(words[index], bits, dtype)
            if not lost.any():
                return
            i = int(np.argmax(lost))
            at = int(index[i]) + place.array.shift
            race = Race(at, int(place.threads[i]), "stored another number", "stores", self.clock.site)
        raise self.race(place.array, race)

    def race(self, array: GlobalArray, race: Race) -> SimulationError:
        """Return the report of a race."""
        place = f"element {race.place - array.shift + array.memory.first} of `{array.name}`"
        return SimulationError(self.reports.race(race, place), fix=BARRIER_FIX)


def _overlapping(arrays: Sequence[GlobalArray]) -> list[list[GlobalArray]]:
    """Group arrays that have memory in common and elements of one size at the same multiples of it."""
    groups: list[list[GlobalArray]] = []
    for array in sorted(arrays, key=lambda a: (a.size, a.start % a.size, a.start)):
        if groups and any(_overlap(other, array) for other in groups[-1]):
            groups[-1].append(array)
        else:
            groups.append([array])
    return groups


def _overlap(x: GlobalArray, y: GlobalArray) -> bool:
    is_one_grid = x.size == y.size and (x.start - y.start) % x.size == 0
    return is_one_grid and x.start <= y.start < x.start + x.words.nbytes


def element_of(pointer: Any) -> Dtype:
    """The dtype that a register of addresses points to."""
    assert isinstance(pointer.dtype, Pointer)
    return pointer.dtype.element
