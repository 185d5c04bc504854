"""Names that the frontend gives a meaning of its own: loop ranges and compile-time values."""

from __future__ import annotations

from typing import Any


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
        self.options = {"num_stages": num_stages, "unroll": loop_unroll_factor}


class static_range:
    """`for i in tl.static_range(start, stop, step)`: unrolled at build time, `i` is a constant."""

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None):
        self.bounds = (arg1, arg2, step)
