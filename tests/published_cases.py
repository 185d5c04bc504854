"""Published kernels: how each is declared, what it is called with and, in numpy, what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

import gristmill as gm
from gristmill import dtypes as dt
from gristmill.declare import Kernel
from gristmill.dtypes import dt_numpy
from gristmill.specialisation import Specialisation

D = gm.dtype_var("D", gm.Float)
POISON = -77.0

Numbers = np.ndarray
Outcome = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One declaration of a kernel; `make(draw, constants)` gives the arguments and what arrays hold afterwards.

    What is wanted of an array is a tile of numbers, or (what to compute from the array, numbers). `ulps`: how many
    roundings to the dtype of the largest number the kernel may be off, for its own intermediate results.
    """

    file: str
    kernel: str
    declaration: dict[str, Any]
    make: Callable[[Draw, dict[str, Any]], Outcome]
    ulps: int


@dataclass(frozen=True)
class Draw:
    """Draws arguments in the dtype of one specialisation."""

    rng: np.random.Generator
    dtype: Any

    def normal(self, *shape: int, scale: float = 1.0, dtype: Any = None) -> Numbers:
        return (self.rng.standard_normal(shape) * scale).astype(dtype or self.dtype)

    def log_softmax(self, *shape: int) -> Numbers:
        x = self.rng.standard_normal(shape)
        return (x - np.log(np.exp(x).sum(-1, keepdims=True))).astype(self.dtype)

    def empty(self, *shape: int, dtype: Any = None) -> Numbers:
        return np.full(shape, POISON).astype(dtype or self.dtype)


class Cases(dict[str, Case]):
    """The cases of one package by title; `load(file)` executes one of its files."""

    def __init__(self, load: Callable[[str], ModuleType]):
        super().__init__()
        self.load = load
        self._declared: dict[str, Kernel] = {}

    def case(self, file: str, kernel: str, *, ulps: int = 4, title: str = "", **declaration: Any) -> Callable[..., Any]:
        """Decorate what makes arguments and results of a kernel; `declaration` are arguments of `gm.specialise`."""
        declaration = {"dtypes": [gm.f32, gm.bf16, gm.f16]} | declaration

        def decorate(make: Callable[..., Outcome]) -> Callable[..., Outcome]:
            self[title or kernel.strip("_")] = Case(file, kernel, declaration, make, ulps)
            return make

        return decorate

    def declared(self, title: str) -> Kernel:
        """Return the kernel of a case."""
        if title not in self._declared:
            chosen = self[title]
            function = getattr(self.load(chosen.file), chosen.kernel)
            self._declared[title] = gm.specialise(function, name=title, **chosen.declaration)
        return self._declared[title]

    def outcome(self, title: str, specialisation: Specialisation) -> Outcome:
        """Return arguments and wanted results for one specialisation."""
        draw = Draw(np.random.default_rng(7), dtype_of(specialisation))
        return self[title].make(draw, dict(specialisation.constants))

    def agrees(self, run: Any, title: str, specialisation: Specialisation, kernel: Kernel | None = None) -> None:
        """Run one specialisation of a case's kernel, or of the same kernel in other blocks."""
        arguments, wanted = self.outcome(title, specialisation)
        run(kernel or self.declared(title), specialisation, **arguments)
        for name, want in wanted.items():
            transform, numbers = want if isinstance(want, tuple) else (wide, want)
            ulps = 0 if arguments[name].dtype.kind == "i" else self[title].ulps
            compare(transform(arguments[name]), numbers, dtype_of(specialisation), ulps, specialisation.id)


def dtype_of(specialisation: Specialisation) -> np.dtype:
    return dt_numpy(dict(specialisation.dtypes)["D"])


def compare(got: Numbers, want: Numbers, dtype: np.dtype, ulps: int, what: str) -> None:
    """Each number within `ulps` roundings of the largest one: kernels round intermediate results to the dtype.

    f32 gets more of them, since sums of a row and approximate functions err by a few, and halves are computed in f32.
    """
    narrow = {dt_numpy(dt.bf16): 2.0**-8, dt_numpy(dt.f16): 2.0**-11}
    rounding = narrow.get(dtype, 2.0**-24 * 8)
    largest = np.abs(want[np.isfinite(want)]).max(initial=1e-30)
    np.testing.assert_allclose(got, want, rtol=0, atol=rounding * ulps * largest, err_msg=what)


def wide(x: Numbers) -> Numbers:
    return np.asarray(x).astype(np.float64)


def gradient(function: Callable[[Numbers], Any], at: Numbers, step: float = 1e-5) -> Numbers:
    """Return the derivative of a number by each element, from differences in f64."""
    at = wide(at)
    found = np.empty_like(at)
    for index in np.ndindex(at.shape):
        ahead, behind = at.copy(), at.copy()
        ahead[index] += step
        behind[index] -= step
        found[index] = (function(ahead) - function(behind)) / (2 * step)
    return found
