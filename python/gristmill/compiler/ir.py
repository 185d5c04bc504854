"""The tile IR: SSA values that are tiles, ops from the op table, and three structured statements (For, While, If)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gristmill.dtypes import Dtype
from gristmill.errors import Position
from gristmill.tensor_map import TensorMap

MAX_TILE_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Pointer:
    """The dtype of addresses in global memory; `element` is what they point to."""

    element: Dtype

    @property
    def name(self) -> str:
        return f"ptr<{self.element.name}>"

    bits, itemsize = 64, 8
    is_float = is_int = is_signed = False


@dataclass(frozen=True)
class Tile:
    """The type of a value: dtype and shape; `()` is a scalar, the same for all threads of the program."""

    dtype: Dtype | Pointer
    shape: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """What the elements take in memory."""
        return self.elements * self.dtype.bits // 8

    @property
    def is_scalar(self) -> bool:
        return self.shape == ()

    @property
    def is_pointer(self) -> bool:
        return isinstance(self.dtype, Pointer)

    def with_shape(self, shape: tuple[int, ...]) -> Tile:
        return Tile(self.dtype, shape)

    def with_dtype(self, dtype: Dtype | Pointer) -> Tile:
        return Tile(dtype, self.shape)

    def __str__(self) -> str:
        return self.dtype.name + (f"[{', '.join(map(str, self.shape))}]" if self.shape else "")


class Value:
    """One SSA value; two values are the same only if they are the same object. `name` is for people."""

    __slots__ = ("type", "name")

    def __init__(self, type: Tile, name: str = ""):
        self.type = type
        self.name = name

    def __repr__(self) -> str:
        return f"%{self.name or '?'}: {self.type}"


@dataclass(eq=False)
class Op:
    """One row of the op table applied to operands; `attributes` are its compile-time arguments."""

    row: Any  # op.OpRow; ops know nothing of rows' module
    operands: list[Value]
    attributes: dict[str, Any]
    results: list[Value]
    position: Position | None = None

    blocks: tuple[Block, ...] = ()
    places: tuple[Place, ...] = ()  # in shared memory

    @property
    def name(self) -> str:
        return str(self.row.name)


@dataclass(frozen=True)
class Place:
    """Bytes of a block's shared memory that an op takes, and whether a barrier has to come before it writes them."""

    start: int
    size: int
    has_barrier: bool = False

    @property
    def end(self) -> int:
        return self.start + self.size

    def meets(self, other: Place) -> bool:
        """Whether they have bytes in common."""
        return self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"{'barrier+' if self.has_barrier else ''}{self.start}:{self.end}"


@dataclass(eq=False)
class Block:
    """Statements in order; `arguments` are defined on entry and `yields` handed out at the end."""

    arguments: list[Value] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)


@dataclass(eq=False)
class For:
    """A counted loop; operands are (lower, upper, step, *initial), body arguments (induction, *carried)."""

    operands: list[Value]
    body: Block
    results: list[Value]
    attributes: dict[str, Any] = field(default_factory=dict)
    position: Position | None = None
    name = "for"

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.body,)


@dataclass(eq=False)
class While:
    """`condition` yields (goes_on, *carried) from its arguments; `body` maps them to the next ones."""

    operands: list[Value]
    condition: Block
    body: Block
    results: list[Value]
    attributes: dict[str, Any] = field(default_factory=dict)
    position: Position | None = None
    name = "while"

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.condition, self.body)


@dataclass(eq=False)
class If:
    """Runs one of two blocks, which yield the results; operands are (condition,), a scalar bool."""

    operands: list[Value]
    then: Block
    otherwise: Block
    results: list[Value]
    attributes: dict[str, Any] = field(default_factory=dict)
    position: Position | None = None
    name = "if"

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.then, self.otherwise)

    def yields_of(self, result: Value) -> list[Value]:
        """What each block yields for a result."""
        return [block.yields[self.results.index(result)] for block in self.blocks]


Statement = Op | For | While | If


@dataclass(eq=False)
class Function:
    """A kernel for one specialisation; `facts` holds what the launcher promises of parameters (divisibility)."""

    name: str
    body: Block
    num_warps: int = 4
    num_blocks: int = 1  # of a cluster, over which tiles are spread
    num_ctas: int = 1  # of a cluster, each of which has its part of the rows of products
    num_stages: int = 1  # of pipelined loops
    grid_axes: int = 3  # along which there may be programs
    blocks_per_sm: int = 1  # that share a multiprocessor
    absent_warps: int = 0  # behind the last row of padded tiles: they are laid out, and not there
    common: Block | None = None  # what producers and consumers share, where warps have roles
    producer: Block | None = None  # the program of warps that only copy; they come behind the others
    producer_warps: int = 0
    takes_turns: bool = False  # whether its warpgroups begin their products in turn
    tickets: Value | None = None  # by which programs share out the tiles of their outermost loop
    registers: tuple[int, int] | None = None  # of a producer's thread and a consumer's, where they divide them
    counts_blocks: bool = False  # whether ptxas must be told that one block is enough, to know a thread's registers
    is_padded: bool = False  # whether it reads blocks through pointers that are smaller than their tiles
    overflows: bool = False  # whether its largest tile does not fit the threads that a block can have
    has_clusters: bool = False  # whether the target knows them
    has_groups: bool = False  # whether its tensor cores multiply for warpgroups (wgmma)
    has_swapped: bool = False  # whether it computes products as the transposes of others
    shared_bytes: int = 0  # of shared memory that a block may have on the target
    used_bytes: int = 0  # and that it takes
    sm: int = 0  # the CUDA target's architecture
    ptx_version: int = 0  # and its version of PTX, as in 78
    is_checked: bool = False  # whether the build asks for checks at run time
    facts: dict[Value, int] = field(default_factory=dict)
    never_negative: set[Value] = field(default_factory=set)  # parameters that are sizes
    maps: list[TensorMap] = field(default_factory=list)  # that the launcher makes, behind the parameters
    layouts: dict[Value, Any] = field(default_factory=dict)
    constancy: dict[Value, int] = field(default_factory=dict)  # neighbours with one value, where more than 1

    @property
    def parameters(self) -> list[Value]:
        return self.body.arguments

    @property
    def programs(self) -> list[Block]:
        """All that its warps run."""
        return [block for block in (self.common, self.producer, self.body) if block is not None]

    @cached_property
    def is_by_groups(self) -> bool:
        """Whether all products are warpgroups'."""
        products = [s for s in walk(self.body) if isinstance(s, Op) and s.name == "product"]
        return all(op.attributes["by_groups"] for op in products)

    @property
    def block_threads(self) -> int:
        """Threads of a block, producers included."""
        return 32 * (self.present_warps + self.producer_warps)

    @property
    def present_warps(self) -> int:
        """Those that run the program, without producers."""
        return self.num_warps - self.absent_warps

    @property
    def threads(self) -> int:
        """Those that share a tile: of a block, or of all blocks of its cluster."""
        return 32 * self.num_warps * self.num_blocks


def walk(block: Block) -> Iterator[Statement]:
    """Yield every statement below `block`, outer before inner, in order."""
    for statement in block.statements:
        yield statement
        for inner in statement.blocks:
            yield from walk(inner)


def uses(block: Block) -> dict[Value, int]:
    """Count how often each value is used below `block`, yields included."""
    counts: dict[Value, int] = {}
    for value in _used(block):
        counts[value] = counts.get(value, 0) + 1
    return counts


def _used(block: Block) -> Iterator[Value]:
    for statement in block.statements:
        yield from statement.operands
        for inner in statement.blocks:
            yield from _used(inner)
    yield from block.yields


def used_below(statement: Statement) -> set[Value]:
    """The values that a statement uses, and those that what stands in it does."""
    return {*statement.operands, *(v for block in statement.blocks for v in _used(block))}


def replace_below(statement: Statement, same: dict[Value, Value]) -> None:
    """Let a statement, and all in it, use other values."""
    statement.operands[:] = [same.get(v, v) for v in statement.operands]
    for block in statement.blocks:
        for inner in block.statements:
            replace_below(inner, same)
        block.yields[:] = [same.get(v, v) for v in block.yields]


def definitions(block: Block) -> dict[Value, Statement]:
    """Map each value defined by a statement below `block` to that statement."""
    return {value: statement for statement in walk(block) for value in statement.results}


def made_in(block: Block) -> dict[Value, Statement]:
    """As `definitions`, of the block's own statements alone."""
    return {value: statement for statement in block.statements for value in statement.results}


def products_in(block: Block) -> list[Op]:
    """The block's own products by tensor cores, in order."""
    return [s for s in block.statements if isinstance(s, Op) and s.row.anchor_layout]


def is_zero(value: Value, made: dict[Value, Statement]) -> bool:
    """Whether the value is 0, or a tile of zeros, by its definition."""
    op = made.get(value)
    while isinstance(op, Op) and op.row.is_view:
        op = made.get(op.operands[0])
    return isinstance(op, Op) and not op.operands and op.attributes.get("value", 1) == 0


def sources(block: Block) -> dict[Value, list[Value]]:
    """Map each value below `block` to the values that it may be or is computed from; a loop's go round with it."""
    return {value: values for statement in walk(block) for value, *values in _links(statement)}


def _links(statement: Statement) -> Iterator[tuple[Value, ...]]:
    match statement:
        case For():
            index, *carried = statement.body.arguments
            yield (index, *statement.operands[:3])
            yield from zip(carried, statement.operands[3:], statement.body.yields, strict=True)
            yield from zip(statement.results, statement.operands[3:], statement.body.yields, strict=True)
        case While():
            yield from zip(statement.condition.arguments, statement.operands, statement.body.yields, strict=True)
            yield from zip(statement.body.arguments, statement.condition.yields[1:], strict=True)
            yield from zip(statement.results, statement.condition.yields[1:], strict=True)
        case If():
            yield from zip(statement.results, statement.then.yields, statement.otherwise.yields, strict=True)
        case _:
            yield from ((result, *statement.operands) for result in statement.results)


def reached(values: Iterable[Value], before: Callable[[Value], Iterable[Value]]) -> set[Value]:
    """`values`, what `before` names for each of them, for each of those, and so on."""
    seen: set[Value] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value not in seen:
            seen.add(value)
            pending += before(value)
    return seen


def addressed(address: Value, made: dict[Value, list[Value]], function: Function) -> set[Value]:
    """The kernel's arguments that an address may lie in, by the `sources` of the values; none for shared memory.

    Offsets say where in an argument it lies, not in which, unless the address is made of numbers alone.
    """
    if not address.type.is_pointer:
        return set()

    def before(value: Value) -> list[Value]:
        given = made.get(value, [])
        return [v for v in given if v.type.is_pointer] or given

    found = reached([address], before)
    return {value for value in function.parameters if value.type.is_pointer and value in found}


Mapping = dict[Value, Value]


def clone_block(
    block: Block, mapping: Mapping, change: Callable[[Op, list[Value]], Value | None] | None = None
) -> Block:
    """Copy `block` with fresh values, reading outer values through `mapping`, which gains the new ones.

    `change(op, new_operands)` may return a value that stands for the op's only result, which is then not copied.
    """
    new = Block([_fresh(v, mapping) for v in block.arguments])
    for statement in block.statements:
        copy = _clone_statement(statement, mapping, change)
        if copy is not None:
            new.statements.append(copy)
    new.yields = [mapping.get(v, v) for v in block.yields]
    return new


def _fresh(value: Value, mapping: Mapping) -> Value:
    mapping[value] = Value(value.type, value.name)
    return mapping[value]


def _clone_statement(statement: Statement, mapping: Mapping, change: Any) -> Statement | None:
    operands = [mapping.get(v, v) for v in statement.operands]
    if isinstance(statement, Op):
        replacement = change(statement, operands) if change else None
        if replacement is not None:
            mapping[statement.results[0]] = replacement
            return None
        results = [_fresh(v, mapping) for v in statement.results]
        inner = tuple(clone_block(block, mapping, change) for block in statement.blocks)
        return Op(statement.row, operands, dict(statement.attributes), results, statement.position, inner)
    blocks = [clone_block(block, mapping, change) for block in statement.blocks]
    results = [_fresh(v, mapping) for v in statement.results]
    make: Callable[..., Statement] = type(statement)
    return make(operands, *blocks, results, dict(statement.attributes), statement.position)


def verify(function: Function) -> None:
    """Check that every value is defined before it is used, and that blocks yield what their statement results in."""
    common = {v for s in (function.common.statements if function.common else []) for v in s.results}
    for program in function.programs:
        _verify_block(program, set() if program is function.common else common)


def _verify_block(block: Block, outer: set[Value]) -> None:
    known = outer | set(block.arguments)
    for statement in block.statements:
        for value in statement.operands:
            assert value in known, f"{statement.name}: {value} is used before it is defined"
        for inner in statement.blocks:
            _verify_block(inner, known)
        _verify_yields(statement)
        known |= set(statement.results)
    for value in block.yields:
        assert value in known, f"yield: {value} is used before it is defined"


def _verify_yields(statement: Statement) -> None:
    results = [v.type for v in statement.results]
    if isinstance(statement, For):
        initial = [v.type for v in statement.operands[3:]]
        carried = [v.type for v in statement.body.arguments[1:]]
        yielded = [v.type for v in statement.body.yields]
        assert initial == carried == yielded == results, f"for: carries {initial}, {carried}, {yielded}, {results}"
    elif isinstance(statement, If):
        assert all([v.type for v in b.yields] == results for b in statement.blocks), "if: branches differ in type"
    elif isinstance(statement, While):
        yielded = [v.type for v in statement.body.yields]
        assert yielded == results, f"while: carries {yielded}, results in {results}"


class _Printer:
    def __init__(self, layouts: dict[Value, Any]):
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.layouts = layouts
        self.lines: list[str] = []

    def name(self, value: Value) -> str:
        if value not in self.names:
            base, count = value.name or "t", 0
            name = base if value.name else "t0"
            while name in self.taken:
                count += 1
                name = f"{base}{'_' if value.name else ''}{count}"
            self.taken.add(name)
            self.names[value] = "%" + name
        return self.names[value]

    def typed(self, values: list[Value]) -> str:
        return ", ".join(f"{self.name(v)}: {v.type}{self.layout(v)}" for v in values)

    def layout(self, value: Value) -> str:
        return f" {{{self.layouts[value]}}}" if value in self.layouts else ""

    def block(self, block: Block, indent: str) -> None:
        for statement in block.statements:
            self.statement(statement, indent)
        if block.yields:
            self.lines.append(f"{indent}yield {', '.join(map(self.name, block.yields))}")

    def statement(self, statement: Statement, indent: str) -> None:
        operands = [self.name(v) for v in statement.operands]
        operands += [f"{k}={_attribute(v)}" for k, v in statement.attributes.items() if v not in (None, "")]
        if isinstance(statement, Op) and statement.places:
            operands.append(f"places=[{' '.join(map(str, statement.places))}]")
        text = f"{statement.name} {', '.join(operands)}".rstrip()
        results = self.typed(statement.results)
        self.lines.append(indent + (f"{results} = {text}" if results else text))
        for keyword, block in zip(_KEYWORDS.get(statement.name, ("by",)), statement.blocks, strict=False):
            self.lines.append(f"{indent}{keyword}({self.typed(block.arguments)}):")
            self.block(block, indent + "  ")


_KEYWORDS = {"for": ("do",), "while": ("while", "do"), "if": ("then", "else")}


def _attribute(value: Any) -> str:
    return str(value.name) if hasattr(value, "name") else repr(value)


def print_function(function: Function) -> str:
    """Return the function as text; layouts are shown where they are assigned."""
    printer = _Printer(function.layouts)
    head = f"function {function.name}({printer.typed(function.parameters)}) num_warps={function.num_warps}:"
    printer.lines.append(head)
    for block, title in (
        (function.common, "all warps"),
        (function.producer, "producers"),
        (function.body, "consumers"),
    ):
        if function.producer is not None:
            printer.lines.append(f" {title}:")
        if block is not None:
            printer.block(block, "  ")
    return "\n".join(printer.lines) + "\n"
