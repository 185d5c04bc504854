"""Traced expressions evaluate to what Python gives for the same operations."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill import symbolic
from gristmill.errors import DeclarationError
from gristmill.symbolic import Expr, Op, compile_code, depth, evaluate

NAMES = {"n": symbolic.parameter(0), "m": symbolic.parameter(1), "B": symbolic.constant(0)}
FUNCTIONS = {name: getattr(gm, name) for name in ("cdiv", "minimum", "maximum", "where", "next_power_of_2")}

values = st.integers(-(2**12), 2**12)
numbers = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["n", "m", "B"]),
        st.integers(-9, 9).map(lambda i: f"({i})"),
        st.tuples(numbers, st.sampled_from(["+", "-", "*"]), numbers).map(lambda t: f"({' '.join(t)})"),
        st.tuples(numbers, st.sampled_from(["//", "%"]), st.integers(1, 99)).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        numbers.map(lambda a: f"(-{a})"),
        st.tuples(numbers, st.integers(1, 99)).map(lambda t: f"cdiv({t[0]}, {t[1]})"),
        st.tuples(st.sampled_from(["minimum", "maximum"]), numbers, numbers).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        st.tuples(conditions, numbers, numbers).map(lambda t: f"where({', '.join(t)})"),
        numbers.map(lambda a: f"next_power_of_2({a} % 1000)"),
    )
)
conditions = st.deferred(
    lambda: st.one_of(
        st.tuples(numbers, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), numbers).map(
            lambda t: f"({' '.join(t)})"
        ),
        st.tuples(conditions, st.sampled_from(["&", "|"]), conditions).map(lambda t: f"({' '.join(t)})"),
        conditions.map(lambda c: f"inverse({c})"),
    )
)


def inverse(condition):
    return ~condition if isinstance(condition, Expr) else not condition


def fits(text: str, scope: dict[str, int]) -> bool:
    """Whether no part of the expression leaves 64 bits."""
    parts = [n for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.expr)]
    found = [eval(ast.unparse(p), FUNCTIONS | {"inverse": inverse} | scope) for p in parts]
    return all(-(2**63) <= value < 2**63 for value in found if isinstance(value, int))


@settings(max_examples=300, deadline=None)
@given(st.one_of(numbers, conditions), values, values, values)
def test_traced_expression_evaluates_as_python_does(text, n, m, block):
    scope = FUNCTIONS | {"inverse": inverse}
    traced = eval(text, scope | NAMES)
    wanted = eval(text, scope | {"n": n, "m": m, "B": block})
    if fits(text, {"n": n, "m": m, "B": block}):
        assert evaluate(symbolic.lift(traced).code, (n, m), (block,)) == int(wanted)


@settings(max_examples=200, deadline=None)
@given(st.one_of(numbers, conditions), values, values, values)
def test_text_and_lambda_mean_the_same(text, n, m, block):
    traced = symbolic.lift(eval(text, FUNCTIONS | {"inverse": inverse} | NAMES))
    parsed = symbolic.parse(text.replace("inverse", "~"), NAMES)
    if fits(text, {"n": n, "m": m, "B": block}):
        assert evaluate(parsed.code, (n, m), (block,)) == evaluate(traced.code, (n, m), (block,))


@pytest.mark.parametrize("n", [-5, -1, 0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 2**40, 2**40 + 1, 2**62])
def test_next_power_of_2_is_the_smallest_not_below(n):
    result = gm.next_power_of_2(n)
    assert result & (result - 1) == 0
    assert result >= n
    assert result == 1 or result // 2 < n
    assert evaluate(gm.next_power_of_2(NAMES["n"]).code, (n,)) == result


@pytest.mark.parametrize(("a", "b"), [(0, 4), (1, 4), (4, 4), (5, 4), (-1, 4), (-5, 4), (5, -4)])
def test_division_rounds_as_in_python(a, b):
    n, m = NAMES["n"], NAMES["m"]
    assert evaluate((n // m).code, (a, b)) == a // b
    assert evaluate((n % m).code, (a, b)) == a % b
    assert evaluate(gm.cdiv(n, m).code, (a, b)) == -(-a // b) == gm.cdiv(a, b)


def test_division_by_zero_gives_zero_and_overflow_wraps_as_in_the_launcher():
    n, m = NAMES["n"], NAMES["m"]
    assert [evaluate(e.code, (7, 0)) for e in (n // m, n % m, gm.cdiv(n, m))] == [0, 0, 0]
    assert evaluate((n + m).code, (2**63 - 1, 1)) == -(2**63)
    assert evaluate((n // m).code, (-(2**63), -1)) == -(2**63)
    assert evaluate(gm.next_power_of_2(n).code, (2**63 - 1,)) == 2**62


def test_functions_on_integers_stay_integers():
    assert (gm.minimum(3, 2), gm.maximum(3, 2), gm.where(True, 3, 2), gm.where(False, 3, 2)) == (2, 3, 3, 2)


def test_opcodes_are_those_of_the_launcher():
    names = (
        "CONST PARAM CONSTANT ADD SUB MUL FLOORDIV MOD MIN MAX CDIV LT LE EQ NE AND OR NOT SELECT NEXT_POW2 SM_COUNT"
    )
    assert [op.name for op in Op] == names.split()
    assert list(Op) == list(range(21))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("n + 3", (1, 0, 0, 3, 3)),
        ("3 - m", (0, 3, 1, 1, 4)),
        ("n > B", (2, 0, 1, 0, 11)),
        ("n >= B", (2, 0, 1, 0, 12)),
        ("-n", (0, 0, 1, 0, 4)),
        ("where(n == m, n, B)", (1, 0, 1, 1, 13, 1, 0, 2, 0, 18)),
        ("~(n != 2)", (1, 0, 0, 2, 14, 17)),
    ],
)
def test_code_is_postfix(text, code):
    assert symbolic.parse(text, NAMES).code == code


def test_sm_count_is_read_at_the_call():
    assert evaluate((gm.sm_count * 2).code, sm_count=132) == 264


def test_code_is_made_of_plain_integers():
    assert {type(word) for word in gm.cdiv(NAMES["n"], 4).code} == {int}


@pytest.mark.parametrize(("terms", "held"), [(1, 1), (2, 2), (32, 32)])
def test_depth_is_the_most_values_held(terms, held):
    nested = NAMES["n"]
    for _ in range(terms - 1):
        nested = NAMES["m"] + nested
    assert depth(nested.code) == held
    assert compile_code(nested) == nested.code


def test_expression_too_deep_for_the_launcher_is_refused():
    nested = NAMES["n"]
    for _ in range(32):
        nested = NAMES["m"] + nested
    with pytest.raises(DeclarationError, match="holds 33 values at once"):
        compile_code(nested)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda n: n + 1.5, "`1.5` is a float"),
        (lambda n: 1.0 * n, "`1.0` is a float"),
        (lambda n: 1 / n, "`/` gives a float"),
        (lambda n: n + "1", "`'1'` is not an integer"),
        (lambda n: n + 2**63, "does not fit in 64 bits"),
        (lambda n: n & 1, "`&` takes conditions, found a number"),
        (lambda n: ~n, "`~` takes conditions, found a number"),
        (lambda n: (n > 1) | n, "`|` takes conditions, found a number"),
        (lambda n: gm.where(n, 1, 2), "`gm.where` takes conditions, found a number"),
        (lambda n: n << 1, "no such operator"),
        (lambda n: 2**n, "no such operator"),
        (lambda n: [1, 2][n], "a plain integer is needed"),
        (lambda n: n in (1, 2), "needs a truth value"),
        (lambda n: list(n), "no such operator"),
    ],
)
def test_what_cannot_be_traced_is_refused(use, message):
    with pytest.raises(DeclarationError) as caught:
        use(NAMES["n"])
    assert message in caught.value.message
    assert caught.value.position.file.endswith("test_symbolic.py")


@pytest.mark.parametrize(
    ("use", "fix"),
    [
        (lambda n, m: n and m, "write `(n) & (m)`"),
        (lambda n, m: not n, "write `~(n)`"),
        (lambda n, m: 1 < n <= m, "write `(1 < n) & (n <= m)`"),
        (lambda n, m: n if n > m else 3, "write `gm.where(n > m, n, 3)`"),
        (lambda n, m: max(n, m), "write `gm.maximum(n, m)`"),
        (lambda n, m: (n + 1) / m, "write `(n + 1) // m`, or `gm.cdiv(n + 1, m)` to round up"),
    ],
)
def test_fix_is_the_authors_expression_rewritten(use, fix):
    with pytest.raises(DeclarationError) as caught:
        use(NAMES["n"], NAMES["m"])
    assert caught.value.fix == fix
