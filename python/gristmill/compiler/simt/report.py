"""A kernel's declared cases, simulated and compared with their reference: what `gristmill simulate` prints."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.cases import Case, spec_of
from gristmill.compiler.interpreter import _fill, _fitting
from gristmill.compiler.simt.run import check_target, run_simulated
from gristmill.declare import Kernel
from gristmill.dtypes import Dtype, parse_dtype
from gristmill.errors import DeclarationError, SimulationError
from gristmill.load import load_kernels
from gristmill.specialisation import Specialisation, show


@dataclass(frozen=True)
class Outcome:
    """How one case went: `error` is the largest one as a share of what is allowed, None where `report` says why."""

    kernel: str
    case: str
    id: str
    error: float | None
    report: str
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.error is not None and self.error <= 1


Dtypes = tuple[tuple[str, Dtype], ...]
Outcomes = Iterator[Outcome]


def simulate_cases(
    file: str | Path,
    *,
    kernel: str | None = None,
    target: str = "sm_90a",
    dtypes: Sequence[object] = (),
    constants: Mapping[str, str] | None = None,
) -> Outcomes:
    """Run the declared test cases of one kernel of a file, or of all, in each of their dtypes.

    `dtypes` (of the dtype variables, in order) and `constants`, spelled as on a command line, restrict what is run;
    cases that no specialisation is left for are passed over. Raises DeclarationError for what does not exist.
    """
    check_target(target)
    choices = [
        (chosen, found, _constants_of(chosen, found, constants or {}), spec_of(chosen).cases_for("test"))
        for chosen in _kernels(load_kernels(Path(file)), kernel)
        for found in _dtypes_of(chosen, dtypes)
    ]
    return _outcomes(choices, target)


def _outcomes(choices: Iterable[tuple[Kernel, Dtypes, Mapping[str, Any], Sequence[Case]]], target: str) -> Outcomes:
    for kernel, dtypes, constants, cases in choices:
        for case in cases:
            yield from _outcome(kernel, case, dtypes, constants, target)


def _kernels(kernels: list[Kernel], name: str | None) -> list[Kernel]:
    chosen = [k for k in kernels if name is None or k.name == name]
    if not chosen:
        raise DeclarationError(f"there is no kernel `{name}`", fix="use one of " + ", ".join(k.name for k in kernels))
    return chosen


def _dtypes_of(kernel: Kernel, dtypes: Sequence[object]) -> list[Dtypes]:
    """The combinations of dtypes that the kernel has, of those that are asked for."""
    asked = {name: parse_dtype(value) for (name, _), value in zip(kernel.dtype_vars, dtypes, strict=False)}
    every = list(dict.fromkeys(s.dtypes for s in kernel.specialisations()))
    found = [each for each in every if asked.items() <= dict(each).items()]
    if not found:
        known = "; ".join(", ".join(d.name for _, d in each) for each in every)
        message = f"`{kernel.name}` has no specialisation for {', '.join(map(str, asked.values()))}"
        raise DeclarationError(message, fix=f"there are {known}")
    return found


def _constants_of(kernel: Kernel, dtypes: Dtypes, asked: Mapping[str, str]) -> dict[str, object]:
    """Return the constants that a command line spells."""
    candidates = [dict(s.constants) for s in kernel.specialisations() if s.dtypes == dtypes]
    for constants in candidates:
        if all(name in constants and str(constants[name]).lower() == text.lower() for name, text in asked.items()):
            return {name: constants[name] for name in asked}
    message = f"`{kernel.name}` has no specialisation with {', '.join(f'{k}={v}' for k, v in asked.items())}"
    raise DeclarationError(message, fix="there are " + "; ".join(_spelled(each) for each in candidates))


def _spelled(constants: Mapping[str, object]) -> str:
    return " ".join(f"{name}={show(value)}" for name, value in constants.items())


def _outcome(kernel: Kernel, case: Case, dtypes: Dtypes, constants: Mapping[str, Any], target: str) -> Outcomes:
    spec = spec_of(kernel)
    like = next(s for s in kernel.specialisations() if s.dtypes == dtypes)
    arguments = spec.arguments(case, like)
    if next(_fitting(kernel, _fill(kernel, dict(arguments)), constants, kind="cuda"), None) is None:
        return
    expected, start = spec.expected(arguments), time.perf_counter()
    error, report, ran = None, "", like
    try:
        ran = run_simulated(kernel, None, **arguments, **constants, target=target)
        error = max(spec.errors(arguments, expected).values())
    except SimulationError as found:
        report = str(found)
    yield Outcome(kernel.name, case.name, _named(ran, report), error, report, time.perf_counter() - start)


def _named(ran: Specialisation, report: str) -> str:
    return ", ".join(d.name for _, d in ran.dtypes) if report else ran.id


def print_outcomes(outcomes: Outcomes) -> int:
    """Print a line a case as they come, and reports below their line; return how many are wrong."""
    count = wrong = 0
    print(f"{'specialisation':<48} {'case':<16} {'error':>8} {'time':>8}")
    for outcome in outcomes:
        count += 1
        wrong += not outcome.is_right
        error = "-" if outcome.error is None else f"{outcome.error:.3f}"
        mark = "" if outcome.is_right else "  WRONG"
        print(f"{outcome.id:<48} {outcome.case:<16} {error:>8} {outcome.seconds:7.3f}s{mark}", flush=True)
        if outcome.report:
            print(outcome.report)
    print(f"{count} cases, {wrong} wrong; errors are shares of what is allowed")
    return wrong
