"""What one build is asked for, and what follows from that: targets, cubins and the number of workers."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill.build.ptxas import PACKAGE, Ptxas, find_ptxas
from gristmill.compiler.targets import find_target
from gristmill.errors import BuildError

CUDA_TARGETS = ("sm_80", "sm_90a")
HOST_TARGETS = {
    "x86_64": ("x86-64-v2", "x86-64-v3", "x86-64-v4"),
    "amd64": ("x86-64-v2", "x86-64-v3", "x86-64-v4"),
    "aarch64": ("aarch64",),
    "arm64": ("aarch64",),
}
# Devices that get a cubin beside those of the targets: one for each major version from Ampere on, since a cubin
# serves every device of its major version from its own minor version up.
EXTRA_CUBINS = (80, 90, 100, 120)
SPILL_LIMIT = 100  # bytes of a thread's registers that may lie in memory, where nothing else is asked for
CUDA_NAME = re.compile(r"^sm_(\d+)([af]?)$")


@dataclass(frozen=True)
class Cubin:
    """A cubin for `arch` ("sm_120"), assembled from the PTX of target `source` ("sm_80")."""

    arch: str
    source: str


@dataclass(frozen=True)
class Settings:
    """One module to build: names, sources, targets and where the results go."""

    sources: tuple[Path, ...]
    module: str
    out: Path
    project_dir: Path
    package: str = "kernels"
    version: str = "0"
    targets: tuple[str, ...] = ()
    ptxas: Ptxas | None = None
    spill_limit: int | None = SPILL_LIMIT  # None: whatever spills is a warning
    tuning: tuple[Path, ...] = ()
    has_library: bool = False  # beside the module, one for C
    depfile: Path | None = None
    ar: str = "ar"
    workers: int = 1
    executor: str = ""
    max_wheel_mb: float | None = None

    @property
    def cuda_targets(self) -> tuple[str, ...]:
        return tuple(t for t in self.targets if CUDA_NAME.match(t))

    @property
    def host_targets(self) -> tuple[str, ...]:
        return tuple(t for t in self.targets if not CUDA_NAME.match(t))

    @property
    def cubins(self) -> tuple[Cubin, ...]:
        return plan_cubins(self.cuda_targets) if self.ptxas else ()

    @property
    def ptx_targets(self) -> tuple[str, ...]:
        """The targets whose PTX is embedded: all, or beside cubins the one that other devices can fall back on."""
        if not self.ptxas:
            return self.cuda_targets
        return tuple(t for t in self.cuda_targets if not split_name(t)[1])[:1]


def default_targets(machine: str | None = None) -> tuple[str, ...]:
    """Return the targets of a build that names none, for this processor."""
    return CUDA_TARGETS + HOST_TARGETS.get((machine or platform.machine()).lower(), ())


def parse_targets(text: str, machine: str | None = None) -> tuple[str, ...]:
    """Split a list at `;` or `,`; nothing means the default.

    `machine` is the processor that the module is compiled for, by default this one's. Raises BuildError on a name that
    is no target's, or another processor's.
    """
    names = {name.strip() for name in re.split("[;,]", text) if name.strip()} or set(default_targets(machine))
    targets = tuple(sorted((find_target(name).name for name in names), key=target_order))
    processor = (machine or platform.machine()).lower()
    fitting = HOST_TARGETS.get(processor, ())
    for name in targets:
        if not CUDA_NAME.match(name) and name not in fitting:
            known = " or ".join(fitting) or "CUDA targets"
            fix = f"name {known}; or compile for that processor, with a CMake toolchain file"
            raise BuildError(f"`{name}` is not code for {processor}", fix=fix)
    return targets


def target_order(name: str) -> tuple[int, int, str]:
    """Sort key: CUDA targets by number, then host targets by level."""
    if CUDA_NAME.match(name):
        number, suffix = split_name(name)
        return (0, number, suffix)
    return (1, 0, name)


def split_name(name: str) -> tuple[int, str]:
    """Return the number and the suffix of a CUDA target: `sm_90a` is (90, "a")."""
    match = CUDA_NAME.match(name)
    assert match, name
    return int(match.group(1)), match.group(2)


def plan_cubins(targets: Sequence[str]) -> tuple[Cubin, ...]:
    """Return the cubins to assemble: of each target, and of each major version that plain PTX reaches."""
    plan = {target: Cubin(target, target) for target in targets}
    plain = sorted(number for number, suffix in map(split_name, targets) if not suffix)
    majors = {split_name(target)[0] // 10 for target in targets}
    for number in EXTRA_CUBINS:
        below = [n for n in plain if n <= number]
        if below and number // 10 not in majors:
            plan[f"sm_{number}"] = Cubin(f"sm_{number}", f"sm_{below[-1]}")
    return tuple(sorted(plan.values(), key=lambda cubin: target_order(cubin.arch)))


def choose_ptxas(choice: str) -> Ptxas | None:
    """Return the assembler to use under AUTO, ON or OFF. Raises BuildError if ON and there is none."""
    spelled = choice.upper()
    if spelled in ("OFF", "0", "FALSE", "NO"):
        return None
    if spelled not in ("AUTO", "ON", "1", "TRUE", "YES"):
        raise BuildError(f"GRISTMILL_CUBINS is AUTO, ON or OFF, found `{choice}`", fix="write GRISTMILL_CUBINS=AUTO")
    ptxas = find_ptxas()
    if not ptxas and spelled != "AUTO":
        raise BuildError(
            "cubins were asked for, but there is no ptxas",
            fix=f'add "{PACKAGE}==12.9.*" to the build requirements, or set GRISTMILL_CUBINS=OFF',
        )
    return ptxas


def choose_spills(choice: str, ptxas: Ptxas | None) -> int | None:
    """Return how many bytes a thread may spill, or None for any number, under a number, WARN or nothing.

    Raises BuildError if none can tell.
    """
    if not choice:
        return SPILL_LIMIT
    if choice.upper() == "WARN":
        return None
    if not re.fullmatch("[0-9]+", choice):
        what = f"GRISTMILL_SPILLS is a number of bytes or WARN, found `{choice}`"
        raise BuildError(what, fix=f"write GRISTMILL_SPILLS={SPILL_LIMIT}")
    if not ptxas:
        fix = "set GRISTMILL_CUBINS=ON, or GRISTMILL_SPILLS=WARN"
        raise BuildError("spills were to be errors, but only ptxas tells of them, and no cubins are made", fix=fix)
    return int(choice)


def count_workers(environment: Mapping[str, str] = os.environ) -> int:
    """Return CMAKE_BUILD_PARALLEL_LEVEL, or the number of processors that this process may use."""
    level = environment.get("CMAKE_BUILD_PARALLEL_LEVEL", "")
    if level.isdigit() and int(level) > 0:
        return int(level)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_limit(text: str) -> float | None:
    """Return GRISTMILL_MAX_WHEEL_MB, or None for no limit. Raises BuildError if it is no number of megabytes."""
    if not text:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = 0
    if not 0 < limit < float("inf"):
        raise BuildError(f"GRISTMILL_MAX_WHEEL_MB is megabytes, found `{text}`", fix="write GRISTMILL_MAX_WHEEL_MB=100")
    return limit


def find_archiver(choice: str | None) -> str:
    """Return the archiver to use. Raises BuildError if there is none."""
    if path := shutil.which(choice or "ar"):
        return path
    raise BuildError(f"there is no archiver `{choice or 'ar'}`", fix="install binutils, or pass --ar with its path")
