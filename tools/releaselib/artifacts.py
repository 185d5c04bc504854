"""The sdist and the wheels: building each as users do, twice and elsewhere, and checking and trying the files."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gristmill.build.wheel import check_wheel
from releaselib.interpreters import Interpreter, find_interpreters, missing_versions
from releaselib.project import ROOT
from releaselib.report import Check

NOT_SHIPPED = re.compile(r"^(\.git|\.ci|build|dist)(/|$)|__pycache__")
NEEDED = ("LICENSE", "LICENSES/nanobind-BSD-3-Clause.txt", "csrc/tables.hpp", "kernels/softmax.py", "CMakeLists.txt")


class Failed(Exception):
    """A command failed; the text is the end of what it said."""


def check_artifacts(out: Path, targets: str) -> Iterator[Check]:
    """Build everything into `out`; "" for `targets` builds what is published."""
    with tempfile.TemporaryDirectory(prefix="gristmill-release-") as name:
        try:
            yield from _check_all(out.resolve(), Path(name), _environment(targets))
        except Failed as failure:
            yield Check("building", False, str(failure))


def _environment(targets: str) -> dict[str, str]:
    epoch = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    chosen = {"SOURCE_DATE_EPOCH": epoch.stdout.strip()} | ({"GRISTMILL_TARGETS": targets} if targets else {})
    return {**os.environ, **chosen}


def _check_all(out: Path, scratch: Path, environment: dict[str, str]) -> Iterator[Check]:
    checkout = scratch / "checkout"
    checkout.mkdir()
    _run(["sh", "-c", f"git archive HEAD | tar -x -C '{checkout}'"], environment, ROOT)
    sdist = _build_sdist(checkout, out, environment)
    yield from _check_sdist(sdist)
    found = find_interpreters()
    yield Check("interpreters", bool(found), ", ".join(i.version for i in found))
    for version in missing_versions(found):
        yield Check(f"Python {version}", None, "not on this machine")
    built: dict[str, Path] = {}
    for interpreter in found:
        if interpreter.tag not in built:
            wheel = _build_wheel(interpreter, checkout, scratch / interpreter.tag, environment)
            yield from _check_built(interpreter, wheel, sdist, scratch, environment)
            built[interpreter.tag] = _repair(wheel, out, environment)
            yield Check(f"{interpreter.tag} is manylinux", "manylinux" in built[interpreter.tag].name)
        yield _try(interpreter, built[interpreter.tag], scratch, environment)
    yield _tool("twine", ["twine", "check", "--strict", str(sdist), *map(str, built.values())], environment)


def _build_sdist(checkout: Path, out: Path, environment: dict[str, str]) -> Path:
    before = {path.name: path for path in out.glob("*.tar.gz")}
    for path in before.values():
        path.unlink()
    _run([sys.executable, "-m", "build", "--sdist", "--outdir", str(out), str(checkout)], environment)
    (made,) = out.glob("*.tar.gz")
    return made


def _check_sdist(sdist: Path) -> Iterator[Check]:
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    wrong = [name for name in names if NOT_SHIPPED.search(name)] + [name for name in NEEDED if name not in names]
    yield Check("sdist", not wrong, f"{len(names)} files, {sdist.stat().st_size:,} bytes; wrong: {wrong or 'none'}")


def _build_wheel(interpreter: Interpreter, source: Path, out: Path, environment: dict[str, str]) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    _run([interpreter.path, "-m", "pip", "wheel", "--no-deps", "-w", str(out), str(source)], environment)
    (made,) = out.glob("*.whl")
    return made


def _check_built(
    interpreter: Interpreter, wheel: Path, sdist: Path, scratch: Path, environment: dict[str, str]
) -> Iterator[Check]:
    tag = interpreter.tag
    yield Check(f"{tag} is its tag", f"-{tag}-" in wheel.name, wheel.name)
    for finding in check_wheel(wheel):
        yield Check(f"{tag} {finding.check}", finding.holds, finding.found)
    again = _build_wheel(interpreter, sdist, scratch / f"{tag} again", environment)
    same = _sha256(again) == _sha256(wheel)
    yield Check(
        f"{tag} from the sdist is bit-identical", same, _sha256(wheel) if same else f"see {_keep(wheel, again)}"
    )
    if "abi3" in tag:
        yield _tool("abi3audit", ["abi3audit", "--strict", str(wheel)], environment)


def _keep(*wheels: Path) -> Path:
    """Keep wheels that should be equal, to be compared."""
    folder = Path(tempfile.mkdtemp(prefix="gristmill-differ-"))
    for i, wheel in enumerate(wheels):
        (folder / f"{i}.whl").write_bytes(wheel.read_bytes())
    return folder


def _repair(wheel: Path, out: Path, environment: dict[str, str]) -> Path:
    before = set(out.glob("*.whl"))
    tag = "-".join(wheel.name.split("-")[2:4])
    for path in before:
        if f"-{tag}-" in path.name:
            path.unlink()
    _run([sys.executable, "-m", "auditwheel", "repair", "-w", str(out), str(wheel)], environment)
    (made,) = (path for path in out.glob("*.whl") if f"-{tag}-" in path.name)
    return made


def _try(interpreter: Interpreter, wheel: Path, scratch: Path, environment: dict[str, str]) -> Check:
    """Install the file in a fresh environment, alone, and run every kernel that this machine can."""
    name = f"Python {interpreter.version} runs {interpreter.tag}"
    home = scratch / f"env-{interpreter.version}"
    python = str(home / "bin" / "python")
    try:
        _run([interpreter.path, "-m", "venv", str(home)], environment)
        _run([python, "-m", "pip", "install", "--quiet", str(wheel)], environment)
        installed = _run([python, "-m", "pip", "list", "--format=freeze"], environment).split()
        others = [line for line in installed if not re.match(r"(gristmill|pip|setuptools)\b", line)]
        _run([python, "-m", "gristmill", "info"], environment)
        _run([python, "-m", "pip", "install", "--quiet", f"{wheel}[demo]"], environment)
        said = _run([python, "-m", "gristmill", "demo"], environment)
    except Failed as failure:
        return Check(name, False, str(failure))
    return Check(name, not others, said.strip().splitlines()[-1] + (f"; also installs {others}" if others else ""))


def _tool(name: str, command: list[str], environment: dict[str, str]) -> Check:
    try:
        _run([str(Path(sys.executable).parent / command[0]), *command[1:]], environment)
    except (Failed, FileNotFoundError) as failure:
        return Check(name, False, str(failure))
    return Check(name, True)


def _run(command: list[str], environment: dict[str, str], folder: Path | None = None) -> str:
    """Return what a command prints; it runs outside the checkout, whose files must not be imported."""
    place = folder or tempfile.gettempdir()
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"`{' '.join(command)}` failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
