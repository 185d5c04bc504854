"""Compilation in worker processes: an LLVM error ends its process, and the parent then says which job it had.

A worker is `python -m gristmill.build.worker`. It reads a line of JSON that says what to load, then one line for each
job, and answers each with a line of JSON and, if that says so, packed code (`gristmill.build.code`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from gristmill.build.code import pack_codes
from gristmill.build.ptxas import Assembled, Ptxas, assemble
from gristmill.build.sources import fingerprint, source_closure
from gristmill.compiler.checks import VARIABLE, asks_for_checks
from gristmill.errors import BuildError, GristmillError, Position
from gristmill.positions import shown_from

if TYPE_CHECKING:
    from gristmill.build.enumerate import Job
    from gristmill.declare import Kernel

COMPILER = "gristmill.build.worker:compile_for"
GARBAGE = 100_000  # objects
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Setup:
    """What a worker loads: kernel files, and `compiler`, "module:function" of (kernel, specialisation, target name).

    With `files`, pairs of a name and its bytes as Latin-1 text, paths are of a folder that the worker writes them to.
    """

    sources: tuple[str, ...]
    project_dir: str
    compiler: str = COMPILER
    is_checked: bool = False
    files: tuple[tuple[str, str], ...] = ()

    @classmethod
    def here(cls, sources: Iterable[Path], project_dir: Path, compiler: str) -> Setup:
        """For workers that see the same files."""
        return cls(tuple(map(str, sources)), str(project_dir), compiler, asks_for_checks())

    def packed(self) -> Setup:
        """Return the same with the sources and the project's files that they import."""
        files = sorted({file for source in self.sources for file in source_closure(Path(source))})
        root = os.path.commonpath([self.project_dir, *(str(file.parent) for file in files)])
        return replace(
            self,
            sources=tuple(os.path.relpath(Path(source).resolve(), root) for source in self.sources),
            project_dir=os.path.relpath(self.project_dir, root),
            files=tuple((os.path.relpath(file, root), file.read_bytes().decode("latin-1")) for file in files),
        )

    def unpacked(self, folder: Path) -> Setup:
        """Write the files below `folder`, and return the same with paths that are there."""
        for name, text in self.files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("latin-1"))
        sources = tuple(str(folder / source) for source in self.sources)
        return replace(self, sources=sources, project_dir=str((folder / self.project_dir).resolve()), files=())


@dataclass(frozen=True)
class Answer:
    """Packed code, the seconds that it took, and the fingerprint of the sources that the worker had loaded."""

    packed: bytes
    seconds: float
    fingerprint: str


@dataclass(frozen=True)
class Request:
    """One compilation by names, as it goes to a worker, near or far."""

    kernel: str
    specialisation: str
    target: str

    @classmethod
    def of(cls, job: Job) -> Request:
        return cls(job.kernel.name, job.specialisation.id, job.target.name)


class Problem(Exception):
    """A compilation failed: `problem` in a line, `details` below it; an error that has its own position has no line."""

    def __init__(self, problem: str, details: str):
        super().__init__(problem, details)
        self.problem = problem
        self.details = details

    def about(self, job: Job) -> BuildError:
        """Return the error that says which job it was."""
        if self.problem:
            return job_error(job, self.problem, self.details)
        return BuildError(f"{self.details}\n  while compiling `{job.specialisation.id}` for {job.target.name}")


class WorkerPool:
    """At most one process for each thread that runs a job; started at need, and again after a crash."""

    def __init__(self, setup: Setup):
        self._setup = setup
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()

    def run(self, job: Job) -> Answer:
        """Return the code of `job`. Raises BuildError naming the job."""
        try:
            return self.answer(Request.of(job))
        except Problem as problem:
            raise problem.about(job) from None

    def answer(self, request: Request) -> Answer:
        """Return the code that is asked for. Raises Problem."""
        worker = self._take()
        answer = worker.ask(request)
        self._idle.put(worker)
        return answer

    def assemble(self, ptxas: Ptxas, ptx: bytes, arch: str) -> Assembled:
        """Return the cubin of `ptx` for `arch`, made here. Raises AssemblyError."""
        return assemble(ptxas, ptx, arch)

    def stop(self) -> None:
        """Begin nothing more: what runs here ends soon."""

    def close(self) -> None:
        """End the processes."""
        while not self._idle.empty():
            self._idle.get().close()

    def _take(self) -> _Process:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return _Process(self._setup)


class _Process:
    def __init__(self, setup: Setup):
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        path = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gristmill.build.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, VARIABLE: "1" if setup.is_checked else "", "PYTHONPATH": path},
        )
        self._send(vars(setup))

    def ask(self, request: Request) -> Answer:
        with contextlib.suppress(BrokenPipeError):
            self._send(vars(request))
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise Problem(*self._cause_of_death())
        answer = json.loads(line)
        if "problem" in answer:
            self.close()
            raise Problem(answer["problem"], answer["text"])
        return Answer(self._process.stdout.read(answer["size"]), answer["seconds"], answer["fingerprint"])

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _cause_of_death(self) -> tuple[str, str]:
        status = self._process.wait()
        self._stderr.seek(0)
        words = self._stderr.read().decode(errors="replace").strip().splitlines()[-20:]
        self.close()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"the compiler's process ended with {how}", "\n".join(words)


def run_all(
    jobs: Sequence[T],
    function: Callable[[T], R],
    *,
    workers: int,
    on_done: Callable[[T, R], None],
    on_failure: Callable[[], None] = lambda: None,
) -> list[R]:
    """Call `function` on each job on `workers` threads; results in the order of `jobs`, `on_done` as they come.

    After a failure `on_failure` is called and no further job begins; of the failures, that of the first job is raised.
    """
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures: dict[Future[R], int] = {pool.submit(function, job): i for i, job in enumerate(jobs)}
        for future in as_completed(futures):
            if future.cancelled():
                continue
            if future.exception():
                on_failure()
                pool.shutdown(wait=True, cancel_futures=True)
                break
            on_done(jobs[futures[future]], future.result())
    failures = [future.exception() for future in futures if not future.cancelled() and future.exception()]
    for failure in sorted(failures, key=lambda failure: isinstance(failure, CancelledError)):
        assert failure
        raise failure
    return [future.result() for future in futures]


def position_of(kernel: Kernel) -> Position:
    """Return where the kernel's name is, in a file named as from the project's folder."""
    return replace(kernel.site.of_name(), file=kernel.file)


def job_error(job: Job, message: str, details: str = "") -> BuildError:
    """Return an error at the kernel's name that says the specialisation and the target; `details` go below."""
    what = f"`{job.specialisation.id}` for {job.target.name}: {message}"
    placed = BuildError(what, position=position_of(job.kernel))
    return BuildError(f"{placed}\n{textwrap.indent(details, '  ')}".rstrip())


def load_project(sources: Sequence[str | Path], project_dir: str | Path) -> list[Kernel]:
    """Return the kernels of these files, in order. Raises DeclarationError."""
    from gristmill.load import check_pairs, load_kernels

    kernels = [kernel for source in sources for kernel in load_kernels(source, project_dir)]
    check_pairs(kernels)
    return kernels


def compile_for(kernel: Any, specialisation: Any, target: str) -> Sequence[Any]:
    """Compile with the real compiler, for the target of this name."""
    from gristmill.compiler.compile import compile_variants
    from gristmill.compiler.targets import find_target

    return compile_variants(kernel, specialisation, find_target(target))


def main() -> None:
    """Answer jobs until standard input ends."""
    requests, answers = sys.stdin.buffer, _claim_stdout()
    setup = Setup(**json.loads(requests.readline()))
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        setup = setup.unpacked(Path(folder)) if setup.files else setup
        answer_one = _prepare(setup)
        gc.freeze()  # what a job leaves is little beside what is loaded: it is looked for more seldom
        gc.set_threshold(GARBAGE)
        with shown_from(Path(setup.project_dir)):
            for line in requests:
                answers.write(answer_one(Request(**json.loads(line))))
                answers.flush()


def _claim_stdout() -> IO[bytes]:
    """Keep standard output for answers; what anything else prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _prepare(setup: Setup) -> Callable[[Request], bytes]:
    kernels = {k.name: k for k in load_project(setup.sources, setup.project_dir)}
    read = fingerprint(setup.sources, setup.project_dir)
    specialisations = {s.id: s for kernel in kernels.values() for s in kernel.specialisations()}
    module, _, name = setup.compiler.partition(":")
    function = getattr(importlib.import_module(module), name)

    def answer_one(job: Request) -> bytes:
        begun = time.perf_counter()
        try:
            packed = pack_codes(function(kernels[job.kernel], specialisations[job.specialisation], job.target))
        except GristmillError as error:
            problem, _, rest = str(error).partition("\n")
            return _line({"problem": "", "text": str(error)} if error.position else {"problem": problem, "text": rest})
        except Exception as error:
            problem = f"a bug in the compiler: {type(error).__name__}: {error}"
            return _line({"problem": problem, "text": traceback.format_exc().rstrip()})
        seconds = time.perf_counter() - begun
        return _line({"size": len(packed), "seconds": seconds, "fingerprint": read}) + packed

    return answer_one


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


if __name__ == "__main__":
    main()
