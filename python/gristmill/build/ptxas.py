"""Assembling PTX into cubins with the ptxas of the `nvidia-cuda-nvcc-cu12` package."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "nvidia-cuda-nvcc-cu12"
LOSS = re.compile(r"^\s*ptxas \w+\s*: (\(C75\d\d\) .*)$", re.MULTILINE)
HEADER = re.compile(rb"^\s*\.(version|target|address_size)\b", re.MULTILINE)


@dataclass(frozen=True)
class Ptxas:
    """An assembler and the version of the package that it is from."""

    path: Path
    version: str


@dataclass(frozen=True)
class Usage:
    """What an entry takes for a thread: registers, and local memory, in all and stored for want of registers."""

    registers: int
    stack_bytes: int
    spill_bytes: int

    @property
    def local_bytes(self) -> int:
        """The larger of both: what is stored may share places, and what has a place need not be stored."""
        return max(self.stack_bytes, self.spill_bytes)


@dataclass(frozen=True)
class Loss:
    """A message of ptxas on what makes `function`, or "" if it does not say, slow, as in "(C7510) ... serialized"."""

    function: str
    message: str


@dataclass(frozen=True)
class Assembled:
    """A cubin, and what ptxas says of each entry in it."""

    code: bytes
    usage: dict[str, Usage]
    losses: tuple[Loss, ...] = ()

    def pack(self) -> bytes:
        """Return one line of JSON and the code."""
        numbers = {name: list(vars(used).values()) for name, used in self.usage.items()}
        losses = [[loss.function, loss.message] for loss in self.losses]
        return json.dumps([numbers, losses]).encode() + b"\n" + self.code

    @classmethod
    def unpack(cls, data: bytes) -> Assembled:
        """Undo `pack`."""
        line, _, code = data.partition(b"\n")
        usage, losses = json.loads(line)
        used = {name: Usage(*numbers) for name, numbers in usage.items()}
        return cls(code, used, tuple(Loss(*words) for words in losses))


class AssemblyError(Exception):
    """ptxas refused a file; `line` of it is at fault, or 0, or `function`, or "".

    `is_of_size`: the code is right, but does not fit on the device.
    """

    def __init__(self, message: str, line: int, function: str = ""):
        super().__init__(message)
        self.line = line
        self.function = function
        self.is_of_size = bool(re.search(r"[Rr]egister|too much shared", message)) and not line

    def __reduce__(self) -> tuple[type[AssemblyError], tuple[str, int, str]]:
        return AssemblyError, (str(self), self.line, self.function)


def find_ptxas() -> Ptxas | None:
    """Return the ptxas that the package installed; one on PATH may be of any version, so it is never used."""
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        if file.parent.name == "bin" and file.stem == "ptxas":
            path = Path(str(distribution.locate_file(file)))
            return Ptxas(path, distribution.version) if path.exists() else None
    return None


def assemble(ptxas: Ptxas, ptx: bytes, arch: str) -> Assembled:
    """Return the cubin of `ptx` for `arch` ("sm_90a"). Raises AssemblyError with ptxas's own words."""
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        Path(folder, "kernel.ptx").write_bytes(ptx)
        command = [str(ptxas.path), "-v", f"-arch={arch}", "-O3", "kernel.ptx", "-o", "kernel.cubin"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise _assembly_error(done.stderr or done.stdout or f"ptxas ended with status {done.returncode}", ptx)
        report = done.stdout + done.stderr
        return Assembled(Path(folder, "kernel.cubin").read_bytes(), read_usage(report), read_losses(report))


def read_usage(report: str) -> dict[str, Usage]:
    """Return what `ptxas -v` (12.x, 13.x) says of each entry; functions that it calls are counted with it."""
    parts = re.split(r"Compiling entry function '(\w+)' for '\w+'", report)[1:]
    found = {name: _usage(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}
    return {name: usage for name, usage in found.items() if usage}


def read_losses(report: str) -> tuple[Loss, ...]:
    """Return the messages C7500 to C7599, each once: `wgmma` is serialised, or `setmaxnreg` ignored."""
    messages = dict.fromkeys(message.strip() for message in LOSS.findall(report))
    functions = [re.search(r"function '(\w+)'", message) for message in messages]
    return tuple(Loss(f[1] if f else "", message) for f, message in zip(functions, messages, strict=True))


def _usage(text: str) -> Usage | None:
    registers = re.search(r"Used (\d+) registers", text)
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", text)
    if not registers or not frames:
        return None
    total = re.search(r"(\d+) bytes cumulative stack size", text)
    stack_bytes = int(total[1]) if total else max(int(stack) for stack, _ in frames)
    return Usage(int(registers[1]), stack_bytes, sum(int(stored) for _, stored in frames))


def strip_comments(ptx: bytes) -> bytes:
    """Drop comments, blank lines and indentation, which the driver has no use for."""
    lines = (line.split(b"//", 1)[0].strip() for line in ptx.split(b"\n"))
    return b"\n".join(line for line in lines if line) + b"\n"


def join_entries(texts: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """Put the PTX of several entries under one header; also return the line, from 1, at which each begins.

    Functions and variables that several of them define alike are kept once.
    """
    version = max((_directive(text, rb"version") for text in texts), key=_version_key)
    header = [b".version " + version, b".target " + _directive(texts[0], rb"target"), b".address_size 64"]
    lines, starts = list(header), []
    seen: set[bytes] = set()
    for text in texts:
        starts.append(len(lines) + 1)
        for block in _blocks(text):
            if block not in seen:
                seen.add(block)
                lines += block.split(b"\n")
    return b"\n".join(lines) + b"\n", starts


def _blocks(ptx: bytes) -> Iterator[bytes]:
    """The declarations and definitions of a module, without its header and blank lines."""
    block: list[bytes] = []
    depth = 0
    for line in ptx.split(b"\n"):
        if not line.strip() or HEADER.match(line):
            continue
        block.append(line)
        depth += sum(line.count(c) for c in (b"{", b"(")) - sum(line.count(c) for c in (b"}", b")"))
        if depth == 0 and line.rstrip().endswith((b";", b"}")):
            yield b"\n".join(block)
            block = []
    if block:
        yield b"\n".join(block)


def _directive(ptx: bytes, name: bytes) -> bytes:
    match = re.search(rb"^\s*\." + name + rb"\s+([^\s,]+)", ptx, re.MULTILINE)
    if not match:
        raise AssemblyError(f"the PTX has no .{name.decode()} line", 0)
    return match.group(1)


def _version_key(version: bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(b"."))


def _assembly_error(output: str, ptx: bytes) -> AssemblyError:
    """Return the first error of ptxas with the line of PTX that it is about."""
    match = re.search(r"line (\d+); (?:error|fatal)\s*: (.*)", output)
    if not match:
        found = re.search(r"^ptxas (?:error|fatal)\s*: (.*)", output, re.MULTILINE)
        message = found[1] if found else output.strip()
        function = re.search(r"function '?(\w+)", message)
        return AssemblyError(message, 0, function[1] if function else "")
    line = int(match.group(1))
    text = ptx.split(b"\n")[line - 1].decode(errors="replace").strip()
    return AssemblyError(f"{match.group(2)} in `{text}`", line)
