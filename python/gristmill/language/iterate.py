"""Names that the frontend gives a meaning of its own: loop ranges and compile-time values."""

from __future__ import annotations

from typing import Any

from gristmill.errors import KernelError
from gristmill.language.types import describe


class constexpr:
    """A compile-time value: as an annotation of a local or a module's global, `N: tl.constexpr = 4`."""

    def __init__(self, value: Any):
        self.value = value


class range:
    """`for i in tl.range(start, stop, step, ...)`: a loop at run time; the options are hints."""

    def __init__(
        self,
        arg1: Any,
        arg2: Any = None,
        step: Any = None,
        num_stages: Any = None,
        loop_unroll_factor: Any = None,
        disallow_acc_multi_buffer: Any = False,
        flatten: Any = False,
        warp_specialize: Any = False,
        disable_licm: Any = False,
    ):
        self.bounds = (arg1, arg2, step)
        for name, count in (("num_stages", num_stages), ("loop_unroll_factor", loop_unroll_factor)):
            _check_count(name, count)
        flags = (disallow_acc_multi_buffer, flatten, warp_specialize, disable_licm)
        names = ("disallow_acc_multi_buffer", "flatten", "warp_specialize", "disable_licm")
        for name, flag in zip(names, flags, strict=True):
            _check_flag(name, flag)
        self.options = {"num_stages": num_stages, "unroll": loop_unroll_factor}


def _check_count(name: str, count: Any) -> None:
    is_count = isinstance(count, int) and not isinstance(count, bool) and count >= 1
    if count is not None and not is_count:
        raise KernelError(f"range(): {name} must be a positive constant, got {describe(count)}", fix=f"use `{name}=2`")


def _check_flag(name: str, flag: Any) -> None:
    if flag is not None and flag not in (True, False):
        raise KernelError(
            f"range(): {name} must be known at build time, got {describe(flag)}", fix=f"use `{name}=True`"
        )


class static_range:
    """`for i in tl.static_range(start, stop, step)`: unrolled at build time, `i` is a constant."""

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None):
        self.bounds = (arg1, arg2, step)


class tensor:
    """Any tile: as an annotation of a helper's parameter, or in `isinstance(x, tl.tensor)`."""
