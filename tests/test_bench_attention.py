"""tools/bench attention: what is planned, how it is checked and timed, and what is said. No speed is measured."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import gristmill

TOOLS = Path(__file__).parent.parent / "tools"
if not TOOLS.exists():
    pytest.skip("needs a checkout", allow_module_level=True)
sys.path.append(str(TOOLS))

from benchlib import attention, attention_check, attention_report, attention_sides, cli, plot, report, timing, work  # noqa: E402
from benchlib.attention_cases import BACKWARD, DECODE, FORWARD, Problem, arrays_of, plan, with_wide_scores  # noqa: E402
from benchlib.work import Result, load_specs  # noqa: E402

ONCE = attention.Effort(timing.Effort(rounds=1, batch_us=1), burst_rounds=1)


def small(kernel=FORWARD, **others):
    return Problem(kernel, **({"dtype": "f16", "batch": 2, "heads": 3, "length": 40, "head": 64} | others))


def heads_of(arrays, problem, compute):
    """Compute each head by what checks them, and write the results."""
    for i in range(problem.batch):
        for j in range(problem.heads):
            inputs = {name: arrays[name][problem.place_in(name, (i, j))].double() for name in problem.inputs}
            for name, value in compute(problem, inputs).items():
                arrays[name][i, j] = value.to(arrays[name].dtype)


class Kernels(ModuleType):
    """Stands in for built kernels, and computes by the reference; what kernels write is multiplied by their factor."""

    def attention_forward(self, q, k, v, out, lse, scale, causal=0, LAZY=False):
        batch, heads, length, head = q.shape
        problem = Problem(FORWARD, "f16", batch, heads, length, head, bool(causal))
        assert scale == problem.scale
        heads_of({"q": q, "k": k, "v": v, "out": out, "lse": lse}, problem, attention_check.attention)
        out *= self.factors[FORWARD]

    def attention_delta(self, out, dout, delta):
        delta.copy_((out.float() * dout.float()).sum(-1))

    def attention_backward(self, q, k, v, dout, lse, delta, dq, dk, dv, scale, causal=0):
        batch, heads, length, head = q.shape
        problem = Problem(BACKWARD, "f16", batch, heads, length, head, bool(causal))
        assert (dq == 0).all()
        assert delta.isfinite().all()
        arrays = {"q": q, "k": k, "v": v, "dout": dout, "dq": dq, "dk": dk, "dv": dv}
        heads_of(arrays, problem, attention_check.gradients)
        dq *= self.factors[BACKWARD]


@pytest.fixture
def kernels(monkeypatch):
    module = Kernels("gristmill.kernels")
    module.factors = {FORWARD: 1.0, BACKWARD: 1.0}
    monkeypatch.setitem(sys.modules, "gristmill.kernels", module)
    monkeypatch.setattr(gristmill, "kernels", module, raising=False)
    return module


@pytest.fixture
def cpu(monkeypatch):
    """Let the CPU's clock stand in for the device's."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("GRISTMILL_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(timing, "cuda_batch", lambda calls, count: 1000.0)
    for name in ("sustained_batch", "burst_batch"):
        monkeypatch.setattr(timing, name, lambda calls, count: timing.cpu_batch(calls, 1))
    yield
    torch.set_num_threads(threads)


# ---- what is planned -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [FORWARD, BACKWARD])
def test_every_size_head_and_mask_is_timed(kernel):
    rows = list(plan(kernel, ["f16", "bf16"], [64, 128], is_quick=False))
    assert len(rows) == len({row.title for row in rows}) == 40
    assert {row.length for row in rows} == {512, 1024, 2048, 4096, 16_384}
    assert {row.length for row in plan(kernel, ["f16"], [64], is_quick=True)} == {1024, 4096}


def test_decoding_is_timed_by_what_it_reads():
    (row,) = plan(DECODE, ["bf16"], [64, 128], is_quick=False)
    assert row.shape_of("q") == (64, 32, 1, 128)
    assert row.shape_of("v") == (64, 8, 8192, 128)
    assert row.place_in("k", (3, 31)) == (3, 7)
    assert (row.flops, row.bytes) == (0, 2 * 2 * (64 * 8 * 8192 + 64 * 32) * 128)


def test_operations_are_those_of_the_products():
    sizes = {"batch": 4, "heads": 32, "length": 4096, "head": 128}
    assert small(**sizes).flops == 4 * 4 * 32 * 4096**2 * 128
    assert small(BACKWARD, is_causal=True, **sizes).flops == 5 * 4 * 32 * 4096**2 * 128


def test_attention_is_measured_by_itself():
    assert attention.is_asked(["attention"])
    assert attention.is_asked([FORWARD, BACKWARD])
    assert not attention.is_asked(["matmul"])
    assert not attention.is_asked([])
    with pytest.raises(SystemExit, match="by itself"):
        attention.is_asked([FORWARD, "matmul"])
    with pytest.raises(SystemExit, match="fix: tools/bench attention_forward --device cpu"):
        cli.main(["attention", "--device", "cpu"])


def test_all_kernels_are_those_without_attention():
    assert not any(row.kernel.startswith("attention") for row in work.plan([], ["bf16"], is_cpu=False))
    assert {row.kernel for row in work.plan([FORWARD], ["bf16"], is_cpu=False)} == {FORWARD}


def test_kernels_that_are_not_there_are_skipped_and_named(kernels, monkeypatch, capsys):
    monkeypatch.delattr(Kernels, "attention_backward")
    assert attention.measure_kernel(BACKWARD, SimpleNamespace()) == []
    assert capsys.readouterr().out == "attention_backward: skipped, the installed wheel has no attention_backward\n"
    assert attention_sides.missing(FORWARD) == []


# ---- checks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_causal", [False, True])
def test_references_are_attention_and_its_gradients(is_causal, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(attention_check, "ROWS", 16)
    problem = small(BACKWARD, is_causal=is_causal)
    q, k, v, dout = torch.randn(4, problem.length, problem.head, dtype=torch.float64)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    scores = problem.scale * inputs[0] @ inputs[1].T
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -math.inf)
    out = scores.softmax(-1) @ inputs[2]
    given = {"q": q, "k": k, "v": v, "dout": dout}
    got = attention_check.attention(problem, given) | attention_check.gradients(problem, given)
    expected = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, inputs, dout), strict=True))
    expected |= {"out": out, "lse": scores.logsumexp(-1)}
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-12, atol=1e-12)


def test_large_scores_reach_fifty():
    pytest.importorskip("torch")
    problem = small(groups=1)
    arrays = arrays_of(problem, "cpu")
    wide = with_wide_scores(problem, arrays, [(0, 2), (1, 0)])
    scores = [wide["q"][i, j].float() @ wide["k"][i, 0].float().T * problem.scale for i, j in ((0, 2), (1, 0))]
    assert max(float(s.abs().max()) for s in scores) == pytest.approx(50, rel=2e-3)
    assert wide["out"] is not arrays["out"]


def test_two_heads_are_drawn_the_same_in_every_run():
    places = attention_check.places_of(small())
    assert places == attention_check.places_of(small())
    assert len(set(places)) == 2
    assert all(0 <= i < 2 and 0 <= j < 3 for i, j in places)


@pytest.mark.parametrize("kernel", [FORWARD, BACKWARD])
def test_everyone_is_checked_and_those_that_fail_say_why(kernels, cpu, kernel):
    results = {r.contestant: r for r in attention.measure(small(kernel, is_causal=True), ONCE, "cpu")}
    assert list(results) == ["gristmill", *(name for name in results if name != "gristmill")]
    ours = results["gristmill"]
    assert ours.note == ""
    assert ours.median_us > 0
    assert ours.extra["burst_us"] > 0
    assert 0 < ours.extra["error"] < 1e-3
    assert 0 < ours.extra["error_wide"] < 1e-3
    lazy = {attention_sides.LAZY} if kernel == FORWARD else set()
    assert set(results) == {"gristmill", "cuDNN", "FlashAttention-2", "triton"} | lazy
    assert all(results[name].note == "" for name in lazy)
    assert math.isnan(results["cuDNN"].median_us)
    assert "Error: " in results["cuDNN"].note


def test_the_cpu_is_measured_beside_torch(kernels, cpu, capsys):
    command = [FORWARD, "--device", "cpu", "--columns", "64", "--quick"]
    assert cli.main(command) == 0
    row, *_, last = [line for line in capsys.readouterr().out.splitlines() if line.startswith(FORWARD)]
    assert re.match(r"attention_forward f32 1 x 2 x 256 x 64 full: gristmill \d+ GFLOP/s  torch \d+ GFLOP/s, ", row)
    assert re.search(r"[\d.]+ of torch, the geometric mean of 2 rows$", last)
    kernels.factors[FORWARD] = 1.01
    assert cli.main(command) == 1


def test_torch_is_checked_on_what_it_returns(kernels, cpu):
    results = {r.contestant: r for r in attention.measure(small(), ONCE, "cpu")}
    assert results["FlashAttention-2"].note == ""
    assert 0 < results["FlashAttention-2"].extra["error"] < 1e-3


@pytest.mark.parametrize("kernel", [FORWARD, BACKWARD])
@pytest.mark.parametrize(("factor", "text"), [(1.01, "WRONG: error 1.0e-02"), (math.nan, "WRONG: leaves gaps")])
def test_a_wrong_result_is_noted(kernels, cpu, kernel, factor, text):
    kernels.factors[kernel] = factor
    ours = next(r for r in attention.measure(small(kernel), ONCE, "cpu") if r.contestant == "gristmill")
    assert ours.note.startswith(text)


def test_errors_are_held_to_those_of_cudnn():
    found = {"cuDNN": {"out": 3e-4}, "gristmill": {"out": 5e-4, "lse": 1e-6}}
    assert attention_check.worst(small(), found, "gristmill") == (5e-4, pytest.approx(5 / 3))
    assert attention_check.verdict(small(), found, "gristmill") == ""
    found["gristmill"]["out"] = 7e-4
    assert attention_check.verdict(small(), found, "gristmill") == "error 7.0e-04, 2.33 times cuDNN's"
    found["cuDNN"]["out"] = math.inf
    assert attention_check.verdict(small(), found, "gristmill") == ""
    found["gristmill"]["lse"] = 0.01
    assert attention_check.verdict(small(), found, "gristmill") == "lse 1.0e-02 apart"


# ---- decoding ------------------------------------------------------------------------------------------------------


def test_decoding_joins_its_parts(kernels, monkeypatch):
    pytest.importorskip("torch")
    problem = small(DECODE, heads=4, groups=2, length=600)
    arrays = arrays_of(problem, "cpu")

    def parameters(**names):
        listed = [SimpleNamespace(name=name, kind=kind, default=None) for name, kind in names.items()]
        return SimpleNamespace(kernel=SimpleNamespace(name="attention_decode", parameters=listed))

    def decode(q, k, lengths, partial, scale):
        assert lengths.tolist() == [600, 600]
        partial[0] = scale

    kernels.attention_decode = decode
    kernels.attention_combine = lambda partial, out: out.copy_(partial.sum(0))
    pointer = dict.fromkeys(("q", "k", "lengths", "partial"), "pointer")
    specs = {DECODE: parameters(**pointer, scale="scalar", heads="shape")}
    specs["attention_combine"] = parameters(partial="pointer", out="pointer")
    monkeypatch.setattr(attention_sides, "load_specs", lambda: specs)
    written = attention_sides.our_decode(problem, arrays)()
    assert {name: array.unique().tolist() for name, array in written.items()} == {"out": [0.125]}
    specs[DECODE] = parameters(workspace="pointer")
    with pytest.raises(LookupError, match="attention_decode takes workspace, which"):
        attention_sides.our_decode(problem, arrays)


def test_scalars_with_a_default_may_be_left_out():
    kernel = load_specs()[FORWARD].kernel
    values = dict.fromkeys(("q", "k", "v", "out", "lse", "scale", "other"), 1)
    assert list(attention_sides.by_name(kernel, values)) == ["q", "k", "v", "out", "lse", "scale"]


# ---- clocks --------------------------------------------------------------------------------------------------------


def test_a_device_is_busy_before_it_is_timed_and_idle_before_a_burst(monkeypatch):
    events: list[str] = []

    class Event:
        def __init__(self, **_):
            pass

        def record(self):
            events.append("event")

        def synchronize(self):
            pass

        def elapsed_time(self, _):
            return 6.0

    cuda = SimpleNamespace(Event=Event, synchronize=lambda: events.append("wait"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: events.append(f"idle {seconds}"))
    assert timing.sustained_batch([lambda: events.append("call")], 3) == 2000
    assert events == ["call"] * 6 + ["event"] + ["call"] * 3 + ["event"]
    events.clear()
    assert timing.burst_batch([lambda: events.append("call")], 2) == 3000
    assert events == ["wait", "idle 0.15", "call", "event", "call", "call", "event"]


def test_short_work_goes_in_graphs_for_everyone(cpu, monkeypatch):
    monkeypatch.setattr(timing, "cuda_batch", lambda calls, count: calls[0]())
    for name in ("sustained_batch", "burst_batch"):
        monkeypatch.setattr(timing, name, lambda calls, count: 10 * calls[0]())
    monkeypatch.setattr(timing, "in_graph", lambda calls, launches: lambda: launches * calls[0]())
    failures: dict[str, str] = {}
    calls = {"short": lambda: 399.0, "long": lambda: 500.0}
    assert attention.time_all(calls, ONCE, failures) == {"short": ([3990], [3990]), "long": ([5000], [5000])}

    def refuse(call, launches):
        raise RuntimeError("operation not permitted\nwhen capturing")

    monkeypatch.setattr(timing, "in_graph", refuse)
    assert attention.time_all(calls, ONCE, failures) == {}
    assert failures["long"] == "in a graph, RuntimeError: operation not permitted"
    assert attention.time_all({"long": lambda: 500.0}, ONCE, failures) == {"long": ([5000], [5000])}


# ---- reports -------------------------------------------------------------------------------------------------------


def result(contestant, tflop_s, problem=None, note="", **extra):
    problem = problem or small(length=4096, batch=4, heads=32, head=128)
    row = attention._without_time(problem, contestant, note)
    if tflop_s:
        row.median_us = (problem.flops / 1e6 or problem.bytes / 1e3) / tflop_s
        row.p10_us = row.p90_us = row.median_us
        row.extra |= {"burst_us": row.median_us / 1.25} | extra
    return row


ERRORS = {"error": 3e-4, "times_cudnn": 1.02, "error_wide": 4e-4, "times_cudnn_wide": 1.1, "lse": 1e-6}
RESULTS = [
    result("gristmill", 600, **ERRORS),
    result("cuDNN", 500, **ERRORS | {"times_cudnn": 1.0}),
    result("triton", None, note="OutOfResources: no"),
]


def test_a_row_says_speed_ratio_and_error():
    text = attention_report.lines(small(), RESULTS).splitlines()
    assert "600.0 (750.0) TFLOP/s  1.200 (1.200) of cuDNN  error 3.0e-04 x1.02, large scores 4.0e-04 x1.10" in text[1]
    assert text[3].split() == ["triton", "OutOfResources:", "no"]


def test_the_page_has_a_table_for_each_kernel():
    decode = small(DECODE, groups=1)
    names = [("gristmill", 4000), ("cuDNN", None), (attention_sides.READ, 4400)]
    page = attention_report.as_markdown(
        {"date": "today", "card": "H200", "python": "3", "versions": {}, "command": "tools/bench attention"},
        RESULTS + [result(name, speed, decode) for name, speed in names],
        "plots/a.svg",
    )
    assert page.startswith("# Attention on H200\n")
    assert "![TFLOP/s over the length](a.svg)" in page
    assert "| f16 | 4 x 32 x 4096 x 128 full | 600 (750) | 500 (625) | fails | 1.20 (1.20) | 1.02 | 1.10 |" in page
    assert "| 4000 (5000) | fails | 4400 (5500) | 0.91 (0.91) | nan | nan |" in page
    assert "- attention_forward: 1.200 of cuDNN (1.200 in bursts)" in page
    assert "`tools/bench attention`" in page


def test_wrong_results_are_in_the_summary():
    wrong = [result("gristmill", 600, note="WRONG: lse"), result("cuDNN", 500)]
    assert (
        attention_report.summary(wrong)[-1] == "attention_forward f16 4 x 32 x 4096 x 128 full: gristmill: WRONG: lse"
    )


def test_json_has_no_nan():
    rows = [result("gristmill", 600, times_cudnn=math.nan)]
    loaded = json.loads(report.as_json({}, rows), parse_constant=pytest.fail)
    assert loaded["results"][0]["extra"]["times_cudnn"] is None


def test_speed_is_drawn_over_the_length():
    rows = [result("gristmill", 600, small(length=length)) for length in (4096, 512)]
    rows += [result("gristmill", 600, small(is_causal=True))]
    panels = plot.panels_of(rows)
    assert [panel.title for panel in panels] == ["attention_forward f16 d64 full", "attention_forward f16 d64 causal"]
    assert panels[0].size == "length of the sequences"
    assert panels[0].lines[0].regular == [(512, pytest.approx(600)), (4096, pytest.approx(600))]


def test_the_whole_command(kernels, cpu, tmp_path, monkeypatch, capsys):
    measure = attention.measure
    monkeypatch.setattr(attention, "plan", lambda kernel, *others: [small(kernel)])
    monkeypatch.setattr(attention, "measure", lambda problem, effort: measure(problem, ONCE, "cpu"))
    monkeypatch.setattr(
        attention.machine, "describe", lambda device, describe=attention.machine.describe: describe("cpu")
    )
    monkeypatch.setattr(cli, "default_device", lambda: "cuda")
    files = ["--json", str(tmp_path / "a.json"), "--markdown", str(tmp_path / "a.md")]
    assert cli.main(["attention", "--quick", "--dtypes", "f16", *files]) == 0
    assert "attention_decode: skipped, the installed wheel has no attention_decode" in capsys.readouterr().out
    rows = [Result(**row) for row in json.loads((tmp_path / "a.json").read_text())["results"]]
    assert {row.kernel for row in rows} == {FORWARD, BACKWARD}
    assert "## attention_backward" in (tmp_path / "a.md").read_text()
    kernels.factors[FORWARD] = 1.1
    assert cli.main([FORWARD, "--dtypes", "f16"]) == 1
    with pytest.raises(SystemExit, match="not f32"):
        cli.main([FORWARD, "--dtypes", "f32"])
