"""What stands beside a kernel: its meaning in numpy, calls worth trying, their cost and the accuracy that is promised.

A kernel file declares it below each kernel:

    spec(gelu_forward, reference=gelu, cases=elementwise("x", "y"), cost=streaming(flops=12))

`reference` takes the kernel's inputs by their parameter names, floats as float64, and returns its outputs: one array,
or a tuple in the order of the parameters. Tests, benchmarks, the demo and the documentation read `spec_of(kernel)`.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gristmill.dtypes import Dtype
from gristmill.errors import DeclarationError

if TYPE_CHECKING:
    from gristmill.declare import Kernel, Specialisation

Shapes = Mapping[str, tuple[int, ...]]

SHORT_LENGTHS = (0, 1, 2, 3, 31, 127, 128, 129, 1000, 1023, 1025, 4097, 65_537)
SHORT_ROWS = ((3, 1), (2, 2), (2, 3), (3, 31), *((2, n) for n in SHORT_LENGTHS[5:-1]))
WIDE_ROWS = ((1, 16_385), (1, 65_537), (1, 131_072))
BENCH_COLUMNS = (1000, 1024, 4096, 16_384, 65_536, 131_072)
BENCH_ELEMENTS = 1 << 27
CPU_SIDE = 4096


@dataclass(frozen=True)
class Case:
    """One call: the shape of every array, outputs too, by parameter.

    `use` is "test" (small, compared element by element), "demo" or "bench" (sized to be timed). `values` says what the
    inputs are filled with: "normal" (deviation 1), "wide" (deviation 4), "special" (that, with signed zeros,
    infinities, NaN, denormals and extremes among them) or "special rows" (one kind of these in each row). An array in
    `ranges` is clipped to its range; one in `turned` is the transpose of a contiguous array.
    """

    name: str
    shapes: dict[str, tuple[int, ...]]
    use: str = "test"
    values: str = "normal"
    scalars: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    turned: tuple[str, ...] = ()

    def stored(self, name: str) -> tuple[int, ...]:
        """Return the shape in which an array lies in memory."""
        return self.shapes[name][:: -1 if name in self.turned else 1]


@dataclass(frozen=True)
class Cost:
    """What a call must at least do: `bytes` to and from memory, and `flops`."""

    bytes: int
    flops: int


@dataclass(frozen=True)
class Tolerance:
    """The largest errors against the reference: relative in f32 and f64, in units of the last place in halves.

    An error is also accepted below `absolute`, times the reference's largest magnitude in its row.
    """

    f32: float = 2e-6
    f64: float = 1e-14
    half_ulps: float = 1.0
    absolute: float = 0.0


@dataclass(frozen=True, eq=False)
class Spec:
    """All that is declared about a kernel besides how it computes.

    `whole` are inputs of which every row of the outputs needs all; the others' rows go with theirs. `added` are outputs
    that the kernel adds to, in an order that is not told: they are zeros before a call.
    """

    kernel: Kernel
    reference: Callable[..., Any]
    cases: tuple[Case, ...]
    cost_function: Callable[[Shapes, Callable[[str], int]], Cost]
    tolerance: Tolerance
    whole: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arrays and scalars that the reference takes."""
        return tuple(inspect.signature(self.reference).parameters)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The arrays that the kernel writes, in the order of its parameters."""
        return tuple(p.name for p in self.kernel.parameters if p.kind == "pointer" and p.name not in self.inputs)

    def cases_for(self, use: str) -> tuple[Case, ...]:
        """Return the cases of one use: "test", "demo" or "bench"."""
        return tuple(case for case in self.cases if case.use == use)

    def cost(self, case: Case, specialisation: Specialisation) -> Cost:
        """Return what a call of `case` costs in the dtypes of `specialisation`."""
        dtypes = self._dtypes(specialisation)
        return self.cost_function(case.shapes, lambda name: dtypes[name].itemsize)

    def arguments(self, case: Case, specialisation: Specialisation, seed: int = 0) -> dict[str, Any]:
        """Return numpy arrays and scalars by parameter: inputs filled, outputs poisoned or, of `added`, 0."""
        import numpy as np

        random = np.random.default_rng(seed)
        dtypes = self._dtypes(specialisation)
        arrays = {}
        for name in case.shapes:
            values = self._values(name, case)
            arrays[name] = _filled(case.stored(name), dtypes[name], values, random)
            arrays[name] = arrays[name].T if name in case.turned else arrays[name]
            if name in case.ranges:
                arrays[name] = np.clip(arrays[name], *case.ranges[name]).astype(arrays[name].dtype)
        return arrays | case.scalars

    def expected(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs that the reference gives for the inputs among `arguments`: floats in float64."""
        import numpy as np

        defaults = {p.name: p.default for p in self.kernel.parameters if p.default is not None}
        given = {name: _widened(arguments.get(name, defaults.get(name))) for name in self.inputs}
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing
            result = self.reference(**given)
        results = result if isinstance(result, tuple) else (result,)
        return dict(zip(self.outputs, results, strict=True))

    def errors(self, arguments: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, float]:
        """Return the largest error of each output, as a share of what is allowed: at most 1 is right."""
        return {name: self.error(arguments[name], expected[name]) for name in self.outputs}

    def error(self, got: Any, expected: Any) -> float:
        """Return the largest error in units of the tolerance; inf where one is NaN or infinite and the other is not."""
        import numpy as np

        with np.errstate(all="ignore"):
            if got.dtype.kind in "iub":
                return 0.0 if np.array_equal(got, expected) else math.inf
            allowed = _allowed(got.dtype, expected, self.tolerance)
            return float(np.max(_differences(got, np.asarray(expected)) / allowed, initial=0.0))

    def _values(self, array: str, case: Case) -> str:
        """Return what an array is filled with before a call."""
        if array in self.added:
            return "zeros"
        return "poison" if array in self.outputs else case.values

    def _dtypes(self, specialisation: Specialisation) -> dict[str, Dtype]:
        chosen = dict(specialisation.dtypes)
        arrays = [p for p in self.kernel.parameters if p.kind == "pointer" and p.dtype is not None]
        return {p.name: p.dtype if isinstance(p.dtype, Dtype) else chosen[p.dtype.name] for p in arrays if p.dtype}


_specs: WeakKeyDictionary[Kernel, Spec] = WeakKeyDictionary()


def spec(
    kernel: Kernel,
    *,
    reference: Callable[..., Any],
    cases: Sequence[Case],
    cost: Callable[[Shapes, Callable[[str], int]], Cost],
    tolerance: Tolerance | None = None,
    whole: Sequence[str] = (),
    added: Sequence[str] = (),
) -> Spec:
    """Declare a kernel's reference, cases, cost and accuracy; called in the kernel's file, below it."""
    rest = tuple(whole), tuple(added)
    _specs[kernel] = Spec(kernel, reference, tuple(cases), cost, tolerance or Tolerance(), *rest)
    return _specs[kernel]


def spec_of(kernel: Kernel) -> Spec:
    """Return what `spec` declared. Raises DeclarationError if it was not called for `kernel`."""
    if kernel in _specs:
        return _specs[kernel]
    message = f"`{kernel.name}` in {kernel.file} has no reference"
    raise DeclarationError(message, fix=f"write `spec({kernel.name}, reference=..., cases=..., cost=...)` below it")


def streaming(flops: int) -> Callable[[Shapes, Callable[[str], int]], Cost]:
    """Return the cost of a kernel that passes each array through memory once: `flops` an element of the largest."""

    def cost(shapes: Shapes, itemsize: Callable[[str], int]) -> Cost:
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        return Cost(sum(size * itemsize(name) for name, size in sizes.items()), flops * max(sizes.values()))

    return cost


def elementwise(*arrays: str, **ranges: tuple[float, float]) -> tuple[Case, ...]:
    """Return cases of a kernel whose arrays all have one shape; some may be limited to a range."""

    def case(*shape: int, use: str = "test", values: str = "wide") -> Case:
        name = " x ".join(map(str, shape))
        return Case(name, dict.fromkeys(arrays, shape), use, values, ranges=ranges)

    return (
        *(case(n, values="special") for n in SHORT_LENGTHS),
        case(7, 5, 1000),
        case(1000, 1000, use="demo"),
        *(case(*shape, use="bench") for shape in [(BENCH_ELEMENTS,), (BENCH_ELEMENTS - 1,), (CPU_SIDE, CPU_SIDE)]),
    )


def rowwise(
    shapes: Callable[[int, int], dict[str, tuple[int, ...]]], **ranges: tuple[float, float]
) -> tuple[Case, ...]:
    """Return cases of a kernel that works on rows; `shapes` gives those of all arrays for some rows and columns."""

    def case(rows: int, columns: int, use: str = "test", values: str = "normal") -> Case:
        return Case(f"{rows} x {columns}", shapes(rows, columns), use, values, ranges=ranges)

    timed = [(BENCH_ELEMENTS // columns, columns) for columns in BENCH_COLUMNS]
    return (
        case(0, 5),
        case(4, 0),
        *(case(*shape) for shape in SHORT_ROWS + WIDE_ROWS),
        case(42, 67, values="special rows"),
        case(1000, 1000, "demo", "wide"),
        *(case(*shape, use="bench") for shape in [*timed, (CPU_SIDE, CPU_SIDE)]),
    )


def _filled(shape: tuple[int, ...], dtype: Dtype, values: str, random: Any) -> Any:
    import numpy as np

    from gristmill.dtypes import dt_numpy

    wanted = dt_numpy(dtype)
    if values in ("poison", "zeros"):
        return np.full(shape, 77 if values == "poison" else 0, wanted)
    if not dtype.is_float:
        info = np.iinfo(wanted) if dtype.is_int else np.iinfo(np.uint8)
        return random.integers(info.min, info.max, shape, dtype=info.dtype, endpoint=True).astype(wanted)
    array = random.standard_normal(shape) * (1 if values == "normal" else 4)
    if values == "special":
        _sprinkle(array, wanted, random)
    if values == "special rows":
        _sprinkle_rows(array, wanted)
    return array.astype(wanted)


def _finfo(dtype: Any) -> Any:
    """Return what `numpy.finfo` does, for bf16 too."""
    import numpy as np

    if dtype.kind == "f":
        return np.finfo(dtype)
    import ml_dtypes

    return ml_dtypes.finfo(dtype)


def _sprinkle(array: Any, dtype: Any, random: Any) -> None:
    """Put values that need care at a third of the places."""
    import numpy as np

    info = _finfo(dtype)
    edges = [0.0, math.inf, math.nan, float(info.smallest_subnormal), float(info.smallest_normal), float(info.max)]
    edges += [1.0, 20.0, 100.0]
    chosen = random.random(array.shape) < 1 / 3
    array[chosen] = random.choice(np.array(edges + [-e for e in edges]), int(chosen.sum()))


def _sprinkle_rows(array: Any, dtype: Any) -> None:
    """Give each row one kind of value that needs care, at its start, everywhere, or at every third place."""
    tiny = float(_finfo(dtype).smallest_subnormal)
    edges = [math.inf, -math.inf, math.nan, 0.0, -0.0, tiny, 5e4]
    places = [slice(0, 1), slice(None), slice(None, None, 3)]
    for index, row in enumerate(array.reshape(-1, array.shape[-1])):
        row[places[index % 3]] = edges[index % len(edges)]


def _widened(value: Any) -> Any:
    """Return a float array as float64; anything else as it is."""
    if getattr(value, "dtype", None) is None or value.dtype.kind in "iub":
        return value
    import numpy as np

    return value.astype(np.float64)


def _differences(got: Any, expected: Any) -> Any:
    """|got - expected|; 0 where both are the same infinity or NaN, inf where only one is.

    Where the reference, being wider, has not overflowed, infinity counts as the number from which it is rounded to.
    """
    import numpy as np

    info = _finfo(got.dtype)
    limit = float(info.max) * (1 + float(info.eps) / 2)
    wide = got.astype(np.float64)
    same = (wide == expected) | (np.isnan(wide) & np.isnan(expected))
    differences = np.abs(np.clip(wide, -limit, limit) - np.clip(expected, -limit, limit))
    hopeless = np.isinf(expected) | np.isnan(differences)
    return np.where(same, 0.0, np.where(hopeless, math.inf, differences))


def _allowed(dtype: Any, expected: Any, tolerance: Tolerance) -> Any:
    """What `_differences` may be; at least the smallest step of the dtype, since no result can be closer."""
    import numpy as np

    info = _finfo(dtype)
    magnitude = np.where(np.isfinite(expected), np.minimum(np.abs(expected), float(info.max)), 0.0)
    row = np.max(magnitude, axis=-1, keepdims=True, initial=0.0) if magnitude.ndim else magnitude
    floor = float(info.smallest_subnormal) + tolerance.absolute * row
    if info.bits == 16:
        exponent = np.floor(np.log2(np.maximum(magnitude, float(info.smallest_normal))))
        return floor + (tolerance.half_ulps + 0.5) * np.exp2(exponent) * float(info.eps)
    return floor + (tolerance.f32 if info.bits == 32 else tolerance.f64) * magnitude
