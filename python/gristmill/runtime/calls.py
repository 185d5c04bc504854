"""Calls to tune: from the cases that a kernel's file declares, or from a text such as "x=f32[8,4096] y=f32[8]"."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.dtypes import Dtype, dt_numpy, parse_dtype
from gristmill.errors import GristmillError
from gristmill.runtime.specs import load_specs

EXAMPLE = '--shape "a=f16[4096,4096] b=f16[4096,4096].T out=f16[4096,4096] alpha=2.0"'
_ARRAY = re.compile(r"(\w+)\[([\d, ]*)\](\.T)?")
_WORD = re.compile(r"(\w+)=((?:\w+\[[^\]]*\](?:\.T)?)|\S+)")


@dataclass(frozen=True)
class CallToTune:
    """One call; `make` gives its arrays, in numpy, and scalars by parameter."""

    title: str
    make: Callable[[], dict[str, Any]]


def calls_of_cases(kernel: str, dtypes: Sequence[str], cases: Sequence[str]) -> list[CallToTune]:
    """Return the declared cases of a kernel of Gristmill's own, by name or by use ("bench"), in each dtype.

    No dtypes means all. Raises GristmillError for what is not declared.
    """
    spec = next((s for s in load_specs() if s.kernel.name == kernel), None)
    if spec is None:
        raise GristmillError(f"no cases are declared for `{kernel}`", fix=f"say what to call it with: {EXAMPLE}")
    rows = {"-".join(d.name for _, d in s.dtypes): s for s in reversed(spec.kernel.specialisations())}
    for name in dtypes:
        if name.replace("/", "-") not in rows:
            raise GristmillError(f"`{kernel}` is not built in `{name}`", fix="use one of " + ", ".join(reversed(rows)))
    wanted = [name.replace("/", "-") for name in dtypes] or list(reversed(rows))
    chosen = [case for case in spec.cases if case.use in cases or case.name in cases]
    if not chosen:
        names = dict.fromkeys([*(c.use for c in spec.cases), *(c.name for c in spec.cases)])
        raise GristmillError(f"`{kernel}` has no case {', '.join(cases)}", fix="use one of " + ", ".join(names))
    return [
        CallToTune(f"{kernel} {name} {case.name}", lambda c=case, r=rows[name]: spec.arguments(c, r))  # type: ignore[misc]
        for case in chosen
        for name in wanted
    ]


def call_of_text(kernel: str, text: str) -> CallToTune:
    """Return the call that a text describes: arrays with dtype and shape, `.T` for a transpose, and scalars.

    Floats are normal numbers; integers are 0, which any array has as an index. Raises GristmillError.
    """
    words = _WORD.findall(text)
    if " ".join(text.split()) != " ".join(f"{name}={value}" for name, value in words) or not words:
        raise GristmillError(f"`{text}` does not describe a call", fix=f"write it as {EXAMPLE}")
    values = {name: _described(name, value) for name, value in words}
    return CallToTune(f"{kernel} {text}", lambda: dict(_made(values)))


def _described(name: str, text: str) -> Any:
    """Return (dtype, shape, whether it is a transpose), or a number."""
    if match := _ARRAY.fullmatch(text):
        shape = tuple(int(size) for size in match[2].replace(" ", "").split(",") if size)
        return parse_dtype(match[1]), shape, bool(match[3])
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    raise GristmillError(f"`{name}={text}` is neither an array nor a number", fix=f"write it as {EXAMPLE}")


def _made(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    import numpy as np

    random = np.random.default_rng(0)
    for name, value in values.items():
        if not isinstance(value, tuple):
            yield name, value
            continue
        dtype, shape, is_turned = value
        stored = shape[::-1] if is_turned else shape
        numbers = random.standard_normal(stored, np.float32) if dtype.is_float else np.zeros(stored)
        array = numbers.astype(_numpy_dtype(dtype))
        yield name, array.T if is_turned else array


def _numpy_dtype(dtype: Dtype) -> Any:
    try:
        return dt_numpy(dtype)
    except ImportError:
        message = f"arrays of {dtype} need ml_dtypes, which is not installed here"
        raise GristmillError(message, fix="pip install ml_dtypes") from None


def put(device: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with their arrays on a device (`gristmill.runtime.demo.Device`), which lie as before."""
    return {name: _put(device, value) if hasattr(value, "shape") else value for name, value in arguments.items()}


def _put(device: Any, array: Any) -> Any:
    is_turned = array.ndim == 2 and not array.flags.c_contiguous
    return device.put(array.T).T if is_turned else device.put(array)
