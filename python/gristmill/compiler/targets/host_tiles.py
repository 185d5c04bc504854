"""What a tile is to a machine whose one thread holds all of it: a function of the position, evaluated when swept.

Positions are row-major. An `Index` names the positions that one step of a sweep looks at: a run of neighbours, one
position for all lanes, or some of any order. A tile kept in memory is computed in the first sweep that passes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gristmill.compiler.ir import For, Function, If, Op, Statement, Value, While, addressed, sources, walk
from gristmill.compiler.machine import V


@dataclass(eq=False)
class Index:
    """`kind` "run": positions `at`, `at` + 1, ... of `lanes`; "one": `at` alone (lanes 0); "some": the vector `at`."""

    kind: str
    at: V
    lanes: int
    memo: dict[Any, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Lazy:
    """A tile as a function of the index; `sources` are (tile, whether it is asked for the same position).

    `turned` is the tile of which it is the transpose, along the last two axes.
    """

    shape: tuple[int, ...]
    function: Callable[[Index], V]
    sources: list[tuple[Any, bool]] = field(default_factory=list)
    turned: Any = None

    def element(self, index: Index) -> V:
        if self not in index.memo:
            index.memo[self] = self.function(index)
        return index.memo[self]


@dataclass(eq=False)
class Buffer:
    """A tile in memory at `address`."""

    shape: tuple[int, ...]
    address: V
    sources: list[tuple[Any, bool]] = field(default_factory=list)


@dataclass(eq=False)
class Kept:
    """A tile that several sweeps need: stored to `buffer` by the first one, read from there by the others."""

    shape: tuple[int, ...]
    made: Lazy
    buffer: Buffer
    is_stored: bool = False

    @property
    def sources(self) -> list[tuple[Any, bool]]:
        return [] if self.is_stored else [(self.made, True)]


Tile = Lazy | Buffer | Kept


def pending(tile: Any, same: bool = True, found: dict[Kept, bool] | None = None) -> dict[Kept, bool]:
    """Return the kept tiles that `tile` needs and that are not stored yet, and whether only at the same position."""
    found = {} if found is None else found
    if isinstance(tile, V):
        return found
    if isinstance(tile, Kept) and not tile.is_stored:
        found[tile] = found.get(tile, True) and same
    for source, is_same in tile.sources:
        pending(source, same and is_same, found)
    return found


def reaches(tile: Any, buffers: set[Buffer], same: bool = True) -> bool:
    """Whether `tile` reads one of `buffers` at another position than its own."""
    if isinstance(tile, V):
        return False
    if tile in buffers:
        return not same
    return any(reaches(s, buffers, same and is_same) for s, is_same in tile.sources)


class Uses:
    """Which sweeps need each value, found from the last statement to the first.

    `kept` are the tiles to keep: dear to compute and needed by more than one sweep, or loaded before a write.
    `crossings` are the stores that, run by run, would change what later runs of what they store have still to read.
    """

    def __init__(self, function: Function):
        self.cheap: set[Value] = {v for v in function.parameters if v.type.is_scalar}
        self.sweeps: dict[Value, set[Any]] = {}
        self.kept: set[Value] = set()
        self.crossings: set[Statement] = set()
        made = sources(function.body)
        self.arguments = lambda address: addressed(address, made, function)
        for statement in walk(function.body):
            if isinstance(statement, Op) and self._is_cheap(statement):
                self.cheap |= set(statement.results)
        self._block(function.body.statements, function.body.yields, None)

    def _is_cheap(self, op: Op) -> bool:
        if any(v.type.is_scalar for v in op.results):
            return True
        cheap = op.row.is_cheap and all(v in self.cheap or v.type.is_scalar for v in op.operands)
        return bool(
            (cheap and not any(v.type.dtype.is_float and op.operands for v in op.results)) or (op.row.is_view and cheap)
        )

    def _block(self, statements: list[Statement], yields: list[Value], owner: Any) -> None:
        defined = {v for s in statements for v in s.results}
        for value in yields:
            self._use(value, owner)
        writes: list[int] = []
        updates: list[int] = []
        for position in range(len(statements) - 1, -1, -1):
            statement = statements[position]
            self._decide(statement, position, writes, updates, statements)
            self._propagate(statement, position, defined)
            if _writes(statement):
                writes.append(position)
            if isinstance(statement, Op) and statement.row.effect == "update":
                updates.append(position)

    def _use(self, value: Value, sweep: Any) -> None:
        self.sweeps.setdefault(value, set()).add(sweep)

    def _decide(
        self, statement: Statement, position: int, writes: list[int], updates: list[int], statements: list[Statement]
    ) -> None:
        """Keep results; an update changes memory element by element, so that what it needs is read before it."""
        for value in statement.results:
            if not value.type.shape or value in self.cheap or not isinstance(statement, Op):
                continue
            sweeps = self.sweeps.get(value, set())
            positions = [s[0] for s in sweeps if isinstance(s, tuple)]
            last = max(positions, default=0)
            is_overtaken = any(w < last for w in writes) or any(u <= last for u in updates)
            crossed = {
                s for s in (statements[p] for p in positions if p < len(statements)) if self._cross(statement, s)
            }
            self.crossings |= crossed
            is_overtaken |= bool(crossed)
            is_overtaken &= statement.row.effect == "read"
            if len(sweeps) > 1 or is_overtaken:
                self.kept.add(value)
                self.sweeps[value] = {(position, id(statement))} if not positions else {(max(positions), id(value))}

    def _cross(self, load: Op, user: Statement) -> bool:
        if load.row.effect != "read" or not isinstance(user, Op) or user.row.effect != "write":
            return False
        source, target = load.operands[0], user.operands[0]
        return source is not target and not self.arguments(source).isdisjoint(self.arguments(target))

    def _propagate(self, statement: Statement, position: int, defined: set[Value]) -> None:
        if isinstance(statement, Op):
            lazily = statement.row.kind == "elementwise" or statement.row.is_view or statement.row.effect == "read"
            is_lazy = lazily and statement.results and statement.results[0].type.shape
            sweeps = self.sweeps.get(statement.results[0], set()) if is_lazy else {(position, id(statement))}
            for value in statement.operands:
                self.sweeps.setdefault(value, set()).update(sweeps)
            return
        for value in statement.operands:
            self._use(value, (position, id(statement)))
        for i, block in enumerate(statement.blocks):
            inner = [v for s in block.statements for v in s.results]
            self._block(block.statements, block.yields, (len(block.statements), id(block), i))
            for value in _free(statement, set(inner)):
                self.sweeps.setdefault(value, set()).update({(position, id(statement)), (position, id(block), "again")})


def _writes(statement: Statement) -> bool:
    if isinstance(statement, Op):
        return bool(statement.row.is_lasting)
    return any(_writes(s) for block in statement.blocks for s in block.statements)


def _free(statement: For | While | If, inner: set[Value]) -> set[Value]:
    """Values used below a statement that are defined outside of it."""
    own, used = set(inner), set()
    for block in statement.blocks:
        own |= set(block.arguments)
        used |= set(block.yields)
        for below in walk(block):
            used |= set(below.operands)
            own |= set(below.results)
            for deeper in below.blocks:
                own |= set(deeper.arguments)
                used |= set(deeper.yields)
    return used - own


free_values = _free
writes = _writes
