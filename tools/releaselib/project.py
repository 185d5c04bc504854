"""A project of small kernels, written for measurements of its builds, and the commands that build it."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LISTS = """\
cmake_minimum_required(VERSION 3.26)
project(many VERSION 1.0 LANGUAGES CXX)
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
find_package(gristmill CONFIG REQUIRED)
file(GLOB kernels CONFIGURE_DEPENDS kernels/*.py)
gristmill_add_kernels(many MODULE many._kernels SOURCES ${kernels})
"""
KERNEL = """\
import gristmill as gm
import gristmill.language as tl

D = gm.dtype_var("D", [gm.f16, gm.f32])


@gm.kernel(BLOCK=[1024], grid=lambda n, BLOCK: gm.cdiv(n, BLOCK))
def NAME(x: gm.ptr[D], y: gm.ptr[D], n: gm.size["x"], BLOCK: gm.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    v = tl.load(x + offsets, mask=keep).to(tl.float32)
    tl.store(y + offsets, tl.exp(v * SCALE) + tl.sum(v, axis=0), mask=keep)
"""


@dataclass
class Project:
    """A folder of `count` kernels, each in a file of its own."""

    folder: Path
    count: int = 24
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def build_dir(self) -> Path:
        return self.folder / "build"

    @property
    def outputs(self) -> list[Path]:
        """What a build leaves: the module, its stub and its bill of materials."""
        generated = self.build_dir / "many"
        return [*self.build_dir.glob("_kernels*.so"), *generated.glob("*.pyi"), *generated.glob("*.cdx.json")]

    def write(self) -> None:
        """Write CMakeLists.txt and the kernels."""
        (self.folder / "kernels").mkdir(parents=True, exist_ok=True)
        (self.folder / "CMakeLists.txt").write_text(LISTS)
        for i in range(self.count):
            self.change(i, i + 1)

    def change(self, index: int, scale: int) -> None:
        """Write one kernel, which multiplies by `scale`."""
        text = KERNEL.replace("NAME", f"kernel_{index:02}").replace("SCALE", f"{scale}.0")
        (self.folder / "kernels" / f"kernel_{index:02}.py").write_text(text)

    @property
    def configure_command(self) -> list[str]:
        """CMake, for Ninja and this Python."""
        root = ROOT / "python" / "gristmill" / "cmake"
        options = [f"-Dgristmill_ROOT={root}", f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
        return ["cmake", "-G", "Ninja", "-S", ".", "-B", "build", *options]

    def configure(self) -> None:
        """Run CMake."""
        self.run(self.configure_command)

    def build(self) -> str:
        """Run Ninja; return what it says."""
        return self.run(["ninja", "-C", "build"])

    def start(self) -> subprocess.Popen[bytes]:
        """Begin to configure and build, in a process group of its own."""
        command = ["sh", "-c", f"{shlex.join(self.configure_command)} && exec ninja -C build"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = {**os.environ, **self.environment}
        return subprocess.Popen(command, cwd=self.folder, env=environment, start_new_session=True, **quiet)

    def clean(self) -> None:
        """Delete everything that was built, as `git clean` does."""
        self.run(["rm", "-rf", "build"])

    def digests(self) -> dict[str, str]:
        """Return a hash of each output, by name."""
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(self.outputs)}

    def run(self, command: list[str]) -> str:
        """Run a command in the project. Raises RuntimeError with its output if it fails."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return done.stdout
