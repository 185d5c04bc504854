"""In code for 64-bit offsets a literal follows the index that it meets, in branches, loops and tuples."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.compiler.frontend import build
from gristmill.compiler.ir import For, walk
from gristmill.errors import KernelError
from gristmill.specialisation import VARIANTS
from machines import kernel_of, on_each_machine

GENERAL, WIDE = VARIANTS[1:]
SOURCE = """
def chosen(i, c):
    if c > 2:
        return 5, i
    return i, 7


@gm.kernel(grid=1)
def k(x: gm.ptr[gm.i64], c: gm.i32, n: gm.size["x"]):
    last, count = 0, 0
    pair = (0, (1, 2))
    for i in range(n):
        last = i
        count += 1
        inner = 0
        for j in range(2):
            inner = inner + j * n
        pair = (pair[0] + inner, (pair[1][0], i))
    at = 0
    while at < n:
        at = at + n
    a = 3
    if c > 1:
        a = n
    b = n if c > 5 else 1
    d, e = chosen(n, c)
    for k, v in enumerate((last, count, pair[0], pair[1][0], pair[1][1], at, a, b, d, e)):
        tl.store(x + k, v)
"""


@on_each_machine
@pytest.mark.parametrize("variant", [GENERAL, WIDE], ids=["32", "64"])
@pytest.mark.parametrize("c", [0, 2, 9])
def test_numbers_meet_indices_of_either_width(run, variant, c):
    n = 10
    x = np.zeros(n, np.int64)
    run(kernel_of(SOURCE), None, x, c=c, variant=variant)
    chosen = (5, n) if c > 2 else (n, 7)
    assert x.tolist() == [9, 10, n * n, 1, 9, n, n if c > 1 else 3, n if c > 5 else 1, *chosen]


def test_only_what_meets_an_index_is_wide():
    kernel = kernel_of(SOURCE)
    function = build(kernel, kernel.specialisations()[0], WIDE)
    outer = next(s for s in walk(function.body) if isinstance(s, For))
    assert {v.name + ":" + v.type.dtype.name for v in outer.results} == {
        "count:i32", "last:i64", "pair:i64", "pair:i32",
    }  # fmt: skip


def test_other_types_that_differ_are_still_refused():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], n: gm.size["x"]):
        v = 0
        for i in range(n):
            v = i * 1.5
    """
    kernel = kernel_of(source)
    for variant in (GENERAL, WIDE):
        with pytest.raises(KernelError, match="`v` is i32 before the loop and f32 after a step"):
            build(kernel, kernel.specialisations()[0], variant)
