"""Loops carry what changes: not what stays the same, nor what counts along with the loop's index.

Objects made of tiles, such as block pointers, go round whole; what is left of them afterwards is what pointers written
by hand would carry, and masks are upper bounds on the index again, which tail versioning can split a loop by.
"""

from __future__ import annotations

from gristmill.compiler.facts import Span
from gristmill.compiler.ir import Block, For, Function, Value, uses
from gristmill.compiler.op import Builder, building
from gristmill.compiler.passes.tail import Masks
from gristmill.language import elementwise as ew

Same = dict[Value, Value]


def run(function: Function) -> None:
    """Thin out every loop of the kernel, inner ones first."""
    _Thinning(function).block(function.body, {})


class _Thinning:
    def __init__(self, function: Function):
        self.masks = Masks(function)
        self.uses = uses(function.body)

    def block(self, block: Block, same: Same) -> None:
        """Rewrite the statements, reading what is no longer carried through `same`."""
        for statement in block.statements:
            statement.operands[:] = [same.get(v, v) for v in statement.operands]
            if isinstance(statement, For):
                self._loop(statement, same)
            for inner in statement.blocks:
                self.block(inner, same)
            if isinstance(statement, For):
                _drop_unchanged(statement, same)
        block.yields[:] = [same.get(v, v) for v in block.yields]

    def _loop(self, loop: For, same: Same) -> None:
        """Compute what counts along with the index from it."""
        start = Block()
        with building(Builder(start)):
            for argument in [a for a in loop.body.arguments[1:] if self._counts_along(loop, a)]:
                place = loop.body.arguments.index(argument)
                same[argument] = self._from_index(loop, loop.operands[place + 2])
                _stop_carrying(loop, place)
        loop.body.statements[:0] = start.statements

    def _counts_along(self, loop: For, argument: Value) -> bool:
        """Whether the value, which nothing reads after the loop, grows by the loop's step at each step."""
        place = loop.body.arguments.index(argument)
        grown, step = self.masks.span(loop.body.yields[place - 1]), self.masks.span(loop.operands[2])
        return (
            argument.type == loop.body.arguments[0].type
            and loop.results[place - 1] not in self.uses
            and step is not None
            and not step.terms
            and grown == Span((argument,), step.low, step.low)
        )

    def _from_index(self, loop: For, initial: Value) -> Value:
        index, lower = loop.body.arguments[0], self.masks.span(loop.operands[0])
        is_from_zero = lower == Span((), 0, 0)
        return ew.add(initial, index if is_from_zero else ew.sub(index, loop.operands[0]))


def _drop_unchanged(loop: For, same: Same) -> None:
    for place in range(len(loop.body.arguments) - 1, 0, -1):
        argument, initial = loop.body.arguments[place], loop.operands[place + 2]
        if loop.body.yields[place - 1] in (argument, initial):
            same[argument] = same[loop.results[place - 1]] = initial
            _stop_carrying(loop, place)
    _replace(loop.body, same)


def _stop_carrying(loop: For, place: int) -> None:
    """Drop the value that the body's argument `place` stands for."""
    del loop.body.arguments[place], loop.operands[place + 2], loop.body.yields[place - 1], loop.results[place - 1]


def _replace(block: Block, same: Same) -> None:
    for statement in block.statements:
        statement.operands[:] = [same.get(v, v) for v in statement.operands]
        for inner in statement.blocks:
            _replace(inner, same)
    block.yields[:] = [same.get(v, v) for v in block.yields]
