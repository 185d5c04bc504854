"""The Pythons of this machine, and which wheel serves each."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

NAMES = ("3.11", "3.12", "3.13", "3.14", "3.15", "3.13t", "3.14t", "3.15t")
PROBE = (
    "import sys, sysconfig; free = sysconfig.get_config_var('Py_GIL_DISABLED'); "
    "print('{}.{}'.format(*sys.version_info) + ('t' if free else ''))"
)


@dataclass(frozen=True)
class Interpreter:
    """A Python: `version` as in 3.12 or 3.14t."""

    version: str
    path: str

    @property
    def is_free_threaded(self) -> bool:
        return self.version.endswith("t")

    @property
    def tag(self) -> str:
        """The Python and ABI tags of the wheel that serves it."""
        number = self.version.replace(".", "").rstrip("t")
        if self.is_free_threaded:
            return f"cp{number}-cp{number}t"
        return "cp312-abi3" if int(number) >= 312 else f"cp{number}-cp{number}"


def find_interpreters() -> list[Interpreter]:
    """Return those on PATH that run and are what their names say."""
    found = []
    for version in NAMES:
        path = shutil.which(f"python{version}")
        done = path and subprocess.run([path, "-c", PROBE], capture_output=True, text=True, check=False)
        if path and done and done.stdout.strip() == version:
            found.append(Interpreter(version, path))
    return found


def missing_versions(found: list[Interpreter]) -> list[str]:
    """Return the versions that there is no interpreter of."""
    return [name for name in NAMES if name not in {interpreter.version for interpreter in found}]
