"""The op table: one row an operation, with its signature, typing rule, meaning in numpy, facts and lowerings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gristmill import symbolic
from gristmill.compiler.ir import Block, Op, Tile, Value
from gristmill.errors import KernelError, Position

ROWS: dict[str, OpRow] = {}


@dataclass
class Lowering:
    """One way to lower an op: on machines of a kind `on` (None: any) where `when(machine, op)` holds (None: always)."""

    function: Callable[..., Any]
    on: str | None = None
    when: Callable[..., bool] | None = None


@dataclass(eq=False)
class OpRow:
    """One operation. Calling it inside a `Builder` checks the arguments and emits the op.

    `kind` "elementwise": lowerings see one register of each operand; "tile": they see (machine, op, *tiles).
    `effect` is "" for pure ops, "read", "write" or "update" (both, in one step) for those that touch memory through
    their first operand, "act" for others that happen once and in order.
    `is_cheap`: recomputing it costs less than keeping or moving its result. `is_address`: its result is an address
    that its last operand, an offset, leads to. `is_view`: it renames, repeats or regroups elements. `is_conjunction`:
    its bool holds where all of its operands hold. `predicate`: the comparison that it is.
    `is_promise`: its facts hold of its operand from here to the end of the block. `is_check`: left out where the build
    does not ask for checks. `goes_by_register`: machines on threads can emit it one access at a time.
    `lies_in_shared`: its result stays in shared memory; `is_kept`: it takes the place for it, from a multiple of
    `place_alignment` on; `fills_shared`: it writes what another op keeps there. `is_product`: it may go to tensor
    cores. `is_window`: it reads a block that the hardware may copy. `is_cast`: it is the same number in another dtype.
    `expression`: what it is among the words of a launcher's expressions. `anchor_layout(op, number of warps)`: the
    layout in which its result comes, and its last operand is needed. `goes_along_axis`: threads exchange what lies
    along its attribute `axis`, and nothing else; `is_sum`: it adds that. `divides`: by its last operand. `is_choice`:
    its first operand chooses between the others. `of_grid`: "program" for which program it is, "programs" for how many.
    `is_relayout`: it is the same tile in another layout. `is_shared_view`: it names a tile that lies in shared memory;
    `reads_shared`: it brings one to registers. `is_for_held`: it makes what a product takes from registers.
    `is_common`: all threads have the whole of its results. `branches`: warps may go different ways in it.
    `waits_for_slot`, `frees_slot`: of a pipe, for those who read it. `passes_turn`: to begin products.
    `operand_layout(op, layout of the result)` and `result_layout(op, layout of the operand)` relate layouts;
    `forward_layout` is the inverse of the former, for views that have one.
    """

    name: str
    family: str
    infer: Callable[..., Any]
    kind: str = "elementwise"
    effect: str = ""
    is_cheap: bool = False
    is_address: bool = False
    is_view: bool = False
    is_conjunction: bool = False
    is_promise: bool = False
    is_check: bool = False
    predicate: str = ""
    goes_by_register: bool = False
    lies_in_shared: bool = False
    is_kept: bool = False
    fills_shared: bool = False
    place_alignment: int = 16
    is_product: bool = False
    is_window: bool = False
    is_cast: bool = False
    goes_along_axis: bool = False
    is_sum: bool = False
    divides: bool = False
    is_choice: bool = False
    of_grid: str = ""
    is_relayout: bool = False
    is_shared_view: bool = False
    reads_shared: bool = False
    is_for_held: bool = False
    is_common: bool = False
    branches: bool = False
    waits_for_slot: bool = False
    frees_slot: bool = False
    passes_turn: bool = False
    expression: symbolic.Op | None = None
    reference_function: Callable[..., Any] | None = None
    facts_function: Callable[..., Any] | None = None
    span_function: Callable[..., Any] | None = None
    ends_function: Callable[..., Any] | None = None
    sign_function: Callable[..., Any] | None = None
    operand_layout: Callable[..., Any] | None = None
    result_layout: Callable[..., Any] | None = None
    forward_layout: Callable[..., Any] | None = None
    anchor_layout: Callable[..., Any] | None = None
    lowerings: list[Lowering] = field(default_factory=list)

    @property
    def touches_memory(self) -> bool:
        """Whether its first operand is an address that it reads or writes."""
        return self.effect in ("read", "write", "update")

    @property
    def is_lasting(self) -> bool:
        """Whether it does more than give a result: it is not left out, repeated or overtaken."""
        return self.effect in ("write", "update", "act") or self.fills_shared

    @property
    def is_elementwise(self) -> bool:
        """Whether it computes each element of its result from the same ones of its operands, and touches nothing."""
        return not self.effect and (self.kind == "elementwise" or self.name == "constant")

    @property
    def is_own(self) -> bool:
        """Whether each thread gets its elements of the result from its own elements of the operands."""
        return self.is_elementwise or self.is_view or self.is_cheap

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.infer) or ""

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.infer)

    @property
    def plain_signature(self) -> inspect.Signature:
        """The signature as an author calls it, without annotations."""
        parameters = [p.replace(annotation=p.empty) for p in self.signature.parameters.values()]
        return inspect.Signature(parameters)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        try:
            bound = self.signature.bind(*arguments, **named)
        except TypeError as error:
            raise KernelError(
                f"{self.name}(): {error}", fix=f"call it as `{self.name}{self.plain_signature}`"
            ) from None
        return self.infer(*bound.args, **bound.kwargs)

    def reference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the op's meaning on numpy arrays: (*operands, **attributes)."""
        self.reference_function = function
        return function

    def facts(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the rule for alignment facts: (op, *facts of the operands) -> Facts of the result."""
        self.facts_function = function
        return function

    def span(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the rule for the range of an integer tile: (op, *spans of the operands) -> Span."""
        self.span_function = function
        return function

    def ends(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate what emits the least and greatest element of an integer tile: (op, *those of the operands)."""
        self.ends_function = function
        return function

    def sign(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare when the result is never negative: (op, *whether each operand is never negative) -> bool."""
        self.sign_function = function
        return function

    def lower(self, function: Callable[..., Any] | None = None, *, on: str | None = None, when: Any = None) -> Any:
        """Decorate a lowering; the last one declared that fits the machine is taken."""

        def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
            self.lowerings.append(Lowering(f, on, when))
            return f

        return decorate(function) if function else decorate

    def lowering(self, machine: Any, op: Op) -> Callable[..., Any]:
        """Return the lowering for `machine`: specific before portable, later before earlier."""
        kinds = (None, *machine.kinds)
        fitting = [w for w in self.lowerings if w.on in kinds and (w.when is None or w.when(machine, op))]
        assert fitting, f"{self.name} has no lowering for {machine.kinds}"
        return max(reversed(fitting), key=lambda w: (w.on is not None) + (w.when is not None)).function


def op(family: str, **traits: Any) -> Callable[[Callable[..., Any]], OpRow]:
    """Declare an operation; the decorated function is its signature, documentation and typing rule."""

    def decorate(infer: Callable[..., Any]) -> OpRow:
        row = OpRow(traits.pop("name", infer.__name__.rstrip("_")), family, infer, **traits)
        assert row.name not in ROWS, f"{row.name} is declared twice"
        ROWS[row.name] = row
        return row

    return decorate


@dataclass(eq=False)
class Composite:
    """An operation written in the tile language itself: compiled by inlining `function` into the kernel."""

    name: str
    family: str
    function: Callable[..., Any]
    reference_function: Callable[..., Any] | None = None

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.function) or ""

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def reference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the op's meaning on numpy arrays."""
        self.reference_function = function
        return function


COMPOSITES: dict[str, Composite] = {}


def composite(family: str) -> Callable[[Callable[..., Any]], Composite]:
    """Declare an operation whose body is tile language."""

    def decorate(function: Callable[..., Any]) -> Composite:
        row = Composite(function.__name__.rstrip("_"), family, function)
        COMPOSITES[row.name] = row
        return row

    return decorate


class Builder:
    """Appends ops to a block; rows find the active one through `current()`."""

    def __init__(self, block: Block, inline: Callable[..., Any] | None = None, has_windows: bool = False):
        self.block = block
        self.has_windows = has_windows  # whether loads of descriptors become ops of their own
        self.is_padded = False  # whether pointers read blocks that are smaller than their tiles
        self.position: Position | None = None
        self.inline = inline  # compiles a call of an author's function: (function, arguments)

    def emit(
        self, row: OpRow, operands: list[Value], attributes: dict[str, Any], types: list[Tile], *blocks: Block
    ) -> list[Value]:
        results = [Value(t) for t in types]
        self.block.statements.append(Op(row, operands, attributes, results, self.position, blocks))
        return results

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Append to `block` for the time being."""
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer


_active: list[Builder] = []


@contextmanager
def building(builder: Builder) -> Iterator[Builder]:
    """Make `builder` the one that rows emit to."""
    _active.append(builder)
    try:
        yield builder
    finally:
        _active.pop()


def emit(name: str, result: Tile, *operands: Value, **attributes: Any) -> Value:
    """Emit the op called `name` with typed operands; to be called at the end of a typing rule."""
    return _active[-1].emit(ROWS[name], list(operands), attributes, [result])[0]


def emit_several(
    name: str, results: Sequence[Tile], operands: Sequence[Value], *blocks: Block, **attributes: Any
) -> Any:
    """Emit the op called `name`, which may have several results and blocks of its own."""
    return _active[-1].emit(ROWS[name], list(operands), attributes, list(results), *blocks)


def block_of(function: Callable[..., Any], types: Sequence[Tile]) -> Block:
    """Compile an author's function of tiles to a block; it yields what the function returns."""
    builder, block = _active[-1], Block([Value(t) for t in types])
    with builder.inside(block):
        returned = call_function(function, block.arguments)
    block.yields = list(returned) if isinstance(returned, tuple) else [returned]
    return block


def active_builder() -> Builder:
    """The builder that rows emit to."""
    return _active[-1]


def call_function(function: Callable[..., Any], arguments: Sequence[Value]) -> Any:
    """Compile a call of an author's function in place, and return what it returns."""
    inline = _active[-1].inline
    assert inline is not None
    return inline(function, arguments)


def current() -> Builder:
    """The builder that rows emit to."""
    return _active[-1]


def emit_effect(name: str, *operands: Value, **attributes: Any) -> None:
    """Emit an op without a result."""
    _active[-1].emit(ROWS[name], list(operands), attributes, [])
