"""Notes launches while a program runs, and writes the declarations that would compile what it launched."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gristmill.dtypes import Dtype, parse_dtype
from gristmill.errors import DeclarationError, GristmillError
from gristmill.porting import Declaration, Entry
from gristmill.positions import caller_position

OPTIONS = ("num_warps", "num_stages")
IGNORED = (
    "num_ctas",
    "maxnreg",
    "warmup",
    "stream",
    "debug",
    "extern_libs",
    "enable_fp_fusion",
    "launch_cooperative_grid",
    "launch_pdl",
    "ir_override",
)


@dataclass(frozen=True)
class Array:
    """What is noted of an array: its dtype, shape, and strides in elements; of a descriptor, also its block."""

    dtype: Dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    """One launch: arrays and scalars by name, constants, options and the grid."""

    values: Mapping[str, Any]
    constants: Mapping[str, Any]
    options: Mapping[str, int]
    grid: tuple[int, ...]


@dataclass
class Recording:
    """The launches of each kernel, by the name of its function."""

    launches: dict[str, list[Launch]] = field(default_factory=dict)

    def text(self) -> str:
        """Return the declarations, to be pasted below the kernels or in a file that imports them."""
        if not self.launches:
            raise DeclarationError("nothing was launched", fix="launch the kernels inside `with record():`")
        declarations = [_Writer(name, found) for name, found in self.launches.items()]
        parts = ["import gristmill as gm\n", *(part for d in declarations for part in d.parts())]
        return "\n".join(parts)

    def write(self, path: str | Path) -> None:
        """Add the declarations to a file."""
        file = Path(path)
        before = file.read_text().rstrip("\n") + "\n\n\n" if file.exists() else ""
        file.write_text(before + self.text())


_active: list[Recording] = []


@contextmanager
def record(path: str | Path | None = None) -> Iterator[Recording]:
    """Note each launch of a Triton kernel inside, and write declarations to `path` at the end, if it is given.

    Kernels of an installed Triton run as they would; those under `gristmill.compat.triton` are noted and not run.
    """
    recording = Recording()
    _active.append(recording)
    try:
        with _noting_triton():
            yield recording
    finally:
        _active.remove(recording)
    if path is not None:
        recording.write(path)


@contextmanager
def _noting_triton() -> Iterator[None]:
    """Let an installed Triton, if it is loaded, tell of its launches."""
    module = sys.modules.get("triton.runtime.jit")
    kind = getattr(module, "JITFunction", None)
    if kind is None or kind.__module__.startswith("gristmill."):
        yield
        return
    original = kind.run

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool = False, **keywords: Any) -> Any:
        note_launch(self, arguments, keywords, grid, is_warmup=warmup)
        return original(self, *arguments, grid=grid, warmup=warmup, **keywords)

    kind.run = run
    try:
        yield
    finally:
        kind.run = original


def note_launch(
    kernel: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], grid: Any, *, is_warmup: bool = False
) -> bool:
    """Note one launch in every active recording; return whether there is one.

    A warm-up launches nothing and is not noted: its arguments may be dtypes in place of arrays.
    Raises DeclarationError for arguments that the kernel does not take.
    """
    if not _active or is_warmup:
        return bool(_active)
    function = inspect.unwrap(getattr(kernel, "function", None) or kernel.fn)
    parameters = inspect.signature(function).parameters
    given = {name: value for name, value in keywords.items() if name in parameters}
    unknown = keywords.keys() - given.keys() - {*OPTIONS, *IGNORED}
    if unknown or len(arguments) > len(parameters):
        message = f"`{function.__name__}` takes no argument `{min(unknown, default=len(arguments))}`"
        raise _at_caller(message, f"call it as {function.__name__}{inspect.signature(function)}")
    bound = dict(zip(parameters, arguments, strict=False)) | given
    defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
    known = defaults | bound
    launch = _launch(parameters, {n: known[n] for n in parameters if n in known}, keywords, grid)
    for recording in _active:
        recording.launches.setdefault(function.__name__, []).append(launch)
    return True


def _at_caller(message: str, fix: str) -> DeclarationError:
    return DeclarationError(message, fix=fix, position=caller_position())


def _launch(parameters: Mapping[str, Any], bound: dict[str, Any], keywords: Mapping[str, Any], grid: Any) -> Launch:
    sizes = grid(dict(bound)) if callable(grid) else grid
    sizes = tuple(int(s) for s in (sizes if isinstance(sizes, Iterable) else (sizes,)))
    constants = {n: _constant(v) for n, v in bound.items() if _is_constexpr(parameters[n].annotation) or v is None}
    values = {name: _describe(name, value) for name, value in bound.items() if name not in constants}
    options = {name: keywords[name] for name in OPTIONS if name in keywords and name not in parameters}
    return Launch(values, constants, options, sizes)


def _is_constexpr(annotation: object) -> bool:
    shown = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return str(shown).rpartition(".")[2] == "constexpr"


def _constant(value: Any) -> Any:
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    return value if value is None or isinstance(value, (bool, int, float, str)) else _dtype(value)


def _dtype(value: Any) -> Dtype:
    names = {
        "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "fp8e4nv": "float8e4nv",
        "fp8e5": "float8e5",
    }  # fmt: skip
    try:
        return parse_dtype(names.get(str(value), value))
    except GristmillError:
        raise _at_caller(f"`{value!r}` is no constant of a kernel", "pass a number, a text or a dtype") from None


def _describe(name: str, value: Any) -> Any:
    if isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        return replace(_describe(name, value.base), block=tuple(int(s) for s in value.block_shape))
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        raise _at_caller(f"`{name}` is neither an array nor a number: {value!r}", "pass an array or a number")
    dtype, shape = parse_dtype(value.dtype), tuple(int(s) for s in value.shape)
    if callable(strides := getattr(value, "stride", None)):
        return Array(dtype, shape, tuple(strides()))
    return Array(dtype, shape, tuple(s // value.dtype.itemsize for s in value.strides))


# ---- what the launches of one kernel have in common ----------------------------------------------------------------


class _Writer:
    """Turns the launches of one kernel into a declaration."""

    def __init__(self, function: str, launches: list[Launch]):
        self.launches = launches
        self.found = Declaration(function)
        self.variables: dict[tuple[Dtype, ...], str] = {}

    def parts(self) -> list[str]:
        """Return the lines of dtype variables and the declaration."""
        names = dict.fromkeys(name for launch in self.launches for name in launch.values)
        self.found.signature = [Entry(name, *self._type(name)) for name in names]
        self._choose_constants()
        self._choose_grid()
        heads = [
            f'{name} = gm.dtype_var("{name}", [{", ".join(map(_spell, dict.fromkeys(dtypes)))}])'
            for dtypes, name in self.variables.items()
        ]
        return ["\n".join([*heads, ""]), "\n" + self.found.text()] if heads else ["\n" + self.found.text()]

    def _type(self, name: str) -> tuple[str, str]:
        seen = [launch.values.get(name) for launch in self.launches]
        kinds = [value for value in seen if value is not None]
        if all(isinstance(value, Array) for value in kinds):
            element = self._element([value.dtype for value in kinds])
            return self._descriptor(name, element) if kinds[0].block else (f"gm.ptr[{element}]", "")
        if all(isinstance(value, bool) for value in kinds):
            return "gm.bool_", ""
        if all(isinstance(value, int) for value in kinds):
            wide = any(not -(2**31) <= value < 2**31 for value in kinds)
            return "gm.i64" if wide else "gm.i32", self._alternative(name, seen)
        return ("gm.f32", "") if not any(isinstance(v, Array) for v in kinds) else ("...", "choose: it was both")

    def _descriptor(self, name: str, element: str) -> tuple[str, str]:
        """A size of the block is the number that it was each time, or the constant."""
        axes = zip(*(launch.values[name].block for launch in self.launches), strict=True)
        sizes = [self._block_size(list(seen)) for seen in axes]
        if None in sizes or sizes == ["1"] * len(sizes):
            return "...", f'choose: the sizes of a block, as in gm.descriptor[{element}, "BLOCK_M", 64]'
        return f"gm.descriptor[{element}, {', '.join(map(str, sizes))}]", ""

    def _block_size(self, seen: list[int]) -> str | None:
        if len(set(seen)) == 1:
            return str(seen[0])
        constants = self.launches[0].constants
        return next((repr(n) for n in constants if self._agrees(seen, lambda launch, n=n: launch.constants[n])), None)

    def _element(self, dtypes: list[Dtype]) -> str:
        """A dtype where all launches have one, else the variable of those arrays that change together."""
        if len(set(dtypes)) == 1:
            return _spell(dtypes[0])
        prefix = self.found.title.upper()
        return self.variables.setdefault(tuple(dtypes), f"{prefix}_D{len(self.variables) or ''}")

    def _alternative(self, name: str, seen: list[Any]) -> str:
        """What of an array a number was in every launch."""
        kinds = ("strides", "shape") if "stride" in name.lower() else ("shape", "strides")
        for kind in kinds:
            for array, first in self.launches[0].values.items():
                for axis in range(len(getattr(first, kind, ()))):
                    if self._always(seen, array, kind, axis):
                        word = "stride" if kind == "strides" else kind
                        return f'or gm.{word}["{array}", {axis}], which it was each time'
        return ""

    def _always(self, seen: list[Any], name: str, kind: str, axis: int) -> bool:
        for value, launch in zip(seen, self.launches, strict=True):
            sizes = getattr(launch.values.get(name), kind, ())
            if axis >= len(sizes) or sizes[axis] != value:
                return False
        return True

    def _choose_constants(self) -> None:
        names = list(dict.fromkeys(name for launch in self.launches for name in launch.constants))
        lists = {name: _distinct(launch.constants.get(name) for launch in self.launches) for name in names}
        together = [
            n for n in names if len(lists[n]) > 1 and not any(v is None or isinstance(v, Dtype) for v in lists[n])
        ]
        for name in (n for n in names if n not in together):
            self.found.constants.append(self._constant(name, lists[name]))
        chosen = [{n: launch.constants[n] for n in together} | dict(launch.options) for launch in self.launches]
        configs = _distinct(tuple(c.items()) for c in chosen if c)
        if len(together) == 1 and not any(launch.options for launch in self.launches):
            self.found.constants.append(Entry(together[0], repr(lists[together[0]])))
        elif configs:
            self.found.configs = [f"gm.Config({', '.join(f'{n}={v!r}' for n, v in config)})" for config in configs]

    def _constant(self, name: str, values: list[Any]) -> Entry:
        if len(values) == 1:
            return Entry(name, _spell(values[0]) if isinstance(values[0], Dtype) else repr(values[0]))
        for dtypes, variable in self.variables.items():
            if list(dtypes) == [launch.constants.get(name) for launch in self.launches]:
                return Entry(name, variable)
        shown = " and ".join(_spell(v) if isinstance(v, Dtype) else repr(v) for v in values)
        return Entry(name, "...", f"choose: it was {shown}; declare a kernel for each")

    def _choose_grid(self) -> None:
        sizes = [launch.grid for launch in self.launches]
        texts = [self._size([grid[axis] for grid in sizes if axis < len(grid)]) for axis in range(len(sizes[0]))]
        if len({len(grid) for grid in sizes}) > 1 or None in texts:
            shown = ", ".join(map(str, _distinct(sizes)))
            self.found.grid = Entry(
                "grid", "...", f"choose: the programs, as in lambda n, BLOCK: gm.cdiv(n, BLOCK); was {shown}"
            )
            return
        names = dict.fromkeys(n for text in texts for n in text[1])  # type: ignore[index]
        body = ", ".join(text[0] for text in texts)  # type: ignore[index]
        self.found.grid = Entry("grid", f"lambda {', '.join(names)}: {f'({body})' if len(texts) > 1 else body}")

    def _size(self, seen: list[int]) -> tuple[str, tuple[str, ...]] | None:
        """An expression for one size of the grid that holds in every launch, with the names that it reads."""
        integers = [e.name for e in self.found.signature if e.value in ("gm.i32", "gm.i64")]
        constants = [n for n, v in self.launches[0].constants.items() if type(v) is int and v > 1]
        for name in integers:
            if self._agrees(seen, lambda launch, n=name: launch.values[n]):
                return name, (name,)
            for block in constants:
                if self._agrees(seen, lambda launch, n=name, b=block: -(-launch.values[n] // launch.constants[b])):
                    return f"gm.cdiv({name}, {block})", (name, block)
        return self._size_of_array(seen) or ((str(seen[0]), ()) if len(set(seen)) == 1 else None)

    def _size_of_array(self, seen: list[int]) -> tuple[str, tuple[str, ...]] | None:
        for name, first in self.launches[0].values.items():
            for axis in range(len(first.shape)) if isinstance(first, Array) else ():
                if self._always(seen, name, "shape", axis):
                    index = f"{name}_size_{axis}"
                    if index not in [e.name for e in self.found.signature]:
                        self.found.signature.append(Entry(index, f'gm.shape["{name}", {axis}]', "for the grid"))
                    return index, (index,)
        return None

    def _agrees(self, seen: list[int], compute: Callable[..., int]) -> bool:
        try:
            return all(compute(launch) == size for launch, size in zip(self.launches, seen, strict=True))
        except (KeyError, TypeError, ZeroDivisionError):
            return False


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list({(type(value), value): value for value in values}.values())


def _spell(dtype: Dtype) -> str:
    return "gm.bool_" if dtype.name == "bool" else f"gm.{dtype.name}"
