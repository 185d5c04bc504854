"""Compilation by executors: what is sent and comes back, and what is said when workers differ or fail."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from build_fakes import write_project
from gristmill.build import remote
from gristmill.build.cache import Cache
from gristmill.build.ptxas import AssemblyError, find_ptxas
from gristmill.build.run import build_module
from gristmill.build.worker import COMPILER, Problem, Setup
from gristmill.errors import BuildError
from test_build import build, contents, settings_for

KERNEL = """\
import gristmill as gm
import gristmill.language as tl
from helper import SCALE


@gm.kernel(grid=1)
def scaled(x: gm.ptr[gm.f32]):
    offsets = tl.arange(0, 64)
    tl.store(x + offsets, tl.load(x + offsets) * SCALE)
"""
TARGETS = ("sm_80", "x86-64-v3")


class Pickling(Executor):
    """Runs jobs at once, in this process, on what comes out of a pickle."""

    def __init__(self):
        self.sent = 0

    def submit(self, function, /, *arguments, **named):
        future: Future[object] = Future()
        try:
            packed = pickle.dumps((function, arguments, named))
            self.sent = max(self.sent, len(packed))
            function, arguments, named = pickle.loads(packed)
            future.set_result(pickle.loads(pickle.dumps(function(*arguments, **named))))
        except Exception as error:
            future.set_exception(pickle.loads(pickle.dumps(error)))
        return future


def processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


def broken():
    raise ImportError("no farm today")


def nothing():
    return 5


def test_what_executors_compile_is_the_same(tmp_path):
    farmed = build(tmp_path / "a", executor="test_remote:Pickling", ptxas=find_ptxas())
    assert contents(farmed) == contents(build(tmp_path / "b", ptxas=find_ptxas()))


@pytest.mark.parametrize(
    ("module", "factory"),
    [
        ("concurrent.futures", "test_remote:processes"),
        ("loky", "loky:get_reusable_executor"),
        ("distributed", "farm:get"),
    ],
)
def test_workers_need_no_file_of_the_project(tmp_path, monkeypatch, module, factory):
    if not importlib.util.find_spec(module):
        pytest.skip(f"{module} is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    settings = settings_for(tmp_path / "p", targets=TARGETS, executor=factory, ptxas=find_ptxas())
    (settings.project_dir / "farm.py").write_text(FARM)
    settings.sources[0].write_text(KERNEL)
    build_module(settings, cache=Cache(None))
    farmed = contents(settings.out)
    build_module(replace(settings, executor=""), cache=Cache(None))
    assert contents(settings.out) == farmed


FARM = """\
from distributed import Client, LocalCluster

def get():
    return Client(LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=None)).get_executor()
"""


def test_a_setup_travels_with_its_sources_and_their_imports(tmp_path):
    file = write_project(tmp_path)
    packed = Setup.here((file,), tmp_path / "kernels", COMPILER).packed()
    assert str(tmp_path) not in repr(packed)
    there = packed.unpacked(tmp_path / "there")
    assert [Path(source).read_bytes() for source in there.sources] == [file.read_bytes()]
    assert (tmp_path / "there" / "helper.py").read_text() == "SCALE = 2\n"


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("compile_aborting", r"gelu.py:13:5: error: `gelu_backward__f16__256` for sm_90a: .*SIGABRT"),
        ("compile_raising", r"gelu.py:13:5: error: `gelu_backward__f16__256` for sm_90a: a bug.*ZeroDiv"),
        ("compile_refusing", r"gelu.py:13:5: error: no such op[\s\S]*while compiling `gelu_backward__f16__256`"),
        ("compile_bad_ptx", r"gelu.py:13:5: error: `gelu_backward__f16__256` for sm_90a: ptxas: .*bogus"),
    ],
)
def test_failures_of_workers_name_the_job(tmp_path, compiler, said):
    if compiler == "compile_bad_ptx" and not find_ptxas():
        pytest.skip("the package nvidia-cuda-nvcc-cu12 is not installed")
    with pytest.raises(BuildError, match=said):
        build(tmp_path, compiler, executor="test_remote:Pickling", ptxas=find_ptxas())


def test_a_worker_with_other_versions_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "fingerprint", lambda *paths: "of another version")
    with pytest.raises(
        BuildError, match=r"a worker has Gristmill .*, this machine .*\n  fix: install the same versions"
    ):
        build(tmp_path, executor="test_remote:Pickling")


def test_a_worker_with_another_assembler_is_an_error():
    assert remote.assemble_there("0.0", b"", "sm_80") in {"no ptxas", f"ptxas {getattr(find_ptxas(), 'version', '')}"}


def test_errors_survive_the_way_back():
    error = pickle.loads(pickle.dumps(AssemblyError("too many registers", 0, "f")))
    assert (str(error), error.line, error.function, error.is_of_size) == ("too many registers", 0, "f", True)
    problem = pickle.loads(pickle.dumps(Problem("what", "more")))
    assert (problem.problem, problem.details) == ("what", "more")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("farm", "an executor is `module:factory`, found `farm`"),
        ("no_such_farm:get", "there is no executor `no_such_farm:get`: No module"),
        ("test_remote:missing", "there is no executor `test_remote:missing`"),
        ("test_remote:broken", "no farm today"),
        ("test_remote:nothing", "returns int, which has no `submit`"),
    ],
)
def test_what_is_no_executor_says_what_to_name(tmp_path, path, said):
    with pytest.raises(BuildError, match=said) as caught:
        remote.load_executor(path, tmp_path)
    assert "fix: name a function without parameters" in str(caught.value)


def test_the_command_line_takes_an_executor(tmp_path):
    file = write_project(tmp_path)
    file.write_text(KERNEL)
    command = [sys.executable, "-m", "gristmill", "build", str(file), "--module", "p.k", "--out", str(tmp_path / "out")]
    command += ["--targets", "sm_80", "--cubins", "OFF", "--executor", "concurrent.futures:ThreadPoolExecutor"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GRISTMILL_CACHE_BYTES": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[1/1] scaled sm_80" in done.stdout
