"""Give matrix products to the tensor cores: their operands go to shared memory, from where the instructions take them.

Products that fill no instruction, or that ask for exact f32 arithmetic, stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import (
    Block,
    For,
    Function,
    If,
    Op,
    Pointer,
    Statement,
    Tile,
    Value,
    definitions,
    is_zero,
    made_in,
    products_in,
    reached,
    replace_below,
    used_below,
    walk,
)
from gristmill.compiler.op import ROWS
from gristmill.compiler.passes.simplify import drop_unused
from gristmill.compiler.passes.swapped import Swapped
from gristmill.compiler.passes.windows import (
    is_for_groups,
    is_taken,
    lie_across,
    needs_parts,
    room_of_parts,
    used_shape,
)
from gristmill.compiler.tensor import ACROSS, GROUP_ROWS, GROUP_WARPS, IN_ORDER, UNITS
from gristmill.dtypes import Dtype
from gristmill.language.float8 import is_float8

LOWEST_SM = 80
MOST_TOGETHER = 80  # of products that follow from each other
MOST_OF_ROWS = 192  # where warps have whole rows, and hold what follows from them
MOST_SHARED_BEFORE = 3  # of all room the third part
# Sums of a thread, where operands take registers too, or half as many where each is split and no warps of their own
# copy; more, and another tile is better if there is one. Halves take few registers.
MOST_SUMS, MOST_OF_HALVES = 64, 128


def run(function: Function) -> None:
    """Replace each product that a tensor core can compute."""
    if function.sm >= LOWEST_SM:
        _replace(function.body, definitions(function.body), function)
        _leave_rows(function)
        _share_before(function.body, function)
        _bring_forward(function.body)
        drop_unused(function)
        loops = [s for s in walk(function.body) if isinstance(s, For)]
        function.overflows |= not function.has_groups and any(_is_crowded(loop, function) for loop in loops)


def _is_crowded(loop: For, function: Function) -> bool:
    """Whether the sums of a loop's several products leave no registers for what is computed between them."""
    products = products_in(loop.body)
    sums = sum(op.results[0].type.elements for op in products) // (32 * function.num_warps)
    have_rows = any(op.attributes["has_rows"] for op in products)
    return len(products) > 1 and sums > (MOST_OF_ROWS if have_rows else MOST_TOGETHER)


def _share_before(block: Block, function: Function) -> None:
    """Share what a loop does not change before it, once, unless that takes much of the room."""
    statements: list[Statement] = []
    for statement in block.statements:
        for inner in statement.blocks:
            _share_before(inner, function)
        if isinstance(statement, For):
            own = {*statement.body.arguments, *(v for s in statement.body.statements for v in s.results)}
            fixed = [s for s in statement.body.statements if _is_share(s) and not own & set(s.operands)]
            size = sum(s.results[0].type.bytes for s in fixed)
            fixed = fixed if size * MOST_SHARED_BEFORE <= function.shared_bytes else []
            statement.body.statements[:] = [s for s in statement.body.statements if s not in fixed]
            for share in fixed:
                same = next((s for s in statements if _is_same_share(s, share)), None)
                if same is None:
                    statements.append(share)
                else:
                    replace_below(statement, {share.results[0]: same.results[0]})
        statements.append(statement)
    block.statements[:] = statements


def _bring_forward(block: Block) -> None:
    """Begin products that follow from no others together, where some hold what follows from them."""
    for statement in block.statements:
        for inner in statement.blocks:
            _bring_forward(inner)
    products = products_in(block)
    if not any(op.attributes["is_held"] for op in products):
        return
    made = made_in(block)
    needed = {op: _needed(op, made) for op in products}
    early = [op for op in products if not needed[op] & (set(products) - {op})]
    first = block.statements.index(early[0]) + 1
    moved = [s for s in block.statements[first:] if any(s in needed[op] for op in early[1:])]
    if all(isinstance(s, Op) and not s.row.is_lasting for s in moved):
        rest = [s for s in block.statements if s not in moved]
        block.statements[:] = [*rest[:first], *moved, *rest[first:]]


def _needed(op: Op, made: dict[Value, Statement]) -> set[Statement]:
    """The statements of a block that an op follows from, and itself."""
    met = reached(op.operands, lambda v: used_below(made[v]) if v in made else ())
    return {op, *(made[v] for v in met if v in made)}


def _is_same_share(statement: Statement, share: Statement) -> bool:
    """Whether it puts the same tile there, the same way round."""
    is_alike = _is_share(statement) and statement.operands == share.operands
    return is_alike and statement.attributes == share.attributes


def _is_share(statement: Statement) -> bool:
    return isinstance(statement, Op) and "is_turned" in statement.attributes


Known = dict[
    tuple[Value, Any], tuple[Value, bool]
]  # by tile and dtype: what is shared, and whether it is the transpose


def _replace(block: Block, made: dict[Value, Statement], function: Function) -> None:
    statements: list[Statement] = []
    known: Known = {}
    for statement in block.statements:
        for inner in statement.blocks:
            _replace(inner, made, function)
        if not (isinstance(statement, Op) and statement.row.is_product):
            statements.append(statement)
        elif _fits(statement):
            statements += _product(statement, made, function, known)
        elif len(statement.results[0].type.shape) == 2 and _fits((swapped := Swapped(statement, made)).op):
            statements += [*swapped.before, *_product(swapped.op, made, function, known), *swapped.behind]
        else:
            statements.append(statement)
    block.statements[:] = statements


def multiplied(dtype: Dtype) -> Dtype:
    """The dtype in which operands are multiplied: halves hold every float of eight bits."""
    return dt.f16 if is_float8(dtype) else dtype


def _fits(op: Op) -> bool:
    a, b = (v.type for v in op.operands[:2])
    assert isinstance(a.dtype, Dtype)
    unit = UNITS.get(multiplied(a.dtype))
    if unit is None or len(a.shape) != 2 or op.attributes.get("precision") == "ieee":
        return False
    is_large = a.shape[0] >= unit.m and a.shape[1] >= unit.k and b.shape[1] >= unit.n
    return is_large and op.results[0].type.dtype == unit.summed


def _product(op: Op, made: dict[Value, Statement], function: Function, known: Known) -> list[Op]:
    before: list[Op] = []
    a = op.operands[0].type
    by_groups = function.has_groups and is_for_groups(op, made, function.num_warps)
    sums = op.results[0].type.elements // (32 * function.num_warps)
    is_split = op.attributes.get("precision") == "tf32x3" and not function.has_groups
    most = MOST_OF_HALVES // function.blocks_per_sm if a.dtype in (dt.f16, dt.bf16) else MOST_SUMS
    function.overflows |= not by_groups and sums > (most // 2 if is_split else most)
    how = {"precision": op.attributes.get("precision", ""), "by_groups": by_groups, "pending": 0}
    is_promoted = by_groups and (is_float8(a.dtype) or how["precision"] == "tf32x3")
    depth, columns = used_shape(op.operands[1], made)
    how |= {"columns": columns, "depth": depth, "is_promoted": is_promoted}
    how["is_taken"] = by_groups and is_taken(op, made)
    how["order"] = ACROSS if how["is_taken"] and lie_across(op, made)[0] else IN_ORDER
    dtype = a.dtype if by_groups else multiplied(a.dtype)  # type: ignore[arg-type]
    how["is_held"] = _is_held(op, made, function, by_groups)
    how["has_rows"] = how["is_held"] and not by_groups
    is_kept = by_groups or dtype.itemsize <= 2  # wider tiles would fill the room if all stayed where they are
    sharing = _Sharing(dtype, op, made, before, known if is_kept else {})
    shared = [sharing.of(value) for value in op.operands[how["is_held"] : 2]]
    how["is_first"] = by_groups and not how["is_promoted"] and not how["is_held"] and is_zero(op.operands[2], made)
    if how["is_held"]:
        x = op.operands[0]
        words = Value(Tile(dt.u32, (x.type.shape[0], x.type.shape[1] // 2)), x.name)
        before.insert(0, Op(ROWS["words"], [x], {}, [words], op.position))
        shared.insert(0, words)
    if by_groups and needs_parts(op, made):
        parts = Value(shared[1].type, shared[1].name)
        own = {"is_across": lie_across(op, made)[1], "has_low": is_promoted}
        own |= {"room": room_of_parts(op, made, function.num_warps)}
        before.append(Op(ROWS["parts"], [shared[1]], own, [parts], op.position))
        shared[1] = parts
    product = Op(ROWS["product"], [*shared, op.operands[2]], how, op.results, op.position)
    return [*before, product]


def _is_held(op: Op, made: dict[Value, Statement], function: Function, by_groups: bool) -> bool:
    """Whether threads hold the left operand as instructions take it: halves that follow from another product's sums."""
    a = op.operands[0].type
    rows = GROUP_ROWS // GROUP_WARPS if by_groups else UNITS[dt.f16].m
    has_rows = a.shape[0] >= rows * function.num_warps
    return a.dtype in (dt.f16, dt.bf16) and has_rows and _follows_product(op.operands[0], made)


def _leave_rows(function: Function) -> None:
    """Let warps have whole rows of the products from which follows what others hold."""
    products = {op.results[0]: op for op in walk(function.body) if isinstance(op, Op) and op.row.anchor_layout}
    made = definitions(function.body)
    for op in [op for op in products.values() if op.attributes["has_rows"]]:
        for value in reached(op.operands[:1], lambda v: used_below(made[v]) if v in made and v not in products else ()):
            if value in products and products[value].results[0].type.shape[0] == op.results[0].type.shape[0]:
                products[value].attributes["has_rows"] = True


def _follows_product(value: Value, made: dict[Value, Statement]) -> bool:
    """Whether elements are computed from those of a product at the same places."""
    op = made.get(value)
    if isinstance(op, If):
        return all(_follows_product(v, made) for v in op.yields_of(value))
    if not isinstance(op, Op):
        return False
    same = [v for v in op.operands if v.type.shape == value.type.shape]
    return op.row.is_product or (op.row.is_elementwise and any(_follows_product(v, made) for v in same))


@dataclass
class _Sharing:
    """Puts operands of a product in shared memory, by ops `before` it; what is `known` lies there already."""

    dtype: Dtype | Pointer
    op: Op
    made: dict[Value, Statement]
    before: list[Op]
    known: Known

    def of(self, value: Value) -> Value:
        """The operand in shared memory; one that is only turned is put there as it was."""
        source, is_turned = value, False
        turned = self.made.get(value)
        if isinstance(turned, Op) and turned.row.is_view and turned.attributes.get("order") == (1, 0):
            source, is_turned = turned.operands[0], True
        if (source, self.dtype) in self.known:
            return self._as(*self.known[source, self.dtype], is_turned)
        result = Value(Tile(self.dtype, value.type.shape), value.name)
        self.known[source, self.dtype] = result, is_turned
        if self.dtype != value.type.dtype:
            source = self._emit("cast", source, source.type.with_dtype(self.dtype), to=self.dtype)
        self.before.append(Op(ROWS["share"], [source], {"is_turned": is_turned}, [result], self.op.position))
        return result

    def _as(self, shared: Value, was_turned: bool, is_turned: bool) -> Value:
        if was_turned == is_turned:
            return shared
        return self._emit("turned", shared, shared.type.with_shape(shared.type.shape[::-1]))

    def _emit(self, row: str, value: Value, kind: Tile, **attributes: Any) -> Value:
        result = Value(kind, value.name)
        self.before.append(Op(ROWS[row], [value], attributes, [result], self.op.position))
        return result
