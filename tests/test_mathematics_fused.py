"""Functions keep what they promise where every product is fused with every sum that it goes into, as on CUDA.

The fusing is done in the formulas here, so that CPUs compute what a machine might that fuses as much as it may.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gristmill.language.registers import Register
from host import levels
from test_mathematics import BINARY, KINDS, SPECIAL, UNARY, needs_wide_reference, pairs, wide
from test_numbers import apply, assert_within, sweep

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(not levels(), reason="needs LLVM and a C compiler"),
]


HAVE_SUMS_OF_PRODUCTS = ("sin", "cos", "tan", "cbrt", "tgamma", "atan")


class Fusing:
    """Remembers which registers are products, and makes sums of them fused ones."""

    def __init__(self) -> None:
        self.factors: dict[Any, tuple[Any, Any]] = {}
        self.fused = 0
        self.plain_binary, self.plain_negative = Register._binary, Register.__neg__

    def binary(self, x: Register, word: str, other: Any, is_swapped: bool = False) -> Register:
        other = other if isinstance(other, Register) else x.constant(other)
        left, right = (other.v, x.v) if is_swapped else (x.v, other.v)
        if x.dtype.is_float and word in ("add", "subtract"):
            fused = self.sum(x.machine, word, left, right)
            if fused is not None:
                return x.wrap(fused)
        result = self.plain_binary(x, word, other, is_swapped)
        if x.dtype.is_float and word == "multiply":
            self.factors[result.v] = (left, right)
        return result

    def sum(self, m: Any, word: str, left: Any, right: Any) -> Any:
        """A fused multiply-add for a sum or difference one part of which is a product."""
        is_difference = word == "subtract"
        if left in self.factors:
            a, b, c = *self.factors[left], m.negative(right) if is_difference else right
        elif right in self.factors:
            a, b = self.factors[right]
            a, c = m.negative(a) if is_difference else a, left
        else:
            return None
        self.fused += 1
        return m.fma(a, b, c)

    def negative(self, x: Register) -> Register:
        result = self.plain_negative(x)
        if x.v in self.factors:
            a, b = self.factors[x.v]
            self.factors[result.v] = (x.machine.negative(a), b)
        return result


@pytest.fixture
def fusing(monkeypatch):
    state = Fusing()
    monkeypatch.setattr(Register, "_binary", lambda x, *rest, **named: state.binary(x, *rest, **named))
    monkeypatch.setattr(Register, "__neg__", lambda x: state.negative(x))
    return state


def apply_fused(name: str, dtype: str, **inputs: np.ndarray) -> np.ndarray:
    """As `apply`; the spaces keep it apart from the kernel of the same formula that is not fused."""
    return apply(levels()[-1], f"tl.extra.libdevice.{name}({', '.join(inputs)}  )", dtype, **inputs)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", [*UNARY, *SPECIAL])
def test_function_of_one_number_is_as_exact_with_all_products_fused(fusing, dtype, name):
    needs_wide_reference(dtype)
    if name in SPECIAL and dtype == "f64":
        pytest.skip("its reference is no wider than f64")
    x = sweep(dtype)[::3].copy()
    function, bound = {**UNARY, **SPECIAL}[name]
    want = function(wide(x)).astype(wide(x).dtype)
    assert_within(bound, apply_fused(name, dtype, x=x), want, x=x)
    assert fusing.fused > 0 or name not in HAVE_SUMS_OF_PRODUCTS


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", ["atan2", "hypot", "fmod", "pow"])
def test_function_of_two_numbers_is_as_exact_with_all_products_fused(fusing, dtype, name):
    needs_wide_reference(dtype)
    x, y = pairs(name, dtype)
    function, bound = BINARY[name]
    assert_within(bound, apply_fused(name, dtype, x=x, y=y), function(wide(x), wide(y)), x=x, y=y)
