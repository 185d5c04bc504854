"""Tuning: every configuration is run on copies, checked and timed; the caller's arrays stay as they are."""

from __future__ import annotations

import ctypes
import importlib.util
import sys

import numpy as np
import pytest
from fakes import ADDRESS, CudaArray, array

from gristmill.cli import main
from gristmill.errors import GristmillError
from gristmill.runtime import tuning_run
from gristmill.runtime.calls import call_of_text
from gristmill.runtime.tune import Effort, measure
from gristmill.tuning import content_of, read

SLOW, FAST, WRONG = "twice__f32__1__false", "twice__f32__2__false", "twice__f32__4__false"
ONCE = Effort(rounds=3, first=2, seconds=0.1)


@pytest.fixture
def device(stub):
    """The fake driver, whose launches take the time that is set."""
    stub.library.stub_set_microseconds.argtypes = [ctypes.c_char_p, ctypes.c_double]

    def set_times(**microseconds):
        for name, value in microseconds.items():
            stub.library.stub_set_microseconds(f"twice_{name}_a32".encode(), value)

    stub.set_times = set_times
    yield stub
    set_times(slow=1, fast=1, wrong=1)


def pair(n, dtype=np.float32):
    return np.arange(n, dtype=dtype), np.full(n, 7, dtype)


# ---- on the CPU ----------------------------------------------------------------------------------------------------


def test_the_faster_configuration_is_found_and_taken(native):
    x, y = pair(3000)
    assert native.twice.info(x, y)["chosen_by"] == "formula"
    tuned = native.twice.tune(x, y)
    assert (tuned.row.take, tuned.row.key, tuned.row.variant, tuned.formula.id) == (FAST, (3000, 0), "a32", SLOW)
    assert tuned.row.us < 500 < 1000 <= tuned.row.formula_us  # the slow one sleeps for a millisecond
    told = native.twice.info(x, y)
    assert (told["specialisation"], told["chosen_by"]) == (FAST, "tuned table")


def test_the_callers_arrays_stay_as_they_are(native):
    x, y = pair(3100)
    measure(native.twice.trial(x, y), ONCE)
    assert np.array_equal(x, pair(3100)[0])
    assert (y == 7).all()
    y.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        native.twice.trial(x, y)


def test_what_computes_something_else_is_not_taken(native):
    x, y = pair(3200)
    trial = native.twice.trial(x, y)
    assert [identity for identity, _ in trial.candidates] == [SLOW, FAST, WRONG]
    assert [trial.check(i) for i in (0, 1)] == [0, 0]
    assert trial.check(2) == pytest.approx(0.5 / 2e-4)  # 3 x in place of 2 x
    wrong = next(m for m in measure(trial, ONCE).rows if m.id == WRONG)
    assert wrong.us is None
    assert wrong.note.startswith("computes something else")


def test_outputs_start_without_a_result(native):
    x, y = pair(3300)
    np.multiply(x, 2, out=y)  # what is right already must not hide who writes nothing
    trial = native.twice.trial(x, y)
    trial.check(0)
    assert trial.check(2) > 1


def test_arrays_that_share_memory_share_it_in_the_copy(native):
    x = np.arange(3400, dtype=np.float32)
    tuned = measure(native.twice.trial(x, x), ONCE)  # in place: each run finds the caller's numbers again
    assert {m.id for m in tuned.rows if m.us is not None} == {SLOW, FAST}
    assert np.array_equal(x, np.arange(3400, dtype=np.float32))


def test_copies_are_as_far_off_alignment_as_the_arrays(native):
    x, y = np.zeros(3501, np.float32), np.zeros(3501, np.float32)
    trial = native.twice.trial(x[1:], y[1:])
    assert trial.candidates == [(SLOW, "g32"), (FAST, "g32")]  # the third is for aligned calls only
    assert measure(trial, ONCE).row.variant == "g32"


def test_constants_that_no_configuration_sets_stay(native):
    trial = native.twice.trial(*pair(3600), FLIP=True)
    assert [identity for identity, _ in trial.candidates] == ["twice__f32__1__true", "twice__f32__2__true"]
    assert trial.constants == {"FLIP": True}
    trial = native.twice.trial(*pair(3600), TILE=2)
    assert [identity for identity, _ in trial.candidates] == [FAST]


def test_results_are_compared_as_numbers(native):
    x = np.array([np.nan, np.inf, -np.inf, 0, 1] * 100, np.float32)
    trial = native.twice.trial(x, np.zeros_like(x))
    assert trial.check(0) == 0
    assert trial.check(1) == 0
    assert trial.check(2) > 1


def test_calls_that_cannot_be_tuned_say_why(native):
    x, y = pair(3700)
    with pytest.raises(ValueError, match=r"(?s)scale: cannot be tuned.*fix: write `@gm.kernel\(configs=.*key="):
        native.scale.trial(x, y)
    with pytest.raises(ValueError, match="twice: there is nothing to tune: the arrays are empty"):
        native.twice.trial(x[:0], y[:0])
    with pytest.raises(ValueError, match=r"(?s)twice: cannot be tuned with a given grid.*fix: leave `grid=` out"):
        native.twice.trial(x, y, grid=3)
    with pytest.raises(TypeError, match="twice: needs `y`"):
        native.twice.trial(x)
    with pytest.raises(TypeError, match="wrong dtype"):
        native.twice.tune(x, y.astype(np.float64))


def test_tuning_without_the_package_says_what_to_install(native, monkeypatch):
    monkeypatch.setitem(sys.modules, "gristmill.runtime.tune", None)
    with pytest.raises(RuntimeError, match=r"(?s)needs the package gristmill.*fix: pip install gristmill"):
        native.twice.tune(*pair(3800))


# ---- rounds, whatever is measured ----------------------------------------------------------------------------------


class Trial:
    """Gives times out of a list for each candidate."""

    def __init__(self, times, broken=()):
        self.kernel, self.key_names, self.key, self.constants, self.dtypes = "k", ["n"], [5], {}, ["f32"]
        self.place = {"device": "d", "architecture": "sm_90", "units": 1}
        self.times, self.broken, self.order = times, broken, []
        self.candidates = [(f"c{i}", "a32") for i in range(len(times))]

    def check(self, candidate):
        if candidate in self.broken:
            raise RuntimeError("launching c failed\n  found: the rest")
        return 0.0

    def time(self, candidate, is_warm):
        self.order.append(candidate)
        times = self.times[candidate]
        return times[self.order.count(candidate) % len(times)]


def test_medians_decide_and_not_the_luckiest_sample():
    tuned = measure(Trial([[10, 10, 10, 1], [8]]), Effort(rounds=20))
    assert (tuned.row.take, tuned.row.us, tuned.row.formula_us) == ("c1", 8, 10)


def test_the_formula_keeps_its_choice_unless_another_is_clearly_faster():
    assert measure(Trial([[100.0], [99.5]])).row.take == "c0"
    assert measure(Trial([[100.0], [98.5]])).row.take == "c1"


def test_rounds_are_shuffled_and_the_hopeless_are_left_after_the_first():
    trial = Trial([[10], [11], [50], [60]])
    tuned = measure(trial, Effort(rounds=8, first=4))
    assert [trial.order.count(i) for i in range(4)] == [8, 8, 4, 4]
    rounds = [tuple(trial.order[i : i + 4]) for i in range(0, 16, 4)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in rounds)
    assert len(set(rounds)) > 1
    assert [m.id for m in tuned.rows] == ["c0", "c1", "c2", "c3"]


def test_the_formulas_choice_is_measured_to_the_end():
    trial = Trial([[90], [10]])
    measure(trial, Effort(rounds=8, first=4))
    assert trial.order.count(0) == 8


def test_who_fails_is_noted_but_the_first_must_run():
    tuned = measure(Trial([[10], [9], [8]], broken=[2]))
    assert tuned.row.take == "c1"
    assert tuned.rows[-1].note == "launching c failed"
    with pytest.raises(GristmillError, match=r"(?s)k cannot be tuned: launching c failed.*fix: "):
        measure(Trial([[10], [9]], broken=[0]))


# ---- on a device ---------------------------------------------------------------------------------------------------


def test_devices_are_timed_by_their_own_clock(native, device):
    device.set_times(slow=70, fast=30, wrong=90)
    tuned = measure(native.twice.trial(array(6000), array(6000, offset=2**30)))
    assert (tuned.row.take, tuned.row.us, tuned.row.formula_us) == (FAST, 30, 70)
    assert vars(tuned.row.place) == {"device": "Stub GPU", "architecture": "sm_90", "units": 132}
    device.set_times(slow=30, fast=70, wrong=90)
    assert measure(native.twice.trial(array(6000), array(6000, offset=2**30))).row.take == SLOW


def test_no_launch_sees_the_callers_memory_and_all_copies_are_freed(native, device):
    for name in ("slow", "fast", "wrong"):
        device.set_parameters(f"twice_{name}_a32", [8, 8, 4])
    trial = native.twice.trial(array(6100), array(6100, offset=2**30), stream=0x55)
    assert device.allocations == 3
    measure(trial, ONCE)
    pointers = {int.from_bytes(part, "little") for launch in device.launches for part in launch.parameters[:2]}
    assert len(pointers) == 2
    assert all(pointer % 256 == 0 for pointer in pointers)
    assert not any(ADDRESS <= pointer < ADDRESS + 2**40 for pointer in pointers)
    assert {launch.stream for launch in device.launches} == {0x55}
    del trial
    assert device.allocations == 0


def test_warm_calls_come_after_another_one(native, device):
    trial = native.twice.trial(array(6200), array(6200, offset=2**30))
    trial.time(0, is_warm=False)
    trial.time(0, is_warm=True)
    kinds = [line.split()[0] for line in device.log if line.split()[0] in ("record", "launch")]
    assert kinds == ["record", "launch", "record", "launch", "record", "launch", "record"]


def test_what_is_served_by_padded_copies_is_tuned_on_such(native, device):
    device.set_parameters("matrices_a32", [8, 8, 4, 4, 4, 4, 128])
    a, y = (CudaArray((30, 65), "f16", ADDRESS + i * 2**30) for i in range(2))
    trial = native.matrices.trial(a, y)
    assert trial.candidates == [("matrices__f16", "a32")]
    assert trial.key == [30, 65]
    assert device.allocations == 4  # both with padded rows, a copy of each, and what fills the cache
    measure(trial, ONCE)
    numbers = [int.from_bytes(part, "little") for part in device.launches[0].parameters[:6]]
    assert numbers[2:] == [30, 65, 128, 128]
    assert device.launches[0].maps[0].address == numbers[0] != ADDRESS
    del trial
    assert device.allocations == 0


def test_what_a_device_cannot_do_is_said(native, device):
    x, y = array(6300), array(6300, offset=2**30)
    device.fail("cuMemAlloc", 2)
    with pytest.raises(RuntimeError, match=r"(?s)no memory for 25200 bytes more.*fix: free memory"):
        native.twice.trial(x, y)
    device.fail("cuMemAlloc", 0)
    device.library.stub_set_capturing(1)
    with pytest.raises(RuntimeError, match=r"(?s)twice: cannot be tuned in a capture.*fix: tune before"):
        native.twice.trial(x, y)
    assert device.allocations == 0


def test_a_configuration_that_cannot_be_launched_is_noted(native, device):
    trial = native.twice.trial(array(6400), array(6400, offset=2**30))
    trial.check(0)
    device.fail("cuLaunchKernelEx", 1)
    with pytest.raises(RuntimeError, match=f"launching {FAST} on cuda:0"):
        trial.check(1)


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def module(native, monkeypatch):
    monkeypatch.setitem(sys.modules, "fixture_native", native)
    return native


def tune(*arguments):
    return main(["tune", "fixture_native", "--kernel", "twice", "--device", "cpu", "--quick", *map(str, arguments)])


def test_the_command_writes_a_table_that_can_be_loaded(module, tmp_path, capsys):
    out = tmp_path / "tuning" / "t.toml"
    assert tune("--shape", "x=f32[9000] y=f32[9000]", "--shape", "x=f32[9001] y=f32[9001]", "--out", out) == 0
    assert [(row.key, row.take) for row in read(out)] == [((9000, 0), FAST), ((9001, 1), FAST)]
    told = capsys.readouterr().out
    assert "[2/2] twice x=f32[9001] y=f32[9001]" in told
    assert "2 calls tuned; in 2 another configuration is faster" in told
    assert module.twice.info(*pair(9000))["chosen_by"] == "formula"
    assert module.load_tuning(out) == 2
    assert module.twice.info(*pair(9000))["chosen_by"] == "tuned table"


def test_the_command_keeps_the_other_rows_of_a_table(module, tmp_path):
    out = tmp_path / "t.toml"
    for n in (9002, 9004, 9002):
        tune("--shape", f"x=f32[{n}] y=f32[{n}]", "--out", out)
    assert [row.key for row in read(out)] == [(9002, 0), (9004, 0)]


def test_a_call_that_fails_is_reported_and_the_others_go_on(module, tmp_path, capsys):
    shapes = ["--shape", "x=f32[9006] y=f32[10]", "--shape", "x=f32[9008] y=f32[9008]"]
    assert tune(*shapes, "--out", tmp_path / "t.toml") == 1
    assert "`y` is too small" in capsys.readouterr().out
    assert [row.key for row in read(tmp_path / "t.toml")] == [(9008, 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "nonsense"], "`nonsense` does not describe a call"),
        (["--shape", "x=f31[5] y=f32[5]"], "f31"),
        (["--shape", "x=f32[5] y=five"], "`y=five` is neither an array nor a number"),
        ([], "what is `twice` to be called with?"),
        (["--shape", "x=f32[5] y=f32[5]", "--kernel", "thrice"], "there is no kernel `thrice` in fixture_native"),
    ],
)
def test_wrong_use_says_what_to_write(module, capsys, arguments, message):
    assert tune(*arguments) == 1
    said = capsys.readouterr().err
    assert message in said
    assert "fix: " in said


def test_a_text_describes_arrays_and_numbers():
    made = call_of_text("k", "a=f16[3,5].T b=i32[4] c=bf16[2, 2] alpha=2.5 n=3").make()
    assert [(a.shape, a.dtype.name, a.flags.c_contiguous) for a in (made["a"], made["b"], made["c"])] == [
        ((3, 5), "float16", False),
        ((4,), "int32", True),
        ((2, 2), "bfloat16", True),
    ]
    assert (made["alpha"], made["n"]) == (2.5, 3)
    assert not made["b"].any()  # an index into whatever array


@pytest.mark.skipif(not importlib.util.find_spec("rich"), reason="rich is not installed")
def test_a_bar_shows_progress_on_a_terminal(module, capsys):
    with tuning_run.progress(2, lambda: True) as show:
        tick = show(0, "twice [first]")
        tick(3, 10)
        show.say("what came out")
    assert "what came out" in capsys.readouterr().out


def test_lines_show_progress_elsewhere(capsys):
    with tuning_run.progress(2, lambda: False) as show:
        show(1, "twice")(3, 10)
    assert capsys.readouterr().out == "[2/2] twice\n"


def test_what_was_tuned_is_readable(native):
    tuned = measure(native.twice.trial(*pair(3900)), ONCE)
    lines = str(tuned).splitlines()
    assert lines[0].startswith("twice f32, n=3900, (n % 2)=0 on ")
    assert lines[1].split()[:2] == [FAST, "a32"]
    assert lines[1].endswith("taken")
    assert lines[2].endswith("(the formula's choice)")
    assert content_of([tuned.row])["table"][0]["rows"][0]["take"] == FAST


def test_arrays_that_no_device_holds_are_refused(native):
    class Device:
        name = "cuda"

        def can_hold(self, array):
            return False

    call = call_of_text("twice", "x=f32[5] y=f32[5]")
    with pytest.raises(GristmillError, match="cuda arrays have no float32"):
        tuning_run.tune_call(native.twice, call, Device(), ONCE, lambda done, total: None)


def test_interfaces_without_strides_are_copied_too(native, device):
    arrays = [CudaArray((6500,), "f32", ADDRESS + i * 2**30) for i in range(2)]
    assert measure(native.twice.trial(*arrays), ONCE).row.key == (6500, 0)
