"""tools/bench: what is planned, how it is timed and checked, and what the reports say. Nothing here measures speed."""

from __future__ import annotations

import ctypes
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import gristmill
from gristmill.cases import Case, Spec
from gristmill.declare import Specialisation

TOOLS = Path(__file__).parent.parent / "tools"
if not TOOLS.exists():
    pytest.skip("needs a checkout", allow_module_level=True)
sys.path.append(str(TOOLS))

from benchlib import buffers, check, cli, contest, launch, machine, report, start, timing, work  # noqa: E402
from benchlib.numpy_peers import numpy_peers  # noqa: E402

SPECS = work.load_specs()
ONCE = timing.Effort(rounds=1, batch_us=1)


def small(name: str, dtype: str = "f32", shape: tuple[int, ...] = (6, 515)) -> work.Work:
    """Return work of a few rows, or of elements, as a bench case would have it."""
    spec = SPECS[name]
    example = next(c for c in spec.cases if c.name in ("129", "2 x 129", "65 x 7 x 33"))
    if example.name == "65 x 7 x 33":
        return work.Work(spec, replace(example, use="bench"), row_of(spec, dtype))
    sizes = dict(zip((2, 129), shape, strict=True)) if example.name == "2 x 129" else {129: shape[-1]}
    shapes = {array: tuple(sizes[n] for n in lengths) for array, lengths in example.shapes.items()}
    return work.Work(spec, Case("small", shapes, "bench", ranges=example.ranges), row_of(spec, dtype))


def row_of(spec: Spec, dtype: str) -> Specialisation:
    """Return the first specialisation in a dtype."""
    return next(s for s in spec.kernel.specialisations() if s.dtypes[0][1].name == dtype)


class Dispatcher:
    """Stands in for a built kernel, and computes by its reference."""

    def __init__(self, spec):
        self.spec = spec

    def __call__(self, *arrays):
        names = [p.name for p in self.spec.kernel.parameters if p.kind == "pointer"]
        given = dict(zip(names, arrays, strict=True))
        for name, value in self.spec.expected(given).items():
            given[name][...] = value.astype(given[name].dtype)


@pytest.fixture
def kernels(monkeypatch):
    module = ModuleType("gristmill.kernels")
    for name, spec in SPECS.items():
        setattr(module, name, Dispatcher(spec))
    monkeypatch.setitem(sys.modules, "gristmill.kernels", module)
    monkeypatch.setattr(gristmill, "kernels", module, raising=False)
    return module


def arena(*peers) -> contest.Arena:
    copy = work.Contestant(contest.COPY, [lambda: None], 1000)
    return contest.Arena("cpu", timing.cpu_batch, 1, buffers.cpu_arrays, peers, lambda row: copy)


# ---- what is planned -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vector_add", "gelu_forward", "silu_forward"])
def test_streaming_kernels_are_timed_at_2_27_elements_and_one_less(name):
    cases = [row.case.name for row in work.plan([name], ["bf16", "f32"], is_cpu=False)]
    assert cases == [str(2**27), str(2**27 - 1)] * 2


@pytest.mark.parametrize("name", ["softmax_forward", "layer_norm_forward", "rms_norm_forward"])
def test_row_kernels_are_timed_at_the_lengths_of_the_bars(name):
    rows = work.plan([name], ["bf16"], is_cpu=False)
    assert [row.case.shapes["x"][1] for row in rows] == [1000, 1024, 4096, 16_384, 65_536, 131_072]
    assert all(row.bytes > 0.99 * 2**29 for row in rows)


def test_the_cpu_gets_square_cases_and_columns_can_be_chosen():
    assert {row.case.name for row in work.plan([], ["f32"], is_cpu=True)} == {"4096 x 4096"}
    rows = work.plan(["softmax_forward"], ["f32"], is_cpu=False, columns=[1000, 4096])
    assert [row.case.shapes["x"][1] for row in rows] == [1000, 4096]


def test_an_unknown_kernel_is_named():
    with pytest.raises(SystemExit, match="there is no kernel softmx"):
        work.plan(["softmx"], ["f32"], is_cpu=True)


def test_buffers_exceed_the_cache_several_times():
    assert buffers.set_count(small("gelu_forward"), 1 << 20) * small("gelu_forward").bytes >= 4 << 20
    assert buffers.set_count(small("gelu_forward"), 1) == 2


# ---- clocks --------------------------------------------------------------------------------------------------------


def test_calls_take_turns_over_the_buffer_sets():
    seen: list[int] = []
    timing.cpu_batch([lambda i=i: seen.append(i) for i in range(3)], 7)
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_every_round_times_everyone_for_about_as_long():
    counts: dict[str, list[int]] = {"fast": [], "slow": []}
    microseconds = {"fast": 10.0, "slow": 100.0}

    def batch(calls, count):
        counts[calls[0]].append(count)
        return microseconds[calls[0]]

    times = timing.shuffled_rounds(batch, {name: [name] for name in counts}, timing.Effort(rounds=9, batch_us=1000))
    assert times == {name: [value] * 9 for name, value in microseconds.items()}
    assert (counts["fast"][2:], counts["slow"][2:]) == ([100] * 9, [10] * 9)


def test_spread_is_the_median_and_the_outer_tenths():
    assert timing.spread([float(i) for i in range(101)]) == (50.0, 10.0, 90.0)
    assert timing.spread([3.0]) == (3.0, 3.0, 3.0)


# ---- checks --------------------------------------------------------------------------------------------------------


def dtypes_of(name: str) -> set[str]:
    return {s.dtypes[0][1].name for s in SPECS[name].kernel.specialisations()}


EVERYONE = [
    (name, dtype)
    for name in SPECS
    for dtype in ("bf16", "f32")
    if dtype in dtypes_of(name) and not name.startswith("attention")
]


@pytest.mark.parametrize(("name", "dtype"), EVERYONE)
def test_everyone_computes_the_same(kernels, name, dtype):
    results = arena(numpy_peers if dtype == "f32" else lambda row, arrays: {}).measure(small(name, dtype), ONCE)
    assert [r.note for r in results if r.note] == []
    assert results[0].contestant == contest.OURS
    assert results[0].error is not None
    assert results[0].error <= 1


@pytest.mark.parametrize("name", ["vector_add", "relu_backward", "gelu_forward", "softmax_backward", "row_sum"])
def test_torch_computes_the_same(kernels, name):
    torch = pytest.importorskip("torch")
    from benchlib.torch_peers import torch_peers

    def peers(row, arrays):
        return torch_peers(row, {key: torch.from_numpy(array) for key, array in arrays.items()})

    results = arena(peers).measure(small(name), ONCE)
    assert {r.contestant: r.note for r in results} == {"gristmill": "", "torch": "", "copy": ""}


def test_a_gap_and_a_wrong_value_are_found():
    row = small("gelu_forward")
    arrays = buffers.cpu_arrays(row, 0)
    right = row.spec.expected(arrays)["y"].astype(np.float32)

    def write(count, factor=1.0):
        arrays["y"][:count] = right[:count] * np.float32(factor)

    assert check.largest_error(row, arrays, lambda: write(515)) <= 1
    assert check.largest_error(row, arrays, lambda: write(514)) == math.inf
    assert check.largest_error(row, arrays, lambda: write(515, 1.001)) > 1


def test_what_a_kernel_adds_to_is_zeros_before_a_call():
    row = small("gelu_forward")
    row = replace(row, spec=replace(row.spec, added=("y",)))
    arrays = buffers.cpu_arrays(row, 0)
    right = row.spec.expected(arrays)["y"].astype(np.float32)
    for _ in range(2):
        assert check.largest_error(row, arrays, lambda: np.add(arrays["y"], right, out=arrays["y"])) <= 1


def test_parts_are_the_first_the_middle_and_the_last():
    parts = check._parts(small("softmax_forward", shape=(1000, 4096)))
    assert [(part.start, part.stop) for part in parts] == [(0, 32), (484, 516), (968, 1000)]
    assert check._parts(small("softmax_forward")) == [slice(0, 6)]


def test_peers_that_fail_or_compute_something_else_are_in_the_results(kernels):
    def fail():
        raise ValueError("out of resources: shared memory\nand more")

    def peers(row, arrays):
        return {"broken": fail, "double": lambda: 2 * arrays["x"], "idle": lambda: None}

    notes = {r.contestant: r.note for r in arena(peers).measure(small("relu_forward"), ONCE)}
    assert notes["broken"] == "ValueError: out of resources: shared memory"
    assert notes["double"].startswith("computes something else")
    assert notes["idle"].startswith("computes something else")
    assert notes["gristmill"] == ""


def test_a_sweep_times_every_specialisation_of_the_dtype(kernels):
    def instance(identity, dtype):
        return SimpleNamespace(id=identity, dtypes={"D": dtype}, launch=Dispatcher(SPECS["relu_forward"]))

    rows = [instance(f"relu_forward__{d}__{block}", d) for d in ("f16", "f32") for block in (256, 1024)]
    kernels.relu_forward = SimpleNamespace(instances=rows, info=lambda *arrays: {"specialisation": rows[3].id})
    results = arena(numpy_peers).measure(small("relu_forward"), ONCE, is_sweep=True)
    assert [r.contestant for r in results] == ["gristmill 256", "gristmill 1024 (picked)", "copy"]
    assert [r.error for r in results] == [0.0, 0.0, None]


# ---- reports -------------------------------------------------------------------------------------------------------


def result(contestant="gristmill", gb_s=4000.0, **others):
    fields = {"kernel": "softmax_forward", "dtype": "bf16", "case": "131072 x 1024", "device": "cuda"} | others
    row = work.Result(contestant=contestant, bytes=1 << 29, median_us=(1 << 29) / gb_s / 1e3, gb_s=gb_s, **fields)
    row.p10_us = row.p90_us = row.median_us
    return row


def test_rows_are_held_to_the_copy_and_to_the_best_peer():
    results = [result(error=0.3), result("torch", 2700.0), result("triton", 4100.0), result("copy", 4300.0)]
    contest.set_copy_shares(results)
    assert report.verdicts(results) == [
        "ok   softmax_forward bf16 131072 x 1024: 0.930 of copy (bar 0.88)",
        "LOW  softmax_forward bf16 131072 x 1024: 0.976 of the best peer, triton (bar 1.0)",
    ]


def test_products_are_measured_by_their_operations_beside_the_best_peer():
    names = {"kernel": "matmul", "case": "4096 cubed b.T", "flops": 2 * 4096**3, "error": 0.2}
    results = [result(gb_s=4000.0, **names), result("torch", 4200.0, **names)]
    line = "LOW  matmul bf16 4096 cubed b.T: 0.952 of the best peer, torch (bar 0.99)"
    assert report.verdicts(results) == [line]
    assert report.verdicts([result(dtype="f32", **names), result("torch", dtype="f32", **names)]) == []
    page = report.as_markdown(machine.describe("cpu"), results)
    assert "| matmul | bf16 | 4096 cubed b.T | 1024 | 1075 | 0.952 | 0.20 |" in page
    assert "copy" not in page
    assert "1024.0 TFLOP/s  error 0.20" in report.lines(results)


def test_products_are_held_to_sustained_speed_and_show_that_of_bursts():
    names = {"kernel": "matmul", "case": "4096 cubed", "flops": 2 * 4096**3}
    results = [result(gb_s=4200.0, **names), result("torch", 4000.0, **names)]
    for row, factor in zip(results, (0.9, 0.8), strict=True):
        row.extra["burst_us"] = factor * row.median_us
    assert report.verdicts(results) == ["ok   matmul bf16 4096 cubed: 1.050 of the best peer, torch (bar 0.99)"]
    page = report.as_markdown(machine.describe("cpu"), results)
    assert "| matmul | bf16 | 4096 cubed | 1075 (1195) | 1024 (1280) | 1.050 (0.933) |  |" in page
    assert "1075.2 (1194.7) TFLOP/s" in report.lines(results)


def test_products_on_a_device_are_timed_in_graphs_behind_more_of_the_same(kernels, monkeypatch):
    captured, batches = [], []

    def capture(calls, launches):
        captured.append(launches)
        return lambda: [calls[i % len(calls)]() for i in range(launches)]

    def sustained(calls, count):
        calls[0]()
        batches.append(count)
        return 300.0

    monkeypatch.setattr(timing, "cuda_batch", lambda calls, count: 100.0)
    monkeypatch.setattr(timing, "in_graph", capture)
    monkeypatch.setattr(timing, "sustained_batch", sustained)
    fighting = arena(numpy_peers)
    fighting.is_sustained = True
    row = next(w for w in work.plan(["matmul"], ["f32"], is_cpu=False) if not w.case.turned)
    row = replace(row, case=replace(row.case, shapes={"a": (64, 128), "b": (128, 96), "out": (64, 96)}))
    results = fighting.measure(row, ONCE)
    assert captured == [10, 10] and batches
    assert [r.median_us for r in results] == [30.0, 30.0]
    assert all(r.extra["burst_us"] > 0 for r in results)


def test_products_find_their_operands_in_the_cache_and_have_no_copy(kernels):
    rows = work.plan(["matmul"], ["bf16"], is_cpu=False)
    assert {r.case.name for r in rows} >= {"1024 cubed", "8192 cubed b.T", "16 x 8192 x 8192"}
    assert all(row.is_arithmetic and buffers.set_count(row, 50 << 20) == 2 for row in rows)
    turned = next(row for row in rows if row.case.turned)
    row = replace(turned, case=replace(turned.case, shapes={"a": (64, 128), "b": (128, 96), "out": (64, 96)}))
    row = replace(row, specialisation=row_of(row.spec, "f32"))
    assert buffers.cpu_arrays(row, 0)["b"].strides == (4, 512)
    assert check.largest_error(row, buffers.cpu_arrays(row, 0), lambda: None) == math.inf
    results = arena(numpy_peers).measure(row, ONCE)
    assert [(r.contestant, r.note, r.flops) for r in results] == [(n, "", 1_572_864) for n in ("gristmill", "numpy")]


def test_odd_lengths_are_held_to_even_ones():
    names = {"kernel": "silu_forward", "dtype": "f32"}
    results = [result(case="128", gb_s=4000.0, **names), result(case="127", gb_s=3700.0, **names)]
    assert report.verdicts(results)[-1] == "LOW  silu_forward f32 n odd: 0.925 of n even (bar 0.95)"


def test_the_cpu_is_held_to_numpy():
    names = {"kernel": "gelu_forward", "dtype": "f32", "case": "4096 x 4096", "device": "cpu"}
    results = [result(gb_s=6.0, **names), result("numpy", gb_s=1.2, **names)]
    assert report.verdicts(results) == ["ok   gelu_forward f32 4096 x 4096: 5.000 times numpy's speed (bar 2.0)"]


def test_a_peer_that_fails_has_no_time_and_json_no_nan():
    failed = work.Result("k", "f32", "1", "cuda", "triton", 1, note="OutOfResources")
    facts = machine.describe("cpu")
    loaded = json.loads(report.as_json(facts, [failed, result()]), parse_constant=pytest.fail)
    assert loaded["results"][0]["median_us"] is None
    assert "| fails |" in report.as_markdown(facts, [failed, result()])
    assert "OutOfResources" in report.lines([result(), failed])


def test_the_whole_command(kernels, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(work, "plan", lambda names, dtypes, is_cpu, columns: [small(names[0])])
    monkeypatch.setattr("benchlib.arenas.is_installed", lambda name: False)
    files = ["--json", str(tmp_path / "a" / "b.json"), "--markdown", str(tmp_path / "b.md")]
    assert cli.main(["rms_norm_forward", "--device", "cpu", "--quick", *files]) == 0
    contestants = [row["contestant"] for row in json.loads((tmp_path / "a" / "b.json").read_text())["results"]]
    assert contestants == ["gristmill", "numpy", "copy"]
    assert (tmp_path / "b.md").read_text().startswith("# Benchmark")
    assert "times numpy's speed" in capsys.readouterr().out


# ---- calls and starts ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_the_c_loop_counts_its_launches():
    loop = ctypes.CDLL(str(launch.compile_loop())).launch_loop
    loop.restype = ctypes.c_double
    calls: list[tuple[int, ...]] = []
    codes = [0] * 5 + [700]
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    )
    fake = kind(lambda *arguments: calls.append(arguments) or codes[len(calls) - 1])
    assert loop(fake, ctypes.c_void_p(1), 128, None, None, 5) > 0
    assert [call[1:5] for call in calls] == [(1, 1, 1, 128)] * 5
    assert loop(fake, ctypes.c_void_p(1), 128, None, None, 1) == -700


def test_the_empty_kernel_has_the_parameters_of_the_call():
    text = launch.empty_ptx(["u64", "u32"])
    assert ".entry empty(.param .u64 p0, .param .u32 p1)" in text


def test_the_kernel_of_nineteen_arguments_has_nineteen():
    parameters = SPECS["adamw_step"].kernel.parameters
    assert len(parameters) == 19
    scalars = [p for p in parameters if p.kind == "scalar"]
    assert len(scalars) == len(launch.SCALARS)
    assert {p.dtype.name for p in scalars} == {"f64"}


def test_a_new_process_is_asked_for_its_times(monkeypatch):
    script = "import json; print(json.dumps({'import': 0.5}))"
    assert start.repeat(script, 2) == {"import": [500.0, 500.0]}
    with pytest.raises(RuntimeError, match="no such thing"):
        start.sample("raise RuntimeError('no such thing')")


@pytest.mark.parametrize("script", [start.ON_CPU, start.ON_CUDA])
def test_the_scripts_for_new_processes_are_python(script):
    compile(script, "script", "exec")


def test_help_shows_the_uses():
    done = subprocess.run([sys.executable, str(TOOLS / "bench"), "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "tools/bench launch" in done.stdout
