"""The build as one straight line: load kernels, compile, assemble, make the tables, write them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gristmill import __version__
from gristmill.build.assembly import (
    Slow,
    Spill,
    assemble_kernel,
    check_entries,
    find_slow,
    find_spills,
    slow_lines,
    spill_lines,
)
from gristmill.build.cache import Cache, delete_temporaries, make_key, write_if_changed
from gristmill.build.code import Code, pack_codes, unpack_codes
from gristmill.build.embed import Outputs, Stream, make_outputs, write_outputs
from gristmill.build.enumerate import Job, enumerate_jobs
from gristmill.build.manifest import Manifest, ManifestBuilder, check_parameters
from gristmill.build.progress import Progress
from gristmill.build.ptxas import Assembled, strip_comments
from gristmill.build.remote import IN_FLIGHT, RemotePool, load_executor
from gristmill.build.sbom import write_sbom
from gristmill.build.settings import Cubin, Settings
from gristmill.build.sources import (
    compiler_digest,
    fingerprint,
    generator_files,
    kernel_digests,
    source_closure,
    tool_files,
)
from gristmill.build.summary import check_limit, summarise
from gristmill.build.tuned import read_tables
from gristmill.build.worker import COMPILER, Setup, WorkerPool, load_project, run_all
from gristmill.compiler.checks import asks_for_checks
from gristmill.compiler.targets import find_target
from gristmill.errors import BuildError

if TYPE_CHECKING:
    from gristmill.declare import Kernel

T = TypeVar("T")
R = TypeVar("R")
Result = tuple[list[Code], float, bool]
LEAST_CACHED = 4096  # bytes of images: fewer are compressed sooner than they are found


def build_module(settings: Settings, *, compiler: str = COMPILER, cache: Cache | None = None) -> None:
    """Compile every specialisation of the settings' sources for every target, and write the module's generated sources.

    Raises BuildError naming kernel, specialisation and target; no output is written then.
    """
    settings.out.mkdir(parents=True, exist_ok=True)
    delete_temporaries(settings.out)
    kernels = load_project(settings.sources, settings.project_dir)
    if not kernels:
        files = ", ".join(path.name for path in settings.sources)
        raise BuildError(
            f"no kernels in {files}", fix="declare one with `@gm.kernel(...)`, or name other files in SOURCES"
        )
    check_parameters(kernels)
    tuned = read_tables(settings.tuning, kernels)
    build = Build(settings, kernels, compiler, cache or Cache.from_environment())
    try:
        for line in tuned.warnings:
            build.progress.say(f"warning: {line}")
        tables = ManifestBuilder(settings, kernels, build.compile_all(), tuned)
        manifest = tables.build(build.assemble_all(tables))
        outputs = make_outputs(
            manifest,
            gristmill_version=__version__,
            ar=settings.ar,
            has_library=settings.has_library,
            compress=build.pack_all,
        )
        build.report(outputs)
        write_outputs(outputs, settings.out)
        write_type_stub(settings, kernels)
        write_materials(settings, manifest, outputs)
    finally:
        build.close()
    if settings.depfile:
        write_depfile(settings, settings.depfile)


class Build:
    """One run: its jobs, its cache and its progress."""

    def __init__(self, settings: Settings, kernels: Sequence[Kernel], compiler: str, cache: Cache):
        self._settings = settings
        self._kernels = kernels
        self._cache = cache
        self._compiler = compiler
        setup = Setup.here(settings.sources, settings.project_dir, compiler)
        executor = load_executor(settings.executor, settings.project_dir) if settings.executor else None
        self._pool = RemotePool(setup, executor) if executor else WorkerPool(setup)
        self._in_flight = IN_FLIGHT if executor else settings.workers
        self._fingerprint = fingerprint(settings.sources, settings.project_dir)
        self._jobs = enumerate_jobs(kernels, [find_target(name) for name in settings.targets])
        self._digests = kernel_digests(kernels, settings.project_dir)
        total = len(self._jobs) + len(kernels) * len(settings.cubins)
        self.progress = Progress(total, settings.out / "build.log")
        self.progress.say(describe(settings, len(kernels)))

    def compile_all(self) -> dict[tuple[str, str], list[Code]]:
        """Return the code of every specialisation and target that it is for, out of the cache or from the workers."""
        results = self._run_all(self._jobs, self._compile, self._on_compiled)
        pairs = zip(self._jobs, results, strict=True)
        return {(served.id, job.target.name): result[0] for job, result in pairs for served in job.serves}

    def assemble_all(self, tables: ManifestBuilder) -> dict[tuple[str, Cubin], Assembled]:
        """Return a cubin for each kernel and planned architecture; entries that spill are warned of, or an error."""
        tasks = [(kernel, plan) for kernel in self._kernels for plan in self._settings.cubins]
        results = self._run_all(tasks, partial(self._assemble, tables), self._on_assembled)
        assembled = {(kernel.name, plan): data for (kernel, plan), (data, _, _) in zip(tasks, results, strict=True)}
        self._report_entries(tables, tasks, assembled)
        return assembled

    def pack_all(self, function: Callable[[Stream], bytes], streams: Iterable[Stream]) -> list[bytes]:
        """Compress the images, out of the cache or here."""

        def pack(stream: Stream) -> bytes:
            if len(stream.content) < LEAST_CACHED:
                return function(stream)
            key = make_key("stream", stream.packing, sys.version, stream.content)
            if packed := self._cache.get(key):
                return packed
            packed = function(stream)
            self._cache.put(key, packed)
            return packed

        return run_all(list(streams), pack, workers=self._settings.workers, on_done=lambda *_: None)

    def report(self, outputs: Outputs) -> None:
        """Say what was built. Raises BuildError if it is more than was allowed."""
        summary = summarise(outputs, self.progress.seconds)
        self.progress.finish_all(summary)
        check_limit(summary, self._settings.max_wheel_mb)

    def close(self) -> None:
        """End the workers and keep the cache within its limit."""
        self._pool.close()
        self._cache.trim()
        self.progress.close()

    def _run_all(self, jobs: Sequence[T], function: Callable[[T], R], on_done: Callable[[T, R], None]) -> list[R]:
        return run_all(jobs, function, workers=self._in_flight, on_done=on_done, on_failure=self._pool.stop)

    def _compile(self, job: Job) -> Result:
        compiler = (self._compiler, compiler_digest(), "checked" if asks_for_checks() else "")
        digest = self._digests[job.kernel.name]
        key = make_key("code", *compiler, digest, job.specialisation.id, job.target.name)
        if stored := self._cache.get(key):
            return unpack_codes(stored), 0.0, True
        answer = self._pool.run(job)
        packed = answer.packed
        if job.target.name in self._settings.cuda_targets:
            packed = pack_codes([replace(code, code=strip_comments(code.code)) for code in unpack_codes(packed)])
        if answer.fingerprint == self._fingerprint:
            self._cache.put(key, packed)
        return unpack_codes(packed), answer.seconds, False

    def _on_compiled(self, job: Job, result: Result) -> None:
        self.progress.finish(label_of(job), job.kernel.name, seconds=result[1], is_cached=result[2])

    def _assemble(self, tables: ManifestBuilder, task: tuple[Kernel, Cubin]) -> tuple[Assembled, float, bool]:
        kernel, plan = task
        ptxas, entries = self._settings.ptxas, tables.ptx_of(kernel, plan.source)
        assert ptxas
        return assemble_kernel(ptxas, self._cache, kernel, plan, entries, self._pool.assemble)

    def _report_entries(
        self,
        tables: ManifestBuilder,
        tasks: Sequence[tuple[Kernel, Cubin]],
        assembled: Mapping[tuple[str, Cubin], Assembled],
    ) -> None:
        limit, slow, spills = self._settings.spill_limit, list[Slow](), list[Spill]()
        for kernel, plan in tasks:
            entries, made = tables.ptx_of(kernel, plan.source), assembled[kernel.name, plan]
            slow += find_slow(kernel, plan, entries, made.losses)
            spills += find_spills(kernel, plan, entries, made.usage, limit)
        for line in [*slow_lines(slow), *spill_lines(spills)]:
            self.progress.say(f"warning: {line}")
        if limit is not None:
            check_entries(slow, spills, limit)

    def _on_assembled(self, task: tuple[Kernel, Cubin], result: tuple[Assembled, float, bool]) -> None:
        kernel, plan = task
        self.progress.finish(f"{kernel.name} cubin {plan.arch}", kernel.name, seconds=result[1], is_cached=result[2])


def label_of(job: Job) -> str:
    """Return the words of a progress line: kernel, dtypes, constants and target."""
    return " ".join([*job.specialisation.id.split("__"), job.target.name])


def describe(settings: Settings, kernels: int) -> str:
    """Return the first line of a build: what is built for which targets, and whether with cubins."""
    if settings.ptxas:
        cubins = "cubins by ptxas " + settings.ptxas.version + " for " + ", ".join(c.arch for c in settings.cubins)
    else:
        cubins = "no cubins: the driver compiles the PTX when a kernel is first loaded"
    targets = ", ".join(settings.targets)
    return f"{settings.module}: {kernels} kernels for {targets}; {cubins}; {settings.workers} workers"


def write_type_stub(settings: Settings, kernels: Sequence[Kernel]) -> None:
    """Write the module's .pyi."""
    from gristmill.build.stubs import write_stub

    name = settings.module.rpartition(".")[2]
    write_if_changed(settings.out / f"{name}.pyi", write_stub(kernels).encode())


def write_materials(settings: Settings, manifest: Manifest, outputs: Outputs) -> None:
    """Write the bill of materials of the outputs."""
    write_if_changed(settings.out / f"{settings.module}.cdx.json", write_sbom(settings, manifest, outputs).encode())


def write_depfile(settings: Settings, path: Path) -> None:
    """List every file that the outputs depend on, as make and Ninja read it."""
    sources = {file for source in settings.sources for file in source_closure(source)}
    tools = [*tool_files(), *([settings.ptxas.path] if settings.ptxas else [])]
    inputs = sorted({*sources, *settings.tuning, *generator_files(), *tools})
    rule = " \\\n  ".join(_escape(file) for file in inputs)
    write_if_changed(path, f"{_escape(settings.out / 'tables.cpp')}: \\\n  {rule}\n".encode())


def _escape(path: Path) -> str:
    return str(path).replace("$", "$$").replace(" ", "\\ ").replace("#", "\\#")
