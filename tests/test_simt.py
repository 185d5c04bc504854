"""The simulated device: kernels as their CUDA code would run, and a report for each thing that is undefined there."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import spec_of
from gristmill.cli import main
from gristmill.compiler.interpreter import run_kernel
from gristmill.compiler.simt.run import run_simulated
from gristmill.declare import Kernel
from gristmill.dtypes import dt_numpy
from gristmill.errors import SimulationError
from gristmill.specialisation import VARIANTS
from machines import KERNELS_DIR, bfloat16, kernel_of, shipped_kernels

ALIGNED, GENERAL, _ = VARIANTS
TARGETS = ("sm_80", "sm_90a")

SCALE = """
@gm.kernel(grid=lambda n: gm.cdiv(n, 256))
def scale(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.size["x"]):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(y + i, 2 * tl.load(x + i{load}){store})
"""
MASKED = SCALE.format(load=", mask=i < n", store=", mask=i < n")


def reported(kernel: Kernel, *arguments: object, **named: object) -> str:
    """Return what the simulation of a kernel reports."""
    with pytest.raises(SimulationError) as caught:
        run_simulated(kernel, None, *arguments, **named)
    return str(caught.value)


def zeros(size: int, dtype: object = np.float32) -> np.ndarray:
    return np.zeros(size, dtype)


# ---- right kernels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", shipped_kernels().values(), ids=lambda k: k.name)
def test_shipped_kernels_agree_with_reference_and_interpreter(kernel, target):
    """Both round alike but for order and fusion: a quarter of what the reference allows, at most, lies between."""
    spec = spec_of(kernel)
    names = (
        "1",
        "129",
        "1025",
        "3 x 31",
        "2 x 129",
        "2 x 1025",
        "2 x 129 x 40",
        "1 x 1 x 129 x 64, 5 keys",
        "100 x 72 x 40 a.T b.T",
        "7 x 33 x 65 b.T",
    )
    cases = [c for c in spec.cases_for("test") if c.name in names]
    assert cases
    for dtypes in {s.dtypes for s in kernel.expanded}:
        like = next(s for s in kernel.specialisations() if s.dtypes == dtypes)
        for case in cases:
            simulated, interpreted = (spec.arguments(case, like) for _ in range(2))
            expected = spec.expected(simulated)
            run_simulated(kernel, None, **simulated, target=target)
            run_kernel(kernel, None, **interpreted)
            assert max(spec.errors(simulated, expected).values()) <= 1, (case.name, like.id)
            wide = {name: interpreted[name].astype(np.float64) for name in spec.outputs}
            assert max(spec.errors(simulated, wide).values()) <= 1.5, (case.name, like.id)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["softmax_forward", "layer_norm_forward", "row_sum"])
def test_rows_spread_over_a_cluster_or_many_warps_agree(name, target):
    spec = spec_of(shipped_kernels()[name])
    case = next(c for c in spec.cases_for("test") if c.name == "1 x 65537")
    for dtype in ("bf16", "f32"):
        like = next(s for s in spec.kernel.specialisations() if s.dtypes[0][1].name == dtype)
        arguments = spec.arguments(case, like)
        expected = spec.expected(arguments)
        run_simulated(spec.kernel, None, **arguments, target=target)
        assert max(spec.errors(arguments, expected).values()) <= 1


@pytest.mark.parametrize("name", ["relu_forward", "softmax_forward"])
def test_calls_in_place_race_with_nobody(name):
    kernel = shipped_kernels()[name]
    x = np.random.default_rng(0).standard_normal((3, 1100)).astype(np.float32)
    want = np.empty_like(x)
    run_simulated(kernel, None, x, want)
    run_simulated(kernel, None, x, x)
    np.testing.assert_array_equal(x, want)


def test_order_of_programs_is_that_of_the_grid_or_of_a_seed():
    source = """
    @gm.kernel(grid=8)
    def k(y: gm.ptr[gm.i32]):
        count = tl.load(y)
        tl.store(y, count + 1)
        tl.store(y + 1 + tl.program_id(0), count)
    """
    orders = []
    for shuffle in (None, 1, 1, 2):
        y = zeros(9, np.int32)
        gm.simulate(kernel_of(source), None, y, shuffle=shuffle)
        assert y[0] == 8
        orders.append(y[1:].tolist())
    assert orders[0] == list(range(8))
    assert orders[1] == orders[2] != orders[3] != orders[0]
    assert sorted(orders[1]) == sorted(orders[3]) == orders[0]


def test_views_with_strides_and_offsets_are_read_and_written_where_they_lie():
    source = """
    @gm.kernel(grid=lambda m: m)
    def k(x: gm.ptr[D, "1"], y: gm.ptr[D, "1"], m: gm.shape["x", 0], a: gm.stride["x", 0], b: gm.stride["y", 0]):
        tl.store(y + tl.program_id(0) * b, tl.load(x + tl.program_id(0) * a))
    """
    kernel = kernel_of('D = gm.dtype_var("D", gm.Num)\n\n\n' + source.replace("\n    ", "\n"))
    for dtype in (np.float64, np.int8, np.float16, bfloat16):
        whole, out = np.arange(40).astype(dtype), np.full(40, 77).astype(dtype)
        for x, places in ((whole[3:9], slice(30, 18, -2)), (whole[9:3:-1], slice(1, 19, 3))):
            run_simulated(kernel, None, x, out[places])
            np.testing.assert_array_equal(out[places], x)
        assert (out[0::6] == 77).sum() >= 5


def test_loads_under_a_mask_touch_no_address():
    x, y = np.arange(1000, dtype=np.float32), zeros(1000)
    run_simulated(kernel_of(MASKED), None, x, y)
    np.testing.assert_array_equal(y, 2 * x)


def test_specialisation_that_overflows_a_block_is_passed_over():
    """As in the wheel, which has no image of it for targets without clusters."""
    kernel = shipped_kernels()["softmax_forward"]
    ran = {}
    for target in TARGETS:
        x = np.random.default_rng(0).standard_normal((1, 65_536)).astype(np.float32)
        y = np.empty_like(x)
        ran[target] = dict(run_simulated(kernel, None, x, y, target=target).constants)["ONE_PASS"]
        assert abs(y.sum() - 1) < 1e-4
    assert ran == {"sm_80": False, "sm_90a": True}


# ---- global memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_load_outside_an_array_is_reported_at_its_line(target):
    kernel = kernel_of(SCALE.format(load="", store=", mask=i < n"))
    lines = reported(kernel, zeros(1000), zeros(1000), target=target).splitlines()
    assert ":8:25: error: load: element 1000 of `x` is outside the array, whose shape is [1000]" in lines[0]
    assert lines[0].endswith(", program 3, 0, 0)")
    assert lines[1] == "    8 |     tl.store(y + i, 2 * tl.load(x + i), mask=i < n)"
    assert lines[2].strip() == "^" * len("tl.load(x + i)")
    assert lines[3] == "  fix: mask it, as in `mask=offsets < n`"


def test_store_outside_an_array_is_reported():
    kernel = kernel_of(SCALE.format(load=", mask=i < n", store=""))
    assert "store: element 1000 of `y` is outside" in reported(kernel, zeros(1000), zeros(1000))


def test_negative_offset_is_outside():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32]):
        tl.store(y + tl.arange(0, 32), tl.load(x + tl.arange(0, 32) - 1))
    """
    assert "load: element -1 of `x` is outside" in reported(kernel_of(source), zeros(32), zeros(32))


def test_address_far_from_every_array_is_reported():
    source = """
    @gm.kernel(grid=1)
    def k(y: gm.ptr[gm.f64], far: gm.i64):
        tl.store(y + far, 1.0)
    """
    assert "store: an address is in no array" in reported(kernel_of(source), zeros(4, np.float64), 1 << 50)


def test_access_between_the_elements_of_a_view_is_reported():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], s: gm.stride["x", 0]):
        tl.store(x + 1, 0.0)
    """
    assert "element 1 of `x` is outside" in reported(kernel_of(source), np.zeros((3, 2), np.float32)[:, 0])


def test_store_to_a_read_only_array_is_reported():
    y = zeros(256)
    y.flags.writeable = False
    assert "store: `y` is read-only" in reported(kernel_of(MASKED), zeros(256), y)


def test_promise_of_alignment_that_does_not_hold_is_reported():
    """The aligned variant reads 8 bytes at once; this view starts 4 bytes beside a multiple of 16."""
    x = zeros(1024 + 4)[1:1025]
    kernel = kernel_of(MASKED)
    text = reported(kernel, x, zeros(1024), variant=ALIGNED)
    assert ":8:25: error: load: 8 bytes at once, 0 bytes into `x`, where no multiple of 8 lies" in text
    run_simulated(kernel, None, x, zeros(1024))


def test_row_length_that_breaks_the_promise_of_alignment_is_reported():
    kernel = shipped_kernels()["softmax_forward"]
    x = np.zeros((2, 1001), np.float32)
    assert "16 bytes at once, 4004 bytes into `x`" in reported(kernel, x, np.empty_like(x), variant=ALIGNED)
    run_simulated(kernel, None, x, np.empty_like(x))


# ---- races in global memory ----------------------------------------------------------------------------------------

SHIFT = """
@gm.kernel(grid=1)
def shift(y: gm.ptr[gm.i32]):
    i = tl.arange(0, 256)
    tl.store(y + i, {first})
{between}
    tl.store(y + 256 + i, tl.load(y + 255 - i))
"""


def test_load_of_what_another_thread_stored_is_a_race_with_both_places():
    text = reported(kernel_of(SHIFT.format(first="i + 1", between="")), zeros(512, np.int32))
    assert ":10:27: error: race: thread 0, program 0, 0, 0 loads element 255 of `y`" in text
    assert "which another thread stored at" in text
    assert ":8:5 with no barrier between" in text


def test_barrier_between_puts_threads_in_order():
    """The sum needs numbers of all warps: every thread waits."""
    y = zeros(512, np.int32)
    run_simulated(kernel_of(SHIFT.format(first="i + 1", between="    i += tl.sum(i) * 0")), None, y)
    np.testing.assert_array_equal(y[256:], np.arange(256, 0, -1))


def test_store_of_what_is_there_already_races_with_nobody():
    run_simulated(kernel_of(SHIFT.format(first="i * 0", between="")), None, zeros(512, np.int32))


def test_store_to_what_another_thread_loaded_is_a_race():
    source = """
    @gm.kernel(grid=1)
    def k(y: gm.ptr[gm.f32]):
        i = tl.arange(0, 128)
        tl.store(y + i, tl.load(y + 127 - i) + 1)
    """
    text = reported(kernel_of(source), zeros(128))
    assert "stores element" in text
    assert "which another thread loaded at" in text


@pytest.mark.parametrize(("value", "races"), [("i", True), ("i * 0 + 7", False)])
def test_two_threads_that_store_to_one_element_race_unless_their_numbers_are_equal(value, races):
    source = f"""
    @gm.kernel(grid=1)
    def k(y: gm.ptr[gm.i32]):
        i = tl.arange(0, 128)
        tl.store(y + i // 2, {value})
    """
    y = zeros(64, np.int32)
    if races:
        assert "race: thread 0, program 0, 0, 0 stores element 0 of `y`" in reported(kernel_of(source), y)
    else:
        run_simulated(kernel_of(source), None, y)
        assert (y == 7).all()


def test_nan_is_the_same_number_as_nan():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32]):
        i = tl.arange(0, 128)
        tl.store(y + i * 0, tl.load(x + i))
    """
    x = np.arange(0x7FC00000, 0x7FC00000 + 128, dtype=np.uint32).view(np.float32)
    y = zeros(1)
    run_simulated(kernel_of(source), None, x, y)
    assert np.isnan(y[0])


def test_race_through_two_views_of_one_buffer_is_found():
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32]):
        i = tl.arange(0, 128)
        tl.store(y + i, tl.load(x + i) + 1)
    """
    buffer = zeros(132)
    assert "which another thread loaded" in reported(kernel_of(source), buffer[:128], buffer[4:])
    run_simulated(kernel_of(source), None, buffer[:128], buffer[:128])
    assert (buffer == 1).sum() == 128


COUNT = """
@gm.kernel(grid=1)
def k(x: gm.ptr[gm.i32], y: gm.ptr[gm.i32]):
    i = tl.arange(0, 128)
    count = tl.load(y)
    tl.store(y, count + 1)
    tl.store(x + i, {value})
"""


def test_scalar_that_only_the_storing_thread_needs_is_no_race():
    x, y = zeros(128, np.int32), zeros(1, np.int32)
    run_simulated(kernel_of(COUNT.format(value="i")), None, x, y)
    assert y[0] == 1


@pytest.mark.parametrize("value", ["i + count", "i + tl.load(y)"])
def test_scalar_that_all_threads_need_races_with_the_store(value):
    text = reported(kernel_of(COUNT.format(value=value)), zeros(128, np.int32), zeros(1, np.int32))
    assert "race: " in text
    assert "element 0 of `y`" in text


def test_blocks_of_a_cluster_are_not_in_order_behind_a_barrier():
    source = """
    @gm.kernel(grid=1, num_warps=8)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32]):
        i = tl.arange(0, 32768)
        v = tl.load(x + i)
        tl.store(y + i, v + 1)
        j = tl.arange(0, 1024)
        total = tl.sum(tl.load(x + j))
        tl.store(y + 40000 + j, tl.load(y + j + {start}) + total)
    """
    sizes = (32768, np.float32), (65536, np.float32)
    arrays = [np.zeros(*size) for size in sizes]
    text = reported(kernel_of(source.format(start=32000)), *arrays)
    assert "loads element 32000 of `y`, which another thread stored at" in text


# ---- control flow and arguments ------------------------------------------------------------------------------------


def test_step_of_a_loop_is_positive():
    source = """
    @gm.kernel(grid=1)
    def k(y: gm.ptr[gm.i32], step: gm.i32):
        for i in range(0, 4, step):
            tl.store(y, i)
    """
    assert "a loop's step must be positive, got 0" in reported(kernel_of(source), zeros(1, np.int32), 0)


def test_loop_that_overflows_its_variable_is_reported():
    source = """
    @gm.kernel(grid=1)
    def k(y: gm.ptr[gm.i32], end: gm.i32):
        for i in range(end - 5, end, 3):
            tl.store(y, i)
    """
    y = zeros(1, np.int32)
    assert "overflows i32, so that the loop never ends" in reported(kernel_of(source), y, 2**31 - 1)
    run_simulated(kernel_of(source), None, y, 100)
    assert y[0] == 98


WRONG_CALLS = {
    "takes 3 arguments, got 4": lambda k, x: gm.simulate(k, None, x, x.copy(), 1, 2),
    "`x` must be a numpy array, got list": lambda k, x: gm.simulate(k, None, [1.0], x),
    "`n` must be a number, got str": lambda k, x: gm.simulate(k, None, x, x.copy(), "many"),
    "`n` must be a number, got ndarray": lambda k, x: gm.simulate(k, None, x, x.copy(), x),
    "`y` is given twice": lambda k, x: gm.simulate(k, None, x, x.copy(), y=x),
    "`scale` needs `y`": lambda k, x: gm.simulate(k, None, x),
    "`scale` has no `z`": lambda k, x: gm.simulate(k, None, x, x.copy(), z=1),
    "`x` has dtype float64, the kernel takes f32": lambda k, x: gm.simulate(k, None, x.astype(np.float64), x),
    "`x` is not contiguous": lambda k, x: gm.simulate(k, None, x[::2], x),
    "`x` do not lie in memory as a device reads them": lambda k, x: gm.simulate(k, None, x.astype(">f4"), x),
    "`x86-64-v3` is no CUDA target": lambda k, x: gm.simulate(k, None, x, x.copy(), target="x86-64-v3"),
    "a grid has one to three sizes, not 4": lambda k, x: gm.simulate(k, (1, 1, 1, 1), x, x.copy()),
    "has no specialisation for f32, BLOCK=3": lambda k, x: gm.simulate(
        shipped_kernels()["softmax_forward"], None, x, x.copy(), constants={"BLOCK": 3}
    ),
}


@pytest.mark.parametrize("message", WRONG_CALLS)
def test_wrong_call_is_reported(message):
    with pytest.raises(SimulationError, match=message) as caught:
        WRONG_CALLS[message](kernel_of(MASKED), zeros(8))
    assert caught.value.fix


@gm.kernel()
def without_grid(y: gm.ptr[gm.i32]):
    tl.store(y + tl.program_id(0), tl.num_programs(0))


def test_kernel_without_a_grid_needs_one():
    y = zeros(3, np.int32)
    with pytest.raises(SimulationError, match="declares no grid"):
        gm.simulate(without_grid, None, y)
    gm.simulate(without_grid, 3, y)
    assert y.tolist() == [3, 3, 3]


def test_constants_choose_the_specialisation():
    kernel = shipped_kernels()["softmax_forward"]
    x = np.zeros((1, 100), np.float16)
    ran = gm.simulate(kernel, None, x, np.empty_like(x), target="sm_80", constants={"ONE_PASS": False})
    assert dict(ran.constants)["ONE_PASS"] is False
    assert dict(ran.dtypes)["D"].name == "f16"


# ---- the command ---------------------------------------------------------------------------------------------------


def test_command_shows_the_cases_of_a_kernel(capsys):
    file = str(KERNELS_DIR / "softmax.py")
    choice = ["--kernel", "softmax_forward", "--dtype", "bf16", "--target", "sm_80", "--const", "BLOCK=256"]
    assert main(["simulate", file, *choice]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["specialisation", "case", "error", "time"]
    assert all(line.startswith("softmax_forward__bf16__256__256__true__w1 ") for line in lines[1:-1])
    assert any(" 2 x 129 " in line for line in lines)
    assert lines[-1] == f"{len(lines) - 2} cases, 0 wrong; errors are shares of what is allowed"


FILE = '''
import numpy as np

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import elementwise, spec, streaming


@gm.kernel(grid=lambda n: gm.cdiv(n, 128))
def double(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.size["x"]):
    """y = 2 x."""
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(y + i, FACTOR * tl.load(x + i, mask=i < n), MASK)


spec(double, reference=lambda x: 2 * x, cases=elementwise("x", "y"), cost=streaming(flops=1))
'''


@pytest.mark.parametrize(
    ("factor", "mask", "found"), [("2", "mask=i < n", ""), ("3", "mask=i < n", "WRONG"), ("2", "mask=i < n + 1", "y")]
)
def test_command_fails_where_a_case_is_wrong_and_shows_reports(tmp_path, capsys, factor, mask, found):
    file = tmp_path / "double.py"
    file.write_text(FILE.replace("FACTOR", factor).replace("MASK", mask))
    assert main(["simulate", str(file)]) == int(bool(found))
    out = capsys.readouterr().out
    assert ("WRONG" in out) == bool(found)
    if found == "y":
        assert "error: store: element 1 of `y` is outside the array, whose shape is [1]" in out
        assert "fix: mask it" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kernel", "softmax"], "there is no kernel `softmax`"),
        (["--dtype", "i8"], "has no specialisation for i8"),
        (["--const", "BLOCK=5"], "has no specialisation with BLOCK=5"),
        (["--target", "x86-64-v2"], "is no CUDA target"),
        (["--target", "sm_1"], "unknown target `sm_1`"),
    ],
)
def test_command_says_what_does_not_exist(capsys, options, message):
    assert main(["simulate", str(KERNELS_DIR / "softmax.py"), *options]) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_speed_is_that_of_arrays_not_of_threads():
    """A Python step for each of 128 threads, or for each element, would take seconds."""
    import time

    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    run = partial(run_simulated, shipped_kernels()["gelu_forward"], None, x, np.empty_like(x))
    run()
    start = time.process_time()
    run()
    assert time.process_time() - start < 0.5
    assert dt_numpy(gm.f32) == x.dtype
