"""What a build compiles: every specialisation of every kernel for every target, in one fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.load import check_names, check_symbols

if TYPE_CHECKING:
    from gristmill.compiler.targets import Target
    from gristmill.declare import Kernel, Specialisation, Variant


@dataclass(frozen=True)
class Job:
    """One compilation, of all variants of `specialisation` for `target`.

    `serves` are the specialisations that run this code, `specialisation` first: on a host those that differ only in
    warps and stages share it, and with it its symbols; those for aligned calls among themselves, the others too.
    """

    kernel: Kernel
    specialisation: Specialisation
    target: Target
    serves: tuple[Specialisation, ...]

    @property
    def name(self) -> str:
        """The words of a progress line."""
        return f"{self.specialisation.id} for {self.target.name}"


def enumerate_jobs(kernels: Sequence[Kernel], targets: Sequence[Target]) -> list[Job]:
    """Return all jobs: by kernel, then target, then specialisation, each in the order given.

    Raises DeclarationError if two kernels have one name or would have one symbol.
    """
    check_names(kernels)
    check_symbols(kernels)
    return [job for kernel in kernels for target in targets for job in _jobs(kernel, target)]


def _jobs(kernel: Kernel, target: Target) -> list[Job]:
    groups: dict[tuple[str, tuple[Variant, ...]], list[Specialisation]] = {}
    for specialisation in (s for s in kernel.specialisations() if s.serves(target.kind)):
        name = specialisation.base if target.kind == "host" else specialisation.id
        groups.setdefault((name, specialisation.variants_on(target.kind)), []).append(specialisation)
    return [Job(kernel, served[0], target, tuple(served)) for served in groups.values()]


def serving_jobs(jobs: Sequence[Job]) -> dict[tuple[str, str], Job]:
    """Return, for each specialisation's id and target's name, the job whose code runs it."""
    return {(served.id, job.target.name): job for job in jobs for served in job.serves}
