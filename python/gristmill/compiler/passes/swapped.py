"""Products that are computed as the transposes of others, because those lie better for the instructions.

Warpgroups take f32 from shared memory only along the depth; of the left operand they may have words in registers, which
are read any way. So a product whose right operand lies across the depth, and the left one along it, is swapped.
"""

from __future__ import annotations

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, Function, Op, Statement, Tile, Value, definitions
from gristmill.compiler.op import ROWS
from gristmill.compiler.passes import windows

TURN = (1, 0)


def run(function: Function) -> None:
    """Swap the products of f32 that warpgroups then multiply with no copies of their operands."""
    _block(function.body, definitions(function.body), function)


def _block(block: Block, made: dict[Value, Statement], function: Function) -> None:
    statements: list[Statement] = []
    for statement in block.statements:
        for inner in statement.blocks:
            _block(inner, made, function)
        swapped = Swapped(statement, made) if _lies_wrong(statement, made) else None  # type: ignore[arg-type]
        if swapped and windows.is_for_groups(swapped.op, made, function.num_warps):
            statements += [*swapped.before, swapped.op, *swapped.behind]
            function.has_swapped = True
        else:
            statements.append(statement)
    block.statements[:] = statements


def _lies_wrong(statement: Statement, made: dict[Value, Statement]) -> bool:
    """Whether it is a product of f32 whose right operand alone lies across the depth."""
    if not isinstance(statement, Op) or not statement.row.is_product or len(statement.results[0].type.shape) != 2:
        return False
    is_wide = statement.operands[0].type.dtype == dt.f32 and statement.attributes.get("precision") != "ieee"
    return is_wide and windows.lie_across(statement, made) == [False, True]


class Swapped:
    """A product as the transpose of another one: the ops `before` it, itself, and those `behind` it."""

    def __init__(self, product: Op, made: dict[Value, Statement]):
        self.before: list[Op] = []
        a, b, acc = (self._turn(value, product, made) for value in product.operands)
        result = product.results[0]
        swapped = Value(Tile(result.type.dtype, result.type.shape[::-1]), result.name)
        self.op = Op(product.row, [b, a, acc], dict(product.attributes), [swapped], product.position)
        self.behind = [Op(ROWS["permute"], [swapped], {"order": TURN}, [result], product.position)]

    def _turn(self, value: Value, near: Op, made: dict[Value, Statement]) -> Value:
        source = made.get(value)
        if isinstance(source, Op) and source.row.is_view and source.attributes.get("order") == TURN:
            return source.operands[0]
        result = Value(Tile(value.type.dtype, value.type.shape[::-1]), value.name)
        self.before.append(Op(ROWS["permute"], [value], {"order": TURN}, [result], near.position))
        made[result] = self.before[-1]
        return result
