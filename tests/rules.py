"""What the tests of the language's rules share: dtypes by name, numbers in them, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.dtypes import dt_numpy
from gristmill.errors import KernelError
from machines import RUNNERS, compute

INF, NAN = math.inf, math.nan
EVERY = [d.name for d in dt.ALL]
INTEGERS = [d.name for d in dt.ALL if d.is_int]
FLOATS = ["f16", "bf16", "f32", "f64"]
BY_NAME = {d.name: d for d in dt.ALL}


def spelled(name: str) -> str:
    """How a kernel's author writes a dtype."""
    return {
        "f8e4m3": "tl.float8e4nv", "f8e5m2": "tl.float8e5", "bool": "tl.int1", "bf16": "tl.bfloat16",
    }.get(name) or f"tl.{BY_NAME[name].kind}{BY_NAME[name].bits}"  # fmt: skip


def numbers(name: str, *values: Any) -> np.ndarray:
    return np.array(values).astype(dt_numpy(BY_NAME[name]))


def refused(expression: str, **inputs: Any) -> str:
    """The error that an expression is."""
    with pytest.raises(KernelError) as caught:
        compute(RUNNERS["interpreter"], expression, dt.f32, **inputs)
    assert caught.value.fix
    return caught.value.message
