"""Checks of a built wheel of kernels: its tags, what its modules need, its size, its notices and its record."""

from __future__ import annotations

import base64
import csv
import email
import hashlib
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from functools import cached_property
from pathlib import Path
from typing import Any

from gristmill.errors import GristmillError

LIBRARIES = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "ld-linux")
HEAVY = re.compile(r"^(llvmlite|nvidia)\b", re.IGNORECASE)
EMBEDDED = ("gristmill", "nanobind", "robin-map")
MOST_UNPACKED = 50  # times the wheel's size; PyPI refuses more as a decompression bomb
MOST_MB = 100  # PyPI's limit for a file, until a project asks for more
MB = 1_000_000


@dataclass(frozen=True)
class Finding:
    """One check: whether it holds, None where it could not be made, what was found, and what to type."""

    check: str
    holds: bool | None
    found: str
    fix: str = ""

    def __str__(self) -> str:
        mark = {True: "ok", False: "error", None: "skipped"}[self.holds]
        lines = [f"{mark:<8} {self.check:<10} {self.found}"]
        return "\n".join(lines + ([f"         fix: {self.fix}"] if self.fix and self.holds is not True else []))


class Wheel:
    """An open wheel."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self.archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise GristmillError(f"{path} is no wheel: {error}", fix="name a built file, dist/NAME.whl") from None
        parts = path.name.removesuffix(".whl").split("-")
        if len(parts) not in (5, 6) or path.suffix != ".whl":
            raise GristmillError(f"{path.name} is not named as a wheel is", fix="name a built file, dist/NAME.whl")
        self.python, self.abi, self.platform = parts[-3:]

    @cached_property
    def names(self) -> list[str]:
        return [info.filename for info in self.archive.infolist() if not info.is_dir()]

    @cached_property
    def info_dir(self) -> str:
        folders = {name.partition("/")[0] for name in self.names if ".dist-info/" in name}
        if len(folders) != 1:
            raise GristmillError(f"{self.path.name} has {len(folders)} .dist-info folders", fix="build it again")
        return folders.pop()

    @cached_property
    def metadata(self) -> Message:
        return self.message("METADATA")

    @cached_property
    def materials(self) -> dict[str, dict[str, Any]]:
        """The bills of materials by the full name of their module."""
        found = [name for name in self.names if re.match(rf"{self.info_dir}/sboms/.*\.cdx\.json$", name)]
        return {Path(name).name.removesuffix(".cdx.json"): json.loads(self.archive.read(name)) for name in found}

    @cached_property
    def modules(self) -> list[str]:
        """The files of the modules that have a bill of materials; all modules where there is none."""
        compiled = [name for name in self.names if name.endswith(".so")]
        bases = [module.replace(".", "/") + "." for module in self.materials]
        return [name for name in compiled if not bases or name.startswith(tuple(bases))]

    def message(self, name: str) -> Message:
        """Return a file of the .dist-info folder that is written as mail is."""
        return email.message_from_bytes(self.archive.read(f"{self.info_dir}/{name}"))


Check = Callable[[Wheel], Iterable[Finding]]


def check_wheel(path: Path) -> list[Finding]:
    """Return what holds of a wheel and what does not. Raises GristmillError if the file is no wheel."""
    wheel = Wheel(path)
    checks: tuple[Check, ...] = (tags, platform, libraries, requirements, size, notices, bill_of_materials, record)
    with wheel.archive:
        return [finding for check in checks for finding in check(wheel)]


def tags(wheel: Wheel) -> Iterator[Finding]:
    """The module's suffix, the file's name and WHEEL say the same."""
    expected = f"{wheel.python}-{wheel.abi}"
    told = wheel.message("WHEEL").get_all("Tag") or []
    if not told or any(tag.rsplit("-", 1)[0] != expected for tag in told):
        yield Finding("tags", False, f"the name says {expected}, WHEEL says {', '.join(told)}", "build it again")
    for module in wheel.modules:
        is_stable, is_tagged_stable = module.endswith(".abi3.so"), wheel.abi.startswith("abi3")
        version = wheel.python.removeprefix("cp")
        fits = is_stable or f".cpython-{wheel.abi.removeprefix('cp')}-" in module
        if is_tagged_stable != is_stable or not fits or (is_stable and int(version) < 312):
            fix = (
                'in pyproject.toml write [tool.scikit-build] wheel.py-api = "cp312", and in CMakeLists.txt '
                "find_package(Python COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})"
            )
            yield Finding("tags", False, f"{module} in a wheel for {expected}", fix)
        else:
            serves = f"Python {version[0]}.{version[1:]}" + (" and later" if is_stable else " only")
            yield Finding("tags", True, f"{expected}: {serves}, {Path(module).name}")


def platform(wheel: Wheel) -> Iterator[Finding]:
    """On Linux auditwheel finds a manylinux platform without anything to leave out."""
    if "linux" not in wheel.platform:
        return
    if not importlib.util.find_spec("auditwheel"):
        yield Finding("platform", None, "auditwheel is not installed", "pip install auditwheel")
        return
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel.path)]
    said = " ".join(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())
    match = re.search(r'following platform tag: "((?:many|musl)linux\w+)"', said)
    if not match:
        fix = "link to no library but the system's; `auditwheel show` names those that are"
        yield Finding("platform", False, said or "auditwheel says nothing", fix)
        return
    is_tagged = not wheel.platform.startswith("linux_")
    found = f"{match[1]} without exclusions" + ("" if is_tagged else "; `auditwheel repair` names the file so")
    yield Finding("platform", True, found)


def libraries(wheel: Wheel) -> Iterator[Finding]:
    """A module of kernels links to nothing but the system's C and C++ libraries."""
    if not shutil.which("readelf"):
        yield Finding("libraries", None, "there is no readelf", "install binutils")
        return
    for module in wheel.modules:
        with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
            command = ["readelf", "-d", wheel.archive.extract(module, folder)]
            listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        needed = re.findall(r"NEEDED.*\[(.*)\]", listing)
        others = [name for name in needed if not name.startswith(LIBRARIES)]
        fix = "drop target_link_libraries() of " + ", ".join(others)
        yield Finding("libraries", not others, f"{Path(module).name} needs {', '.join(needed)}", fix)


def requirements(wheel: Wheel) -> Iterator[Finding]:
    """What compiles kernels is not installed with them."""
    needs = [need for need in wheel.metadata.get_all("Requires-Dist") or [] if "extra ==" not in need.replace("'", '"')]
    heavy = [need for need in needs if HEAVY.match(need)]
    fix = "move it from [project] dependencies to [build-system] requires"
    found = ", ".join(heavy) if heavy else ", ".join(needs) or "none"
    yield Finding("requires", not heavy, found, fix)


def size(wheel: Wheel) -> Iterator[Finding]:
    """The file is one that PyPI takes."""
    packed = wheel.path.stat().st_size
    ratio = sum(info.file_size for info in wheel.archive.infolist()) / packed
    fits = packed <= MOST_MB * MB and ratio < MOST_UNPACKED
    fix = "GRISTMILL_MAX_WHEEL_MB=100 fails a larger build with a table of what is in it"
    yield Finding("size", fits, f"{packed / MB:.2f} MB, {ratio:.1f} times that when unpacked", fix)


def notices(wheel: Wheel) -> Iterator[Finding]:
    """The licences of what is compiled in are there (PEP 639)."""
    folder = f"{wheel.info_dir}/licenses/"
    there = [name.removeprefix(folder) for name in wheel.names if name.startswith(folder)]
    told = wheel.metadata.get_all("License-File") or []
    missing = [name for name in told if name not in there]
    missing += [f"a text for {part}" for part in ("nanobind", "robin_map") if not any(part in name for name in there)]
    fix = "install through gristmill_add_kernels from scikit-build-core, which adds them; or add license-files"
    yield Finding("licences", not missing, f"missing: {', '.join(missing)}" if missing else ", ".join(there), fix)


def bill_of_materials(wheel: Wheel) -> Iterator[Finding]:
    """Each module of kernels has a bill of materials (PEP 770) that names what is in it, and the wheel itself."""
    fix = "build with scikit-build-core and gristmill_add_kernels, which install it in .dist-info/sboms/"
    if not wheel.materials:
        yield Finding("materials", False, "no .dist-info/sboms/*.cdx.json", fix)
    for module, document in wheel.materials.items():
        versions = {part["name"]: part.get("version", "") for part in document["components"]}
        tools = {tool["name"]: tool["version"] for tool in document["metadata"]["tools"]["components"]}
        subject = document["metadata"]["component"]
        missing = [name for name in (*EMBEDDED, "images", "host code") if name not in versions]
        missing += [name for name in ("llvmlite",) if name not in tools]
        if _normal(subject["name"]) != _normal(wheel.metadata["Name"]) or not wheel.modules:
            missing.append(f"{module} of {wheel.metadata['Name']}")
        shown = [f"{name} {versions[name]}" for name in EMBEDDED if name in versions]
        made = ", ".join(f"{name} {version}" for name, version in tools.items())
        found = f"missing: {', '.join(missing)}" if missing else f"{module}: {', '.join(shown)}; made with {made}"
        yield Finding("materials", not missing, found, fix)


def record(wheel: Wheel) -> Iterator[Finding]:
    """RECORD lists every file with its hash."""
    own = f"{wheel.info_dir}/RECORD"
    rows = csv.reader(io.StringIO(wheel.archive.read(own).decode()))
    told = {name: digest for name, digest, _ in rows}
    wrong = [name for name in wheel.names if name != own and told.get(name) != _digest(wheel.archive.read(name))]
    wrong += [name for name in told if name not in wheel.names]
    fix = "build it again, and change no file in it"
    found = f"differs: {', '.join(wrong[:5])}" if wrong else f"{len(told)} files"
    yield Finding("record", not wrong, found, fix)


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
