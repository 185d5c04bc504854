"""The list that `tools/release` prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One fact: whether it holds, None where it could not be tried, and what was found."""

    name: str
    holds: bool | None
    found: str = ""

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAILED", None: "skipped"}[self.holds]
        return f"{mark:<8} {self.name}" + (f": {self.found}" if self.found else "")


def print_checks(title: str, checks: Iterable[Check]) -> bool:
    """Print each as it comes; return whether none failed."""
    print(f"== {title}", flush=True)
    good = True
    for check in checks:
        print(f"   {check}", flush=True)
        good &= check.holds is not False
    return good
