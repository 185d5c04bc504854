"""Compiled code as it travels: out of a worker process, through the cache, into the manifest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gristmill.dtypes import Dtype, parse_dtype
from gristmill.tensor_map import TensorMap


@dataclass(frozen=True)
class Code:
    """What one compilation gave for one variant; equal symbols are one piece of code that serves several variants."""

    symbol: str
    code: bytes
    threads: int
    shared_bytes: int
    ctas: int
    written: tuple[str, ...]
    read: tuple[str, ...]
    divisibility: dict[str, int]
    ptx_version: int | None
    tensor_maps: tuple[TensorMap, ...]
    draws: bool = False

    @property
    def waits(self) -> bool:
        """Whether the code itself waits for the kernel before it, so that it may be launched while that one ends."""
        return b"griddepcontrol.wait" in self.code


FIELDS = (
    "symbol",
    "threads",
    "shared_bytes",
    "ctas",
    "written",
    "read",
    "divisibility",
    "ptx_version",
    "tensor_maps",
    "draws",
)


def pack_codes(artifacts: Sequence[Any]) -> bytes:
    """Serialise artifacts (anything with the attributes of `Code`); code under an equal symbol is stored once."""
    codes = {a.symbol: a.code for a in artifacts}
    rows = [{name: getattr(a, name) for name in FIELDS} for a in artifacts]
    header = {"rows": rows, "sizes": {symbol: len(code) for symbol, code in codes.items()}}
    return json.dumps(header, default=_plain).encode() + b"\n" + b"".join(codes.values())


def unpack_codes(data: bytes) -> list[Code]:
    """Undo `pack_codes`. Raises ValueError if `data` is not whole."""
    line, _, body = data.partition(b"\n")
    header = json.loads(line)
    if len(body) != sum(header["sizes"].values()):
        raise ValueError("packed code is truncated")
    codes, offset = {}, 0
    for symbol, size in header["sizes"].items():
        codes[symbol] = body[offset : offset + size]
        offset += size
    return [_code(row, codes[row["symbol"]]) for row in header["rows"]]


def rename_symbol(code: Code, symbol: str) -> Code:
    """Return PTX `code` with its entry called `symbol`."""
    text = code.code.replace(code.symbol.encode(), symbol.encode())
    return replace(code, symbol=symbol, code=text)


def _code(row: dict[str, Any], code: bytes) -> Code:
    maps = tuple(_tensor_map(fields) for fields in row["tensor_maps"])
    touched = {name: tuple(row[name]) for name in ("written", "read")}
    return Code(**{**row, **touched, "code": code, "tensor_maps": maps})


def _plain(thing: object) -> object:
    """What stands in JSON for a tensor map or its dtype."""
    return thing.name if isinstance(thing, Dtype) else vars(thing)


def _tensor_map(fields: dict[str, Any]) -> TensorMap:
    codes = {name: tuple(map(tuple, fields[name])) for name in ("extents", "strides")}
    return TensorMap(**{**fields, **codes, "dtype": parse_dtype(fields["dtype"]), "box": tuple(fields["box"])})
