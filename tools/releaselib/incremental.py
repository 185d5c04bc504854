"""Builds again: after nothing, after one change, after everything was deleted; after kills; and two at once."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from releaselib.project import Project
from releaselib.report import Check

KERNELS = 24
MOST_UNCHANGED_S, MOST_CHANGED_S, MOST_WARM_SHARE = 2.0, 10.0, 0.25


def measure_rebuilds(folder: Path) -> list[Check]:
    """Time builds of a project of small kernels that have nothing, one kernel, or everything to do."""
    project = Project(folder / "many", KERNELS, {"GRISTMILL_CACHE_DIR": str(folder / "cache")})
    project.write()
    cold_s, _ = _timed(lambda: (project.configure(), project.build())[1])
    unchanged_s, _ = _timed(project.build)
    project.change(3, 100)
    changed_s, said = _timed(project.build)
    jobs, cached = map(int, re.search(r"(\d+) jobs \((\d+) cached\)", said).groups())
    own = jobs // KERNELS
    project.clean()
    warm_s, _ = _timed(lambda: (project.configure(), project.build())[1])
    return [
        Check("nothing changed", unchanged_s <= MOST_UNCHANGED_S, f"{unchanged_s:.2f} s, cold {cold_s:.1f} s"),
        Check(f"one of {KERNELS} kernels changed", changed_s <= MOST_CHANGED_S, f"{changed_s:.1f} s"),
        Check(
            "only its images are rebuilt", jobs - cached == own, f"{jobs - cached} of {jobs} jobs, {own} are its own"
        ),
        Check(
            "all but the cache deleted",
            warm_s <= MOST_WARM_SHARE * cold_s,
            f"{warm_s:.1f} s, {warm_s / cold_s:.0%}",
        ),
    ]


def _timed(action: Callable[[], str]) -> tuple[float, str]:
    begun = time.perf_counter()
    said = action()
    return time.perf_counter() - begun, said


def kill_builds(folder: Path, kills: int, seed: int) -> Check:
    """Kill builds at random moments, build again, and compare with a clean build.

    Half of them begin with nothing, half with what the one before left and a changed kernel.
    """
    chance = random.Random(seed)
    cache = folder / "kill-cache"
    project = Project(folder / "killed", 4, {"GRISTMILL_CACHE_DIR": str(cache)})
    project.write()
    expected = {scale: _clean_build(project, cache, scale) for scale in (50, 60)}
    took_s = {True: expected[50][1], False: expected[50][1] / 3}
    wrong, killed, rounds = [], 0, 0
    while killed < kills and rounds < 4 * kills:
        rounds += 1
        scale, is_fresh = (50, 60)[rounds % 2], chance.random() < 0.5
        project.change(0, scale)
        if is_fresh:
            _delete(project, cache)
        after_s = chance.uniform(0, took_s[is_fresh])
        ran_s = _kill_after(project, after_s)
        if ran_s is not None:  # it was done before: builds are faster than they were
            took_s[is_fresh] = ran_s
            continue
        killed += 1
        project.configure()
        project.build()
        if project.digests() != expected[scale][0]:
            wrong.append(f"kill {killed}, after {after_s:.2f} s")
    found = f"{killed} killed, seed {seed}; other bytes: {wrong or 'none'}"
    return Check("killed builds end like others", killed == kills and not wrong, found)


def _clean_build(project: Project, cache: Path, scale: int) -> tuple[dict[str, str], float]:
    project.change(0, scale)
    _delete(project, cache)
    took_s, _ = _timed(lambda: (project.configure(), project.build())[1])
    return project.digests(), took_s


def _delete(project: Project, cache: Path) -> None:
    project.clean()
    shutil.rmtree(cache, ignore_errors=True)


def _kill_after(project: Project, seconds: float) -> float | None:
    """Start a build and kill its processes; if it was done before, return how long it took."""
    begun = time.perf_counter()
    running = project.start()
    try:
        running.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        return None
    return time.perf_counter() - begun


def build_at_once(folder: Path) -> Check:
    """Build one project in two folders at once, on one cache; compare with a build alone on another."""

    def build(name: str, cache: str) -> dict[str, str]:
        project = Project(folder / name, 6, {"GRISTMILL_CACHE_DIR": str(folder / cache)})
        project.write()
        project.configure()
        project.build()
        return project.digests()

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(build, ("one", "another place"), ("shared-cache", "shared-cache")))
    alone = build("alone", "own-cache")
    return Check("two builds at once, in two folders, on one cache", both == [alone, alone], f"{len(alone)} files")


def check_builds(kills: int, seed: int) -> Iterator[Check]:
    """Do all of it in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="gristmill-release-") as name:
        folder = Path(name)
        yield from measure_rebuilds(folder)
        yield build_at_once(folder)
        yield kill_builds(folder, kills, seed)
