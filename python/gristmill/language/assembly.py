"""Inline assembly on the elements of tiles, with what other machines compute instead."""

from __future__ import annotations

from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Tile, Value
from gristmill.compiler.op import OpRow, active_builder, emit_several, op
from gristmill.errors import KernelError
from gristmill.language.types import as_value, broadcast_value, common_shape, describe, need_dtype

NAME = "inline_asm_elementwise"
FIX = "give `fallback=`, a function of the tile language for the machines that have no such instructions"


@op("assembly")
def inline_asm_elementwise(
    asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: Any, pack: Any, fallback: Any = None
) -> Any:
    """What PTX instructions make of the elements of `args`, tiles that broadcast to one shape.

    `asm` runs once for each `pack` elements of a thread; `$0`, `$1`, ... are its results and then its arguments, in the
    order of `constraints`, as in "=r,r". Elements of fewer than 32 bits share registers as far as `pack` goes, the
    first in the lowest bits; wider ones take a register each. `dtype` is the result's, a tuple of them for several
    results. `is_pure` says that it does nothing else and may be left out, shared or moved. Not in Triton:
    `fallback(*args)` computes the results where there is no PTX, on the CPU and in the interpreter.
    """
    tiles, dtypes = _tiles(args), _dtypes(dtype)
    if isinstance(pack, bool) or not isinstance(pack, int) or pack < 1 or pack & (pack - 1):
        raise KernelError(f"{NAME}(): pack must be a power of two, got {describe(pack)}", fix="use `pack=1`")
    for text, name in ((asm, "asm"), (constraints, "constraints")):
        if not isinstance(text, str):
            raise KernelError(f"{NAME}(): {name} is a text, got {describe(text)}", fix="write it in quotes")
    _check_constraints(constraints, tiles, dtypes, pack)
    shape = tiles[0].type.shape
    results = [Tile(d, shape) for d in dtypes]
    instead = [] if fallback is None else _instead(fallback, tiles, results)
    attributes = {"asm": asm, "constraints": constraints, "pack": pack, "count": len(tiles)}
    row = "inline_asm" if is_pure else "inline_asm_with_effect"
    values = emit_several(row, results, [*tiles, *instead], **attributes)
    return tuple(values) if isinstance(dtype, (tuple, list)) else values[0]


def _tiles(args: Any) -> list[Value]:
    items = args if isinstance(args, (tuple, list)) else (args,)
    if not items:
        raise KernelError(f"{NAME}(): needs at least one argument", fix="pass a tile that has the result's shape")
    tiles = [as_value(x, f"{NAME}()") for x in items]
    shape: tuple[int, ...] = ()
    for tile in tiles:
        if tile.type.dtype == dt.bool_:
            raise KernelError(f"{NAME}(): bools have no register", fix="convert them, as in `x.to(tl.int32)`")
        shape = common_shape(shape, tile.type.shape, f"{NAME}()")
    return [broadcast_value(tile, shape) for tile in tiles]


def _dtypes(dtype: Any) -> list[dt.Dtype]:
    found = [need_dtype(d, f"{NAME}()") for d in (dtype if isinstance(dtype, (tuple, list)) else (dtype,))]
    if not found or dt.bool_ in found:
        raise KernelError(f"{NAME}(): a result is a number", fix="return an integer and compare it with 0")
    return found


def per_register(bits: int, pack: int) -> int:
    """How many elements share a register."""
    return min(pack, max(1, 32 // bits))


def _registers(types: list[int], pack: int) -> int:
    return sum(pack // per_register(bits, pack) for bits in types)


def _check_constraints(constraints: str, tiles: list[Value], dtypes: list[dt.Dtype], pack: int) -> None:
    parts = [p.strip() for p in constraints.split(",")]
    results = sum(p.startswith("=") for p in parts)
    operands = sum(not p.startswith(("=", "~")) for p in parts)
    wanted = (_registers([d.bits for d in dtypes], pack), _registers([t.type.dtype.bits for t in tiles], pack))
    if (results, operands) != wanted:
        found = f"{results} results and {operands} arguments"
        example = ",".join(["=r"] * wanted[0] + ["r"] * wanted[1])
        fix = f'name {wanted[0]} results and {wanted[1]} arguments, as in `"{example}"`'
        raise KernelError(f"{NAME}(): the constraints name registers for {found}", fix=fix)


def _instead(fallback: Any, tiles: list[Value], results: list[Tile]) -> list[Value]:
    """Compile the fallback in place; its results must have the types of the assembly's."""
    inline = active_builder().inline
    assert inline is not None
    given = fallback(*tiles) if isinstance(fallback, OpRow) else inline(fallback, tiles)
    values = [as_value(x, "a result of the fallback") for x in (given if isinstance(given, tuple) else (given,))]
    if [v.type for v in values] != results:
        got, wanted = (", ".join(map(str, types)) for types in ([v.type for v in values], results))
        raise KernelError(f"{NAME}(): the fallback returns {got}, not {wanted}", fix="convert what it returns")
    return values


@inline_asm_elementwise.reference
def _(*operands: Any, **attributes: Any) -> Any:
    raise AssertionError("the rows below are what is emitted")


def _lacking(machine: str) -> str:
    return f"{NAME}(): PTX does not run on {machine}"


def _reference(*tiles: Any, asm: str, constraints: str, pack: int, count: int, machine: Any) -> Any:
    if len(tiles) == count:
        machine.fail(_lacking("the interpreter"), FIX)
    return tiles[count:]


def _elsewhere(m: Any, op: Any, *tiles: Any) -> Any:
    if len(tiles) == op.attributes["count"]:
        raise KernelError(_lacking(f"the machine `{m.kinds[0]}`"), fix=FIX, position=op.position)
    return list(tiles[op.attributes["count"] :])


def _on_cuda(m: Any, op: Any, *tiles: Any) -> Any:
    return m.inline_assembly(op, tiles[: op.attributes["count"]])


def _declare(name: str, effect: str) -> None:
    def infer(*tiles: Any) -> None:
        """What `inline_asm_elementwise` emits; never written by authors."""
        raise KernelError(f"{name}(): not a function of the language", fix=f"use `tl.{NAME}`")

    row = op("internal", kind="tile", effect=effect, name=name)(infer)
    row.reference(_reference)
    row.lower(_elsewhere)
    row.lower(_on_cuda, on="cuda", when=lambda m, op: m.kinds[0] == "cuda")


_declare("inline_asm", "")
_declare("inline_asm_with_effect", "act")
