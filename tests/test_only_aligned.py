"""Configurations that are compiled for aligned calls only: declared, built, and chosen alike on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.build.cache import Cache
from gristmill.build.enumerate import enumerate_jobs
from gristmill.build.run import build_module
from gristmill.build.settings import Settings
from gristmill.compiler.compile import compile_variants
from gristmill.compiler.simt.run import can_be_made, simulate
from gristmill.compiler.targets import TARGETS
from gristmill.dtypes import f16
from gristmill.errors import GristmillError, SimulationError
from gristmill.specialisation import VARIANTS
from gristmill.tensor_map import TensorMap
from machines import kernel_of, on_each_machine
from test_embed import compile_and_run, needs_compiler

SOURCE = """\
CONFIGS = [gm.Config(BLOCK=256, num_warps=2, aligned=True), gm.Config(BLOCK=64, num_warps=1)]
D = gm.dtype_var("D", [gm.f32, gm.f16])

@gm.kernel(configs=CONFIGS, grid=lambda rows: rows)
def even(x: gm.ptr[D], y: gm.ptr[D], rows: gm.shape["x", 0], n: gm.shape["x", 1], pitch: gm.stride["x", 0],
         BLOCK: gm.constexpr):
    row = tl.program_id(0)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * pitch + columns, mask=columns < n)
        tl.store(y + row * n + columns, value + BLOCK, mask=columns < n)
"""


@pytest.fixture
def even():
    return kernel_of(SOURCE)


def placed(shape, pitch, excess=0, dtype=np.float32):
    """Return ones whose rows are `pitch` elements apart, `excess` bytes behind a multiple of 16."""
    buffer = np.zeros(shape[0] * pitch + 16, dtype)
    first = (excess - buffer.ctypes.data) % 16 // buffer.itemsize
    array = np.lib.stride_tricks.as_strided(buffer[first:], shape, (pitch * buffer.itemsize, buffer.itemsize))
    array[...] = 1
    return array


def test_only_the_aligned_variant_is_compiled(even):
    first, second = even.specialisations()[:2]
    assert (first.only_aligned, first.variants, second.variants) == (True, VARIANTS[:1], VARIANTS)
    for target in ("sm_80", "x86-64-v3"):
        (aligned,) = compile_variants(even, first, TARGETS[target])
        assert aligned.symbol.startswith("even__f32__256__w2__a32")
        assert aligned.divisibility == {"pitch": 4, "n": 4}
        there = second.variants_on(TARGETS[target].kind)
        assert len(compile_variants(even, second, TARGETS[target])) == len(there)


def test_wide_offsets_may_be_all_that_there_is_for_other_calls():
    wide = kernel_of(SOURCE.replace("num_warps=1)", "num_warps=1, narrow=False)")).specialisations()[1]
    assert (wide.only_aligned, wide.variants) == (False, (VARIANTS[0], VARIANTS[2]))
    kernel = kernel_of(SOURCE.replace("num_warps=1)", "num_warps=1, narrow=False)"))
    for target in ("sm_80", "x86-64-v3"):
        symbols = [code.symbol for code in compile_variants(kernel, wide, TARGETS[target])]
        assert [symbol.split("__")[4] for symbol in symbols] == ["a32", "g64"]


def test_host_code_is_shared_with_those_of_as_many_variants():
    tuned = """
    CONFIGS = [gm.Config(B=64, num_warps=w, aligned=w > 2) for w in (8, 4, 2, 1)]

    @gm.kernel(configs=CONFIGS, grid=1)
    def k(x: gm.ptr[gm.f32], B: gm.constexpr):
        tl.store(x + tl.arange(0, B), 1.0)
    """
    jobs = enumerate_jobs([kernel_of(tuned)], [TARGETS["x86-64-v2"]])
    assert [[s.suffix for s in job.serves] for job in jobs] == [["w8", "w4"], ["w2", "w1"]]


CALLS = [
    pytest.param((3, 40), 40, 0, 256, id="aligned"),
    pytest.param((3, 40), 44, 0, 256, id="rows with gaps"),
    pytest.param((3, 40), 40, 4, 64, id="address"),
    pytest.param((3, 40), 41, 0, 64, id="pitch"),
    pytest.param((3, 41), 44, 0, 64, id="length, by which the rows of y are apart"),
]


@on_each_machine
@pytest.mark.parametrize(("shape", "pitch", "excess", "block"), CALLS)
def test_calls_that_are_not_aligned_take_the_next_one(run, even, shape, pitch, excess, block):
    x, y = placed(shape, pitch, excess), placed(shape, shape[1])
    chosen = run(even, None, x, y)
    assert dict(chosen.constants) == {"BLOCK": block}
    np.testing.assert_array_equal(y, 1 + block)


@on_each_machine
def test_a_named_constant_or_specialisation_says_what_is_not_aligned(run, even):
    x, y = placed((3, 40), 40, 8), placed((3, 40), 40)
    problem = (
        r"`even__f32__256__w2` is for aligned calls only, and `x` starts 8 bytes behind a multiple of 16[\s\S]*fix: "
    )
    with pytest.raises(GristmillError, match=problem + "leave the constants out"):
        run(even, None, x, y, BLOCK=256)
    with pytest.raises(GristmillError, match=problem):
        run(even, even.specialisations()[0], x, y)
    with pytest.raises(GristmillError, match=r"is for aligned calls only, and `n` is 41, no multiple of 4"):
        run(even, None, placed((3, 41), 44), placed((3, 41), 41), BLOCK=256)
    assert (y == 1).all()


@on_each_machine
def test_a_variant_that_is_asked_for_is_one_that_there_is(run, even):
    x, y = placed((3, 40), 40), placed((3, 40), 40)
    assert [dict(run(even, None, x, y, variant=v).constants)["BLOCK"] for v in VARIANTS] == [256, 64, 64]
    with pytest.raises(GristmillError, match="is for aligned calls only, and `g32` is asked for"):
        run(even, even.specialisations()[0], x, y, variant=VARIANTS[1])


def test_the_simulator_says_so_at_its_own_error(even):
    with pytest.raises(SimulationError, match="is for aligned calls only"):
        simulate(even, None, placed((3, 40), 40, 4), placed((3, 40), 40), constants={"BLOCK": 256})


@pytest.mark.parametrize(
    ("shape", "pitch", "is_possible"),
    [((3, 64), 64, True), ((3, 64), 72, True), ((0, 64), 64, False), ((3, 0), 64, False), ((3, 64), 68, False)],
)
def test_maps_are_made_as_the_launcher_makes_them(even, shape, pitch, is_possible):
    rows, columns, step = (1, 2), (1, 3), (1, 4)
    tensor_map = TensorMap("x", f16, (columns, rows), (step,), (64, 8), 128)
    values = {"rows": shape[0], "n": shape[1], "pitch": pitch}
    assert can_be_made(tensor_map, even, values) == is_possible
    assert not can_be_made(tensor_map, even, values | {"pitch": -64})


# ---- tables --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    file = folder / "even.py"
    file.write_text("import gristmill as gm\nimport gristmill.language as tl\n\n" + SOURCE)
    targets = ("sm_80", "sm_90a", "x86-64-v2")
    settings = Settings((file,), "pkg._kernels", folder / "out", folder, targets=targets, workers=2)
    build_module(settings, compiler="build_fakes:compile_fake", cache=Cache(None))
    return settings.out


def test_variants_that_there_are_not_take_no_room(built):
    tables = (built / "tables.cpp").read_text()
    assert [f"even__f32__256__w2__{v.name}" in tables for v in VARIANTS] == [True, False, False]
    assert [f"even__f32__64__w1__{v.name}" in tables for v in VARIANTS] == [True, True, True]
    assert b"even__f32__256__w2__g32" not in (built / "libhost.a").read_bytes()


@needs_compiler
def test_tables_hold_one_entry_of_them(built):
    lines = [line for line in compile_and_run(built).splitlines() if line.startswith(("specialisation", "entry"))]
    names = [line.split()[1] for line in lines if "f32" in line]
    assert names == [
        "even__f32__256__w2", "even__f32__256__w2__a32",
        "even__f32__64__w1", "even__f32__64__w1__a32", "even__f32__64__w1__g32", "even__f32__64__w1__g64",
    ]  # fmt: skip
