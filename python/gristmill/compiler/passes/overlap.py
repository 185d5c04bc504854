"""Let warpgroups multiply while they compute: products that follow from each other run side by side.

In `acc = dot(f(dot(a, b)), c, acc)` each step's second product waits for what is computed from its first one. Shifted
by a step it does not: the second product of the step before begins with this step's first one, and both run while this
step's numbers are computed. The first step's numbers come before the loop, the last step's product behind it.

Warpgroups take turns: each begins its products of a step behind the one before it, so that one multiplies while another
computes, and not all wait for the tensor cores together.

A product is waited for where something reads its sums. The words that it holds stay as they are until then, so what
the next one holds is made behind the wait; slots that it read are free there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.compiler.ir import (
    Block,
    For,
    Function,
    If,
    Mapping,
    Op,
    Statement,
    Value,
    clone_block,
    made_in,
    products_in,
    replace_below,
    used_below,
    uses,
)
from gristmill.compiler.op import ROWS, Builder, building
from gristmill.compiler.tensor import GROUP_WARPS
from gristmill.language import elementwise as ew


def run(function: Function) -> None:
    """Shift and open the chained products of every loop whose operands other warps bring."""
    if function.producer is not None:
        _block(function.body, function)


def _block(block: Block, function: Function) -> None:
    statements: list[Statement] = []
    left = list(block.statements)
    while left:
        statement = left.pop(0)
        for inner in statement.blocks:
            _block(inner, function)
        chain = _chain_of(statement) if isinstance(statement, For) else None
        if chain is None:
            if isinstance(statement, For) and _has_several(statement):
                _open(statement.body)
            statements.append(statement)
            continue
        if function.present_warps > GROUP_WARPS:
            function.takes_turns = True
            _take_turns(chain)
        freeing = _freeing(left) if chain.is_inside else []
        statements += _shifted(chain, freeing)
        left = [s for s in left if s not in freeing]
    block.statements[:] = statements


def _has_several(loop: For) -> bool:
    """Whether it multiplies what follows from other products, all of them open to others beside them."""
    products = products_in(loop.body)
    is_fit = all(op.attributes["by_groups"] and not op.attributes["is_promoted"] for op in products)
    return len(products) > 1 and is_fit and any(op.attributes["is_held"] for op in products)


@dataclass
class _Chain:
    """A loop, the op that multiplies what follows from other products, what takes its tiles, and its sums' place."""

    loop: For
    first: Op
    last: Op
    taking: list[Op]
    place: int

    @property
    def words(self) -> Value:
        return self.last.operands[0]

    @property
    def is_inside(self) -> bool:
        """Whether the shifted product reads slots that are taken in the loop alone."""
        return bool(self.taking)

    @property
    def own(self) -> list[Statement]:
        """The statements that are shifted."""
        return [s for s in self.loop.body.statements if s in self.taking or s is self.last]


def _chain_of(loop: For) -> _Chain | None:
    """The loop's two products, if the second one's sums go round and are used for nothing but the next one's."""
    body = loop.body
    products = products_in(body)
    if len(products) != 2 or not all(
        op.attributes["by_groups"] and not op.attributes["is_promoted"] for op in products
    ):
        return None
    first, last = products
    if first.attributes["is_held"] or not last.attributes["is_held"] or last.results[0] not in body.yields:
        return None
    place = body.yields.index(last.results[0])
    following = body.statements[body.statements.index(last) + 1 :]
    if any(last.results[0] in used_below(s) for s in following) or body.yields.count(last.results[0]) != 1:
        return None
    sums = body.arguments[1 + place]
    if sums in _reached(body, first.operands) or _reads_own(body, last):
        return None
    return _Chain(loop, first, last, _around(body, last), place)


def _reads_own(body: Block, last: Op) -> bool:
    """Whether anything but its words and sums would have to be carried to the shifted product."""
    made = {v for s in body.statements for v in s.results}
    taken = {v for s in _around(body, last) for v in s.results}
    return any(v in made and v not in taken for v in last.operands[1:-1])


def _around(body: Block, last: Op) -> list[Op]:
    """What waits for the slot that the product reads, and frees it."""
    needed, found = set(last.operands[1:-1]), list[Op]()
    pipes: set[Value] = set()
    for op in reversed(body.statements[: body.statements.index(last)]):
        if isinstance(op, Op) and needed & set(op.results) and (op.row.is_shared_view or op.row.waits_for_slot):
            found.insert(0, op)
            needed |= set(op.operands)
            pipes |= set(op.operands) if op.row.waits_for_slot else set()
    behind = [s for s in body.statements[body.statements.index(last) + 1 :] if isinstance(s, Op)]
    freeing = [s for s in behind if _frees(s) and s.operands[0] in pipes]
    guards = {v for s in freeing for v in s.operands[1:]}
    return found + [s for s in behind if s in freeing or guards & set(s.results)]


def _frees(statement: Statement) -> bool:
    return isinstance(statement, Op) and statement.row.frees_slot


def _freeing(following: list[Statement]) -> list[Statement]:
    """What frees slots first thing behind a loop, and the constants that guard it; others stay where they are."""
    count = next((i for i, s in enumerate(following) if not _frees(s) and s.operands), len(following))
    freeing = [s for s in following[:count] if _frees(s)]
    guards = {v for s in freeing for v in s.operands}
    return [s for s in following[:count] if s in freeing or guards & set(s.results)]


def _reached(body: Block, values: Sequence[Value]) -> set[Value]:
    """The values of a step that others follow from."""
    made = made_in(body)
    found, pending = set[Value](), list(values)
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending += used_below(made[value]) if value in made else ()
    return found


def _shifted(chain: _Chain, freeing: list[Statement]) -> list[Statement]:
    """The first step's numbers, the loop, and the last step's product; nothing where the loop has no step.

    `freeing`: what frees slots that the loop's other product read, behind it.
    """
    loop = chain.loop
    before, then = Block(), Block()
    with building(Builder(before)) as builder:
        builder.position = loop.position
        goes = ew.lt(loop.operands[0], loop.operands[1])
    numbers = Block(statements=[s for s in loop.body.statements if s not in chain.own])
    mapping: Mapping = dict(zip(loop.body.arguments, [loop.operands[0], *loop.operands[3:]], strict=True))
    then.statements += clone_block(numbers, mapping).statements
    with building(Builder(then)) as builder:
        builder.position = loop.position
        second = ew.add(loop.operands[0], loop.operands[2])
    given = _carried(chain)
    started = [mapping.get(v, v) for v in given]
    body = _body(chain, given)
    arguments = body.arguments[1:]
    results = [Value(v.type, v.name) for v in arguments]
    then.statements.append(
        For([second, *loop.operands[1:3], *started], body, results, dict(loop.attributes), loop.position)
    )
    then.statements += clone_block(Block(statements=freeing), {}).statements
    last = clone_block(Block(statements=chain.own), dict(zip(given, results, strict=True)))
    then.statements += last.statements
    final = products_in(last)[0].results[0]
    then.yields = results[: chain.place] + [final] + results[chain.place : len(loop.results) - 1]
    otherwise = Block(statements=freeing, yields=list(loop.operands[3:]))
    return [*before.statements, If([goes], then, otherwise, loop.results, {}, loop.position)]


def _take_turns(chain: _Chain) -> None:
    """Let one warpgroup multiply while the others compute: each begins a step's products when it is its turn."""
    waiting, passing = (Op(ROWS[name], [], {}, [], chain.first.position) for name in ("wait_turn", "pass_turn"))
    statements = chain.loop.body.statements
    place = statements.index(chain.first)
    statements[place : place + 1] = [waiting, chain.first, passing]


def _carried(chain: _Chain) -> list[Value]:
    """What goes round the shifted loop: what went before but for the sums, and what the product is going to take."""
    yields = [v for i, v in enumerate(chain.loop.body.yields) if i != chain.place]
    return [*yields, chain.words, chain.last.operands[-1]]


def _body(chain: _Chain, given: list[Value]) -> Block:
    """One step: its first product, the last product of the step before, and its numbers."""
    body, last = chain.loop.body, chain.last
    kept = [v for i, v in enumerate(body.arguments) if i != 1 + chain.place]
    words, sums = (Value(v.type, v.name) for v in given[-2:])
    earlier = clone_block(Block(statements=chain.own), {chain.words: words, last.operands[-1]: sums})
    product = products_in(earlier)[0]
    passing = [s for s in body.statements if isinstance(s, Op) and s.row.passes_turn]
    rest = [s for s in body.statements if s not in chain.own and s not in passing]
    place = rest.index(chain.first) + 1
    while _frees(rest[place]) or not rest[place].operands:
        place += 1
    for statement in rest:
        replace_below(statement, {body.arguments[1 + chain.place]: product.results[0]})
    same = {body.arguments[1 + chain.place]: product.results[0]}
    yields = [same.get(v, v) for v in given]
    block = Block([*kept, words, sums], [*rest[:place], *earlier.statements, *passing, *rest[place:]], yields)
    _open(block)
    return block


# ---- waiting -------------------------------------------------------------------------------------------------------


def _open(block: Block) -> None:
    """Let products go on until something reads their sums, makes what the next ones hold, or the block ends."""
    opened = _Opened(block)
    for statement in opened.ordered():
        opened.add(statement)
    opened.finish()


def _making_words(block: Block) -> set[Statement]:
    """What only makes words that the next step's product holds: they and what rounds them for nothing else."""
    made, counts = made_in(block), uses(block)
    words = [s for s in block.statements if isinstance(s, Op) and s.row.is_for_held and s.results[0] in block.yields]
    casts = [made[s.operands[0]] for s in words if s.operands[0] in made]
    return {*words, *(s for s in casts if isinstance(s, Op) and s.row.is_cast and counts[s.results[0]] == 1)}


def _branches(statement: Statement) -> bool:
    return isinstance(statement, Op) and statement.row.branches


class _Opened:
    """The block's statements again, with the products that are open at each place, oldest first."""

    def __init__(self, block: Block):
        self.block = block
        self.statements: list[Statement] = []
        self.open: list[tuple[Op, list[Op]]] = []  # and what frees the slots that it reads
        self.same: dict[Value, Value] = {}
        self.making = _making_words(block)

    def ordered(self) -> list[Statement]:
        """The statements: what follows from the last product's sums, or makes what the next one holds, comes last.

        What branches stays in its place.
        """
        statements = list(self.block.statements)
        if not self.making:
            return statements
        following = {products_in(self.block)[-1].results[0]}
        late = set(self.making)
        for statement in statements:
            if used_below(statement) & following:
                following |= set(statement.results)
                late |= set() if _branches(statement) else {statement}
        return [*(s for s in statements if s not in late), *(s for s in statements if s in late)]

    def add(self, statement: Statement) -> None:
        if _frees(statement) and self.open:
            assert isinstance(statement, Op)
            self.open[-1][1].append(statement)
            return
        read = used_below(statement)
        is_held = statement in self.making
        for i in range(len(self.open) - 1, -1, -1):
            product = self.open[i][0]
            if product.results[0] in read or (is_held and product.attributes["is_held"]):
                self._settle(i)
                break
        replace_below(statement, self.same)
        self.statements.append(statement)
        if isinstance(statement, Op) and statement.row.anchor_layout:
            statement.attributes["pending"] = None
            self.open.append((statement, []))

    def _settle(self, last: int) -> None:
        """Wait for the open products up to the one at `last`."""
        done, self.open = self.open[: last + 1], self.open[last + 1 :]
        waiting = Block()
        with building(Builder(waiting)) as builder:
            for product, freeing in done:
                builder.position = product.position
                words = [product.operands[0]] if product.attributes["is_held"] else []
                result = product.results[0]
                self.same[result] = ROWS["settle"](
                    result, product.attributes["columns"], len(self.open), *(self.same.get(v, v) for v in words)
                )
                waiting.statements += freeing
        place = len(self.statements) if any(freeing for _, freeing in done) else self._place_before_reads()
        self.statements[place:place] = waiting.statements

    def _place_before_reads(self) -> int:
        """Where small tiles begin to be read from shared memory for what follows: they take no registers before."""
        place = first = len(self.statements)
        while place and isinstance(op := self.statements[place - 1], Op) and not op.row.effect:
            if not (op.row.is_view or op.row.reads_shared or not op.operands):
                break
            place -= 1
            first = place if op.row.reads_shared else first
        return first

    def finish(self) -> None:
        if self.open:
            self._settle(len(self.open) - 1)
        self.block.statements[:] = self.statements
        self.block.yields[:] = [self.same.get(v, v) for v in self.block.yields]
