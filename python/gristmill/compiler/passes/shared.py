"""Give each op that exchanges numbers between threads its place in shared memory, with barriers where it needs them.

What an op does there is learned from its lowering, emitted to a machine that takes notes. An exchange writes its place,
passes a barrier and reads it; whoever comes next must not write there before everybody has read. So the pass goes
through the program with the places that may still be read: an exchange takes one that is free of them, or begins with a
barrier. Around a loop it goes until nothing changes. A tile that is held has its place until its last use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gristmill.compiler.ir import Block, Function, If, Op, Place, Pointer, Statement, Value, While, walk
from gristmill.compiler.machine import V
from gristmill.compiler.targets.cuda import CudaMachine
from gristmill.compiler.targets.thread_products import Shared
from gristmill.compiler.targets.threads import Held
from gristmill.compiler.tensor import panel_bytes, panels
from gristmill.dtypes import Dtype

ALIGNMENT = 16
FREE_BYTES = 32768  # up to here memory is given away rather than wait at a barrier
SMALL_BYTES = 256  # and so much always


def run(function: Function) -> None:
    """Set `places` of every op that takes shared memory, and what the function needs of it."""
    placer = _Placer(function)
    placer.block(function.body)
    function.used_bytes = placer.used
    function.overflows |= placer.used > function.shared_bytes
    if function.absent_warps:
        function.overflows = function.producer is None or any(map(_is_exchanged, walk(function.body)))


class _Notes(CudaMachine):
    """Emits ops into the void; `taken` is what they took: bytes for an exchange or for good, None for a barrier."""

    def __init__(self, function: Function):
        super().__init__(function)
        self.taken: list[int | None] = []
        self.is_lasting = False

    def shared(self, dtype: Dtype | Pointer, elements: int) -> V:
        self.is_lasting = True
        return self.scratch([dtype], elements)[0]

    def scratch(self, dtypes: Sequence[Dtype | Pointer], elements: int) -> list[V]:
        self.taken.append(sum(aligned(elements * d.itemsize) for d in dtypes))
        return [self.shared_at(Place(0, 0), d, elements) for d in dtypes]

    def barrier(self) -> None:
        self.taken.append(None)

    def any_tile(self, value: Value) -> Any:
        """Registers that stand for a tile's: equal where they hold the same element."""
        if value.type.is_scalar:
            return V(self.fresh(), value.type.dtype)
        layout = self.layouts[value]
        first = [layout.register_holding(layout.at(r)) for r in range(layout.registers)]
        registers = {r: V(self.fresh(), value.type.dtype) for r in set(first)}
        return Held(layout, [registers[r] for r in first])

    def any_shared(self, value: Value, inner: int) -> Shared:
        """A tile somewhere in shared memory."""
        shape, dtype, elements = value.type.shape, value.type.dtype, value.type.elements
        assert isinstance(dtype, Dtype)
        panel = panel_bytes(shape[inner] * dtype.itemsize)
        memory = self.shared_at(Place(0, 0), dtype, elements)
        return Shared(memory, panels(shape, inner, dtype.itemsize, panel), shape, inner, dtype, panel, elements)


def notes(function: Function, op: Op) -> tuple[list[int | None], bool]:
    """What the op takes of shared memory, step by step, and whether for good."""
    machine = _Notes(function)
    is_across = op.attributes.get("is_across")
    if is_across is None:
        operands = {value: machine.any_tile(value) for value in op.operands}
    else:
        operands = {value: machine.any_shared(value, int(is_across)) for value in op.operands}
    machine.run_op(op, operands)
    return machine.taken, machine.is_lasting


class _Placer:
    def __init__(self, function: Function):
        self.function = function
        ops = [s for s in walk(function.body) if isinstance(s, Op) and _may_exchange(s, function)]
        self.noted = {op: notes(function, op) for op in ops}
        self.kept = {op.results[0] for op in ops if op.row.is_kept}
        self.used = 0
        self.live: dict[Value, Place] = {}
        self.read: frozenset[Place] = frozenset()  # places that threads may still read
        self.lasting = self._common()
        self.lasting += self._lasting(ops)

    def _common(self) -> list[Place]:
        """Give places for the whole kernel to what producers fill while consumers do something else."""
        found: list[Place] = []
        common = self.function.common.statements if self.function.common else []
        for op in (s for s in common if isinstance(s, Op) and s.row.is_kept):
            (size, *_), _ = notes(self.function, op)
            assert size is not None
            op.places = (self._new(size, found, op.row.place_alignment),)
            found += op.places
        return found

    def _lasting(self, ops: list[Op]) -> list[Place]:
        """Give places for the whole kernel, which other blocks may write at any time."""
        found: list[Place] = []
        for op in ops:
            sizes, is_lasting = self.noted[op]
            if is_lasting and not op.row.is_kept:
                first = len(found)
                for size in sizes:
                    taken = [*self.lasting, *found]
                    found += [] if size is None else [self._new(size, taken, op.row.place_alignment)]
                op.places = tuple(found[first:])
                del self.noted[op]
        return found

    def block(self, block: Block) -> None:
        late = {s.operands[0] for s in block.statements if isinstance(s, Op) and s.attributes.get("late")}
        own = {v for s in block.statements for v in s.results if v in self.kept and v not in late}
        last = {value: s for s in block.statements for value in _used(s) if value in own}
        freed: dict[Statement, list[Value]] = {}
        for value, statement in last.items():
            freed.setdefault(statement, []).append(value)
        for statement in block.statements:
            if isinstance(statement, Op):
                self._op(statement)
            elif isinstance(statement, If):
                self._branches(statement)
            else:
                self._loop(statement)
            for value in freed.get(statement, []):
                self.live.pop(value, None)
        for value in [v for statement in block.statements for v in statement.results if v in self.kept]:
            self.live.pop(value, None)

    def _branches(self, statement: If) -> None:
        before, met = self.read, frozenset[Place]()
        for block in statement.blocks:
            self.read = before
            self.block(block)
            met |= self.read
        self.read = met

    def _loop(self, loop: Statement) -> None:
        known: frozenset[Place] | None = None
        while known != self.read:
            known = self.read
            first, *rest = loop.blocks
            self.block(first)
            end = self.read if not isinstance(loop, While) else frozenset()
            for block in rest:
                self.block(block)
                end |= self.read
            self.read = known | self.read | end

    def _op(self, op: Op) -> None:
        self.read |= {_plain(self.live[v]) for v in op.operands if v in self.live}
        if op not in self.noted:
            return
        taken, before = self.noted[op][0], op.places
        places: list[Place] = []
        for size in taken:
            if size is None:
                self.read = frozenset(map(_plain, places[-1:]))
            else:
                known = before[len(places)] if before else None
                places.append(
                    self._place(
                        size, known, op.row.place_alignment, op.row.is_kept and op.attributes.get("buffers", 1) > 1
                    )
                )
        if places:
            op.places = tuple(places)
        self.read |= {_plain(place) for place in places[-1:]}
        if op.row.is_kept:
            self.live[op.results[0]] = places[0]
            self.read -= {_plain(places[0])}

    def _place(self, size: int, before: Place | None, alignment: int, takes_turns: bool = False) -> Place:
        """A place for the op, the same as before if it has one already; of two buffers the other one may be read."""
        place = before or self._new(size, (*self.lasting, *self.live.values()), alignment)
        others = [other for other in self.read if not (takes_turns and other == _plain(place))]
        has_barrier = place.has_barrier or any(place.meets(other) for other in others)
        if has_barrier:
            self.read = frozenset()
        return Place(place.start, size, has_barrier)

    def _new(self, size: int, taken: Iterable[Place], alignment: int = ALIGNMENT) -> Place:
        """The lowest bytes that are not taken, and not read either unless that takes too many."""
        taken = list(taken)
        place = _lowest(size, [*taken, *self.read], alignment)
        if place.end > max(FREE_BYTES, self.used) and size > SMALL_BYTES:
            place = _lowest(size, taken, alignment)
        self.used = max(self.used, place.end)
        return place


def _is_exchanged(statement: Statement) -> bool:
    """Whether an op waits for other warps, which may be absent."""
    return isinstance(statement, Op) and bool(statement.places) and not statement.row.is_window


def _lowest(size: int, taken: Sequence[Place], alignment: int) -> Place:
    starts = sorted({0, *(aligned(place.end, alignment) for place in taken)})
    places = (Place(start, size) for start in starts)
    return next(place for place in places if not any(place.meets(other) for other in taken))


def _plain(place: Place) -> Place:
    return Place(place.start, place.size)


def _may_exchange(op: Op, function: Function) -> bool:
    """Whether the op's lowering may move numbers from thread to thread through memory that it needs a place for."""
    row = op.row
    is_copied = "is_across" in op.attributes  # operands in shared memory, to other places there
    if not is_copied and not all(value.type.is_scalar or value in function.layouts for value in op.operands):
        return False  # it works on what others keep there
    return not (row.is_own or row.goes_by_register or row.effect == "read")


def _used(statement: Statement) -> set[Value]:
    """The values that a statement uses, below it too."""
    inner = [v for block in statement.blocks for s in block.statements for v in _used(s)]
    return {*statement.operands, *inner, *(v for block in statement.blocks for v in block.yields)}


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """The size up to the next multiple of the alignment."""
    return -(-size // alignment) * alignment
