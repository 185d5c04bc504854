"""Inline PTX: what is packed into which register, and what other machines do instead."""

from __future__ import annotations

import re
import textwrap

import numpy as np
import pytest

from assembled import assemble_text, ptx_of
from gristmill.compiler.interpreter import InterpreterError, run_kernel
from gristmill.errors import KernelError
from host import levels, run_on_host
from machines import bfloat16, compute, kernel_of, on_each_in_order, on_each_machine, same
from ptx import needs_ptxas


def call(asm: str, constraints: str, args: str, dtype: str, pack: int = 1, **named: str) -> str:
    extra = "".join(f", {k}={v}" for k, v in named.items())
    return f"tl.inline_asm_elementwise('{asm}', '{constraints}', [{args}], {dtype}, is_pure=True, pack={pack}{extra})"


def kernel(expression: str, out: str = "f32", *, x: str = "f32", size: int = 512, target: str = "y + i") -> str:
    return f"""
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.{x}], y: gm.ptr[gm.{out}], n: gm.i32):
        i = tl.arange(0, {size})
        v = tl.load(x + i)
        tl.store({target}, {expression})
    """


def assembly(text: str) -> list[str]:
    """The authors' instructions in a PTX text: loads and stores of ours are not among them."""
    found = re.findall(r"// begin inline asm\s+(.*?)\s+// end inline asm", text, re.S)
    return [f for f in found if "global" not in f]


# ---- CUDA ----------------------------------------------------------------------------------------------------------


@needs_ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_one_element_a_call(target):
    text = ptx_of(kernel(call("ex2.approx.ftz.f32 $0, $1;", "=f,f", "v", "tl.float32")), target)
    assert len(assembly(text)) == 4
    assert all(re.fullmatch(r"ex2\.approx\.ftz\.f32 %\w+, %\w+;", a) for a in assembly(text))
    assemble_text([text], target)


PACKED = {
    # dtype, pack: constraints, assembly, calls for the 4 elements of a thread
    ("f16", 1): ("=h,h", "neg.f16 $0, $1;", 4),
    ("f16", 2): ("=r,r", "neg.f16x2 $0, $1;", 2),
    ("bf16", 4): ("=r,=r,r,r", "neg.bf16x2 $0, $2; neg.bf16x2 $1, $3;", 1),
    ("i8", 1): ("=h,h", "not.b16 $0, $1;", 4),
    ("u8", 2): ("=h,h", "not.b16 $0, $1;", 2),
    ("i8", 4): ("=r,r", "not.b32 $0, $1;", 1),
    ("i32", 2): ("=r,=r,r,r", "not.b32 $0, $2; not.b32 $1, $3;", 2),
    ("f64", 1): ("=d,d", "neg.f64 $0, $1;", 4),
    ("i64", 4): ("=l,=l,=l,=l,l,l,l,l", "not.b64 $0, $4; not.b64 $1, $5; not.b64 $2, $6; not.b64 $3, $7;", 1),
    ("i32", 8): (
        ",".join(["=r"] * 8 + ["r"] * 8),
        " ".join(f"not.b32 ${i}, ${i + 8};" for i in range(8)),
        1,
    ),
}


@needs_ptxas
@pytest.mark.parametrize(("dtype", "pack"), PACKED)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_elements_share_registers(target, dtype, pack):
    constraints, asm, calls = PACKED[dtype, pack]
    text = ptx_of(kernel(call(asm, constraints, "v", f"gm.{dtype}", pack), dtype, x=dtype), target)
    assert len(assembly(text)) == calls
    assemble_text([text], target)


@needs_ptxas
def test_several_results_and_arguments_of_several_dtypes():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.i32], z: gm.ptr[gm.f16]):
        i = tl.arange(0, 512)
        a, b = tl.inline_asm_elementwise(
            "{ .reg .b32 t; cvt.rzi.s32.f32 $0, $4; cvt.rzi.s32.f32 $1, $5; add.s32 $0, $0, $6; add.s32 $1, $1, $7; "
            "mov.b32 $2, $3; }", "=&r,=&r,=r,r,f,f,r,r",
            args=[tl.load(z + i), tl.load(x + i), i], dtype=(tl.int32, tl.float16), is_pure=True, pack=2)
        tl.store(y + i, a)
        tl.store(z + i, b)
    """
    text = ptx_of(source, "sm_80")
    assert len(assembly(text)) == 2
    assemble_text([text], "sm_80")


@needs_ptxas
def test_scalars_and_blocks_broadcast_against_each_other():
    text = ptx_of(kernel(call("add.s32 $0, $1, $2;", "=r,r,r", "i, n", "tl.int32"), "i32"), "sm_80")
    assert len(assembly(text)) == 4
    scalar = ptx_of(kernel(call("add.s32 $0, $1, $2;", "=r,r,r", "n, 5", "tl.int32"), "i32", target="y"), "sm_80")
    assert len(assembly(scalar)) == 1
    filled = kernel(call("add.s32 $0, $2, $2; mov.b32 $1, $0;", "=&r,=r,r,r", "n", "tl.int32", 2), "i32", target="y")
    assert len(assembly(ptx_of(filled, "sm_80"))) == 1
    assemble_text([scalar], "sm_80")


def test_pure_assembly_is_shared_and_left_out_and_other_is_not():
    twice = "{0} + {0}"
    pure = call("mov.b32 $0, $1;", "=r,r", "v", "tl.float32")
    impure = pure.replace("is_pure=True", "is_pure=False")
    assert len(assembly(ptx_of(kernel(twice.format(pure)), "sm_80"))) == 4
    assert len(assembly(ptx_of(kernel(twice.format(impure)), "sm_80"))) == 8
    unused = "v)\n        ({}"
    assert len(assembly(ptx_of(kernel(unused.format(pure)), "sm_80"))) == 0
    assert len(assembly(ptx_of(kernel(unused.format(impure)), "sm_80"))) == 4


@needs_ptxas
def test_texts_with_lines_quotes_and_percent_signs_reach_ptx_as_they_are():
    asm = r"{\n\t.reg .pred %p0;\n\tsetp.lt.f32 %p0, $1, 0f00000000;\n\tselp.b32 $0, 0, $1, %p0;\n\t}"
    text = ptx_of(kernel(call(asm, "=r,f", "v", "tl.float32")), "sm_80")
    assert text.count("setp.lt.f32 %p0,") == 4
    assemble_text([text], "sm_80")


def test_fallback_leaves_nothing_in_ptx():
    asm = call("sub.f32 $0, $1, 0f3f800000;", "=f,f", "v", "tl.float32", fallback="lambda_")
    source = "def lambda_(x):\n    return tl.exp2(x) - 1.0\n" + textwrap.dedent(kernel(asm))
    text = ptx_of(source, "sm_80")
    assert "ex2" not in text
    assert len(assembly(text)) == 4


# ---- other machines ------------------------------------------------------------------------------------------------


@on_each_in_order
def test_fallback_computes_elsewhere(run):
    head = """
    def halved(x, y):
        return x * 0.5 + y, (x > y).to(tl.int32)
    """
    body = """
    a, b = tl.inline_asm_elementwise(
        "...", "=f,=r,f,f", [x, 2.0], (tl.float32, tl.int32), is_pure=True, pack=1, fallback=halved)
    """
    x = np.array([1, 3, -4, np.inf], np.float32)
    same(compute(run, "a + b.to(tl.float32)", head=head, body=body, x=x), 2.5, 4.5, 0, np.inf)


@on_each_machine
def test_fallback_may_be_an_operation(run):
    expression = call("abs.bf16x2 $0, $1;", "=r,r", "x", "tl.bfloat16", 2, fallback="tl.abs")
    same(compute(run, expression, x=np.array([-1.5, 2], bfloat16)), 1.5, 2)


NOWHERE = kernel(call("mov.b32 $0, $1;", "=r,r", "v", "tl.float32"))


def test_interpreter_says_that_it_has_no_ptx():
    with pytest.raises(InterpreterError, match="PTX does not run on the interpreter") as caught:
        run_kernel(kernel_of(NOWHERE), None, np.zeros(512, np.float32), np.zeros(512, np.float32), 1)
    assert "fallback=" in caught.value.fix
    assert "inline_asm_elementwise" in caught.value.position.text


@pytest.mark.skipif(not levels(), reason="needs LLVM and a C compiler")
def test_cpu_says_that_it_has_no_ptx():
    with pytest.raises(KernelError, match="PTX does not run on the machine `host`") as caught:
        run_on_host(kernel_of(NOWHERE), None, np.zeros(512, np.float32), np.zeros(512, np.float32), 1)
    assert "fallback=" in caught.value.fix
    assert "inline_asm_elementwise" in caught.value.position.text


# ---- misuse --------------------------------------------------------------------------------------------------------

REFUSED = {
    call("", "=r,r", "x, x", "tl.float32"): "name registers for 1 results and 1 arguments",
    call("", "=r,=r,r", "x", "tl.float32"): "name registers for 2 results",
    call("", "=r,r", "x", "tl.float32", 2): 'fix: name 2 results and 2 arguments, as in `"=r,=r,r,r"`',
    call("", "=r,r", "x", "tl.float32", 3): "pack must be a power of two, got `3`",
    call("", "=r,r", "x", "float"): "needs a dtype",
    call("", "=r,r", "x", "tl.int1"): "a result is a number",
    call("", "=r,r", "x > 0", "tl.float32"): "bools have no register",
    call("", "=r", "", "tl.float32"): "needs at least one argument",
    call("", "=r,r", "x", "tl.float32").replace("''", "5"): "asm is a text, got `5`",
    call("", "=r,r", "x", "tl.float32", fallback="wrong"): "the fallback returns i32\\[4\\], not f32\\[4\\]",
    call("", "=r,r,r", "x, tl.zeros((8,), tl.int32)", "tl.float32"): "do not broadcast",
    "tl.inline_asm('', x)": "has no `inline_asm`",
    "x.inline_asm()": "tiles have no `inline_asm`",
}


@pytest.mark.parametrize("expression", REFUSED)
def test_misuse_is_refused(expression):
    head = """
    def wrong(x):
        return x.to(tl.int32)
    """
    with pytest.raises(KernelError, match=REFUSED[expression]) as caught:
        compute(run_kernel, expression, head=head, x=np.ones(4, np.float32))
    assert caught.value.fix
