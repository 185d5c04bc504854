"""`gm.specialise` declares functions that say nothing of their dtypes; what does not fit is an error at its line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest

import gristmill as gm
from gristmill.build.enumerate import enumerate_jobs
from gristmill.build.sources import source_digest
from gristmill.build.stubs import write_stub
from gristmill.compiler.explain import explain
from gristmill.compiler.frontend import build
from gristmill.compiler.interpreter import run_kernel
from gristmill.compiler.targets import TARGETS
from gristmill.declare import Kernel, load_kernels
from gristmill.errors import DeclarationError, GristmillError, KernelError
from gristmill.specialisation import VARIANTS
from machines import bfloat16, on_each_machine

HEAD = """\
import gristmill as gm
import gristmill.compat.triton as triton
import gristmill.compat.triton.language as tl

D = gm.dtype_var("D", gm.Float)
LIMIT: tl.constexpr = tl.constexpr(4.0)


@triton.jit
def bounded(x):
    return tl.minimum(x, LIMIT)


@triton.autotune(configs=[triton.Config({"BLOCK": b}, num_warps=b // 32, num_stages=2) for b in (64, 128)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["BLOCK"] % 128 == 0})
@triton.jit
def scale_kernel(
    X_ptr, X_stride, Y_ptr, factor, n, out_dtype: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    num_warps: tl.constexpr, BIAS: tl.constexpr = 0.5,
):
    "y = min(x factor + BIAS, 4), and the constants behind it."
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X_ptr + i * X_stride, mask=i < n).to(tl.float32)
    tl.store(Y_ptr + i, bounded(x * factor + BIAS).to(out_dtype), mask=i < n)
    tl.store(Y_ptr + n, EVEN)
    tl.store(Y_ptr + n + 1, num_warps)
"""
DECLARED = """

scale = gm.specialise(
    scale_kernel,
    name="scale",
    signature={
        "X_ptr": gm.ptr[D], "X_stride": gm.stride["X_ptr", 0], "Y_ptr": "*fp32", "factor": "fp32",
        "n": gm.shape["X_ptr", 0],
    },
    constants={"out_dtype": D},
    grid=lambda n, BLOCK: gm.cdiv(n, BLOCK),
    dtypes=[gm.f32, gm.bf16],
)
"""


def load(folder: Path, text: str) -> Kernel:
    file = folder / "k.py"
    file.write_text(text)
    (kernel,) = load_kernels(file, folder)
    return kernel


@pytest.fixture
def scale(tmp_path):
    return load(tmp_path, HEAD + DECLARED)


def test_configurations_dtypes_heuristics_and_defaults_become_specialisations(scale):
    assert [s.id for s in scale.specialisations()] == [
        "scale__f32__64__false__0.5__w2s2", "scale__f32__128__true__0.5__w4s2",
        "scale__bf16__64__false__0.5__w2s2", "scale__bf16__128__true__0.5__w4s2",
    ]  # fmt: skip
    assert dict(scale.constants) == {"BLOCK": (64, 128), "EVEN": (False, True), "BIAS": (0.5,)}
    assert dict(scale.fixed)["out_dtype"].name == "D"


@on_each_machine
def test_values_are_the_functions(run, scale):
    values = np.linspace(-9, 9, 400).astype(np.float32)
    for specialisation in scale.specialisations():
        x = values.astype(np.float32 if dict(specialisation.dtypes)["D"] == gm.f32 else bfloat16)[::2]
        y = np.full(202, -77, np.float32)
        run(scale, specialisation, x, y, 0.25)
        want = np.minimum(x.astype(np.float32) * 0.25 + 0.5, 4).astype(x.dtype)
        np.testing.assert_array_equal(y[:200], want.astype(np.float32))
        assert y[200:].tolist() == [dict(specialisation.constants)["EVEN"], specialisation.num_warps]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ('args["X_ptr"] is not None', True),
        ('args["BIAS"] is None', True),
        ('args["out_dtype"] == gm.f32', True),
        ('args["out_dtype"] is None', False),
    ],
)
def test_heuristics_know_what_there_is(tmp_path, question, answer):
    """Whether an array is given, what is None, and which dtype a constant is."""
    text = (HEAD + DECLARED).replace('args["BLOCK"] % 128 == 0', question)
    kernel = load(tmp_path, text.replace('{"out_dtype": D}', '{"out_dtype": gm.f32, "BIAS": None}'))
    assert dict(kernel.constants)["EVEN"] == (answer,)


def test_arrays_and_scalars_come_first_at_a_call(scale):
    assert [p.name for p in scale.parameters] == ["X_ptr", "Y_ptr", "factor", "X_stride", "n"]
    stub = write_stub([scale])
    assert "X_ptr: Array,\n        Y_ptr: Array,\n        factor: float,\n        X_stride: int | None = None," in stub


def test_it_is_built_and_explained_as_other_kernels_are(scale, tmp_path):
    jobs = enumerate_jobs([scale], [TARGETS["sm_80"], TARGETS["x86-64-v3"]])
    assert len(jobs) == 8
    text = explain(tmp_path / "k.py", kernel="scale", target="sm_80", stage="tile", dtypes=["bf16"])
    assert "scale__bf16__64" in text


def test_an_index_that_only_the_grid_reads_is_a_parameter(tmp_path):
    text = DECLARED.replace('"factor"', '"rows": gm.size["X_ptr"], "factor"')
    kernel = load(tmp_path, HEAD + text.replace("lambda n,", "lambda rows,").replace("cdiv(n,", "cdiv(rows,"))
    assert [p.name for p in kernel.parameters if p.is_index] == ["X_stride", "n", "rows"]
    y = np.zeros(5, np.float32)
    run_kernel(kernel, None, np.ones(3, np.float32), y, 2.0)
    assert y[:3].tolist() == [2.5] * 3


def test_a_function_may_stand_in_another_file(tmp_path):
    (tmp_path / "theirs.py").write_text(HEAD)
    kernel = load(tmp_path, "from theirs import D, scale_kernel\n\nimport gristmill as gm\n" + DECLARED)
    assert kernel.file == "theirs.py" and kernel.source.startswith("@triton.autotune")
    assert [name for name, _ in kernel.key] == ["n"]
    assert [Path(f).name for f in kernel.site.files] == ["k.py", "theirs.py"]
    before = [source_digest(Path(f), tmp_path) for f in kernel.site.files]
    (tmp_path / "theirs.py").write_text(HEAD.replace("0.5", "0.25"))
    assert before[1] != source_digest(tmp_path / "theirs.py", tmp_path)


def test_an_error_in_the_body_is_at_the_functions_line(tmp_path):
    (tmp_path / "theirs.py").write_text(HEAD.replace("tl.minimum(x, LIMIT)", "tl.minimum(x, LIMITS)"))
    kernel = load(tmp_path, "from theirs import D, scale_kernel\n\nimport gristmill as gm\n" + DECLARED)
    with pytest.raises(KernelError, match=r"theirs.py:11:26: error: `LIMITS` is not defined"):
        build(kernel, kernel.specialisations()[0], VARIANTS[0])


def test_names_of_the_declaration_are_not_those_of_the_body(tmp_path):
    """A dtype variable D beside the declaration hides no global D of the file that the function stands in."""
    (tmp_path / "theirs.py").write_text(
        HEAD.replace('D = gm.dtype_var("D", gm.Float)', "D = 2.0").replace("x * factor", "x * factor * D")
    )
    text = 'from theirs import scale_kernel\n\nimport gristmill as gm\n\nD = gm.dtype_var("D", gm.Float)\n' + DECLARED
    y = np.zeros(5, np.float32)
    run_kernel(load(tmp_path, text), None, np.ones(3, np.float32), y, 1.0)
    assert y[:3].tolist() == [2.5] * 3


# ---- descriptors ---------------------------------------------------------------------------------------------------

WINDOWED = """
from gristmill.compat import triton
from gristmill.compat.triton import language as tl

import gristmill as gm


def hook(arguments):
    arguments["x"].block_shape = [arguments["ROWS"], 8]


@triton.autotune(configs=[triton.Config({"ROWS": 4}, pre_hook=hook)], key=[])
@triton.jit
def turn_kernel(x, y, ROWS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * 8
    y.store([column, row], x.load([row, column]).T)


turn = gm.specialise(
    turn_kernel,
    signature={
        "x": gm.descriptor[gm.f32, "ROWS", 8],
        "y": gm.descriptor[gm.f32, 8, "2 * ROWS // 2"],
        "m": gm.shape["x", 0],
        "n": gm.shape["x", 1],
    },
    configs=[gm.Config(ROWS=4), gm.Config(ROWS=16)],
    pick=lambda m, ROWS: m <= ROWS,
    grid=lambda m, n, ROWS: (gm.cdiv(m, ROWS), gm.cdiv(n, 8)),
)
"""


@on_each_machine
@pytest.mark.parametrize("shape", [(3, 5), (4, 8), (13, 20), (1, 1)], ids=str)
def test_arrays_are_tensor_descriptors_to_the_kernel(run, shape, tmp_path):
    """Rows of x are farther apart than they are long; a configuration without hook stands for the one with."""
    kernel = load(tmp_path, WINDOWED)
    x, y = np.arange(400, dtype=np.float32).reshape(20, 20)[: shape[0], : shape[1]], np.full(shape[::-1], 7, np.float32)
    run(kernel, None, x, y)
    assert (y == x.T).all()


def test_described_arrays_are_contiguous_along_their_last_axis(tmp_path):
    kernel = load(tmp_path, WINDOWED)
    assert [p.name for p in kernel.parameters[:2]] == ["x", "y"]
    x = np.ones((4, 16), np.float32)
    with pytest.raises(GristmillError, match="no specialisation"):
        run_kernel(kernel, None, x[:, ::2], np.zeros((8, 4), np.float32))
    with pytest.raises(GristmillError, match="no specialisation"):
        run_kernel(kernel, None, x, np.zeros((4, 16), np.float32).T)
    run_kernel(kernel, None, x[:, ::16], np.zeros((1, 4), np.float32))


DESCRIBED = {
    'gm.descriptor[gm.f32, "COLUMNS", 8]': "unknown name `COLUMNS`",
    'gm.descriptor[gm.f32, "ROWS +", 8]': "is not an expression",
    "gm.descriptor[gm.f32]": "describes no array",
    "gm.descriptor[4, 8]": "describes no array",
    "gm.descriptor[gm.f32, 4.0]": "describes no array",
}


@pytest.mark.parametrize("wrong", DESCRIBED)
def test_what_describes_no_array_is_an_error_with_a_fix(wrong, tmp_path):
    with pytest.raises(DeclarationError, match=DESCRIBED[wrong]) as caught:
        load(tmp_path, WINDOWED.replace('gm.descriptor[gm.f32, "ROWS", 8]', wrong))
    assert caught.value.fix
    assert caught.value.position.line == 22


# ---- goldens -------------------------------------------------------------------------------------------------------

CHANGES = {
    "unknown parameter": ('"factor": "fp32"', '"factr": "fp32"'),
    "parameter without a type": ('"factor": "fp32",', ""),
    "constant without values": ('constants={"out_dtype": D}', "constants={}"),
    "type and constant": ("{\"out_dtype\": D}", '{"out_dtype": D, "n": 5}'),
    "unknown text": ('"*fp32"', '"*float"'),
    "constant as a hint": ('"factor": "fp32"', '"factor": "i32:1"'),
    "not a type": ('"factor": "fp32"', '"factor": 3.0'),
    "not chosen type": ('"factor": "fp32"', '"factor": ...'),
    "not chosen constant": ('{"out_dtype": D}', '{"out_dtype": ...}'),
    "not chosen grid": ("grid=lambda n, BLOCK: gm.cdiv(n, BLOCK)", "grid=..."),
    "several dtypes of a constant": ('{"out_dtype": D}', '{"out_dtype": [D, None]}'),
    "unknown argument": ("dtypes=", "dtype="),
    "not a symbol": ('name="scale"', 'name="a-b"'),
    "not a function": ("    scale_kernel,\n", "    scale_kernel.configs,\n"),
    "heuristic of a run-time value": ('args["BLOCK"] % 128', 'args["n"] % 128'),
    "heuristic of an array": ('args["BLOCK"] % 128', 'args["X_ptr"].numel() % 128'),
    "heuristic of nothing": ('{"EVEN"', '{"ODD": len, "EVEN"'),
    "heuristic that is no constant": ('args["BLOCK"] % 128 == 0', "[1]"),
    "hook": ("num_stages=2)", "num_stages=2, pre_hook=print)"),
    "duplicate value": ('{"out_dtype": D}', '{"out_dtype": D, "BIAS": [0.5, 0.5]}'),
    "grid of something else": ("lambda n, BLOCK: gm.cdiv(n, BLOCK)", "lambda m, BLOCK: gm.cdiv(m, BLOCK)"),
}  # fmt: skip


def read_goldens() -> dict[str, str]:
    text = (Path(__file__).parent / "data" / "specialise_errors.txt").read_text()
    parts = (part.partition("\n") for part in text.split("=== ")[1:])
    return {name: expected.strip("\n") for name, _, expected in parts}


def error_of(folder: Path, name: str) -> str:
    old, new = CHANGES[name]
    text = HEAD + DECLARED
    assert old in text
    with pytest.raises(DeclarationError) as caught:
        load(folder, text.replace(old, new))
    assert caught.value.fix
    return str(caught.value)


@pytest.mark.parametrize("name", CHANGES)
def test_mistakes_are_reported_at_their_place(name, tmp_path):
    assert error_of(tmp_path, name) == read_goldens()[name]


def test_the_goldens_are_those_of_the_changes():
    assert list(read_goldens()) == list(CHANGES)
    assert textwrap.dedent(HEAD) == HEAD
