"""Calls of kernels on the simulated device: choose the code as a dispatcher does, then execute every program."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from gristmill.compiler.interpreter import (
    InterpreterError,
    _choose,
    _evaluate,
    _fill,
    _fitting,
    _variant,
    obstacle_of,
    without,
)
from gristmill.compiler.ir import Function
from gristmill.compiler.prepare import is_replaceable, prepare
from gristmill.compiler.simt.machine import SimtMachine
from gristmill.compiler.targets import Target, find_target
from gristmill.declare import Kernel, Parameter
from gristmill.errors import SimulationError
from gristmill.specialisation import VARIANTS, Specialisation, Variant
from gristmill.symbolic import evaluate
from gristmill.tensor_map import TensorMap


def simulate(
    kernel: Kernel,
    grid: Sequence[int] | int | None,
    *arguments: Any,
    target: str = "sm_90a",
    constants: Mapping[str, Any] | None = None,
    shuffle: int | None = None,
    **named: Any,
) -> Specialisation:
    """Run a kernel's code for a CUDA target on the CPU, on numpy arrays, which it changes in place.

    `grid` is the number of programs, up to three sizes; None: as declared. Arguments are given by position or name;
    sizes and strides follow from the arrays. Programs run one after another, axis 0 fastest, or in an order that the
    seed `shuffle` decides. Returns the specialisation that ran. Raises SimulationError, at the kernel's line, for an
    access outside an array or misaligned, for a race, and where threads disagree on where to go.
    """
    sizes = (grid,) if isinstance(grid, int) else grid
    if sizes is None and not kernel.grid:
        raise SimulationError(f"`{kernel.name}` declares no grid", fix="pass the number of programs, as in `(16,)`")
    if sizes is not None and not 1 <= len(sizes) <= 3:
        raise SimulationError(f"a grid has one to three sizes, not {len(sizes)}", fix="pass for example `(16, 4)`")
    given = {**(constants or {}), **named}
    return run_simulated(kernel, None, *arguments, grid=sizes, target=target, shuffle=shuffle, **given)


def run_simulated(
    kernel: Kernel,
    specialisation: Specialisation | None = None,
    *arguments: Any,
    grid: Sequence[int] | None = None,
    variant: Variant | None = None,
    target: str = "sm_90a",
    shuffle: int | None = None,
    **named: Any,
) -> Specialisation:
    """Do what the interpreter's `run_kernel` does, on the simulated device.

    The aligned variant runs where the arrays allow it.
    """
    row = check_target(target)
    constants = {name: named.pop(name) for name in kernel.constant_names if name in named}
    given = _checked(kernel, arguments, named)
    try:
        values = _fill(kernel, given)
        chosen = _compiled(kernel, values, constants, row, variant, specialisation)
    except InterpreterError as error:
        raise SimulationError(error.message, fix=error.fix) from None
    sizes = tuple(grid) if grid is not None else tuple(_evaluate(code, kernel, values, chosen) for code in kernel.grid)
    if all(size > 0 for size in sizes):
        variant = variant or _suitable(kernel, chosen, values, row)
        machine = SimtMachine(_prepared(kernel, chosen, variant, row)[0])
        _execute(machine, (*sizes, 1, 1, 1)[:3], values, shuffle)
    return chosen


def _checked(kernel: Kernel, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name; raises for those that no parameter takes."""
    names = [p.name for p in kernel.parameters]
    if len(arguments) > len(names):
        message = f"`{kernel.name}` takes {len(names)} arguments, got {len(arguments)}"
        raise SimulationError(message, fix=f"pass {', '.join(names)}")
    given = dict(zip(names, arguments, strict=False))
    for name in given.keys() & named.keys():
        raise SimulationError(f"`{name}` is given twice", fix="give it by position or by name")
    given |= named
    for parameter in kernel.parameters:
        if parameter.name in given:
            _check(parameter, given[parameter.name])
    return given


def _check(parameter: Parameter, value: Any) -> None:
    """Raise unless it is a numpy array where one is needed, and a number elsewhere."""
    if parameter.kind == "pointer" and not isinstance(value, np.ndarray):
        message = f"`{parameter.name}` must be a numpy array, got {type(value).__name__}"
        raise SimulationError(message, fix=f"pass `np.asarray({parameter.name})`")
    if parameter.kind != "pointer" and (np.ndim(value) or np.asarray(value).dtype.kind not in "biufV"):
        message = f"`{parameter.name}` must be a number, got {type(value).__name__}"
        raise SimulationError(message, fix="pass an int, a float or a bool")


def check_target(name: str) -> Target:
    """Return a CUDA target; raises if `name` is none."""
    row = find_target(name)
    if row.kind != "cuda":
        raise SimulationError(f"`{name}` is no CUDA target", fix="simulate one such as `sm_80` or `sm_90a`")
    return row


def _execute(machine: SimtMachine, grid: Sequence[int], values: Mapping[str, Any], shuffle: int | None) -> None:
    machine.grid = grid
    bound = machine.bind(values)
    programs = [program[::-1] for program in itertools.product(*(range(size) for size in reversed(grid)))]
    if shuffle is not None:
        random.Random(shuffle).shuffle(programs)
    for program in programs:
        machine.run_program(program, bound)


@cache
def _prepared(
    kernel: Kernel, specialisation: Specialisation, variant: Variant, target: Target
) -> tuple[Function, dict[str, int]]:
    function, promised = prepare(kernel, specialisation, variant, target, lambda stage, thing: None)
    return function, {value.name: divisor for value, divisor in promised.items()}


def _compiled(
    kernel: Kernel,
    values: Mapping[str, Any],
    constants: Mapping[str, Any],
    target: Target,
    variant: Variant | None,
    only: Specialisation | None,
) -> Specialisation:
    """Return the first specialisation that suits the call and is compiled for it and the target, or `only`."""
    obstacle = without(variant) or partial(_obstacle, kernel, values, target)
    for candidate in _fitting(kernel, values, constants, obstacle, "cuda") if only is None else ():
        function, _ = _prepared(kernel, candidate, variant or _suitable(kernel, candidate, values, target), target)
        if not (function.overflows and is_replaceable(kernel, candidate, target)):
            return candidate
    return _choose(kernel, values, constants, obstacle, only, "cuda")


def _suitable(kernel: Kernel, chosen: Specialisation, values: Mapping[str, Any], target: Target) -> Variant:
    """Return the aligned variant where the call keeps what it promises, else a general one."""
    return _variant(kernel, values) if _obstacle(kernel, values, target, chosen) else VARIANTS[0]


def _obstacle(kernel: Kernel, values: Mapping[str, Any], target: Target, chosen: Specialisation) -> str:
    """What keeps the call from aligned code for the target, its tensor maps among it."""
    found = obstacle_of(kernel, values, lambda: _prepared(kernel, chosen, VARIANTS[0], target)[1])
    if found:
        return found
    maps = _prepared(kernel, chosen, VARIANTS[0], target)[0].maps
    unmade = [m.parameter for m in maps if not can_be_made(m, kernel, values)]
    return f"`{unmade[0]}` cannot have a tensor map" if unmade else ""


def can_be_made(tensor_map: TensorMap, kernel: Kernel, values: Mapping[str, Any]) -> bool:
    """Whether the launcher makes a map of a call's arrays (`csrc/tensor_map.cpp`); they start on 16 bytes."""
    numbers = [0 if p.kind == "pointer" else int(values[p.name]) for p in kernel.parameters]
    extents = [evaluate(code, numbers) for code in tensor_map.extents]
    steps = [evaluate(code, numbers) * tensor_map.dtype.itemsize for code in tensor_map.strides]
    return all(1 <= n <= 1 << 32 for n in extents) and all(0 <= n < 1 << 40 and n % 16 == 0 for n in steps)
