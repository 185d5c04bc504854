"""What the project says of itself: pyproject.toml, its versions, its changelog and its checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

from releaselib.project import ROOT
from releaselib.report import Check

VERSIONS = {
    "CMakeLists.txt": r"project\(gristmill VERSION (\S+)",
    "python/gristmill/__init__.py": r'__version__ = "(.*)"',
    "python/gristmill/cmake/gristmillConfigVersion.cmake": r'set\(PACKAGE_VERSION "(.*)"\)',
    "CHANGELOG.md": r"## (\S+)",
}


def check_metadata() -> Iterator[Check]:
    """Check the sources before anything is built."""
    done = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    changed = done.stdout.splitlines()
    yield Check("everything is committed", not changed, f"{len(changed)} files are not" if changed else "")
    yield _tool("validate-pyproject", [sys.executable, "-m", "validate_pyproject", "pyproject.toml"])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = {file: _first(pattern, (ROOT / file).read_text()) for file, pattern in VERSIONS.items()}
    others = {file: other for file, other in found.items() if other != version}
    yield Check("one version", not others, f"{version}, but {others}" if others else version)


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def _tool(name: str, command: list[str]) -> Check:
    """Run a checker that says nothing worth showing unless it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip()
    return Check(name, done.returncode == 0, "" if done.returncode == 0 else said[-1000:])
