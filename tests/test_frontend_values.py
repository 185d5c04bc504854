"""Tuples, methods and attributes of tiles, operators, helpers, and functions of Python in kernels."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.compiler.attributes import ALIASES, methods
from gristmill.compiler.frontend import build
from gristmill.compiler.op import COMPOSITES, ROWS
from gristmill.declare import load_kernels
from gristmill.errors import KernelError
from gristmill.specialisation import VARIANTS
from machines import RUNNERS, array, compute, on_each_machine, same

# ---- methods and attributes ----------------------------------------------------------------------------------------


def test_every_op_that_takes_a_tile_first_is_a_method():
    every = {**COMPOSITES, **ROWS}
    made_from_nothing = {"arange", "full", "zeros", "program_id", "num_programs", "constant", "static_assert"}
    made_from_nothing |= {"zeros_like", "make_block_ptr", "make_tensor_descriptor", "advance"}
    internal = {name for name, row in ROWS.items() if row.family == "internal"}
    firsts = {name: next(iter(inspect.signature(row.infer).parameters), "") for name, row in ROWS.items()}
    takes_tile = {name for name, first in firsts.items() if first in ("x", "input", "pointer", "condition")}
    assert not (made_from_nothing | internal) & methods().keys()
    assert takes_tile - internal - made_from_nothing <= methods().keys()
    assert methods().keys() - ALIASES.keys() <= every.keys()
    assert ALIASES.keys() <= methods().keys()


METHODS = {
    "x.to(tl.float32)": [4, 9],
    "x.cast(tl.float32)": [4, 9],
    "x.to(tl.float32).sqrt()": [2, 3],
    "(x + x.sum()).to(tl.float32)": [17, 22],
    "(x + x.max() - x.min()).to(tl.float32)": [9, 14],
    "x.sum(axis=0, keep_dims=True).broadcast_to(2).to(tl.float32)": [13, 13],
    "x.reshape(1, 2).trans().reshape((2,)).to(tl.float32)": [4, 9],
    "x[:, None].T.view(2).to(tl.float32)": [4, 9],
    "x.expand_dims(0).permute(1, 0).reshape(2).to(tl.float32)": [4, 9],
    "x.maximum(5).to(tl.float32)": [5, 9],
    "x.to(tl.float32).exp2().log2()": [4, 9],
    "x.cdiv(4).to(tl.float32)": [1, 3],
    "(x > 5).where(x, 0).to(tl.float32)": [0, 9],
    "(-x).abs().to(tl.float32)": [4, 9],
    "x.to(tl.float32, bitcast=True).to(tl.int32, bitcast=True).to(tl.float32)": [4, 9],
    "x.clamp(5, 7).to(tl.float32)": [5, 7],
    "(x_ + tl.arange(0, 2)).load().to(tl.float32)": [4, 9],
    "x.to(tl.float32).fma(2.0, 1.0)": [9, 19],
    "x[None, :].broadcast(x[:, None]).sum(1).to(tl.float32)": [13, 13],
}


@on_each_machine
@pytest.mark.parametrize("text", METHODS)
def test_method_is_the_op(run, text):
    same(compute(run, text, dt.f32, x=array("i32", 4, 9)), *METHODS[text])


ATTRIBUTES = {
    "x.dtype == tl.float16": True,
    "x.dtype != tl.float16": False,
    "x.dtype.is_floating()": True,
    "x.dtype.is_fp16()": True,
    "x.dtype.is_fp32()": False,
    "x.dtype.is_int()": False,
    "x.dtype.is_ptr()": False,
    "x_.dtype.is_ptr()": True,
    "x_.dtype.element_ty == tl.float16": True,
    "x_.type.element_ty == x.dtype": True,
    "x_.element_ty == x.dtype": True,
    "x.type.scalar == tl.float16": True,
    "x.type.element_ty == tl.float16": True,
    "x.type.is_block()": True,
    "x.sum().type == tl.float16": True,
    "x.type.shape == (2,)": True,
    "x.type.is_fp16()": True,
    "x.type == x.type": True,
    "x[:, None].type == x.type": False,
    "x.dtype.primitive_bitwidth == 16": True,
    "x.dtype.scalar == tl.float16": True,
    "x.shape == (2,)": True,
    "x[:, None].shape[1] == 1": True,
    "x.numel == 2": True,
    "x[:, None].ndim == 2": True,
    "x.dtype.bits == 16": True,
    "tl.int8.is_int_signed()": True,
    "tl.uint8.is_int_unsigned()": True,
    "len(x.shape) == 1": True,
    "tl.float8e5.is_fp8()": True,
    "isinstance(x, tl.tensor)": True,
    "isinstance(3, tl.tensor)": False,
    "isinstance(x, tl.tensor_descriptor)": False,
    "isinstance(3, tl.constexpr)": True,
    "isinstance(x, tl.constexpr)": False,
    "isinstance(3, (float, int))": True,
    "isinstance(x, int)": False,
    "isinstance((x, 1), tuple)": True,
    "hasattr(tl, 'float32')": True,
    "hasattr(tl, 'float31')": False,
    "getattr(tl, 'float16') == x.dtype": True,
    "(3).value == 3": True,
    "x is not None": True,
    "x_.dtype == x_.dtype": True,
    "math.log2(8) == 3": True,
    "math.inf > 1e308": True,
    "math.ceil(2.5) == 3": True,
    "f'{x.dtype}-{3:>2}-{(1, 2)!r}' == 'f16- 3-(1, 2)'": True,
    "1 < 2 < 3 != 4": True,
    "3 in (1, 2)": False,
    "max((1, 5), (1, 4)) == (1, 5)": True,
    "sum((1, 2, 3)) == 6": True,
    "(1, 2) + (3,) == (1, 2, 3)": True,
    "((1, 2) * 2)[1:3] == (2, 1)": True,
    "float('inf') == math.inf": True,
    "round(2.6) == 3": True,
    "bool(2) == True": True,
    "not (x_ is None or 1 > 2)": True,
    "OFFSETS.LAST == 7": True,
    "OFFSETS.twice(4) == 8": True,
    "1 if None else 2 == 2": True,
    "(n := 3) == 3": True,
    "tuple(zip((1, 2), (3, 4))) == ((1, 3), (2, 4))": True,
    "list(range(3)) == (0, 1, 2)": True,
}
STATIC_HEAD = """
import math


class OFFSETS:
    LAST = 7

    def twice(n):
        return 2 * n
"""


@pytest.mark.parametrize("text", ATTRIBUTES)
def test_expression_is_known_at_build_time(text):
    body = f"""
    FOUND: tl.constexpr = {text}
    tl.static_assert(FOUND == {ATTRIBUTES[text]}, f'{{FOUND}}')
    assert FOUND == {ATTRIBUTES[text]}
    """
    compute(RUNNERS["interpreter"], "x", dt.f16, head=STATIC_HEAD, body=body, x=array("f16", 1, 2))


# ---- operators -----------------------------------------------------------------------------------------------------

OPERATORS = {
    "+x": [7, -8],
    "-x": [-7, 8],
    "~x": [-8, 7],
    "x % 5": [2, -3],
    "x // 3": [2, -2],
    "7 // (x + 10)": [0, 3],
    "x << 2": [28, -32],
    "x >> 1": [3, -4],
    "x & 6": [6, 0],
    "x | 1": [7, -7],
    "x ^ -1": [-8, 7],
    "5 - x": [-2, 13],
    "100 % (x + 10)": [15, 0],
    "1 << (x + 9) // 8": [4, 1],
    "(-8 < x < 8).to(tl.int32)": [1, 0],
    "(0 < x != 7).to(tl.int32)": [0, 0],
    "(not x == 7).to(tl.int32)": [0, 1],
    "(x > 0 and x < 5 or x < 0).to(tl.int32)": [0, 1],
    "(x > 0).to(tl.int32) + (x > -9)": [2, 1],
    "(x == 7) & (x != 3) | (x < -100)": [1, 0],
    "((x > 0) ^ True).to(tl.int32)": [0, 1],
    "min(x, 0, -3)": [-3, -8],
    "max((x, 0))": [7, 0],
    "abs(x)": [7, 8],
    "sum((x, x, 1))": [15, -15],
    "int(x)": [7, -8],
    "x * True": [7, -8],
    "x if True else None": [7, -8],
}


@on_each_machine
@pytest.mark.parametrize("text", OPERATORS)
def test_operator_on_tiles_and_numbers(run, text):
    wanted = dt.bool_ if text.startswith("(x == 7) &") else dt.i32
    same(compute(run, text, wanted, x=array("i32", 7, -8)), *OPERATORS[text])


@on_each_machine
def test_augmented_assignments(run):
    steps = ["+= 5", "*= 7", "-= 1", "//= 2", "%= 50", "<<= 2", ">>= 1", "|= 64", "&= 126", "^= 3"]
    body = "\n".join(["v = x", *(f"v {step}" for step in steps)])
    want = []
    for v in (3, 9):
        v = ((v + 5) * 7 - 1) // 2 % 50
        want.append(((v << 2 >> 1 | 64) & 0x7E) ^ 3)
    same(compute(run, "v", body=body, x=array("i32", 3, 9)), *want)


@on_each_machine
def test_conversions_of_python(run):
    same(compute(run, "float(x) + float(2)", dt.f32, x=array("i64", 3)), 5)
    same(compute(run, "bool(x)", dt.bool_, x=array("f32", 3, 0)), 1, 0)
    same(compute(run, "int(x) + int(2.9)", dt.i32, x=array("f32", -3.7)), -1)


@on_each_machine
def test_dtype_converts_what_it_is_called_with(run):
    same(compute(run, "tl.float32(x) + x.dtype(2.9)", dt.f32, x=array("i32", 3)), 5)


@on_each_machine
def test_math_functions_of_tiles_are_ops(run):
    head = "import math\n"
    same(compute(run, "math.sqrt(x) + math.floor(x) + math.sqrt(4.0)", head=head, x=array("f32", 9, 2.25)), 14, 5.5)


# ---- tuples --------------------------------------------------------------------------------------------------------


@on_each_machine
def test_tuples_are_built_indexed_joined_and_unpacked(run):
    body = """
    t = (x, (x + 1, 5), 7)
    a, (b, c), d = t
    e = (t + (a * 2, *t[1]))[-1] + t[1][0]
    f = t[0:2][0]
    [g, h] = [a, b]
    (i, j), k = (a, b), c
    """
    same(compute(run, "a + 10 * b + 100 * (c + d + e + f) + g + h + i + j + k", body=body, x=array("i32", 1)),
         1 + 20 + 100 * (5 + 7 + 7 + 1) + 1 + 2 + 1 + 2 + 5)  # fmt: skip


@on_each_machine
def test_static_loops_go_over_tuples_of_tiles(run):
    body = """
    total = x * 0
    for i, (a, b) in enumerate(zip((x, x * 2), (1, 2))):
        total += a * b + i
    for v in reversed((x, 100)):
        total = total * 2 + v
    for i in reversed(range(3)):
        total = total * 2 + i
    """
    total = 3 + (6 * 2 + 1)
    total = (total * 2 + 100) * 2 + 3
    for i in (2, 1, 0):
        total = total * 2 + i
    same(compute(run, "total", body=body, x=array("i32", 3)), total)


@on_each_machine
def test_tuples_of_tiles_compare_item_by_item(run):
    same(compute(run, "((x, 1) == (3, 1)).to(tl.int32)", dt.i32, x=array("i32", 3, 4)), 1, 0)
    same(compute(run, "((x, 1) != (3, 1)).to(tl.int32)", dt.i32, x=array("i32", 3, 4)), 0, 1)
    same(compute(run, "x + (0 if (x, 1) == (x, 2) else 1)", x=array("i32", 3)), 4)


@on_each_machine
def test_swap_reads_before_it_assigns(run):
    same(compute(run, "a * 10 + b", body="a, b = x, x + 1\na, b = b, a", x=array("i32", 1)), 21)


HELPERS = """
from typing import NamedTuple


class Pair(NamedTuple):
    first: object
    second: object = 5


def swapped(pair):
    a, b = pair
    return b, a


@gm.jit
def total(*items, scale=1):
    result = 0
    for item in items:
        result += item
    return result * scale


def apply(f, *arguments):
    return f(*arguments)


def widened(x: tl.tensor, n: tl.int64, N: tl.constexpr, M: "tl.constexpr" = 3):
    \"\"\"A docstring.\"\"\"
    assert N > 0, "N must be positive"
    assert isinstance(N, int)
    return x * N + M + n


def keyword(x, /, y, *, z=2):
    return x + 10 * y + 100 * z


def pair(x):
    return Pair(x, second=x * 2)


def grown(p):
    return Pair(p.first + 1, p.second + p[0])


def once(n):
    return n + 1 if n > 0 else once(n + 1)
"""


@on_each_machine
def test_tuples_go_into_and_out_of_helpers(run):
    same(compute(run, "a * 10 + b", body="a, b = swapped((x, 2))", head=HELPERS, x=array("i32", 1)), 21)


@on_each_machine
def test_helper_gathers_arguments(run):
    same(compute(run, "total(x, 2, x, scale=3) + total(*(x, x)) + total()", head=HELPERS, x=array("i32", 1)), 14)


@on_each_machine
def test_helper_is_an_argument(run):
    same(compute(run, "apply(total, x, 5) + apply(tl.maximum, x, 3)", head=HELPERS, x=array("i32", 1)), 9)


@on_each_machine
def test_helper_has_constants_annotations_and_keywords(run):
    same(compute(run, "widened(x, 4, 2) + widened(x, 0, M=1, N=1)", head=HELPERS, x=array("i32", 1)), 11)
    same(compute(run, "keyword(x, y=2, z=3) + keyword(x, 1)", head=HELPERS, x=array("i32", 1)), 321 + 211)


@on_each_machine
@pytest.mark.parametrize("n", [0, 4])
def test_named_tuples_hold_tiles(run, n):
    body = """
    p = pair(x)
    for i in range(n):
        p = grown(p)
    q = p if n > 2 else Pair(x, x)
    """
    first, second = 3, 6
    for _ in range(n):
        first, second = first + 1, second + first
    first_, second_ = (first, second) if n > 2 else (3, 3)
    text = "q.first * 100 + q.second + Pair(x).second * 0"
    same(compute(run, text, dt.i32, body=body, head=HELPERS, x=array("i32", 3), n=n), first_ * 100 + second_)


@on_each_machine
def test_helper_that_calls_itself_with_constants_ends(run):
    same(compute(run, "x + once(-3)", head=HELPERS, x=array("i32", 1)), 3)


@on_each_machine
def test_marked_helper_of_another_module_and_attributes_of_modules(run, tmp_path, monkeypatch):
    (tmp_path / "parts_of_a_kernel.py").write_text(
        "import gristmill as gm\nimport gristmill.language as tl\n\nWIDTH = tl.constexpr(3)\n\n\n"
        "@gm.jit\ndef scaled(v, by: tl.constexpr = WIDTH):\n    return v * by + inner(v)\n\n\n"
        "def inner(v):\n    return v + WIDTH\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    head = "import parts_of_a_kernel\nfrom parts_of_a_kernel import scaled\n"
    text = "parts_of_a_kernel.scaled(x) + scaled(x, by=2) + parts_of_a_kernel.WIDTH + parts_of_a_kernel.WIDTH.value"
    same(compute(run, text, head=head, x=array("i32", 1)), 7 + 6 + 6)


@on_each_machine
def test_constexpr_in_an_expression_and_kept_by_a_name(run):
    body = "N = tl.constexpr(4)\nv = tl.arange(0, N) + tl.constexpr(2)"
    same(compute(run, "v", dt.i32, body=body, size=4), 2, 3, 4, 5)


@on_each_machine
def test_docstrings_annotations_and_pass_have_no_effect(run):
    body = '"""Text."""\npass\n...\nv: tl.tensor = x\nw: "anything" = v'
    same(compute(run, "w", body=body, x=array("i32", 5)), 5)


# ---- branches in expressions ---------------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize("n", [0, 1])
def test_conditional_expression_of_tuples(run, n):
    body = "a, b = (x, 1) if n > 0 else (x * 2, 3)"
    same(compute(run, "a * 10 + b", body=body, x=array("i32", 4), n=n), 41 if n else 83)


@on_each_machine
@pytest.mark.parametrize("n", [0, 1])
def test_branch_of_an_expression_that_is_not_taken_reads_nothing(run, n):
    same(
        compute(run, "tl.load(x_ + 100) if n > 5 else tl.load(x_ + n)", dt.i32, size=1, x=array("i32", 4, 6), n=n),
        6 if n else 4,
    )


# ---- mistakes ------------------------------------------------------------------------------------------------------

MISTAKES = {
    "widened(x, 0, n)": "`N` must be known at build time, got i32",
    "widened(x, 0, N=0)": "assertion failed: N must be positive",
    "widened(x)": "missing a required argument: 'n'",
    "keyword(x=x, y=1)": "",
    "total(*x)": "`*` needs a tuple",
    "x.element_ty": "tiles have no `element_ty`",
    "x.program_id(0)": "tiles have no `program_id`",
    "x.T": "needs two axes",
    "x.sum(n)": "axis must be a constant integer",
    "x.reshape(n)": "must be known at build time",
    "x.to(n)": "needs a dtype",
    "x[0]": "a tile is indexed only by",
    "(x, 1)[n]": "a tuple is indexed by what is known at build time",
    "len(n)": "needs a block",
    "math.gcd(n, 2)": "`math.gcd` takes numbers that are known at build time",
    "range(n)[0]": "`range` cannot be called on tiles",
    "sorted((x, 1))": "cannot be called on tiles",
    "open(x)": "cannot be called on tiles",
    "OTHER + x": "an operand of + must be a tile or a number, got ndarray",
    "x + total": "an operand of + must be a tile or a number",
    "Pair()": "missing 1 required positional argument",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistake_is_an_error_at_its_line(text):
    head = HELPERS + "\nimport math\nimport numpy as np\n\nOTHER = np.ones(4)\n"
    with pytest.raises(KernelError) as caught:
        compute(RUNNERS["interpreter"], text, dt.i32, head=head, x=array("i32", 1, 2), n=1)
    assert MISTAKES[text] in caught.value.message
    assert caught.value.fix
    assert caught.value.position or caught.value.calls


UNTIL_THERE_IS = {
    "device_print": ("print(x)", "`print` is not supported in kernels"),
    "device_assert": ("assert n > 0", "`assert` needs a condition that is known at build time"),
}


@pytest.mark.parametrize("op", UNTIL_THERE_IS)
def test_statement_of_python_that_needs_an_op(op):
    if op in ROWS:
        pytest.skip(f"there is {op}")
    body, message = UNTIL_THERE_IS[op]
    with pytest.raises(KernelError, match=message):
        compute(RUNNERS["interpreter"], "x", body=body, x=array("i32", 1), n=1)


def test_closure_over_what_is_no_constant_is_named(tmp_path: Path):
    file = tmp_path / "k.py"
    file.write_text(
        "import gristmill as gm\nimport gristmill.language as tl\n\n\ndef make(values):\n    @gm.kernel(grid=1)\n"
        "    def k(x: gm.ptr[gm.f32]):\n        tl.store(x, values)\n\n    return k\n\n\nk = make([1.0])\n"
    )
    (kernel,) = load_kernels(file, tmp_path)
    with pytest.raises(KernelError, match="must be a tile or a number, got list"):
        build(kernel, kernel.specialisations()[0], VARIANTS[0])


@on_each_machine
def test_numbers_of_numpy_are_constants(run):
    head = "import numpy as np\n\nN = np.int64(4)\nHALF = np.float32(0.5)\n"
    same(compute(run, "x * HALF + int(N)", head=head, x=array("f32", 2)), 5)
    assert np.float32(0.5) == 0.5
