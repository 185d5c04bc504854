"""Tuned tables at a call: which row is for it, that the formula serves the others, and tables that are loaded."""

import ctypes
import warnings

import pytest
from fakes import Exchange, array

SLOW, FAST, WRONG = "twice__f32__1__false", "twice__f32__2__false", "twice__f32__4__false"
FLIPPED = "twice__f32__2__true"


def chosen(native, n, offset=0, **named):
    told = native.twice.info(array(n, offset=offset), array(n, offset=2**30), **named)
    return told["specialisation"], told["chosen_by"]


def table(*rows, device="Stub GPU", key=("n", "n % 2"), kernel="twice", units=132):
    head = {"kernel": kernel, "device": device, "architecture": "sm_90", "units": units, "key": list(key)}
    return {"table": [{**head, "rows": list(rows)}]}


def row(n, take, variant="a32", **more):
    return {"dtypes": ["f32"], "key": [n, n % 2], "variant": variant, "take": take, **more}


def text(content):
    """The file of a table."""
    (head,) = content["table"]
    rows = ",\n".join(
        f'{{ dtypes = ["f32"], key = {r["key"]}, variant = "{r["variant"]}", take = "{r["take"]}" }}'
        for r in head["rows"]
    )
    return f"""[[table]]
kernel = "{head["kernel"]}"
device = "{head["device"]}"
architecture = "sm_90"
units = {head["units"]}
key = ["n", "n % 2"]
rows = [
{rows}
]
"""


# ---- which row is for a call ---------------------------------------------------------------------------------------


def test_a_row_of_the_table_comes_before_the_formula(native, stub):
    assert chosen(native, 4096) == (FAST, "tuned table")
    native.twice(array(4096), array(4096, offset=2**30))
    assert [launch.entry for launch in stub.launches] == ["twice_fast_a32"]


def test_a_kernel_tells_its_key_and_how_many_rows_are_built_in(native):
    told = native.twice.info()
    assert (told["key"], told["tuned_rows"]) == (["n", "n % 2"], 4)
    told = native.scale.info()
    assert (told["key"], told["tuned_rows"]) == ([], 0)


@pytest.mark.parametrize("n", [4094, 4095, 4098, 2048, 8192])
def test_calls_with_another_key_take_the_formula(native, stub, n):
    assert chosen(native, n) == (SLOW, "formula")


def test_the_key_is_of_all_its_expressions(native, stub):
    native.load_tuning(table({**row(6000, FAST), "key": [6000, 1]}))
    assert chosen(native, 6000) == (SLOW, "formula")
    native.load_tuning(table({**row(6000, FAST), "key": [6000, 0]}))
    assert chosen(native, 6000) == (FAST, "tuned table")


def test_a_row_is_for_calls_that_take_the_same_variant(native, stub):
    assert chosen(native, 4096, offset=4) == (SLOW, "formula")  # the row is for aligned calls
    assert chosen(native, 4097, offset=4) == (FAST, "tuned table")
    assert chosen(native, 4097) == (SLOW, "formula")


def test_a_row_is_for_calls_that_name_the_same_constants(native, stub):
    assert chosen(native, 4096, FLIP=True) == (FLIPPED, "tuned table")
    assert chosen(native, 4096, FLIP=False) == (SLOW, "formula")
    assert chosen(native, 4096, TILE=1) == (SLOW, "formula")
    assert chosen(native, 4096, TILE=2) == (FAST, "formula")


def test_a_row_is_for_its_device(native, stub, run_python):
    script = "print(native.twice.info(array(4096), array(4096, offset=2**30))['specialisation'])"
    assert run_python(script).strip() == FAST
    other = "import ctypes, os; ctypes.CDLL(os.environ['GRISTMILL_LIBCUDA']).stub_set_device(1, 8, 0)\n"
    assert run_python(other + script).strip() == SLOW


def test_what_pick_forbids_no_row_allows(native, stub):
    native.load_tuning(table({**row(2, WRONG), "key": [2, 0]}))  # its tile of 4 is for n >= 4
    assert chosen(native, 2)[1] == "formula"


def test_preferred_specialisations_come_first_and_the_others_serve_too(native, stub):
    native.load_tuning(table(row(3, FAST)))
    assert chosen(native, 3) == (FAST, "tuned table")
    instance = next(i for i in native.twice.instances if i.id == FAST)  # not preferred, but it can serve the call
    instance.launch(array(5), array(5, offset=2**30))
    assert [launch.entry for launch in stub.launches] == ["twice_fast_a32"]


def test_the_most_preferred_one_with_code_for_the_call_is_taken_the_first_of_equals(native):
    assert chosen(native, 500_000) == (SLOW, "formula")
    assert chosen(native, 500_001) == (WRONG, "formula")
    assert chosen(native, 500_001, FLIP=True) == ("twice__f32__1__true", "formula")
    # The longest has no code for this call, and the others are preferred alike.
    assert chosen(native, 500_001, offset=4) == (SLOW, "formula")


# ---- tables that are loaded ----------------------------------------------------------------------------------------


def test_the_latest_table_holds(native, stub):
    assert native.load_tuning(table(row(5000, FAST), row(5002, FAST))) == 2
    assert chosen(native, 5000) == (FAST, "tuned table")
    assert native.twice.load_tuning(table(row(5000, WRONG))) == 1
    assert chosen(native, 5000) == (WRONG, "tuned table")
    assert chosen(native, 5002) == (FAST, "tuned table")


def test_rows_for_other_kernels_and_devices_do_not_count(native, stub):
    assert native.load_tuning(table(row(5100, FAST), kernel="of another package")) == 0
    assert native.scale.load_tuning(table(row(5100, FAST))) == 0
    native.load_tuning(table(row(5100, FAST), device="A GPU that is not here"))
    native.load_tuning(table(row(5100, FAST), units=108))
    assert chosen(native, 5100) == (SLOW, "formula")


def test_calls_that_are_remembered_are_chosen_again(native, native_folder, stub):
    exchange = Exchange(ctypes.CDLL(str(next(native_folder.glob("libfixture_exchange*")))))
    x, y = exchange.array((5200,), strides=(1,)), exchange.array((5200,), pointer=2**40, strides=(1,))
    for _ in range(30):
        native.twice(x, y)
    native.load_tuning(table(row(5200, FAST)))
    native.twice(x, y)
    assert [launch.entry for launch in stub.launches] == ["twice_slow_a32"] * 30 + ["twice_fast_a32"]


def test_a_table_is_read_from_a_file(native, stub, tmp_path):
    (tmp_path / "t.toml").write_text(text(table(row(5300, FAST), row(5301, FAST, "g32"))))
    assert native.load_tuning(tmp_path / "t.toml") == 2
    assert native.load_tuning(str(tmp_path / "t.toml")) == 2
    assert chosen(native, 5300) == (FAST, "tuned table")
    assert chosen(native, 5301, offset=4) == (FAST, "tuned table")


def test_a_row_that_is_not_built_is_warned_of_and_passed_over(native, stub):
    with pytest.warns(RuntimeWarning, match=r"(?s)twice: a tuned row takes `twice__f32__9`.*fix: measure again"):
        assert native.load_tuning(table(row(5400, "twice__f32__9"), row(5402, FAST))) == 1
    assert chosen(native, 5402) == (FAST, "tuned table")
    with pytest.warns(RuntimeWarning, match=r'(?s)another key.*found: \["m"\].*built: \["n", "n % 2"\]'):
        assert native.load_tuning(table(row(5404, FAST), key=["m"])) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "there is no `table`"),
        ({"table": 3}, "`table` is something else"),
        ({"table": [3]}, "something else than tables and rows"),
        ({"table": [{"kernel": "twice"}]}, "there is no `key`"),
        (table({**row(6, FAST), "variant": "b32"}), r"`b32` is no variant.*supported: a32, g32, g64"),
        (table({**row(6, FAST), "key": [6]}), "has 1 numbers in its key, and not 2"),
        (table({**row(6, FAST), "key": ["6", 0]}), "`key` is something else"),
        (table({**row(6, FAST), "constants": {"FLIP": True}}), f"`{FAST}` has no FLIP=True"),
        (table({**row(6, FAST), "constants": {"FLAP": True}}), f"`{FAST}` has no FLAP=True"),
        (table(3), "something else than tables and rows.*found: 3"),
    ],
)
def test_what_is_no_table_is_an_error(native, stub, content, message):
    with pytest.raises(ValueError, match=f"(?s){message}.*fix: pass a file that"):
        native.load_tuning(content)


def test_a_file_that_is_none_is_an_error(native, stub, tmp_path):
    (tmp_path / "t.toml").write_text("rows = [")
    with pytest.raises(ValueError, match=r"(?s)t\.toml` is no tuned table.*found: .*fix: pass a file that"):
        native.load_tuning(tmp_path / "t.toml")
    with pytest.raises(FileNotFoundError):
        native.load_tuning(tmp_path / "none.toml")


def test_the_environment_names_tables(run_python, tmp_path):
    (tmp_path / "a.toml").write_text(text(table(row(5500, FAST))))
    (tmp_path / "b.toml").write_text(text(table(row(5502, WRONG))))
    script = "for n in (5500, 5502, 5504):\n    told = native.twice.info(array(n), array(n, offset=2**30))\n"
    script += "    print(told['specialisation'], told['chosen_by'])"
    told = run_python(script, GRISTMILL_TUNING=f"{tmp_path / 'a.toml'}:{tmp_path / 'b.toml'}")
    assert told.splitlines() == [f"{FAST} tuned table", f"{WRONG} tuned table", f"{SLOW} formula"]


def test_a_missing_table_in_the_environment_is_a_warning(run_python, tmp_path):
    script = "import sys, subprocess\n"
    script += "code = 'import fixture_native; print(len(fixture_native.__all__))'\n"
    script += "done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)\n"
    script += (
        "print(done.returncode, 'GRISTMILL_TUNING: `/nowhere.toml` is not used' in done.stderr, 'fix: ' in done.stderr)"
    )
    assert run_python(script, GRISTMILL_TUNING="/nowhere.toml").strip() == "0 True True"


def test_without_a_table_nothing_is_warned_of(native, stub):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        native.load_tuning({"table": []})
