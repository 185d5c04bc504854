"""Which loops draw their tiles from a counter, where programs that are done early would wait for others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gristmill.compiler.ir import Block, For, Function, Op, Statement, Value, definitions, reached, sources, walk
from gristmill.compiler.op import ROWS, Builder, building


def draw_tiles(function: Function, common: Block) -> None:
    """Let programs draw the tiles of their outermost loop where some take longer than others.

    They do if how often an inner loop goes round follows from the number of the tile. One counter is for programs
    along one axis.
    """
    if function.grid_axes > 1 or any(_is_of_other_axis(s) for s in walk(function.body)):
        return
    made = definitions(function.body)
    for loop in [s for s in function.body.statements if isinstance(s, For)]:
        first, _, step = (made.get(v) for v in loop.operands[:3])
        is_shared_out = _is_of_grid(first, "program") and _is_of_grid(step, "programs") and not loop.operands[3:]
        bounds = {v for s in walk(loop.body) if isinstance(s, For) for v in s.operands[:2]}
        if is_shared_out and loop.body.arguments[0] in reached(bounds, _sources_in(loop.body)):
            loop.attributes["draws"] = True
            with building(Builder(common)):
                function.tickets = ROWS["pipe"](2, has_copies=False, has_tickets=True)
            return


def _sources_in(block: Block) -> Callable[[Value], Sequence[Value]]:
    links = sources(block)
    return lambda value: links.get(value, ())


def _is_of_grid(statement: Statement | None, what: str) -> bool:
    return isinstance(statement, Op) and statement.row.of_grid == what


def _is_of_other_axis(statement: Statement) -> bool:
    return isinstance(statement, Op) and bool(statement.row.of_grid and statement.attributes["axis"])
