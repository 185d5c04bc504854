"""What the source of a jitted function shows of its parameters: which are pointers, integers, floats and strides."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

WINDOWS = ("make_block_ptr", "make_tensor_descriptor")
MEMORY = ("load", "store", *WINDOWS)
PLACES = ("shape", "strides", "offsets")
BLOCKWISE = ("load", "store", "gather", "scatter")
PASSING = ("to", "cast", "where", "multiple_of", "max_contiguous", "broadcast_to", "expand_dims", "reshape", "advance")
FROM_MEMORY = ("load", "sum", "max", "min", "argmax", "argmin", "reduce", "dot")
LOOPS = ("range", "static_range", "arange", "cdiv")


@dataclass
class Uses:
    """Names of parameters by what is done with them, in order of appearance.

    `indices` are pointers whose elements are parts of addresses; `strides` gives the pointer that a stride belongs to.
    `descriptors` have methods that read and write.
    `last_axis` is the highest axis that `program_id` is asked for.
    """

    pointers: dict[str, None] = field(default_factory=dict)
    maybe_pointers: dict[str, None] = field(default_factory=dict)
    descriptors: dict[str, None] = field(default_factory=dict)
    indices: dict[str, None] = field(default_factory=dict)
    integers: dict[str, None] = field(default_factory=dict)
    floats: dict[str, None] = field(default_factory=dict)
    strides: dict[str, str] = field(default_factory=dict)
    last_axis: int = 0


def read_uses(functions: Sequence[ast.FunctionDef]) -> dict[str, Uses]:
    """Return the uses of each function; an argument passed to another of them is used as it is there."""
    by_name = {f.name: f for f in functions}
    found: dict[str, Uses] = {}
    for function in functions:
        _read(function, by_name, found)
    return found


def _read(function: ast.FunctionDef, by_name: dict[str, ast.FunctionDef], found: dict[str, Uses]) -> Uses:
    if function.name not in found:
        found[function.name] = Uses()
        reader = _Reader(function)
        uses = reader.uses()
        for call in reader.calls:
            if (callee := by_name.get(_name(call.func))) and callee is not function:
                _pass_on(call, callee, _read(callee, by_name, found), reader, uses)
        _order(uses, reader.parameters)
        found[function.name] = uses
    return found[function.name]


def _pass_on(call: ast.Call, callee: ast.FunctionDef, inner: Uses, reader: _Reader, uses: Uses) -> None:
    names = [a.arg for a in (*callee.args.posonlyargs, *callee.args.args)]
    pairs = [*zip(names, call.args, strict=False), *((k.arg or "", k.value) for k in call.keywords)]
    for name, value in pairs:
        for leaf in reader.leaves(value):
            for kind in ("pointers", "descriptors", "integers", "floats"):
                if name in getattr(inner, kind):
                    getattr(uses, kind)[leaf] = None


def _order(uses: Uses, parameters: Sequence[str]) -> None:
    """Keep each parameter in one kind, and all in the order of the signature."""
    uses.maybe_pointers = {n: None for n in uses.maybe_pointers if n not in uses.pointers and n not in uses.integers}
    for kind in ("pointers", "maybe_pointers", "integers", "floats", "indices"):
        setattr(uses, kind, {n: None for n in parameters if n in getattr(uses, kind)})
    for name in uses.pointers:
        uses.integers.pop(name, None)
        uses.floats.pop(name, None)


def _base(call: ast.Call) -> ast.expr | None:
    """What a call reads, writes or makes a window on."""
    named = (k.value for k in call.keywords if k.arg in ("base", "pointer"))
    return call.args[0] if call.args else next(named, None)


def _indices(call: ast.Call) -> list[ast.expr]:
    """The arguments that are made of integers alone."""
    if _name(call.func) in LOOPS:
        return call.args
    if _name(call.func) in WINDOWS:
        return [*call.args[1 : len(PLACES)], *(k.value for k in call.keywords if k.arg in PLACES)]
    return []


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


class _Reader:
    """Follows names through the assignments of one function."""

    def __init__(self, function: ast.FunctionDef):
        arguments = function.args
        self.parameters = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        self.nodes = [node for statement in function.body for node in ast.walk(statement)]
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.assigned: dict[str, list[ast.expr]] = {}
        for target, value in self._assignments():
            self.assigned.setdefault(target, []).append(value)

    def _assignments(self) -> Iterator[tuple[str, ast.expr]]:
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                yield node.targets[0].id, node.value
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and isinstance(node.target, ast.Name) and node.value:
                yield node.target.id, node.value

    def leaves(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> list[str]:
        """Return the parameters that are terms of a sum, also through locals."""
        if isinstance(node, ast.Name):
            if node.id in self.parameters:
                return [node.id]
            values = [] if node.id in seen else self.assigned.get(node.id, [])
            return [leaf for value in values for leaf in self.leaves(value, seen | {node.id})]
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            right = self.leaves(node.right, seen) if isinstance(node.op, ast.Add) else []
            return self.leaves(node.left, seen) + right
        if isinstance(node, ast.Subscript):
            return self.leaves(node.value, seen)
        if isinstance(node, ast.IfExp):
            return self.leaves(node.body, seen) + self.leaves(node.orelse, seen)
        if isinstance(node, ast.Call) and (isinstance(node.func, ast.Name) or _name(node.func) in PASSING):
            method = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            return [leaf for part in (*method, *node.args) for leaf in self.leaves(part, seen)]
        return []

    def uses(self) -> Uses:
        uses = Uses()
        for name in self._arithmetic():
            uses.integers[name] = None
        for call in self.calls:
            name = _name(call.func)
            if (name in MEMORY or name.startswith("atomic_")) and (base := _base(call)):
                self._address(base, uses)
            if (name in BLOCKWISE or name.startswith("atomic_")) and isinstance(call.func, ast.Attribute):
                uses.descriptors |= dict.fromkeys(self._named(call.func.value))
            if name == "program_id" and call.args and isinstance(call.args[0], ast.Constant):
                uses.last_axis = max(uses.last_axis, int(call.args[0].value))  # type: ignore[arg-type]
            if name in ("to", "cast") and "float" in ast.unparse(call) and isinstance(call.func, ast.Attribute):
                uses.floats |= dict.fromkeys(self._named(call.func.value))
        for name in uses.floats:
            uses.integers.pop(name, None)
        self._find_strides(uses)
        return uses

    def _address(self, node: ast.expr, uses: Uses) -> None:
        candidates = [n for n in dict.fromkeys(self.leaves(node)) if n not in uses.integers]
        if candidates:
            uses.pointers[candidates[0]] = None
        for name in candidates[1:]:
            uses.maybe_pointers[name] = None
        for part in self.parts(node):
            if isinstance(part, ast.Name) and part.id not in candidates:
                uses.integers[part.id] = None
            elif isinstance(part, ast.Call) and _name(part.func) == "load" and part.args:
                uses.indices |= dict.fromkeys(self.leaves(part.args[0])[:1])

    def _named(self, node: ast.expr) -> list[str]:
        return [node.id] if isinstance(node, ast.Name) and node.id in self.parameters else []

    def _arithmetic(self) -> Iterator[str]:
        """The parameters that integers are multiplied, divided or compared with, or that bound a loop or a window."""
        indices = self._index_names()
        for node in self.nodes:
            if isinstance(node, ast.Call):
                yield from (p.id for a in _indices(node) for p in self.parts(a) if isinstance(p, ast.Name))
            elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.FloorDiv, ast.Mod)):
                if self._touches(node, indices) or isinstance(node.op, ast.Mod):
                    yield from (*self._named(node.left), *self._named(node.right))
            elif isinstance(node, ast.Compare) and self._touches(node, indices):
                yield from (n for part in (node.left, *node.comparators) for n in self._named(part))

    def _touches(self, node: ast.expr, names: set[str]) -> bool:
        return any(
            (isinstance(n, ast.Name) and n.id in names)
            or (isinstance(n, ast.Call) and _name(n.func) in ("program_id", "arange"))
            for n in ast.walk(node)
        )

    def _index_names(self) -> set[str]:
        """Locals made of `program_id` and `arange`, and of nothing that is loaded."""
        found: set[str] = {n.target.id for n in self.nodes if isinstance(n, ast.For) and isinstance(n.target, ast.Name)}
        before = -1
        while len(found) != before:
            before = len(found)
            for name, values in self.assigned.items():
                if name not in self.parameters and any(self._is_index(v, found) for v in values):
                    found.add(name)
        return found

    def _is_index(self, node: ast.expr, known: set[str]) -> bool:
        called = {_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
        return self._touches(node, known) and not called & {"load", "sum", "max", "min", "exp", "dot", "where"}

    def _find_strides(self, uses: Uses) -> None:
        for node in self.nodes:
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                owners = self.leaves(node.value) + (self._named(target) if isinstance(node, ast.AugAssign) else [])
                self._note_strides(node.value, owners, uses)
            elif isinstance(node, ast.Call) and node.args and _name(node.func) in ("load", "store"):
                self._note_strides(node.args[0], self.leaves(node.args[0]), uses)

    def _note_strides(self, node: ast.expr, owners: Sequence[str], uses: Uses) -> None:
        owner = next((n for n in owners if n in uses.pointers), None)
        if owner is None:
            return
        for part in ast.walk(node):
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
                for name in (*self._named(part.left), *self._named(part.right)):
                    if "stride" in name.lower():
                        uses.strides.setdefault(name, owner)

    def parts(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> Iterator[ast.expr]:
        """Yield the parameters and the loads that a number is computed from, also through locals."""
        if isinstance(node, ast.Name):
            values = self.assigned.get(node.id, []) if node.id not in seen else []
            if node.id in self.parameters:
                yield node
            for value in values:
                yield from self.parts(value, seen | {node.id})
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FROM_MEMORY:
            yield node
        elif not isinstance(node, ast.Compare):
            skipped = node.args[:1] if isinstance(node, ast.Call) and _name(node.func) == "where" else []
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.expr) and part not in skipped:
                    yield from self.parts(part, seen)
