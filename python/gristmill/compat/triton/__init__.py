"""What kernels written for Triton import: `import gristmill.compat.triton as triton`.

A kernel file stands unchanged but for its imports. Nothing compiles when it runs: kernels are declared with
`gm.specialise` and compiled when their package is built.
"""

from __future__ import annotations

from gristmill.compat.triton import errors, language, runtime, testing, tools
from gristmill.compat.triton.decorators import (
    Autotuner,
    Config,
    Heuristics,
    JITFunction,
    autotune,
    heuristics,
    jit,
)
from gristmill.compat.triton.decorators import ConstexprFunction as constexpr_function
from gristmill.compat.triton.errors import CompilationError, OutOfResources, TritonError
from gristmill.symbolic import cdiv, next_power_of_2

__version__ = "3.9.0"  # the version whose language this is

KernelInterface = JITFunction

__all__ = [
    "Autotuner", "CompilationError", "Config", "Heuristics", "JITFunction", "KernelInterface", "OutOfResources",
    "TritonError", "autotune", "cdiv", "constexpr_function", "errors", "heuristics", "jit", "language",
    "next_power_of_2", "runtime", "testing", "tools",
]  # fmt: skip
