"""Shared memory as threads see it: the bytes of each block, poisoned, and every access of them watched for races."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.compiler.ir import Place, Pointer
from gristmill.compiler.simt.numbers import from_bits, same_bits, to_bits
from gristmill.compiler.simt.races import Race, Watched
from gristmill.compiler.simt.reports import COMPILER_FIX, Reports, spread
from gristmill.dtypes import Dtype
from gristmill.errors import SimulationError

ALIGNMENT = 16


class SharedMemory:
    """The bytes of each block's shared memory, which tiles of several dtypes take in turn; races are looked for between
    single bytes."""

    def __init__(self, size: int, blocks: int, reports: Reports):
        self.stride = -(-size // ALIGNMENT) * ALIGNMENT
        self.reports = reports
        self.bytes = np.zeros(blocks * self.stride, np.uint8)
        self.is_written = np.zeros(blocks * self.stride, np.bool_)
        self.is_expected = np.zeros(blocks * self.stride, np.bool_)
        self.is_open = np.zeros(blocks * self.stride, np.bool_)  # products that go on behind their op read it
        self.products: list[list[slice]] = []  # that go on, and the bytes that they read
        self.watched = Watched(len(self.is_written), reports.clock, are_values_enough=False)
        self.threads = np.arange(blocks * reports.clock.threads_of_block)
        self.block_start = self.threads // reports.clock.threads_of_block * self.stride

    def begin_product(self, operands: list[slice]) -> None:
        """A product reads these bytes until it is waited for: nobody writes them before that."""
        self.products.append(operands)
        self._open(operands)

    def end_products(self, pending: int) -> None:
        """All products have been waited for but the last `pending`."""
        self.products = self.products[len(self.products) - pending :] if pending else []
        self.is_open[:] = False
        for operands in self.products:
            self._open(operands)

    def _open(self, operands: list[slice]) -> None:
        for part in operands:
            self.is_open[part] = True

    def poison(self, place: Place) -> None:
        """Forget what was written there: reading it is an error until something is written again."""
        for known in (self.is_written, self.is_expected):
            known.reshape(-1, max(1, self.stride))[:, place.start : place.end] = False


@dataclass(frozen=True, eq=False)
class SharedTile:
    """Elements of one dtype in shared memory, from byte `start` of each block's part."""

    memory: SharedMemory
    start: int
    dtype: Dtype | Pointer
    elements: int

    @property
    def words(self) -> Any:
        return self.memory.bytes.view(f"u{self.dtype.itemsize}")

    def store(self, index: Any, elements: Sequence[Any], guard: Any = None) -> None:
        """Write consecutive elements of each thread, or of those where `guard` holds."""
        first, threads = self._places(index, len(elements)), self.memory.threads
        chosen = slice(None) if guard is None else np.flatnonzero(guard)
        first, threads = first[chosen], threads[chosen]
        for i, element in enumerate(elements):
            places, bits = first + i, spread(to_bits(element, self.dtype), self.memory.threads)[chosen]
            units, owners = self._units(places, threads)
            self._check_open(units, owners)
            same = same_bits(self.words[places], bits, self.dtype)
            same = np.repeat(same, self._width) & self.memory.is_written[units]
            race = self.memory.watched.writing(units, owners, ~same)
            self.words[places] = bits
            self.memory.is_written[units] = True
            self.memory.is_expected[units] = False
            lost = ~same_bits(self.words[places], bits, self.dtype)
            if race is None and lost.any():
                thread, site = int(np.argmax(lost)), self.memory.reports.clock.site
                race = Race(
                    int(units[thread * self._width]), int(threads[thread]), "stored another number", "stores", site
                )
            self._check(race)

    def expect(self, index: Any, width: int, guard: Any) -> None:
        """Forget the elements that something will write by itself: from now on nobody reads or writes them."""
        chosen = np.flatnonzero(guard)
        first = self._places(index, width)[chosen]
        for i in range(width):
            units, owners = self._units(first + i, chosen)
            self._check_open(units, owners)
            self._check(self.memory.watched.writing(units, owners, np.full(len(units), True)))
            if self.memory.is_expected[units].any():
                message = f"{self._name(int(units[0]))} is copied to again before the last copy has come"
                raise SimulationError(f"{message} ({self.memory.reports.thread(owners[0])})", fix=COMPILER_FIX)
            self.memory.is_written[units] = False
            self.memory.is_expected[units] = True

    def bytes_from(self, start: Any, elements: int) -> slice:
        """Where elements from `start` on lie."""
        first = self.start + int(np.ravel(start)[0]) * self._width
        return slice(first, first + elements * self._width)

    def _check_open(self, units: Any, owners: Any) -> None:
        if self.memory.is_open[units].any():
            i = int(np.argmax(self.memory.is_open[units]))
            message = f"{self._name(int(units[i]))} is written while a product that nobody has waited for reads it"
            raise SimulationError(f"{message} ({self.memory.reports.thread(owners[i])})", fix=COMPILER_FIX)

    def load(self, index: Any, width: int = 1) -> list[Any]:
        """Read consecutive elements of each thread."""
        first = self._places(index, width)
        return [from_bits(self._read(first + i), self.dtype) for i in range(width)]

    def add(self, index: Any, x: Any, guard: Any) -> None:
        """Add to an element of each thread for which `guard` holds; threads may meet there."""
        chosen = np.flatnonzero(spread(guard, self.memory.threads))
        places = self._places(np.where(guard, index, 0), 1)[chosen]
        units, owners = self._units(places, chosen)
        self._check(self.memory.watched.updating(units, owners))
        self._check_written(units, owners)
        np.add.at(self.words, places, spread(to_bits(x, self.dtype), self.memory.threads)[chosen])

    @property
    def _width(self) -> int:
        return self.dtype.itemsize

    def _units(self, places: Any, threads: Any) -> tuple[Any, Any]:
        """The bytes that elements take, and whose they are."""
        if self._width == 1:
            return places, threads
        return (places[:, None] * self._width + np.arange(self._width)).ravel(), np.repeat(threads, self._width)

    def _read(self, places: Any) -> Any:
        units, owners = self._units(places, self.memory.threads)
        self._check(self.memory.watched.reading(units, owners))
        self._check_written(units, owners)
        return self.words[places]

    def _check_written(self, units: Any, owners: Any) -> None:
        unwritten = ~self.memory.is_written[units]
        if unwritten.any():
            i = int(np.argmax(unwritten))
            message = f"{self._name(int(units[i]))} is read, but nothing wrote it"
            raise SimulationError(f"{message} ({self.memory.reports.thread(owners[i])})", fix=COMPILER_FIX)

    def _places(self, index: Any, width: int) -> Any:
        index = spread(index, self.memory.threads)
        wrong = (index % width != 0) | (index < 0) | (index + width > self.elements)
        if wrong.any():
            thread = int(np.argmax(wrong))
            message = f"{width} elements at {index[thread]} of a tile of {self.elements} in shared memory"
            message = f"{message}: misaligned or outside ({self.memory.reports.thread(thread)})"
            raise SimulationError(message, fix=COMPILER_FIX)
        return (self.memory.block_start + self.start) // self.dtype.itemsize + index

    def _name(self, unit: int) -> str:
        byte = unit % self.memory.stride
        return f"element {(byte - self.start) // self.dtype.itemsize} of a tile in shared memory"

    def _check(self, race: Race | None) -> None:
        if race is not None:
            raise SimulationError(self.memory.reports.race(race, self._name(race.place)), fix=COMPILER_FIX)


@dataclass
class Copy:
    """A copy on its way: where to, what, and of which threads."""

    tile: SharedTile
    index: Any
    elements: list[Any]
    guard: Any


class Copies:
    """Copies that threads have begun, in groups; what they bring is there when their group has been waited for."""

    def __init__(self) -> None:
        self.open: list[Copy] = []
        self.groups: list[list[Copy]] = []

    def begin(self, tile: SharedTile, index: Any, elements: list[Any], guard: Any) -> None:
        """Begin to copy elements of the threads for which `guard` holds."""
        tile.expect(index, len(elements), guard)
        self.open.append(Copy(tile, index, elements, guard))

    def begun(self) -> list[Copy]:
        """The copies since the last group, as one."""
        group, self.open = self.open, []
        return group

    def commit(self) -> None:
        """End a group."""
        self.groups.append(self.begun())

    def finish(self, group: list[Copy]) -> None:
        """Let a group come."""
        for copy in group:
            copy.tile.store(copy.index, copy.elements, copy.guard)

    def wait(self, pending: int) -> None:
        """Let all groups come but the last `pending`."""
        end = max(0, len(self.groups) - pending)
        for group in self.groups[:end]:
            self.finish(group)
        del self.groups[:end]
