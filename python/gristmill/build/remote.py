"""Compilation on other machines: any `concurrent.futures` executor, found by import path.

What is sent is bytes and names, and what runs there needs only `gristmill[build]`: the project's sources travel with
each job, and a worker unpacks them once.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gristmill import __version__
from gristmill.build.ptxas import Assembled, AssemblyError, Ptxas, assemble, find_ptxas
from gristmill.build.sources import compiler_digest, fingerprint, llvmlite_version
from gristmill.build.worker import Answer, Problem, Request, Setup, WorkerPool
from gristmill.errors import BuildError

if TYPE_CHECKING:
    from gristmill.build.enumerate import Job

IN_FLIGHT = 256  # jobs that an executor is given at a time
R = TypeVar("R")


class Executor(Protocol):
    """What is needed of an executor: the two methods of `concurrent.futures.Executor`."""

    def submit(self, fn: Callable[..., Any], /, *arguments: Any) -> Future[Any]: ...
    def shutdown(self, wait: bool = True) -> None: ...


def load_executor(path: str, project_dir: Path) -> Executor:
    """Return what the factory `module:function` makes; a module of the project's folder is found, too.

    Raises BuildError if there is none, or if what it makes takes no jobs.
    """
    module, _, name = path.partition(":")
    fix = "name a function without parameters that returns one, as in GRISTMILL_EXECUTOR=my_farm:executor"
    if not module or not name:
        raise BuildError(f"an executor is `module:factory`, found `{path}`", fix=fix)
    if str(project_dir) not in sys.path:
        sys.path.append(str(project_dir))
    try:
        executor = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise BuildError(f"there is no executor `{path}`: {error}", fix=fix) from error
    if not callable(getattr(executor, "submit", None)):
        raise BuildError(f"`{path}` returns {type(executor).__name__}, which has no `submit`", fix=fix)
    found: Executor = executor
    return found


class RemotePool:
    """A WorkerPool whose workers are an executor's."""

    def __init__(self, setup: Setup, executor: Executor):
        self._executor = executor
        self._setup = setup.packed()
        self._fingerprint = fingerprint(setup.sources, setup.project_dir)
        self._waiting: set[Future[Any]] = set()
        self._is_stopped = False
        self._lock = threading.Lock()

    def run(self, job: Job) -> Answer:
        """Return the code of `job`. Raises BuildError naming the job."""
        try:
            answer = self._submit(compile_there, self._setup, Request.of(job), self._fingerprint)
        except Problem as problem:
            raise problem.about(job) from None
        if isinstance(answer, str):
            raise BuildError(
                f"a worker has {answer}, this machine {versions()}", fix="install the same versions on the workers"
            )
        return answer

    def assemble(self, ptxas: Ptxas, ptx: bytes, arch: str) -> Assembled:
        """Return the cubin of `ptx` for `arch`. Raises AssemblyError, and BuildError if workers have another ptxas."""
        made = self._submit(assemble_there, ptxas.version, ptx, arch)
        if isinstance(made, str):
            fix = 'install "gristmill[build]" in the same versions on the workers'
            raise BuildError(f"a worker has {made}, this machine ptxas {ptxas.version}", fix=fix)
        return made

    def stop(self) -> None:
        """Take back the jobs that have not begun."""
        with self._lock:
            self._is_stopped, waiting = True, list(self._waiting)
        for future in waiting:
            future.cancel()

    def close(self) -> None:
        """Shut the executor down."""
        self._executor.shutdown(wait=True)

    def _submit(self, function: Callable[..., R], *arguments: object) -> R:
        with self._lock:
            if self._is_stopped:
                raise CancelledError
            future = self._executor.submit(function, *arguments)
            self._waiting.add(future)
        try:
            result: R = future.result()
            return result
        except (Problem, AssemblyError):
            raise
        except Exception as error:  # of what was taken back, each library says so in its own way
            raise (CancelledError() if self._is_stopped else _failure(error)) from error
        finally:
            with self._lock:
                self._waiting.discard(future)


def _failure(error: Exception) -> BuildError:
    what = f"the executor failed: {type(error).__name__}: {error}"
    return BuildError(what, fix="see the workers' logs; without GRISTMILL_EXECUTOR, this machine compiles")


def versions() -> str:
    """Return what decides which code comes out, beside the sources."""
    python = ".".join(map(str, sys.version_info[:2]))
    digest = compiler_digest()[:8]
    return f"Gristmill {__version__} (compiler {digest}), llvmlite {llvmlite_version()} and Python {python}"


# What follows runs on the workers.

_pools: dict[str, WorkerPool] = {}
_pools_lock = threading.Lock()


def compile_there(setup: Setup, request: Request, fingerprint: str) -> Answer | str:
    """Return the code, or what this worker has if it would not be the same. Raises Problem."""
    answer = _pool_of(setup).answer(request)
    return answer if answer.fingerprint == fingerprint else versions()


def assemble_there(version: str, ptx: bytes, arch: str) -> Assembled | str:
    """Return the cubin, or what this worker has if not that version of ptxas. Raises AssemblyError."""
    ptxas = find_ptxas()
    if ptxas and ptxas.version == version:
        return assemble(ptxas, ptx, arch)
    return f"ptxas {ptxas.version}" if ptxas else "no ptxas"


def _pool_of(setup: Setup) -> WorkerPool:
    """The processes that have loaded these sources; those of earlier ones end. All end with this process."""
    digest = hashlib.sha256(repr(setup).encode()).hexdigest()
    with _pools_lock:
        if digest not in _pools:
            for pool in _pools.values():
                pool.close()
            _pools.clear()
            _pools[digest] = WorkerPool(setup)
        return _pools[digest]
