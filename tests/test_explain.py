"""`explain` shows every stage of every machine, and says what there is when asked for something else."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from gristmill.cli import main
from gristmill.compiler.explain import explain, stages_of
from gristmill.compiler.targets import TARGETS
from gristmill.errors import GristmillError

FOLDER = Path(__file__).parent.parent / "kernels"
SOFTMAX, ADD = FOLDER / "softmax.py", FOLDER / "vector_add.py"

SHOWN = {
    ("sm_90a", "tile"): ["function vector_add__i8__2048__a32(%a: ptr<i8>", "%keep: bool[2048] = lt %offsets, "],
    ("sm_90a", "simplify"): ["function vector_add__i8__2048__a32(", "num_warps=4"],
    ("sm_90a", "access"): ["width=16", "if ", "then():", "else():"],
    ("sm_90a", "tail"): ["if ", "then():", "else():"],
    ("sm_90a", "layout"): ["{reg=[1 2 4 8] lane=[16 32 64 128 256] warp=[512 1024]}"],
    ("sm_90a", "llvm"): ["define ptx_kernel void @vector_add__i8__2048__a32(", "load "],
    ("sm_90a", "ptx"): [".version 8.1", ".target sm_90a", ".visible .entry vector_add__i8__2048__a32(", ".v4.b32"],
    ("sm_80", "ptx"): [".version 7.0", ".target sm_80"],
    ("x86-64-v3", "tile"): ["function vector_add__i8__2048__a32__v3("],
    ("x86-64-v3", "access"): ["contiguous="],
    ("x86-64-v3", "llvm"): ["define void @vector_add__i8__2048__a32__v3(ptr %parameters, ptr %grid, i64 %begin"],
    ("x86-64-v3", "object"): ["bytes of object code"],
}


@pytest.mark.parametrize(("target", "stage"), SHOWN)
def test_stage_shows_what_became_of_the_kernel(target, stage):
    text = explain(ADD, target=target, stage=stage)
    assert [part for part in SHOWN[target, stage] if part not in text] == []
    assert text.endswith("\n")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "x86-64-v2", "x86-64-v4", "aarch64"])
def test_every_stage_of_a_machine_prints_something_of_its_own(target):
    stages = stages_of(TARGETS[target])
    texts = [explain(SOFTMAX, kernel="softmax_forward", target=target, stage=stage) for stage in stages]
    assert all(texts)
    assert len({texts[stages.index(s)] for s in ("tile", "access", "llvm", stages[-1])}) == 4


def test_dtypes_constants_and_variant_choose_the_specialisation():
    text = explain(
        SOFTMAX,
        kernel="softmax_backward",
        dtypes=["bf16"],
        constants={"BLOCK": "1024", "ONE_PASS": "true"},
        variant="g64",
    )
    head = text.splitlines()[0]
    assert head.startswith("function softmax_backward__bf16__1024__1024__true__w1__g64(")
    assert "%n_cols: i64" in head
    assert "num_warps=1:" in head


def test_dtypes_are_taken_in_every_spelling():
    import numpy as np

    texts = {explain(ADD, dtypes=[dtype]) for dtype in ("f16", "float16", np.float16, np.dtype("float16"))}
    assert len(texts) == 1
    assert "f16" in texts.pop()


WRONG = {
    "several kernels": (
        {"file": SOFTMAX},
        "the file has several kernels",
        "choose with --kernel: softmax_forward, softmax_backward",
    ),
    "no such kernel": (
        {"file": SOFTMAX, "kernel": "softmin"},
        "there is no kernel `softmin`",
        "use one of softmax_forward, softmax_backward",
    ),
    "no such stage": (
        {"stage": "sass"},
        "there is no stage `sass` for sm_90a",
        "use one of tile, unroll, units, carried, signs, simplify,",
    ),
    "stage of another machine": ({"stage": "object"}, "there is no stage `object` for sm_90a", "ptx"),
    "tiles held in shared memory on the host": (
        {"stage": "hold", "target": "x86-64-v3"},
        "there is no stage `hold` for x86-64-v3",
        "use one of tile, unroll, carried, signs, simplify,",
    ),
    "layout on the host": (
        {"stage": "layout", "target": "x86-64-v3"},
        "there is no stage `layout` for x86-64-v3",
        "llvm, object",
    ),
    "no such variant": ({"variant": "a64"}, "there is no variant `a64`", "use one of a32, g32, g64"),
    "no such target": ({"target": "sm_42"}, "unknown target `sm_42`", "use one of sm_75, sm_80,"),
    "no such constant": (
        {"constants": {"BLOCK": "7"}},
        "`vector_add` has no specialisation for BLOCK=7",
        "there are vector_add__i8__2048,",
    ),
    "no such dtype there": ({"dtypes": ["bool"]}, "`vector_add` has no specialisation for bool", "there are "),
    "no such dtype at all": ({"dtypes": ["f12"]}, "f12", ""),
    "no such file": ({"file": FOLDER / "nothing.py"}, "there is no file ", "name a Python file that defines kernels"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_there_is_an_error_that_says_what_is(name):
    arguments, message, fix = WRONG[name]
    with pytest.raises(GristmillError) as caught:
        explain(**{"file": ADD} | arguments)
    assert message in caught.value.message
    assert fix in (caught.value.fix or "")


def test_command_prints_the_text(capsys):
    arguments = ["explain", str(SOFTMAX), "--kernel", "softmax_forward", "--target", "sm_80", "--stage", "ptx"]
    assert main([*arguments, "--dtype", "f32", "--const", "BLOCK=256", "--variant", "g32"]) == 0
    found = capsys.readouterr().out
    assert found == explain(
        SOFTMAX, kernel="softmax_forward", target="sm_80", stage="ptx", dtypes=["f32"], variant="g32"
    )
    assert ".visible .entry softmax_forward__f32__256__" in found


def test_command_reports_errors_without_traceback(capsys):
    assert main(["explain", str(ADD), "--stage", "sass"]) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("there is no stage `sass` for sm_90a\n  fix: use one of tile,")
