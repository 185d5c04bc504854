"""What the emitting machines share: LLVM IR as text, arithmetic by dtype, statements by walking blocks."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, For, If, Op, Pointer, Value, While
from gristmill.compiler.machine import Machine, V
from gristmill.compiler.targets import float8
from gristmill.dtypes import Dtype
from gristmill.language.arrays import odd_single
from gristmill.language.float8 import float8_bits, is_float8

FLOAT_NAMES = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double"}
FLOAT_PREDICATES = {"<": "olt", "<=": "ole", ">": "ogt", ">=": "oge", "==": "oeq", "!=": "une"}
SIGNED_PREDICATES = {"<": "slt", "<=": "sle", ">": "sgt", ">=": "sge", "==": "eq", "!=": "ne"}


class LlvmMachine(Machine):
    """Emits text: `lines` is the current block's, `prologue` goes to the function's start, `declarations` before it."""

    pointer_type = "ptr"
    has_half_arithmetic = False
    has_float8 = False
    contract = "contract "

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.prologue: list[str] = []
        self.declarations: set[str] = set()
        self.count = 0
        self.label = "entry"
        self.loop_depth = 0

    # -- text

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def emit(self, text: str, dtype: Dtype | Pointer, lanes: int = 0) -> V:
        """Append an instruction with a result."""
        result = V(self.fresh(), dtype, lanes)
        self.lines.append(f"  {result.text} = {text}")
        return result

    def say(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append("  " + text)

    def begin_label(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def new_label(self, name: str) -> str:
        self.count += 1
        return f"{name}{self.count}"

    @contextmanager
    def in_prologue(self) -> Iterator[None]:
        """Emit to the start of the function, from where results reach every block."""
        outer, self.lines = self.lines, self.prologue
        try:
            yield
        finally:
            self.lines = outer

    def element_type(self, dtype: Dtype | Pointer) -> str:
        if isinstance(dtype, Pointer):
            return self.pointer_type
        return FLOAT_NAMES.get(dtype.name) or ("i1" if dtype == dt.bool_ else f"i{dtype.bits}")

    def type_of(self, dtype: Dtype | Pointer, lanes: int = 0) -> str:
        element = self.element_type(dtype)
        return f"<{lanes} x {element}>" if lanes else element

    def typed(self, x: V) -> str:
        return f"{self.type_of(x.dtype, x.lanes)} {x.text}"

    def call(self, name: str, dtype: Dtype | Pointer, *operands: V, lanes: int | None = None, extra: str = "") -> V:
        """Call an intrinsic whose vector form applies it to each element."""
        lanes = max((x.lanes for x in operands), default=0) if lanes is None else lanes
        operands = tuple(self.widen(x, lanes) for x in operands)
        result, types = self.type_of(dtype, lanes), [self.type_of(x.dtype, x.lanes) for x in operands]
        self.declarations.add(
            f"declare {result} @{name}({', '.join([*types, *([extra.split()[0]] if extra else [])])})"
        )
        arguments = [*map(self.typed, operands), *([extra] if extra else [])]
        return self.emit(f"call {result} @{name}({', '.join(arguments)})", dtype, lanes)

    def intrinsic(self, name: str, *operands: V, extra: str = "") -> V:
        """Call `llvm.name` overloaded by the operands' type."""
        lanes = max(x.lanes for x in operands)
        element = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
        text = self.element_type(operands[0].dtype)
        suffix = (f"v{lanes}" if lanes else "") + element.get(text, text)
        return self.call(f"llvm.{name}.{suffix}", operands[0].dtype, *operands, extra=extra)

    # -- lanes

    def widen(self, x: V, lanes: int) -> V:
        """Repeat a scalar over `lanes`."""
        if x.lanes == lanes:
            return x
        assert x.lanes == 0, f"{x} among {lanes} lanes"
        if x.text[0] != "%":
            return V(f"splat ({self.typed(x)})", x.dtype, lanes)
        vector = self.type_of(x.dtype, lanes)
        first = self.emit(f"insertelement {vector} poison, {self.typed(x)}, i64 0", x.dtype, lanes)
        return self.emit(
            f"shufflevector {self.typed(first)}, {vector} poison, <{lanes} x i32> zeroinitializer", x.dtype, lanes
        )

    def aligned(self, *operands: V) -> tuple[V, ...]:
        lanes = max(x.lanes for x in operands)
        return tuple(self.widen(x, lanes) for x in operands)

    # -- numbers

    def constant(self, dtype: Dtype, number: float | int | bool) -> V:
        if dtype == dt.bool_:
            return V("true" if number else "false", dtype)
        if is_float8(dtype):
            return V(str(float8_bits(float(number), dtype)), dtype)
        return V(_float_text(float(number), dtype) if dtype.is_float else str(int(number)), dtype)

    def _binary(self, float_op: str, integer_op: str, x: V, y: V) -> V:
        if self._needs_single(x):
            return self._in_single(lambda a, b: self._binary(float_op, integer_op, a, b), x, y)
        x, y = self.aligned(x, y)
        instruction = float_op if x.dtype.is_float else integer_op
        return self.emit(f"{instruction} {self.typed(x)}, {y.text}", x.dtype, x.lanes)

    def _needs_single(self, x: V) -> bool:
        return x.dtype.is_float and x.dtype.bits < (16 if self.has_half_arithmetic else 32)

    def _in_single(self, function: Callable[..., V], *operands: V) -> V:
        dtype = operands[0].dtype
        result = function(*(self.cast(x, dt.f32) for x in operands))
        return self.cast(result, dtype) if result.dtype == dt.f32 else result

    def add(self, x: V, y: V) -> V:
        return self._binary(f"fadd {self.contract}", "xor" if x.dtype == dt.bool_ else "add", x, y)

    def subtract(self, x: V, y: V) -> V:
        return self._binary(f"fsub {self.contract}", "xor" if x.dtype == dt.bool_ else "sub", x, y)

    def multiply(self, x: V, y: V) -> V:
        return self._binary(f"fmul {self.contract}", "and" if x.dtype == dt.bool_ else "mul", x, y)

    def multiply_alone(self, x: V, y: V) -> V:
        return self._binary("fmul", "mul", x, y)

    def fma(self, x: V, y: V, z: V) -> V:
        return self.intrinsic("fma", x, y, z)

    def multiply_add(self, x: V, y: V, z: V) -> V:
        return self.intrinsic("fmuladd", x, y, z)

    def divide(self, x: V, y: V) -> V:
        return self.divide_exactly(x, y)

    def divide_exactly(self, x: V, y: V) -> V:
        return self._binary("fdiv", "", x, y)

    def quotient(self, x: V, y: V) -> V:
        return self._binary("", "sdiv" if x.dtype.is_signed else "udiv", x, self._divisor(x, y))

    def remainder(self, x: V, y: V) -> V:
        by = y if x.dtype.is_float else self._divisor(x, y)
        return self._binary("frem", "srem" if x.dtype.is_signed else "urem", x, by)

    def _divisor(self, x: V, y: V) -> V:
        """y, or 1 where dividing by it would trap (x86) or mean nothing (LLVM): 0, and -1 below the lowest number."""
        dtype = y.dtype
        assert isinstance(dtype, Dtype)
        if y.text.lstrip("-").isdigit() and int(y.text) not in (0, -1):
            return y
        one, traps = self.constant(dtype, 1), self.compare("==", y, self.constant(dtype, 0))
        if dtype.is_signed:
            lowest = self.compare("==", x, self.constant(dtype, -(1 << (dtype.bits - 1))))
            traps = self.bit_or(traps, self.bit_and(lowest, self.compare("==", y, self.constant(dtype, -1))))
        return self.select(traps, one, y)

    def negative(self, x: V) -> V:
        if self._needs_single(x):
            return self._in_single(self.negative, x)
        if x.dtype.is_float:
            return self.emit(f"fneg {self.typed(x)}", x.dtype, x.lanes)
        return self.subtract(self.constant(x.dtype, 0), x)  # type: ignore[arg-type]

    def absolute(self, x: V) -> V:
        if self._needs_single(x):
            return self._in_single(self.absolute, x)
        return self.intrinsic("fabs", x) if x.dtype.is_float else self.intrinsic("abs", x, extra="i1 false")

    def maximum(self, x: V, y: V, *, keep_nan: bool = False) -> V:
        return self._extremum("max", x, y, keep_nan)

    def minimum(self, x: V, y: V, *, keep_nan: bool = False) -> V:
        return self._extremum("min", x, y, keep_nan)

    def _extremum(self, which: str, x: V, y: V, keep_nan: bool) -> V:
        if x.dtype == dt.bool_:
            return self._binary("", "or" if which == "max" else "and", x, y)
        if not x.dtype.is_float:
            return self.intrinsic(("s" if x.dtype.is_signed else "u") + which, x, y)
        if self._needs_single(x):
            return self._in_single(lambda a, b: self._extremum(which, a, b, keep_nan), x, y)
        return self.float_extremum(which, x, y, keep_nan)

    def float_extremum(self, which: str, x: V, y: V, keep_nan: bool) -> V:
        return self.intrinsic(f"{which}imum" if keep_nan else f"{which}num", x, y)

    def floor(self, x: V) -> V:
        return self.intrinsic("floor", x)

    def ceil(self, x: V) -> V:
        return self.intrinsic("ceil", x)

    def round_even(self, x: V) -> V:
        return self.intrinsic("roundeven", x)

    def sqrt(self, x: V) -> V:
        return self.intrinsic("sqrt", x)

    def rsqrt(self, x: V) -> V:
        return self.divide_exactly(self.constant(x.dtype, 1.0), self.sqrt(x))  # type: ignore[arg-type]

    def bit_and(self, x: V, y: V) -> V:
        return self._binary("", "and", x, y)

    def bit_or(self, x: V, y: V) -> V:
        return self._binary("", "or", x, y)

    def bit_xor(self, x: V, y: V) -> V:
        return self._binary("", "xor", x, y)

    def shift_left(self, x: V, y: V) -> V:
        return self._binary("", "shl", x, y)

    def shift_right(self, x: V, y: V) -> V:
        return self._binary("", "ashr" if x.dtype.is_signed else "lshr", x, y)

    def multiply_high(self, x: V, y: V) -> V:
        x, y = self.aligned(x, y)
        bits, word = x.dtype.bits, "sext" if x.dtype.is_signed else "zext"
        wide = f"<{x.lanes} x i{2 * bits}>" if x.lanes else f"i{2 * bits}"
        a, b = (self.emit(f"{word} {self.typed(v)} to {wide}", x.dtype, x.lanes) for v in (x, y))
        product = self.emit(f"mul {wide} {a.text}, {b.text}", x.dtype, x.lanes)
        shift = f"splat (i{2 * bits} {bits})" if x.lanes else str(bits)
        high = self.emit(f"lshr {wide} {product.text}, {shift}", x.dtype, x.lanes)
        return self.emit(f"trunc {wide} {high.text} to {self.type_of(x.dtype, x.lanes)}", x.dtype, x.lanes)

    def count_ones(self, x: V) -> V:
        return self.intrinsic("ctpop", x)

    def leading_zeros(self, x: V) -> V:
        return self.intrinsic("ctlz", x, extra="i1 false")

    def reverse_bits(self, x: V) -> V:
        return self.intrinsic("bitreverse", x)

    def compare(self, predicate: str, x: V, y: V) -> V:
        if self._needs_single(x):
            return self._in_single(functools.partial(self.compare, predicate), x, y)
        x, y = self.aligned(x, y)
        if x.dtype.is_float:
            text = f"fcmp {FLOAT_PREDICATES[predicate]}"
        else:
            word = SIGNED_PREDICATES[predicate]
            text = f"icmp {word if x.dtype.is_signed else word.replace('s', 'u', 1) if word[0] == 's' else word}"
        return self.emit(f"{text} {self.typed(x)}, {y.text}", dt.bool_, x.lanes)

    def select(self, condition: V, x: V, y: V) -> V:
        if x is y:
            return x
        condition, x, y = self.aligned(condition, x, y)
        return self.emit(f"select {self.typed(condition)}, {self.typed(x)}, {self.typed(y)}", x.dtype, x.lanes)

    def rarely(self, condition: V, usual: Sequence[V], function: Callable[[], Sequence[V]]) -> list[V]:
        """By a branch that is taken if one of the lanes needs it."""
        rare, end, before = self.new_label("rare"), self.new_label("usual"), self.label
        self.say(f"br i1 {self._any(condition).text}, label %{rare}, label %{end}")
        self.begin_label(rare)
        found = list(function())
        if condition.lanes:
            found = [self.select(condition, x, y) for x, y in zip(found, usual, strict=True)]
        last = self.label
        self.say(f"br label %{end}")
        self.begin_label(end)
        return [self.phi(x.dtype, x.lanes, [(y, before), (x, last)]) for x, y in zip(found, usual, strict=True)]

    def _any(self, condition: V) -> V:
        """Whether a bool holds in any lane."""
        if not condition.lanes:
            return condition
        name, kind = f"llvm.vector.reduce.or.v{condition.lanes}i1", self.type_of(dt.bool_, condition.lanes)
        self.declarations.add(f"declare i1 @{name}({kind})")
        return self.emit(f"call i1 @{name}({self.typed(condition)})", dt.bool_)

    def bitcast(self, x: V, dtype: Dtype | Pointer) -> V:
        if self.element_type(x.dtype) == self.element_type(dtype):
            return V(x.text, dtype, x.lanes)
        if isinstance(dtype, Pointer) or isinstance(x.dtype, Pointer):
            return self.convert("inttoptr" if isinstance(dtype, Pointer) else "ptrtoint", x, dtype)
        return self.emit(f"bitcast {self.typed(x)} to {self.type_of(dtype, x.lanes)}", dtype, x.lanes)

    # -- casts

    def convert(self, instruction: str, x: V, dtype: Dtype | Pointer) -> V:
        return self.emit(f"{instruction} {self.typed(x)} to {self.type_of(dtype, x.lanes)}", dtype, x.lanes)

    def cast(self, x: V, dtype: Dtype | Pointer) -> V:
        source = x.dtype
        if source == dtype:
            return x
        assert isinstance(source, Dtype) and isinstance(dtype, Dtype)
        if dtype == dt.bool_:
            return self.compare("!=", x, self.constant(source, 0))
        if source.is_float:
            return self._cast_float(x, dtype)
        if dtype.is_float:
            return self._integer_to_float(x, dtype)
        return self._cast_integer(x, dtype)

    def _cast_integer(self, x: V, dtype: Dtype) -> V:
        bits = 1 if x.dtype == dt.bool_ else x.dtype.bits
        if bits == dtype.bits:
            return V(x.text, dtype, x.lanes)
        if x.text[0] != "%" and not x.lanes and isinstance(x.dtype, Dtype) and x.dtype != dt.bool_:
            return self.constant(dtype, _wrap(int(x.text), x.dtype, dtype))
        widening = "sext" if x.dtype.is_signed else "zext"
        return self.convert("trunc" if bits > dtype.bits else widening, x, dtype)

    def _integer_to_float(self, x: V, dtype: Dtype) -> V:
        word = "sitofp" if x.dtype.is_signed else "uitofp"
        if dtype.bits >= 32:
            return self.convert(word, x, dtype)
        return self.cast(self.convert(word, x, dt.f64 if x.dtype.bits > 16 else dt.f32), dtype)

    def _cast_float(self, x: V, dtype: Dtype) -> V:
        if dtype.is_float:
            return self.resize_float(x, dtype)
        if x.dtype.bits < 32:
            x = self.cast(x, dt.f32)
        if dtype.bits < 32:
            return self.cast(self.float_to_integer(x, dt.i32), dtype)
        return self.float_to_integer(x, dtype)

    def float_to_integer(self, x: V, dtype: Dtype) -> V:
        """Truncate; beyond the range the nearest integer, for NaN 0."""
        word = "fptosi" if dtype.is_signed else "fptoui"
        types = f"{'v' + str(x.lanes) if x.lanes else ''}"
        return self.call(f"llvm.{word}.sat.{types}i{dtype.bits}.{types}{x.dtype.name}", dtype, x)

    def resize_float(self, x: V, dtype: Dtype) -> V:
        """Between floating dtypes; from f64 to halves in one rounding."""
        if 8 in (x.dtype.bits, dtype.bits):
            return float8.resize(self, x, dtype)
        if x.dtype.bits == 16 and dtype.bits == 16:
            return self.resize_float(self.resize_float(x, dt.f32), dtype)
        if x.dtype == dt.f64 and dtype.bits == 16:
            return self.resize_float(self.round_to_odd(x), dtype)
        return self.convert("fpext" if dtype.bits > x.dtype.bits else "fptrunc", x, dtype)

    def round_to_odd(self, x: V) -> V:
        """f64 to f32 so that rounding again is as good as rounding once: truncated, the last bit set if inexact."""
        near = self.convert("fptrunc", x, dt.f32)
        back = self.convert("fpext", near, dt.f64)
        word, one = self.bitcast(near, dt.i32), self.constant(dt.i32, 1)
        is_above = self.compare(">", self.absolute(back), self.absolute(x))
        truncated = self.select(is_above, self.subtract(word, one), word)
        is_exact = self.compare("==", back, x)
        is_nan = self.compare("!=", x, x)
        odd = self.select(self.bit_or(is_exact, is_nan), word, self.bit_or(truncated, one))
        return self.bitcast(odd, dt.f32)

    def offset(self, pointer: V, elements: V) -> V:
        pointer, elements = self.aligned(pointer, elements)
        assert isinstance(pointer.dtype, Pointer) and isinstance(elements.dtype, Dtype)
        index = self.cast(elements, dt.i64 if elements.dtype.is_signed or elements.dtype.bits == 64 else dt.u64)
        element = self.memory_type(pointer.dtype.element)
        return self.emit(
            f"getelementptr {element}, {self.typed(pointer)}, {self.typed(index)}", pointer.dtype, pointer.lanes
        )

    def memory_type(self, dtype: Dtype | Pointer) -> str:
        """The type under which an element lies in memory: bools are bytes."""
        return "i8" if dtype.bits == 8 else self.element_type(dtype)

    # -- statements

    def run(self, block: Block, values: dict[Value, Any]) -> list[Any]:
        for statement in block.statements:
            if isinstance(statement, Op):
                self.run_op(statement, values)
            elif isinstance(statement, For):
                self.run_for(statement, values)
            elif isinstance(statement, If):
                self.run_if(statement, values)
            else:
                self.run_while(statement, values)
        return [values[v] for v in block.yields]

    def run_op(self, op: Op, values: dict[Value, Any]) -> None:
        operands = [values[v] for v in op.operands]
        lowering = op.row.lowering(self, op)
        if op.row.kind == "elementwise":
            result = self.map(functools.partial(lowering, self, **op.attributes), op.results[0], operands)
        else:
            result = lowering(self, op, *operands)
        results = result if isinstance(result, list) else [result]
        values.update(zip(op.results, results, strict=False))

    def run_for(self, loop: For, values: dict[Value, Any]) -> None:
        raise NotImplementedError

    def run_if(self, statement: If, values: dict[Value, Any]) -> None:
        raise NotImplementedError

    def run_while(self, loop: While, values: dict[Value, Any]) -> None:
        raise NotImplementedError

    def repeat(self, stop: int, step: int, initial: list[V], body: Callable[[V, list[V]], list[V]]) -> list[V]:
        """Run body(position, carried) for 0, step, ... below `stop`; a single step stands without a loop."""
        if stop <= step:
            return body(self.constant(dt.i64, 0), initial)
        head, end, before = self.new_label("sweep"), self.new_label("swept"), self.label
        self.say(f"br label %{head}")
        self.begin_label(head)
        place = len(self.lines)
        position = V(self.fresh(), dt.i64)
        carried = [V(self.fresh(), x.dtype, x.lanes) for x in initial]
        self.lines += [""] * (1 + len(initial))
        after = body(position, carried)
        following = self.emit(f"add nuw nsw {self.typed(position)}, {step}", dt.i64)
        goes_on = self.emit(f"icmp ult {self.typed(following)}, {stop}", dt.bool_)
        self.say(f"br i1 {goes_on.text}, label %{head}, label %{end}")
        pairs = [(position, self.constant(dt.i64, 0), following), *zip(carried, initial, after, strict=True)]
        for i, (phi, first, next_value) in enumerate(pairs):
            paths = f"[ {first.text}, %{before} ], [ {next_value.text}, %{self.label} ]"
            self.lines[place + i] = f"  {phi.text} = phi {self.type_of(phi.dtype, phi.lanes)} {paths}"
        self.begin_label(end)
        return after

    def phi(self, dtype: Dtype | Pointer, lanes: int, incoming: Sequence[tuple[V, str]]) -> V:
        pairs = ", ".join(f"[ {self.widen(v, lanes).text}, %{label} ]" for v, label in incoming)
        return self.emit(f"phi {self.type_of(dtype, lanes)} {pairs}", dtype, lanes)


def _wrap(number: int, source: Dtype, dtype: Dtype) -> int:
    number &= (1 << source.bits) - 1
    if source.is_signed and number >> (source.bits - 1):
        number -= 1 << source.bits
    number &= (1 << dtype.bits) - 1
    return number - (1 << dtype.bits) if dtype.is_signed and number >> (dtype.bits - 1) else number


def half_bits(number: float, dtype: Dtype) -> int:
    """The bits of a number in f16 or bf16, rounded to nearest even."""
    if dtype == dt.f16:
        return int(struct.unpack("<H", struct.pack("<e", _limit(number, 65520.0)))[0])
    word = int(odd_single(number).view(np.uint32))
    return 0x7FC0 if math.isnan(number) else int((word + 0x7FFF + (word >> 16 & 1)) >> 16)


def _float_text(number: float, dtype: Dtype) -> str:
    if dtype.bits == 16:
        return f"0x{'H' if dtype == dt.f16 else 'R'}{half_bits(number, dtype):04X}"
    exact = number if dtype == dt.f64 else _single(number)
    return f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}"


def _single(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", _limit(number, 3.4028235677973366e38)))[0])


def _limit(number: float, first_infinite: float) -> float:
    return math.copysign(math.inf, number) if abs(number) >= first_infinite else number
