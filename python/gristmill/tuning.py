"""Tuned tables as files: which configuration was measured to be the fastest for which calls, on which device.

A file is TOML: `[[table]]` for each kernel and device, in it a row on each line. Built packages read it when they are
built (`TUNING` in CMake) or when they run (`load_tuning`); `python -m gristmill tune` writes it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.errors import GristmillError

HEAD = "# Measured by `python -m gristmill tune`, which replaces rows for the same calls and keeps the others.\n"
VARIANT_NAMES = ("a32", "g32", "g64")  # as in `gristmill.specialisation.VARIANTS`
FIX = "write it by `python -m gristmill tune --out FILE`"
Constant = bool | int | float | str


@dataclass(frozen=True, order=True)
class TunedDevice:
    """A device by its name; `architecture` is "sm_90" or "x86-64-v3", `units` counts multiprocessors or threads."""

    device: str
    architecture: str
    units: int


@dataclass(frozen=True)
class Row:
    """The fastest specialisation (`take`) for the calls of one key, and what it took beside the formula's choice.

    `names` are the texts of the kernel's `key=`, `key` their values. `constants` are those that the calls name;
    `variant` is what they take of the specialisation: aligned, general or for 64-bit offsets.
    """

    kernel: str
    place: TunedDevice
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    constants: tuple[tuple[str, Constant], ...]
    key: tuple[int, ...]
    variant: str
    take: str
    us: float = 0.0
    formula_us: float = 0.0

    @property
    def calls(self) -> tuple[Any, ...]:
        """What two rows for the same calls have in common; rows are sorted by it."""
        constants = tuple((name, str(value)) for name, value in self.constants)
        return (self.kernel, self.place, self.names, self.dtypes, constants, self.key, self.variant)


def read(path: Path) -> list[Row]:
    """Return the rows of a file. Raises GristmillError that names the file if it is missing or no tuned table."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GristmillError(f"`{path}` cannot be read: {error.strerror}", fix="check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GristmillError(f"`{path}` is no tuned table: {error}", fix=FIX) from None
    try:
        return [row for table in content.get("table", []) for row in _rows(table)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)
        raise GristmillError(f"`{path}` is no tuned table: {what}", fix=FIX) from None


def merge(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Return the rows of both, sorted; of rows for the same calls the new one, and none with another key."""
    latest = {row.kernel: row.names for row in new}
    found = {row.calls: row for row in old if latest.get(row.kernel, row.names) == row.names}
    found |= {row.calls: row for row in new}
    return [found[calls] for calls in sorted(found)]


def save(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a file, in place of those for the same calls; make it if need be."""
    old = read(path) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(merge(old, rows)), encoding="utf-8")


def content_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what a file of these rows holds, as `load_tuning` takes it."""
    tables: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in rows:
        head = {"kernel": row.kernel, **vars(row.place), "key": list(row.names), "rows": []}
        tables.setdefault((row.kernel, row.place, row.names), head)["rows"].append(_fields(row))
    return {"table": list(tables.values())}


def text_of(rows: Sequence[Row]) -> str:
    """Return the text of a file of these rows."""
    parts = [HEAD]
    for table in content_of(rows)["table"]:
        head = [f"{name} = {_toml(value)}" for name, value in table.items() if name != "rows"]
        lines = [f"  {_toml(row)}," for row in table["rows"]]
        parts.append("\n".join(["[[table]]", *head, "rows = [", *lines, "]\n"]))
    return "\n".join(parts)


def _rows(table: Mapping[str, Any]) -> Iterable[Row]:
    place = TunedDevice(_text(table["device"]), _text(table["architecture"]), int(table["units"]))
    names = tuple(map(_text, table["key"]))
    for row in table["rows"]:
        key = tuple(int(value) for value in row["key"])
        if len(key) != len(names):
            raise ValueError(f"a row of {table['kernel']} has {len(key)} numbers for the key {list(names)}")
        if row["variant"] not in VARIANT_NAMES:
            raise ValueError(f"`{row['variant']}` is no variant: there are {', '.join(VARIANT_NAMES)}")
        constants = tuple(sorted(row.get("constants", {}).items()))
        times = (float(row.get("us", 0)), float(row.get("formula_us", 0)))
        dtypes = tuple(map(_text, row["dtypes"]))
        yield Row(
            _text(table["kernel"]), place, names, dtypes, constants, key, row["variant"], _text(row["take"]), *times
        )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"found `{value!r}` where a text is needed")
    return value


def _fields(row: Row) -> dict[str, Any]:
    fields: dict[str, Any] = {"dtypes": list(row.dtypes)}
    if row.constants:
        fields["constants"] = dict(row.constants)
    times = {"us": row.us, "formula_us": row.formula_us}
    return fields | {"key": list(row.key), "variant": row.variant, "take": row.take} | times


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04X}" for c in escaped) + '"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)
