"""Memory on the CPU: elements by index, vectors where addresses follow each other, gathers and scatters elsewhere."""

from __future__ import annotations

from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.ir import Op, Pointer
from gristmill.compiler.machine import V
from gristmill.compiler.targets.host_tiles import Buffer, Index
from gristmill.dtypes import Dtype


def kept_type(m: Any, dtype: Dtype | Pointer) -> str:
    """The type of an element in memory; bools are bytes."""
    return "i8" if dtype == dt.bool_ else str(m.element_type(dtype))


def _kept(dtype: Any) -> Any:
    return dt.u8 if dtype == dt.bool_ else dtype


def _alignment(dtype: Dtype | Pointer) -> int:
    return max(1, dtype.bits // 8)


def read_element(m: Any, address: V, dtype: Dtype | Pointer, how: str = "load") -> V:
    """Load one element."""
    loaded = m.emit(f"{how} {kept_type(m, dtype)}, ptr {address.text}, align {_alignment(dtype)}", _kept(dtype))
    return m.cast(loaded, dt.bool_) if dtype == dt.bool_ else loaded


def number(m: Any, index: Index, value: int) -> V:
    """An i64 constant."""
    return m.constant(dt.i64, value)


def positions(m: Any, index: Index) -> V:
    """The positions as they are: a vector for runs, a scalar for one."""
    if index.kind != "run" or index.lanes == 0:
        return index.at
    if "positions" not in index.memo:
        steps = V("<" + ", ".join(f"i64 {i}" for i in range(index.lanes)) + ">", dt.i64, index.lanes)
        index.memo["positions"] = m.add(m.widen(index.at, index.lanes), steps)
    return index.memo["positions"]


def coordinate(m: Any, index: Index, shape: tuple[int, ...], axis: int) -> V:
    """The coordinate along `axis` of each position, which is i64."""
    inner = 1
    for size in shape[axis + 1 :]:
        inner *= size
    if index.kind == "run" and axis == len(shape) - 1 and index.lanes <= shape[-1]:
        start = _within(m, index.at, 1, shape[axis], len(shape) > 1)
        return positions(m, Index("run", start, index.lanes))
    is_uniform = index.kind == "run" and index.lanes <= inner
    at = index.at if is_uniform else positions(m, index)
    return _within(m, at, inner, shape[axis], axis > 0)


def _within(m: Any, at: V, inner: int, size: int, is_inner: bool) -> V:
    if inner > 1:
        at = m.emit(
            f"lshr {m.typed(at)}, {m.widen(m.constant(dt.i64, inner.bit_length() - 1), at.lanes).text}",
            dt.i64,
            at.lanes,
        )
    return m.bit_and(at, m.constant(dt.i64, size - 1)) if is_inner else at


def moved(m: Any, index: Index, shape: tuple[int, ...], strides: list[int]) -> Index:
    """The index into a source whose axes have `strides` (0 where it repeats), for an index into `shape`."""
    key = ("moved", shape, tuple(strides))
    if key not in index.memo:
        index.memo[key] = _moved(m, index, shape, strides)
    return index.memo[key]


def _moved(m: Any, index: Index, shape: tuple[int, ...], strides: list[int]) -> Index:
    if index.kind == "one" or (index.kind == "run" and index.lanes <= shape[-1] and strides[-1] in (0, 1)):
        at = _source(m, Index("one", index.at, 0), shape, strides)
        return Index("run", at, index.lanes) if index.kind == "run" and strides[-1] == 1 else Index("one", at, 0)
    return Index("some", m.widen(_source(m, index, shape, strides), index.lanes), index.lanes)


def _source(m: Any, index: Index, shape: tuple[int, ...], strides: list[int]) -> V:
    total = m.constant(dt.i64, 0)
    for axis, stride in enumerate(strides):
        if stride:
            total = m.add(total, m.multiply(coordinate(m, index, shape, axis), m.constant(dt.i64, stride)))
    return total


def read(m: Any, buffer: Buffer, index: Index) -> V:
    """Read a tile in memory at an index."""
    dtype = buffer.address.dtype.element  # type: ignore[union-attr]
    if index.kind == "some":
        return _gather(m, m.offset(buffer.address, index.at), dtype)
    address = m.offset(buffer.address, index.at)
    loaded = m.emit(
        f"load {m.type_of(_kept(dtype), index.lanes)}, ptr {address.text}, align {_alignment(dtype)}",
        _kept(dtype),
        index.lanes,
    )
    return m.cast(loaded, dtype)


def write(m: Any, buffer: Buffer, index: Index, x: V) -> None:
    """Write a run of a tile to its memory."""
    dtype = buffer.address.dtype.element  # type: ignore[union-attr]
    stored = m.widen(m.cast(x, _kept(dtype)), index.lanes)
    m.say(f"store {m.typed(stored)}, ptr {m.offset(buffer.address, index.at).text}, align {_alignment(dtype)}")


def _gather(m: Any, addresses: V, dtype: Any) -> V:
    return _masked_gather(m, addresses, m.widen(m.constant(dt.bool_, True), addresses.lanes), None, dtype)


def _masked_gather(m: Any, addresses: V, mask: V, other: V | None, dtype: Any) -> V:
    kept, lanes = _kept(dtype), addresses.lanes
    vector, suffix = m.type_of(kept, lanes), _suffix(m, kept, lanes)
    filler = m.widen(m.cast(other, kept), lanes).text if other is not None else "zeroinitializer"
    name = f"llvm.masked.gather.{suffix}.v{lanes}p0"
    m.declarations.add(f"declare {vector} @{name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {vector})")
    arguments = f"{m.typed(addresses)}, i32 {_alignment(dtype)}, {m.typed(m.widen(mask, lanes))}, {vector} {filler}"
    return m.cast(m.emit(f"call {vector} @{name}({arguments})", kept, lanes), dtype)


def _suffix(m: Any, dtype: Any, lanes: int) -> str:
    text = m.element_type(dtype)
    names = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64", "ptr": "p0"}
    return f"v{lanes}" + names.get(text, text)


def _is_contiguous(op: Op, index: Index) -> bool:
    return index.kind == "run" and 0 < index.lanes <= int(op.attributes.get("contiguous", 1))


def load(m: Any, op: Op, index: Index, pointers: Any, mask: Any, other: Any) -> V:
    """Load the elements at an index."""
    dtype = op.results[0].type.dtype
    guard = None if mask is None else m.at(mask, index)
    filler = None if other is None else m.at(other, index)
    if _is_contiguous(op, index):
        address = m.at(pointers, Index("one", index.at, 0, index.memo.setdefault("one", {})))
        return _load_run(m, address, index.lanes, guard, filler, dtype)
    lanes = index.lanes or 1
    addresses = m.widen(m.at(pointers, index), lanes) if index.lanes else _as_vector(m, m.at(pointers, index))
    mask_vector = m.constant(dt.bool_, True) if guard is None else guard
    if index.lanes == 0:
        return _first(
            m,
            _masked_gather(
                m, addresses, _as_vector(m, mask_vector), None if filler is None else _as_vector(m, filler), dtype
            ),
        )
    return _masked_gather(m, addresses, mask_vector, filler, dtype)


def _as_vector(m: Any, x: V) -> V:
    return m.widen(x, 1)


def _first(m: Any, x: V) -> V:
    return m.emit(f"extractelement {m.typed(x)}, i64 0", x.dtype)


def _load_run(m: Any, address: V, lanes: int, guard: V | None, filler: V | None, dtype: Any) -> V:
    kept = _kept(dtype)
    vector = m.type_of(kept, lanes)
    if guard is None:
        return m.cast(m.emit(f"load {vector}, ptr {address.text}, align {_alignment(dtype)}", kept, lanes), dtype)
    name = f"llvm.masked.load.{_suffix(m, kept, lanes)}.p0"
    m.declarations.add(f"declare {vector} @{name}(ptr, i32, <{lanes} x i1>, {vector})")
    other = m.widen(m.cast(filler, kept), lanes).text if filler is not None else "zeroinitializer"
    arguments = f"ptr {address.text}, i32 {_alignment(dtype)}, {m.typed(m.widen(guard, lanes))}, {vector} {other}"
    return m.cast(m.emit(f"call {vector} @{name}({arguments})", kept, lanes), dtype)


def store(m: Any, op: Op, index: Index, pointers: Any, value: Any, mask: Any) -> None:
    """Store the elements at an index of a sweep."""
    dtype = pointers_dtype(op)
    x = m.widen(m.cast(m.at(value, index), _kept(dtype)), index.lanes)
    guard = None if mask is None else m.widen(m.at(mask, index), index.lanes)
    if _is_contiguous(op, index):
        address = m.at(pointers, Index("one", index.at, 0, index.memo.setdefault("one", {})))
        return _store_run(m, address, x, guard, dtype)
    addresses = m.widen(m.at(pointers, index), index.lanes)
    guard = guard or m.widen(m.constant(dt.bool_, True), index.lanes)
    name = f"llvm.masked.scatter.{_suffix(m, x.dtype, index.lanes)}.v{index.lanes}p0"
    m.declarations.add(f"declare void @{name}({m.type_of(x.dtype, x.lanes)}, <{x.lanes} x ptr>, i32, <{x.lanes} x i1>)")
    m.say(f"call void @{name}({m.typed(x)}, {m.typed(addresses)}, i32 {_alignment(dtype)}, {m.typed(guard)})")


def pointers_dtype(op: Op) -> Dtype:
    """The dtype that a memory op's pointers point to."""
    dtype = op.operands[0].type.dtype
    assert isinstance(dtype, Pointer)
    return dtype.element


def _store_run(m: Any, address: V, x: V, guard: V | None, dtype: Dtype) -> None:
    if guard is None:
        return m.say(f"store {m.typed(x)}, ptr {address.text}, align {_alignment(dtype)}")
    name = f"llvm.masked.store.{_suffix(m, x.dtype, x.lanes)}.p0"
    m.declarations.add(f"declare void @{name}({m.type_of(x.dtype, x.lanes)}, ptr, i32, <{x.lanes} x i1>)")
    m.say(f"call void @{name}({m.typed(x)}, ptr {address.text}, i32 {_alignment(dtype)}, {m.typed(guard)})")


def load_scalar(m: Any, op: Op, pointer: V, mask: V | None, other: V | None) -> V:
    """Load through a scalar pointer."""
    dtype = op.results[0].type.dtype
    if mask is None:
        return read_element(m, pointer, dtype, "load volatile" if op.attributes.get("volatile") else "load")
    filler = None if other is None else _as_vector(m, other)
    return _first(m, _load_run(m, pointer, 1, _as_vector(m, mask), filler, dtype))


def store_scalar(m: Any, op: Op, pointer: V, value: V, mask: V | None) -> None:
    """Store through a scalar pointer."""
    dtype = pointers_dtype(op)
    x = _as_vector(m, m.cast(value, _kept(dtype)))
    _store_run(m, pointer, x, None if mask is None else _as_vector(m, mask), dtype)


def half_to_single(m: Any, x: V) -> V:
    """f16 to f32 in integer steps, exact: shift the fields, let a product renormalise what was denormal."""
    word = m.cast(m.bitcast(x, dt.u16), dt.u32)
    c = lambda value: m.constant(dt.u32, value)  # noqa: E731
    size = m.bit_and(word, c(0x7FFF))
    scaled = m.multiply(m.bitcast(m.shift_left(size, c(13)), dt.f32), m.constant(dt.f32, 2.0**112))
    special = m.bit_or(m.shift_left(size, c(13)), c(0x7F800000))
    kept = m.select(m.compare(">=", size, c(0x7C00)), special, m.bitcast(scaled, dt.u32))
    sign = m.shift_left(m.bit_and(word, c(0x8000)), c(16))
    return m.bitcast(m.bit_or(kept, sign), dt.f32)


def single_to_half(m: Any, x: V) -> V:
    """f32 to f16, to nearest even, in integer steps and one addition that rounds denormal results."""
    word = m.bitcast(x, dt.u32)
    c = lambda value: m.constant(dt.u32, value)  # noqa: E731
    sign, size = m.bit_and(word, c(0x80000000)), m.bit_and(word, c(0x7FFFFFFF))
    tiny = m.add(m.bitcast(size, dt.f32), m.constant(dt.f32, 0.5))
    denormal = m.subtract(m.bitcast(tiny, dt.u32), c(0x3F000000))
    odd = m.bit_and(m.shift_right(size, c(13)), c(1))
    normal = m.shift_right(m.add(size, m.add(odd, c(0xC8000FFF))), c(13))
    special = m.select(m.compare(">", size, c(0x7F800000)), c(0x7E00), c(0x7C00))
    result = m.select(m.compare("<", size, c(0x38800000)), denormal, normal)
    result = m.select(m.compare(">=", size, c(0x47800000)), special, result)
    return m.bitcast(m.cast(m.bit_or(result, m.shift_right(sign, c(16))), dt.u16), dt.f16)
