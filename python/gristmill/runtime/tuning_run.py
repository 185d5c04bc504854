"""`gristmill tune`: many calls one after the other, with progress, and their rows in a file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gristmill.errors import GristmillError
from gristmill.runtime.calls import CallToTune, call_of_text, calls_of_cases, put
from gristmill.runtime.demo import find_devices
from gristmill.runtime.tune import Effort, Tick, Tuned, measure
from gristmill.tuning import save

QUICK = Effort(rounds=10, seconds=1.0)
OWN_KERNELS = "gristmill.kernels"


def run(options: Any, module: Any) -> int:
    """Tune a kernel of a module as the command line says; return 1 if a call could not be tuned."""
    kernel = _kernel_of(module, options.module, options.kernel)
    calls = find_calls(options)
    device = _device_of(module, options.device)
    effort = Effort(seconds=options.seconds, is_warm=options.warm)
    if options.quick:
        effort = Effort(rounds=QUICK.rounds, seconds=QUICK.seconds, is_warm=options.warm)
    done, failed = tune_all(kernel, calls, device, effort)
    print(summary(done))
    if options.out and done:
        save(options.out, [tuned.row for tuned in done])
        print(f"{len(done)} rows in {options.out}; docs/tuning.md says how to ship it, GRISTMILL_TUNING tries it")
    return int(failed > 0)


def find_calls(options: Any) -> list[CallToTune]:
    """Return the calls that the command line asks for. Raises GristmillError if it says nothing usable."""
    if options.shape:
        return [call_of_text(options.kernel, text) for text in options.shape]
    if options.module != OWN_KERNELS:
        fix = '--shape "x=f32[1000,4096] y=f32[1000,4096]"'
        raise GristmillError(f"what is `{options.kernel}` to be called with?", fix=f"say it: {fix}")
    return calls_of_cases(options.kernel, options.dtype, options.case or ["bench"])


def tune_all(kernel: Any, calls: Sequence[CallToTune], device: Any, effort: Effort) -> tuple[list[Tuned], int]:
    """Tune each call; one that fails is reported and passed over. Return what was measured, and how many failed."""
    found: list[Tuned] = []
    failed = 0
    with progress(len(calls)) as show:
        for number, call in enumerate(calls):
            try:
                tuned = tune_call(kernel, call, device, effort, show(number, call.title))
            except (GristmillError, RuntimeError, ValueError, TypeError, MemoryError) as error:
                failed += 1
                show.say(f"{call.title}: {error}")
                continue
            found.append(tuned)
            show.say(str(tuned))
    return found, failed


def tune_call(kernel: Any, call: CallToTune, device: Any, effort: Effort, tick: Tick) -> Tuned:
    """Measure one call with arrays on a device."""
    arguments = call.make()
    for name, value in arguments.items():
        if hasattr(value, "shape") and not device.can_hold(value):
            raise GristmillError(f"`{name}`: {device.name} arrays have no {value.dtype}", fix="choose another --dtype")
    return measure(kernel.trial(**put(device, arguments)), effort, tick)


def summary(done: Sequence[Tuned]) -> str:
    """Return how often, and by how much, a table is better than the formula."""
    gains = [t.row.formula_us / t.row.us for t in done if t.row.take != t.formula.id and t.row.us]
    best = f", by up to {max(gains):.2f} times" if gains else ""
    return f"{len(done)} calls tuned; in {len(gains)} another configuration is faster than the formula's{best}"


def _kernel_of(module: Any, name: str, kernel: str) -> Any:
    if kernel not in module.__all__:
        raise GristmillError(f"there is no kernel `{kernel}` in {name}", fix="use one of " + ", ".join(module.__all__))
    return getattr(module, kernel)


def _device_of(module: Any, wanted: str | None) -> Any:
    devices, notes = find_devices(module)
    named = {device.name: device for device in devices}
    if wanted is None:
        return devices[-1]
    if wanted in named:
        return named[wanted]
    raise GristmillError(f"there is no device `{wanted}` here: {' '.join(notes)}", fix="use --device cpu")


# ---- progress ------------------------------------------------------------------------------------------------------


class Lines:
    """Progress where nothing can be drawn: a line for each call."""

    def __init__(self, total: int):
        self._total = total

    def __call__(self, number: int, title: str) -> Tick:
        self.say(f"[{number + 1}/{self._total}] {title}")
        return lambda done, total: None

    def say(self, text: str) -> None:
        print(text, flush=True)


class Bar:
    """A bar by rich, above which results are printed."""

    def __init__(self, total: int, bar: Any):
        self._bar = bar
        self._total = total
        self._task = bar.add_task("", total=max(total, 1))

    def __call__(self, number: int, title: str) -> Tick:
        self._bar.update(self._task, description=f"[{number + 1}/{self._total}] {title}".replace("[", "\\["))
        return lambda done, total: self._bar.update(self._task, completed=number + done / max(total, 1))

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Drawn(AbstractContextManager[Bar]):
    def __init__(self, total: int):
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._total = total
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns)

    def __enter__(self) -> Bar:
        self._bar.start()
        return Bar(self._total, self._bar)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def progress(total: int, is_terminal: Callable[[], bool] = sys.stdout.isatty) -> AbstractContextManager[Any]:
    """Return what shows progress: a bar where rich is installed and the output is a terminal, else lines."""
    if is_terminal() and importlib.util.find_spec("rich"):
        return _Drawn(total)
    return nullcontext(Lines(total))
