"""What is declared is what is compiled; every mistake is reported at its place with a fix."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest

import gristmill as gm
from gristmill.declare import VARIANTS, Kernel, load_kernels
from gristmill.errors import DeclarationError
from gristmill.specialisation import Specialisation
from gristmill.symbolic import evaluate

HEAD = 'import gristmill as gm\n\nD = gm.dtype_var("D", gm.Float)\n\n\n'
SIZED = 'x: gm.ptr[D], n: gm.size["x"], BLOCK: gm.constexpr'


def load(folder: Path, text: str) -> list[Kernel]:
    file = folder / "k.py"
    file.write_text(textwrap.dedent(text))
    return load_kernels(file, folder)


def declare(folder: Path, decorator: str, signature: str = SIZED, *, head: str = HEAD) -> Kernel:
    (kernel,) = load(folder, f"{head}@gm.kernel({decorator})\ndef k({signature}):\n    pass\n")
    return kernel


def ids(kernel: Kernel) -> list[str]:
    return [s.id for s in kernel.specialisations()]


# ---- goldens -------------------------------------------------------------------------------------------------------


def read_goldens() -> dict[str, tuple[str, str]]:
    text = (Path(__file__).parent / "data" / "declaration_errors.txt").read_text()
    found = {}
    for part in text.split("=== ")[1:]:
        name, _, rest = part.partition("\n")
        source, _, expected = rest.partition("\n---\n")
        found[name] = (source + "\n", expected.rstrip("\n"))
    return found


GOLDENS = read_goldens()
OF_PYTHON_3_11 = {
    "parameter without a default follows parameter with a default": "non-default argument follows default argument"
}


def without_version(text: str) -> str:
    for new, old in OF_PYTHON_3_11.items():
        text = text.replace(new, old)
    return re.sub(r"Python 3\.\d+", "Python 3.11", text)


@pytest.mark.parametrize("name", GOLDENS)
def test_mistake_is_reported_with_position_and_fix(tmp_path, name):
    source, expected = GOLDENS[name]
    with pytest.raises(DeclarationError) as caught:
        load(tmp_path, source)
    assert without_version(str(caught.value)) == expected
    assert caught.value.position is not None
    assert caught.value.fix


def test_set_that_cannot_be_inferred_names_the_five_bounds():
    _, expected = GOLDENS["a set that cannot be inferred"]
    assert all(f"gm.{bound}" in expected for bound in ("Dtype", "Num", "Int", "Float", "Bool"))


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(DeclarationError, match="there is no file"):
        load_kernels(tmp_path / "nowhere.py")


def test_kernel_without_a_readable_source_is_refused():
    with pytest.raises(DeclarationError, match="the source of `k` cannot be read"):
        exec("import gristmill as gm\n@gm.kernel\ndef k(x: gm.ptr[gm.f32]): pass", {})


def test_calling_a_declaration_says_where_to_call(tmp_path):
    kernel = declare(tmp_path, "BLOCK=[128], grid=1")
    with pytest.raises(DeclarationError, match="what can be called is its dispatcher in the built package"):
        kernel(1, 2)


# ---- dtypes --------------------------------------------------------------------------------------------------------

SETS = {
    "Float": "f16 bf16 f32 f64",
    "Int": "i8 i16 i32 i64 u8 u16 u32 u64",
    "Num": "i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64",
    "Bool": "bool",
    "Dtype": "i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 bool",
    "Float8": "f8e4m3 f8e5m2",
}


@pytest.mark.parametrize("bound", SETS)
def test_bound_without_a_list_stands_for_its_whole_set(tmp_path, bound):
    kernel = declare(tmp_path, "grid=1", "x: gm.ptr[D]", head=HEAD.replace("Float", bound))
    assert ids(kernel) == [f"k__{name}" for name in SETS[bound].split()]


@pytest.mark.parametrize("given", ["dtypes=[gm.f64, gm.f32]", "D=[gm.f64, gm.f32]", "D=('float64', 'f32')"])
def test_listed_dtypes_keep_their_order(tmp_path, given):
    kernel = declare(tmp_path, f"{given}, grid=1", "x: gm.ptr[D]")
    assert kernel.dtype_vars == (("D", (gm.f64, gm.f32)),)


def test_list_as_a_bound_is_the_set(tmp_path):
    kernel = declare(tmp_path, "grid=1", "x: gm.ptr[D]", head=HEAD.replace("gm.Float", "[gm.f32, gm.bf16]"))
    assert ids(kernel) == ["k__f32", "k__bf16"]


def test_variable_without_a_bound_takes_any_listed_dtype(tmp_path):
    kernel = declare(tmp_path, "D=[gm.i8, gm.f8e4m3], grid=1", "x: gm.ptr[D]", head=HEAD.replace(", gm.Float", ""))
    assert ids(kernel) == ["k__i8", "k__f8e4m3"]


def test_two_variables_are_combined_in_order_of_appearance(tmp_path):
    head = HEAD + 'E = gm.dtype_var("E", gm.Int)\n\n\n'
    kernel = declare(tmp_path, "D=[gm.f32, gm.f64], E=[gm.i8, gm.i32], grid=1", "i: gm.ptr[E], x: gm.ptr[D]", head=head)
    assert ids(kernel) == ["k__i8__f32", "k__i8__f64", "k__i32__f32", "k__i32__f64"]


def test_kernel_of_fixed_dtypes_has_one_specialisation(tmp_path):
    kernel = declare(tmp_path, "grid=1", "x: gm.ptr[gm.f32], a: gm.i64")
    assert ids(kernel) == ["k"]
    assert kernel.dtype_vars == ()


def test_decorator_without_parentheses_declares(tmp_path):
    @gm.kernel
    def copy(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32]):
        """Copy."""

    assert ids(copy) == ["copy"]
    assert copy.doc == "Copy."


# ---- constants and configurations ----------------------------------------------------------------------------------


def test_constants_vary_fastest_and_the_last_of_them_first(tmp_path):
    signature = "x: gm.ptr[D], BLOCK: gm.constexpr, CAUSAL: gm.constexpr"
    kernel = declare(tmp_path, "dtypes=[gm.f16, gm.f32], CAUSAL=[True, False], BLOCK=[64, 32], grid=1", signature)
    expected = [f"k__{d}__{b}__{c}" for d in ("f16", "f32") for b in (64, 32) for c in ("true", "false")]
    assert ids(kernel) == expected
    assert kernel.constants == (("BLOCK", (64, 32)), ("CAUSAL", (True, False)))


def test_all_kinds_of_constants_have_readable_ids_and_symbols_in_c(tmp_path):
    kernel = declare(
        tmp_path,
        'dtypes=[gm.f32], M=["a.b"], S=[-0.5, 1e-05], grid=1',
        "x: gm.ptr[D], M: gm.constexpr, S: gm.constexpr",
    )
    assert ids(kernel) == ["k__f32__a.b__-0.5", "k__f32__a.b__1e-05"]
    symbols = [s.symbol(VARIANTS[0]) for s in kernel.specialisations()]
    assert symbols == ["k__f32__apb__m0p5__a32", "k__f32__apb__1em05__a32"]


def test_where_drops_combinations_and_what_no_longer_occurs(tmp_path):
    kernel = declare(tmp_path, "BLOCK=[128, 256, 512], grid=1, where=lambda D, BLOCK: D.bits * BLOCK <= 8192")
    assert ids(kernel) == ["k__f16__128", "k__f16__256", "k__f16__512", "k__bf16__128", "k__bf16__256", "k__bf16__512",
                           "k__f32__128", "k__f32__256", "k__f64__128"]  # fmt: skip
    kernel = declare(tmp_path, "BLOCK=[128, 256], grid=1, where=lambda D, BLOCK: D is not gm.f64 and BLOCK < 256")
    assert kernel.dtype_vars == (("D", (gm.f16, gm.bf16, gm.f32)),)
    assert kernel.constants == (("BLOCK", (128,)),)


def test_config_sets_constants_together_with_warps_and_stages(tmp_path):
    configs = (
        "gm.Config(M=64, N=32, num_warps=8, num_stages=3), gm.Config(N=16, M=16, num_warps=1), gm.Config(M=8, N=8)"
    )
    signature = "x: gm.ptr[D], M: gm.constexpr, N: gm.constexpr"
    kernel = declare(tmp_path, f"dtypes=[gm.f32], configs=[{configs}], grid=1", signature)
    assert ids(kernel) == ["k__f32__64__32__w8s3", "k__f32__16__16__w1", "k__f32__8__8__w4"]
    first = kernel.specialisations()[0]
    assert (first.constants, first.num_warps, first.num_stages) == ((("M", 64), ("N", 32)), 8, 3)


def test_configs_and_lists_are_combined(tmp_path):
    """The first value of a list comes with all configurations before the next one."""
    signature = "x: gm.ptr[D], CAUSAL: gm.constexpr, M: gm.constexpr"
    decorator = "dtypes=[gm.f32], CAUSAL=[True, False], configs=[gm.Config(M=64), gm.Config(M=32)], grid=1"
    kernel = declare(tmp_path, decorator, signature)
    assert ids(kernel) == [f"k__f32__{c}__{m}__w4" for c in ("true", "false") for m in (64, 32)]


@pytest.mark.parametrize(
    ("given", "suffixes"),
    [
        ("num_warps=8", ["__w8", "__w8"]),
        ("num_warps=4", ["__w4", "__w4"]),
        ("num_warps=lambda BLOCK: BLOCK // 64", ["__w2", "__w4"]),
        ("num_warps=lambda D: D.itemsize", ["__w4", "__w4"]),
        ("num_stages=2", ["__w4s2", "__w4s2"]),
        ("", ["", ""]),
    ],
)
def test_id_ends_with_declared_warps_and_stages(tmp_path, given, suffixes):
    kernel = declare(tmp_path, f"dtypes=[gm.f32], BLOCK=[128, 256], grid=1, {given}")
    assert ids(kernel) == [f"k__f32__128{suffixes[0]}", f"k__f32__256{suffixes[1]}"]


def test_default_is_four_warps_and_one_stage():
    assert (Specialisation("k", (), ()).num_warps, Specialisation("k", (), ()).num_stages) == (4, 1)


def test_variants_are_aligned_first_and_widest_last():
    assert [v.name for v in VARIANTS] == ["a32", "g32", "g64"]


# ---- parameters ----------------------------------------------------------------------------------------------------


def test_parameters_are_read_in_order(tmp_path):
    signature = """x: gm.ptr[D], y: gm.ptr[gm.i32], flag: gm.bool_, scale: D, eps: gm.f32 = 1e-5,
        n: gm.size["x"] = None,
        rows: gm.shape["x", 0] = None, step: gm.stride["y", -1] = None, BLOCK: gm.constexpr = None"""
    kernel = declare(tmp_path, "BLOCK=[128], grid=1", signature)
    found = [(p.name, p.kind, str(p.dtype), p.tensor, p.axis, p.default, p.is_strided) for p in kernel.parameters]
    assert found == [
        ("x", "pointer", "D", None, None, None, False),
        ("y", "pointer", "i32", None, None, None, True),
        ("flag", "scalar", "bool", None, None, None, False),
        ("scale", "scalar", "D", None, None, None, False),
        ("eps", "scalar", "f32", None, None, 1e-5, False),
        ("n", "size", "None", "x", None, None, False),
        ("rows", "shape", "None", "x", 0, None, False),
        ("step", "stride", "None", "y", -1, None, False),
    ]
    assert kernel.constant_names == ("BLOCK",)


def test_constants_may_be_keyword_only(tmp_path):
    assert declare(tmp_path, "BLOCK=[128], grid=1", "x: gm.ptr[D], *, BLOCK: gm.constexpr").constant_names == ("BLOCK",)


def extents(kernel: Kernel, *arguments: object) -> dict[str, int | None]:
    arrays = [p for p in kernel.parameters if p.kind == "pointer"]
    return {p.name: None if p.extent is None else evaluate(p.extent, arguments, (128,)) for p in arrays}


def test_extent_is_an_expression_of_parameters_and_constants(tmp_path):
    kernel = declare(
        tmp_path, "BLOCK=[128], grid=1", 'x: gm.ptr[D, "gm.cdiv(n, BLOCK) * BLOCK + 1"], n: gm.i64, BLOCK: gm.constexpr'
    )
    assert extents(kernel, None, 129) == {"x": 257}


def test_extent_follows_from_sizes_where_none_is_declared(tmp_path):
    signature = 'x: gm.ptr[D], w: gm.ptr[D], y: gm.ptr[D], v: gm.ptr[D, "m"], n: gm.size["x"], m: gm.size["w"]'
    kernel = declare(tmp_path, "grid=1", signature)
    assert extents(kernel, *[None] * 4, 10, 20) == {"x": 10, "w": 20, "y": 20, "v": 20}
    assert extents(kernel, *[None] * 4, 30, 20) == {"x": 30, "w": 20, "y": 30, "v": 20}
    assert extents(declare(tmp_path, "grid=1", "x: gm.ptr[D]")) == {"x": None}


def test_grid_has_one_to_three_sizes(tmp_path):
    kernel = declare(tmp_path, "BLOCK=[128], grid=lambda n, BLOCK: (gm.cdiv(n, BLOCK), gm.sm_count, 2)")
    assert [evaluate(code, (None, 1000), (128,), sm_count=7) for code in kernel.grid] == [8, 7, 2]
    assert declare(tmp_path, "BLOCK=[128], grid=(3, 2)").grid == ((0, 3), (0, 2))


def test_lambda_keeps_its_own_defaults(tmp_path):
    kernel = declare(tmp_path, "BLOCK=[128], grid=lambda n, k=3: n * k")
    assert evaluate(kernel.grid[0], (None, 5)) == 15


def test_pick_reads_parameters_and_constants(tmp_path):
    kernel = declare(tmp_path, "BLOCK=[128], grid=1, pick=lambda n, BLOCK: (n <= BLOCK) | (n % 128 == 1)")
    assert [evaluate(kernel.pick, (None, n), (128,)) for n in (128, 129, 130)] == [1, 1, 0]
    assert declare(tmp_path, "BLOCK=[128], grid=1").pick == ()


def test_prefer_and_key_are_code(tmp_path):
    decorator = 'configs=[gm.Config(BLOCK=64)], grid=1, prefer=lambda n, BLOCK: n > BLOCK, key=["n", "n  %  4 == 0"]'
    kernel = declare(tmp_path, decorator)
    assert [evaluate(kernel.prefer, (None, n), (64,)) for n in (64, 65)] == [0, 1]
    assert [name for name, _ in kernel.key] == ["n", "n % 4 == 0"]
    assert [[evaluate(code, (None, n)) for _, code in kernel.key] for n in (6, 8)] == [[6, 0], [8, 1]]
    assert kernel.configured == ("BLOCK",)
    plain = declare(tmp_path, "BLOCK=[128], grid=1")
    assert (plain.prefer, plain.key, plain.configured) == ((), (), ())


def test_prefer_may_give_a_number(tmp_path):
    kernel = declare(tmp_path, "BLOCK=[64, 128], grid=1, prefer=lambda n, BLOCK: -gm.cdiv(n, BLOCK)")
    assert [evaluate(kernel.prefer, (None, 300), (block,)) for block in (64, 128)] == [-5, -3]
    with pytest.raises(DeclarationError, match=r"`prefer` must give a condition or an integer, found `1\.5`"):
        declare(tmp_path, "BLOCK=[64], grid=1, prefer=lambda n, BLOCK: 1.5")


def test_bool_scalars_and_constants_are_conditions(tmp_path):
    kernel = declare(
        tmp_path, "C=[True], grid=1, pick=lambda C, flag: C & ~flag", "x: gm.ptr[D], flag: gm.bool_, C: gm.constexpr"
    )
    assert evaluate(kernel.pick, (None, False), (True,)) == 1
    assert evaluate(kernel.pick, (None, True), (True,)) == 0


# ---- annotations as text and type parameters -----------------------------------------------------------------------


def test_text_annotations_mean_the_same(tmp_path):
    plain = declare(tmp_path, "BLOCK=[128], grid=1")
    lazy = declare(tmp_path, "BLOCK=[128], grid=1", head="from __future__ import annotations\n\n" + HEAD)
    quoted = declare(tmp_path, "BLOCK=[128], grid=1", """x: "gm.ptr[D]", n: 'gm.size["x"]', BLOCK: "gm.constexpr" """)
    assert plain.parameters == lazy.parameters == quoted.parameters


def test_text_annotations_see_the_names_of_the_defining_function():
    element = gm.dtype_var("element", gm.Float)
    extra = gm.dtype_var("extra", gm.Int)

    @gm.kernel(element=[gm.f32], extra=[gm.i8], grid=1)
    def inner(x: gm.ptr[element], i: gm.ptr[extra]):
        return element

    assert ids(inner) == ["inner__f32__i8"]


TYPE_PARAMETERS = """
import gristmill as gm

@gm.kernel(grid=1{given})
def k[D: {bound}](x: gm.ptr[D], a: D):
    pass
"""
needs_type_parameters = pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters need Python 3.12")


@needs_type_parameters
@pytest.mark.parametrize("lazily", ["", "from __future__ import annotations\n"])
@pytest.mark.parametrize(
    ("bound", "given", "expected"),
    [
        ("gm.Float", "", ["f16", "bf16", "f32", "f64"]),
        ("gm.Float", ", D=[gm.f64]", ["f64"]),
        ("gm.Float", ", dtypes=[gm.f64]", ["f64"]),
        ("(gm.f32, gm.i8)", "", ["f32", "i8"]),
    ],
)
def test_type_parameter_is_a_dtype_variable(tmp_path, lazily, bound, given, expected):
    (kernel,) = load(tmp_path, lazily + TYPE_PARAMETERS.format(bound=bound, given=given))
    assert ids(kernel) == [f"k__{name}" for name in expected]


@needs_type_parameters
@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ("gm.Flaot", "has no attribute 'Flaot'"),
        ("float", "`float` does not bound a dtype variable"),
        ("gm.f32", "`f32` is a dtype, not a bound"),
        ("gm.Float, E: gm.Int", "dtype variable `E` is not used by any parameter"),
    ],
)
def test_wrong_type_parameter_is_reported_where_it_stands(tmp_path, bound, message):
    with pytest.raises(DeclarationError) as caught:
        load(tmp_path, TYPE_PARAMETERS.format(bound=bound, given=""))
    assert message in str(caught.value)
    assert caught.value.position.line == 5


@needs_type_parameters
def test_type_parameter_without_a_bound_names_the_bounds(tmp_path):
    with pytest.raises(DeclarationError, match=r"cannot infer the dtypes of `D`[\s\S]*gm.Dtype, gm.Num"):
        load(tmp_path, TYPE_PARAMETERS.format(bound="gm.Float", given="").replace(": gm.Float", ""))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.11 cannot read type parameters")
def test_type_parameter_on_3_11_says_what_to_write(tmp_path):
    with pytest.raises(DeclarationError, match=r"need Python 3.12; for 3.11 write `D = gm.dtype_var"):
        load(tmp_path, TYPE_PARAMETERS.format(bound="gm.Float", given=""))
