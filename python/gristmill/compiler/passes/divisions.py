"""Divide by what a loop does not change with one multiplication.

A program that goes from tile to tile divides each tile's number by counts of tiles and of heads before it can begin:
several divisions that wait for each other, each of dozens of instructions. What they divide by is known before the
loop. There `scale = (2^32 - 1) // divisor` is made once; in the loop the upper half of `x scale` is the quotient, or
one less, which the remainder tells. This holds for x below 2^31, so for integers of 32 bits that are never negative.
"""

from __future__ import annotations

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, For, Function, Op, Statement, Tile, Value, While, definitions, walk
from gristmill.compiler.op import Builder, building
from gristmill.compiler.passes.signs import never_negative
from gristmill.language import elementwise as ew
from gristmill.language.types import constant
from gristmill.language.words import umulhi, with_dtype

MOST = (1 << 32) - 1


def run(function: Function) -> None:
    """Replace such divisions in each outermost loop."""
    _block(function.body, definitions(function.body), never_negative(function))


def _block(block: Block, made: dict[Value, Statement], known: set[Value]) -> None:
    statements: list[Statement] = []
    for statement in block.statements:
        if isinstance(statement, (For, While)):
            divisions = _Divisions(statement, made, known)
            for inner in statement.blocks:
                divisions.block(inner)
            statements += divisions.before.statements
        else:
            for inner in statement.blocks:
                _block(inner, made, known)
        statements.append(statement)
    block.statements[:] = statements


class _Divisions:
    """The divisions of one loop; `before` is what they need before it."""

    def __init__(self, loop: For | While, made: dict[Value, Statement], known: set[Value]):
        self.made, self.known = made, known
        below = list(walk(Block(statements=[loop])))
        self.changing = {v for s in below for v in (*s.results, *(a for b in s.blocks for a in b.arguments))}
        self.before = Block()
        self.fixed: dict[Value, Value] = {}  # what is computed in the loop from nothing that it changes
        self.scales: dict[Value, tuple[Value, Value]] = {}

    def block(self, block: Block) -> None:
        statements: list[Statement] = []
        for statement in block.statements:
            for inner in statement.blocks:
                self.block(inner)
            if isinstance(statement, Op) and self._is_fit(statement):
                statements += self._divided(statement)
            else:
                statements.append(statement)
        block.statements[:] = statements

    def _is_fit(self, op: Op) -> bool:
        if not op.row.divides or op.results[0].type != Tile(dt.i32):
            return False
        number, divisor = op.operands
        is_known = number in self.known and divisor in self.known
        return is_known and not _is_constant(self.made.get(divisor)) and self._hoisted(divisor) is not None

    def _hoisted(self, value: Value) -> Value | None:
        """The value before the loop; None if the loop changes it."""
        if value not in self.changing or value in self.fixed:
            return self.fixed.get(value, value)
        op = self.made.get(value)
        if not isinstance(op, Op) or op.row.effect or not op.row.is_own or op.results[0].type.shape:
            return None
        operands = [self._hoisted(v) for v in op.operands]
        if None in operands:
            return None
        result = Value(value.type, value.name)
        self.before.statements.append(Op(op.row, operands, dict(op.attributes), [result], op.position))  # type: ignore
        self.fixed[value] = result
        return result

    def _divided(self, op: Op) -> list[Statement]:
        number, divisor = op.operands
        hoisted = self._hoisted(divisor)
        assert hoisted is not None
        if hoisted not in self.scales:
            with building(Builder(self.before)) as builder:
                builder.position = op.position
                least = ew.maximum(hoisted, constant(1, dt.i32))
                scale = ew.floordiv(constant(MOST, dt.u32), with_dtype(least, dt.u32))
                self.scales[hoisted] = least, with_dtype(scale, dt.i32)
        least, scale = self.scales[hoisted]
        divided = Block()
        with building(Builder(divided)) as builder:
            builder.position = op.position
            quotient = umulhi(number, scale)
            rest = ew.sub(number, ew.mul(quotient, least))
            is_less = ew.ge(rest, least)
            if op.row.expression is not None:
                found = ew.where(is_less, ew.add(quotient, constant(1, dt.i32)), quotient)
            else:
                found = ew.where(is_less, ew.sub(rest, least), rest)
        last = divided.statements[-1]
        assert found in last.results
        last.results[last.results.index(found)] = op.results[0]
        return divided.statements


def _is_constant(statement: Statement | None) -> bool:
    return isinstance(statement, Op) and "value" in statement.attributes and not statement.operands
