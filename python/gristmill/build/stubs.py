"""Writes the `.pyi` of a built module, so that editors and type checkers know each kernel's signature."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gristmill.dtypes import Dtype

if TYPE_CHECKING:
    from gristmill.declare import Kernel, Parameter

_HEADER = '''\
from os import PathLike
from typing import Any, Final, Literal, TypeAlias, final

Array: TypeAlias = Any  # NumPy, PyTorch, CuPy, JAX: anything with __dlpack__, __cuda_array_interface__ or a buffer
Constant: TypeAlias = int | bool | float | str
Grid: TypeAlias = int | tuple[int, ...]

@final
class KernelInstance:
    """One picked specialisation of a kernel."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def entry_point(self) -> str: ...
    @property
    def dtypes(self) -> dict[str, str]: ...
    @property
    def constants(self) -> dict[str, Constant]: ...
    @property
    def num_warps(self) -> int: ...
    @property
    def num_stages(self) -> int: ...
    @property
    def only_aligned(self) -> bool: ...
    @property
    def source(self) -> str: ...
    @property
    def images(self) -> list[Any]: ...
    def info(self) -> dict[str, Any]: ...
    @property
    def backward(self) -> KernelInstance | None: ...
    def ptx(self, target: str, variant: Literal["a32", "g32", "g64"] = "a32") -> str: ...
    def launch(self, *arguments: Any, grid: Grid | None = None, stream: object = None, **named: Any) -> None: ...
    def __getitem__(self, grid: Grid) -> GridLauncher: ...

@final
class GridLauncher:
    """A KernelInstance with a grid."""

    def __call__(self, *arguments: Any, stream: object = None, **named: Any) -> None: ...

class Dispatcher:
    """A kernel: calling it picks the specialisation that fits the arguments, and runs it."""

    __name__: str
    __qualname__: str
    @property
    def source(self) -> str: ...
    @property
    def instances(self) -> tuple[KernelInstance, ...]: ...
    @property
    def backward(self) -> Dispatcher | None: ...
    def dispatch(self, dtype: object = None, *constants: Constant, **named: Constant) -> KernelInstance: ...
    def preload(self, device: int = 0) -> None: ...
    def info(self, *arguments: Any, **named: Any) -> dict[str, Any]: ...
    def tune(self, *arguments: Any, **named: Any) -> Any: ...
    def load_tuning(self, table: str | PathLike[str] | dict[str, Any]) -> int: ...
    def trial(self, *arguments: Any, **named: Any) -> Trial: ...

@final
class Trial:
    """One call in every configuration that could serve it, on copies of its arrays."""

    @property
    def kernel(self) -> str: ...
    @property
    def place(self) -> dict[str, Any]: ...
    @property
    def key_names(self) -> list[str]: ...
    @property
    def key(self) -> list[int]: ...
    @property
    def constants(self) -> dict[str, Constant]: ...
    @property
    def dtypes(self) -> list[str]: ...
    @property
    def candidates(self) -> list[tuple[str, str]]: ...
    def check(self, candidate: int) -> float: ...
    def time(self, candidate: int, is_warm: bool = False) -> float: ...

def info() -> dict[str, Any]: ...
def doctor() -> list[tuple[str, str, str]]: ...
def preload(device: int | None = None) -> None: ...
def load_tuning(table: str | PathLike[str] | dict[str, Any]) -> int: ...
'''

_NUMBERS = {"float": "float", "int": "int", "uint": "int", "bool": "bool"}


def write_stub(kernels: Sequence[Kernel]) -> str:
    """Return the text of the stub of a module that holds these kernels' dispatchers."""
    names = "".join(f'    "{name}",\n' for name in sorted(kernel.name for kernel in kernels))
    classes = [_dispatcher(kernel) for kernel in kernels]
    return "\n".join([_HEADER, *classes, f"__all__ = [\n{names}]\n"])


def _dispatcher(kernel: Kernel) -> str:
    """Return the class and the name of one kernel; several dtype variables are supported in tuples."""
    element = "str" if len(kernel.dtype_vars) == 1 else "tuple[str, ...]"
    lines = ["@final", f"class _{kernel.name}(Dispatcher):", *_docstring(kernel.doc)]
    lines += ["    @property", f"    def supported_dtypes(self) -> tuple[{element}, ...]: ..."]
    arguments = [f"        {argument}," for argument in _arguments(kernel)]
    lines += ["    def __call__(", *arguments, "    ) -> None: ...", ""]
    return "\n".join([*lines, f"{kernel.name}: Final[_{kernel.name}]", ""])


def _docstring(doc: str) -> list[str]:
    if not doc:
        return []
    escaped = doc.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    closing = '\n"""' if "\n" in doc or doc.endswith('"') else '"""'
    return [*textwrap.indent(f'"""{escaped}{closing}', "    ").splitlines(), ""]


def _arguments(kernel: Kernel) -> list[str]:
    positional = [_argument(parameter) for parameter in kernel.parameters]
    constants = [f"{name}: {_values(values)} | None = None" for name, values in kernel.constants]
    return ["self", *positional, "*", *constants, "grid: Grid | None = None", "stream: object = None"]


def _argument(parameter: Parameter) -> str:
    if parameter.kind == "pointer":
        return f"{parameter.name}: Array"
    if parameter.is_index:
        return f"{parameter.name}: int | None = None"
    kind = _NUMBERS[parameter.dtype.kind] if isinstance(parameter.dtype, Dtype) else "float"
    return f"{parameter.name}: {kind}{_default(parameter.default)}"


def _default(value: int | float | bool | None) -> str:
    if value is None:
        return ""
    return f" = {value!r}" if math.isfinite(value) else " = ..."


def _values(values: tuple[object, ...]) -> str:
    """Return the type of a constant; `Literal` has no floats."""
    if isinstance(values[0], float):
        return "float"
    return "Literal[" + ", ".join(_quoted(value) for value in values) + "]"


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
