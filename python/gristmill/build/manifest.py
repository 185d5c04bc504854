"""The table of images: kernels, specialisations and code in the shape of `csrc/tables.hpp`, with duplicates merged."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gristmill.build.code import Code, rename_symbol
from gristmill.build.ptxas import Assembled, Usage
from gristmill.build.settings import Cubin, Settings, split_name
from gristmill.build.tuned import TunedRow, TunedTables
from gristmill.build.worker import position_of
from gristmill.compiler.targets import find_target
from gristmill.dtypes import Dtype
from gristmill.errors import BuildError
from gristmill.specialisation import VARIANTS, Variant
from gristmill.tuning import TunedDevice

if TYPE_CHECKING:
    from gristmill.declare import Kernel, Parameter, Specialisation

# (specialisation id, target) -> code by variant
Codes = Mapping[tuple[str, str], Sequence[Code]]


NOT_BUILT = (0, 0, 0, 0, 0)  # the geometry of an entry that a target does not have
MOST_MAPS, MOST_MAP_AXES = 8, 5  # for which the launcher has room (`csrc/tables.hpp`)
MOST_PARAMETERS = 96  # of a kernel; the launcher's (`csrc/view.hpp`)
MOST_THREADS = 1024  # of a block, on every device
UNKNOWN = Usage(0, 0, 0)


@dataclass(frozen=True)
class ImageRow:
    """One image, before compression; `name` is for people. Images of one `group` are compressed together.

    `source` is the number of the CUDA target whose code it is made of.
    """

    kind: str
    sm: int
    suffix: str
    ptx_version: int
    data: bytes
    name: str
    group: str = ""
    source: int = 0
    kernel: str = ""


@dataclass(frozen=True)
class MapRow:
    """A tensor map (`gristmill.tensor_map`) whose parameter is an index."""

    parameter: int
    dtype: Dtype
    extents: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    box: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True)
class EntryRow:
    """One entry; `geometry` by CUDA target: threads, dynamic shared bytes, blocks of a cluster, 1 if it waits, and
    1 if it draws tiles.

    `maps` by CUDA target: the tensor maps that its code takes behind the kernel's parameters.
    """

    symbol: str
    geometry: tuple[tuple[int, ...], ...]
    maps: tuple[tuple[MapRow, ...], ...]
    host: tuple[str, ...]
    ptx: tuple[int, ...]


@dataclass(frozen=True)
class SpecialisationRow:
    """One specialisation; `entries` are its variants, in the order of VARIANTS, None where there is no code."""

    id: str
    dtypes: tuple[Dtype, ...]
    constants: tuple[object, ...]
    num_warps: int
    num_stages: int
    divisibility: tuple[tuple[int, ...], ...]
    entries: tuple[EntryRow | None, ...]
    backward: int


@dataclass(frozen=True)
class ParameterRow:
    name: str
    kind: str
    dtype_var: int
    dtype: Dtype | None
    tensor: int
    axis: int
    is_read: bool
    is_written: bool
    is_strided: bool
    default: object
    extent: tuple[int, ...]


@dataclass(frozen=True)
class KernelRow:
    """One kernel; `usage` by cubin, specialisation and variant of VARIANTS.

    `configured` has a bit for each constant that configurations set; `key` is code by its text.
    """

    name: str
    doc: str
    source: str
    file: str
    parameters: tuple[ParameterRow, ...]
    dtype_vars: tuple[str, ...]
    constants: tuple[str, ...]
    specialisations: tuple[SpecialisationRow, ...]
    grid: tuple[tuple[int, ...], ...]
    pick: tuple[int, ...]
    padded: tuple[int, ...]
    backward: int
    cubins: tuple[int, ...]
    usage: tuple[Usage, ...]
    prefer: tuple[int, ...] = ()
    configured: int = 0
    key: tuple[tuple[str, tuple[int, ...]], ...] = ()
    tuned: tuple[TunedRow, ...] = ()


@dataclass
class Manifest:
    """Everything that `embed` writes; `objects` are host object files by symbol, `owners` their kernels by symbol."""

    package: str
    version: str
    host_levels: tuple[str, ...]
    kernels: list[KernelRow] = field(default_factory=list)
    images: list[ImageRow] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    tuned_devices: tuple[TunedDevice, ...] = ()


def unify_symbols(codes: Codes, specialisation: Specialisation, targets: Sequence[str]) -> dict[str, list[Code]]:
    """Return the CUDA code of a specialisation by target, each variant under one symbol on all targets that have it.

    Where one target has the same code for two variants and another has not, the variants keep a symbol each.
    """
    by_target = {t: list(codes[specialisation.id, t]) for t in targets if codes.get((specialisation.id, t))}
    for i, variant in enumerate(specialisation.variants):
        symbols = {rows[i].symbol for rows in by_target.values()}
        if len(symbols) > 1:
            for rows in by_target.values():
                rows[i] = rename_symbol(rows[i], specialisation.symbol(variant))
    return by_target


class ManifestBuilder:
    """Adds kernels one by one; equal images are stored once."""

    def __init__(self, settings: Settings, kernels: Sequence[Kernel], codes: Codes, tuned: TunedTables | None = None):
        self._settings = settings
        self._kernels = kernels
        self._codes = codes
        self._cuda = {
            s.id: unify_symbols(codes, s, settings.cuda_targets) for k in kernels for s in k.specialisations()
        }
        self._image_indices: dict[tuple[Any, ...], int] = {}
        levels = tuple(target.replace("-", "_") for target in settings.host_targets)
        self._tuned = tuned or TunedTables()
        self._manifest = Manifest(settings.package, settings.version, levels, tuned_devices=self._tuned.devices)

    def ptx_of(self, kernel: Kernel, target: str) -> list[tuple[str, Code]]:
        """Return each distinct entry of `kernel` for `target`, with the specialisation that it is of."""
        found: dict[str, tuple[str, Code]] = {}
        for specialisation in kernel.specialisations():
            for code in self._cuda[specialisation.id].get(target, ()):
                found.setdefault(code.symbol, (specialisation.id, code))
        return list(found.values())

    def build(self, cubins: Mapping[tuple[str, Cubin], Assembled]) -> Manifest:
        """Return the manifest; `cubins` by kernel name and plan."""
        self._manifest.kernels = [self._kernel_row(kernel, cubins) for kernel in self._kernels]
        return self._manifest

    def _kernel_row(self, kernel: Kernel, cubins: Mapping[tuple[str, Cubin], Assembled]) -> KernelRow:
        assembled = [cubins[kernel.name, plan] for plan in self._settings.cubins]
        plans = zip(self._settings.cubins, assembled, strict=True)
        images = tuple(self._cubin_image(kernel, plan, made.code) for plan, made in plans)
        rows = tuple(self._specialisation_row(kernel, s) for s in kernel.specialisations())
        return KernelRow(
            name=kernel.name,
            doc=kernel.doc or "",
            source=kernel.source,
            file=kernel.file,
            parameters=self._parameter_rows(kernel),
            dtype_vars=tuple(name for name, _ in kernel.dtype_vars),
            constants=tuple(kernel.constant_names),
            specialisations=rows,
            grid=tuple(tuple(code) for code in kernel.grid),
            pick=tuple(kernel.pick or ()),
            padded=tuple(kernel.padded or ()),
            backward=self._kernel_index(kernel.backward),
            cubins=images,
            usage=tuple(usage for made in assembled for row in rows for usage in usage_of(row, made)),
            prefer=tuple(kernel.prefer),
            configured=sum(1 << kernel.constant_names.index(name) for name in kernel.configured),
            key=kernel.key,
            tuned=self._tuned.rows.get(kernel.name, ()),
        )

    def _parameter_rows(self, kernel: Kernel) -> tuple[ParameterRow, ...]:
        names = [parameter.name for parameter in kernel.parameters]
        variables = [name for name, _ in kernel.dtype_vars]
        read: set[str] = set()
        written: set[str] = set()
        for specialisation in kernel.specialisations():
            for target in self._settings.targets:
                for code in self._codes.get((specialisation.id, target), ()):
                    read.update(code.read)
                    written.update(code.written)
        return tuple(parameter_row(p, names, variables, read=read, written=written) for p in kernel.parameters)

    def _specialisation_row(self, kernel: Kernel, specialisation: Specialisation) -> SpecialisationRow:
        return SpecialisationRow(
            id=specialisation.id,
            dtypes=tuple(dtype for _, dtype in specialisation.dtypes),
            constants=tuple(value for _, value in specialisation.constants),
            num_warps=specialisation.num_warps,
            num_stages=specialisation.num_stages,
            divisibility=self._divisibility(kernel, specialisation),
            entries=self._entry_rows(kernel, specialisation),
            backward=self._backward_of(kernel, specialisation),
        )

    def _entry_rows(self, kernel: Kernel, specialisation: Specialisation) -> tuple[EntryRow | None, ...]:
        kinds = (kind for kind in ("cuda", "host") if specialisation.serves(kind))
        there = {variant for kind in kinds for variant in specialisation.variants_on(kind)}
        return tuple(self._entry_row(kernel, specialisation, v) if v in there else None for v in VARIANTS)

    def _entry_row(self, kernel: Kernel, specialisation: Specialisation, variant: Variant) -> EntryRow:
        place = specialisation.variants.index(variant)
        cuda = {t: rows[place] for t, rows in self._cuda[specialisation.id].items()}
        for target, code in cuda.items():
            check_size(kernel, specialisation, target, code)
            check_maps(kernel, specialisation, target, variant, code)
        on_host = specialisation.variants_on("host") if specialisation.serves("host") else ()
        host_targets = self._settings.host_targets if variant in on_host else ()
        host = [self._codes[specialisation.id, t][on_host.index(variant)] for t in host_targets]
        symbols = [code.symbol for code in cuda.values()] or [specialisation.symbol(variant)]
        shapes = [cuda.get(target) for target in self._settings.cuda_targets]
        return EntryRow(
            symbol=symbols[0],
            geometry=tuple(geometry_of(c) if c else NOT_BUILT for c in shapes),
            maps=tuple(map_rows(kernel, c) if c else () for c in shapes),
            host=tuple(self._host_function(kernel, code) for code in host),
            ptx=tuple(self._ptx_image(kernel, t, cuda[t]) for t in self._settings.ptx_targets if t in cuda),
        )

    def _divisibility(self, kernel: Kernel, specialisation: Specialisation) -> tuple[tuple[int, ...], ...]:
        """What each index must be a multiple of for the first, aligned variant: on the host, and on each CUDA target.

        One for all where they agree; none where everything will do.
        """
        settings = self._settings
        rows = [
            self._divisors(kernel, specialisation, targets)
            for targets in (settings.host_targets, *((target,) for target in settings.cuda_targets))
        ]
        wanted = set(rows)
        if len(wanted) > 1:
            return tuple(rows)
        return tuple(row for row in wanted if any(number > 1 for number in row))

    def _divisors(self, kernel: Kernel, specialisation: Specialisation, targets: tuple[str, ...]) -> tuple[int, ...]:
        """By parameter, of all targets the least common."""
        wanted: dict[str, int] = {}
        for target in targets:
            for code in self._codes.get((specialisation.id, target), ())[:1]:
                for name, value in code.divisibility.items():
                    wanted[name] = math.lcm(wanted.get(name, 1), value)
        return tuple(wanted.get(p.name, 1) for p in kernel.parameters)

    def _host_function(self, kernel: Kernel, code: Code) -> str:
        self._manifest.objects[code.symbol] = code.code
        self._manifest.owners[code.symbol] = kernel.name
        return code.symbol

    def _ptx_image(self, kernel: Kernel, target: str, code: Code) -> int:
        number, suffix = split_name(target)
        name, group = f"{code.symbol} ptx {target}", f"{kernel.name} {target}"
        source = self._settings.cuda_targets.index(target)
        version = code.ptx_version or 0
        row = ImageRow("ptx", number, suffix, version, code.code, name, group, source, kernel.name)
        return self._add_image(row)

    def _cubin_image(self, kernel: Kernel, plan: Cubin, data: bytes) -> int:
        number, suffix = split_name(plan.arch)
        name, group = f"{kernel.name} cubin {plan.arch}", f"{kernel.name} cubins"  # alike on all architectures
        source = self._settings.cuda_targets.index(plan.source)
        return self._add_image(ImageRow("cubin", number, suffix, 0, data, name, group, source, kernel.name))

    def _add_image(self, row: ImageRow) -> int:
        key = (row.kind, row.sm, row.suffix, row.ptx_version, hashlib.sha256(row.data).digest())
        if key not in self._image_indices:
            self._image_indices[key] = len(self._manifest.images)
            self._manifest.images.append(row)
        return self._image_indices[key]

    def _kernel_index(self, name: str | None) -> int:
        return next((i for i, kernel in enumerate(self._kernels) if kernel.name == name), -1)

    def _backward_of(self, kernel: Kernel, specialisation: Specialisation) -> int:
        """The index of the backward kernel's specialisation with the same dtypes and constants; same warps first."""
        backward = self._kernel_index(kernel.backward)
        if backward < 0:
            return -1
        same = [
            (other.num_warps != specialisation.num_warps, i)
            for i, other in enumerate(self._kernels[backward].specialisations())
            if _values(other.dtypes) == _values(specialisation.dtypes)
            and _values(other.constants) == _values(specialisation.constants)
        ]
        return min(same)[1] if same else -1


def parameter_row(
    parameter: Parameter, names: list[str], variables: list[str], *, read: set[str], written: set[str]
) -> ParameterRow:
    """Return the row of one parameter; `names` are those of all parameters, `variables` of the dtype variables."""
    dtype = parameter.dtype
    return ParameterRow(
        name=parameter.name,
        kind=parameter.kind,
        dtype_var=-1 if dtype is None or isinstance(dtype, Dtype) else variables.index(dtype.name),
        dtype=dtype if isinstance(dtype, Dtype) else None,
        tensor=names.index(parameter.tensor) if parameter.tensor else -1,
        axis=parameter.axis or 0,
        is_read=parameter.name in read,
        is_written=parameter.name in written,
        is_strided=parameter.is_strided,
        default=parameter.default,
        extent=tuple(parameter.extent or ()),
    )


def geometry_of(code: Code) -> tuple[int, ...]:
    """Return how `code` is launched."""
    return code.threads, code.shared_bytes, code.ctas, int(code.waits), int(code.draws)


def map_rows(kernel: Kernel, code: Code) -> tuple[MapRow, ...]:
    """Return the rows of the tensor maps that `code` takes."""
    names = [parameter.name for parameter in kernel.parameters]
    return tuple(MapRow(**{**vars(m), "parameter": names.index(m.parameter)}) for m in code.tensor_maps)


def usage_of(row: SpecialisationRow, assembled: Assembled) -> list[Usage]:
    """Return what each variant takes in a cubin, of those that there are not nothing."""
    return [assembled.usage.get(entry.symbol, UNKNOWN) if entry else UNKNOWN for entry in row.entries]


def check_size(kernel: Kernel, specialisation: Specialisation, target: str, code: Code) -> None:
    """Raise BuildError at the kernel's name if no device of the target can run a block."""
    limits = (("threads", code.threads, MOST_THREADS), ("bytes", code.shared_bytes, find_target(target).shared_bytes))
    for what, count, most in limits:
        if count > most:
            thing = f"{count:,} {what}" + (" of shared memory" if what == "bytes" else "")
            message = f"`{specialisation.id}` for {target}: a block takes {thing}, the target has {most:,}"
            fix = "take fewer warps (`num_warps=`)" if what == "threads" else "take smaller blocks, and more programs"
            raise BuildError(message, fix=fix, position=position_of(kernel))


def check_parameters(kernels: Iterable[Kernel]) -> None:
    """Raise BuildError at the name of a kernel that has more parameters than the launcher passes."""
    for kernel in kernels:
        count = len(kernel.parameters)
        if count > MOST_PARAMETERS:
            message = f"`{kernel.name}` has {count} parameters, a launch has room for {MOST_PARAMETERS}"
            fix = "split the kernel, or pass several numbers in one array; constants (`gm.constexpr`) do not count"
            raise BuildError(message, fix=fix, position=position_of(kernel))


def check_maps(kernel: Kernel, specialisation: Specialisation, target: str, variant: Variant, code: Code) -> None:
    """Raise BuildError at the kernel's name if `code` takes more tensor maps than a launch has room for."""
    assert variant.is_aligned or not code.tensor_maps, "only aligned code may take tensor maps: others serve without"
    assert all(len(m.extents) == len(m.box) == len(m.strides) + 1 <= MOST_MAP_AXES for m in code.tensor_maps)
    count = len(code.tensor_maps)
    if count > MOST_MAPS:
        found = f"its code takes {count} tensor maps, a launch has room for {MOST_MAPS}"
        what = f"`{specialisation.id}` for {target}: {found}"
        fix = f"split the kernel, so that each part copies tiles of at most {MOST_MAPS} arrays"
        raise BuildError(what, fix=fix, position=position_of(kernel))


def _values(pairs: Iterable[tuple[str, object]]) -> list[object]:
    return [value for _, value in pairs]
