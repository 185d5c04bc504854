"""Drop comparisons with zero that always hold, so that masks say only what they have to.

The lower bound of a block pointer's or descriptor's window is such a comparison wherever its offset comes from program
numbers, counted loops and sizes. Like tail versioning this takes indices to stay below the limit of their dtype.
"""

from __future__ import annotations

from gristmill.compiler.ir import Block, For, Function, If, Op, Statement, Value, While, definitions, is_zero


def run(function: Function) -> None:
    """Find what is never negative, then leave comparisons that follow from it out of conjunctions and accesses."""
    _Masks(function, never_negative(function)).block(function.body, {})


def never_negative(function: Function, *, counts_divide: bool = False) -> set[Value]:
    """The integers of which it is known; `counts_divide`: if nothing is divided by negative numbers."""
    signs = _Signs(function, counts_divide)
    signs.block(function.body)
    return signs.never_negative


class _Signs:
    """`never_negative` holds the integers of which that is known."""

    def __init__(self, function: Function, counts_divide: bool):
        self.never_negative: set[Value] = set(function.never_negative)
        self.counts_divide = counts_divide

    def block(self, block: Block) -> None:
        made = set(block.arguments)
        for statement in block.statements:
            self._statement(statement)
            made.update(statement.results)
            if isinstance(statement, Op) and statement.row.is_promise and statement.operands[0] in made:
                # It holds wherever the block runs, from its start on.
                self._add(statement.operands[0], statement.results[0] in self.never_negative)

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Op):
            self._op(statement)
        elif isinstance(statement, For):
            if statement.operands[0] in self.never_negative:
                self.never_negative.add(statement.body.arguments[0])
            self._loop(statement, statement.operands[3:], statement.body.arguments[1:])
        elif isinstance(statement, While):
            self.block(statement.condition)
            self.block(statement.body)
        elif isinstance(statement, If):
            for inner in statement.blocks:
                self.block(inner)
            for result, *sides in zip(statement.results, *(b.yields for b in statement.blocks), strict=True):
                self._add(result, all(side in self.never_negative for side in sides))

    def _op(self, op: Op) -> None:
        parts = [v in self.never_negative for v in op.operands]
        if self.counts_divide and op.row.divides:
            parts[-1] = True
        rule = op.row.sign_function
        if op.results and (rule is not None or op.row.is_view):
            self._add(op.results[0], all(parts) if rule is None else rule(op, *parts))

    def _add(self, value: Value, holds: bool) -> None:
        if holds:
            self.never_negative.add(value)

    def _loop(self, loop: For, initial: list[Value], arguments: list[Value]) -> None:
        """Assume what holds at the start, and take back what a step does not keep."""
        assumed = {a for a, v in zip(arguments, initial, strict=True) if v in self.never_negative}
        while True:
            before = set(self.never_negative)
            self.never_negative |= assumed
            self.block(loop.body)
            kept = {a for a, y in zip(arguments, loop.body.yields, strict=True) if y in self.never_negative} & assumed
            if kept == assumed:
                break
            self.never_negative, assumed = before, kept
        self.never_negative |= {r for r, a in zip(loop.results, arguments, strict=True) if a in assumed}


class _Masks:
    """Rewrites blocks; `true` holds the bools that are true everywhere."""

    def __init__(self, function: Function, never_negative: set[Value]):
        self.made = definitions(function.body)
        self.never_negative = never_negative
        self.true: set[Value] = set()

    def block(self, block: Block, same: dict[Value, Value]) -> None:
        kept: list[Statement] = []
        for statement in block.statements:
            statement.operands[:] = [same.get(v, v) for v in statement.operands]
            for inner in statement.blocks:
                self.block(inner, same)
            if isinstance(statement, Op) and self._is_left_out(statement, same):
                continue
            kept.append(statement)
        block.statements[:] = kept
        block.yields[:] = [same.get(v, v) for v in block.yields]

    def _is_left_out(self, op: Op, same: dict[Value, Value]) -> bool:
        if self._always_holds(op):
            self.true.add(op.results[0])
        elif op.row.is_conjunction:
            left, right = op.operands
            if left in self.true or right in self.true:
                same[op.results[0]] = right if left in self.true else left
                return True
        elif op.row.effect and op.operands and op.operands[0].type.is_pointer:
            self._unmask(op)
        return False

    def _always_holds(self, op: Op) -> bool:
        if op.row.predicate == ">=":
            left, right = op.operands
            return left in self.never_negative and is_zero(right, self.made)
        is_passed_on = op.row.is_view or op.row.is_conjunction
        return is_passed_on and all(v in self.true for v in op.operands)

    def _unmask(self, op: Op) -> None:
        place = 1 if op.row.effect == "read" else 2
        if op.row.family == "memory" and len(op.operands) > place and op.operands[place] in self.true:
            del op.operands[place:]
