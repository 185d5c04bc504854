"""On what and with what was measured."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import re
import shlex
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("gristmill", "numpy", "torch", "triton", "cupy-cuda13x", "jax")


def describe(device: str) -> dict[str, Any]:
    """Return date, command, processor, card, driver and versions."""
    facts: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["tools/bench", *sys.argv[1:]]),
        "cpu": _processor(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }
    if device == "cuda":
        import torch

        facts["card"] = torch.cuda.get_device_name()
        facts["driver"] = _driver()
    return facts


def text(facts: dict[str, Any]) -> str:
    """Return the facts in a few lines."""
    place = ", ".join(str(facts[key]) for key in ("card", "cpu") if key in facts)
    versions = [f"{name} {version}" for name, version in facts["versions"].items()]
    if "driver" in facts:
        versions.insert(0, f"driver {facts['driver']}")
    return f"{facts['date']}, {place}\nPython {facts['python']}, {', '.join(versions)}\n`{facts['command']}`"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.*)", path.read_text()) if path.exists() else None
    return found[1] if found else platform.machine()


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", path.read_text()) if path.exists() else None
    return found[1] if found else "unknown"
