"""`gristmill port` writes what a kernel's source tells; what it cannot tell is a choice to fill in."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest

import liger
from gristmill.cli import main
from gristmill.compiler.frontend import build
from gristmill.declare import load_kernels
from gristmill.errors import DeclarationError
from gristmill.porting import port, port_into
from gristmill.specialisation import VARIANTS

SOURCE = """\
import triton
import triton.language as tl
from triton.language.extra.libdevice import tanh


@triton.jit
def rows(pointer, stride):
    return pointer + tl.program_id(0).to(tl.int64) * stride


@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=2)], key=["n_cols"])
@triton.jit
def _scaled_kernel(
    X, X_row_stride, Y, y_stride, table, label_ptr, alpha, count: int, start: tl.int64, shift, n_cols,
    BLOCK: tl.constexpr, out_dtype: tl.constexpr, MODE: tl.constexpr, FLAG: tl.constexpr = True, ratio=0.5,
):
    i = tl.arange(0, BLOCK)
    label = tl.load(label_ptr + tl.program_id(1))
    v = tl.load(rows(X, X_row_stride) + i, mask=i < n_cols) + tl.load(table + label)
    Y += tl.program_id(0) * y_stride
    tl.store(Y + i, tanh(v * alpha.to(tl.float32) + shift).to(out_dtype), mask=i < n_cols)


def launch(x, y):
    _scaled_kernel[(x.shape[0], 2)](x, x.stride(0), y)
"""

WRITTEN = """\
import gristmill as gm

D = gm.dtype_var("D", [gm.f16, gm.bf16, gm.f32])  # list what the kernels are for


scaled = gm.specialise(
    _scaled_kernel,
    name="scaled",
    signature={
        "X": gm.ptr[D],
        "X_row_stride": gm.i32,
        "Y": gm.ptr[D],
        "y_stride": gm.i32,  # or gm.stride["Y", 0], which calls leave out
        "table": gm.ptr[D],
        "label_ptr": ...,  # choose: gm.ptr[gm.i64] or gm.ptr[gm.i32], since its elements are indices
        "alpha": gm.f32,  # choose: another dtype, if it is no f32
        "count": gm.i32,
        "start": gm.i64,
        "shift": ...,  # choose: gm.f32, gm.i32 or another dtype
        "n_cols": gm.i32,  # or gm.shape["X", -1], which calls leave out, if it is that
        "ratio": gm.f32,
    },
    constants={
        "out_dtype": ...,  # choose: a dtype, or a dtype variable as in D
        "MODE": ...,  # choose: the values to compile, as in [1024]
    },
    grid=...,  # choose: the programs, as in lambda n_cols, BLOCK: (gm.cdiv(n_cols, BLOCK), 1); launched here with (x.shape[0], 2)
)
"""  # noqa: E501


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "k.py"
    path.write_text(SOURCE)
    return path


def test_what_the_source_tells_is_written(file):
    assert port(file) == WRITTEN


def test_the_command_prints_it_and_leaves_the_file(file, capsys):
    assert main(["port", str(file)]) == 0
    assert capsys.readouterr().out == WRITTEN
    assert file.read_text() == SOURCE


def test_a_written_file_asks_for_each_choice_and_then_loads(file, tmp_path):
    assert main(["port", str(file), "--write"]) == 0
    text = file.read_text()
    for choice, filled in (
        ('"label_ptr": ...', '"label_ptr": gm.ptr[gm.i64]'),
        ('"shift": ...', '"shift": gm.f32'),
        ('"out_dtype": ...', '"out_dtype": D'),
        ('"MODE": ...', '"MODE": [1]'),
        ("grid=...", "grid=1"),
    ):
        with pytest.raises(DeclarationError, match="is still to be chosen"):
            load_kernels(file, tmp_path)
        assert choice in text
        text = text.replace(choice, filled)
        file.write_text(text)
    (kernel,) = load_kernels(file, tmp_path)
    assert [s.id for s in kernel.specialisations()][:1] == ["scaled__f16__64__1__true__w2s3"]


def test_writing_changes_imports_of_triton_and_nothing_else(file):
    port_into(file)
    changed = [(a, b) for a, b in zip(SOURCE.splitlines(), file.read_text().splitlines(), strict=False) if a != b]
    assert [new for _, new in changed] == [
        "import gristmill.compat.triton as triton",
        "import gristmill.compat.triton.language as tl",
        "from gristmill.compat.triton.language.extra.libdevice import tanh",
    ]


def test_a_declared_kernel_is_not_declared_again(file):
    port_into(file)
    with pytest.raises(DeclarationError, match=r"no kernel under `triton\.jit` that is not declared yet"):
        port(file)


@pytest.mark.parametrize("text", ["def plain(x):\n    pass\n", "def broken(:\n"])
def test_a_file_without_kernels_is_an_error(tmp_path, text):
    path = tmp_path / "k.py"
    path.write_text(text)
    with pytest.raises(DeclarationError) as caught:
        port(path)
    assert caught.value.fix


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(DeclarationError, match="cannot read"):
        port(tmp_path / "none.py")


def test_a_pointer_that_only_a_helper_loads_through_is_a_pointer(tmp_path):
    path = tmp_path / "k.py"
    path.write_text(
        textwrap.dedent(
            """
            import triton
            import triton.language as tl

            @triton.jit
            def read(source, at, limit):
                return tl.load(source + at, mask=at < limit)

            @triton.jit
            def copy(a, b, n, BLOCK: tl.constexpr):
                i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                tl.store(b + i, read(a, i, n), mask=i < n)
            """
        )
    )
    text = port(path)
    assert '"a": gm.ptr[D],' in text and '"b": gm.ptr[D],' in text and '"n": gm.i32,' in text
    assert "copy_ahead = gm.specialise(\n    copy," in text and "read_" not in text


@pytest.mark.skipif(liger.folder() is None, reason="needs the wheel of liger-kernel, from pip or a file")
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "cross_entropy", "rope", "jsd", "group_norm", "swiglu"])
def test_declarations_of_shipped_kernels_are_python_and_take_pointers_for_pointers(name):
    text = port(liger.folder() / "liger_kernel" / "ops" / f"{name}.py")
    for call in (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and n.keywords):
        entries = next(k.value for k in call.keywords if k.arg == "signature")
        for key, value in zip(entries.keys, entries.values, strict=True):
            is_pointer = key.value.endswith("_ptr") or key.value in ("cos", "sin")
            is_choice = isinstance(value, ast.Constant) and key.value == "Y_ptr" and name == "cross_entropy"
            assert is_choice or ast.unparse(value).startswith("gm.ptr") == is_pointer, key.value


def test_a_parameter_with_methods_that_read_or_write_is_a_descriptor(tmp_path):
    source = """
    import triton
    import triton.language as tl

    @triton.jit
    def block(desc, row):
        return desc.load([row, 0])

    @triton.jit
    def copy_kernel(a_desc, b_desc, scale):
        b_desc.store([0, 0], block(a_desc, 0) * scale.to(tl.float32))
    """
    file = tmp_path / "k.py"
    file.write_text(textwrap.dedent(source))
    lines = port(file).splitlines()
    for name in ("a_desc", "b_desc"):
        entry = f'"{name}": ...,  # choose: the sizes of a block, as in gm.descriptor[D, "BLOCK_M", 64]'
        assert entry in [line.strip() for line in lines]


def test_windows_are_on_pointers_and_made_of_integers(tmp_path):
    source = """
    import triton
    import triton.language as tl

    @triton.jit
    def windows_kernel(a, b, rows, many, a_step, b_step, first, alpha, TOP: tl.constexpr, N: tl.constexpr):
        total = many * TOP
        left = tl.make_block_ptr(
            base=a + first * a_step, shape=(rows, N), strides=(a_step, 1), offsets=(0, 0), block_shape=(16, N),
            order=(1, 0),
        )
        right = tl.make_tensor_descriptor(b, [total, N], [b_step, 1], [16, N])
        right.store([0, 0], tl.load(left) * alpha.to(tl.float32))
    """
    file = tmp_path / "k.py"
    file.write_text(textwrap.dedent(source))
    text = port(file)
    assert '"a": gm.ptr[D],' in text and '"b": gm.ptr[D],' in text and '"alpha": gm.f32,' in text
    for name in ("rows", "many", "a_step", "b_step", "first"):
        assert f'"{name}": gm.i32,' in text


def test_what_addresses_and_bounds_are_made_of_is_an_integer(tmp_path):
    path = tmp_path / "k.py"
    path.write_text(
        textwrap.dedent(
            """
            import triton
            import triton.language as tl

            @triton.jit
            def gathered(x, ids, out, first, per_program, n_rows, n_cols, width, BLOCK: tl.constexpr):
                start = tl.program_id(0) * per_program
                stop = min(start + per_program, n_rows)
                for row in range(start, stop):
                    at = tl.load(ids + row) - first
                    safe = tl.where(at > 0, at, 0)
                    cols = tl.arange(0, BLOCK)
                    base = out + row * width
                    tl.store(base + cols, tl.load(x + safe * n_cols + cols), mask=cols < n_cols)
            """
        )
    )
    kinds = dict(line.strip().split(":", 1) for line in port(path).splitlines() if line.strip().startswith('"'))
    integers = ("first", "per_program", "n_rows", "n_cols", "width")
    assert all(kinds[f'"{name}"'].startswith(" gm.i32,") for name in integers), kinds
    assert kinds['"ids"'].startswith(" ...,  # choose: gm.ptr[gm.i64]")
    assert kinds['"x"'] == kinds['"out"'] == " gm.ptr[D],"


FILLS = {
    r'"(X_dtype|dtype)": \.\.\.,': r'"\1": D,',
    r'"(elementwise_affine|has_dS_out|HAVE_BETA|HAS_LABEL)": \.\.\.,': r'"\1": [True, False],',
    r'"(casting_mode|reduction)": \.\.\.,': r'"\1": [0, 1],',
    r'"(beta)": \.\.\.,': r'"\1": [0.0, 0.5],',
    r'"(scale)": \.\.\.,': r'"\1": gm.f32,',
    r'"(label_ptr)": \.\.\.,': r'"\1": gm.ptr[gm.i64],',
    r'": \.\.\.,  # choose: the values': r'": [16],  #',
    r"grid=\.\.\.": "grid=1",
}


@pytest.mark.skipif(liger.folder() is None, reason="needs the wheel of liger-kernel, from pip or a file")
@pytest.mark.parametrize(
    "name",
    ["rms_norm", "layer_norm", "fused_add_rms_norm", "poly_norm", "geglu", "swiglu", "relu_squared", "rope", "tvd"]
    + ["kl_div", "jsd", "dyt", "qwen2vl_mrope"],
)
def test_declarations_of_shipped_kernels_compile_once_the_choices_are_made(name, tmp_path):
    """Types that the source told are right: with the wrong ones the bodies have no meaning."""
    text = port(liger.folder() / "liger_kernel" / "ops" / f"{name}.py")
    for choice, made in FILLS.items():
        text = re.sub(choice, made, text)
    functions = re.findall(r"gm.specialise\(\n    (\w+),", text)
    file = tmp_path / "k.py"
    file.write_text(
        f"import liger\n\n{', '.join(functions)}, = map(vars(liger.load({name!r})).get, {functions})\n{text}"
    )
    kernels = load_kernels(file, tmp_path)
    assert len(kernels) == len(functions) > 0
    for kernel in kernels:
        for specialisation in (kernel.specialisations()[0], kernel.specialisations()[-1]):
            assert build(kernel, specialisation, VARIANTS[0]).body.statements
