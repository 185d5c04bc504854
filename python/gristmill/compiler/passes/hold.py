"""Hold tiles that would overflow the registers in shared memory, and compute anew what follows from them.

Between two reductions a thread waits; what it needs of a large tile on both sides is not kept in registers: the loaded
elements, in their own dtype, go to shared memory, and the elementwise steps after them are repeated behind each
reduction. 64 halves a thread then take no register while it waits, so that several blocks fit a multiprocessor and
some of them load while others compute. Few of them, with registers for all they load, are better than many that load
by and by.
"""

from __future__ import annotations

from gristmill.compiler.ir import Block, Function, If, Op, Statement, Value, definitions
from gristmill.compiler.op import ROWS
from gristmill.compiler.passes import spread

LARGE = 48  # elements of a thread
LARGE_IN_CLUSTER = 32  # whose blocks wait longer, and share multiprocessors
RESERVED_BYTES = 4096  # for reductions
REGISTERS_OF_SM = 65536
OTHER_REGISTERS = 16  # of a thread, beside those that it loads
WARPS_OF_SM = 32  # of clusters' blocks; with more they crowd the L1 cache


def run(function: Function) -> None:
    """Hold what is loaded at the top of the kernel, or of one of its branches, and needed in several of its phases."""
    for loads in _hold(function, function.body):
        if all(map(is_wide, loads)) and not spread.multiplies(function) and not any(map(_is_double, loads)):
            function.blocks_per_sm = max(function.blocks_per_sm, _blocks_per_sm(function, loads))


def _blocks_per_sm(function: Function, loads: list[Op]) -> int:
    """How many blocks that have registers for all they load, and hold it, a multiprocessor has room for."""
    size = sum(load.results[0].type.bytes for load in loads) // function.num_blocks
    registers = size // 4 + OTHER_REGISTERS * 32 * function.num_warps
    most = WARPS_OF_SM // function.num_warps
    return max(1, min(most, REGISTERS_OF_SM // registers, function.shared_bytes // (size + RESERVED_BYTES)))


def _is_double(load: Op) -> bool:
    """Whether its elements are of 64 bits, with which computing takes many registers."""
    return bool(load.results[0].type.dtype.bits == 64)


def is_wide(load: Op) -> bool:
    """Whether accesses are as long as they get: the parts of others take registers of their own."""
    return load.attributes.get("width", 1) * load.results[0].type.dtype.bits >= 128


def _hold(function: Function, block: Block) -> list[list[Op]]:
    """The loads whose tiles are held, for each block that holds some."""
    found = [_Phases(function, block).run()]
    for statement in block.statements:
        if isinstance(statement, If):
            found += [loads for branch in statement.blocks for loads in _hold(function, branch)]
    return [loads for loads in found if loads]


class _Phases:
    """The statements of a block, numbered by the reductions and loops that come before them."""

    def __init__(self, function: Function, block: Block):
        self.function = function
        self.block = block
        self.made = definitions(block)
        self.phase: dict[Statement, int] = {}
        self.written = {statement: list(statement.operands) for statement in self.block.statements}
        count = 0
        for statement in self.block.statements:
            self.phase[statement] = count
            count += _waits(statement, function)
        self.held: dict[Value, Value] = {}
        self.again: dict[tuple[Value, int], Value] = {}

    def run(self) -> list[Op]:
        """Hold what is worth it; returns the loads of it."""
        chosen = self._chosen()
        if not chosen:
            return []
        statements = self.block.statements
        self.block.statements = []
        for statement in statements:
            if isinstance(statement, Op):
                statement.operands[:] = [self._in_phase(v, self.phase[statement]) for v in statement.operands]
            self.block.statements.append(statement)
            for value in statement.results:
                if value in chosen:
                    self.held[value] = self._emit("hold", value, statement)
        return [s for s in statements if isinstance(s, Op) and not chosen.isdisjoint(s.results)]

    def _chosen(self) -> set[Value]:
        chosen: set[Value] = set()
        room = self.function.shared_bytes - RESERVED_BYTES
        for statement in self.block.statements:
            if (
                isinstance(statement, Op)
                and statement.row.effect == "read"
                and is_large(statement.results[0], self.function)
            ):
                value = statement.results[0]
                size = value.type.bytes // self.function.num_blocks
                if size <= room and self._last_phase(value) > self.phase[statement]:
                    chosen.add(value)
                    room -= size
        return chosen

    def _last_phase(self, value: Value) -> int:
        """The last phase in which the value, or what follows from it element by element, is used."""
        reached, last = {value}, 0
        for statement in self.block.statements:
            if reached & set(statement.operands):
                last = max(last, self.phase[statement])
                if isinstance(statement, Op) and is_repeatable(statement):
                    reached |= set(statement.results)
        return last

    def _in_phase(self, value: Value, phase: int) -> Value:
        """Return a value equal to `value` that is computed in `phase`, if it is large and can be had again."""
        made = self.made.get(value)
        if (
            not isinstance(made, Op)
            or made not in self.phase
            or self.phase[made] == phase
            or not is_large(value, self.function)
        ):
            return value
        if (value, phase) not in self.again:
            self.again[value, phase] = self._anew(value, made, phase)
        return self.again[value, phase]

    def _anew(self, value: Value, made: Op, phase: int) -> Value:
        if value in self.held:
            return self._emit("held", self.held[value], made)
        if not is_repeatable(made):
            return value
        operands = [self._in_phase(v, phase) for v in self.written[made]]
        result = Value(value.type, value.name)
        if value in self.function.constancy:
            self.function.constancy[result] = self.function.constancy[value]
        self.block.statements.append(Op(made.row, operands, dict(made.attributes), [result], made.position))
        return result

    def _emit(self, row: str, value: Value, near: Statement) -> Value:
        result = Value(value.type, value.name)
        self.block.statements.append(Op(ROWS[row], [value], {}, [result], near.position))
        return result


def is_large(value: Value, function: Function) -> bool:
    """Whether each thread has so many elements of a tile that they crowd its registers."""
    return value.type.elements >= (LARGE if function.num_blocks == 1 else LARGE_IN_CLUSTER) * function.threads


def _waits(statement: Statement, function: Function) -> bool:
    """Whether threads wait for each other, or work for long."""
    if not isinstance(statement, Op):
        return True
    return statement.row.result_layout is not None and not is_large(statement.results[0], function)


def is_repeatable(op: Op) -> bool:
    """Whether an op goes element by element, from values alone."""
    is_elementwise = op.row.kind == "elementwise" or op.row.is_cheap or op.row.is_view
    return is_elementwise and not op.row.effect and op.row.result_layout is None
