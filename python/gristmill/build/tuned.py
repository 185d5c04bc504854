"""Rows of tuned tables as the launcher reads them; those that fit no kernel any more are left out, with a warning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.specialisation import VARIANTS
from gristmill.tuning import Row, TunedDevice, merge, read

if TYPE_CHECKING:
    from gristmill.declare import Kernel, Specialisation

AGAIN = "measure again, `python -m gristmill tune --kernel {} --out {}`, or remove the row"


@dataclass(frozen=True, order=True)
class TunedRow:
    """A row whose device, specialisation and variant are indices; `named` has a bit for each constant."""

    device: int
    key: tuple[int, ...]
    specialisation: int
    variant: int
    named: int


@dataclass
class TunedTables:
    """The rows by kernel, the devices that they name, and what is wrong with those that were left out."""

    rows: dict[str, tuple[TunedRow, ...]] = field(default_factory=dict)
    devices: tuple[TunedDevice, ...] = ()
    warnings: list[str] = field(default_factory=list)


def read_tables(paths: Sequence[Path], kernels: Sequence[Kernel]) -> TunedTables:
    """Read the tables of a build. Raises GristmillError for a file that is none."""
    tables = TunedTables()
    by_name = {kernel.name: kernel for kernel in kernels}
    kept: list[Row] = []
    for path in paths:
        rows = read(path)
        problems = {i: _problem(row, by_name, path) for i, row in enumerate(rows)}
        tables.warnings += dict.fromkeys(text for text in problems.values() if text)
        kept = merge(kept, [row for i, row in enumerate(rows) if not problems[i]])
    tables.devices = tuple(sorted({row.place for row in kept}))
    for kernel in kernels:
        mine = [_indices(row, kernel, tables.devices) for row in kept if row.kernel == kernel.name]
        tables.rows[kernel.name] = tuple(sorted(mine))
    return tables


def _problem(row: Row, kernels: dict[str, Kernel], path: Path) -> str:
    """What keeps a row from being used, with a fix; "": nothing."""
    kernel = kernels.get(row.kernel)
    again = AGAIN.format(row.kernel, path.name)
    if kernel is None:
        return (
            f"{path.name}: there is no kernel `{row.kernel}`, and its tuned rows are left out\n  fix: remove its table"
        )
    names = [name for name, _ in kernel.key]
    if list(row.names) != names:
        return f"{path.name}: `{row.kernel}` was tuned for the key {list(row.names)}, and has {names}\n  fix: {again}"
    found = _find(row, kernel)
    if found is None:
        return f"{path.name}: a tuned row takes `{row.take}`, which is not built any more\n  fix: {again}"
    if list(row.dtypes) != [dtype.name for _, dtype in found.dtypes] or not _has(found, row.constants):
        return f"{path.name}: a tuned row takes `{row.take}`, which has other dtypes or constants\n  fix: {again}"
    if row.variant not in {variant.name for variant in found.variants}:
        return f"{path.name}: `{row.take}` is compiled for aligned calls only, not `{row.variant}`\n  fix: {again}"
    return ""


def _find(row: Row, kernel: Kernel) -> Specialisation | None:
    return next((s for s in kernel.specialisations() if s.id == row.take), None)


def _has(specialisation: Specialisation, constants: Iterable[tuple[str, object]]) -> bool:
    values = dict(specialisation.constants)
    return all(name in values and repr(values[name]) == repr(value) for name, value in constants)


def _indices(row: Row, kernel: Kernel, devices: Sequence[TunedDevice]) -> TunedRow:
    specialisation = [s.id for s in kernel.specialisations()].index(row.take)
    variant = [variant.name for variant in VARIANTS].index(row.variant)
    named = sum(1 << kernel.constant_names.index(name) for name, _ in row.constants)
    return TunedRow(devices.index(row.place), row.key, specialisation, variant, named)
