"""Tensor maps: how the hardware is told of the arrays from which it copies blocks for tensor cores.

A window is kept where everything about its array is known at the launch: a pointer parameter, sizes and strides that
follow from parameters, strides that can be promised to be multiples of 16 bytes. One window that is not, and the
kernel reads all of them through pointers.
"""

from __future__ import annotations

import math

from gristmill import symbolic
from gristmill.compiler.facts import Facts
from gristmill.compiler.ir import (
    Block,
    Function,
    Op,
    Pointer,
    Statement,
    Tile,
    Value,
    addressed,
    definitions,
    sources,
    uses,
    walk,
)
from gristmill.compiler.op import Builder, building
from gristmill.compiler.passes import access
from gristmill.compiler.tensor import (
    GROUP_DEPTH_BYTES,
    GROUP_ROWS,
    GROUP_WARPS,
    MOST_COLUMNS,
    PANEL_BYTES,
    fits_groups,
    panel_bytes,
)
from gristmill.dtypes import Dtype, bf16, f8e4m3, f8e5m2, f16, f32, i8, i32, u8
from gristmill.language import descriptors
from gristmill.language.windows import padded_shape, parts_of, tile_of
from gristmill.tensor_map import TensorMap

KINDS = (f16, bf16, f32, f8e4m3, f8e5m2, i8, u8, i32)
MOST_MAPS = 8  # that a launcher passes
MOST_ROWS = 256  # of a box
SWAPPED_ROWS = 32  # of one that is stored, of a product that is computed as another's transpose
CHUNK_BYTES, LEAST_PANEL = 16, 32
NARROWEST = 32  # integer whose values are as a launcher computes them
ROWS = 8  # over which chunks change places


def windows_of(function: Function) -> list[Op]:
    """The windows that the program reads by itself; also those that it writes, while warps have no roles."""
    windows = [s for s in walk(function.body) if isinstance(s, Op) and s.row.is_window]
    return [op for op in windows if op.results or function.producer is None]


def keep(function: Function) -> bool:
    """Give each window its map if the hardware can copy them all: as operands of warpgroups' products.

    What it stores must be an array that nothing else in the kernel touches.
    """
    _drop_axes(function.body, uses(function.body))
    made, windows = definitions(function.body), windows_of(function)
    known = promised_facts(function)
    products = [s for s in walk(function.body) if isinstance(s, Op) and s.row.is_product]
    operands = {source_of(value, made) for op in products for value in op.operands[:2]}
    loads, stores = ([op for op in windows if bool(op.results) == is_load] for is_load in (True, False))
    kept = {op for op in stores if loads and _is_apart(op, function) and is_known(op, function, made, known)}
    _expand(function.body, set(stores) - kept)
    windows = [op for op in windows if op in kept or op in loads]
    if not all(op in operands and is_known(op, function, made, known) for op in loads):
        return False
    if windows and not all(_is_fit(op, function, made) for op in products):
        return False
    found = [_map(op, function, made) for op in windows]
    function.maps = list(dict.fromkeys(found))
    for op, tensor_map in zip(windows, found, strict=True):
        size = tensor_map.box_bytes * len(tensor_map.boxes(*op.attributes["block"][-2:]))
        op.attributes |= {"map": function.maps.index(tensor_map), "bytes": size}
        op.attributes |= {"panel": tensor_map.swizzle, "elements": _room(op), "buffers": 1}
        op.attributes |= {"chunk": _chunk(op, function)}
    return len(function.maps) <= MOST_MAPS


def _expand(block: Block, stores: set[Op]) -> None:
    """Write these through pointers."""
    statements: list[Statement] = []
    for statement in block.statements:
        for inner in statement.blocks:
            _expand(inner, stores)
        if statement not in stores:
            statements.append(statement)
            continue
        expanded = Block()
        with building(Builder(expanded)) as builder:
            builder.position = statement.position
            base, shape, strides, offsets = parts_of(statement)
            block_shape = statement.attributes["block"]
            is_added = statement.row.effect == "update"
            descriptors.store_block(base, shape, strides, offsets, block_shape, statement.operands[-1], is_added)
        statements += expanded.statements
    block.statements[:] = statements


def _is_apart(store: Op, function: Function) -> bool:
    """Whether nothing else reads or writes the array."""
    links = sources(function.body)
    others = [s for s in walk(function.body) if isinstance(s, Op) and s.row.touches_memory and s is not store]
    return not any(store.operands[0] in addressed(op.operands[0], links, function) for op in others)


def _tile(op: Op) -> Tile:
    """The type of what is loaded or stored."""
    return tile_of(op).type


def _is_fit(product: Op, function: Function, made: dict[Value, Statement]) -> bool:
    """Whether warpgroups can multiply; padding may only be behind the columns that one instruction computes, and behind
    the depth that whole instructions take."""
    a, b = (v.type for v in product.operands[:2])
    if not is_for_groups(product, made, function.num_warps):
        return False
    left, right = (used_shape(value, made) for value in product.operands[:2])
    is_whole = b.shape[1] <= MOST_COLUMNS and a.shape[0] * GROUP_WARPS >= GROUP_ROWS * function.num_warps
    is_padded = right[1] != b.shape[1]
    rows = (a.shape[0], GROUP_ROWS * function.present_warps // GROUP_WARPS)
    has_rows = left[0] in rows and left[1:] == a.shape[1:]
    is_computed = window_of(product.operands[0], made) is None
    has_depth = right[0] == b.shape[0] or (is_computed and right[0] * b.dtype.itemsize % GROUP_DEPTH_BYTES == 0)
    return has_rows and has_depth and (not is_padded or (is_whole and right[1] % 8 == 0))


def is_for_groups(product: Op, made: dict[Value, Statement], num_warps: int) -> bool:
    """Whether warpgroups can compute a product. f32 has to lie along the depth, or to be copied so."""
    a, b = (v.type for v in product.operands[:2])
    assert isinstance(a.dtype, Dtype)
    are_windows = all(window_of(value, made) for value in product.operands[:2])
    is_fit = are_windows and (a.dtype == f32 or not any(lie_across(product, made)))
    if needs_parts(product, made) or is_taken(product, made):
        is_whole = all(used_shape(v, made) == v.type.shape for v in product.operands[:2])
        is_large = min(a.shape[0] * GROUP_WARPS, b.shape[1] * num_warps) >= GROUP_ROWS * num_warps
        is_fit &= is_whole and is_large and product.attributes["precision"] != "ieee"
    return fits_groups(a.shape, b.shape, a.dtype, num_warps, is_fit)


def lie_across(product: Op, made: dict[Value, Statement]) -> list[bool]:
    """Of both operands of a product, whether elements that are read side by side lie across the depth."""
    is_turned = [source_of(value, made) is not made.get(value) for value in product.operands[:2]]
    return [is_turned[0], not is_turned[1]]


def is_exact(product: Op) -> bool:
    """Whether operands of f32 are multiplied in two parts."""
    return product.operands[0].type.dtype == f32 and product.attributes.get("precision", "tf32") != "tf32"


def is_taken(product: Op, made: dict[Value, Statement]) -> bool:
    """Whether warpgroups take the left operand, of f32, to registers: it is multiplied in parts, or lies across."""
    return is_exact(product) or (product.operands[0].type.dtype == f32 and lie_across(product, made)[0])


def needs_parts(product: Op, made: dict[Value, Statement]) -> bool:
    """Whether warpgroups multiply copies of the right operand, of f32: a turned one, or in two parts."""
    return is_exact(product) or (product.operands[0].type.dtype == f32 and lie_across(product, made)[1])


def room_of_parts(product: Op, made: dict[Value, Statement], num_warps: int) -> int:
    """How many bytes the copies take; each warpgroup has its own."""
    kind, copies = product.operands[1].type, lie_across(product, made)[1] + is_exact(product)
    return kind.bytes * copies * (num_warps // GROUP_WARPS)


def used_shape(value: Value, made: dict[Value, Statement]) -> tuple[int, ...]:
    """The shape of an operand of a product without what pads a window."""
    window = window_of(value, made)
    if window is None:
        return value.type.shape
    block: tuple[int, ...] = window.attributes["block"][-2:]
    return block if window.results[0] is value else block[::-1]


def window_of(value: Value, made: dict[Value, Statement]) -> Op | None:
    """The window that an operand of a product is read by, if it is one."""
    source = source_of(value, made)
    return source if isinstance(source, Op) and source.row.is_window else None


def source_of(value: Value, made: dict[Value, Statement]) -> Statement | None:
    """What an operand of a product is read by, if it is only turned."""
    op = made.get(value)
    is_turned = isinstance(op, Op) and op.row.is_view and op.attributes.get("order") == (1, 0)
    return made.get(op.operands[0]) if is_turned else op  # type: ignore[union-attr]


def _drop_axes(block: Block, counts: dict[Value, int]) -> None:
    """Let windows of one matrix of many be matrices, where all that follows, or leads there, is a reshape."""
    made, kept = definitions(block), list[Statement]()
    for statement in block.statements:
        for inner in statement.blocks:
            _drop_axes(inner, counts)
        is_regrouped = isinstance(statement, Op) and statement.row.is_view and "order" not in statement.attributes
        source = made.get(statement.operands[0]) if is_regrouped else None
        is_window = isinstance(source, Op) and source.row.is_window and counts[source.results[0]] == 1
        if is_window and _is_matrix_of(statement.results[0].type.shape, source.attributes["block"]):  # type: ignore
            source.results = statement.results  # type: ignore[union-attr]
            continue
        if isinstance(statement, Op) and statement.row.is_window and not statement.results:
            view = made.get(statement.operands[-1])
            is_regrouped = isinstance(view, Op) and view.row.is_view and "order" not in view.attributes
            if is_regrouped and _is_matrix_of(view.operands[0].type.shape, statement.attributes["block"]):  # type: ignore
                statement.operands[-1] = view.operands[0]  # type: ignore[union-attr]
        kept.append(statement)
    block.statements[:] = kept


def _is_matrix_of(shape: tuple[int, ...], block: tuple[int, ...]) -> bool:
    return shape == padded_shape(block[-2:]) and math.prod(block[:-2]) == 1


def promised_facts(function: Function) -> dict[Value, Facts]:
    """What is known of values if a launcher promises that integers are multiples of 16 bytes, whatever the dtype."""
    return access.facts_of(function, {v: CHUNK_BYTES for v in function.parameters if access.is_index(v)})


def is_known(op: Op, function: Function, made: dict[Value, Statement], known: dict[Value, Facts]) -> bool:
    """Whether a launcher can make a map of the array, and blocks of it begin where the hardware copies any."""
    base, shape, strides, offsets = parts_of(op)
    dtype, block = _tile(op).dtype, op.attributes["block"]
    is_matrix = len(_tile(op).shape) == 2 and dtype in KINDS
    if not is_matrix or base not in function.parameters or function.facts.get(base, 1) % CHUNK_BYTES:
        return False
    codes = [_code(value, function, made) for value in (*shape, *strides)]
    is_narrow = all(value.type.dtype == i32 for value in offsets)
    is_even = block[-2] % ROWS == 0 and block[-1] * dtype.itemsize % LEAST_PANEL == 0
    is_even &= all(_facts(v, known, made).each % count == 0 for v, count in access.aligned_places(op))
    return None not in codes and is_narrow and is_even


def _facts(value: Value, known: dict[Value, Facts], made: dict[Value, Statement]) -> Facts:
    """What is known of a number, which may be made of others that are known."""
    op = made.get(value)
    if value in known or not isinstance(op, Op) or op.row.facts_function is None:
        return known.get(value, Facts())
    found: Facts = op.row.facts_function(op, *(_facts(v, known, made) for v in op.operands))
    return found


def _code(value: Value, function: Function, made: dict[Value, Statement]) -> symbolic.Code | None:
    """The expression of a number that is known at the launch."""
    dtype, op = value.type.dtype, made.get(value)
    if not (isinstance(dtype, Dtype) and dtype.is_int and dtype.bits >= NARROWEST):
        return None
    if value in function.parameters:
        return (symbolic.Op.PARAM, function.parameters.index(value))
    if not isinstance(op, Op):
        return None
    if not op.operands and "value" in op.attributes:
        return (symbolic.Op.CONST, op.attributes["value"])
    parts = [_code(v, function, made) for v in op.operands]
    if None in parts or not (op.row.is_cast or op.row.expression):
        return None
    words = [word for part in parts for word in part or ()]
    if op.row.is_cast:
        return tuple(words) if op.operands[0].type.dtype.bits <= dtype.bits else None
    is_rounded = op.row.expression == symbolic.Op.FLOORDIV
    return (*words, op.row.expression) if not is_rounded or _divides_down(op, function, made) else None


def _divides_down(op: Op, function: Function, made: dict[Value, Statement]) -> bool:
    """Whether a division rounds as a launcher's do: of what is never negative by a constant, or by such a number.

    Lengths that are divided by 0 are 0 to the launcher, which makes no map of those.
    """
    divisor = made.get(op.operands[1])
    number = divisor.attributes.get("value", 0) if isinstance(divisor, Op) and not divisor.operands else 0
    is_positive = number > 0 or _is_never_negative(op.operands[1], function, made)
    return is_positive and _is_never_negative(op.operands[0], function, made)


def _is_never_negative(value: Value, function: Function, made: dict[Value, Statement]) -> bool:
    op = made.get(value)
    if not isinstance(op, Op) or op.row.sign_function is None:
        return value in function.never_negative
    return bool(op.row.sign_function(op, *(_is_never_negative(v, function, made) for v in op.operands)))


def _map(op: Op, function: Function, made: dict[Value, Statement]) -> TensorMap:
    base, shape, strides, _ = parts_of(op)
    dtype, block = _tile(op).dtype, op.attributes["block"]
    assert isinstance(dtype, Dtype) and isinstance(base.type.dtype, Pointer)
    codes = [[_code(v, function, made) or () for v in reversed(values)] for values in (shape, strides)]
    width = panel_bytes(block[-1] * dtype.itemsize)
    is_by_groups = not op.results and block[-2] * GROUP_WARPS == GROUP_ROWS * function.present_warps
    most = GROUP_ROWS if is_by_groups else MOST_ROWS  # what each warpgroup can store alone
    if not op.results and function.has_swapped:
        most = SWAPPED_ROWS
    rows = min(block[-2], most) // op.attributes.get("parts", 1)
    box = (width // dtype.itemsize, rows, *(1 for _ in block[:-2]))
    name = function.parameters[function.parameters.index(base)].name
    return TensorMap(name, dtype, tuple(codes[0]), tuple(codes[1][1:]), box, width)


def _chunk(op: Op, function: Function) -> tuple[int, int]:
    """How many rows, and bytes of each, warpgroups store at once: a panel of all rows, or all where they share rows; of
    products that are swapped, whose threads have columns, some rows."""
    rows, width = _tile(op).shape[0], op.attributes["block"][-1] * _tile(op).dtype.itemsize
    if function.has_swapped:
        return min(rows, SWAPPED_ROWS), width
    have_rows = op.attributes["block"][-2] * GROUP_WARPS >= GROUP_ROWS * function.num_warps
    return rows, min(width, PANEL_BYTES) if have_rows else width


def _room(op: Op) -> int:
    """How many elements of shared memory the block takes: panels lie as far apart as those of the padded tile."""
    (rows, columns), (padded, _), size = op.attributes["block"][-2:], _tile(op).shape, _tile(op).dtype.itemsize
    width = panel_bytes(columns * size) // size
    count = columns // width
    return width * (padded * (count - 1) + rows)
