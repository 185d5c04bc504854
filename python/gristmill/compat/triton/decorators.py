"""`jit`, `autotune` and `heuristics`: they keep what they are told for `gm.specialise`, and launch nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from gristmill.compat.recording import note_launch
from gristmill.errors import DeclarationError
from gristmill.positions import caller_position


class _Decorated:
    """A function under a decorator: what can be done with it where nothing is compiled."""

    def __init__(self, fn: Any):
        functools.update_wrapper(self, fn)
        self.fn = fn

    @property
    def function(self) -> Callable[..., Any]:
        """The author's function, which other kernels inline when they call it."""
        inner: Any = self.fn
        return inner if inspect.isfunction(inner) else inner.function

    @property
    def arg_names(self) -> list[str]:
        return list(inspect.signature(self.function).parameters)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return functools.partial(self.run, grid=grid)

    def run(self, *arguments: Any, grid: Any, warmup: bool = False, **keywords: Any) -> None:
        """Note the launch for `gristmill.compat.record()`. Raises DeclarationError where nothing records."""
        if not note_launch(self, arguments, keywords, grid, is_warmup=warmup):
            raise self._no_launch()

    def warmup(self, *arguments: Any, grid: Any, **keywords: Any) -> None:
        self.run(*arguments, grid=grid, warmup=True, **keywords)

    def __call__(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise self._no_launch()

    def _no_launch(self) -> DeclarationError:
        name = self.function.__name__
        message = f"`{name}` is not compiled when it is launched: kernels are compiled when their package is built"
        fix = (
            f"declare it, `gm.specialise({name}, signature=..., grid=...)` (`python -m gristmill port FILE` writes "
            f"that), build, and call `{name}(x, y)` as `from gristmill.kernels import {name}` gives it"
        )
        return DeclarationError(message, fix=fix, position=caller_position())


class JITFunction(_Decorated):
    """A function under `triton.jit`; `options` are its arguments, of which none changes what is computed.

    As Triton, the compiler takes what it annotates as a constant for a hint where a kernel calls it.
    """

    takes_hints = True

    def __init__(self, fn: Any, **options: Any):
        if not inspect.isfunction(fn):
            message = f"`triton.jit` decorates a function, found `{fn!r}`"
            raise DeclarationError(message, fix="put it directly above a `def`", position=caller_position())
        super().__init__(fn)
        self.options = options


class ConstexprFunction:
    """A function under `triton.constexpr_function`: kernels call it on what is known when they are built."""

    def __init__(self, fn: Callable[..., Any]):
        functools.update_wrapper(self, fn)
        self.fn = fn

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.fn(*arguments, **keywords)


class Config:
    """One choice of `autotune`: constants, warps and stages."""

    def __init__(
        self,
        kwargs: Mapping[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Callable[..., Any] | None = None,
        ir_override: str | None = None,
    ):
        self.kwargs = dict(kwargs)
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.num_ctas = num_ctas
        self.maxnreg = maxnreg
        self.pre_hook = pre_hook
        self.ir_override = ir_override

    def all_kwargs(self) -> dict[str, Any]:
        return self.kwargs | {"num_warps": self.num_warps, "num_stages": self.num_stages, "num_ctas": self.num_ctas}


class Autotuner(_Decorated):
    """A kernel under `triton.autotune`: every configuration is compiled; `keys` is for tuned tables.

    `hooks` are those of its arguments that run Python at each launch.
    """

    def __init__(self, fn: Any, configs: Sequence[Config], key: Sequence[str], hooks: Sequence[str] = ()):
        super().__init__(fn)
        self.configs = list(configs)
        self.keys = list(key)
        self.hooks = list(hooks)


class Heuristics(_Decorated):
    """A kernel under `triton.heuristics`: functions of the constants, computed when the package is built."""

    def __init__(self, fn: Any, values: Mapping[str, Callable[..., Any]]):
        super().__init__(fn)
        self.values = dict(values)


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Mark a kernel, or a function that kernels call; used as `@triton.jit` or `@triton.jit(...)`."""
    if fn is None:
        return lambda decorated: JITFunction(decorated, **options)
    return JITFunction(fn, **options)


_HOOKS = ("prune_configs_by", "pre_hook", "post_hook")
_TUNING = (*_HOOKS, "reset_to_zero", "restore_value", "warmup", "rep", "use_cuda_graph", "do_bench", "cache_results")


def autotune(configs: Sequence[Config], key: Sequence[str] = (), **tuning: Any) -> Callable[[Any], Autotuner]:
    """List configurations; `key` is what tuned tables tell calls apart by.

    How to time them, `reset_to_zero` and the like, is of no use at build time. What would run Python at a launch is an
    error where the kernel is declared without configurations of its own. Raises DeclarationError for what is unknown.
    """
    for name in tuning.keys() - {*_TUNING}:
        message = f"`triton.autotune` has no argument `{name}`"
        raise DeclarationError(message, fix=f"drop it; there are {', '.join(_TUNING)}", position=caller_position())
    return lambda fn: Autotuner(fn, configs, key, [name for name in _HOOKS if tuning.get(name)])


def heuristics(values: Mapping[str, Callable[..., Any]]) -> Callable[[Any], Heuristics]:
    """Compute constants from other constants, when the package is built."""
    return lambda fn: Heuristics(fn, values)
