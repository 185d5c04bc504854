"""What a build says at its end: the tables of sizes, the limit, and the bar on a terminal."""

from __future__ import annotations

import io
import random
import re
from dataclasses import replace

import pytest

from gristmill.build.embed import Embedded, Outputs
from gristmill.build.plain import PlainImages
from gristmill.build.progress import Progress
from gristmill.build.settings import read_limit
from gristmill.build.summary import check_limit, plain_lines, summarise
from gristmill.errors import BuildError
from test_build import build

IMAGES = tuple(Embedded(f"small cubin sm_{i}", "small", 100 + i) for i in range(12))
OUTPUTS = Outputs("", bytes(2_000_000), bytes(100), (*IMAGES, Embedded("large ptx", "large", 5000)), {"small": 70})


def test_kernels_of_most_bytes_come_first_and_the_last_row_is_their_sum():
    lines = plain_lines(summarise(OUTPUTS, {"small": 1.25, "unseen": 2.0}))
    assert [line.split() for line in lines[:5]] == [
        ["kernel", "images", "bytes", "bytes", "for", "CPUs", "seconds"],
        ["large", "1", "5,000", "0", "0.0"],
        ["small", "12", "1,266", "70", "1.2"],
        ["unseen", "0", "0", "0", "2.0"],
        ["in", "all", "13", "6,266", "70", "3.2"],
    ]
    assert lines[5] == "largest images:"
    assert [line.split()[-2] for line in lines[6:]] == ["5,000", *(str(111 - i) for i in range(9))]


def test_a_module_over_the_limit_says_what_to_type():
    summary = summarise(OUTPUTS, {})
    check_limit(summary, 2.5)
    check_limit(summary, None)
    with pytest.raises(BuildError) as caught:
        check_limit(summary, 2.2)
    assert "takes about 2.3 MB of a wheel, and 2.2 MB are allowed" in str(caught.value)
    assert "configurations of `large`" in str(caught.value)
    assert str(caught.value).endswith("GRISTMILL_MAX_WHEEL_MB=3")


def test_a_library_for_c_counts_for_the_limit():
    images = random.Random(0).randbytes(1_000_000)
    with_library = replace(OUTPUTS, plain=PlainImages(images, ""))
    added = summarise(with_library, {}).wheel_bytes - summarise(OUTPUTS, {}).wheel_bytes
    assert 1_200_000 < added < 1_300_000  # those images, which do not compress, and another launcher


def test_a_build_over_the_limit_shows_the_table_and_writes_nothing(tmp_path, capsys):
    with pytest.raises(BuildError, match="GRISTMILL_MAX_WHEEL_MB"):
        build(tmp_path, max_wheel_mb=0.1)
    assert re.search(r"^  gelu_backward +24 ", capsys.readouterr().out, re.MULTILINE)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["build.log"]


@pytest.mark.parametrize("text", ["many", "0", "-1", "inf", "nan"])
def test_a_limit_that_is_no_size_says_what_to_write(text):
    with pytest.raises(BuildError, match=f"found `{text}`\n  fix: write"):
        read_limit(text)


def test_the_limit_is_in_megabytes_and_may_be_left_out():
    assert (read_limit(""), read_limit("2.5")) == (None, 2.5)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_and_tables_and_the_log_has_lines(tmp_path, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    progress = Progress(2, tmp_path / "log", terminal)
    progress.say("a [line]")
    progress.finish("large ptx", "large", seconds=1)
    progress.finish("small cubin", "small", seconds=2, is_cached=True)
    progress.finish_all(summarise(OUTPUTS, progress.seconds))
    progress.close()
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "a [line]" in said
    assert "━" in said
    assert re.search(r"│ small +│ +12 │ +1,266 │", said)
    log = (tmp_path / "log").read_text().splitlines()
    assert log[:3] == ["a [line]", "[1/2] large ptx", "[2/2] small cubin"]
    assert log[-1].startswith("13 images, 6,266 bytes compressed; code for CPUs 70 bytes; 2 jobs (1 cached)")


def test_what_is_no_terminal_has_lines_only():
    stream = io.StringIO()
    progress = Progress(1, None, stream)
    progress.finish("k", "k", seconds=1)
    assert stream.getvalue() == "[1/1] k\n"
