"""Checks and messages: while a kernel is compiled, and while it runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill import dtypes as dt
from gristmill.compiler.ir import Tile, Value
from gristmill.compiler.op import emit, emit_effect, op
from gristmill.errors import KernelError
from gristmill.language.elementwise import ne
from gristmill.language.shape import expand_dims
from gristmill.language.types import as_value, broadcast_value, common_shape, describe, spell

DIGITS = {64: 17, 32: 9, 16: 5}  # that tell two floats apart


@op("debug")
def static_assert(cond: Any, msg: Any = "") -> None:
    """Fail the build, at the author's line, unless the compile-time condition holds."""
    if isinstance(cond, Value):
        raise KernelError(
            "static_assert(): the condition must be known at build time", fix="use `gm.constexpr` parameters"
        )
    if not cond:
        raise KernelError(
            f"static assertion failed{': ' + str(msg) if msg else ''}", fix="change the constants or the `where=`"
        )


@static_assert.reference
def _(cond: Any, msg: Any = "") -> None:
    assert cond, msg


@op("debug")
def static_print(*values: Any, sep: Any = " ", end: Any = "\n", file: Any = None, flush: Any = False) -> None:
    """Print while the kernel is compiled: compile-time values as they are, tiles by their type."""
    print(*(str(v.type) if isinstance(v, Value) else v for v in values), sep=sep, end=end, file=file, flush=flush)


@static_print.reference
def _(*values: Any, sep: Any = " ", end: Any = "\n", file: Any = None, flush: Any = False) -> None:
    return None


@op("debug", kind="tile", effect="act")
def debug_barrier() -> None:
    """All threads of the program wait for each other, and see what the others have written to memory."""
    emit_effect("debug_barrier")


@debug_barrier.reference
def _() -> None:
    return None


@debug_barrier.lower
def _(m: Any, op: Any) -> None:
    m.wait_for_all()


def _text(x: Any, name: str, what: str) -> str:
    if not isinstance(x, str):
        raise KernelError(f"{what}(): {name} is a text, got {describe(x)}", fix=f'write it in quotes, as in `"{name}"`')
    if not x.isprintable() or not x.isascii():
        raise KernelError(f"{what}(): {name} has characters that do not print everywhere", fix="use ASCII letters")
    return x


# -- device_assert


@op("debug", kind="tile", effect="act", is_check=True)
def device_assert(cond: Any, msg: Any = "", mask: Any = None) -> None:
    """Stop the program with a message unless `cond` holds, for each element where `mask` does.

    Compiled only where the build has GRISTMILL_DEBUG=1 in its environment; the interpreter always checks. On a CUDA
    device the context is lost, on the CPU the process ends.
    """
    condition = as_value(cond, "device_assert()")
    if condition.type.is_pointer:
        fix = "compare what it points to"
        raise KernelError(f"device_assert(): the condition is a pointer, {condition.type}", fix=fix)
    condition = condition if condition.type.dtype == dt.bool_ else ne(condition, 0)
    operands = [condition]
    if mask is not None and mask is not True:
        guard = as_value(mask, "device_assert()")
        if guard.type.dtype != dt.bool_:
            fix = "compare, as in `mask=offsets < n`"
            raise KernelError(f"device_assert(): mask must be bools, got {guard.type}", fix=fix)
        shape = common_shape(condition.type.shape, guard.type.shape, "device_assert()")
        operands = [broadcast_value(condition, shape), broadcast_value(guard, shape)]
    emit_effect("device_assert", *operands, msg=_text(msg, "msg", "device_assert"))


@device_assert.reference
def _(cond: Any, mask: Any = None, *, msg: str, machine: Any) -> None:
    failed = np.argwhere(~cond if mask is None else ~cond & mask)
    if len(failed):
        where = f" at {[int(i) for i in failed[0]]}" if failed.shape[1] else ""
        program = tuple(machine.program_id(axis) for axis in range(3))
        machine.fail(f"device_assert of program {program} failed{where}{': ' + msg if msg else ''}")


@device_assert.lower
def _(m: Any, op: Any, cond: Any, mask: Any = None) -> None:
    message = op.attributes["msg"]

    def check(row: Any, guard: Any) -> None:
        failed = m.compare("==", row[0], m.constant(dt.bool_, False))
        m.fail(message, op.position, failed if guard is None else m.bit_and(guard, failed))

    m.each([cond], mask, check)


# -- device_print


@op("debug", kind="tile", effect="act")
def device_print(prefix: Any, *args: Any, hex: Any = False) -> None:
    """Print a line for each element: `pid (0, 0, 0) idx (3) prefix: 1.5`.

    `pid` is the program, `idx` the element's coordinates in its block. Of several `args` each line tells which operand
    it is about. `hex` prints the bits. Lines of different programs and elements come in any order.
    """
    text = _text(prefix, "prefix", "device_print")
    if not args:
        emit_effect("device_print", text=f" {text}", count=0, hex=False)
    for i, x in enumerate(args):
        tile = _printable(x)
        shape = tile.type.shape
        name = f" {text} (operand {i}): " if len(args) > 1 else f" {text}: "
        coordinates = [_coordinates(shape, axis) for axis in range(len(shape))]
        emit_effect("device_print", tile, *coordinates, text=name, count=len(shape), hex=bool(hex))


def _printable(x: Any) -> Value:
    tile = as_value(x, "device_print()")
    if tile.type.dtype.is_float and tile.type.dtype.bits == 8:
        fix = f"convert it, as in `x.to({spell(dt.f32)})`"
        raise KernelError(f"device_print(): cannot print {tile.type.dtype}", fix=fix)
    return tile


def _coordinates(shape: tuple[int, ...], axis: int) -> Value:
    own = emit("arange", Tile(dt.i32, (shape[axis],)), start=0)
    for _ in range(len(shape) - axis - 1):
        own = expand_dims(own, len(own.type.shape))
    return broadcast_value(own, shape)


def specification(dtype: Any, hex: bool) -> str:
    """How C's printf is told to print a number that is cast to 64 bits."""
    if hex or not isinstance(dtype, dt.Dtype):
        return f"0x%0{max(2, (dtype.bits + 3) // 4)}llx"
    return f"%.{DIGITS[dtype.bits]}g" if dtype.is_float else "%lld" if dtype.is_signed else "%llu"


@device_print.reference
def _(*tiles: Any, text: str, count: int, hex: bool, machine: Any) -> None:
    program = "pid (" + ", ".join(str(machine.program_id(axis)) for axis in range(3)) + ")"
    if not tiles:
        return print(program + text)
    is_pointer = hasattr(tiles[0], "addresses")
    values = tiles[0].addresses if is_pointer else np.asarray(tiles[0])
    for index in np.ndindex(values.shape):
        place = f" idx ({', '.join(map(str, index))})" if index else ""
        print(program + place + text + _shown(values[index], hex or is_pointer))


def _shown(value: Any, hex: bool) -> str:
    bits = 8 * value.dtype.itemsize if value.dtype != np.bool_ else 8
    if hex:
        return f"0x{int(np.asarray(value).view(f'u{bits // 8}')):0{bits // 4}x}"
    return f"%.{DIGITS[bits]}g" % float(value) if value.dtype.kind not in "biu" else str(int(value))


@device_print.lower
def _(m: Any, op: Any, *tiles: Any) -> None:
    count, text, hex = (op.attributes[name] for name in ("count", "text", "hex"))

    def show(row: Any, guard: Any) -> None:
        numbers = [(m.program_id(axis), "%lld") for axis in range(3)]
        texts = ["pid (", ", ", ", ", ")"]
        for i, coordinate in enumerate(row[1:]):
            texts[-1] += ", " if i else " idx ("
            texts.append("")
            numbers.append((coordinate, "%lld"))
        texts[-1] += (")" if count else "") + text
        if row:
            numbers.append((row[0], specification(row[0].dtype, hex)))
            texts.append("")
        m.print_line(texts, numbers, guard)

    m.each(tiles, None, show)
