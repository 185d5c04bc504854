"""The command line of tools/release: which groups of checks are made, in which order, and the list that is printed."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable
from pathlib import Path

from releaselib import artifacts, incremental, metadata
from releaselib.report import Check, print_checks

QUICK_TARGETS = "sm_80;x86-64-v3"


def main() -> int:
    """Make the checks; return 1 if one fails."""
    options = parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    targets = QUICK_TARGETS if options.quick else ""
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    groups: dict[str, Callable[[], Iterable[Check]]] = {
        "metadata": metadata.check_metadata,
        "wheels": lambda: artifacts.check_artifacts(options.out, targets),
        "builds": lambda: incremental.check_builds(options.kills, seed),
    }
    results = [print_checks(name, groups[name]()) for name in groups if name in options.only]
    print(f"built: {options.out}" if "wheels" in options.only else "", "all holds" if all(results) else "NOT READY")
    return int(not all(results))


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    text = "Build sdist and wheels, and check what is promised of them. Needs `pip install '.[release]'`."
    made = argparse.ArgumentParser(prog="tools/release", description=text)
    groups = ["metadata", "wheels", "builds"]
    made.add_argument("--only", nargs="+", choices=groups, default=groups, help="default: all")
    made.add_argument("--out", type=Path, default=Path("dist"), help="folder of the results")
    made.add_argument("--quick", action="store_true", help=f"for trying the tool: only {QUICK_TARGETS}")
    made.add_argument("--kills", type=int, default=20, help="builds to kill")
    made.add_argument("--seed", type=int, help="of the moments at which they are killed")
    return made
