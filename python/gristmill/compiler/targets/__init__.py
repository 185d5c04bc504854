"""Targets: facts about the machines that images are built for, one row each."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.errors import BuildError


@dataclass(frozen=True)
class Target:
    """A row: what LLVM, ptxas and the launcher need to know.

    CUDA: `sm` and `suffix` name the architecture; `ptx_version` (70 is 7.0) is the lowest that it allows.
    Host: `cpu` is LLVM's name, `lanes` the f32 elements that its vectors take at a time.
    """

    name: str
    kind: str
    sm: int = 0
    suffix: str = ""
    ptx_version: int = 0
    shared_bytes: int = 0
    triple: str = ""
    cpu: str = ""
    features: str = ""
    lanes: int = 0
    level: str = ""

    @property
    def has_clusters(self) -> bool:
        """Whether blocks form clusters that push numbers to each other's shared memory (PTX 8.1)."""
        return self.sm >= 90 and self.ptx_version >= 81

    def shared_bytes_of(self, blocks: int) -> int:
        """The most that each of so many blocks of a multiprocessor may have; some of it is the system's."""
        return (self.shared_bytes + SYSTEM_BYTES) // blocks - SYSTEM_BYTES if self.shared_bytes else 0

    @property
    def has_groups(self) -> bool:
        """Whether tensor cores multiply for warpgroups (wgmma)."""
        return self.sm == 90 and self.suffix == "a"


SYSTEM_BYTES = 1024  # of each block's shared memory


def _cuda(name: str, sm: int, suffix: str, ptx_version: int, shared_bytes: int) -> Target:
    return Target(name, "cuda", sm, suffix, ptx_version, shared_bytes)


def _host(level: str, triple: str, cpu: str, features: str, lanes: int, short: str) -> Target:
    return Target(level, "host", triple=triple, cpu=cpu, features=features, lanes=lanes, level=short)


X86 = "x86_64-unknown-linux-gnu"
ROWS = (
    _cuda("sm_75", 75, "", 63, 65536),
    _cuda("sm_80", 80, "", 70, 101376),
    _cuda("sm_86", 86, "", 71, 101376),
    _cuda("sm_89", 89, "", 78, 101376),
    _cuda("sm_90", 90, "", 78, 232448),
    _cuda("sm_90a", 90, "a", 81, 232448),
    _cuda("sm_100", 100, "", 86, 232448),
    _cuda("sm_100a", 100, "a", 86, 232448),
    _cuda("sm_120", 120, "", 87, 101376),
    _host("x86-64-v2", X86, "x86-64-v2", "", 8, "v2"),
    _host("x86-64-v3", X86, "x86-64-v3", "", 16, "v3"),
    _host("x86-64-v4", X86, "x86-64-v4", "", 16, "v4"),
    _host("aarch64", "aarch64-unknown-linux-gnu", "generic", "", 8, "aarch64"),
)
TARGETS = {row.name: row for row in ROWS}


def find_target(name: str) -> Target:
    """Return the row called `name`; raises BuildError that lists the rows."""
    if name in TARGETS:
        return TARGETS[name]
    raise BuildError(f"unknown target `{name}`", fix="use one of " + ", ".join(TARGETS))
