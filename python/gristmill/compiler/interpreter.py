"""Executes tile IR on numpy arrays, program by program, by the `reference` of each op: what the language means.

Every address is checked: an access outside its array is an error at the kernel's line, and an address that is masked
off is never touched.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NoReturn

import numpy as np

from gristmill.compiler.frontend import build
from gristmill.compiler.ir import Block, For, Function, If, Op, Pointer, Tile, Value, While, clone_block, walk
from gristmill.compiler.passes import access
from gristmill.declare import Kernel, Parameter
from gristmill.dtypes import Dtype, dt_numpy, parse_dtype
from gristmill.errors import GristmillError
from gristmill.language.arrays import computed, to_dtype, to_float8
from gristmill.language.float8 import is_float8
from gristmill.specialisation import VARIANTS, Constants, Specialisation, Variant
from gristmill.symbolic import Code, evaluate

REGION_BITS = 40  # elements of one array's share of the address space
MIDDLE = 1 << (REGION_BITS - 1)

Obstacle = Callable[[Specialisation], str]
"""What keeps a call from the aligned code of a specialisation; "" where nothing does."""


class InterpreterError(GristmillError):
    """A program did what would be undefined on a device: it is reported at the op that did it."""


class Memory:
    """The elements of one array in address order; strided arrays have gaps, which belong to nobody."""

    def __init__(self, name: str, array: np.ndarray):
        self.name = name
        self.array = array
        forward = array[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in array.strides)]
        steps = [stride // array.itemsize for stride in forward.strides]
        spans = [(size - 1) * step for size, step in zip(forward.shape, steps, strict=True)]
        extent = 1 + sum(spans) if array.size else 0
        self.first = -sum(span for span, stride in zip(spans, array.strides, strict=True) if stride < 0)
        words = forward.view(f"u{array.itemsize}")  # numpy does not know the strides of 8-bit floats
        self.elements = np.lib.stride_tricks.as_strided(words, (extent,), (array.itemsize,)).view(array.dtype)
        self.is_ours = np.zeros(extent, np.bool_)
        np.lib.stride_tricks.as_strided(self.is_ours, forward.shape, steps)[...] = True

    def check(self, offsets: np.ndarray, what: str) -> None:
        """Raise InterpreterError unless each of `offsets`, in elements from the lowest address, is in the array."""
        inside = self.has(offsets)
        if not inside.all():
            message = self.outside(int(offsets[~inside][0]), what)
            raise InterpreterError(message, fix="mask it, as in `mask=offsets < n`")

    def has(self, offsets: np.ndarray) -> np.ndarray:
        """Return which of `offsets` are in the array."""
        inside = (offsets >= 0) & (offsets < len(self.elements))
        inside[inside] = self.is_ours[offsets[inside]]
        return inside

    def outside(self, offset: int, what: str) -> str:
        """Say that `what` went to an offset outside the array."""
        shape = list(self.array.shape)
        return f"{what}: element {offset + self.first} of `{self.name}` is outside the array, whose shape is {shape}"


class Pointers:
    """A tile of addresses: elements, each array in a region of its own. Numpy's changes of shape apply to it."""

    def __init__(self, addresses: np.ndarray, regions: Sequence[Memory], element: np.dtype | None = None):
        self.addresses = np.asarray(addresses, np.int64)
        self.regions = regions
        self.element = element

    @property
    def shape(self) -> tuple[int, ...]:
        return self.addresses.shape

    def __array_function__(self, function: Callable[..., Any], types: Any, arguments: Any, keywords: Any) -> Pointers:
        plain = [a.addresses if isinstance(a, Pointers) else a for a in arguments]
        return Pointers(function(*plain, **keywords), self.regions, self.element)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._dtype().itemsize

    def moved(self, elements: np.ndarray) -> Pointers:
        """Return the addresses `elements` elements on; unsigned offsets are zero-extended."""
        return Pointers(self.addresses + elements.astype(np.int64), self.regions, self.element)

    def expanded(self, axis: int) -> Pointers:
        return Pointers(np.expand_dims(self.addresses, axis), self.regions, self.element)

    def broadcast(self, shape: tuple[int, ...]) -> Pointers:
        return Pointers(np.broadcast_to(self.addresses, shape), self.regions, self.element)

    def reshape(self, shape: tuple[int, ...]) -> Pointers:
        return Pointers(self.addresses.reshape(shape), self.regions, self.element)

    def transpose(self, order: tuple[int, ...]) -> Pointers:
        return Pointers(self.addresses.transpose(order), self.regions, self.element)

    def load(self, mask: np.ndarray | None, other: np.ndarray | None) -> np.ndarray:
        """Return the elements; where `mask` is false `other`, or 0, and the address is not looked at."""
        active = np.ones(self.shape, np.bool_) if mask is None else mask
        result = self._seen(np.zeros(self.shape, self._dtype())) if other is None else np.array(other)
        for chosen, memory, offsets in self._by_memory(active, "load"):
            result[chosen] = self._seen(memory.elements[offsets])
        return result

    def store(self, value: np.ndarray, mask: np.ndarray | None) -> None:
        """Write the elements where `mask` holds."""
        active = np.ones(self.shape, np.bool_) if mask is None else mask
        for chosen, memory, offsets in self._by_memory(active, "store"):
            if not memory.array.flags.writeable:
                raise InterpreterError(f"store: `{memory.name}` is read-only", fix="pass an array that can be written")
            memory.elements[offsets] = value[chosen].view(memory.elements.dtype)

    def _seen(self, elements: np.ndarray) -> np.ndarray:
        """The elements as what the pointers were cast to."""
        return elements if self.element is None else elements.view(self.element)

    def update(self, change: Callable[..., Any], operands: Sequence[np.ndarray], mask: np.ndarray | None) -> np.ndarray:
        """Put `change(element, *operands)` in place of each element in row-major order, and return what was there."""
        active = np.ones(self.shape, np.bool_) if mask is None else mask
        places = np.zeros(self.shape, np.int64)
        memories = np.zeros(self.shape, np.object_)
        for chosen, memory, offsets in self._by_memory(active, "update"):
            if not memory.array.flags.writeable:
                raise InterpreterError(f"update: `{memory.name}` is read-only", fix="pass an array that can be written")
            places[chosen], memories[chosen] = offsets, memory
        found = np.zeros(self.shape, self._dtype())
        for at in np.argwhere(active):
            index = tuple(at)
            elements = memories[index].elements
            found[index] = elements[places[index]]
            elements[places[index]] = change(found[index], *(np.asarray(x)[index] for x in operands))
        return found

    def _dtype(self) -> np.dtype:
        region = int(self.addresses.ravel()[0]) >> REGION_BITS
        return self.regions[min(max(region, 0), len(self.regions) - 1)].array.dtype

    def _by_memory(self, active: np.ndarray, what: str) -> Any:
        regions = self.addresses >> REGION_BITS
        for region in np.unique(regions[active]):
            if not 0 <= region < len(self.regions):
                raise InterpreterError(f"{what}: an address is in no array", fix="mask it, as in `mask=offsets < n`")
            chosen = active & (regions == region)
            memory = self.regions[region]
            offsets = self.addresses[chosen] - (int(region) << REGION_BITS) - MIDDLE - memory.first
            memory.check(offsets, what)
            yield chosen, memory, offsets


def interpret(function: Function, grid: Sequence[int], arguments: Mapping[str, Any]) -> None:
    """Run all programs of a grid, axis 0 fastest; arrays among the `arguments` are changed in place.

    Raises InterpreterError, with the position in the kernel, for an access outside an array.
    """
    sizes = (*grid, 1, 1, 1)[:3]
    regions: list[Memory] = []
    bound = {p: _bind(p, arguments[p.name], regions) for p in function.parameters}
    with np.errstate(all="ignore"):
        for program in itertools.product(*(range(size) for size in reversed(sizes))):
            _Program(sizes, program[::-1], dict(bound)).run(function.body)


def _bind(parameter: Value, argument: Any, regions: list[Memory]) -> Any:
    dtype = parameter.type.dtype
    if not isinstance(dtype, Pointer):
        return to_dtype(np.asarray(argument), dtype)
    wanted = dt_numpy(dtype.element)
    if argument.dtype != wanted:
        message = f"`{parameter.name}` has dtype {argument.dtype}, the kernel takes {dtype.element}"
        raise InterpreterError(message, fix=f"convert it, as in `{parameter.name}.astype({wanted})`")
    address = (len(regions) << REGION_BITS) + MIDDLE
    regions.append(Memory(parameter.name, argument))
    return Pointers(np.asarray(address), regions)


class _Program:
    """One program: its place in the grid, which references may ask for, and the values that it has computed so far."""

    def __init__(self, grid: Sequence[int], program: Sequence[int], values: dict[Value, Any]):
        self.grid = grid
        self.program = program
        self.values = values

    def run(self, block: Block) -> list[Any]:
        """Execute the statements and return what the block yields."""
        for statement in block.statements:
            results = _HANDLERS[type(statement)](self, statement)
            self.values.update(zip(statement.results, results, strict=True))
        return [self.values[v] for v in block.yields]

    def enter(self, block: Block, arguments: Sequence[Any]) -> list[Any]:
        self.values.update(zip(block.arguments, arguments, strict=True))
        return self.run(block)

    def combine(self, block: Block, first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
        """Run a block that combines two elements on arrays of first and of second ones."""
        return self.enter(lifted(block, first[0].shape), [*first, *second])

    def program_id(self, axis: int) -> int:
        return self.program[axis]

    def num_programs(self, axis: int) -> int:
        return self.grid[axis]

    def fail(self, message: str, fix: str | None = None) -> NoReturn:
        """Stop at the op that is being run."""
        raise InterpreterError(message, fix=fix)

    def op(self, op: Op) -> list[Any]:
        named = dict(op.attributes)
        wanted = _wanted(op.row.reference_function)
        if "result" in wanted:
            named["result"] = op.results[0].type
        named |= {name: thing for name, thing in (("machine", self), ("op", op)) if name in wanted}
        try:
            got = op.row.reference_function(*self.operands(op), **named)
        except InterpreterError as error:
            error.position = error.position or op.position
            raise
        results = () if not op.results else got if isinstance(got, tuple) else (got,)
        return [_checked(op, tile, v.type) for tile, v in zip(results, op.results, strict=True)]

    def address(self, x: Any, to: Any) -> Any:
        """Pointers as numbers, numbers as pointers, pointers as others; to elements of one size."""
        if not isinstance(to, Pointer):
            return (x.addresses * x.itemsize).astype(dt_numpy(to))
        regions = next(v.regions for v in self.values.values() if isinstance(v, Pointers))
        size = to.element.itemsize
        if isinstance(x, Pointers) and x.itemsize != size:
            raise InterpreterError("a pointer to elements of another size cannot be interpreted", fix="run it compiled")
        addresses = x.addresses if isinstance(x, Pointers) else np.asarray(x).astype(np.int64) // size
        return Pointers(addresses, regions, dt_numpy(to.element))

    def operands(self, op: Op) -> list[Any]:
        """What the reference sees of the operands: arithmetic on 8-bit floats is in f32."""
        is_arithmetic = op.row.kind == "elementwise" and op.row.family not in ("cast", "selection")
        return [computed(self.values[v]) if is_arithmetic else self.values[v] for v in op.operands]

    def loop(self, loop: For) -> list[Any]:
        lower, upper, step, *carried = (self.values[v] for v in loop.operands)
        if step <= 0:
            message = f"a loop's step must be positive, got {int(step)}"
            raise InterpreterError(message, fix="count up and subtract in the body", position=loop.position)
        for index in range(int(lower), int(upper), int(step)):
            carried = self.enter(loop.body, [np.asarray(index, lower.dtype), *carried])
        return carried

    def repeat(self, loop: While) -> list[Any]:
        carried = [self.values[v] for v in loop.operands]
        while True:
            goes_on, *carried = self.enter(loop.condition, carried)
            if not goes_on:
                return carried
            carried = self.enter(loop.body, carried)

    def choose(self, branch: If) -> list[Any]:
        return self.run(branch.then if self.values[branch.operands[0]] else branch.otherwise)


_HANDLERS: dict[type, Callable[[_Program, Any], list[Any]]] = {
    Op: _Program.op,
    For: _Program.loop,
    While: _Program.repeat,
    If: _Program.choose,
}


@cache
def lifted(block: Block, shape: tuple[int, ...]) -> Block:
    """The block on tiles of a shape instead of scalars; it only computes element by element."""
    copy = clone_block(block, {})
    for value in (*copy.arguments, *(v for statement in walk(copy) for v in statement.results)):
        value.type = value.type.with_shape(shape)
    return copy


@cache
def _wanted(reference: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(reference).parameters)


def _checked(op: Op, got: Any, type: Tile) -> Any:
    """Return a reference's result as an array: one that has the type which the op declares."""
    if isinstance(got, Pointers):
        assert got.shape == type.shape, f"{op.name}: the reference gives pointers {got.shape}, not {type}"
        return got
    array = np.asarray(got)
    if isinstance(type.dtype, Dtype) and is_float8(type.dtype) and array.dtype == np.float32:
        array = to_float8(array, type.dtype)
    found, wanted = (array.shape, array.dtype), (type.shape, dt_numpy(type.dtype))
    assert found == wanted, f"{op.name}: the reference gives {array.dtype}{list(array.shape)}, not {type}"
    return array


def run_kernel(
    kernel: Kernel,
    specialisation: Specialisation | None = None,
    *arguments: Any,
    grid: Sequence[int] | None = None,
    variant: Variant | None = None,
    **named: Any,
) -> Specialisation:
    """Call a kernel as its dispatcher would, on numpy arrays, and return the specialisation that ran.

    Arguments are given by position or name; index parameters and constants may be left out, and dtypes follow from the
    arrays. Constants given by name restrict the choice. Raises InterpreterError if nothing fits.
    """
    constants = {name: named.pop(name) for name in kernel.constant_names if name in named}
    values = _fill(kernel, dict(zip((p.name for p in kernel.parameters), arguments, strict=False)) | named)
    chosen = _choose(kernel, values, constants, without(variant), specialisation)
    sizes = tuple(grid) if grid is not None else tuple(_evaluate(code, kernel, values, chosen) for code in kernel.grid)
    if all(size > 0 for size in sizes):
        general = VARIANTS[0] if chosen.only_aligned else _variant(kernel, values)
        interpret(_built(kernel, chosen, variant or general), sizes, values)
    return chosen


def _fill(kernel: Kernel, given: dict[str, Any]) -> dict[str, Any]:
    """Return a value for each parameter: given, following from an array, or the default."""
    values = {}
    for parameter in kernel.parameters:
        if parameter.name in given:
            values[parameter.name] = given.pop(parameter.name)
        elif parameter.is_index:
            values[parameter.name] = _index_value(parameter, values[str(parameter.tensor)])
        elif parameter.default is not None:
            values[parameter.name] = parameter.default
        else:
            raise InterpreterError(f"`{kernel.name}` needs `{parameter.name}`", fix=f"pass `{parameter.name}=`")
        if parameter.kind == "pointer" and not parameter.is_strided and not values[parameter.name].flags.c_contiguous:
            fix = f'copy it, or declare a parameter `gm.stride["{parameter.name}", 0]`'
            raise InterpreterError(f"`{parameter.name}` is not contiguous", fix=fix)
    if given:
        known = ", ".join((*(p.name for p in kernel.parameters), *kernel.constant_names))
        raise InterpreterError(f"`{kernel.name}` has no `{next(iter(given))}`", fix=f"it takes {known}")
    return values


def _index_value(parameter: Parameter, array: np.ndarray) -> int:
    if parameter.kind == "size":
        return array.size
    axis = parameter.axis or 0
    return array.shape[axis] if parameter.kind == "shape" else array.strides[axis] // array.itemsize


def _choose(
    kernel: Kernel,
    values: Mapping[str, Any],
    constants: Mapping[str, Any],
    obstacle: Obstacle | None = None,
    only: Specialisation | None = None,
    kind: str = "",
) -> Specialisation:
    """Return the first specialisation in the arrays' dtypes and the given constants that suits the call, or `only`.

    Those that are not for targets of a `kind` are left out.

    Raises InterpreterError if there is none, or none but for aligned calls, which this one is not.
    """
    refused: Specialisation | None = None
    obstacle = obstacle or partial(_obstacle, kernel, values)
    for candidate in [only] if only else _suiting(kernel, values, constants, kind):
        if _has_code(candidate, obstacle):
            return candidate
        refused = refused or candidate
    if refused:
        takes_another = "leave the constants out, so that another configuration serves"
        fix = takes_another if constants or only else "add a configuration without `aligned=True` that suits such calls"
        raise InterpreterError(f"`{refused.id}` is for aligned calls only, and {obstacle(refused)}", fix=fix)
    found = _dtypes(kernel, values)
    asked = ", ".join([*(d.name for d in found.values()), *(f"{k}={v}" for k, v in constants.items())])
    known = ", ".join(s.id for s in kernel.specialisations())
    raise InterpreterError(f"`{kernel.name}` has no specialisation for {asked}", fix=f"there are {known}")


def _fitting(
    kernel: Kernel,
    values: Mapping[str, Any],
    constants: Mapping[str, Any],
    obstacle: Obstacle | None = None,
    kind: str = "",
) -> Iterator[Specialisation]:
    """The specialisations that suit the call and have code for it, the one to take first."""
    obstacle = obstacle or partial(_obstacle, kernel, values)
    return (s for s in _suiting(kernel, values, constants, kind) if _has_code(s, obstacle))


def _suiting(
    kernel: Kernel, values: Mapping[str, Any], constants: Mapping[str, Any], kind: str
) -> Iterator[Specialisation]:
    """Those that `pick` holds for: by listed values, and of these first those for which `prefer` is largest."""
    found = _dtypes(kernel, values)

    def value(code: Code, candidate: Specialisation) -> int:
        return int(_evaluate(code, kernel, values, candidate)) if code else 1

    typed = [s for s in kernel.specialisations() if dict(s.dtypes) == found]
    served = [s for s in typed if not kind or s.serves(kind)]
    fitting = [s for s in served if constants.items() <= dict(s.constants).items()]
    suiting = (s for s in fitting if value(kernel.pick, s))
    if not kernel.prefer:
        yield from suiting
        return
    by_listed: dict[Constants, list[Specialisation]] = {}
    for s in suiting:
        by_listed.setdefault(tuple(c for c in s.constants if c[0] not in kernel.configured), []).append(s)
    for alike in by_listed.values():
        yield from sorted(alike, key=lambda s: -value(kernel.prefer, s))


def _has_code(candidate: Specialisation, obstacle: Obstacle) -> bool:
    return not candidate.only_aligned or not obstacle(candidate)


def _obstacle(kernel: Kernel, values: Mapping[str, Any], candidate: Specialisation) -> str:
    """What keeps the call from aligned code, as far as that is alike on all targets."""
    return obstacle_of(kernel, values, lambda: _promised(kernel, candidate))


@cache
def _promised(kernel: Kernel, specialisation: Specialisation) -> dict[str, int]:
    promised = access.promise(_built(kernel, specialisation, VARIANTS[0]))
    return {value.name: divisor for value, divisor in promised.items()}


def without(variant: Variant | None) -> Obstacle | None:
    """What keeps a call that asks for a variant from a specialisation; None if it asks for none."""
    if variant is None:
        return None
    return lambda candidate: "" if variant in candidate.variants else f"`{variant.name}` is asked for"


def _dtypes(kernel: Kernel, values: Mapping[str, Any]) -> dict[str, Dtype]:
    pointers = [p for p in kernel.parameters if p.kind == "pointer" and not isinstance(p.dtype, Dtype)]
    return {p.dtype.name: parse_dtype(values[p.name].dtype) for p in reversed(pointers) if p.dtype is not None}


def _evaluate(code: Code, kernel: Kernel, values: Mapping[str, Any], chosen: Specialisation) -> int:
    numbers = [0 if p.kind == "pointer" else values[p.name] for p in kernel.parameters]
    return evaluate(code, numbers, [value for _, value in chosen.constants])


def _variant(kernel: Kernel, values: Mapping[str, Any]) -> Variant:
    """Return the general variant whose offsets reach the arrays' ends."""
    largest = max((abs(int(values[p.name])) for p in kernel.parameters if p.is_index), default=0)
    return VARIANTS[1] if largest < 1 << 31 else VARIANTS[2]


def suitable_variant(kernel: Kernel, values: Mapping[str, Any], promised: Callable[[], Mapping[str, int]]) -> Variant:
    """Return the aligned variant where every array starts on 16 bytes and what it promises holds, else a general one.

    `promised` tells of the aligned variant which index parameters must be multiples of a number, and of which.
    """
    return _variant(kernel, values) if obstacle_of(kernel, values, promised) else VARIANTS[0]


def obstacle_of(kernel: Kernel, values: Mapping[str, Any], promised: Callable[[], Mapping[str, int]]) -> str:
    """Return what keeps a call from aligned code that promises so much; "" where nothing does."""
    if _variant(kernel, values).index_bits == 64:
        return "offsets do not fit in 32 bits"
    for name in (p.name for p in kernel.parameters if p.kind == "pointer"):
        if excess := values[name].ctypes.data % 16:
            return f"`{name}` starts {excess} bytes behind a multiple of 16"
    odd = [(name, divisor) for name, divisor in promised().items() if int(values[name]) % divisor]
    return "".join(f"`{name}` is {values[name]}, no multiple of {divisor}" for name, divisor in odd[:1])


@cache
def _built(kernel: Kernel, specialisation: Specialisation, variant: Variant) -> Function:
    return build(kernel, specialisation, variant)
