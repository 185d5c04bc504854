"""`triton.testing`: what to use instead."""

from __future__ import annotations

from typing import NoReturn

from gristmill.errors import DeclarationError
from gristmill.positions import caller_position

_INSTEAD = {
    "do_bench": "time calls of the built dispatcher, as `tools/bench` does, or with `torch.utils.benchmark`",
    "do_bench_cudagraph": "time calls of the built dispatcher, as `tools/bench` does",
    "perf_report": "time calls of the built dispatcher, as `tools/bench` does",
    "Benchmark": "time calls of the built dispatcher, as `tools/bench` does",
    "assert_close": "use `numpy.testing.assert_allclose` or `torch.testing.assert_close`",
}


def __getattr__(name: str) -> NoReturn:
    if name not in _INSTEAD:
        raise AttributeError(f"module 'triton.testing' has no attribute '{name}' here")
    message = f"`triton.testing.{name}` measures kernels that are compiled when they are launched, and none is"
    raise DeclarationError(message, fix=_INSTEAD[name], position=caller_position())
