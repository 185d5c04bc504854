"""Where paths meet: the values of two branches become one, the values of a loop's steps the next step's.

In code for 32-bit offsets indices are i32, as literals are, so that `best = 0` before a loop and an index after a step
have one type. In code for 64-bit offsets the i32 follows: it is widened on the path that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, If, Tile, Value
from gristmill.compiler.scope import Scope
from gristmill.errors import KernelError
from gristmill.language.index import index_dtype
from gristmill.language.structure import describe_structure, leaves, rebuilt, skeleton
from gristmill.language.types import as_value, cast_to, is_number

Complain = Callable[[Any, Any], KernelError]
Result = TypeVar("Result")


class Wider(Exception):
    """What a loop carries as its tile number `place` must start as i64."""

    def __init__(self, carried: Carried, place: int):
        super().__init__(place)
        self.carried = carried
        self.place = place


def is_wider(new: Tile, old: Tile) -> bool:
    """Whether `new` is what `old` becomes where indices are i64."""
    dtypes = (old.dtype, new.dtype)
    return index_dtype() == dt.i64 and new.shape == old.shape and dtypes == (dt.i32, dt.i64)


class Join:
    """An `if` under construction: two blocks, and what both yield."""

    def __init__(self, scope: Scope, condition: Value):
        self.scope = scope
        self.condition = condition
        self.blocks = (Block(), Block())
        self.results: list[Value] = []

    def merge(self, sides: tuple[Any, Any], complain: Complain, name: str = "") -> Any:
        """Return the value that is the first side's after one branch and the second's after the other.

        Raises what `complain(first, second)` returns where they differ in type or structure.
        """
        if is_same_constant(*sides):
            return sides[0]
        if skeleton(sides[0]) != skeleton(sides[1]):
            raise complain(*(_described(side) for side in sides))
        tiles = [self._tiles(block, side) for block, side in zip(self.blocks, sides, strict=True)]
        merged = []
        for pair in zip(*tiles, strict=True):
            pair = self._widened(pair)
            if pair[0].type != pair[1].type:
                raise complain(*(_typed(side, ts) for side, ts in zip(sides, tiles, strict=True)))
            merged.append(self._yielded(pair, name))
        return rebuilt(sides[0], iter(merged))

    def _tiles(self, block: Block, side: Any) -> list[Value]:
        with self.scope.builder.inside(block):
            return [as_value(leaf) for leaf in leaves(side)]

    def _widened(self, pair: tuple[Value, Value]) -> tuple[Value, Value]:
        first, second = pair
        for place, (own, other) in enumerate(((first, second), (second, first))):
            if is_wider(other.type, own.type):
                with self.scope.builder.inside(self.blocks[place]):
                    wide = cast_to(own, dt.i64)
                return (wide, second) if place == 0 else (first, wide)
        return pair

    def _yielded(self, pair: tuple[Value, Value], name: str) -> Value:
        if pair[0] is pair[1]:
            return pair[0]
        for block, tile in zip(self.blocks, pair, strict=True):
            block.yields.append(tile)
        self.results.append(Value(pair[0].type, name))
        return self.results[-1]

    def finish(self) -> None:
        """Append the statement."""
        scope = self.scope
        statement = If([self.condition], *self.blocks, self.results, {}, scope.builder.position)
        scope.builder.block.statements.append(statement)


def is_same_constant(a: Any, b: Any) -> bool:
    """Whether two values are one, or numbers or compile-time objects that are equal."""
    if a is b:
        return True
    return is_number(a) and type(a) is type(b) and a == b and str(a) == str(b)


def has_tiles(value: Any) -> bool:
    """Whether a value is made of tiles or numbers: what may differ between paths."""
    return bool(leaves(value))


def _typed(side: Any, tiles: list[Value]) -> str:
    return describe_structure(rebuilt(side, iter(tiles)))


def _described(side: Any) -> str:
    return describe_structure(side)


class Carried:
    """The names that a loop carries from step to step; each step starts with tiles in place of numbers."""

    def __init__(self, scope: Scope, names: list[str]):
        self.scope = scope
        self.names = names
        self.initial: list[Value] = []
        self.start: dict[str, Any] = {}
        for name in names:
            value = scope.names[name]
            tiles = [as_value(leaf) for leaf in leaves(value)]
            self.start[name] = scope.names[name] = rebuilt(value, iter(tiles))
            self.initial += tiles

    def fresh(self) -> list[Value]:
        """A new value for each tile that is carried."""
        return [Value(leaf.type, name) for name in self.names for leaf in leaves(self.start[name])]

    def bind(self, values: list[Value]) -> None:
        """Let the names stand for other tiles."""
        new = iter(values)
        self.scope.names.update((name, rebuilt(self.start[name], new)) for name in self.names)

    def build(self, make: Callable[[], Result]) -> Result:
        """Return what `make` makes of the loop; it is called again for each tile that must start wider."""
        scope = self.scope
        while True:
            names, removed = dict(scope.names), dict(scope.removed)
            try:
                return make()
            except Wider as found:
                if found.carried is not self:
                    raise
                scope.names, scope.removed = names, removed
                self.initial[found.place] = cast_to(self.initial[found.place], dt.i64)
                self.bind(self.initial)
                self.start = {name: scope.names[name] for name in self.names}

    def next_values(self) -> list[Value]:
        """The tiles at the end of a step. Raises KernelError where a name changes its type."""
        found: list[Value] = []
        for name in self.names:
            found += self._next(name, len(found))
        return found

    def _next(self, name: str, place: int) -> list[Value]:
        start, new = self.start[name], self.scope.lookup(name)
        tiles = [as_value(leaf, f"`{name}`") for leaf in leaves(new)]
        if skeleton(start) == skeleton(new):
            tiles = [
                self._follow(tile, old, place + i)
                for i, (tile, old) in enumerate(zip(tiles, leaves(start), strict=True))
            ]
        same = skeleton(start) == skeleton(new) and [t.type for t in tiles] == [t.type for t in leaves(start)]
        if not same:
            after = _typed(new, tiles)
            fix = f"start with that type, as in `{name} = {_start(new, tiles)}`"
            raise KernelError(
                f"`{name}` is {describe_structure(start)} before the loop and {after} after a step", fix=fix
            )
        return tiles

    def _follow(self, new: Value, old: Value, place: int) -> Value:
        if is_wider(new.type, old.type):
            raise Wider(self, place)
        return cast_to(new, dt.i64) if is_wider(old.type, new.type) else new


def _start(new: Any, tiles: list[Value]) -> str:
    from gristmill.dtypes import Dtype
    from gristmill.language.types import spell

    if isinstance(new, tuple) or len(tiles) != 1 or not isinstance(tiles[0].type.dtype, Dtype):
        return "..."
    (tile,), dtype = tiles, spell(tiles[0].type.dtype)
    return f"tl.full((), 0, {dtype})" if tile.type.is_scalar else f"tl.zeros({tile.type.shape}, {dtype})"
